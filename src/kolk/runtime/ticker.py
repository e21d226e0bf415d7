"""Work that is due again and again, done by a thread of its own until it is told to stop.

What is due is judged by the injected clock, so a test moves that and calls ``tick`` instead of waiting. Work that
fails must not end the thread: it says so in the log, and is tried again the next time.
"""

import logging
import threading
from collections.abc import Callable

from kolk.runtime.clock import Clock
from kolk.runtime.threads import start_thread

_STOP_SECONDS = 30.0
_REST = 0.1
_log = logging.getLogger(__name__)


def in_turn(*parts: Callable[[], None]) -> None:
    """Do the parts of a round, each of which has its turn whatever becomes of the others. What failed first is raised
    at the end; what failed after it is told in the log."""
    first: Exception | None = None
    for part in parts:
        try:
            part()
        except Exception as error:  # noqa: BLE001 - raised below, or told in the log
            if first is not None:
                _log.exception("another part of the same round failed")
            first = first or error
    if first is not None:
        raise first


class Ticker:
    """Calls ``work`` every so many seconds. Thread-safe. The first time is one period after ``start``."""

    def __init__(
        self,
        work: Callable[[], None],
        *,
        seconds: float,
        clock: Clock,
        start: Callable[[Callable[[], None], str], threading.Thread] = start_thread,
        name: str = "kolk-ticker",
    ) -> None:
        # Constant after construction.
        self._work = work
        self._seconds = seconds
        self._clock = clock
        self._start = start
        self._name = name
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        # Guarded by _lock, which is held while the work is done: there are never two rounds at once.
        self._last = clock.monotonic()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = self._start(self._run, self._name)

    def tick(self) -> bool:
        """Do the work if it is due; whether it was."""
        with self._lock:
            if self._stopped.is_set() or self._clock.monotonic() - self._last < self._seconds:
                return False
            self._last = self._clock.monotonic()
            try:
                self._work()
            except Exception:  # noqa: BLE001 - told in the log; the next round is another chance
                _log.exception("%s failed; it is tried again in %g s", self._name, self._seconds)
            return True

    def due_in(self) -> float:
        """Until the next round is due, counted from the beginning of the last: one that took long, such as a call that
        timed out, must not put the next one off. After one that took longer than that others have a turn, too."""
        left = self._last + self._seconds - self._clock.monotonic()
        return left if left > 0 else self._seconds * _REST

    def stop(self) -> None:
        """Begin no more rounds, and wait for nothing. Idempotent."""
        self._stopped.set()

    def close(self) -> None:
        """Stop, after the round that is under way. Idempotent."""
        self.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(self.due_in()):
            self.tick()
