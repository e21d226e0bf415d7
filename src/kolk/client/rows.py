"""From what people have to what a table takes: one record batch of exactly its types.

Accepted: anything with the Arrow C interface (pyarrow, polars, pandas, duckdb ...), a list of dicts, one dict,
and for keys of one column a list of plain values. How their values are converted is in ``kolk.model.conversion``;
whether the rows obey the schema is decided by whoever serves them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.errors import InvalidInput, InvalidRows, TooLarge
from kolk.model.conversion import array_of, converted
from kolk.model.names import no_column
from kolk.model.schema import CHANGE_COLUMN_NAMES, Column, Schema
from kolk.model.translation import filled

_CHUNK_BYTES_MAX = 2**31 - 1  # what the offsets of an Arrow array can address
Data = Any
"""Rows in any accepted form."""


def rows_batch(data: Data, schema: Schema, wanted: Sequence[Column], *, ignorable: bool) -> pa.RecordBatch:
    """The wanted columns of ``data``. Unknown columns are refused; known ones left over too, unless ignorable."""
    names = {column.name for column in wanted} if ignorable else None
    return batch_of(columns_of(data, schema.columns, names), schema, wanted)


def batch_of(
    columns: dict[str, pa.Array], schema: Schema, wanted: Sequence[Column], *, fills: bool = False
) -> pa.RecordBatch:
    """The wanted columns, which must be all there are. With ``fills``, one that is not there has its default, if it has
    one."""
    names = {column.name: column for column in wanted}
    for name in columns:
        if name not in names:
            schema.column(name)
            raise InvalidRows(f"the column {name!r} is not wanted here; give only {', '.join(names)}")
    absent = [column for column in wanted if column.name not in columns]
    if fills and columns:
        rows = len(next(iter(columns.values())))
        columns |= {column.name: filled(column, rows) for column in absent if column.default is not None}
    missing = [column.name for column in wanted if column.name not in columns]
    if missing:
        raise InvalidRows(
            f"the data has no column {', '.join(map(repr, missing))}; give every column, with nulls where there is"
            " nothing, or name the columns you mean with columns=[...]"
        )
    arrays = [converted(columns[column.name], column.type, column.name) for column in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.arrow for column in wanted]))


def key_batch(keys: Data, schema: Schema) -> pa.RecordBatch:
    """Primary keys: rows that have them, plain values for a key of one column, or tuples in key order."""
    wanted = schema.key_columns
    if _is_one_column(keys):
        if len(wanted) > 1:
            raise InvalidRows(f"a key of this table has {len(wanted)} values: {', '.join(schema.primary_key)}")
        is_of_objects = _is_of_objects(getattr(keys, "dtype", None))
        keys = keys.tolist() if is_of_objects else _table_of({schema.primary_key[0]: keys})
    if isinstance(keys, list | tuple) and keys and not isinstance(keys[0], Mapping):
        given = keys if isinstance(keys, list) else [keys]
        names = schema.primary_key
        rows = [value if isinstance(value, tuple) else (value,) for value in given]
        if any(len(row) != len(names) for row in rows):
            raise InvalidRows(f"a key of this table has {len(names)} values: {', '.join(names)}")
        keys = [dict(zip(names, row, strict=True)) for row in rows]
    if not _has_rows(keys):
        raise InvalidRows(
            f"cannot read keys from a {type(keys).__name__}; give a list of keys: ['/'], [('ada', 1)], dicts,"
            " or an Arrow table"
        )
    return rows_batch(keys, schema, wanted, ignorable=True)


def columns_of(data: Data, shape: Sequence[Column], wanted: Collection[str] | None = None) -> dict[str, pa.Array]:
    """The columns of ``data`` by their names; values of Python become what the shape says of them.

    Of columns that are not ``wanted`` the names must be known, and nothing else is looked at.
    """
    if isinstance(data, Mapping):
        _check_one_row(data, shape, wanted)
        return _columns_of_dicts([data], shape, wanted)
    if isinstance(data, list | tuple):
        return _columns_of_dicts(data, shape, wanted)
    if _is_pandas_frame(data):
        return _columns_of_pandas(data, shape, wanted)
    return _columns_of_table(_table_of(data), shape, wanted)


def _has_rows(data: Data) -> bool:
    """Whether rows may be read from this: a string or a number has none."""
    is_known = isinstance(data, Mapping | list | tuple | pa.Table | pa.RecordBatch) or _is_pandas_frame(data)
    return is_known or hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _check_one_row(row: Mapping[str, Any], shape: Sequence[Column], wanted: Collection[str] | None) -> None:
    """Refuse a dict of whole columns, which is what pandas and Arrow make tables of."""
    for column in shape:
        value = row.get(column.name)
        is_asked = wanted is None or column.name in wanted
        if is_asked and not column.type.is_nested and (isinstance(value, list | tuple) or _is_one_column(value)):
            raise InvalidRows(
                f"the column {column.name!r} is a {column.type}, got a {type(value).__name__}; a dict is one row, and"
                " columns go in as pa.table(data)"
            )


def check_valid(array: pa.Array | pa.ChunkedArray, name: str, *, full: bool = True) -> None:
    """Raise InvalidRows for what is no valid Arrow data, with which Arrow itself may end the process. Without ``full``
    only its ends are looked at, however long it is."""
    try:
        array.validate(full=full)
    except pa.ArrowException as error:
        raise InvalidRows(f"the column {name!r} is not valid Arrow data: {error}") from error


def _chosen(names: Sequence[str], known: Mapping[str, Any], wanted: Collection[str] | None) -> list[str]:
    """Those of the columns of some data that are wanted: all without a look, or some of which every one is known."""
    if len(set(names)) < len(names):
        raise InvalidRows("the data names a column twice")
    if wanted is None:
        return list(names)
    _check_known(names, known)
    return [name for name in names if name in wanted]


def _check_known(names: Iterable[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise InvalidRows(no_column(name, [each for each in known if each not in CHANGE_COLUMN_NAMES]))


def _columns_of_table(table: pa.Table, shape: Sequence[Column], wanted: Collection[str] | None) -> dict[str, pa.Array]:
    """What is of another type is about to be converted, and is validated here; what is not, by whoever serves it."""
    types = {column.name: column.type.arrow for column in shape}
    names = _chosen(table.column_names, types, wanted)
    for name in names:
        check_valid(table.column(name), name, full=table.column(name).type != types.get(name))
    return {name: _one_chunk(table.column(name), name) for name in names}


def _is_pandas_frame(data: Data) -> bool:
    return type(data).__module__.split(".")[0] == "pandas" and type(data).__name__ == "DataFrame"


def _columns_of_pandas(frame: Data, shape: Sequence[Column], wanted: Collection[str] | None) -> dict[str, pa.Array]:
    """Through pandas' own conversion, which drops the index and reads its nullable types.

    But for columns of Python's objects, which are taken as those of dicts are: it would take one for another where they
    are of several types, drop zones and nanoseconds, and make a row of a dict, even of one for a map.
    """
    types = {column.name: column.type for column in shape}
    names = [str(name) for name in frame.columns]
    chosen = set(_chosen(names, types, wanted))
    of_objects = [_is_of_objects(dtype) and name in types for name, dtype in zip(names, frame.dtypes, strict=True)]
    plain = [name in chosen and not is_one for name, is_one in zip(names, of_objects, strict=True)]
    try:
        columns = _columns_of_table(pa.Table.from_pandas(frame.loc[:, plain], preserve_index=False), shape, None)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidRows(f"the DataFrame cannot be read as rows: {error}") from error
    for place, (name, is_one) in enumerate(zip(names, of_objects, strict=True)):
        if is_one and name in chosen:
            columns[name] = array_of(_objects_of(frame.iloc[:, place], name), types[name], name)
    return columns


def _is_of_objects(dtype: Any) -> bool:
    """Whether pandas knows no more of the values of a column, or of its categories, than that they are objects."""
    return str(getattr(getattr(dtype, "categories", None), "dtype", dtype)) == "object"


def _objects_of(series: Any, name: str) -> list[Any]:
    """The values of a column, with None for each of pandas' ways to say nothing: NaN, NaT, NA."""
    values = series.tolist()
    try:
        is_nothing = series.isna()
    except InvalidOperation as error:  # which is what a signalling NaN signals when it is compared
        raise InvalidRows(f"the column {name!r} has a decimal that is a signalling NaN; give None instead") from error
    for place in is_nothing.to_numpy().nonzero()[0]:
        values[place] = None
    return values


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


