"""Values brought to a column's type: what Python holds becomes Arrow, and Arrow of one type Arrow of another.

A conversion keeps the value or fails: integers may change width if they fit, timestamps may change unit if nothing
is cut off, but text never becomes a number. Nested values are taken apart, each part is converted by the same rules,
and they are put together again. The errors name the column, and the field within it: ``'orders.item.price'``.
"""

import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from kolk.errors import InvalidInput, InvalidRows, TooLarge
from kolk.model.decimals import rescaled
from kolk.model.nested import bits_of, bounds_of, list_array, list_bounds, renamed, row_array, row_fields, validity_of
from kolk.model.types import DataType, Kind, is_list

_TEMPORAL = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)
_ITEMS_MAX = 2**31 - 1  # what the offsets of an Arrow list can address
_INTEGER_DIGITS = 20  # those of the greatest uint64


# --- from Python values


def array_of(values: Sequence[Any], type: DataType, name: str) -> pa.Array:
    """As pyarrow understands the values by themselves: told the type, it would cut 1.5 down to 1."""
    if type.is_nested:
        return _nested_array_of(values, type, name)
    try:
        if len(_sorts_of(values)) > 1:
            return _mixed_array_of(values, type, name)
        if type.kind is Kind.DECIMAL:
            values = [Decimal(value) if _is_int(value) else value for value in values]
        if type.kind in _TEMPORAL:
            values = _moments(values, type, name)
        array = pa.array(values)
        if isinstance(array, pa.ChunkedArray):
            raise TooLarge(f"the column {name!r} has more than 2 GiB; put it in pieces")
        if type.kind is Kind.FLOAT and pt.is_float64(array.type):
            return _to_float(array, type, name)
    except (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidRows(f"the column {name!r} is a {type}: {error}") from error
    return array


def _sorts_of(values: Sequence[Any]) -> set[type]:
    """The Python types of the values; None is of every one."""
    return {*map(type, values)} - {NoneType}


def _mixed_array_of(values: Sequence[Any], type: DataType, name: str) -> pa.Array:
    """Each sort of values by itself and of exactly the type, so that a value is what it is alone.

    Beside others pyarrow would take it for one of them: a number for microseconds beside a time and for days beside a
    date, a truth value for a number, text for bytes. Beside numpy's times it even ends the process.
    """
    order, starts = _by_sort(values)
    arrays: list[pa.Array] = []
    for places in np.split(order, starts):
        alone = array_of([values[place] for place in places.tolist()], type, name)
        arrays.append(converted(alone, type, name))
    return pa.concat_arrays(arrays).take(pa.array(np.argsort(order)))


def _by_sort(values: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the values, those of one Python type together, and where among them the next type starts."""
    sorts = np.fromiter(map(id, map(type, values)), np.uint64, len(values))
    order = np.argsort(sorts, kind="stable")
    return order, np.flatnonzero(np.diff(sorts[order])) + 1


def _is_int(value: object) -> bool:
    return type(value) is int


def _to_float(array: pa.Array, type: DataType, name: str) -> pa.Array:
    """Python has no single-precision number: whoever writes 0.1 for a float column means the nearest one."""
    narrow = array.cast(pa.float32())
    if not pc.is_inf(narrow).equals(pc.is_inf(array)):
        raise InvalidRows(f"the column {name!r} is a {type}, but a value is out of its range")
    return narrow


def _moments(values: Sequence[Any], type: DataType, name: str) -> list[Any]:
    """The same points in time as pyarrow understands them everywhere: with the zone UTC, or none.

    It would drop nanoseconds, far years of pandas and the zones of times, take times without a zone for UTC, and, where
    the environment has PYARROW_IGNORE_TIMEZONE, what a clock shows in any zone.
    """
    zones = {getattr(value, "tzinfo", None) is not None for value in values if isinstance(value, datetime.datetime)}
    if len(zones) > 1:
        raise InvalidRows(f"the column {name!r} mixes times with and without a zone")
    for value in values:
        if getattr(value, "nanosecond", 0):
            raise InvalidRows(f"the column {name!r}: give nanoseconds in Arrow or datetime64 columns, not as objects")
        if isinstance(value, datetime.time) and value.tzinfo is not None:
            raise InvalidRows(f"the column {name!r} is a {type}, which has no zone")
    return [_moment(value, name) if isinstance(value, datetime.datetime) else value for value in values]


def _moment(value: datetime.datetime, name: str) -> datetime.datetime:
    if value.year < datetime.MINYEAR or value.year > datetime.MAXYEAR:
        raise InvalidRows(f"the column {name!r}: give years that Python has not in Arrow or datetime64 columns")
    if value.tzinfo is None:
        return value
    if value.utcoffset() is None:
        raise InvalidRows(f"the column {name!r} has a time in a zone without an offset")
    return value.astimezone(datetime.UTC)


def _nested_array_of(values: Sequence[Any], type: DataType, name: str) -> pa.Array:
    """Arrays, maps or rows; unlike scalars, of exactly their type, since that is made of their parts'."""
    validity = bits_of(np.array([value is not None for value in values], np.bool_))
    if type.kind is Kind.ROW:
        rows = [_fields_of(value, type, name) for value in values]
        parts = [[None if row is None else row[field.name] for row in rows] for field in type.fields]
        return row_array(type.arrow, len(values), _arrays_of(parts, type, name), validity)
    as_list = _items_of if type.kind is Kind.ARRAY else _pairs_of
    lists = [() if value is None else as_list(value, type, name) for value in values]
    entries = list(chain.from_iterable(lists))
    parts = [entries] if type.kind is Kind.ARRAY else [[pair[place] for pair in entries] for place in (0, 1)]
    bounds = bounds_of(np.fromiter(map(len, lists), np.int64, len(lists)))
    arrays = _arrays_of(parts, type, name)
    _check_keys(arrays, type, name)
    return list_array(type.arrow, bounds, arrays, validity)


def _arrays_of(parts: list[list[Any]], type: DataType, name: str) -> list[pa.Array]:
    """The values of each field of a nested type."""
    arrays: list[pa.Array] = []
    for field, values in zip(type.fields, parts, strict=True):
        inner = f"{name}.{field.name}"
        arrays.append(converted(array_of(values, field.type, inner), field.type, inner))
    return arrays


def _items_of(value: Any, type: DataType, name: str) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, np.ndarray) and value.ndim:
        return list(value)
    raise _unlike(value, type, name, "a list")


def _pairs_of(value: Any, type: DataType, name: str) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, np.ndarray) and value.ndim:
        value = list(value)
    if not isinstance(value, list | tuple):
        raise _unlike(value, type, name, "a dict or a list of pairs")
    pairs = [(pair["key"], pair["value"]) if _is_entry(pair) else pair for pair in value]
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidRows(f"the column {name!r} is a {type.shown}; each entry is a pair of a key and a value")
    return pairs


