"""DDL: the text of one statement becomes a frozen value, and a table becomes the text that makes it again.

It exists so that people and Spark jobs can say in SQL what the Python API says in calls::

    CREATE TABLE [IF NOT EXISTS] [database.]table (
        column TYPE [NOT NULL] [PRIMARY KEY [NOT ENFORCED]], ...
        [PRIMARY KEY (column, ...) [NOT ENFORCED]]
    ) [DISTRIBUTED [BY (column, ...)] INTO n BUCKETS] [WITH ('option' = 'value', ...)]
    DROP TABLE [IF EXISTS] table
    TRUNCATE TABLE table
    SHOW TABLES
    DESCRIBE table | DESC table

Keywords are read in any case; names are kept as written, and need `backticks` or "double quotes" if they are
not a plain word. This module runs nothing and guesses nothing: what it would have to drop (comments on
columns, partitions, aggregate functions, for now) it refuses, pointing at the place. It reads one statement
of at most 1 MiB, never recurses, and whatever the text, it raises nothing but ``InvalidInput``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import NoReturn, TypeVar

from kolk.errors import InvalidInput, InvalidStatement, TooLarge
from kolk.model.names import TableName, check_name
from kolk.model.schema import COLUMNS_MAX, Column, Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.model.types import DataType

STATEMENT_LENGTH_MAX = 1_048_576
"""In characters. A statement with the most and longest columns a table may have is less than half of it."""

_LIST_LENGTH_MAX = COLUMNS_MAX + 1
"""All the columns a table may have, and its primary key."""

_NUMBER_DIGITS_MAX = 9
_AGGREGATES = re.compile(
    "sum|product|max|min|(?:last|first)_value(?:_ignore_nulls)?|listagg|string_agg|bool_(?:and|or)|rbm(?:32|64)",
    re.IGNORECASE,
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """``CREATE TABLE``. ``buckets`` and ``bucket_key`` are None where the text leaves them out."""

    name: TableName
    schema: Schema
    buckets: int | None
    bucket_key: tuple[str, ...] | None
    options: Mapping[str, str]
    if_not_exists: bool

    @property
    def spec(self) -> TableSpec:
        """The table to be made; here the options and the bucket key are checked against the schema."""
        return TableSpec.make(
            str(self.name),
            self.schema,
            buckets=self.buckets,
            bucket_key=self.bucket_key,
            options=self.options,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """``DROP TABLE``."""

    name: TableName
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTable:
    """``TRUNCATE TABLE``."""

    name: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowTables:
    """``SHOW TABLES``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTable:
    """``DESCRIBE``, or ``DESC`` for short."""

    name: TableName


Statement = CreateTable | DropTable | TruncateTable | ShowTables | DescribeTable


def parse(text: str) -> Statement:
    """Read one statement; the error for one that cannot be read shows where and what was expected."""
    if len(text) > STATEMENT_LENGTH_MAX:
        raise TooLarge(f"the statement has {len(text)} characters; at most {STATEMENT_LENGTH_MAX} are read")
    reader = _Reader(text)
    statement = _statement(reader)
    reader.accept(";")
    if reader.token.kind is not _Kind.END:
        reader.fail("the end of the text (one statement is read at a time)")
    return statement


def to_ddl(info: TableInfo) -> str:
    """The statement that makes a table like this one: its ``spec`` is the same, but for the schema's ids.

    Options are written out even where they are the default, so that the text means the same to a later Kolk.
    """
    spec = info.spec
    elements = [_column_text(column) for column in spec.schema.columns]
    if spec.schema.primary_key:
        elements.append(f"PRIMARY KEY ({_names_text(spec.schema.primary_key)})")
    name = ".".join(map(_name_text, str(spec.name).split(".")))
    key = f" BY ({_names_text(spec.bucket_key)})" if spec.bucket_key else ""
    # A log table has no options to choose, and refuses to be given any.
    options = {} if info.is_log else spec.options.text
    settings = [f"{_string_text(option)} = {_string_text(value)}" for option, value in options.items()]
    return (
        f"CREATE TABLE {name} {_block_text(elements)} DISTRIBUTED{key} INTO {spec.buckets} BUCKETS"
        f"{f' WITH {_block_text(settings)}' if settings else ''}"
    )


