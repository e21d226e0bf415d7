"""Column types: what a column may hold, its name in DDL, and its one Arrow type.

A ``DataType`` is a frozen value. The mapping to Arrow is one to one, so that data moves between Kolk, Spark
and pandas without a guess. This module knows nothing of bytes: how a type is laid out on disk is the
business of ``codec``. Array, map and row types are not here yet.

=================  ============================  ==========================================
name               Arrow                         remark
=================  ============================  ==========================================
boolean            bool
tinyint … bigint   int8, int16, int32, int64
float, double      float32, float64              not as a primary key
decimal(p, s)      decimal128(p, s)              1 <= p <= 38, 0 <= s <= p
char(n)            string                        at most n characters; not padded
string             string
binary(n)          fixed_size_binary(n)          exactly n bytes
bytes              binary
date               date32
time(p)            time32(s|ms), time64(us|ns)   p digits of a second, 0..9, default 6
timestamp(p)       timestamp(s|ms|us|ns)         without a zone, default p = 6
timestamp_ltz(p)   timestamp(s|ms|us|ns, UTC)    an instant, default p = 6
=================  ============================  ==========================================
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache

import pyarrow as pa

from kolk.errors import InvalidSchema


class Kind(Enum):
    """The type's name, as DDL writes it."""

    BOOLEAN = "boolean"
    TINYINT = "tinyint"
    SMALLINT = "smallint"
    INT = "int"
    BIGINT = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    CHAR = "char"
    STRING = "string"
    BINARY = "binary"
    BYTES = "bytes"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMP_LTZ = "timestamp_ltz"


_KINDS = {kind.value: kind for kind in Kind}
_ALIASES = {"bool": "boolean", "integer": "int", "long": "bigint", "varbinary": "bytes", "text": "string"}
_PLAIN_ARROW = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.TINYINT: pa.int8(),
    Kind.SMALLINT: pa.int16(),
    Kind.INT: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.CHAR: pa.string(),
    Kind.STRING: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
}
_ARGUMENTS = {
    Kind.DECIMAL: 2,
    Kind.CHAR: 1,
    Kind.BINARY: 1,
    Kind.TIME: 1,
    Kind.TIMESTAMP: 1,
    Kind.TIMESTAMP_LTZ: 1,
}
_DEFAULTS: dict[Kind, tuple[int, ...]] = {
    Kind.DECIMAL: (10, 0),
    Kind.CHAR: (1,),
    Kind.BINARY: (1,),
    Kind.TIME: (6,),
    Kind.TIMESTAMP: (6,),
    Kind.TIMESTAMP_LTZ: (6,),
}
_TEMPORAL = (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)
_UNITS = ("s", "ms", "us", "ns")
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_TYPE_TEXT = re.compile(r"\s*([a-z_]+)\s*(?:\(\s*([0-9]+)\s*(?:,\s*([0-9]+)\s*)?\))?\s*", re.IGNORECASE)
_TYPE_TEXT_LENGTH_MAX = 60
"""Bounds the digits as well: ``int`` itself raises on thousands of them."""

LENGTH_MAX = 65_535
"""The longest ``char(n)`` and ``binary(n)``; longer values belong in ``string`` and ``bytes``."""


