"""Rows that are past their time: which ones they are, by the values of a time column, in whole columns at once.

A row's time is a column of its own: an instant, a timestamp without a zone, which counts as UTC, or a date, which
counts as its midnight in UTC. It has expired when that is at or before a given moment. A null is no time, so such a row
never expires. The value is compared as it is stored, to its last digit.

Expiry is done in steps, each over a few thousand rows (``Tablet.expire``):

1. pin the next rows, without keeping the tablet's lock, and judge their times       ``look``
2. under the lock, drop from the list whatever is no longer just as it was seen      ``unchanged``
3. append a frame with a -D for each of the others, sync, apply, as a put does

So a row that was written between 1 and 3 stays, whatever its new time says; it is judged again by a later walk. The
frame is a ``SystemTag(SystemWork.TTL)``'s: it is no client's, whatever the table's delete behaviour says, and whoever
takes a client's changes back (an undo) knows by it that these rows went by themselves and **must not bring them back**.

This module knows no clock and no options, and writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.codec.buffers import Mask
from kolk.codec.row import stored_values
from kolk.model.kinds import Kind
from kolk.model.types import DataType
from kolk.storage.view import View

_DAY_MS = 86_400_000
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What one step of a walk over a bucket's rows came to."""

    after: bytes | None
    """The key to go on after; None if there are no more rows."""
    rows: int
    """How many were looked at."""
    removed: int
    """How many of them are gone; each took one offset."""
    earliest_ms: int | None
    """The first millisecond at which one of the others would have expired; None if none of them ever does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The next rows as they were when they were pinned: those that have expired, and what is known of the others."""

    after: bytes | None
    rows: int
    keys: list[bytes]
    values: pa.BinaryArray
    earliest_ms: int | None

    def walk(self, *, removed: int) -> Walk:
        """The step that this was the look of."""
        return Walk(after=self.after, rows=self.rows, removed=removed, earliest_ms=self.earliest_ms)


def look(view: View, column: int, before_ms: int, rows: int) -> Looked:
    """Judge the first rows of a view, at most so many, by the column of this id, whatever versions they are of."""
    taken = view.take(b"", rows)
    values, codec = taken.values, view.codec
    time = codec.schema.by_id[column]
    times = codec.decode(values, [time.name]).column(0)
    is_expired = expired(times, time.type, before_ms)
    found = values.filter(pa.array(is_expired))
    keys: list[bytes] = []
    if len(found):
        key_codec = codec.keys_of(codec.schema)
        keys = key_codec.to_list(key_codec.encode(codec.decode(found, codec.schema.primary_key)))
    return Looked(
        after=view.used(taken, len(values)) if len(values) else None,
        rows=len(values),
        keys=keys,
        values=found,
        earliest_ms=earliest_ms(times.filter(pa.array(~is_expired)), time.type),
    )


def unchanged(looked: Looked, now: Sequence[bytes | None]) -> tuple[list[bytes], pa.BinaryArray]:
    """The keys, with their values, of those expired rows that are still stored as they were seen."""
    same = pc.fill_null(pc.equal(looked.values, stored_values(now)), False)
    keys = pa.array(looked.keys, pa.binary())
    return keys.filter(same).to_pylist(), looked.values.filter(same)


def expired(times: pa.Array, type: DataType, before_ms: int) -> Mask:
    """Which of these values of a time column are at or before a moment."""
    ticks = _ticks(times)
    numerator, denominator = _tick_ms(type)
    last = before_ms * denominator // numerator
    bounds = np.iinfo(ticks.type.to_pandas_dtype())
    if last < bounds.min:  # the moment is earlier than everything that the type can say
        return np.zeros(len(times), np.bool_)
    limit = pa.scalar(min(last, int(bounds.max)), ticks.type)
    return pc.fill_null(pc.less_equal(ticks, limit), False).to_numpy(zero_copy_only=False)


def earliest_ms(times: pa.Array, type: DataType) -> int | None:
    """The first whole millisecond that is not before the earliest of these values; None if all are null."""
    earliest = pc.min(_ticks(times)).as_py()
    numerator, denominator = _tick_ms(type)
    return None if earliest is None else -(-earliest * numerator // denominator)


def _ticks(times: pa.Array) -> pa.Array:
    """The same values as the numbers that they are stored as."""
    return times.view(pa.int32() if pa.types.is_date32(times.type) else pa.int64())


def _tick_ms(type: DataType) -> tuple[int, int]:
    """How many milliseconds one tick of a time column is, as a fraction."""
    return (_DAY_MS, 1) if type.kind is Kind.DATE else (1_000, _PER_SECOND[type.unit])
