"""Literals: the values that a predicate compares columns with, each brought once to its column's exact type.

A literal goes through three forms. *Written*: what stands in the text, ``1.5`` or ``DATE '2026-11-15'``. *Exact*: the
value that this is for a column of some type, before it is made to fit: a fraction, nanoseconds, text. *Value*: what the
column itself can hold, as Arrow has it, with the one text that means it.

The step from exact to value is a floor, not a cast: the greatest value of the type that is not above the exact one, and
whether it is the same. ``tiny < 1000`` and ``n > 1.5`` can be answered from that without rounding or overflow. Only
``float`` and ``double`` round, to the nearest value: whoever writes 0.1 means the nearest there is, as with ``put``.
"""

import datetime
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Context, Decimal
from enum import Enum
from fractions import Fraction
from functools import partial

import numpy as np
import pyarrow as pa

from kolk.errors import InvalidArgument
from kolk.model.tokens import shown
from kolk.model.types import DataType, Kind

NUMBER_LENGTH_MAX = 100
"""In characters. Bounds the cost of a number, as the digits of its exponent do."""

INTEGER_BITS = {Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.INT: 32, Kind.BIGINT: 64}

Exact = bool | int | float | Fraction | str | bytes
"""Numbers are fractions, or floats that are no fraction; dates are days, times and timestamps nanoseconds."""

Value = bool | int | float | str | bytes
"""As Arrow's memory has it: times are counts of their unit, decimals of their last digit."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_OCTETS = re.compile(r"(?:[0-9a-fA-F]{2})*")
_DATE = r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
_ZONE = r"(?P<zone>Z|UTC|[+-][0-9]{2}:?[0-9]{2})"
_DATES, _TIMES = re.compile(_DATE), re.compile(_TIME)
_TIMESTAMPS = re.compile(rf"{_DATE}(?:[T ]{_TIME})?")
_INSTANTS = re.compile(rf"{_DATE}[T ]{_TIME} ?{_ZONE}")
_NOT_FRACTIONS = {"nan": math.nan, "infinity": math.inf, "inf": math.inf, "-infinity": -math.inf, "-inf": -math.inf}

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_DAYS = range(datetime.date.min.toordinal() - _EPOCH, datetime.date.max.toordinal() - _EPOCH + 1)
_SECOND = 10**9
_DAY = 86_400 * _SECOND
_UNIT_NANOSECONDS = {"s": _SECOND, "ms": 10**6, "us": 10**3, "ns": 1}
_FLOAT_MAX = {Kind.FLOAT: float(np.finfo(np.float32).max), Kind.DOUBLE: float(np.finfo(np.float64).max)}
_DECIMALS = Context(prec=38)


class Form(Enum):
    """How a literal is written."""

    NUMBER = "number"
    STRING = "string"
    BOOLEAN = "boolean"
    OCTETS = "X"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_LTZ = "TIMESTAMP_LTZ"


NAMED_FORMS = {form.value: form for form in (Form.OCTETS, Form.DATE, Form.TIME, Form.TIMESTAMP, Form.TIMESTAMP_LTZ)}
"""The words that make a literal of the string after them."""


@dataclass(frozen=True, slots=True)
class Written:
    """A literal as it stands in a text, without its quotes."""

    form: Form
    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A value of a column's type. Literals of one type are equal if their texts are, so NaN is equal to itself."""

    text: str
    scalar: pa.Scalar = field(compare=False, repr=False)


def literal(value: Value, type: DataType) -> Literal:
    """A value of this type, which it must be able to hold."""
    if type.kind is Kind.DECIMAL:
        assert isinstance(value, int)
        decimal = Decimal(value).scaleb(-type.arguments[1], _DECIMALS)
        return Literal(_decimal_text(decimal), pa.scalar(decimal, type.arrow))
    return Literal(_text(value, type), pa.scalar(value, type.arrow))


# --- written -> exact


def exact_of_written(written: Written, type: DataType) -> Exact:
    """What a literal means beside a column of this type; InvalidArgument if it cannot be compared with one."""
    if type.is_nested:
        raise InvalidArgument(f"the column is of type {type.shown}; only IS NULL and IS NOT NULL can be asked of it")
    found = _READERS[type.kind](written, type)
    if found is None:
        raise InvalidArgument(f"the column is of type {type.shown}; compare it with {_HINTS[type.kind]}")
    return found


