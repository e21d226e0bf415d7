"""A log that is only looked at: every whole frame of it, verified, and nothing of its folder is touched.

It is judged as when it is opened to be served: a torn tail is passed over, since it would be cut off, and damage is
``Corrupted``. The log that is served is ``kolk.storage.log``.
"""

from collections.abc import Iterator

from kolk.runtime.disk import Disk
from kolk.storage.log_reader import LogReader
from kolk.storage.log_recovery import recover
from kolk.storage.segment_reader import Frame


class LookedLog:
    """The frames of one log as they are now. Confined to one caller; nobody may write to the log meanwhile."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """The disk must be one that changes nothing (``kolk.runtime.looking``)."""
        found = recover(disk, folder)
        self._extent = found.extent
        self._reader = LogReader(disk, folder, found.extent.last, found.index)

    @property
    def start(self) -> int:
        """The first offset."""
        return self._extent.start

    @property
    def end(self) -> int:
        """The offset after the last row."""
        return self._extent.end

    def frames(self) -> Iterator[Frame]:
        """All of them in order, a few megabytes in memory at a time."""
        return self._reader.frames(self._extent, self.start)
