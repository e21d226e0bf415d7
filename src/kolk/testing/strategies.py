"""Hypothesis strategies for types, schemas and batches, so that laws are tested on everything Kolk can hold.

The batches are valid and unfriendly. Each column, and each array within one, is a slice of a longer array with an
offset of its own, nulls have values beneath them, a validity bitmap may be there for no reason, and texts are rich
in NULs: all that Arrow allows and that code on raw buffers gets wrong. Values keep to their types: digits of a second,
lengths, precision, and the years 1 to 9999 that Python and Spark can show. Hypothesis is a development
dependency, and nothing else in ``kolk`` imports it.
"""

from collections.abc import Sequence
from decimal import Context, Decimal
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

from kolk.model.nested import bounds_of, list_array, row_array
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType, Field, Kind

_TEMPORAL = (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)
_INTEGER_BITS = {Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.INT: 32, Kind.BIGINT: 64}
_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
_DAY_SECONDS = 86_400
_DECIMALS = Context(prec=38)
_CHARACTERS = st.one_of(st.sampled_from("\x00\x01a\x7f\x80\xff\uffff\U00010000"), st.characters(codec="utf-8"))
_OCTETS = st.one_of(st.sampled_from(b"\x00\x01\xfe\xff"), st.integers(0, 255))
_JUNK_MAX = 3
_ITEMS_MAX = 4
_NESTED = (Kind.ARRAY, Kind.MAP, Kind.ROW)
_INNER_NAMES = ("x", "Y", "z-1", "not", "row", "0")


class Keys(Enum):
    """What the rows of a batch have for keys."""

    ANY = "any"
    UNIQUE = "unique"
    """No two rows share a key."""
    REPEATED = "repeated"
    """Three keys at most, so that most rows share theirs."""


def data_types(*, for_key: bool = False, max_depth: int = 3) -> st.SearchStrategy[DataType]:
    """Every column type, nested at most so deep; with ``for_key`` only those that may stand in a primary key."""
    barred = {Kind.FLOAT, Kind.DOUBLE} if for_key else set[Kind]()
    scalars = st.sampled_from([kind for kind in Kind if kind not in barred and kind not in _NESTED])
    scalar_types = scalars.flatmap(_data_types_of)
    if for_key or not max_depth:
        return scalar_types
    inner = data_types(max_depth=max_depth - 1)
    # Nested types are costly to draw values of: one column in four is enough to meet them all.
    return st.integers(0, 3).flatmap(lambda number: scalar_types if number else _nested_types(inner))


