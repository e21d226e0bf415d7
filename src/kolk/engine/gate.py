"""The database's gate: many may pass together, or one alone.

A scan of a whole table passes alone, and only for the moment in which it pins its buckets; commits of transactions pass
together. So a scan sees all of a transaction or nothing of it. Plain puts do not pass here at all: they are atomic per
bucket, and a bucket's own lock is enough for that.

Who wants to pass alone keeps newcomers waiting, or commits that follow on each other would keep it waiting for ever.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """A lock that is shared or exclusive. Thread-safe; not re-entrant. Comes before the locks of tablets."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._together = 0
        self._is_alone = False
        self._waiting_alone = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Pass together with others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone and not self._waiting_alone)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Pass alone."""
        with self._changed:
            self._waiting_alone += 1
            try:
                self._changed.wait_for(lambda: not self._is_alone and not self._together)
            finally:
                self._waiting_alone -= 1
                self._changed.notify_all()
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()
