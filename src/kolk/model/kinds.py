"""The kinds of column types: their names, the arguments they take, and Arrow's form of those that take none."""

from enum import Enum

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
    ARRAY = "array"
    MAP = "map"
    ROW = "row"


KINDS = {kind.value: kind for kind in Kind}
ALIASES = {
    "bool": "boolean",
    "integer": "int",
    "long": "bigint",
    "varbinary": "bytes",
    "text": "string",
    "struct": "row",
}
PLAIN_ARROW = {
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
DEFAULTS: dict[Kind, tuple[int, ...]] = {
    Kind.DECIMAL: (10, 0),
    Kind.CHAR: (1,),
    Kind.BINARY: (1,),
    Kind.TIME: (6,),
    Kind.TIMESTAMP: (6,),
    Kind.TIMESTAMP_LTZ: (6,),
}
"""The arguments that are left out; a kind takes as many as stand here."""

TEMPORAL = (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)
NESTED_FORMS = {Kind.ARRAY: "array<t>", Kind.MAP: "map<k, v>", Kind.ROW: "row<name t, ...>"}

LENGTH_MAX = 65_535
"""The longest ``char(n)`` and ``binary(n)``; longer values belong in ``string`` and ``bytes``."""


def kind_named(name: str) -> Kind | None:
    """The kind of this name, in any case, or of this other name for it."""
    name = name.lower()
    return KINDS.get(ALIASES.get(name, name))


def check_arguments(kind: Kind, arguments: tuple[int, ...]) -> None:
    """Raise InvalidSchema, with the range, if a kind does not take these arguments."""
    wanted = len(DEFAULTS.get(kind, ()))
    if len(arguments) != wanted:
        raise InvalidSchema(f"{kind.value} takes {wanted} arguments, got {len(arguments)}")
    if kind is Kind.DECIMAL:
        precision, scale = arguments
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise InvalidSchema(f"decimal({precision}, {scale}): precision is 1 to 38 and scale 0 to precision")
    elif kind in TEMPORAL and not 0 <= arguments[0] <= 9:
        raise InvalidSchema(f"{kind.value}({arguments[0]}): the digits of a second are 0 to 9")
    elif kind in (Kind.CHAR, Kind.BINARY) and not 1 <= arguments[0] <= LENGTH_MAX:
        raise InvalidSchema(f"{kind.value}({arguments[0]}): the length is 1 to {LENGTH_MAX}")
