"""Do these rows fit this table? The one check that every row passes before anything is done with it.

It trusts nobody: types must be exactly the schema's, values must be well formed Arrow (UTF-8 included), nulls
only where allowed, limits of length and precision kept, and no key twice in a map; all of that within nested values
as well. Converting what people hand in to these types is the client's business; here nothing is converted, only
refused. An error names the column, and the field within it: ``'orders.item.price'``.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kolk.errors import InvalidRows
from kolk.model.nested import list_bounds, renamed, row_fields
from kolk.model.schema import Column
from kolk.model.types import DataType, Kind


def checked_rows(rows: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    """The rows under exactly these columns' fields; InvalidRows, naming the column, if they do not fit."""
    if rows.schema.names != [column.name for column in columns]:
        raise InvalidRows(
            f"expected the columns {', '.join(column.name for column in columns)}, got {', '.join(rows.schema.names)}"
        )
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidRows(f"the rows are not valid Arrow data: {error}") from error
    arrays = [_checked(column, array) for column, array in zip(columns, rows.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.arrow for column in columns]))


def _checked(column: Column, array: pa.Array) -> pa.Array:
    wanted = column.type.arrow
    if array.type != wanted:
        raise InvalidRows(f"the column {column.name!r} is a {column.type.shown} ({wanted}), got {array.type}")
    _check_values(column.name, column.type, column.nullable, array)
    # Arrow calls types equal whose lists name their items differently; behind this check there is one name.
    return renamed(array, wanted) if column.type.is_nested else array


def _check_values(name: str, type: DataType, nullable: bool, array: pa.Array) -> None:
    """Check values by their type and, type by type, what is within them: the name grows by the name of the field."""
    if array.null_count and not nullable:
        raise InvalidRows(f"the column {name!r} is NOT NULL, but {array.null_count:,} of its values are null")
    match type.kind:
        case Kind.CHAR:
            longest = pc.max(pc.utf8_length(array)).as_py() or 0
            if longest > type.arguments[0]:
                raise InvalidRows(f"the column {name!r} is a {type}, but a value has {longest} characters")
        case Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMP_LTZ if type.tick > 1:
            ticks = array.cast(pa.int64() if array.type.bit_width == 64 else pa.int32()).fill_null(0).to_numpy()
            if (ticks % type.tick).any():
                raise InvalidRows(f"the column {name!r} is a {type}, but a value is finer than that")
        case Kind.ARRAY | Kind.MAP | Kind.ROW:
            for field, values in zip(type.fields, _within(name, type, array), strict=True):
                _check_values(f"{name}.{field.name}", field.type, field.nullable, values)
        case _:
            pass


def _within(name: str, type: DataType, array: pa.Array) -> list[pa.Array]:
    """The values of each field of a nested type, without those that nulls hide."""
    if type.kind is Kind.ROW:
        return row_fields(array.drop_null() if array.null_count else array)
    bounds, values = list_bounds(array)
    if type.kind is Kind.ARRAY:
        return [values]
    keys, items = row_fields(values)
    if _has_twice(keys, bounds):
        raise InvalidRows(f"the column {name!r} has a map with the same key twice; give each key once")
    return [keys, items]


def _has_twice(keys: pa.Array, bounds: NDArray[np.int64]) -> bool:
    """Whether two keys within the same bounds are equal: found by sorting, for all maps at once."""
    counts = np.diff(bounds)
    if counts.max(initial=0) < 2:
        return False
    encoded = keys.dictionary_encode()
    codes = np.repeat(np.arange(len(counts)), counts) * len(encoded.dictionary) + encoded.indices.to_numpy()
    codes.sort()
    return bool((codes[1:] == codes[:-1]).any())
