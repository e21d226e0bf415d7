"""Column types: what a column may hold, its name in DDL, and its one Arrow type.

A ``DataType`` is a frozen value. The mapping to Arrow is one to one, so that data moves between Kolk, Spark
and pandas without a guess. This module knows nothing of bytes: how a type is laid out on disk is the
business of ``codec``.

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
array<t>           list<t>                       nested: never a key, a bucket key or a version
map<k, v>          map<k, v>                     nested; k as for a primary key, and never null
row<name t, ...>   struct<name: t, ...>          nested
=================  ============================  ==========================================

Within a nested type, ``not null`` may follow a type. Nested types are bounded in depth and in number, so whoever
walks one may recurse.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from kolk.errors import InvalidInput, InvalidSchema
from kolk.model.kinds import (
    DEFAULTS,
    KINDS,
    LENGTH_MAX,
    NESTED_FORMS,
    PLAIN_ARROW,
    TEMPORAL,
    Kind,
    check_arguments,
    kind_named,
)
from kolk.model.names import check_name
from kolk.model.tokens import Reader, Token, TokenKind, name_text

__all__ = ["FIELDS_MAX", "LENGTH_MAX", "NESTING_MAX", "DataType", "Field", "Kind", "is_list", "read_type"]


_UNITS = ("s", "ms", "us", "ns")
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_MEMBERS = {Kind.ARRAY: ("item",), Kind.MAP: ("key", "value")}  # as Arrow calls them
_SCALAR_TEXT = re.compile(r"\s*([a-z_]+)\s*(?:\(\s*([0-9]+)\s*(?:,\s*([0-9]+)\s*)?\))?\s*", re.IGNORECASE)
_SCALAR_TEXT_LENGTH_MAX = 60
"""Bounds the digits as well: ``int`` itself raises on thousands of them."""
_TEXT_LENGTH_MAX = 2**18
"""More than the most fields with the longest names take."""
_SHOWN_LENGTH_MAX = 100

NESTING_MAX = 16
"""How many arrays, maps and rows may stand within each other."""

FIELDS_MAX = 1_000
"""How many items, keys, values and fields a nested type has at most, all levels together."""


@dataclass(frozen=True, slots=True)
class Field:
    """What a nested type is made of: the ``item`` of an array, ``key`` and ``value`` of a map, a field of a row."""

    name: str
    type: "DataType"
    nullable: bool = True

    @property
    def arrow(self) -> pa.Field:
        """The field as Arrow has it."""
        return pa.field(self.name, self.type.arrow, nullable=self.nullable)


@dataclass(frozen=True, slots=True)
class DataType:
    """One column type, such as ``decimal(10, 2)``: a kind and its arguments, or the fields of a nested one."""

    kind: Kind
    arguments: tuple[int, ...] = ()
    fields: tuple[Field, ...] = ()
    depth: int = field(init=False, repr=False, compare=False)
    """How many levels of nesting: 0 for ``int``, 1 for ``array<int>``."""
    size: int = field(init=False, repr=False, compare=False)
    """How many fields there are within, all levels together."""
    arrow: pa.DataType = field(init=False, repr=False, compare=False)
    """The Arrow type of this column, everywhere. Looked up for every column of every batch, so made once."""

    def __post_init__(self) -> None:
        check_arguments(self.kind, self.arguments)
        depth = 1 + max(within.type.depth for within in self.fields) if self.fields else 0
        size = sum(1 + within.type.size for within in self.fields)
        _check_depth(depth)
        _check_size(size)
        _check_fields(self.kind, self.fields)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "arrow", _arrow_of(self))

    @staticmethod
    def parse(text: str) -> "DataType":
        """Read a type as DDL writes it; arguments left out take their defaults."""
        if "<" not in text:
            return _scalar(text)
        if len(text) > _TEXT_LENGTH_MAX:
            raise InvalidSchema(
                f"the text of a column type has {len(text)} characters; at most {_TEXT_LENGTH_MAX} are read"
            )
        try:
            reader = Reader(text)
            type = read_type(reader)
            if reader.token.kind is not TokenKind.END:
                reader.fail("the end of the type")
        except InvalidInput as error:
            raise InvalidSchema(f"the column type cannot be read: {error}") from None
        return type

    @staticmethod
    def from_arrow(arrow: pa.DataType) -> "DataType":
        """The type whose Arrow form holds every value of ``arrow``; an error where there is none."""
        return _from_arrow(arrow, 0)

    @property
    def unit(self) -> str:
        """The Arrow unit that holds a temporal type's digits."""
        return _UNITS[(self.arguments[0] + 2) // 3]

    @property
    def tick(self) -> int:
        """How many units of a temporal type one step of its last digit is: 10 for ``time(2)``, held in ms."""
        return 10 ** (-self.arguments[0] % 3) if self.kind in TEMPORAL else 1

    @property
    def is_nested(self) -> bool:
        """Whether a value holds other values."""
        return bool(self.fields)

    @property
    def is_floating(self) -> bool:
        """Whether equality is not identity (NaN, -0.0), so that it cannot be a key."""
        return self.kind in (Kind.FLOAT, Kind.DOUBLE)

    @property
    def is_hashable(self) -> bool:
        """Whether Spark hashes it as we do, so that both find a row's bucket: no time finer than microseconds."""
        too_fine = self.kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ) and self.arguments[0] > 6
        return not (self.is_floating or too_fine or self.is_nested)

    @property
    def ddl(self) -> str:
        """The type in the capitals that DDL is written in; the names of fields keep their case."""
        return _text(self, str.upper)

    @property
    def shown(self) -> str:
        """The type as an error shows it: not at length."""
        text = str(self)
        return text if len(text) <= _SHOWN_LENGTH_MAX else text[:_SHOWN_LENGTH_MAX] + "..."

    def __str__(self) -> str:
        return _text(self, str.lower)


