"""What an owner's uncommitted frames have changed, and the writes that take it back.

The frames are read in order. Of every key the first own change counts: what stood before it in the owner's columns is
what is committed, because nobody else writes them. A key that the owner has inserted goes, or, if others have columns
in its row, loses the owner's. Other columns are never touched: they are what they are now. Whether others have columns
in a row that an owner has inserted is told by their values: null, or the default of a new row, is nobody's.

A row that the store itself removed meanwhile (its time was up) does not come back. What is restored overwrites, without
any function; no function is ever inverted.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.codec.buffers import Mask, Rows, valid_mask
from kolk.codec.checksum import hashes_of
from kolk.codec.key import KeyCodec, group_starts, sort_order
from kolk.codec.versions import RowCodecs
from kolk.model.change import ChangeKind
from kolk.model.defaults import default_values
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema
from kolk.model.translation import translated
from kolk.model.write import Action, Write

_READ_KEYS = 128
"""Of so many rows, however large, a frame holds what they are and what they were."""
_PAGE_BYTES = 64 * 2**20


class Images:
    """The rows before an owner's changes, of some of the keys. Confined to one call.

    ``own`` are the ids of the owner's columns, None for all. Of ``parts`` that the keys are cut into it looks at one,
    so that a long history can be taken back in several turns, each with a part of it in memory.
    """

    def __init__(self, codec: RowCodecs, own: Sequence[int] | None, part: int = 0, parts: int = 1) -> None:
        self._codec = codec
        self._schema = codec.schema
        self._own = own
        self._part, self._parts = part, parts
        # Of each frame the rows before its changes, their keys, and whether there was none.
        self._images: list[pa.RecordBatch] = []
        self._keys: list[pa.BinaryArray] = []
        self._absent: list[Mask] = []
        self._count = 0
        # The keys that the store itself removed, and how many changes were before that.
        self._removed: list[pa.BinaryArray] = []
        self._before: list[Rows] = []

    def take(self, rows: pa.RecordBatch, schema: Schema) -> None:
        """A frame of the owner: rows behind their ``__op``, of one version of the schema."""
        # The row before an update says what it replaced.
        rows, keys = self._mine(rows.filter(pc.not_equal(rows.column(0), int(ChangeKind.UPDATE_AFTER))), schema)
        table = pa.RecordBatch.from_arrays(rows.columns[1:], schema=schema.arrow)
        self._images.append(translated(table, schema, self._schema.columns) if schema.id != self._schema.id else table)
        self._keys.append(keys)
        self._absent.append(rows.column(0).to_numpy() == ChangeKind.INSERT)
        self._count += len(keys)

    def remove(self, rows: pa.RecordBatch, schema: Schema) -> None:
        """A frame of the store itself: what it removed is gone, whatever stood there before."""
        _, keys = self._mine(rows, schema)
        self._removed.append(keys)
        self._before.append(np.full(len(keys), self._count))

    def writes(self, stored: Callable[[list[bytes]], pa.BinaryArray]) -> Iterator[tuple[Write, pa.BinaryArray]]:
        """What to write, given what is stored under keys now: the rows that come back, or change, and those that go;
        each in the order of the keys, and with what is stored under them.

        All of them whole rows: in columns that are not the owner's they say what is there. Others may have made them
        large since, so each write is of no more rows than fit in memory, and in a frame.
        """
        if not self._count or not self._own_columns:
            return
        keys, images, was_absent = self._first()
        start = 0
        for values in _pages(KeyCodec.to_list(keys), stored):
            end = start + len(values)
            yield from self._writes(images.slice(start, len(values)), was_absent[start:end], values)
            start = end

    def _writes(
        self, images: pa.RecordBatch, was_absent: Mask, values: pa.BinaryArray
    ) -> Iterator[tuple[Write, pa.BinaryArray]]:
        """The same of some keys: their images, which of them had none, and what is stored."""
        own = self._own_columns
        is_there = valid_mask(values)
        now = self._codec.decode(values.drop_null())
        rows = self._restored(images, was_absent, now, is_there)
        others = [column for column in self._schema.value_columns if column not in own]
        gone = was_absent.copy()
        if self._own is not None:
            # Under a lock of some columns a row without any value is no row of the owner's, and one that it has made
            # is nobody's as long as the other columns are as they were when it was made.
            unrestorable = any(not column.nullable and column.default is None for column in own)
            was_empty = _all_null(images, own) & ~was_absent
            gone &= ~is_there | _all_unset(rows, others) | unrestorable
            gone |= was_empty & (~is_there | _all_null(rows, others))
        stays, goes = pa.array(~gone), pa.array(gone)
        if not gone.all():
            yield self._write(Action.UPSERT, rows.filter(stays)), values.filter(stays)
        if gone.any():
            absent = rows.filter(goes).select(list(self._schema.primary_key))
            yield self._write(Action.DELETE, absent), values.filter(goes)

    @property
    def _own_columns(self) -> list[Column]:
        """The owner's columns that there still are."""
        return [column for column in self._schema.value_columns if self._own is None or column.id in self._own]

    def _restored(
        self, images: pa.RecordBatch, was_absent: Mask, now: pa.RecordBatch, is_there: Mask
    ) -> pa.RecordBatch:
        """Own columns as they were, the others as they are; of a row that comes back, these are null, for if they had
        not been it would not have gone."""
        own = {column.name for column in self._own_columns}
        place = pa.array(np.cumsum(is_there) - 1, mask=~is_there)
        arrays: list[pa.Array] = []
        for column in self._schema.columns:
            if column.name in self._schema.primary_key:
                array = images.column(column.name)
            elif column.name in own:
                array = _unset_where(was_absent, images.column(column.name), column)
            else:
                array = now.column(column.name).take(place)
                if not column.nullable and array.null_count:
                    array = _unset_where(~is_there, array, column)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow)

    def _write(self, action: Action, rows: pa.RecordBatch) -> Write:
        return Write(action=action, rows=rows, mode=MergeMode.OVERWRITE, schema_id=self._schema.id)

    def _first(self) -> tuple[pa.BinaryArray, pa.RecordBatch, Mask]:
        """The keys in their order, which is that of the log's rows everywhere, the row before the first change of each,
        and whether there was none, or is none any more."""
        keys = pa.concat_arrays(self._keys)
        order = sort_order(keys)  # equal keys stay in the order of their changes
        ordered = keys.take(pa.array(order))
        starts = group_starts(ordered)
        keys, first = ordered.take(pa.array(starts)), order[starts]
        absent = np.concatenate(self._absent)[first]
        if self._removed:
            places = pc.index_in(pa.concat_arrays(self._removed), value_set=keys).fill_null(-1).to_numpy()
            absent[places[(places >= 0) & (first[places] < np.concatenate(self._before))]] = True
        return keys, pa.concat_batches(self._images).take(pa.array(first)), absent

    def _mine(self, rows: pa.RecordBatch, schema: Schema) -> tuple[pa.RecordBatch, pa.BinaryArray]:
        """The rows of a frame that are in this part, and their keys."""
        table = pa.RecordBatch.from_arrays(rows.columns[1:], schema=schema.arrow)
        keys = self._codec.keys_of(schema).encode(table)
        if self._parts == 1 or not len(keys):
            return rows, keys
        mine = pa.array(hashes_of([keys]) % np.uint64(self._parts) == self._part)
        return rows.filter(mine), keys.filter(mine)