def _is_entry(pair: Any) -> bool:
    return isinstance(pair, Mapping) and set(pair) == {"key", "value"}


def _fields_of(value: Any, type: DataType, name: str) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _unlike(value, type, name, "a dict")
    _check_names(list(value), type, name)
    return value


def _check_names(given: Sequence[Any], type: DataType, name: str) -> None:
    wanted = {field.name for field in type.fields}
    if len(given) != len(wanted) or wanted.symmetric_difference(given):
        odd = sorted(map(str, wanted.symmetric_difference(given))) or ["a field given twice"]
        raise InvalidRows(
            f"the column {name!r} is a {type.shown}, and a value differs in {', '.join(odd[:10])}:"
            " give every field, None for nothing"
        )


def _unlike(value: object, wanted: DataType, name: str, form: str) -> InvalidRows:
    return InvalidRows(f"the column {name!r} is a {wanted.shown}; give {form}, not a {type(value).__name__}")


# --- from Arrow to Arrow


def converted(array: pa.Array, type: DataType, name: str) -> pa.Array:
    """The same values in the Arrow form of a type; InvalidRows where that cannot hold them."""
    wanted = type.arrow
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == wanted:
        return renamed(array, wanted) if type.is_nested else array
    if pt.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if pt.is_dictionary(array.type):
        return _converted_dictionary(array, type, name)
    if type.is_nested:
        return _converted_nested(array, type, name)
    if not _same_family(array.type, wanted):
        raise _unfit(array, type, name)
    try:
        if pt.is_integer(array.type) and pt.is_decimal(wanted):
            # In two steps: Arrow wants room for every number of the integer type, though only these must fit.
            array = array.cast(pa.decimal128(_INTEGER_DIGITS, 0))
        return rescaled(array, wanted) if pt.is_decimal(wanted) else array.cast(wanted)
    except pa.ArrowException as error:
        raise InvalidRows(f"the column {name!r} is a {type}: {error}") from error


