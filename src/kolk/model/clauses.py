"""The clauses that several DDL statements share: names, column definitions, literals, options; read and written.

A column is defined in the same words wherever one is: ``name TYPE [FUNCTION[(parameter = value, ...)]]
[NOT NULL] [DEFAULT literal]``. What Kolk would have
to drop it refuses, pointing at the place.
"""

import difflib
from dataclasses import dataclass
from functools import partial

from kolk.errors import UnknownAggregate
from kolk.model.aggregate import canonical, read_aggregate
from kolk.model.defaults import default_literal
from kolk.model.functions import function, is_function
from kolk.model.kinds import Kind
from kolk.model.names import TableName, check_name
from kolk.model.schema import COLUMNS_MAX, Column
from kolk.model.tokens import Reader, Token, TokenKind, name_text, shown
from kolk.model.types import read_type

LIST_LENGTH_MAX = COLUMNS_MAX + 1
"""All the columns a table may have, and its primary key."""

_TYPED = ("DATE", "TIME", "TIMESTAMP")
_RESERVED = frozenset({"if", "primary"})
"""The words that begin something else where a name may stand."""
_KEYWORDS = (
    *("NOT", "NULL", "DEFAULT", "PRIMARY", "KEY", "COMMENT", "FIRST", "AFTER", "PARTITIONED", "DISTRIBUTED", "WITH"),
    *("UNIQUE", "CHECK", "CONSTRAINT", "REFERENCES", "COLLATE", "GENERATED", "AS", "AUTO_INCREMENT", "IDENTITY"),
)
"""What may stand after the type of a column, here or elsewhere in SQL, and is no aggregate function."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as a statement writes it. ``text`` is None for NULL."""

    text: str | None
    is_quoted: bool


def table_name(reader: Reader) -> TableName:
    """``table`` or ``database.table``."""
    first = reader.name("a table name")
    if not reader.accept("."):
        return TableName.parse(reader.checked(first, partial(check_name, first.text, "table")))
    second = reader.name("a table name")
    database = reader.checked(first, partial(check_name, first.text, "database"))
    table = reader.checked(second, partial(check_name, second.text, "table"))
    return TableName.parse(f"{database}.{table}")


def column_name(reader: Reader) -> str:
    """The name of a column."""
    token = reader.name("a column name")
    return reader.checked(token, partial(check_name, token.text, "column"))


def column_definition(reader: Reader) -> Column:
    """``name TYPE [FUNCTION] [NOT NULL] [DEFAULT literal]``, all but the first two in any order."""
    start = reader.token
    name, type = column_name(reader), read_type(reader)
    nullable, agg = True, None
    default: Literal | None = None
    while True:
        clause = reader.token
        if reader.accept_all("NOT", "NULL"):
            if not nullable:
                reader.refuse(clause, "NOT NULL is given twice")
            nullable = False
        elif reader.accept("DEFAULT"):
            if default is not None:
                reader.refuse(clause, "DEFAULT is given twice")
            token, default = reader.token, literal(reader)
            if default.text is not None and not default.is_quoted and type.kind in (Kind.STRING, Kind.CHAR):
                reader.refuse(token, f"the default of a {type} stands in single quotes")
        elif agg is None and _is_aggregate(reader.token):
            agg = str(read_aggregate(reader))
        else:
            break
    if agg is None:
        reader.checked(reader.token, partial(_check_word, reader.token, name))
    text = None if default is None else default.text
    return reader.checked(start, partial(Column, name, type, nullable, default=text, agg=agg))


def refuse_comment(reader: Reader, what: str) -> None:
    """Comments are not kept, so they are not read."""
    if reader.at("COMMENT"):
        reader.refuse(reader.token, f"{what} comments are not kept; leave COMMENT out, or write it as -- text")


def literal(reader: Reader) -> Literal:
    """A number, a text in quotes, TRUE, FALSE or NULL; DATE, TIME and TIMESTAMP may stand before a text."""
    if reader.accept("NULL"):
        return Literal(None, is_quoted=False)
    for word in ("TRUE", "FALSE"):
        if reader.accept(word):
            return Literal(word.lower(), is_quoted=False)
    for word in _TYPED:
        if reader.accept(word):
            return Literal(reader.string("a text in single quotes").text, is_quoted=True)
    if reader.token.kind is TokenKind.STRING:
        return Literal(reader.take().text, is_quoted=True)
    if reader.token.kind is TokenKind.NUMBER or reader.at("-") or reader.at("+"):
        return Literal(_number(reader), is_quoted=False)
    reader.fail("a number", "a text in single quotes")


def options(reader: Reader) -> dict[str, str]:
    """``('option' = 'value', ...)``."""
    found: dict[str, str] = {}
    for token, value in reader.listed(partial(_option, reader), LIST_LENGTH_MAX):
        if token.text in found:
            reader.refuse(token, f"the option {shown(token.text)} is given twice")
        found[token.text] = value
    return found


def _number(reader: Reader) -> str:
    """A number with sign, point and exponent, as it is written: pieces without a gap. What it means, its type says."""
    text, end = "", reader.token.start
    while reader.token.start == end and (
        reader.token.kind in (TokenKind.NUMBER, TokenKind.WORD) or any(map(reader.at, ".+-"))
    ):
        token = reader.take()
        text, end = text + token.text, token.end
    return text.removeprefix("+")


def _option(reader: Reader) -> tuple[Token, str]:
    key = reader.string("an option name in single quotes")
    reader.expect("=")
    return key, reader.string("a value in single quotes").text


def _is_aggregate(token: Token) -> bool:
    return token.kind is TokenKind.WORD and is_function(canonical(token.text))


def _check_word(token: Token, column: str) -> None:
    """Raise UnknownAggregate for a word where a function may stand, if it is nothing else of SQL either: what is almost
    a keyword is left to whoever says which ones are expected."""
    if token.kind is not TokenKind.WORD or difflib.get_close_matches(token.text.upper(), _KEYWORDS, 1, 0.8):
        return
    try:
        function(canonical(token.text))
    except UnknownAggregate as error:
        raise UnknownAggregate(f"the aggregate function of the column {column!r}: {error}") from None


# --- text


def column_text(column: Column) -> str:
    """A column as ``column_definition`` reads it back."""
    required = "" if column.nullable else " NOT NULL"
    default = "" if column.default is None else f" DEFAULT {default_literal(column.default, column.type)}"
    agg = "" if column.agg is None else f" {column.agg.ddl}"
    return f"{quoted_name(column.name)} {column.type.ddl}{agg}{required}{default}"


def quoted_name(name: str) -> str:
    """A name as it must be written where one may stand."""
    return f"`{name}`" if name.lower() in _RESERVED else name_text(name)


def names_text(names: tuple[str, ...]) -> str:
    """Names in a list."""
    return ", ".join(map(quoted_name, names))
