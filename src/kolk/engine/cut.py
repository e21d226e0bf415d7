"""A cut: some buckets of a table, all pinned at one moment, and how pages are made of them.

Reading a cut leaves no trace in it: a page is what comes after a place, and the place after the page is in the page. So
it can be read by several readers, from the start or from anywhere, and every page can be made a second time.

A page is measured as it is sent, after projection and selection. It holds one row at least, if there is one; more only
as long as they fit.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.errors import InvalidArgument, KolkError, PartitionDropped
from kolk.model.ids import BucketId
from kolk.model.partition import PartitionEvent, PartitionEventKind
from kolk.model.predicate import Predicate
from kolk.model.scan import Page, Place, Resumed, read_before
from kolk.model.schema import Schema
from kolk.storage.view import Taken, View

CHUNK_ROWS = 16_384
"""Rows that are decoded at once. They are read in smaller parts, and a step of the decoding of so many takes less than
a millisecond: lookups in between do not wait for long."""
_CHUNK_ROWS_MIN = 16
_FEW_ROWS = 512
CHUNKS_MAX = 64
"""How many chunks are read for one page, even if nothing in them is wanted: whoever gave up is noticed in between."""
_ROW_BYTES_GUESS = 128
_NEARLY_FULL = 16


@dataclass(frozen=True, slots=True)
class Room:
    """How large a page may get, and how many chunks are read for it."""

    rows: int
    size_bytes: int
    chunks: int = CHUNKS_MAX


class _Draft:
    """A page in the making. Confined to one thread."""

    def __init__(self, room: Room, row_bytes: int) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.runs: dict[str, int] = {}
        self.chunks = 0
        self._room = room
        self._guess = row_bytes
        self._rows = 0
        self._size = 0

    @property
    def is_full(self) -> bool:
        # A last few rows would cost as much as all the others.
        return self.rows_left <= 0 or (self._rows > 0 and self.bytes_left < self._room.size_bytes // _NEARLY_FULL)

    @property
    def row_bytes(self) -> int:
        """How many bytes a row takes, of those that there are, or else as was guessed."""
        return max(self._size // self._rows, 1) if self._rows else self._guess

    @property
    def rows_left(self) -> int:
        return self._room.rows - self._rows

    @property
    def bytes_left(self) -> int:
        return max(self._room.size_bytes - self._size, 0)

    @property
    def wanted_rows(self) -> int:
        """About how many rows fit; more than do fit are only read in vain."""
        fitting = max(self.bytes_left // self.row_bytes, _CHUNK_ROWS_MIN)
        return min(self.rows_left, fitting)

    def add(self, bucket: str, batch: pa.RecordBatch) -> int:
        """Take as many rows as fit, and say how many."""
        self.chunks += 1
        count = self._fitting(batch)
        if count:
            kept = batch.slice(0, count)
            self.batches.append(kept)
            self.runs[bucket] = self.runs.get(bucket, 0) + count
            self._rows += count
            # Joined, they have one head; but a column in which only the next has nulls takes a bit for each of these.
            self._size += sent_bytes(kept) - _head_bytes(kept.schema) + kept.num_columns * (count // 8 + 8)
        return count

    def _fitting(self, batch: pa.RecordBatch) -> int:
        room = self.bytes_left
        most = min(batch.num_rows, self.rows_left)
        if not most or sent_bytes(batch.slice(0, most)) <= room:
            return most
        # Of a batch that is too large, the longest beginning that is not; of an empty page, one row in any case.
        low, high = (0 if self.batches else 1), most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if sent_bytes(batch.slice(0, middle)) <= room else (low, middle - 1)
        if low < most:
            self._room = replace(self._room, rows=self._rows + low)
        return low


class Cut:
    """Views of one moment, or of snapshots of several, of those buckets that have rows. Thread-safe; ``close`` may come
    from anywhere.

    It stands for all buckets that it has an offset of, which are in order; ``buckets`` are those that are pinned.
    ``offsets`` is by public names, and has also the ``places`` that are no bucket's. ``pins`` are the snapshots that it
    shows, by bucket; None if it shows the living rows. ``starts`` is where the logs began, by public names, of a log
    table, of which they are the rows.
    """

    def __init__(
        self,
        views: Sequence[tuple[BucketId, View]],
        offsets: Mapping[BucketId, int],
        places: Mapping[str, int],
        schema: Schema,
        names: Sequence[str] | None,
        limit: int | None,
        where: Predicate | None,
        estimate: int | None,
        chunk_rows: int = CHUNK_ROWS,
        *,
        pins: Mapping[str, int] | None = None,
        is_consistent: bool = True,
        starts: Mapping[BucketId, int] | None = None,
    ) -> None:
        self.pins = pins
        self.starts = {bucket.name: start for bucket, start in (starts or {}).items()}
        self.is_consistent = is_consistent
        self.offsets = {**{bucket.name: offset for bucket, offset in offsets.items()}, **places}
        self.buckets = tuple(bucket for bucket, _ in views)
        self.schema = schema
        self.estimate = estimate
        self._chunk_rows = chunk_rows
        self._names = names
        self._limit = limit
        self._where = where
        self._views = list(views)
        self._offsets = dict(offsets)
        self._row_bytes = _ROW_BYTES_GUESS  # of the last page, whoever read it: only a guess for the next
        self._order = [(bucket.partition, bucket.bucket) for bucket in self.buckets]

    @property
    def arrow(self) -> pa.Schema:
        """The columns of its pages."""
        return self.schema.arrow_of(self._names)

    def read_before(self, place: Place) -> Resumed:
        """What of it, with rows or without, comes before a place."""
        return read_before(place, tuple(self._offsets))

    def check(self, only: Collection[str] | None) -> None:
        """Refuse names of buckets that the scan does not have."""
        strange = next((name for name in only or () if name not in self.offsets), None)
        if strange is not None:
            raise InvalidArgument(f"the scan has no bucket {strange[:100]!r}; its buckets are the keys of its offsets")

    def offset_of(self, bucket: BucketId) -> int | None:
        """The offset that it has of this very bucket, with rows or without; None if it has none."""
        return self._offsets.get(bucket)

    @property
    def refusal(self) -> KolkError | None:
        """Why one of the views was taken back, unless only its partition went; None if none was."""
        for _, view in self._views:
            if view.refusal is not None and not isinstance(view.refusal, PartitionDropped):
                return view.refusal
        return None

    def page(self, place: Place, room: Room, only: Collection[str] | None = None) -> Page:
        """What comes after a place, of all buckets or of some only."""
        page = self._page(place, room, only)
        # Chunks are measured one by one, with room for what joining them takes; but rows within rows may take more.
        while (fewer := _fewer(page, room)) is not None:
            room = replace(room, rows=fewer)
            page = self._page(place, room, only)
        return page

    def close(self) -> None:
        """Let every view go. Idempotent."""
        for _, view in self._views:
            view.close()

    def _page(self, place: Place, room: Room, only: Collection[str] | None) -> Page:
        draft = _Draft(room, self._row_bytes)
        while (found := self._next(place, only)) is not None:
            if draft.is_full or draft.chunks >= room.chunks:
                return self._finished(draft, place, is_last=self._where is None and not self._has_more(place, only))
            bucket, view = found
            if (place.partition, place.bucket) != (bucket.partition, bucket.bucket):
                place = Place(bucket.partition, bucket.bucket, b"", place.delivered)
            try:
                taken = view.take(place.after, self._asked(draft, place))
                if not len(taken.all):
                    place = Place(bucket.partition, bucket.bucket + 1, b"", place.delivered)
                    continue
                place = self._read(draft, bucket, view, taken, place)
            except PartitionDropped as error:
                if draft.batches:  # first what there is
                    return self._finished(draft, place, is_last=False)
                place = Place(bucket.partition + 1, 0, b"", place.delivered)
                return Page(None, (), place, is_last=False, event=_gone(error.partition))
        return self._finished(draft, place, is_last=True)

    def _next(self, place: Place, only: Collection[str] | None) -> tuple[BucketId, View] | None:
        """The bucket to read on in; None if there is none, or if the limit is reached."""
        if self._limit is not None and place.delivered >= self._limit:
            return None
        start = bisect_left(self._order, (place.partition, place.bucket))
        rest = self._views[start:] if only is not None else self._views[start : start + 1]
        return next(((bucket, view) for bucket, view in rest if only is None or bucket.name in only), None)

    def _has_more(self, place: Place, only: Collection[str] | None) -> bool:
        """Whether a row follows."""
        while (found := self._next(place, only)) is not None:
            bucket, view = found
            is_here = (place.partition, place.bucket) == (bucket.partition, bucket.bucket)
            try:
                if view.has_more(place.after if is_here else b"", _CHUNK_ROWS_MIN):
                    return True
            except KolkError:
                return True  # told by the next page
            place = Place(bucket.partition, bucket.bucket + 1, b"", place.delivered)
        return False

    def _asked(self, draft: _Draft, place: Place) -> int:
        """How many rows to read. With a predicate nobody knows how many must be, to find so many that are wanted."""
        if self._where is not None:
            # For the first few, few are read at first.
            return self._chunk_rows if self._limit is None else min(self._chunk_rows, _FEW_ROWS << draft.chunks)
        wanted = min(draft.wanted_rows, self._chunk_rows)
        return wanted if self._limit is None else min(wanted, self._limit - place.delivered)

    def _read(self, draft: _Draft, bucket: BucketId, view: View, taken: Taken, place: Place) -> Place:
        """Add what was taken to the page, as far as it is wanted and fits; the place after that."""
        values = taken.values
        chosen = None if self._where is None else self._chosen(view, values, self._where)
        wanted = values if chosen is None else values.take(pa.array(chosen))
        if self._limit is not None:
            wanted = wanted.slice(0, self._limit - place.delivered)
        batch = view.codec.decode_as(self.schema, wanted, self._names)
        count = draft.add(bucket.name, batch)
        # All that was read is used, unless some that is wanted was left over.
        is_whole = count == len(values if chosen is None else chosen)
        used = len(values) if is_whole else count if chosen is None else int(chosen[count - 1]) + 1 if count else 0
        return Place(bucket.partition, bucket.bucket, view.used(taken, used), place.delivered + count)

    def _chosen(self, view: View, values: pa.BinaryArray, where: Predicate) -> NDArray[np.intp]:
        """Which rows the predicate selects. Only the columns that decide are decoded of every row."""
        deciding = where.columns or self.schema.names[:1]  # without a column a batch has no rows
        return np.flatnonzero(where.mask(view.codec.decode_as(self.schema, values, deciding)))

    def _finished(self, draft: _Draft, place: Place, *, is_last: bool) -> Page:
        self._row_bytes = draft.row_bytes
        batches = draft.batches
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches) if batches else None
        return Page(batch, tuple(draft.runs.items()), place, is_last)


def _fewer(page: Page, room: Room) -> int | None:
    """How many rows a page should have instead, if it is too large; None if it is not."""
    if page.batch is None or page.batch.num_rows == 1:
        return None
    rows, size = page.batch.num_rows, sent_bytes(page.batch)
    return None if size <= room.size_bytes else max(min(rows * room.size_bytes // size, rows - 1), 1)


def sent_bytes(batch: pa.RecordBatch) -> int:
    """How many bytes a batch takes on its way."""
    return pa.ipc.get_record_batch_size(batch)


@lru_cache(maxsize=256)
def _head_bytes(schema: pa.Schema) -> int:
    """How many of these a batch takes without any row. (A slice without rows takes more.)"""
    return sent_bytes(pa.RecordBatch.from_pylist([], schema=schema))


def _gone(partition: str) -> PartitionEvent:
    return PartitionEvent(kind=PartitionEventKind.DROPPED, partition=partition, position=0, timestamp_ms=0, unread=None)
