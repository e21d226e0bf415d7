"""From what people have to what a table takes: one record batch of exactly its types.

Accepted: anything with the Arrow C interface (pyarrow, polars, pandas, duckdb ...), a list of dicts, one dict,
and for keys of one column a list of plain values. Conversions keep the value or fail: integers may change width if
they fit, timestamps may change unit if nothing is cut off, but text never becomes a number. The errors name the
column. Whether the rows obey the schema is decided by whoever serves them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from kolk.errors import InvalidRows
from kolk.model.schema import Column, Schema
from kolk.model.types import Kind

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


def _table_of(data: Data) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if type(data).__module__.split(".")[0] == "pandas":
        # Through pandas' own conversion: it drops the index and reads its nullable types.
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    raise InvalidRows(
        f"cannot read rows from a {type(data).__name__}; give an Arrow table, a pandas or polars frame,"
        " or a list of dicts"
    )


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _columns_of_dicts(rows: Sequence[Any], schema: Schema) -> dict[str, pa.Array]:
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise InvalidRows(f"a row is a dict of column names and values, not a {type(row).__name__}")
        names.update(dict.fromkeys(row))
    if not rows:
        return {column.name: pa.array([], column.type.arrow) for column in schema.columns}
    return {name: _array_of([row.get(name) for row in rows], schema.column(name)) for name in names}


def _array_of(values: list[Any], column: Column) -> pa.Array:
    """As pyarrow understands the values by themselves: told the type, it would cut 1.5 down to 1."""
    try:
        array = pa.array(values)
        # Python has no single-precision number: whoever writes 0.1 for a float column means the nearest one.
        return array.cast(pa.float32()) if column.type.kind is Kind.FLOAT and pt.is_float64(array.type) else array
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
        TypeError,
    ) as error:
        raise InvalidRows(f"the column {column.name!r} is a {column.type}: {error}") from error


def _converted(array: pa.Array, column: Column) -> pa.Array:
    wanted = column.type.arrow
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == wanted:
        return array
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not _same_family(array.type, wanted):
        raise InvalidRows(f"the column {column.name!r} is a {column.type}, got {array.type}; convert it first")
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRows(f"the column {column.name!r} is a {column.type}: {error}") from error


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
