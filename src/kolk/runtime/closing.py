"""The end of what is made of many parts: each of them is closed, whatever becomes of the others.

A close may wait, for a copy or for readers, and somebody may press Ctrl-C meanwhile. That ends the one wait and not the
others, so nothing stays open; and the next close goes on with what was interrupted, or had no turn.
"""

import threading
from collections.abc import Callable


class Closing:
    """Closes parts in turn. Thread-safe: whoever comes while somebody is at it does not wait for him, as a signal
    handler could not in whose own thread that is."""

    def __init__(self, *parts: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock: a part leaves it when it had its turn. Each may be closed again.
        self._left = list(parts)

    def close(self) -> None:
        """Close what is left. Idempotent; an error of one part is raised when all the others had their turn."""
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        errors: list[BaseException] = []
        for part in list(self._left):
            try:
                part()
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
                if not isinstance(error, Exception):  # interrupted, perhaps before it had begun
                    continue
            self._left.remove(part)
        if errors:
            raise errors[0]
