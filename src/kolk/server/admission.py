"""How much a server takes on at once: streams, bytes of puts, and a disk that is not full.

Whatever is over a limit waits a little where waiting helps, then is refused with a retriable error; nothing is ever
queued in memory beyond these limits.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from kolk.config import ServerConfig
from kolk.errors import Busy, DiskFull
from kolk.runtime.clock import Clock

SHUTTING_DOWN = "the server is shutting down; retry in a moment"
_DISK_LOOK_SECONDS = 1.0


class Streams:
    """Counts open calls and streams, each of which holds a thread. Thread-safe: one lock."""

    def __init__(self, config: ServerConfig) -> None:
        self._max = config.streams_max
        self._share = config.streams_per_principal
        self._idle = threading.Condition()
        # Guarded by _idle.
        self._open: Counter[str] = Counter()
        self._busy = 0
        self._draining = False

    @property
    def open(self) -> int:
        """How many there are."""
        return self._open.total()

    @property
    def is_draining(self) -> bool:
        """Whether the server is about to stop."""
        return self._draining

    @contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """Take a place for one stream; Busy if there is none."""
        with self._idle:
            self.refuse_if_draining()
            if self._open.total() >= self._max:
                raise Busy(f"the server has {self._max} streams open, as many as it may; retry in a moment")
            if self._open[principal] >= self._share:
                raise Busy(
                    f"{principal} has {self._share} streams open, as many as one may; close some, or share a connection"
                )
            self._open[principal] += 1
        try:
            yield
        finally:
            with self._idle:
                self._open[principal] -= 1
                self._open += Counter()  # forgets those that have none

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark that a request is being served, so that a drain waits for it; Busy if one has begun."""
        with self._idle:
            self.refuse_if_draining()
            self._busy += 1
        try:
            yield
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def drain(self, seconds: float) -> bool:
        """Take nothing new, and wait so long for what is being served; whether all of it ended."""
        with self._idle:
            self._draining = True
            return self._idle.wait_for(lambda: self._busy == 0, seconds)

    def refuse_if_draining(self) -> None:
        """Busy if the server is about to stop."""
        if self._draining:
            raise Busy(SHUTTING_DOWN)


class PutBudget:
    """Bytes of puts, or of commits, that are served at the same time. Thread-safe: one lock.

    A put larger than the whole budget is served alone. First come, first served, also if there would be room for the
    second: what is large would never have its turn among many small ones. Behind the first as many may wait as may be
    served, by size, the last of them as large as it is: more would be a queue in memory.
    """

    def __init__(self, config: ServerConfig, what: str = "put") -> None:
        self._what = what
        self._max = config.puts_bytes_max
        self._seconds = config.puts_wait_seconds
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._served = 0
        self._line: deque[_Turn] = deque()

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Wait for room for so many bytes; Busy if there is none in time."""
        size = min(size, self._max)
        with self._changed:
            if self._line or self._served + size > self._max:
                self._wait(_Turn(size))
            self._served += size
        try:
            yield
        finally:
            with self._changed:
                self._served -= size
                self._changed.notify_all()

    def _wait(self, turn: "_Turn") -> None:
        if sum(each.size for each in islice(self._line, 1, None)) >= self._max:
            raise Busy(
                f"too many {self._what}s are waiting for their turn; retry in a moment, or {self._what} less at once"
            )
        self._line.append(turn)
        try:
            if not self._changed.wait_for(lambda: self._is_next(turn), self._seconds):
                raise Busy(
                    f"the {self._what} waited {self._seconds:g} s for its turn; retry in a moment, or {self._what} less"
                    " at once"
                )
        finally:
            self._line.remove(turn)
            self._changed.notify_all()  # there may be room for the next one, too

    def _is_next(self, turn: "_Turn") -> bool:
        return self._line[0] is turn and self._served + turn.size <= self._max


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """One that waits in line."""

    size: int


class DiskGuard:
    """Refuses puts while the disk is nearly full, so that there is room to recover. Thread-safe."""

    def __init__(self, used: Callable[[], float], limit: float, clock: Clock) -> None:
        self._used = used
        self._limit = limit
        self._clock = clock
        self._seen = (float("-inf"), 0.0)

    @property
    def used(self) -> float:
        """The share of the disk that is in use, looked up at most once a second."""
        now = self._clock.monotonic()
        if now - self._seen[0] >= _DISK_LOOK_SECONDS:
            self._seen = (now, self._used())
        return self._seen[1]

    @property
    def is_full(self) -> bool:
        """Whether puts are refused."""
        return self.used > self._limit

    def check(self) -> None:
        """DiskFull if puts are refused now."""
        if self.is_full:
            raise DiskFull(
                f"the server's disk is {self.used:.0%} full and puts are refused above {self._limit:.0%};"
                " free some space, reads go on meanwhile"
            )
