"""To look at a data folder without leaving a trace in it: a disk that changes nothing, and nobody else who does.

What recovery would merely tidy up, such as an index that it could write anew, stays as it is. Whatever would have to
write more than that is a bug, and fails.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kolk.errors import FolderInUse
from kolk.runtime.disk import AppendFile, OsDisk
from kolk.runtime.folder import LOCK_FILE


class LookingDisk(OsDisk):
    """The operating system's file system, to be read only. Thread-safe."""

    def open_append(self, path: str) -> AppendFile:
        """Nobody who only looks appends."""
        raise AssertionError(f"{path} is to be looked at only")

    def make_folder(self, path: str) -> None:
        """It is there, or it is not."""

    def link(self, path: str, to: str) -> None:
        """There is no name to be given."""

    def replace(self, path: str, data: bytes) -> None:
        """What is there stays."""

    def overwrite(self, path: str, data: bytes) -> None:
        """What is there stays."""

    def remove(self, path: str) -> None:
        """What is there stays."""

    def remove_tree(self, path: str) -> None:
        """What is there stays."""

    def sync_folder(self, path: str) -> None:
        """Nothing was written."""


@contextmanager
def unused(path: Path) -> Iterator[None]:
    """Within the block nobody opens the folder; FolderInUse if somebody has it open."""
    try:
        handle = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # a copy, which nobody has opened yet
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"{path} is open in a process, so its logs change while they are read") from None
        yield
    finally:
        os.close(handle)
