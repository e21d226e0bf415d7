"""What is done about a write whose version was committed before, or one after it: in the same words whichever way it is
written, and by the options ``txn.on-old`` and ``txn.on-different``.
"""

import logging

from kolk.errors import DifferentRows, OldVersion
from kolk.model.transaction import Verdict
from kolk.spark.options import Options

_log = logging.getLogger(__name__)


def drops_old(options: Options) -> bool:
    """Whether a write that is older than the last one committed is passed over; if not, it is an error."""
    return options.choice("txn.on-old", ("fail", "drop")) == "drop"


def fails_on_different(options: Options) -> bool:
    """Whether a write that comes again with other rows is an error; if not, it is passed over."""
    return options.choice("txn.on-different", ("answer", "fail")) == "fail"


def judge(options: Options, app: str, version: int, verdict: Verdict) -> None:
    """Say what became of a write that was not applied, by an error or a warning; of others nothing."""
    what = f"version {version} of {app!r}"
    drops, fails = drops_old(options), fails_on_different(options)
    if verdict is Verdict.OLD:
        told = (
            f"{what} is older than what {options.required('table')} has of it: a checkpoint was lost, or an old one"
            " restored. Go on from the newest checkpoint; or, if what this one has to write is in the table, pass over"
            " it with .option('txn.on-old', 'drop'); or begin anew in another checkpoint folder, with another txnAppId"
            " if you gave one, and with the table truncated if its rows are read again, as in a full refresh of a"
            " pipeline"
        )
        if not drops:
            raise OldVersion(told)
        _log.warning("%s", told)
    if verdict is Verdict.DUPLICATE_DIFFERENT:
        told = (
            f"{what} was committed before with other rows, which stand: does the query give other rows when run again,"
            " or write the table twice under one name and version?"
        )
        if fails:
            raise DifferentRows(told)
        _log.warning("%s", told)
