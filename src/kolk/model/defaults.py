"""The default of a column: given as a Python value or as text, kept as text, and turned into Arrow values.

A default fills what a row does not say: a row that is older than its column, a put that leaves the column out. The text
is brought to one form when it is given, so that equal defaults are equal text, and the text stands for exactly one
value of the column's type, also after the column was widened. Bytes and nested values have no default: there is no one
way to write them.
"""

import datetime
import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from kolk.errors import InvalidSchema
from kolk.model.decimals import read_decimals
from kolk.model.shown import shown
from kolk.model.types import DataType, Kind

DEFAULT_BYTES_MAX = 1_000
"""The longest default, as UTF-8. The catalog's record of a table holds them all."""

_TEXTS = (Kind.STRING, Kind.CHAR)
_INTEGERS = (int,)
_NUMBERS = (int, float)
_TAKEN: dict[Kind, tuple[type, ...]] = {
    Kind.BOOLEAN: (bool,),
    Kind.TINYINT: _INTEGERS,
    Kind.SMALLINT: _INTEGERS,
    Kind.INT: _INTEGERS,
    Kind.BIGINT: _INTEGERS,
    Kind.FLOAT: _NUMBERS,
    Kind.DOUBLE: _NUMBERS,
    Kind.DECIMAL: (int, Decimal),
    Kind.CHAR: (),
    Kind.STRING: (),
    Kind.DATE: (datetime.date,),
    Kind.TIME: (datetime.time,),
    Kind.TIMESTAMP: (datetime.datetime,),
    Kind.TIMESTAMP_LTZ: (datetime.datetime,),
}
"""What a default may be besides text."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def default_text(value: object, type: DataType, name: str) -> str:
    """The one text of a default; InvalidSchema, naming the column, if its type has no such value."""
    if type.kind not in _TAKEN:
        raise InvalidSchema(f"the column {name!r} is a {type.shown}, which has no default; leave it out")
    text = value if isinstance(value, str) else _text_of(value, type, name)
    try:
        if len(text.encode()) > DEFAULT_BYTES_MAX:
            raise InvalidSchema(
                f"the default of {name!r} has more than {DEFAULT_BYTES_MAX:,} bytes; give a shorter one"
            )
        array = _parsed(text if type.kind in _TEXTS else text.strip(), type)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, InvalidSchema):
            raise
        raise _misfit(value, type, name) from None
    if type.kind is Kind.CHAR and len(text) > type.arguments[0]:
        raise _misfit(value, type, name)
    if type.tick > 1 and array.cast(pa.int64() if array.type.bit_width == 64 else pa.int32())[0].as_py() % type.tick:
        raise _misfit(value, type, name)
    return _canonical(array, type)


def default_values(text: str, type: DataType, rows: int) -> pa.Array:
    """So many times the value that a default stands for."""
    return pa.repeat(_parsed(text, type)[0], rows)


def default_literal(text: str, type: DataType) -> str:
    """The default as DDL writes it: numbers and truth values bare, everything else in quotes."""
    if type.kind is Kind.BOOLEAN:
        return text.upper()
    is_plain = text.removeprefix("-").replace(".", "", 1).isdigit()
    if type.kind not in (*_TEXTS, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ) and is_plain:
        return text
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def _text_of(value: object, type: DataType, name: str) -> str:
    """A Python value as text; one that only looks alike, such as True for a number, is refused."""
    taken = _TAKEN[type.kind]
    if not isinstance(value, taken) or isinstance(value, bool) != (type.kind is Kind.BOOLEAN):
        raise _misfit(value, type, name)
    if isinstance(value, datetime.datetime):
        if type.kind is Kind.DATE:
            raise _misfit(value, type, name)
        return value.isoformat(sep=" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    try:
        return str(value).lower()
    except ValueError:  # a number of thousands of digits
        raise _misfit(value, type, name) from None


def _parsed(text: str, type: DataType) -> pa.Array:
    """The value of a text, as an array of one."""
    array = pa.array([text], pa.string())
    match type.kind:
        case Kind.STRING | Kind.CHAR:
            return array
        case Kind.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ValueError(text)
            return pa.array([text.lower() == "true"])
        case Kind.TINYINT | Kind.SMALLINT | Kind.INT | Kind.BIGINT:
            if not _INTEGER.fullmatch(text):
                raise ValueError(text)
            return pa.array([int(text)], pa.int64()).cast(type.arrow)
        case Kind.FLOAT | Kind.DOUBLE:
            # Through the wider one, so that the text means the same number after a float became a double.
            number = array.cast(pa.float64()).cast(type.arrow)
            if pc.is_inf(number)[0].as_py() and "inf" not in text.lower():
                raise ValueError(text)
            return number
        case Kind.DECIMAL:
            return read_decimals(array, type.arrow)
        case Kind.TIME:
            # Arrow reads no times by themselves, but times of a day.
            return _parsed_moment(f"1970-01-01T{text}", pa.timestamp(type.unit)).cast(type.arrow)
        case Kind.TIMESTAMP | Kind.TIMESTAMP_LTZ:
            return _parsed_moment(text, type.arrow)
        case _:
            return array.cast(type.arrow)


def _parsed_moment(text: str, type: pa.DataType) -> pa.Array:
    """A point in time. Arrow wants no more digits than its unit has, even if they are zeros."""
    head, dot, fraction = text.partition(".")
    if dot:
        digits = re.match("[0-9]*", fraction)
        assert digits is not None
        kept = digits[0].rstrip("0")
        text = head + (f".{kept}" if kept else "") + fraction[digits.end() :]
    return pa.array([text], pa.string()).cast(type)


def _canonical(array: pa.Array, type: DataType) -> str:
    if type.kind is Kind.DECIMAL:
        return format(array[0].as_py(), "f")
    wide = array.cast(pa.float64()) if type.kind is Kind.FLOAT else array
    return wide.cast(pa.string())[0].as_py()


def _misfit(value: object, type: DataType, name: str) -> InvalidSchema:
    return InvalidSchema(
        f"the column {name!r} is a {type}, which has no value {shown(value)}; give a default of that type"
    )
