"""The row codec: a whole Arrow batch to one byte string per row, and back.

A value in RocksDB holds the whole row, primary key included, so that a scan reads values only:

    u16 schema id | null bits | fixed part | u32 length per variable column | variable bytes

All little endian and packed. Null bits: bit ``i % 8`` of byte ``i // 8`` is set when column ``i`` is null. The
fixed part holds, in schema order, every fixed-width column: boolean as one byte, decimal as 16, binary(n) as
n, times and dates as the integer Arrow keeps. A null's slot is zero and its length 0, so equal rows are equal
bytes; the merge engines compare rows that way. Floats compare as bits: NaN equals itself, -0.0 is not 0.0.

Everything is done per column with numpy and pyarrow kernels; nothing here runs once per row in Python. The
codec trusts that a batch has exactly its schema's types, and refuses bytes that do not add up.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.errors import Corrupted, TooLarge
from kolk.model.schema import Column, Schema
from kolk.model.types import Kind

VARIABLE = (Kind.CHAR, Kind.STRING, Kind.BYTES)
BATCH_BYTES_MAX = 2**30
"""The most encoded bytes in one batch: half of what Arrow's offsets address, so that old and new rows fit together."""
NOTHING = pa.scalar(b"", pa.binary())  # made once: pyarrow is slow to make one of a bare b""