# --- the grammar ------------------------------------------------------------------------------------


def _statement(reader: "_Reader") -> Statement:
    if reader.accept("CREATE"):
        reader.expect("TABLE")
        return _create_table(reader)
    if reader.accept("DROP"):
        reader.expect("TABLE")
        if_exists = reader.accept_all("IF", "EXISTS")
        return DropTable(name=_table_name(reader), if_exists=if_exists)
    if reader.accept("TRUNCATE"):
        reader.expect("TABLE")
        return TruncateTable(name=_table_name(reader))
    if reader.accept("SHOW"):
        reader.expect("TABLES")
        return ShowTables()
    if reader.accept("DESCRIBE") or reader.accept("DESC"):
        return DescribeTable(name=_table_name(reader))
    reader.fail()


def _create_table(reader: "_Reader") -> CreateTable:
    if_not_exists = reader.accept_all("IF", "NOT", "EXISTS")
    name = _table_name(reader)
    schema = _schema(reader)
    if reader.at("COMMENT"):
        reader.refuse(reader.token, "table comments are not kept; leave COMMENT out, or write it as -- text")
    if reader.at("PARTITIONED"):
        reader.refuse(reader.token, "partitions are not available yet; leave PARTITIONED BY out")
    buckets, bucket_key = None, None
    if reader.accept("DISTRIBUTED"):
        bucket_key = tuple(reader.listed(partial(_column_name, reader))) if reader.accept("BY") else None
        reader.expect("INTO")
        buckets = int(reader.number("the number of buckets"))
        reader.expect("BUCKETS")
    options = _options(reader) if reader.accept("WITH") else {}
    return CreateTable(
        name=name,
        schema=schema,
        buckets=buckets,
        bucket_key=bucket_key,
        options=options,
        if_not_exists=if_not_exists,
    )


def _table_name(reader: "_Reader") -> TableName:
    first = reader.name("a table name")
    if not reader.accept("."):
        return TableName.parse(reader.checked(first, partial(check_name, what="table"), first.text))
    second = reader.name("a table name")
    database = reader.checked(first, partial(check_name, what="database"), first.text)
    table = reader.checked(second, partial(check_name, what="table"), second.text)
    return TableName.parse(f"{database}.{table}")


def _column_name(reader: "_Reader") -> str:
    token = reader.name("a column name")
    return reader.checked(token, partial(check_name, what="column"), token.text)


@dataclass(frozen=True, slots=True)
class _Element:
    """One item between the parentheses of CREATE TABLE: a column, a primary key, or both."""

    token: "_Token"
    column: Column | None
    key: tuple[str, ...] | None


def _schema(reader: "_Reader") -> Schema:
    elements = reader.listed(partial(_element, reader))
    keyed = [element for element in elements if element.key is not None]
    if len(keyed) > 1:
        reader.refuse(
            keyed[1].token,
            "there are two primary keys; for a key of several columns write one PRIMARY KEY (a, b)",
        )
    columns = (element.column for element in elements if element.column is not None)
    return Schema(columns, keyed[0].key or () if keyed else ())


def _element(reader: "_Reader") -> _Element:
    start = reader.token
    if reader.accept_all("PRIMARY", "KEY"):
        key = tuple(reader.listed(partial(_column_name, reader)))
        reader.accept_all("NOT", "ENFORCED")
        return _Element(start, None, key)
    name = _column_name(reader)
    data_type = _data_type(reader)
    _refuse_aggregate(reader)
    required = reader.accept_all("NOT", "NULL")
    _refuse_aggregate(reader)
    key = (name,) if reader.accept_all("PRIMARY", "KEY") else None
    if key is not None:
        reader.accept_all("NOT", "ENFORCED")
    if reader.at("COMMENT"):
        reader.refuse(reader.token, "column comments are not kept; leave COMMENT out, or write it as -- text")
    return _Element(start, Column(name, data_type, not required), key)


