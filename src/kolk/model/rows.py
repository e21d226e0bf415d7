"""Do these rows fit this table? The one check that every row passes before anything is done with it.

It trusts nobody: types must be exactly the schema's, values must be well formed Arrow (UTF-8 included), nulls
only where allowed, and limits of length and precision kept. Converting what people hand in to these types is the
client's business; here nothing is converted, only refused.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kolk.errors import InvalidRows
from kolk.model.schema import Column
from kolk.model.types import Kind


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
    for column, array in zip(columns, rows.columns, strict=True):
        _check_column(column, array)
    return pa.RecordBatch.from_arrays(rows.columns, schema=pa.schema([column.arrow for column in columns]))


def _check_column(column: Column, array: pa.Array) -> None:
    if array.type != column.type.arrow:
        raise InvalidRows(f"the column {column.name!r} is a {column.type} ({column.type.arrow}), got {array.type}")
    if array.null_count and not column.nullable:
        raise InvalidRows(f"the column {column.name!r} is NOT NULL, but {array.null_count:,} of its values are null")
    if column.type.kind is Kind.CHAR:
        longest = pc.max(pc.utf8_length(array)).as_py() or 0
        if longest > column.type.arguments[0]:
            raise InvalidRows(f"the column {column.name!r} is a {column.type}, but a value has {longest} characters")
    if column.type.tick > 1:
        ticks = array.cast(pa.int64() if array.type.bit_width == 64 else pa.int32()).fill_null(0).to_numpy()
        if (ticks % column.type.tick).any():
            raise InvalidRows(f"the column {column.name!r} is a {column.type}, but a value is finer than that")