def _pages(keys: list[bytes], stored: Callable[[list[bytes]], pa.BinaryArray]) -> Iterator[pa.BinaryArray]:
    """What is stored under keys, of so many at once as are not too large together."""
    size, found = 0, list[pa.BinaryArray]()
    for place in range(0, len(keys), _READ_KEYS):
        values = stored(keys[place : place + _READ_KEYS])
        found.append(values)
        size += values.nbytes
        if size >= _PAGE_BYTES or place + _READ_KEYS >= len(keys):
            yield pa.concat_arrays(found)
            size, found = 0, []


def _unset(column: Column) -> pa.Array:
    """What a column holds in a row that was made without it; an array of one, since Python may have no such value."""
    if column.default is None:
        return pa.nulls(1, column.type.arrow)
    return default_values(column.default, column.type, 1)


def _unset_where(places: Mask, array: pa.Array, column: Column) -> pa.Array:
    """The values, but in these places what the column holds if nobody has set it."""
    if not places.any():
        return array
    index = np.where(places, len(array), np.arange(len(array)))
    return pa.concat_arrays([array, _unset(column)]).take(pa.array(index))


def _all_null(rows: pa.RecordBatch, columns: Sequence[Column]) -> Mask:
    """Which rows have none of these columns."""
    found = np.ones(rows.num_rows, np.bool_)
    for column in columns:
        found &= ~valid_mask(rows.column(column.name))
    return found


def _all_unset(rows: pa.RecordBatch, columns: Sequence[Column]) -> Mask:
    """Which rows have in all of these columns nothing but null or the default."""
    found = np.ones(rows.num_rows, np.bool_)
    for column in columns:
        array = rows.column(column.name)
        same = ~valid_mask(array)
        if column.default is not None:
            unset = _unset(column)[0]
            is_nan = column.type.is_floating and pc.is_nan(unset).as_py()
            equal = pc.is_nan(array) if is_nan else pc.equal(array, unset)
            same |= pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
        found &= same
    return found
