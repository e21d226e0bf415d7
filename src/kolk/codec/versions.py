"""Stored rows of several versions of a table's schema: read as rows of one, whatever they were written as.

A value names its version in its first two bytes (``kolk.codec.row``), and nothing is rewritten when a table is altered.
So a batch of values may hold several versions. The usual one holds the current version alone, and costs one look at
those bytes; else each version is decoded by itself, for all its rows at once, and the rows go back to their places.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.codec.buffers import Rows, binary_offsets, gather, octets_of, replaced, valid_mask
from kolk.codec.key import KeyCodec
from kolk.codec.row import RowCodec, stored_values
from kolk.errors import Corrupted
from kolk.model.schema import Schema
from kolk.model.translation import common_names, translated
from kolk.model.versions import Versions

_ID_BYTES = 2


class RowCodecs:
    """Encodes rows of the current version, and decodes those of all. Immutable but for a cache, so thread-safe."""

    def __init__(self, schema: Schema, earlier: Iterable[Schema] = ()) -> None:
        self.schema = schema
        self.versions = Versions(schema, earlier)
        self._current = RowCodec(schema)
        # Made when they are first needed; two that race make the same one twice.
        self._codecs = {schema.id: self._current}
        self._keys: dict[int, KeyCodec] = {}

    def of(self, schema_id: int) -> RowCodec:
        """The codec of one version; Corrupted if there never was such a version."""
        codec = self._codecs.get(schema_id)
        if codec is None:
            schema = self.versions.find(schema_id)
            if schema is None:
                raise Corrupted(
                    f"stored rows name version {schema_id} of the schema, which is none of the versions up to"
                    f" {self.schema.id} that the table has had; restore the folder from a backup"
                )
            codec = self._codecs[schema_id] = RowCodec(schema)
        return codec

    def keys_of(self, schema: Schema) -> KeyCodec:
        """The codec of keys under the names that a version has for them; the bytes are the same in all versions."""
        codec = self._keys.get(schema.id)
        if codec is None:
            codec = self._keys[schema.id] = KeyCodec(schema)
        return codec

    def check_size(self, rows: int) -> None:
        """See ``RowCodec.check_size``."""
        self._current.check_size(rows)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """One value per row of a batch of the current version."""
        return self._current.encode(batch)

    def decode(self, values: pa.BinaryArray, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """Values of any versions, none of them null, as rows of the current one, or only its columns named."""
        if not self.versions.are_many:
            return self._current.decode(values, names)
        ids = _schema_ids(values)
        if (ids == self.schema.id).all():
            return self._current.decode(values, names)
        parts: list[pa.RecordBatch] = []
        places: list[Rows] = []
        for schema_id in np.unique(ids).tolist():
            places.append(np.flatnonzero(ids == schema_id))
            parts.append(self._decode_version(schema_id, values.take(pa.array(places[-1])), names))
        order = np.argsort(np.concatenate(places))
        return pa.concat_batches(parts).take(pa.array(order))

    def decode_as(self, schema: Schema, values: pa.BinaryArray, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The same as rows of an earlier version, for a handle that is as old; of columns dropped since nothing is
        shown, also of rows that still hold them."""
        if schema.id == self.schema.id:
            return self.decode(values, names)
        columns = schema.columns if names is None else [schema.column(name) for name in names]
        # One column at least, because without any a batch has no number of rows.
        needed = common_names(columns, self.schema) or self.schema.names[:1]
        return translated(self.decode(values, needed), self.schema, columns)

    def decode_one_as(self, schema: Schema, value: bytes, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """As ``decode_as`` of one value, ten times as fast if it is of the current version."""
        if schema.id == self.schema.id == int.from_bytes(value[:_ID_BYTES], "little"):
            return self._current.decode_one(value, names)
        return self.decode_as(schema, stored_values([value]), names)

    def to_current(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """The values as the current version writes them, nulls kept: equal rows are equal bytes again."""
        if not self.versions.are_many:
            return values
        present = np.flatnonzero(valid_mask(values))
        stale = present[_schema_ids(values, present) != self.schema.id]
        if not len(stale):
            return values
        renewed = self.encode(self.decode(values.take(pa.array(stale))))
        return replaced(values, stale, renewed)

    def _decode_version(self, schema_id: int, values: pa.BinaryArray, names: Sequence[str] | None) -> pa.RecordBatch:
        codec = self.of(schema_id)
        if schema_id == self.schema.id:
            return codec.decode(values, names)
        columns = self.schema.columns if names is None else [self.schema.column(name) for name in names]
        needed = common_names(columns, codec.schema) or codec.schema.names[:1]
        return translated(codec.decode(values, needed), codec.schema, columns)


def _schema_ids(values: pa.BinaryArray, present: Rows | None = None) -> NDArray[np.uint16]:
    """The version that each value names, or only those that are present."""
    offsets = binary_offsets(values)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    if present is not None:
        starts, lengths = starts[present], lengths[present]
    if len(lengths) and int(lengths.min()) < _ID_BYTES:
        raise Corrupted("a stored row is shorter than its schema; restore the bucket from its log")
    return gather(octets_of(values), starts, "<u2")
