"""From what people have to what a table takes: one record batch of exactly its types.

Accepted: anything with the Arrow C interface (pyarrow, polars, pandas, duckdb ...), a list of dicts, one dict,
and for keys of one column a list of plain values. Conversions keep the value or fail: integers may change width if
they fit, timestamps may change unit if nothing is cut off, but text never becomes a number. The errors name the
column. Whether the rows obey the schema is decided by whoever serves them.
"""

import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from kolk.errors import InvalidRows, TooLarge
from kolk.model.schema import Column, Schema
from kolk.model.types import Kind

_TEMPORAL = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)

Data = Any
"""Rows in any accepted form."""


def rows_batch(data: Data, schema: Schema, wanted: Sequence[Column], *, ignorable: bool) -> pa.RecordBatch:
    """The wanted columns of ``data``. Unknown columns are refused; known ones left over too, unless ignorable."""
    columns = _columns_of(data, schema)
    names = {column.name for column in wanted}
    for name in columns:
        schema.column(name)
        if not ignorable and name not in names:
            raise InvalidRows(f"the column {name!r} is not wanted here; give only {', '.join(names)}")
    missing = [column.name for column in wanted if column.name not in columns]
    if missing:
        raise InvalidRows(
            f"the data has no column {', '.join(map(repr, missing))}; give every column, with nulls where there is"
            " nothing, or name the columns you mean with columns=[...]"
        )
    arrays = [_converted(columns[column.name], column) for column in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.arrow for column in wanted]))


def key_batch(keys: Data, schema: Schema) -> pa.RecordBatch:
    """Primary keys: rows that have them, plain values for a key of one column, or tuples in key order."""
    wanted = schema.key_columns
    if _is_one_column(keys):
        if len(wanted) > 1:
            raise InvalidRows(f"a key of this table has {len(wanted)} values: {', '.join(schema.primary_key)}")
        keys = _table_of({schema.primary_key[0]: keys})
    if isinstance(keys, list | tuple) and keys and not isinstance(keys[0], Mapping):
        given = keys if isinstance(keys, list) else [keys]
        names = schema.primary_key
        rows = [value if isinstance(value, tuple) else (value,) for value in given]
        if any(len(row) != len(names) for row in rows):
            raise InvalidRows(f"a key of this table has {len(names)} values: {', '.join(names)}")
        keys = [dict(zip(names, row, strict=True)) for row in rows]
    return rows_batch(keys, schema, wanted, ignorable=True)


def _columns_of(data: Data, schema: Schema) -> dict[str, pa.Array]:
    if isinstance(data, Mapping):
        return _columns_of_dicts([data], schema)
    if isinstance(data, list | tuple):
        return _columns_of_dicts(data, schema)
    table = _table_of(data)
    if len(set(table.column_names)) < table.num_columns:
        raise InvalidRows("the data names a column twice")
    return {name: _one_chunk(table.column(name)) for name in table.column_names}


def _is_one_column(data: Data) -> bool:
    """Whether this is a pyarrow array, a numpy array or a pandas or polars series."""
    is_array = isinstance(data, pa.Array | pa.ChunkedArray) and not isinstance(data, pa.StructArray)
    return is_array or type(data).__name__ in ("Series", "ndarray")


def _table_of(data: Data) -> pa.Table:
    try:
        if isinstance(data, pa.Table):
            return data
        if isinstance(data, pa.RecordBatch):
            return pa.Table.from_batches([data])
        if isinstance(data, dict):
            return pa.table({name: pa.chunked_array([column]) if isinstance(column, pa.Array) else column
                             for name, column in data.items()})  # fmt: skip
        if type(data).__module__.split(".")[0] == "pandas" and type(data).__name__ == "DataFrame":
            # Through pandas' own conversion: it drops the index and reads its nullable types.
            return pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "__arrow_c_stream__") and not _is_one_column(data):
            return pa.table(data)
        if hasattr(data, "__arrow_c_array__") and not _is_one_column(data):
            return pa.Table.from_batches([pa.record_batch(data)])
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise InvalidRows(f"the {type(data).__name__} cannot be read as rows: {error}") from error
    raise InvalidRows(
        f"cannot read rows from a {type(data).__name__}; give an Arrow table, a pandas or polars frame,"
        " or a list of dicts"
    )


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    try:
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    except pa.ArrowInvalid as error:
        raise TooLarge("a column has more than 2 GiB; put it in pieces") from error


