"""A view: a bucket's rows at one log offset, read page by page.

A view lives in memory, belongs to one reader at a time and dies with the process. It is pinned under the
tablet's lock, so its offset is exact: the rows are those of the log up to it. Durable copies are *snapshots*,
which are something else.
"""

import threading
from collections.abc import Sequence
from copy import copy

import pyarrow as pa

from kolk.codec.versions import RowCodecs
from kolk.errors import Closed, KolkError
from kolk.model.predicate import Predicate
from kolk.model.schema import Schema
from kolk.storage.kv import Pin


class View:
    """One bucket at one moment. Thread-safe: one lock, so that revoking waits for the page in the making."""

    def __init__(self, pin: Pin, offset: int, codec: RowCodecs) -> None:
        self.offset = offset
        self._pin: Pin | None = pin
        self._codec = codec
        self._lock = threading.RLock()  # a signal handler may close the database in the middle of a page
        self._drained = False
        self._reason: KolkError = Closed("this view is closed")

    @property
    def is_open(self) -> bool:
        """Whether it still pins rows."""
        return self._pin is not None

    def next(
        self,
        rows: int,
        names: Sequence[str] | None = None,
        where: Predicate | None = None,
        schema: Schema | None = None,
    ) -> pa.RecordBatch | None:
        """The named columns of the next ``rows`` rows, or of those that the predicate selects; None at the end.

        ``schema`` is the version that the reader, and so the predicate, speaks, if it is not the newest.
        """
        with self._lock:
            if self._drained:
                return None
            if self._pin is None:
                raise copy(self._reason)
            values = self._pin.take(rows)
            self._drained = not len(values)
        if self._drained:
            return None
        spoken = schema or self._codec.schema
        return self._codec.decode_as(spoken, values if where is None else self._selected(values, where, spoken), names)

    def _selected(self, values: pa.BinaryArray, where: Predicate, schema: Schema) -> pa.BinaryArray:
        """Only the columns that decide are decoded of every row; the others of the rows that are wanted."""
        deciding = where.columns or schema.names[:1]  # without a column a batch has no rows
        mask = where.mask(self._codec.decode_as(schema, values, deciding))
        return values if mask.all() else values.filter(pa.array(mask))

    def abandon(self) -> None:
        """In a forked child: never tear down what belongs to the parent."""
        if self._pin is not None:
            self._pin.abandon()

    def close(self) -> None:
        """Let the rows go. Idempotent."""
        self.revoke(self._reason)

    def revoke(self, reason: KolkError) -> None:
        """Close on the tablet's behalf; the next call of the reader is told why."""
        with self._lock:
            if self._pin is not None:
                self._reason = reason
                self._pin.close()
                self._pin = None