def _read_number(written: Written, type: DataType) -> Exact | None:
    if written.form is Form.STRING and type.is_floating:
        return _NOT_FRACTIONS.get(written.text.lower())
    if written.form is not Form.NUMBER and not (written.form is Form.STRING and type.kind is Kind.DECIMAL):
        return None
    if len(written.text) > NUMBER_LENGTH_MAX:
        raise InvalidArgument(f"a number has at most {NUMBER_LENGTH_MAX} characters")
    if not _NUMBER.fullmatch(written.text):
        if written.form is Form.NUMBER:
            raise InvalidArgument("the exponent of a number has at most 3 digits")
        return None
    return Fraction(written.text)


def _read_boolean(written: Written, _type: DataType) -> Exact | None:
    return written.text == "TRUE" if written.form is Form.BOOLEAN else None


def _read_string(written: Written, _type: DataType) -> Exact | None:
    if written.form is not Form.STRING:
        return None
    try:
        written.text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("this text has half a surrogate pair, which is no character") from None
    return written.text


def _read_octets(written: Written, _type: DataType) -> Exact | None:
    if written.form is not Form.OCTETS or not _OCTETS.fullmatch(written.text):
        return None
    return bytes.fromhex(written.text)


def _read_moment(pattern: re.Pattern[str], forms: tuple[Form, ...], written: Written, type: DataType) -> Exact | None:
    """A date in days, a time or a timestamp in nanoseconds."""
    found = pattern.fullmatch(written.text) if written.form in (Form.STRING, *forms) else None
    if found is None:
        return None
    parts = found.groupdict()
    try:
        days = datetime.date.fromisoformat(parts["date"]).toordinal() - _EPOCH if parts.get("date") else 0
    except ValueError as error:
        raise InvalidArgument(f"{shown(written.text)} is no such day: {error}") from None
    if type.kind is Kind.DATE:
        return days
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise InvalidArgument(f"{shown(written.text)} is no time of a day")
    fraction = int((parts["fraction"] or "").ljust(9, "0"))
    seconds = hour * 3_600 + minute * 60 + second - _zone_seconds(parts.get("zone"))
    return _checked_moment(days * _DAY + seconds * _SECOND + fraction)


