"""From verdicts to changes: the net change of each key as changelog rows and as KV writes.

The rows of a log frame are the table's columns behind one ``int8`` column, ``__op``, that holds the
``ChangeKind``. Keys come in key order; an update's row before stands right in front of its row after. The same
values are what recovery replays: ``writes_of`` reads a frame's rows back into KV writes, so there is one place
that knows what a change does to the KV.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
import pyarrow as pa

from kolk.codec.buffers import Mask, valid_mask
from kolk.codec.key import KeyCodec
from kolk.codec.row import RowCodec
from kolk.codec.versions import RowCodecs
from kolk.model.change import ChangeKind
from kolk.model.options import ChangelogImage
from kolk.model.schema import Schema

OP = pa.field("__op", pa.int8(), nullable=False)  # no column of a table can have this name


def change_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a log frame's rows."""
    return pa.schema([OP, *schema.arrow])


@dataclass(frozen=True, slots=True)
class KvWrites:
    """What a change does to the KV: keys to put with their values, and keys to delete.

    ``added`` is by how many rows there are more, or fewer, afterwards; None if nobody looked.
    """

    keys: Sequence[bytes] = ()
    values: Sequence[bytes] = ()
    deletes: Sequence[bytes] = ()
    added: int | None = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """The outcome of one merged put. ``rows`` is None when nothing changed."""

    rows: pa.RecordBatch | None = None
    writes: KvWrites = field(default_factory=KvWrites)

    @property
    def count(self) -> int:
        """How many offsets the changes take."""
        return self.rows.num_rows if self.rows is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """For each of a put's distinct keys, in key order: what was stored, what is to be, and what happens."""

    keys: Sequence[bytes]
    olds: pa.BinaryArray
    stored: pa.RecordBatch | None = None
    """The old rows, those that there are, if somebody has decoded them."""
    rows: pa.RecordBatch | None
    values: pa.BinaryArray | None
    inserted: Mask
    updated: Mask
    deleted: Mask


def changes_of(verdicts: Verdicts, codec: RowCodecs, image: ChangelogImage) -> Changes:
    """The changelog rows and the KV writes of these verdicts."""
    stored = verdicts.inserted | verdicts.updated
    touched = stored | verdicts.deleted
    if not touched.any():
        return Changes()
    before = verdicts.updated if image is ChangelogImage.FULL else np.zeros_like(verdicts.updated)
    rows = _interleave(verdicts, codec, before, touched)
    added = int(np.count_nonzero(verdicts.inserted)) - int(np.count_nonzero(verdicts.deleted))
    if verdicts.values is None or not stored.any():
        return Changes(rows, KvWrites(deletes=list(compress(verdicts.keys, verdicts.deleted.tolist())), added=added))
    if stored.all():
        return Changes(rows, KvWrites(verdicts.keys, verdicts.values.to_pylist(), added=added))
    writes = KvWrites(
        list(compress(verdicts.keys, stored.tolist())),
        verdicts.values.filter(pa.array(stored)).to_pylist(),
        list(compress(verdicts.keys, verdicts.deleted.tolist())),
        added,
    )
    return Changes(rows, writes)


def appended(rows: pa.RecordBatch) -> Changes:
    """The changes of a put to a log table: every row, as it is."""
    return Changes(with_ops(rows, ChangeKind.INSERT)) if rows.num_rows else Changes()


def blind(rows: pa.RecordBatch, keys: Sequence[bytes], values: pa.BinaryArray) -> Changes:
    """The changes of a put that did not look at what was stored: every row is an update."""
    return Changes(with_ops(rows, ChangeKind.UPDATE_AFTER), KvWrites(keys, values.to_pylist(), added=None))


def deleted(rows: pa.RecordBatch, keys: Sequence[bytes] = ()) -> Changes:
    """The changes of removing these rows, by their keys; without keys, of a KV that is cleared as a whole."""
    return Changes(with_ops(rows, ChangeKind.DELETE), KvWrites(deletes=keys, added=-len(keys)))


def writes_of(rows: pa.RecordBatch, keys: KeyCodec, codec: RowCodec) -> KvWrites:
    """What a frame's rows did to the KV; recovery does it again, with the codecs of the frame's version."""
    ops = rows.column(0).to_numpy()
    table = pa.RecordBatch.from_arrays(rows.columns[1:], schema=codec.schema.arrow)
    dead = pa.array(ops == ChangeKind.DELETE)
    live = pa.array((ops == ChangeKind.INSERT) | (ops == ChangeKind.UPDATE_AFTER))
    put, gone = table.filter(live), table.filter(dead)
    added = int(np.count_nonzero(ops == ChangeKind.INSERT)) - gone.num_rows
    return KvWrites(
        keys.to_list(keys.encode(put)), codec.encode(put).to_pylist(), keys.to_list(keys.encode(gone)), added
    )


def with_ops(rows: pa.RecordBatch, ops: "ChangeKind | np.ndarray") -> pa.RecordBatch:
    """The rows behind their ``__op`` column."""
    column = np.full(rows.num_rows, ops, "i1") if isinstance(ops, ChangeKind) else ops
    return pa.RecordBatch.from_arrays(
        [pa.array(column, pa.int8()), *rows.columns], schema=pa.schema([OP, *rows.schema])
    )


def _needed(verdicts: Verdicts, codec: RowCodecs, needed: Mask) -> pa.RecordBatch:
    """The old rows that the changelog shows."""
    if verdicts.stored is None:
        return codec.decode(verdicts.olds.filter(pa.array(needed)))
    found = valid_mask(verdicts.olds)
    shown = needed[found]
    return verdicts.stored if shown.all() else verdicts.stored.filter(pa.array(shown))


def _interleave(verdicts: Verdicts, codec: RowCodecs, before: Mask, touched: Mask) -> pa.RecordBatch:
    """The changelog rows in key order: one ``take`` over the old rows followed by the new rows."""
    stored = verdicts.inserted | verdicts.updated
    needed = before | verdicts.deleted
    olds = _needed(verdicts, codec, needed)
    rows = olds if verdicts.rows is None else pa.concat_batches([olds, verdicts.rows])

    last = np.cumsum(np.where(before, 2, 1) * touched) - 1
    ops = np.empty(int(last[-1]) + 1, "i1")
    index = np.empty(len(ops), "i8")
    ops[last[verdicts.inserted]] = ChangeKind.INSERT
    ops[last[verdicts.updated]] = ChangeKind.UPDATE_AFTER
    ops[last[verdicts.deleted]] = ChangeKind.DELETE
    ops[last[before] - 1] = ChangeKind.UPDATE_BEFORE
    index[last[stored]] = olds.num_rows + np.flatnonzero(stored)
    index[np.where(before, last - 1, last)[needed]] = np.arange(olds.num_rows)
    return with_ops(rows.take(pa.array(index)), ops)