def _one_chunk(column: pa.ChunkedArray, name: str) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    try:
        return pa.concat_arrays(column.chunks)
    except pa.ArrowException as error:
        if column.nbytes >= _CHUNK_BYTES_MAX:
            raise TooLarge(f"the column {name!r} has more than 2 GiB; put it in pieces") from error
        if pa.types.is_dictionary(column.type):
            return _one_dictionary(column.chunks)
        raise InvalidRows(f"the column {name!r} is in pieces that Arrow cannot join: {error}") from error


def _one_dictionary(chunks: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Chunks whose dictionaries Arrow cannot make one: together they have more values than their indices can count, or
    they are of a type that it cannot compare. Here one follows the other."""
    starts = np.cumsum([0, *(len(chunk.dictionary) for chunk in chunks)])
    indices = [
        pc.add(chunk.indices.cast(pa.int64()), pa.scalar(int(start), pa.int64()))
        for start, chunk in zip(starts, chunks, strict=False)
    ]
    return pa.DictionaryArray.from_arrays(
        pa.concat_arrays(indices), pa.concat_arrays([chunk.dictionary for chunk in chunks])
    )


def _columns_of_dicts(
    rows: Sequence[Any], shape: Sequence[Column], wanted: Collection[str] | None
) -> dict[str, pa.Array]:
    types = {column.name: column.type for column in shape}
    if not rows:
        return {name: pa.array([], types[name].arrow) for name in _chosen(list(types), types, wanted)}
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRows(f"a row is a dict of column names and values, not a {type(row).__name__}")
        if row.keys() != rows[0].keys():
            odd = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise InvalidRows(
                f"row {place} and row 0 differ in {', '.join(odd)}: give every row the same columns, None for nothing"
            )
    _check_known(rows[0], types)
    names = _chosen(list(rows[0]), types, wanted)
    return {name: array_of([row[name] for row in rows], types[name], name) for name in names}
