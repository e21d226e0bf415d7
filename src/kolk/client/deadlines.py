"""Cuts off calls that wait for a server beyond their deadline.

Flight has no limit on one read of a stream, only a way to cancel it from another thread. So there is one thread that
knows the deadline of every call that waits now.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kolk.runtime.clock import Clock

_TICK_SECONDS = 0.5
"""The thread looks up at least so often, so that only a call with less time has to wake it: most never do."""


@dataclass(slots=True, eq=False)
class Guarded:
    """One call that waits."""

    at: float
    cancel: Callable[[], object]
    is_cut_off: bool = False


class Deadlines:
    """Calls that wait, and the thread that watches them, started with the first. Thread-safe: one lock."""

    def __init__(self, clock: Clock, start: Callable[[Callable[[], None]], object]) -> None:
        self._clock = clock
        self._start = start
        self.each_tick: Callable[[], None] = _nothing
        """What else is to be done now and then. Set before the first call."""
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._calls: set[Guarded] = set()
        self._next = float("inf")
        self._running = False
        self._closed = False

    @contextmanager
    def within(self, seconds: float, cancel: Callable[[], object]) -> Iterator[Guarded]:
        """Call ``cancel`` from another thread if the block is not left in time; ``is_cut_off`` tells afterwards."""
        call = Guarded(self._clock.monotonic() + seconds, cancel)
        with self._changed:
            self._calls.add(call)
            if not self._running and not self._closed:
                self._running = True
                self._start(self._watch)
            elif call.at < self._next:
                self._changed.notify()
        try:
            yield call
        finally:
            with self._changed:
                self._calls.discard(call)

    def close(self) -> None:
        """Let the thread end. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = self._clock.monotonic()
                late = [call for call in self._calls if call.at <= now]
                self._calls.difference_update(late)
                for call in late:
                    call.is_cut_off = True
                self._next = min((call.at for call in self._calls), default=float("inf"))
                self._next = min(self._next, now + _TICK_SECONDS)
            for call in late:
                call.cancel()
            self.each_tick()
            with self._changed:
                if not late and not self._closed:
                    self._changed.wait(max(self._next - self._clock.monotonic(), 0.001))


def _nothing() -> None:
    pass
