"""Write tags for plain puts: an identity per concurrent put, and a count.

A put borrows a writer, counts it up, and gives it back when the put is acknowledged; so a client has as many
writers as it has puts at the same moment, and each writer's puts come in order. A writer whose put failed is not
used again: its tag stays the newest of its writer, and a retry with it is recognised for sure.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kolk.model.ids import PlainTag
from kolk.runtime.rng import Rng


class Tags:
    """Draws write tags. Thread-safe: one lock."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._lock = threading.Lock()
        self._free: list[PlainTag] = []

    @contextmanager
    def borrow(self) -> Iterator[PlainTag]:
        """A fresh tag, for one put."""
        with self._lock:
            tag = self._free.pop() if self._free else PlainTag(self._rng.id128(), 0)
        yield tag
        with self._lock:
            self._free.append(PlainTag(tag.writer, tag.seq + 1))

    @contextmanager
    def borrow_many(self) -> Iterator[Iterator[PlainTag]]:
        """Fresh tags of one writer, one after the other, for a stream of puts."""
        with self._lock:
            first = self._free.pop() if self._free else PlainTag(self._rng.id128(), 0)
        used = 0

        def tags() -> Iterator[PlainTag]:
            nonlocal used
            while True:
                used += 1
                yield PlainTag(first.writer, first.seq + used - 1)

        yield tags()
        with self._lock:
            self._free.append(PlainTag(first.writer, first.seq + used))