def _text(type: DataType, cased: Callable[[str], str]) -> str:
    if not type.fields:
        arguments = f"({', '.join(map(str, type.arguments))})" if type.arguments else ""
        return cased(type.kind.value) + arguments
    members: list[str] = []
    for within in type.fields:
        name = f"{name_text(within.name)} " if type.kind is Kind.ROW else ""
        required = "" if within.nullable or (within.name == "key" and type.kind is Kind.MAP) else cased(" not null")
        members.append(f"{name}{_text(within.type, cased)}{required}")
    return f"{cased(type.kind.value)}<{', '.join(members)}>"


# --- checks


def _check_depth(depth: int) -> None:
    if depth > NESTING_MAX:
        raise InvalidSchema(f"arrays, maps and rows stand at most {NESTING_MAX} deep within each other")


def _check_size(size: int) -> None:
    if size > FIELDS_MAX:
        raise InvalidSchema(f"a nested type has at most {FIELDS_MAX} fields, all levels together")


def _check_fields(kind: Kind, fields: tuple[Field, ...]) -> None:
    names = tuple(within.name for within in fields)
    if kind not in NESTED_FORMS:
        if fields:
            raise InvalidSchema(f"{kind.value} has no fields")
        return
    if not fields or names != _MEMBERS.get(kind, names):
        raise InvalidSchema(f"{kind.value} is written with the types it is made of: {NESTED_FORMS[kind]}")
    if kind is Kind.MAP:
        key = fields[0]
        if key.nullable:
            raise InvalidSchema("the keys of a map are never null")
        if key.type.is_nested:
            raise InvalidSchema(f"{key.type.shown} cannot be the key of a map; use a scalar type")
        if key.type.is_floating:
            raise InvalidSchema(
                f"{key.type} cannot be the key of a map: NaN and -0.0 have no one identity; use a decimal or a bigint"
            )
    if kind is Kind.ROW:
        for name in names:
            check_name(name, "field")
        if len({name.lower() for name in names}) < len(names):
            lowered = [name.lower() for name in names]
            twice = sorted({name for name in names if lowered.count(name.lower()) > 1})
            raise InvalidSchema(f"the fields of a row must differ in more than case: {', '.join(twice[:10])}")


# --- Arrow


def _arrow_of(type: DataType) -> pa.DataType:
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
        case Kind.ARRAY:
            return pa.list_(type.fields[0].arrow)
        case Kind.MAP:
            return pa.map_(type.fields[0].arrow, type.fields[1].arrow)
        case Kind.ROW:
            return pa.struct([within.arrow for within in type.fields])
        case _:
            return PLAIN_ARROW[type.kind]


def _from_arrow(arrow: pa.DataType, depth: int) -> DataType:
    if pt.is_dictionary(arrow):
        arrow = arrow.value_type
    if is_list(arrow) or pt.is_map(arrow) or pt.is_struct(arrow):
        _check_depth(depth + 1)
        return _nested_from_arrow(arrow, depth + 1)
    if pt.is_large_string(arrow) or pt.is_string_view(arrow):
        arrow = pa.string()
    if pt.is_large_binary(arrow) or pt.is_binary_view(arrow):
        arrow = pa.binary()
    if pt.is_decimal32(arrow) or pt.is_decimal64(arrow) or pt.is_decimal128(arrow):
        return DataType(Kind.DECIMAL, (arrow.precision, arrow.scale))
    if pt.is_fixed_size_binary(arrow):
        return DataType(Kind.BINARY, (arrow.byte_width,))
    if pt.is_timestamp(arrow):
        kind = Kind.TIMESTAMP if arrow.tz is None else Kind.TIMESTAMP_LTZ
        return DataType(kind, (_DIGITS[arrow.unit],))
    if pt.is_time(arrow):
        return DataType(Kind.TIME, (_DIGITS[arrow.unit],))
    if arrow == pa.date64():
        return DataType(Kind.DATE)
    for kind, plain in PLAIN_ARROW.items():
        if plain == arrow and kind is not Kind.CHAR:
            return DataType(kind)
    raise InvalidSchema(f"no column type holds the Arrow type {arrow}; cast it first (unsigned integers to bigint)")


