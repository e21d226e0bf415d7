"""Reading a table's changelog bucket by bucket, and waiting for more.

The order within a bucket is the order of the log; between buckets there is none, and they take turns, so that a busy
one cannot starve the others.
"""

from collections import deque
from collections.abc import Callable, Mapping

from kolk.model.page import ChangelogPage
from kolk.tablet.signal import Signal

ReadChanges = Callable[[str, int, int | None], ChangelogPage]
"""The next changes of a bucket, from an offset on, below a stop."""


class TableChanges:
    """A position in every chosen bucket. Confined to one reader at a time; ``close`` may come from anywhere."""

    def __init__(
        self, read: ReadChanges, signal: Signal, starts: Mapping[str, int], stops: Mapping[str, int | None]
    ) -> None:
        self._read = read
        self._signal = signal
        self._offsets = dict(starts)
        self._stops = dict(stops)
        self._turns = deque(starts)
        self._closed = False

    @property
    def is_finished(self) -> bool:
        """Whether every bucket has come to its stop."""
        return all(self._is_done(bucket) for bucket in self._offsets)

    def next(self, seconds: float) -> tuple[str, ChangelogPage] | None:
        """The next page and its bucket; None if there is nothing now, after waiting at most so long for more."""
        # Read before looking, so that what is published after the look ends the wait.
        seen = self._signal.count
        waits = False
        for _ in range(len(self._turns)):
            if self._closed:
                return None
            bucket = self._turns[0]
            self._turns.rotate(-1)
            if self._is_done(bucket):
                continue
            waits = True
            offset = self._offsets[bucket]
            page = self._read(bucket, offset, self._stops.get(bucket))
            if page.next_offset > offset:
                self._offsets[bucket] = page.next_offset
                return bucket, page
        if waits and not self._closed:
            self._signal.wait(seen, seconds)
        return None

    def close(self) -> None:
        """End the reading, also one that waits in another thread. Idempotent."""
        self._closed = True
        self._signal.notify()

    def _is_done(self, bucket: str) -> bool:
        stop = self._stops.get(bucket)
        return stop is not None and self._offsets[bucket] >= stop