def _converted_dictionary(array: pa.DictionaryArray, type: DataType, name: str) -> pa.Array:
    """Each value once; what no row has need not fit: pandas keeps categories whose rows were filtered away."""
    values, places = array.dictionary, array.indices
    try:
        values = converted(values, type, name)
    except InvalidRows:
        used = places.unique().drop_null()
        values, places = converted(_taken(values, used, name), type, name), pc.index_in(places, value_set=used)
    return _taken(values, places, name)


def _converted_nested(array: pa.Array, type: DataType, name: str) -> pa.Array:
    validity = validity_of(array)
    if type.kind is Kind.ROW:
        if not pt.is_struct(array.type):
            raise _unfit(array, type, name)
        return row_array(type.arrow, len(array), _converted_fields(array, type, name), validity)
    is_map = pt.is_map(array.type)
    if not (is_list(array.type) or (is_map and type.kind is Kind.MAP)):
        raise _unfit(array, type, name)
    bounds, values = list_bounds(array)
    if bounds[-1] > _ITEMS_MAX:
        raise TooLarge(f"the column {name!r} has more than {_ITEMS_MAX:,} items; put it in pieces")
    if type.kind is Kind.ARRAY:
        item = type.fields[0]
        return list_array(type.arrow, bounds, [converted(values, item.type, f"{name}.{item.name}")], validity)
    if is_map:
        parts = [
            converted(part, field.type, f"{name}.{field.name}")
            for field, part in zip(type.fields, row_fields(values), strict=True)
        ]
    else:
        # A list of rows of a key and a value: what those have who know no maps, such as polars.
        if not pt.is_struct(values.type) or {field.name for field in values.type} != {"key", "value"}:
            raise _unfit(array, type, name)
        if values.null_count:
            raise InvalidRows(f"the column {name!r} is a {type.shown}, but an entry is null")
        parts = _converted_fields(values, type, name)
    _check_keys(parts, type, name)
    return list_array(type.arrow, bounds, parts, validity)


def _check_keys(parts: Sequence[pa.Array], type: DataType, name: str) -> None:
    if type.kind is Kind.MAP and parts[0].null_count:
        raise InvalidRows(f"the column {name!r} is a {type.shown}, but a key is null")


def _converted_fields(array: pa.StructArray, type: DataType, name: str) -> list[pa.Array]:
    """The fields of rows, matched by name."""
    names = [field.name for field in array.type]
    _check_names(names, type, name)
    parts = dict(zip(names, row_fields(array), strict=True))
    return [converted(parts[field.name], field.type, f"{name}.{field.name}") for field in type.fields]


def _unfit(array: pa.Array, type: DataType, name: str) -> InvalidRows:
    return InvalidRows(f"the column {name!r} is a {type.shown}, got {array.type}; convert it first")


def _taken(values: pa.Array, places: pa.Array, name: str) -> pa.Array:
    try:
        return values.take(places)
    except pa.ArrowException as error:
        raise InvalidRows(f"the column {name!r} has a dictionary that does not fit its indices") from error


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