@dataclass(frozen=True, slots=True)
class DataType:
    """One column type, such as ``decimal(10, 2)``: a kind and its arguments."""

    kind: Kind
    arguments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_arguments(self.kind, self.arguments)

    @staticmethod
    def parse(text: str) -> "DataType":
        """Read a type as DDL writes it; arguments left out take their defaults."""
        match = _TYPE_TEXT.fullmatch(text) if len(text) <= _TYPE_TEXT_LENGTH_MAX else None
        name = match.group(1).lower() if match else ""
        name = _ALIASES.get(name, name)
        if match is None or name not in _KINDS:
            shown = text[:_TYPE_TEXT_LENGTH_MAX]
            raise InvalidSchema(f"unknown column type {shown!r}; the types are {', '.join(_KINDS)}")
        kind = _KINDS[name]
        given = tuple(int(group) for group in match.groups()[1:] if group is not None)
        if kind is Kind.DECIMAL and len(given) == 1:
            given = (*given, 0)
        return DataType(kind, given or _DEFAULTS.get(kind, ()))

    @staticmethod
    def from_arrow(arrow: pa.DataType) -> "DataType":
        """The type whose Arrow form holds every value of ``arrow``; an error where there is none."""
        if pa.types.is_dictionary(arrow):
            arrow = arrow.value_type
        if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
            arrow = pa.string()
        if pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow):
            arrow = pa.binary()
        if pa.types.is_decimal32(arrow) or pa.types.is_decimal64(arrow) or pa.types.is_decimal128(arrow):
            return DataType(Kind.DECIMAL, (arrow.precision, arrow.scale))
        if pa.types.is_fixed_size_binary(arrow):
            return DataType(Kind.BINARY, (arrow.byte_width,))
        if pa.types.is_timestamp(arrow):
            kind = Kind.TIMESTAMP if arrow.tz is None else Kind.TIMESTAMP_LTZ
            return DataType(kind, (_DIGITS[arrow.unit],))
        if pa.types.is_time(arrow):
            return DataType(Kind.TIME, (_DIGITS[arrow.unit],))
        if arrow == pa.date64():
            return DataType(Kind.DATE)
        for kind, plain in _PLAIN_ARROW.items():
            if plain == arrow and kind is not Kind.CHAR:
                return DataType(kind)
        raise InvalidSchema(f"no column type holds the Arrow type {arrow}; cast it first (unsigned integers to bigint)")

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of this column, everywhere."""
        return _arrow_of(self)

    @property
    def unit(self) -> str:
        """The Arrow unit that holds a temporal type's digits."""
        return _UNITS[(self.arguments[0] + 2) // 3]

    @property
    def tick(self) -> int:
        """How many units of a temporal type one step of its last digit is: 10 for ``time(2)``, held in ms."""
        return 10 ** (-self.arguments[0] % 3) if self.kind in _TEMPORAL else 1

    @property
    def is_floating(self) -> bool:
        """Whether equality is not identity (NaN, -0.0), so that it cannot be a key."""
        return self.kind in (Kind.FLOAT, Kind.DOUBLE)

    @property
    def is_hashable(self) -> bool:
        """Whether Spark hashes it as we do, so that both find a row's bucket: no time finer than microseconds."""
        too_fine = self.kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ) and self.arguments[0] > 6
        return not (self.is_floating or too_fine)

    def __str__(self) -> str:
        return f"{self.kind.value}({', '.join(map(str, self.arguments))})" if self.arguments else self.kind.value


def _check_arguments(kind: Kind, arguments: tuple[int, ...]) -> None:
    if len(arguments) != _ARGUMENTS.get(kind, 0):
        raise InvalidSchema(f"{kind.value} takes {_ARGUMENTS.get(kind, 0)} arguments, got {len(arguments)}")
    if kind is Kind.DECIMAL:
        precision, scale = arguments
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise InvalidSchema(f"decimal({precision}, {scale}): precision is 1 to 38 and scale 0 to precision")
    elif kind in _TEMPORAL and not 0 <= arguments[0] <= 9:
        raise InvalidSchema(f"{kind.value}({arguments[0]}): the digits of a second are 0 to 9")
    elif kind in (Kind.CHAR, Kind.BINARY) and not 1 <= arguments[0] <= LENGTH_MAX:
        raise InvalidSchema(f"{kind.value}({arguments[0]}): the length is 1 to {LENGTH_MAX}")


@cache
def _arrow_of(type: DataType) -> pa.DataType:
    """Looked up for every column of every batch, so made once."""
    match type.kind:
        case Kind.DECIMAL:
            return pa.decimal128(*type.arguments)
        case Kind.BINARY:
            return pa.binary(type.arguments[0])
        case Kind.TIME:
            return pa.time32(type.unit) if type.unit in ("s", "ms") else pa.time64(type.unit)
        case Kind.TIMESTAMP:
            return pa.timestamp(type.unit)
        case Kind.TIMESTAMP_LTZ:
            return pa.timestamp(type.unit, "UTC")
        case _:
            return _PLAIN_ARROW[type.kind]
