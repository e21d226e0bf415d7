"""``kolk tx``: what is staged for transactions, what was committed last, and discard what nobody will commit.

What is staged takes disk, and goes by itself after a day. An operator wants to see whose it is, and to have the room
sooner. It commits nothing: whoever staged rows knows whether they are all there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.commands import App
from kolk.cli.common import Common, connected
from kolk.cli.durations import span
from kolk.cli.failures import Misuse
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.ids import meant
from kolk.cli.notes import counted, note
from kolk.errors import PermissionDenied, StagingGone
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kolk.client.database import Database
    from kolk.model.transaction import TransactionInfo

app = App(no_args_is_help=True, rich_markup_mode=None, help="List transactions, and discard what is staged.")
_HANDLE = typer.Argument(metavar="HANDLE", help="As the list has it in JSON, or its beginning.")
_APP = typer.Option("--app", metavar="APP", help="Everything that this application has staged.")
_DISCARD_AT_ONCE = 10_000


@app.command("list")
@connected
def list_(
    common: Common,
    app_id: Annotated[str | None, typer.Option("--app", metavar="APP", help="Of one application.")] = None,
    format: FormatOption = None,
) -> None:
    """List what is staged, and what was committed last.

    Of what was committed that is the last version of each application. One that is pending is committed, and not in
    all its buckets yet; `problem` says why, if it could not be finished.
    """
    import pyarrow as pa

    from kolk.cli.writers import write_list

    style = chosen(format)
    with common.connect() as db:
        found = [one for one in db.transactions() if app_id is None or one.app == app_id]
    write_list(pa.table(_for_people(found) if style is Format.TABLE else _all(found)), style)
    if style is Format.TABLE and not found:
        note("nothing is staged, and nothing was committed; `table.transaction(app_id, version)` begins one")


@app.command()
@connected
def discard(
    common: Common,
    handles: Annotated[list[str] | None, _HANDLE] = None,
    app_id: Annotated[str | None, _APP] = None,
) -> None:
    """Forget what is staged and not committed.

    Ends with 3 if there is nothing of the kind. Whoever staged it is told when he seals or commits it. What is
    committed stays.

    \b
    kolk tx discard --app nightly-load
    """
    if bool(handles) == (app_id is not None):
        raise Misuse("name handles, or an application with --app")
    with common.connect() as db:
        staged = {handle: one for one in db.transactions() for handle in one.handles}
        if app_id is not None:
            wanted = [handle for handle, one in staged.items() if one.app == app_id]
        else:
            wanted = [meant(handle, list(staged), "handles") for handle in handles or []]
        unknown = [handle for handle in wanted if handle not in staged]
        if unknown or not wanted:
            what = f"under {', '.join(unknown)}" if unknown else f"by {app_id!r}"
            raise StagingGone(f"nothing is staged {what}; `kolk tx list` lists what is")
        count = _discarded(db, wanted)
        left = [one for one in db.transactions() if set(one.handles) & set(wanted)]
    rows = {one.app: one for one in (staged[handle] for handle in wanted)}
    if count:
        note(f"discarded {counted(count, 'handle')} of {', '.join(sorted(rows))}")
    if left:
        theirs = left[0]
        raise PermissionDenied(
            f"what {theirs.app!r} has staged is not yours but of {theirs.principal or 'the server itself'}: to discard"
            f" it takes a token that may alter {', '.join(theirs.tables)}"
        )


# --- inside


def _discarded(db: "Database", handles: Sequence[str]) -> int:
    return sum(
        db.discard(handles[start : start + _DISCARD_AT_ONCE]) for start in range(0, len(handles), _DISCARD_AT_ONCE)
    )


def _all(found: "Sequence[TransactionInfo]") -> dict[str, Any]:
    """Everything, for programs."""
    import pyarrow as pa

    return {
        "app": pa.array([one.app for one in found], pa.string()),
        "version": pa.array([one.version for one in found], pa.int64()),
        "state": pa.array([one.state for one in found], pa.string()),
        "tables": pa.array([list(one.tables) for one in found], pa.list_(pa.string())),
        "rows": pa.array([one.rows for one in found], pa.int64()),
        "bytes": pa.array([one.bytes for one in found], pa.int64()),
        "committed": pa.array([one.timestamp_ms for one in found], pa.timestamp("ms", "UTC")),
        "principal": pa.array([one.principal or None for one in found], pa.string()),
        "handles": pa.array([list(one.handles) for one in found], pa.list_(pa.string())),
        "problem": pa.array([one.problem or None for one in found], pa.string()),
    }


def _for_people(found: "Sequence[TransactionInfo]") -> dict[str, Any]:
    """The same in fewer letters, and times as people count them: from now."""
    import pyarrow as pa

    now_ms = SystemClock().now_ms()
    ages = [
        None if one.timestamp_ms is None else f"{span(max(now_ms - one.timestamp_ms, 0) / 1_000, units=1)} ago"
        for one in found
    ]
    shown: dict[str, Any] = {
        "app": pa.array([one.app for one in found], pa.string()),
        "version": pa.array([one.version for one in found], pa.int64()),
        "state": pa.array([one.state for one in found], pa.string()),
        "tables": pa.array([", ".join(one.tables) for one in found], pa.string()),
        "rows": pa.array([one.rows for one in found], pa.int64()),
        "bytes": pa.array([one.bytes for one in found], pa.int64()),
        "committed": pa.array(ages, pa.string()),
        "principal": pa.array([one.principal or None for one in found], pa.string()),
        "handles": pa.array([len(one.handles) or None for one in found], pa.int64()),
    }
    if any(one.problem for one in found):
        shown["problem"] = pa.array([one.problem or None for one in found], pa.string())
    return shown
