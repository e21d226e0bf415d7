"""The raw buffers of Arrow arrays, as numpy sees them: what all codecs stand on.

Slices are respected; what stands beneath nulls is undefined unless said otherwise.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kolk.errors import TooLarge
from kolk.model.types import DataType, Kind

Rows = NDArray[np.int64]  # numbers of rows, or a number for each row
Octets = NDArray[np.uint8]
Mask = NDArray[np.bool_]

TEXTS = (Kind.CHAR, Kind.STRING, Kind.BYTES)
VARIABLE = (*TEXTS, Kind.ARRAY, Kind.MAP, Kind.ROW)
"""The kinds whose values differ in width."""
BATCH_BYTES_MAX = 2**30
"""The most encoded bytes in one batch: half of what Arrow's offsets address, so that old and new rows fit together."""
NOTHING = pa.scalar(b"", pa.binary())  # made once: pyarrow is slow to make one of a bare b""


def slot_type(type: DataType) -> str:
    """The numpy type of a fixed-width value's slot; opaque bytes where numpy has no such number."""
    match type.kind:
        case Kind.BOOLEAN:
            return "u1"
        case Kind.DECIMAL | Kind.BINARY:
            return f"V{type.arrow.byte_width}"
        case Kind.FLOAT | Kind.DOUBLE:
            return f"<f{type.arrow.bit_width // 8}"
        case _:
            return f"<i{type.arrow.bit_width // 8}"


def fixed_values(array: pa.Array, slot: "np.dtype[Any]") -> NDArray[Any]:
    """The values buffer of a fixed-width array, its slice respected; what stands at nulls is undefined."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), slot)
    return np.frombuffer(data, slot, count=len(array), offset=array.offset * slot.itemsize)


def null_mask(array: pa.Array) -> Mask | None:
    """Which entries are null, or None when none is."""
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def valid_mask(array: pa.Array) -> Mask:
    """Which entries are not null."""
    return array.is_valid().to_numpy(zero_copy_only=False)


def spread_places(present: Mask) -> pa.Array:
    """For each entry that is present its place among those that are, null for the others: what to take them by."""
    return pa.array(np.cumsum(present) - 1, mask=~present)


def replaced(array: pa.Array, places: Rows, values: pa.Array) -> pa.Array:
    """The array with these values at these places."""
    index = np.arange(len(array))
    index[places] = len(array) + np.arange(len(places))
    return pa.concat_arrays([array, values]).take(pa.array(index))


def binary_offsets(array: pa.Array) -> NDArray[np.int32]:
    """The n + 1 offsets of a string or binary array, its slice respected."""
    if not len(array):
        return np.zeros(1, "i4")
    return np.frombuffer(array.buffers()[1], "i4", count=len(array) + 1, offset=array.offset * 4)


def binary_size(array: pa.Array) -> int:
    """How many bytes the values of a string or binary array take together."""
    offsets = binary_offsets(array)
    return int(offsets[-1]) - int(offsets[0])


def without_nulls(array: pa.Array) -> pa.BinaryArray:
    """The same bytes as a binary array whose nulls are empty: a null may own bytes, which must not be stored."""
    if array.null_count:
        return pc.fill_null(array.cast(pa.binary()), b"")
    _, offsets, data = array.buffers()
    return pa.Array.from_buffers(pa.binary(), len(array), [None, offsets, data], offset=array.offset)


def binary_of_width(data: NDArray[Any], width: int) -> pa.BinaryArray:
    """The bytes of an array, so many for each value."""
    rows = data.nbytes // width
    offsets = np.arange(0, data.nbytes + 1, width, dtype="i4") if rows else np.zeros(1, "i4")
    return binary_of(data, offsets)


def binary_of(data: Any, offsets: NDArray[Any]) -> pa.BinaryArray:
    """The bytes between these offsets; nothing is copied but the offsets, if they are not int32."""
    buffers = [None, pa.py_buffer(offsets.astype("i4", copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def octets_of(array: pa.Array) -> Octets:
    """The bytes that a string or binary array's offsets point into."""
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)


def gather(data: Octets, positions: Rows, dtype: str) -> NDArray[Any]:
    """The numbers or records of this type that begin at these bytes, aligned or not."""
    window = max(data.size - np.dtype(dtype).itemsize + 1, 0)
    return np.ndarray((window,), dtype, buffer=data, strides=(1,))[positions]


def cut(data: Octets, starts: Rows, stops: Rows) -> pa.BinaryArray:
    """The bytes between these positions, one stretch after the other and nothing between them."""
    count = 2 * len(starts)
    offsets = np.empty(count + 1, np.int32)
    # Every second stretch between the offsets is one of them.
    offsets[0:-1:2], offsets[1::2], offsets[-1:] = starts, stops, stops[-1:].max(initial=0)
    return binary_of(data, offsets).take(pa.array(np.arange(0, count, 2)))


def joined(parts: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """The bytes of the parts behind each other, value by value. TooLarge before anything is made, if they are many."""
    if len(parts) == 1:
        return parts[0]
    check_bytes(sum(map(binary_size, parts)))
    return pc.binary_join_element_wise(*parts, NOTHING)


def check_bytes(size: int) -> None:
    """Raise TooLarge if so many encoded bytes are too many for one batch."""
    if size > BATCH_BYTES_MAX:
        raise TooLarge(f"the rows take {size:,} bytes when encoded, over {BATCH_BYTES_MAX:,}; put fewer rows at once")