def _columns_of_dicts(rows: Sequence[Any], schema: Schema) -> dict[str, pa.Array]:
    if not rows:
        return {column.name: pa.array([], column.type.arrow) for column in schema.columns}
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRows(f"a row is a dict of column names and values, not a {type(row).__name__}")
        if row.keys() != rows[0].keys():
            odd = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise InvalidRows(
                f"row {place} and row 0 differ in {', '.join(odd)}: give every row the same columns, None for nothing"
            )
    return {name: _array_of([row[name] for row in rows], schema.column(name)) for name in rows[0]}


def _array_of(values: list[Any], column: Column) -> pa.Array:
    """As pyarrow understands the values by themselves: told the type, it would cut 1.5 down to 1."""
    try:
        if column.type.kind is Kind.DECIMAL:
            values = [Decimal(value) if type(value) is int else value for value in values]
        if column.type.kind in _TEMPORAL:
            _check_moments(values, column)
        array = pa.array(values)
        if column.type.kind is Kind.FLOAT and pt.is_float64(array.type):
            return _to_float(array, column)
    except (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidRows):
            raise
        raise InvalidRows(f"the column {column.name!r} is a {column.type}: {error}") from error
    return array


def _to_float(array: pa.Array, column: Column) -> pa.Array:
    """Python has no single-precision number: whoever writes 0.1 for a float column means the nearest one."""
    narrow = array.cast(pa.float32())
    if not pc.is_inf(narrow).equals(pc.is_inf(array)):
        raise InvalidRows(f"the column {column.name!r} is a {column.type}, but a value is out of its range")
    return narrow


def _check_moments(values: list[Any], column: Column) -> None:
    """pyarrow would drop nanoseconds and the zones of times, and take times without a zone for UTC."""
    zones = {getattr(value, "tzinfo", None) is not None for value in values if isinstance(value, datetime.datetime)}
    if len(zones) > 1:
        raise InvalidRows(f"the column {column.name!r} mixes times with and without a zone")
    for value in values:
        if getattr(value, "nanosecond", 0):
            raise InvalidRows(f"the column {column.name!r}: give nanoseconds in an Arrow or pandas frame, not in dicts")
        if isinstance(value, datetime.time) and value.tzinfo is not None:
            raise InvalidRows(f"the column {column.name!r} is a {column.type}, which has no zone")


def _converted(array: pa.Array, column: Column) -> pa.Array:
    wanted = column.type.arrow
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == wanted:
        return array
    if pt.is_dictionary(array.type):
        return _taken(_converted(array.dictionary, column), array.indices, column)
    if not _same_family(array.type, wanted):
        raise InvalidRows(f"the column {column.name!r} is a {column.type}, got {array.type}; convert it first")
    try:
        if pt.is_integer(array.type) and pt.is_decimal(wanted):
            # In two steps: Arrow wants room for every number of the integer type, though only these must fit.
            array = array.cast(pa.decimal128(min(20 + wanted.scale, 38), wanted.scale))
        return array.cast(wanted)
    except pa.ArrowException as error:
        raise InvalidRows(f"the column {column.name!r} is a {column.type}: {error}") from error


def _taken(values: pa.Array, places: pa.Array, column: Column) -> pa.Array:
    try:
        return values.take(places)
    except pa.ArrowException as error:
        raise InvalidRows(f"the column {column.name!r} has a dictionary that does not fit its indices") from error


def _same_family(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast between these types either keeps the value or fails."""
    if given == wanted or pt.is_null(given):
        return True
    if pt.is_timestamp(given) and pt.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    families = (
        (_is_text, _is_text),
        (_is_bytes, _is_bytes),
        (pt.is_integer, lambda kind: pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)),
        (pt.is_floating, lambda kind: pt.is_floating(kind) and kind.bit_width >= given.bit_width),
        (pt.is_decimal, pt.is_decimal),
        (pt.is_date, pt.is_date),
        (pt.is_time, pt.is_time),
    )
    return any(is_source(given) and is_target(wanted) for is_source, is_target in families)


def _is_text(kind: pa.DataType) -> bool:
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind)