def _nested_types(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    def fields(name: str) -> st.SearchStrategy[Field]:
        return st.builds(Field, st.just(name), inner, st.booleans())

    keys = data_types(for_key=True).map(lambda type: Field("key", type, nullable=False))
    names = st.lists(st.sampled_from(_INNER_NAMES), min_size=1, max_size=3, unique=True)
    rows = names.flatmap(lambda chosen: st.tuples(*map(fields, chosen)))
    return st.one_of(
        fields("item").map(lambda item: DataType(Kind.ARRAY, fields=(item,))),
        st.tuples(keys, fields("value")).map(lambda members: DataType(Kind.MAP, fields=members)),
        rows.map(lambda members: DataType(Kind.ROW, fields=members)),
    )


def _data_types_of(kind: Kind) -> st.SearchStrategy[DataType]:
    if kind in _TEMPORAL:
        return st.integers(0, 9).map(lambda digits: DataType(kind, (digits,)))
    if kind in (Kind.CHAR, Kind.BINARY):
        return st.integers(1, 20).map(lambda length: DataType(kind, (length,)))
    if kind is Kind.DECIMAL:
        precisions = st.integers(1, 38).flatmap(
            lambda precision: st.tuples(st.just(precision), st.integers(0, precision))
        )
        return precisions.map(lambda arguments: DataType(kind, arguments))
    return st.just(DataType(kind))


_DATA_TYPES, _KEY_TYPES = data_types(), data_types(for_key=True)


@st.composite
def schemas(
    draw: st.DrawFn,
    *,
    min_key: int = 1,
    max_key: int = 3,
    min_values: int = 0,
    max_values: int = 4,
    key_types: st.SearchStrategy[DataType] = _KEY_TYPES,
    value_types: st.SearchStrategy[DataType] = _DATA_TYPES,
) -> Schema:
    """A schema with so many columns inside and outside the primary key; ``max_key=0`` makes log tables.

    Key columns stand anywhere among the columns, and in the key in another order.
    """
    key = draw(st.lists(key_types, min_size=min(min_key, max_key), max_size=max_key))
    values = draw(st.lists(value_types, min_size=min_values, max_size=max_values))
    if not key and not values:
        values = [draw(value_types)]
    key_columns = [Column(f"k{place}", type, nullable=False) for place, type in enumerate(key)]
    value_columns = [Column(f"v{place}", type, draw(st.booleans())) for place, type in enumerate(values)]
    columns = draw(st.permutations([*key_columns, *value_columns]))
    return Schema(columns, draw(st.permutations([column.name for column in key_columns])))


@st.composite
def batches(
    draw: st.DrawFn,
    schema: Schema,
    *,
    columns: Sequence[str] | None = None,
    keys: Keys = Keys.ANY,
    min_rows: int = 0,
    max_rows: int = 12,
) -> pa.RecordBatch:
    """A batch of the schema's columns, or of those named; nulls where they are allowed.

    ``Keys.UNIQUE`` with a ``min_rows`` beyond what the key's type can tell apart cannot be satisfied.
    """
    chosen = [schema.column(name) for name in (schema.names if columns is None else columns)]
    key = [column for column in chosen if column.name in schema.primary_key]
    key_rows = draw(_key_rows(key, keys, min_rows, max_rows))
    arrays: list[pa.Array] = []
    for column in chosen:
        if column in key:
            given = [row[key.index(column)] for row in key_rows]
        else:
            given = draw(st.lists(values_of(column.type), min_size=len(key_rows), max_size=len(key_rows)))
        arrays.append(draw(_arrays(column, given)))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.arrow for column in chosen]))


def values_of(type: DataType) -> st.SearchStrategy[Any]:
    """Values as ``pa.array`` takes them; times and dates are numbers of the type's unit, maps lists of pairs."""
    kind, arguments = type.kind, type.arguments
    match kind:
        case Kind.BOOLEAN:
            return st.booleans()
        case Kind.FLOAT | Kind.DOUBLE:
            return st.floats(width=32 if kind is Kind.FLOAT else 64)
        case Kind.DECIMAL:
            largest = 10 ** arguments[0] - 1
            return st.integers(-largest, largest).map(lambda units: Decimal(units).scaleb(-arguments[1], _DECIMALS))
        case Kind.CHAR | Kind.STRING:
            return st.text(_CHARACTERS, max_size=arguments[0] if arguments else 40)
        case Kind.BINARY:
            return st.lists(_OCTETS, min_size=arguments[0], max_size=arguments[0]).map(bytes)
        case Kind.BYTES:
            return st.lists(_OCTETS, max_size=40).map(bytes)
        case Kind.DATE:
            return st.integers(_FIRST_DAY, _LAST_DAY)
        case Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMP_LTZ:
            return _moments(type)
        case Kind.ARRAY:
            return st.lists(_members(type.fields[0]), max_size=_ITEMS_MAX)
        case Kind.MAP:
            pairs = st.tuples(*map(_members, type.fields))
            return st.lists(pairs, max_size=_ITEMS_MAX, unique_by=lambda pair: pair[0])
        case Kind.ROW:
            return st.fixed_dictionaries({field.name: _members(field) for field in type.fields})
        case _:
            return st.integers(-(2 ** (_INTEGER_BITS[kind] - 1)), 2 ** (_INTEGER_BITS[kind] - 1) - 1)


