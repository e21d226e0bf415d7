"""A backup, from its first step to its last: whoever asks for it goes on asking until it is whole."""

import os
from collections.abc import Callable
from contextlib import suppress

from kolk.client.link import Link
from kolk.errors import InvalidArgument, KolkError
from kolk.model.backup import BackupInfo

OnProgress = Callable[[int, int], object]


def backed_up(link: Link, path: str | os.PathLike[str], on_progress: OnProgress | None) -> BackupInfo:
    """Make a backup; what fails, or is interrupted, is given up."""
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        raise InvalidArgument(f"give the path of a folder for the backup, or its name on a server, not {path!r}")
    target, nonce = os.fsdecode(path), f"{link.rng.id128():032x}"
    try:
        while True:
            state = link.service.backup(target, nonce)
            if on_progress is not None:
                on_progress(state.done_bytes, state.total_bytes)
            if state.info is not None:
                return state.info
    except BaseException:
        with suppress(KolkError):
            link.service.cancel_backup(nonce)
        raise
