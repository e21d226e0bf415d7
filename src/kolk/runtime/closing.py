"""The end of what is made of many parts: each of them is closed, whatever becomes of the others.

A close may wait, for a copy or for readers, and somebody may press Ctrl-C meanwhile. That ends the one wait and not the
others, so nothing stays open; and if it comes just between two parts, the next close goes on there.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack


class Closing:
    """Closes parts in turn. Thread-safe: whoever comes while somebody is at it does not wait for him, as a signal
    handler could not in whose own thread that is."""

    def __init__(self, *parts: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock: a part leaves it before it is closed.
        self._left = ExitStack()
        for close in reversed(parts):
            self._left.callback(close)

    def close(self) -> None:
        """Close what is left. Idempotent; an error of one part is raised when all the others had their turn."""
        if self._lock.acquire(blocking=False):
            try:
                self._left.close()
            finally:
                self._lock.release()
