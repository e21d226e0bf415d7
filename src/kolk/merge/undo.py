"""What an owner's uncommitted frames have changed, and the writes that take it back.

The frames are read in order. Of every key the first own change counts: what stood before it in the owner's columns is
what is committed, because nobody else writes them. A key that the owner has inserted goes, or, if others have columns
in its row, loses the owner's. Other columns are never touched: they are what they are now.

A row that the store itself removed meanwhile (its time was up) does not come back. What is restored overwrites, without
any function; no function is ever inverted.
"""

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import pyarrow as pa

from kolk.codec.versions import RowCodecs
from kolk.model.change import ChangeKind
from kolk.model.options import MergeMode
from kolk.model.schema import Schema
from kolk.model.translation import translated
from kolk.model.write import Action, Write


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
        self._batches: list[pa.RecordBatch] = []
        # Where the first image of a key is, and whether there was none.
        self._found: dict[bytes, tuple[int, int, bool]] = {}

    def take(self, rows: pa.RecordBatch, schema: Schema) -> None:
        """A frame of the owner: rows behind their ``__op``, of one version of the schema."""
        ops = rows.column(0).to_numpy()
        shown = ops != ChangeKind.UPDATE_AFTER  # the row before it says what it replaced
        table = pa.RecordBatch.from_arrays(rows.columns[1:], schema=schema.arrow).filter(pa.array(shown))
        number, kinds = len(self._batches), ops[shown].tolist()
        chosen: list[int] = []
        for place, key in enumerate(self._keys(table, schema)):
            if self._is_mine(key) and key not in self._found:
                self._found[key] = (number, len(chosen), kinds[place] == ChangeKind.INSERT)
                chosen.append(place)
        table = table.take(pa.array(chosen, pa.int64()))
        self._batches.append(translated(table, schema, self._schema.columns) if schema.id != self._schema.id else table)

    def remove(self, rows: pa.RecordBatch, schema: Schema) -> None:
        """A frame of the store itself: what it removed is gone, whatever stood there before."""
        table = pa.RecordBatch.from_arrays(rows.columns[1:], schema=schema.arrow)
        for key in self._keys(table, schema):
            if key in self._found:
                number, place, _ = self._found[key]
                self._found[key] = (number, place, True)

    def writes(self) -> list[Write]:
        """What to write: first the rows that come back, then those that go."""
        if not self._found or self._names == ():
            return []
        # In key order, which is the order of the log's rows everywhere.
        places = [self._found[key] for key in sorted(self._found)]
        rows = self._gathered([(number, place) for number, place, _ in places])
        gone = np.array([is_absent for _, _, is_absent in places])
        names = self._names
        if names is not None:
            empty = np.ones(rows.num_rows, np.bool_)
            for name in names:
                empty &= rows.column(name).is_null().to_numpy(zero_copy_only=False)
            gone |= empty  # under a lock of some columns a row without any of them is no row of the owner's
        found: list[Write] = []
        if not gone.all():
            kept = rows.filter(pa.array(~gone))
            columns = self._schema.names if names is None else self._ordered(names)
            found.append(self._write(Action.UPSERT, kept.select(list(columns)), names))
        if gone.any():
            keys = rows.filter(pa.array(gone)).select(list(self._schema.primary_key))
            found.append(self._write(Action.DELETE, keys, names))
        return found

    @property
    def _names(self) -> tuple[str, ...] | None:
        """The owner's columns that there still are."""
        if self._own is None:
            return None
        return tuple(column.name for column in self._schema.value_columns if column.id in self._own)

    def _ordered(self, names: Sequence[str]) -> list[str]:
        chosen = {*names, *self._schema.primary_key}
        return [name for name in self._schema.names if name in chosen]

    def _write(self, action: Action, rows: pa.RecordBatch, names: tuple[str, ...] | None) -> Write:
        return Write(action=action, rows=rows, columns=names, mode=MergeMode.OVERWRITE, schema_id=self._schema.id)

    def _gathered(self, places: Sequence[tuple[int, int]]) -> pa.RecordBatch:
        starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        index = [int(starts[number]) + place for number, place in places]
        return pa.concat_batches(self._batches).take(pa.array(index, pa.int64()))

    def _keys(self, table: pa.RecordBatch, schema: Schema) -> list[bytes]:
        keys = self._codec.keys_of(schema)
        return keys.to_list(keys.encode(table))

    def _is_mine(self, key: bytes) -> bool:
        return self._parts == 1 or crc32(key) % self._parts == self._part
