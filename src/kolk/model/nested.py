"""What is inside arrays, maps and rows, as Arrow keeps them: the values that can be reached, and no others.

Arrow lets a null own values, a slice look into a longer array, and a list skip some of its child's values. Whoever
checks, converts or encodes nested values must see none of that; here it is cut away, once for all of them.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray


def list_bounds(array: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Where each list or map of an array begins and ends in its values, and the values; a null has none.

    The values of list ``i`` are ``values[bounds[i]:bounds[i + 1]]``. Those of a map are rows of a key and a value.
    """
    if not len(array):
        return np.zeros(1, np.int64), array.values.slice(0, 0)
    if not (pt.is_list(array.type) or pt.is_map(array.type)):
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        return bounds_of(counts), pc.list_flatten(array)
    live = array.drop_null() if array.null_count else array
    offsets = live.offsets.to_numpy().astype(np.int64)
    bounds = offsets - offsets[0]
    if live is not array:
        bounds = bounds[bounds_of(array.is_valid().to_numpy(zero_copy_only=False))]
    return bounds, live.values.slice(int(offsets[0]), int(bounds[-1]))


def row_fields(array: pa.StructArray) -> list[pa.Array]:
    """The fields of an array of rows; those of a null row are null."""
    return array.flatten() if array.null_count else [array.field(place) for place in range(array.type.num_fields)]


def renamed(array: pa.Array, type: pa.DataType) -> pa.Array:
    """The same array as of an equal type: Arrow's equality ignores the names of a list's items, and metadata."""
    if array.type.equals(type, check_metadata=True):
        return array
    if pt.is_struct(type):
        fields = [renamed(array.field(place), type.field(place).type) for place in range(type.num_fields)]
        return row_array(type, len(array), fields, validity_of(array))
    if pt.is_list(type) or pt.is_map(type):
        values = renamed(array.values, _entries(type) if pt.is_map(type) else type.value_type)
        return pa.Array.from_buffers(type, len(array), array.buffers()[:2], offset=array.offset, children=[values])
    return array


def bounds_of(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Where runs of so many values begin and end, one after the other."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def places_of(counts: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each value within its run, of runs of so many values."""
    bounds = bounds_of(counts)
    return np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts)


def bits_of(present: NDArray[np.bool_]) -> pa.Buffer | None:
    """The validity bitmap of what is present; None when all is."""
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def validity_of(array: pa.Array) -> pa.Buffer | None:
    """The validity bitmap of an array as one of offset 0 has it; None when nothing is null."""
    return bits_of(array.is_valid().to_numpy(zero_copy_only=False)) if array.null_count else None


def list_array(type: pa.DataType, bounds: NDArray[np.int64], fields: list[pa.Array], validity: pa.Buffer | None) -> Any:
    """Lists or maps of this type with these bounds: of one field's values, or of a key's and a value's."""
    if pt.is_map(type):
        assert not fields[0].null_count, "a key is null, at which Arrow aborts the process"
        fields = [row_array(_entries(type), int(bounds[-1]), fields, None)]
    offsets = pa.py_buffer(bounds.astype(np.int32))
    return pa.Array.from_buffers(type, len(bounds) - 1, [validity, offsets], children=fields)


def row_array(type: pa.DataType, rows: int, fields: list[pa.Array], validity: pa.Buffer | None) -> pa.StructArray:
    """Rows of this type with these fields."""
    return pa.Array.from_buffers(type, rows, [validity], children=fields)


def _entries(type: pa.DataType) -> pa.DataType:
    return pa.struct([type.key_field, type.item_field])