def _data_type(reader: "_Reader") -> DataType:
    start = reader.token
    if start.kind is not _Kind.WORD:
        reader.fail("a column type")
    text = reader.take().text
    if reader.accept("("):
        arguments = [reader.number("a number")]
        if reader.accept(","):
            arguments.append(reader.number("a number"))
        reader.expect(")")
        text = f"{text}({', '.join(arguments)})"
    return reader.checked(start, DataType.parse, text)


def _refuse_aggregate(reader: "_Reader") -> None:
    if reader.token.kind is _Kind.WORD and _AGGREGATES.fullmatch(reader.token.text):
        reader.refuse(
            reader.token,
            f"{reader.token.text}: the aggregation merge engine is not available in this version;"
            " leave the aggregate function out",
        )


def _options(reader: "_Reader") -> dict[str, str]:
    options: dict[str, str] = {}
    for token, value in reader.listed(partial(_option, reader)):
        if token.text in options:
            reader.refuse(token, f"the option {_shown(token.text)} is given twice")
        options[token.text] = value
    return options


def _option(reader: "_Reader") -> "tuple[_Token, str]":
    key = reader.string("an option name in single quotes")
    reader.expect("=")
    return key, reader.string("a value in single quotes").text


# --- tokens -----------------------------------------------------------------------------------------


class _Kind(Enum):
    """What a token is. The values name the groups of ``_TOKEN``."""

    WORD = "word"
    BACKTICKED = "backticked"
    QUOTED = "quoted"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


# One character or pair at a time, and no quote after the closing one: a text without end is tried once, not in
# every way. (Possessive quantifiers would say it better, but Python 3.11's first releases get them wrong.)
_GAP = re.compile(r"\s+|--[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>[0-9]+)"
    r"|'(?P<string>(?:[^']|'')*)'(?!')"
    r"|`(?P<backticked>(?:[^`]|``)*)`(?!`)"
    r'|"(?P<quoted>(?:[^"]|"")*)"(?!")'
    r"|(?P<symbol>.)",
    re.DOTALL,
)
_QUOTES = {_Kind.STRING: "'", _Kind.BACKTICKED: "`", _Kind.QUOTED: '"'}
_UNCLOSED = {"'": "string", "`": "name", '"': "name"}


@dataclass(frozen=True, slots=True)
class _Token:
    """A piece of the text: ``text`` is what it means (unquoted), ``start`` and ``end`` where it stands."""

    kind: _Kind
    text: str
    start: int
    end: int


def _token_after(text: str, position: int) -> _Token:
    """The first token at or after ``position``; at the end of the text, an END token."""
    start = position
    while gap := _GAP.match(text, start):
        start = gap.end()
    match = _TOKEN.match(text, start)
    if match is None:
        # An error at the end points behind the last thing written, not at the empty line after it.
        return _Token(_Kind.END, "", len(text.rstrip()), len(text))
    kind = _Kind(match.lastgroup)
    meaning = match[kind.value]
    if quote := _QUOTES.get(kind):
        meaning = meaning.replace(quote * 2, quote)
    if kind is _Kind.SYMBOL and meaning in _UNCLOSED:
        raise InvalidStatement(_pointed(text, start, f"this {_UNCLOSED[meaning]} has no closing {meaning}"))
    if text.startswith("/*", start):
        raise InvalidStatement(_pointed(text, start, "this comment has no closing */"))
    return _Token(kind, meaning, start, match.end())