def _zone_seconds(zone: str | None) -> int:
    if zone is None or zone in ("Z", "UTC"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 18 or minutes > 59:
        raise InvalidArgument(f"the zone {zone} is further from UTC than any is")
    return (hours * 3_600 + minutes * 60) * (-1 if zone[0] == "-" else 1)


def _checked_moment(nanoseconds: int) -> int:
    if nanoseconds // _DAY not in _DAYS:
        raise InvalidArgument("a time is within the years 1 to 9999, in UTC")
    return nanoseconds


_READERS: dict[Kind, Callable[[Written, DataType], Exact | None]] = {
    **dict.fromkeys((*INTEGER_BITS, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL), _read_number),
    Kind.BOOLEAN: _read_boolean,
    **dict.fromkeys((Kind.CHAR, Kind.STRING), _read_string),
    **dict.fromkeys((Kind.BINARY, Kind.BYTES), _read_octets),
    Kind.DATE: partial(_read_moment, _DATES, (Form.DATE,)),
    Kind.TIME: partial(_read_moment, _TIMES, (Form.TIME,)),
    Kind.TIMESTAMP: partial(_read_moment, _TIMESTAMPS, (Form.DATE, Form.TIMESTAMP)),
    Kind.TIMESTAMP_LTZ: partial(_read_moment, _INSTANTS, (Form.TIMESTAMP_LTZ,)),
}
_HINTS = {
    **dict.fromkeys(INTEGER_BITS, "a number, without quotes"),
    **dict.fromkeys((Kind.FLOAT, Kind.DOUBLE), "a number, 'NaN', 'Infinity' or '-Infinity'"),
    Kind.DECIMAL: "a number, such as 9.99",
    Kind.BOOLEAN: "TRUE or FALSE",
    **dict.fromkeys((Kind.CHAR, Kind.STRING), "text in 'single quotes'"),
    **dict.fromkeys((Kind.BINARY, Kind.BYTES), "bytes in hexadecimal, such as X'00ff'"),
    Kind.DATE: "a day, such as '2026-11-15'",
    Kind.TIME: "a time of a day, such as '12:30:00', of at most 9 digits of a second",
    Kind.TIMESTAMP: "a time without a zone, such as '2026-11-15 12:30:00', of at most 9 digits of a second",
    Kind.TIMESTAMP_LTZ: "a time with its zone, such as '2026-11-15 12:30:00Z', of at most 9 digits of a second",
}


# --- Arrow -> exact


def exact_of_scalar(scalar: pa.Scalar, type: DataType) -> Exact:
    """The same for a value that Arrow holds in this type already."""
    match type.kind:
        case Kind.DATE:
            return _checked_moment(scalar.value * _DAY) // _DAY
        case Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMP_LTZ:
            return _checked_moment(scalar.value * _UNIT_NANOSECONDS[type.unit])
        case Kind.FLOAT | Kind.DOUBLE:
            value = scalar.as_py()
            return Fraction(value) if math.isfinite(value) else value
        case Kind.DECIMAL:
            return Fraction(scalar.as_py())
        case _:
            return scalar.as_py()


# --- exact -> value


def floor_of(exact: Exact, type: DataType) -> tuple[Value | None, bool]:
    """The greatest value of a type that is not above this, None if all are; and whether it is the same.

    A float is the nearest value instead, and the same unless this is out of range.
    """
    kind = type.kind
    if kind in INTEGER_BITS:
        half = 2 ** (INTEGER_BITS[kind] - 1)
        return _floor(_fraction(exact), -half, half - 1)
    if kind is Kind.DECIMAL:
        precision, scale = type.arguments
        return _floor(_fraction(exact) * 10**scale, 1 - 10**precision, 10**precision - 1)
    if kind in _FLOAT_MAX:
        return _nearest(exact, kind)
    if kind is Kind.BINARY:
        assert isinstance(exact, bytes)
        return _floor_bytes(exact, type.arguments[0])
    if kind in (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ):
        steps = _fraction(exact) / (_UNIT_NANOSECONDS[type.unit] * type.tick)
        value, is_same = _floor(steps, -(2**63 // type.tick), (2**63 - 1) // type.tick)
        return None if value is None else value * type.tick, is_same
    assert not isinstance(exact, Fraction)
    return exact, True


def _fraction(exact: Exact) -> Fraction:
    assert not isinstance(exact, str | bytes)
    return Fraction(exact)


def _floor(exact: Fraction, least: int, greatest: int) -> tuple[int | None, bool]:
    value = math.floor(exact)
    if value < least:
        return None, False
    return min(value, greatest), value == exact and value <= greatest


def _nearest(exact: Exact, kind: Kind) -> tuple[float, bool]:
    assert not isinstance(exact, str | bytes)
    try:
        value = float(exact)
        if kind is Kind.FLOAT:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return _FLOAT_MAX[kind] if exact > 0 else -math.inf, False
    return value + 0.0, True  # which makes -0.0 its equal 0.0


def _floor_bytes(exact: bytes, width: int) -> tuple[bytes | None, bool]:
    """A longer value lies right above its own beginning, a shorter one right below itself filled up with zeros."""
    if len(exact) >= width:
        return exact[:width], len(exact) == width
    above = int.from_bytes(exact.ljust(width, b"\0"), "big")
    return (above - 1).to_bytes(width, "big") if above else None, False


# --- value -> text


def _text(value: Value, type: DataType) -> str:
    """The text of a value, which is read back as the same value beside a column of the type."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case str():
            return quoted(value)
        case bytes():
            return f"X'{value.hex()}'"
        case float():
            return _float_text(value, type.kind)
        case int() if type.kind in INTEGER_BITS:
            return str(value)
        case int():
            return quoted(_moment_text(value, type))


def quoted(text: str) -> str:
    """Text in single quotes."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _decimal_text(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _float_text(value: float, kind: Kind) -> str:
    if not math.isfinite(value):
        return "'NaN'" if math.isnan(value) else "'Infinity'" if value > 0 else "'-Infinity'"
    if kind is Kind.DOUBLE:
        return repr(value)
    short = str(np.float32(value))
    return short if _nearest(Fraction(short), kind)[0] == value else repr(value)


def _moment_text(value: int, type: DataType) -> str:
    if type.kind is Kind.DATE:
        return _day_text(value)
    days, nanoseconds = divmod(value * _UNIT_NANOSECONDS[type.unit], _DAY)
    seconds, fraction = divmod(nanoseconds, _SECOND)
    digits = f"{fraction:09}".rstrip("0")
    time = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{'.' if digits else ''}{digits}"
    if type.kind is Kind.TIME:
        return time
    return f"{_day_text(days)} {time}{'Z' if type.kind is Kind.TIMESTAMP_LTZ else ''}"


def _day_text(days: int) -> str:
    return datetime.date.fromordinal(days + _EPOCH).isoformat()
