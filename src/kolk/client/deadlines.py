"""Cuts off calls that wait for a server beyond their deadline, or beyond the end of their connection.

Flight has no limit on one read of a stream, only a way to cancel it from another thread. So there is one thread that
knows the deadline of every call that waits now.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kolk.errors import Closed, KolkError, TimedOut, Unreachable
from kolk.runtime.clock import Clock

_TICK_SECONDS = 0.5
"""The thread looks up at least so often, so that only a call with less time has to wake it: most never do."""


@dataclass(slots=True, eq=False)
class Guarded:
    """One call that waits; ``cut_off`` is why it was cancelled, if it was."""

    at: float
    cancel: Callable[[], object]
    cut_off: KolkError | None = None


class Deadlines:
    """Calls that wait, and the thread that watches them, started with the first. Thread-safe: one lock."""

    def __init__(
        self, clock: Clock, start: Callable[[Callable[[], None]], object], each_tick: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._start = start
        self._each_tick = each_tick
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._calls: set[Guarded] = set()
        self._next = float("inf")
        self._running = False
        self._closed = False

    @contextmanager
    def within(self, seconds: float, cancel: Callable[[], object]) -> Iterator[Guarded]:
        """Call ``cancel`` from another thread if the block is not left in time; ``cut_off`` tells afterwards."""
        call = Guarded(self._clock.monotonic() + seconds, cancel)
        with self._changed:
            if self._closed:
                raise Closed(_CLOSED)
            self._calls.add(call)
            if not self._running:
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
        """Cut off every call that waits, and let the thread end. Idempotent."""
        with self._changed:
            self._closed = True
            left = list(self._calls)
            for call in left:
                # Not Closed, which says that nothing was done: the server may have it. Whoever may try again does, and
                # is told then that the connection is closed.
                call.cut_off = call.cut_off or Unreachable(CLOSED_UNDERWAY)
            self._changed.notify()
        for call in left:
            call.cancel()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = self._clock.monotonic()
                late = [call for call in self._calls if call.at <= now]
                self._calls.difference_update(late)
                for call in late:
                    call.cut_off = TimedOut("the server did not answer in time; retry, or give a longer timeout")
            # Nothing that goes wrong here may end the thread that all deadlines depend on.
            for call in late:
                with suppress(Exception):
                    call.cancel()
            with suppress(Exception):
                self._each_tick()
            with self._changed:
                now = self._clock.monotonic()
                self._next = min((call.at for call in self._calls), default=float("inf"))
                self._next = min(self._next, now + _TICK_SECONDS)
                if self._next > now and not self._closed:
                    self._changed.wait(self._next - now)


_CLOSED = "the connection is closed; call kolk.connect again"
CLOSED_UNDERWAY = "the connection was closed before the server had answered"
