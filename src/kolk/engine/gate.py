"""The database's gate: many may pass together, or one alone.

A scan of a whole table passes alone, and only for the moment in which it pins its buckets; commits of transactions pass
together. So a scan sees all of a transaction or nothing of it. Plain puts do not pass here at all: they are atomic per
bucket, and a bucket's own lock is enough for that.

Neither side keeps the other waiting for ever. Who wants to pass alone keeps newcomers out, or commits that follow on
each other would never let it; and who has passed alone lets everybody in who waits to pass together by then, before the
next passes alone, or scans that follow on each other would never let them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """A lock that is shared or exclusive. Thread-safe; not re-entrant. Comes before the locks of tablets."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by _changed. Those who wait to pass together are there by a token each; there are some only while
        # somebody passes alone, or waits to.
        self._together = 0
        self._is_alone = False
        self._waiting_alone = 0
        self._waiting_together: set[object] = set()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Pass together with others."""
        with self._changed:
            own = object()
            self._waiting_together.add(own)
            try:
                self._let_in()
                self._changed.wait_for(lambda: own not in self._waiting_together)
            except BaseException:
                self._let_go(own)
                raise
        try:
            yield
        finally:
            with self._changed:
                self._let_go(own)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Pass alone."""
        with self._changed:
            self._waiting_alone += 1
            try:
                self._changed.wait_for(lambda: not self._is_alone and not self._together)
                self._is_alone = True
            finally:
                self._waiting_alone -= 1
                self._let_in()  # if he gave up, and was the last who kept them out
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._let_in(is_their_turn=True)

    # --- inside: all under the lock

    def _let_in(self, *, is_their_turn: bool = False) -> None:
        """Let everybody in who waits to pass together, if it is their turn, or nobody wants to pass alone. They count
        as inside from now on, whenever they wake up."""
        if is_their_turn or not (self._is_alone or self._waiting_alone):
            self._together += len(self._waiting_together)
            self._waiting_together.clear()
            self._changed.notify_all()

    def _let_go(self, own: object) -> None:
        """Somebody who was to pass together, or waited for it, is gone."""
        if own in self._waiting_together:
            self._waiting_together.remove(own)
        else:
            self._together -= 1
            self._changed.notify_all()