def _members(field: Field) -> st.SearchStrategy[Any]:
    values = values_of(field.type)
    return st.none() | values if field.nullable else values


def _moments(type: DataType) -> st.SearchStrategy[int]:
    first, last = (0, 1) if type.kind is Kind.TIME else (_FIRST_DAY, _LAST_DAY + 1)
    units = _DAY_SECONDS * _UNITS_PER_SECOND[type.unit]
    smallest, largest = max(first * units, -(2**63)), min(last * units, 2**63) - 1
    return st.integers(-(-smallest // type.tick), largest // type.tick).map(lambda ticks: ticks * type.tick)


def _key_rows(
    key: Sequence[Column], keys: Keys, min_rows: int, max_rows: int
) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    row = st.tuples(*(values_of(column.type) for column in key))
    match keys:
        case Keys.ANY:
            return st.lists(row, min_size=min_rows, max_size=max_rows)
        case Keys.UNIQUE:
            return st.lists(row, min_size=min_rows, max_size=max_rows, unique=True)
        case Keys.REPEATED:
            pools = st.lists(row, min_size=1, max_size=3)
            return pools.flatmap(lambda pool: st.lists(st.sampled_from(pool), min_size=min_rows, max_size=max_rows))


def hostile(column: Column, given: list[Any]) -> st.SearchStrategy[pa.Array]:
    """These values as an array of the kind that batches are made of; if the column is nullable, with nulls."""
    return _arrays(column, given)


@st.composite
def _arrays(draw: st.DrawFn, column: Column | Field, given: list[Any]) -> pa.Array:
    """These values as a slice of a longer array; if the column is nullable, some are hidden beneath nulls.

    A None among the values, which only fields within nested values have, becomes a null with something beneath it.
    """
    values = values_of(column.type)
    junk = st.lists(values, max_size=_JUNK_MAX)
    before, after = draw(junk), draw(junk)
    whole = [*before, *given, *after]
    is_valid = np.array([value is not None for value in whole], np.bool_)
    beneath = None if is_valid.all() else draw(values)
    if column.nullable and draw(st.booleans()):
        is_valid &= np.array(draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole))), np.bool_)
    elif is_valid.all():
        is_valid = None
    filled = [beneath if value is None else value for value in whole]
    array = draw(_array_of(column.type, filled))
    if is_valid is not None:
        array = _with_validity(array, pa.py_buffer(np.packbits(is_valid, bitorder="little")))
    return array.slice(len(before), len(given))


@st.composite
def _array_of(draw: st.DrawFn, type: DataType, values: list[Any]) -> pa.Array:
    """These values, none of which is None, as an array of offset 0."""
    if type.kind is Kind.ROW:
        fields = [draw(_arrays(field, [value[field.name] for value in values])) for field in type.fields]
        return row_array(type.arrow, len(values), fields, None)
    if type.kind is Kind.ARRAY:
        fields = [draw(_arrays(type.fields[0], [item for value in values for item in value]))]
        return list_array(type.arrow, bounds_of(np.array([len(value) for value in values], np.int64)), fields, None)
    if type.kind is Kind.MAP:
        pairs = [pair for value in values for pair in value]
        fields = [draw(_arrays(field, [pair[place] for pair in pairs])) for place, field in enumerate(type.fields)]
        return list_array(type.arrow, bounds_of(np.array([len(value) for value in values], np.int64)), fields, None)
    return pa.array(values, type.arrow)


def _with_validity(array: pa.Array, validity: pa.Buffer) -> pa.Array:
    type = array.type
    if pt.is_struct(type):
        return row_array(type, len(array), [array.field(place) for place in range(type.num_fields)], validity)
    if pt.is_list(type) or pt.is_map(type):
        return pa.Array.from_buffers(type, len(array), [validity, array.buffers()[1]], children=[array.values])
    return pa.Array.from_buffers(type, len(array), [validity, *array.buffers()[1:]])