class _Reader:
    """Reads the tokens of one text from left to right. Confined to one call of ``parse``.

    It remembers what it was asked for in vain since the last token it took: that is what an error says was
    expected.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._wanted: list[str] = []
        self.token = _token_after(text, 0)

    def take(self) -> _Token:
        token, self.token = self.token, _token_after(self._text, self.token.end)
        self._wanted = []
        return token

    def at(self, lexeme: str) -> bool:
        if self.token.kind is _Kind.WORD:
            return self.token.text.upper() == lexeme
        return self.token.kind is _Kind.SYMBOL and self.token.text == lexeme

    def accept(self, lexeme: str) -> bool:
        if self.at(lexeme):
            self.take()
            return True
        self._wanted.append(lexeme if lexeme.isalpha() else repr(lexeme))
        return False

    def accept_all(self, first: str, *others: str) -> bool:
        """Take a phrase: after its first word, the others must follow."""
        if not self.accept(first):
            return False
        for lexeme in others:
            self.expect(lexeme)
        return True

    def expect(self, lexeme: str) -> None:
        if not self.accept(lexeme):
            self.fail()

    def name(self, what: str) -> _Token:
        return self._take_one_of((_Kind.WORD, _Kind.BACKTICKED, _Kind.QUOTED), what)

    def string(self, what: str) -> _Token:
        return self._take_one_of((_Kind.STRING,), what)

    def number(self, what: str) -> str:
        if len(self.token.text) > _NUMBER_DIGITS_MAX:
            self.fail(f"{what} of at most {_NUMBER_DIGITS_MAX} digits")
        return self._take_one_of((_Kind.NUMBER,), what).text

    def listed(self, read: Callable[[], _T]) -> list[_T]:
        """``( item, item )``: at least one, and a bounded number."""
        self.expect("(")
        items = [read()]
        while self.accept(","):
            if len(items) >= _LIST_LENGTH_MAX:
                self.refuse(self.token, f"a list has at most {_LIST_LENGTH_MAX} items")
            items.append(read())
        self.expect(")")
        return items

    def checked(self, token: _Token, check: Callable[[str], _T], text: str) -> _T:
        """Let the model check ``text``; its error then also says where it stands."""
        try:
            return check(text)
        except InvalidInput as error:
            raise type(error)(_pointed(self._text, token.start, str(error))) from None

    def fail(self, *expected: str) -> NoReturn:
        found = "the end of the text" if self.token.kind is _Kind.END else _shown(self.token.text)
        wanted = [*self._wanted, *expected]
        choice = " or ".join(filter(None, [", ".join(wanted[:-1]), wanted[-1]]))
        before = self._text[max(self.token.start - 1, 0) : self.token.start]
        in_a_name = self.at("-") and before.isalnum()
        hint = "; a name with a - stands in `backticks`" if in_a_name else ""
        self.refuse(self.token, f"found {found}, expected {choice}{hint}")

    def refuse(self, token: _Token, message: str) -> NoReturn:
        raise InvalidStatement(_pointed(self._text, token.start, message))

    def _take_one_of(self, kinds: tuple[_Kind, ...], what: str) -> _Token:
        if self.token.kind not in kinds:
            self.fail(what)
        return self.take()


# --- text -------------------------------------------------------------------------------------------

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset({"if", "primary"})
"""The words that begin something else where a name may stand."""


def _pointed(text: str, position: int, message: str) -> str:
    """The message with its place in the text, and the line with a caret under it."""
    line_start = text.rfind("\n", 0, position) + 1
    line_end = text.find("\n", position)
    left = max(line_start, position - 60)
    right = min(len(text) if line_end < 0 else line_end, position + 40)
    # Tabs and control characters would move the caret, or the terminal.
    line = "".join(character if character.isprintable() else " " for character in text[left:right])
    place = f"line {text.count(chr(10), 0, position) + 1}, column {position - line_start + 1}"
    return f"{place}: {message}\n  {line}\n  {' ' * (position - left)}^"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else repr(text[:37]) + "..."


def _name_text(name: str) -> str:
    plain = _PLAIN_NAME.fullmatch(name) and name.lower() not in _RESERVED
    return name if plain else f"`{name}`"


def _names_text(names: tuple[str, ...]) -> str:
    return ", ".join(map(_name_text, names))


def _column_text(column: Column) -> str:
    return f"{_name_text(column.name)} {str(column.type).upper()}{'' if column.nullable else ' NOT NULL'}"


def _string_text(text: str) -> str:
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def _block_text(items: list[str]) -> str:
    lines = ",\n  ".join(items)
    return f"(\n  {lines}\n)"