class RowCodec:
    """Encodes and decodes the rows of one schema. Immutable, so thread-safe."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._fixed = tuple(column for column in schema.columns if column.type.kind not in VARIABLE)
        self._variable = tuple(column for column in schema.columns if column.type.kind in VARIABLE)
        self._slots = {column.name: f"c{position}" for position, column in enumerate(schema.columns)}
        self._head = np.dtype(
            [("schema", "<u2"), ("nulls", "u1", (-(-len(schema.columns) // 8),))]
            + [(self._slots[column.name], slot_type(column)) for column in self._fixed]
            + [(self._slots[column.name], "<u4") for column in self._variable]
        )

    def check_size(self, rows: int) -> None:
        """Raise TooLarge if so many rows cannot be encoded as one batch, however small their values are."""
        if rows * self._head.itemsize > BATCH_BYTES_MAX:
            raise TooLarge(
                f"{rows:,} rows of at least {self._head.itemsize:,} bytes are more than {BATCH_BYTES_MAX:,};"
                " put fewer rows at once"
            )

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """One value per row of a batch that has all columns of the schema, in order."""
        rows = batch.num_rows
        self.check_size(rows)
        head = np.zeros(rows, self._head)
        head["schema"] = self.schema.id
        parts: list[pa.Array] = []
        for position, column in enumerate(self.schema.columns):
            array = batch.column(position)
            missing = null_mask(array)
            if missing is not None:
                head["nulls"][:, position // 8] |= missing.view("u1") << (position % 8)
            slot = self._slots[column.name]
            if column.type.kind in VARIABLE:
                part = _without_nulls(array)
                head[slot] = np.diff(binary_offsets(part))
                parts.append(part)
            else:
                head[slot] = fixed_values(array, self._head[slot])
                if missing is not None:
                    head[slot][missing] = np.zeros((), self._head[slot])
        fixed = _binary_of_width(head, rows, self._head.itemsize)
        return pc.binary_join_element_wise(fixed, *parts, NOTHING) if parts else fixed

    def decode(self, values: pa.BinaryArray, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows of these values, or only the columns named, in that order."""
        columns = self.schema.columns if names is None else tuple(self.schema.column(name) for name in names)
        head = self._heads(values)
        pieces = self._pieces(values, head) if any(column.type.kind in VARIABLE for column in columns) else None
        arrays = [self._array(column, head, pieces) for column in columns]
        shown = self.schema.arrow if names is None else pa.schema([column.arrow for column in columns])
        return pa.RecordBatch.from_arrays(arrays, schema=shown)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {column.name: position for position, column in enumerate(self.schema.columns)}

    def _heads(self, values: pa.BinaryArray) -> "np.ndarray[Any, Any]":
        """The fixed heads of all values as one structured array, checked."""
        rows, width = len(values), self._head.itemsize
        offsets = binary_offsets(values)
        lengths = np.diff(offsets)
        if rows and int(lengths.min()) < width:
            raise Corrupted("a stored row is shorter than its schema; restore the bucket from its log")
        if self._variable or values.buffers()[2] is None:
            head = np.frombuffer(_bytes_of(pc.binary_slice(values, 0, width)), self._head, count=rows)
        else:
            head = np.frombuffer(values.buffers()[2], self._head, count=rows, offset=int(offsets[0]))
        if rows and not (head["schema"] == self.schema.id).all():
            raise Corrupted(f"a stored row names another schema than {self.schema.id}")
        declared = np.full(rows, width, "i8")
        for column in self._variable:
            declared += head[self._slots[column.name]]
        if not np.array_equal(declared, lengths):
            raise Corrupted("a stored row's lengths do not add up; restore the bucket from its log")
        return head

    def _pieces(self, values: pa.BinaryArray, head: "np.ndarray[Any, Any]") -> pa.BinaryArray:
        """The blob cut into head, first variable value, second, ... of row 0, then of row 1, and so on.

        The pieces share the blob's bytes: cutting is only a matter of more offsets.
        """
        rows, step = len(values), 1 + len(self._variable)
        offsets = np.empty(rows * step + 1, "i4")
        ends = binary_offsets(values)
        offsets[-1] = ends[-1]
        start = ends[:-1].astype("i8")
        offsets[0:-1:step] = start
        start = start + self._head.itemsize
        for place, column in enumerate(self._variable, 1):
            offsets[place:-1:step] = start
            start = start + head[self._slots[column.name]]
        return pa.Array.from_buffers(
            pa.binary(), rows * step, [None, pa.py_buffer(offsets), values.buffers()[2] or pa.py_buffer(b"")]
        )

    def _array(self, column: Column, head: "np.ndarray[Any, Any]", pieces: pa.BinaryArray | None) -> pa.Array:
        rows, position = len(head), self._positions[column.name]
        missing = (head["nulls"][:, position // 8] >> (position % 8)) & 1
        validity = pa.py_buffer(np.packbits(missing ^ 1, bitorder="little")) if missing.any() else None
        if column.type.kind not in VARIABLE:
            values = head[self._slots[column.name]]
            packed = np.packbits(values, bitorder="little") if column.type.kind is Kind.BOOLEAN else values.copy()
            return pa.Array.from_buffers(column.type.arrow, rows, [validity, pa.py_buffer(packed)])
        assert pieces is not None
        step = 1 + len(self._variable)
        taken = pieces.take(pa.array(np.arange(1 + self._variable.index(column), rows * step, step)))
        _, offsets, data = taken.buffers()
        return pa.Array.from_buffers(column.type.arrow, rows, [validity, offsets, data], offset=taken.offset)


def stored_values(values: Iterable[bytes | None]) -> pa.BinaryArray:
    """Values as they come from the KV, null where there is none; TooLarge if they are too many for one batch."""
    array = pa.array(values, pa.binary())
    if isinstance(array, pa.ChunkedArray) or array.nbytes > BATCH_BYTES_MAX:
        raise TooLarge(f"the stored rows take more than {BATCH_BYTES_MAX:,} bytes together; ask for fewer at once")
    return array


def slot_type(column: Column) -> str:
    """The numpy type of a fixed-width column's slot; opaque bytes where numpy has no such number."""
    arrow = column.type.arrow
    match column.type.kind:
        case Kind.BOOLEAN:
            return "u1"
        case Kind.DECIMAL | Kind.BINARY:
            return f"V{arrow.byte_width}"
        case Kind.FLOAT | Kind.DOUBLE:
            return f"<f{arrow.bit_width // 8}"
        case _:
            return f"<i{arrow.bit_width // 8}"


def fixed_values(array: pa.Array, slot: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
    """The values buffer of a fixed-width array, its slice respected; what stands at nulls is undefined."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), slot)
    return np.frombuffer(data, slot, count=len(array), offset=array.offset * slot.itemsize)


def null_mask(array: pa.Array) -> "np.ndarray[Any, np.dtype[np.bool_]] | None":
    """Which entries are null, or None when none is."""
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def binary_offsets(array: pa.Array) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """The n + 1 offsets of a string or binary array, its slice respected."""
    if not len(array):
        return np.zeros(1, "i4")
    return np.frombuffer(array.buffers()[1], "i4", count=len(array) + 1, offset=array.offset * 4)


def _without_nulls(array: pa.Array) -> pa.BinaryArray:
    """The same bytes as a binary array whose nulls are empty: a null may own bytes, which must not be stored."""
    if array.null_count:
        return pc.fill_null(array.cast(pa.binary()), b"")
    _, offsets, data = array.buffers()
    return pa.Array.from_buffers(pa.binary(), len(array), [None, offsets, data], offset=array.offset)


def _binary_of_width(head: "np.ndarray[Any, Any]", rows: int, width: int) -> pa.BinaryArray:
    offsets = np.arange(0, rows * width + 1, width, dtype="i4") if rows else np.zeros(1, "i4")
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(head)])


def _bytes_of(array: pa.BinaryArray) -> memoryview | bytes:
    """The contiguous bytes of an array that pyarrow has just made."""
    data = array.buffers()[2]
    return b"" if data is None else memoryview(data)[int(binary_offsets(array)[0]) :]