def is_list(arrow: pa.DataType) -> bool:
    """Whether an Arrow type is one of the five that hold lists."""
    return (
        pt.is_list(arrow)
        or pt.is_large_list(arrow)
        or pt.is_fixed_size_list(arrow)
        or pt.is_list_view(arrow)
        or pt.is_large_list_view(arrow)
    )


def _nested_from_arrow(arrow: Any, depth: int) -> DataType:
    if pt.is_struct(arrow):
        _check_size(arrow.num_fields)
        fields: list[Field] = []
        size = 0
        for place in range(arrow.num_fields):
            within = arrow.field(place)
            fields.append(Field(within.name, _from_arrow(within.type, depth), within.nullable))
            size += 1 + fields[-1].type.size
            _check_size(size)
        return DataType(Kind.ROW, fields=tuple(fields))
    if pt.is_map(arrow):
        key = Field("key", _from_arrow(arrow.key_type, depth), nullable=False)
        value = Field("value", _from_arrow(arrow.item_type, depth), arrow.item_field.nullable)
        return DataType(Kind.MAP, fields=(key, value))
    item = Field("item", _from_arrow(arrow.value_type, depth), arrow.value_field.nullable)
    return DataType(Kind.ARRAY, fields=(item,))


# --- text


def _scalar(text: str) -> DataType:
    match = _SCALAR_TEXT.fullmatch(text) if len(text) <= _SCALAR_TEXT_LENGTH_MAX else None
    kind = kind_named(match.group(1)) if match else None
    if match is None or kind is None:
        shown = text[:_SCALAR_TEXT_LENGTH_MAX]
        raise InvalidSchema(f"unknown column type {shown!r}; the types are {', '.join(KINDS)}")
    given = tuple(int(group) for group in match.groups()[1:] if group is not None)
    if kind is Kind.DECIMAL and len(given) == 1:
        given = (*given, 0)
    return DataType(kind, given or DEFAULTS.get(kind, ()))


def read_type(reader: Reader, depth: int = 0) -> DataType:
    """The type that a reader of some text has in front. Recurses no deeper than types may be nested."""
    start = reader.token
    if start.kind is not TokenKind.WORD:
        reader.fail("a column type")
    word = reader.take().text
    kind = kind_named(word)
    if kind not in NESTED_FORMS:
        return reader.checked(start, partial(_scalar, word + _read_arguments(reader)))
    reader.checked(start, partial(_check_depth, depth + 1))
    reader.expect("<")
    fields = tuple(_read_fields(reader, kind, start, depth + 1))
    reader.expect(">")
    return reader.checked(start, partial(DataType, kind, (), fields))


def _read_arguments(reader: Reader) -> str:
    if not reader.accept("("):
        return ""
    arguments = [reader.number("a number")]
    if reader.accept(","):
        arguments.append(reader.number("a number"))
    reader.expect(")")
    return f"({', '.join(arguments)})"


def _read_fields(reader: Reader, kind: Kind, start: Token, depth: int) -> list[Field]:
    if kind is Kind.ARRAY:
        return [_read_field(reader, "item", depth)]
    if kind is Kind.MAP:
        key = replace(_read_field(reader, "key", depth), nullable=False)
        reader.expect(",")
        return [key, _read_field(reader, "value", depth)]
    fields: list[Field] = []
    size = 0
    while not fields or reader.accept(","):
        token = reader.name("a field name")
        name = reader.checked(token, partial(check_name, token.text, "field"))
        reader.accept(":")  # as Spark writes it
        fields.append(_read_field(reader, name, depth))
        size += 1 + fields[-1].type.size
        reader.checked(start, partial(_check_size, size))  # so that too long a text is not read to its end
    return fields


def _read_field(reader: Reader, name: str, depth: int) -> Field:
    type = read_type(reader, depth)
    return Field(name, type, nullable=not reader.accept_all("NOT", "NULL"))
