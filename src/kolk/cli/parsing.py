"""From text to the values of a column: what a person types, or a file of text holds, read by the table's types.

The client never makes a number of text; a command line has nothing but text, so here is where it happens, and the type
says how. A value that does not fit is an error that names it; nothing is rounded or cut to make it fit. Arrays are
written as JSON arrays, rows as objects, and maps as objects whose names are the keys.
"""

import binascii
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kolk.model.decimals import read_decimals
from kolk.model.types import DataType, Kind

DECODER = msgspec.json.Decoder(float_hook=Decimal)
"""Reads JSON with the digits of numbers as they are written: a decimal column wants them all."""

_TEXT = (Kind.STRING, Kind.CHAR)
_BYTES = (Kind.BYTES, Kind.BINARY)
_SHOWN_LENGTH = 60
_HINTS = {
    Kind.BOOLEAN: "write true or false",
    Kind.BYTES: "write base64",
    Kind.BINARY: "write base64, of exactly its length",
    Kind.DATE: "write 2026-11-15",
    Kind.TIME: "write 12:30:00, with no more digits than the column has",
    Kind.TIMESTAMP: "write 2026-11-15T12:30:00, without a zone and with no more digits than the column has",
    Kind.TIMESTAMP_LTZ: "write 2026-11-15T12:30:00Z, with a zone and no more digits than the column has",
    Kind.ARRAY: "write a JSON array",
    Kind.MAP: "write a JSON object",
    Kind.ROW: "write a JSON object of its fields",
}


class Misfit(ValueError):
    """A value that its column cannot hold, and its place among those that were given."""

    def __init__(self, place: int, value: Any, name: str, type: DataType) -> None:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN_LENGTH else shown[:_SHOWN_LENGTH] + "..."
        hint = _HINTS.get(type.kind)
        super().__init__(f"{name} is a {type.shown}, not {shown}{f'; {hint}' if hint else ''}")
        self.place = place


def parse(array: pa.Array, name: str, type: DataType) -> pa.Array:
    """The values that this text stands for; ``Misfit`` for the first that does not fit."""
    if type.kind not in (*_TEXT, *_BYTES):
        array = pc.utf8_trim_whitespace(array)
        # Nothing is no number; many programs that write CSV put quotes around it all the same.
        array = pc.if_else(pc.equal(array, ""), pa.scalar(None, pa.string()), array)
    if type.is_nested:
        return parse_json(
            [_decoded(text, place, name, type) for place, text in enumerate(array.to_pylist())], name, type
        )
    try:
        return _scalars(array, type)
    except (pa.ArrowException, ValueError):
        place = _first_misfit(array, type)
        raise Misfit(place, array[place].as_py(), name, type) from None


def parse_json(values: list[Any], name: str, type: DataType) -> pa.Array:
    """The same for values as JSON has them. Numbers do not become text, and text may stand for any scalar."""
    match type.kind:
        case Kind.ARRAY:
            return _arrays(values, name, type)
        case Kind.MAP:
            return _maps(values, name, type)
        case Kind.ROW:
            return _rows(values, name, type)
        case _:
            return parse(pa.array(_as_texts(values, name, type), pa.string()), name, type)


# --- scalars


def _as_texts(values: list[Any], name: str, type: DataType) -> list[str | None]:
    takes_text_alone = type.kind in (*_TEXT, *_BYTES)
    shown: list[str | None] = []
    for place, value in enumerate(values):
        if value is None or isinstance(value, str):
            shown.append(value)
        elif takes_text_alone or isinstance(value, dict | list):
            raise Misfit(place, value, name, type)
        else:
            shown.append(str(value).lower() if isinstance(value, bool) else str(value))
    return shown


def _scalars(array: pa.Array, type: DataType) -> pa.Array:
    match type.kind:
        case Kind.STRING | Kind.CHAR:
            return array
        case Kind.BYTES | Kind.BINARY:
            decoded = [
                None if text is None else binascii.a2b_base64(text.encode(), strict_mode=True)
                for text in array.to_pylist()
            ]
            return pa.array(decoded, type.arrow)
        case Kind.TIME:
            # Arrow reads no times by themselves, but times of a day.
            stamps = pc.binary_join_element_wise("1970-01-01T", array, "")
            return stamps.cast(pa.timestamp(type.unit)).cast(type.arrow)
        case Kind.FLOAT | Kind.DOUBLE:
            return _finite(array, array.cast(type.arrow))
        case Kind.DECIMAL:
            return read_decimals(array, type.arrow)
        case _:
            return array.cast(type.arrow)


def _finite(array: pa.Array, numbers: pa.Array) -> pa.Array:
    """Too large a number must not become infinity, unless it says so."""
    overflown = pc.and_(pc.is_inf(numbers), pc.invert(pc.match_substring(array, "inf", ignore_case=True)))
    if pc.any(overflown).as_py():
        raise ValueError("out of range")
    return numbers


def _first_misfit(array: pa.Array, type: DataType) -> int:
    """By halves: of an array that does not parse as a whole, the first value that does not."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _scalars(array[low:middle], type)
            low = middle
        except (pa.ArrowException, ValueError):
            high = middle
    return low


# --- values that hold others: their members are parsed all together, level by level


def _arrays(values: list[Any], name: str, type: DataType) -> pa.Array:
    _check_all(values, list, name, type)
    owners = [place for place, value in enumerate(values) for _ in value or ()]
    items = [item for value in values for item in value or ()]
    parsed = _within(owners, parse_json, items, f"{name}[]", type.fields[0].type)
    return pa.ListArray.from_arrays(_offsets(values), parsed, type=type.arrow)


def _maps(values: list[Any], name: str, type: DataType) -> pa.Array:
    _check_all(values, dict, name, type)
    key, item = type.fields
    owners = [place for place, value in enumerate(values) for _ in value or ()]
    keys = pa.array([one for value in values for one in value or ()], pa.string())
    items = [one for value in values for one in (value or {}).values()]
    return pa.MapArray.from_arrays(
        _offsets(values),
        _within(owners, parse, keys, f"a key of {name}", key.type),
        _within(owners, parse_json, items, f"{name}[]", item.type),
        type=type.arrow,
    )


def _rows(values: list[Any], name: str, type: DataType) -> pa.Array:
    _check_all(values, dict, name, type)
    known = {field.name for field in type.fields}
    for place, value in enumerate(values):
        if value is not None and not value.keys() <= known:
            raise Misfit(place, value, name, type)
    arrays = [
        parse_json([(value or {}).get(field.name) for value in values], f"{name}.{field.name}", field.type)
        for field in type.fields
    ]
    absent = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=[field.arrow for field in type.fields], mask=absent)


def _within(owners: Sequence[int], read: Callable[..., pa.Array], values: Any, name: str, type: DataType) -> pa.Array:
    """Parse the members of all values; a misfit among them is a misfit of the value that holds it."""
    try:
        return read(values, name, type)
    except Misfit as misfit:
        misfit.place = owners[misfit.place]
        raise


def _offsets(values: list[Any]) -> pa.Array:
    """Where each value's members begin; a null has a null there."""
    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += len(value or ())
    return pa.array([*offsets, end], pa.int32())


def _check_all(values: list[Any], kind: type, name: str, type: DataType) -> None:
    for place, value in enumerate(values):
        if value is not None and not isinstance(value, kind):
            raise Misfit(place, value, name, type)


def _decoded(text: str | None, place: int, name: str, type: DataType) -> Any:
    try:
        return None if text is None else DECODER.decode(text)
    except msgspec.DecodeError:
        raise Misfit(place, text, name, type) from None
