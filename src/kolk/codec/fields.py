"""Values side by side as bytes: the columns of a row, and what is within arrays, maps and rows, and back.

    row     null bits | fixed part | u32 length per variable field | variable bytes
    array   u32 count | null bits | items
    map     u32 count | null bits of the values | keys | values

All little endian and packed. Null bits: bit ``i % 8`` of byte ``i // 8`` is set when field or item ``i`` is null. A
fixed part holds every fixed-width field in order: boolean as one byte, decimal as 16, binary(n) as n, times and
dates as the integer Arrow keeps. The items, keys or values of an array or map are, if of fixed width, their slots
one after the other, else a u32 length of each and then the bytes of all. Whatever is within a nested value is laid
out the same way. A null's slot is zero and its length 0, a null nested value is no bytes at all; and a map's entries
stand in the order they were given. So equal values are equal bytes, whatever Arrow keeps beneath nulls, outside of
slices or between lists, and the bytes of a value say nothing of its neighbours.

Everything recurses over types and works on whole columns; nothing here runs once per row in Python. Most of it is
arithmetic on offsets: bytes are copied once per level, when a value's parts are joined or cut. The types are
trusted to be those of the arrays; stored bytes are not trusted, and refused if they do not add up.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kolk.codec.buffers import (
    TEXTS,
    VARIABLE,
    Mask,
    Octets,
    Rows,
    binary_of,
    binary_of_width,
    binary_offsets,
    check_bytes,
    cut,
    fixed_values,
    gather,
    joined,
    null_mask,
    octets_of,
    slot_type,
    spread_places,
    without_nulls,
)
from kolk.errors import Corrupted
from kolk.model.nested import bounds_of, list_array, list_bounds, row_array, row_fields
from kolk.model.types import DataType, Kind

Head = NDArray[Any]  # the heads of all rows: null bits, fixed part and lengths
_COUNT_BYTES = 4


class Typed(Protocol):
    """A column, or a field of a row."""

    @property
    def type(self) -> DataType:
        """What it holds."""
        ...


class Fields:
    """The layout of a row: of a table's, behind a prefix, or of one within a value. Immutable, so thread-safe."""

    def __init__(self, fields: Sequence[Typed], prefix: Sequence[tuple[str, str]] = ()) -> None:
        self._types = tuple(field.type for field in fields)
        places = range(len(self._types))
        self._variable = [place for place in places if self._types[place].kind in VARIABLE]
        fixed = [place for place in places if self._types[place].kind not in VARIABLE]
        self.head = np.dtype(
            [*prefix, ("nulls", "u1", (-(-len(self._types) // 8),))]
            + [(f"c{place}", slot_type(self._types[place])) for place in fixed]
            + [(f"c{place}", "<u4") for place in self._variable]
        )

    def is_variable(self, place: int) -> bool:
        """Whether the field at this place differs in width."""
        return self._types[place].kind in VARIABLE

    def parts(self, head: Head, arrays: Sequence[pa.Array]) -> list[pa.BinaryArray]:
        """The parts that make up each row, given heads of zeros with their prefix filled in."""
        parts: list[pa.BinaryArray] = []
        for place, (type, array) in enumerate(zip(self._types, arrays, strict=True)):
            missing = null_mask(array)
            if missing is not None:
                head["nulls"][:, place // 8] |= missing.view("u1") << (place % 8)
            slot = head[f"c{place}"]
            if type.kind in VARIABLE:
                for part in _parts(type, array, missing):
                    slot += np.diff(binary_offsets(part)).view("u4")
                    parts.append(part)
            else:
                slot[:] = fixed_values(array, slot.dtype)
                if missing is not None:
                    slot[missing] = np.zeros((), slot.dtype)
        return [binary_of_width(head, self.head.itemsize), *parts]

    def heads(self, values: pa.BinaryArray) -> Head:
        """The heads of all rows as one structured array; whether the rows are as long as they say is not checked."""
        rows, width = len(values), self.head.itemsize
        offsets = binary_offsets(values)
        if rows and int(np.diff(offsets).min()) < width:
            raise Corrupted("a stored row is shorter than its schema; restore the bucket from its log")
        data = values.buffers()[2]
        if self._variable or data is None:
            sliced = pc.binary_slice(values, 0, width)
            return np.frombuffer(octets_of(sliced)[int(binary_offsets(sliced)[0]) :], self.head, count=rows)
        return np.frombuffer(data, self.head, count=rows, offset=int(offsets[0]))

    def arrays(self, values: pa.BinaryArray, head: Head, places: Sequence[int]) -> list[pa.Array]:
        """The fields at these places of all rows, whose lengths must add up."""
        declared = np.full(len(values), self.head.itemsize, "i8")
        for place in self._variable:
            declared += head[f"c{place}"]
        if not np.array_equal(declared, np.diff(binary_offsets(values))):
            raise Corrupted("a stored row's lengths do not add up; restore the bucket from its log")
        pieces = self._pieces(values, head) if any(map(self.is_variable, places)) else None
        return [self._array(place, head, pieces) for place in places]

    def _pieces(self, values: pa.BinaryArray, head: Head) -> pa.BinaryArray:
        """The blob cut into head, first variable value, second, ... of row 0, then of row 1, and so on.

        The pieces share the blob's bytes: cutting is only a matter of more offsets.
        """
        rows, step = len(values), 1 + len(self._variable)
        offsets = np.empty(rows * step + 1, "i4")
        ends = binary_offsets(values)
        offsets[-1] = ends[-1]
        start = ends[:-1].astype("i8")
        offsets[0:-1:step] = start
        start = start + self.head.itemsize
        for number, place in enumerate(self._variable, 1):
            offsets[number:-1:step] = start
            start = start + head[f"c{place}"]
        return binary_of(values.buffers()[2] or b"", offsets)

    def _array(self, place: int, head: Head, pieces: pa.BinaryArray | None) -> pa.Array:
        rows, type = len(head), self._types[place]
        missing = ((head["nulls"][:, place // 8] >> (place % 8)) & 1).view(np.bool_)
        missing = missing if missing.any() else None
        if type.kind not in VARIABLE:
            return _fixed_array(type, head[f"c{place}"], missing)
        assert pieces is not None
        step = 1 + len(self._variable)
        taken = pieces.take(pa.array(np.arange(1 + self._variable.index(place), rows * step, step)))
        return _variable_array(type, taken, missing)


# --- encoding


def _parts(type: DataType, array: pa.Array, missing: Mask | None) -> list[pa.BinaryArray]:
    """The parts that make up the bytes of each value of variable width; a null has no bytes in any of them."""
    if type.kind in TEXTS:
        return [without_nulls(array)]
    live = array if missing is None else array.drop_null()
    parts = _row_parts(type, live) if type.kind is Kind.ROW else _list_parts(type, live)
    if missing is None:
        return parts
    places = bounds_of(~missing)
    return [binary_of(part.buffers()[2] or b"", binary_offsets(part)[places]) for part in parts]


def _row_parts(type: DataType, array: pa.StructArray) -> list[pa.BinaryArray]:
    fields = Fields(type.fields)
    check_bytes(len(array) * fields.head.itemsize)
    return fields.parts(np.zeros(len(array), fields.head), row_fields(array))


def _list_parts(type: DataType, array: pa.Array) -> list[pa.BinaryArray]:
    bounds, values = list_bounds(array)
    within = [values] if type.kind is Kind.ARRAY else row_fields(values)
    check_bytes(len(array) * _COUNT_BYTES)
    parts = [binary_of_width(np.diff(bounds).astype("<u4"), _COUNT_BYTES), _null_bits(within[-1], bounds)]
    for field, run in zip(type.fields, within, strict=True):
        parts += _run_parts(field.type, run, bounds)
    return parts


def _null_bits(array: pa.Array, bounds: Rows) -> pa.BinaryArray:
    """For each run of values between the bounds, which of them are null; a run's bits begin with a new byte."""
    starts = bounds_of(_bit_bytes(np.diff(bounds)))
    missing = null_mask(array)
    if missing is None:
        return binary_of(np.zeros(int(starts[-1]), np.uint8), starts)
    bits = np.zeros(int(starts[-1]) * 8, np.uint8)
    places = np.flatnonzero(missing)
    runs = np.searchsorted(bounds, places, side="right") - 1
    bits[starts[runs] * 8 + places - bounds[runs]] = 1
    return binary_of(np.packbits(bits, bitorder="little"), starts)


def _bit_bytes(counts: Rows) -> Rows:
    return (counts + 7) // 8


def _run_parts(type: DataType, array: pa.Array, bounds: Rows) -> list[pa.BinaryArray]:
    """The values of each run, one after the other: slots, or lengths and then bytes."""
    missing = null_mask(array)
    if type.kind in VARIABLE:
        values = joined(_parts(type, array, missing))
        offsets = binary_offsets(values)
        check_bytes(4 * len(array))
        lengths = np.diff(offsets).astype("<u4", copy=False)
        return [binary_of(lengths, 4 * bounds), binary_of(values.buffers()[2] or b"", offsets[bounds])]
    slot = np.dtype(slot_type(type))
    check_bytes(slot.itemsize * len(array))
    slots = fixed_values(array, slot)
    if missing is not None:
        slots = slots.copy()
        slots[missing] = np.zeros((), slot)
    return [binary_of(slots, slot.itemsize * bounds)]


# --- decoding


def _validity(missing: Mask | None) -> pa.Buffer | None:
    return None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))


def _fixed_array(type: DataType, slots: NDArray[Any], missing: Mask | None) -> pa.Array:
    packed = np.packbits(slots, bitorder="little") if type.kind is Kind.BOOLEAN else np.ascontiguousarray(slots)
    return pa.Array.from_buffers(type.arrow, len(slots), [_validity(missing), pa.py_buffer(packed)])


def _variable_array(type: DataType, values: pa.BinaryArray, missing: Mask | None) -> pa.Array:
    """The values of these bytes, of which those of nulls must be none."""
    if type.kind in TEXTS:
        _, offsets, data = values.buffers()
        return pa.Array.from_buffers(type.arrow, len(values), [_validity(missing), offsets, data], offset=values.offset)
    if missing is None:
        return _row_array(type, values, None) if type.kind is Kind.ROW else _list_array(type, values, None)
    offsets = binary_offsets(values)
    _check(not np.diff(offsets)[missing].any())
    # What is null has no bytes, so leaving out where it starts leaves the others whole.
    live = binary_of(values.buffers()[2] or b"", np.append(offsets[:-1][~missing], offsets[-1]))
    return _row_array(type, live, missing) if type.kind is Kind.ROW else _list_array(type, live, missing)


def _row_array(type: DataType, values: pa.BinaryArray, missing: Mask | None) -> pa.StructArray:
    """Rows of these bytes, with nulls between them."""
    fields = Fields(type.fields)
    arrays = fields.arrays(values, fields.heads(values), range(len(type.fields)))
    if missing is None:
        return row_array(type.arrow, len(values), arrays, None)
    places = spread_places(~missing)
    return row_array(type.arrow, len(missing), [array.take(places) for array in arrays], _validity(missing))


def _list_array(type: DataType, values: pa.BinaryArray, missing: Mask | None) -> pa.Array:
    """Arrays or maps of these bytes, with nulls between them."""
    cursor = _Cursor(values)
    counts = cursor.counts()
    bounds = bounds_of(counts)
    nulls = _nulls_of(cursor.take(_bit_bytes(counts)), bounds)
    arrays: list[pa.Array] = []
    for place, field in enumerate(type.fields, 1):
        holes = nulls if place == len(type.fields) else None
        if field.type.kind in VARIABLE:
            arrays.append(_variable_array(field.type, _run_values(cursor, bounds), holes))
        else:
            slot = np.dtype(slot_type(field.type))
            slots = np.frombuffer(cursor.take(counts * slot.itemsize), slot)
            arrays.append(_fixed_array(field.type, slots, holes))
    cursor.check_end()
    if missing is not None:
        bounds = bounds[bounds_of(~missing)]
    return list_array(type.arrow, bounds, arrays, _validity(missing))


def _run_values(cursor: "_Cursor", bounds: Rows) -> pa.BinaryArray:
    """Values of variable width: a length for each, then the bytes of all."""
    lengths = np.frombuffer(cursor.take(4 * np.diff(bounds)), "<u4")
    offsets = bounds_of(lengths)
    return binary_of(cursor.take(np.diff(offsets[bounds])), offsets)


def _nulls_of(octets: Octets, bounds: Rows) -> Mask | None:
    """Which values are null, given the null bits of each run."""
    if not octets.any():
        return None
    counts = np.diff(bounds)
    starts = bounds_of(_bit_bytes(counts))[:-1]
    places = np.arange(bounds[-1]) + np.repeat(starts * 8 - bounds[:-1], counts)
    return np.unpackbits(octets, bitorder="little")[places].view(np.bool_)


class _Cursor:
    """Reads many values at once, from left to right. Confined to one call."""

    def __init__(self, values: pa.BinaryArray) -> None:
        offsets = binary_offsets(values).astype(np.int64)
        self._data = octets_of(values)
        self._at, self._ends = offsets[:-1], offsets[1:]

    def counts(self) -> Rows:
        """The number that each value begins with; there is at least a byte for each thing counted."""
        _check(bool((self._at + _COUNT_BYTES <= self._ends).all()))
        counts = gather(self._data, self._at, "<u4").astype(np.int64)
        self._at = self._at + _COUNT_BYTES
        _check(bool((self._at + counts <= self._ends).all()))
        return counts

    def take(self, sizes: Rows) -> Octets:
        """The next bytes, so many of each value, without gaps."""
        stops = self._at + sizes
        _check(bool((stops <= self._ends).all()))
        taken = cut(self._data, self._at, stops)
        self._at = stops
        offsets = binary_offsets(taken)
        return octets_of(taken)[offsets[0] : offsets[-1]]

    def check_end(self) -> None:
        """Raise Corrupted if a value has bytes that nothing was read from."""
        _check(bool((self._at == self._ends).all()))


def _check(is_sound: bool) -> None:
    if not is_sound:
        raise Corrupted("a stored array, map or row does not add up; restore the bucket from its log")
