"""DDL: the text of one statement becomes a frozen value, and a table becomes the text that makes it again.

It exists so that people and Spark jobs can say in SQL what the Python API says in calls::

    CREATE TABLE [IF NOT EXISTS] [database.]table (
        column TYPE [FUNCTION[(parameter = value, ...)]] [NOT NULL] [DEFAULT literal] [PRIMARY KEY [NOT ENFORCED]], ...
        [PRIMARY KEY (column, ...) [NOT ENFORCED]]
    ) [PARTITIONED BY (column, ...)] [DISTRIBUTED [BY (column, ...)] INTO n BUCKETS]
      [WITH ('option' = 'value', ...)]
    ALTER TABLE table ...                                     see kolk.model.alter_ddl
    DROP TABLE [IF EXISTS] table
    TRUNCATE TABLE table
    SHOW TABLES
    SHOW PARTITIONS table
    DESCRIBE table | DESC table

Keywords are read in any case; names are kept as written, and need `backticks` or "double quotes" if they are
not a plain word. This module runs nothing and guesses nothing: what it would have to drop (comments on columns) it
refuses, pointing at the place. It reads one statement of at most 1 MiB, recurses no deeper than types may be nested,
and whatever the text, it raises nothing but ``InvalidInput``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from kolk.errors import TooLarge
from kolk.model.alter_ddl import Alteration, read_alteration
from kolk.model.clauses import (
    LIST_LENGTH_MAX,
    column_definition,
    column_name,
    column_text,
    names_text,
    options,
    quoted_name,
    refuse_comment,
    table_name,
)
from kolk.model.names import TableName
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.model.tokens import Reader, Token, TokenKind

STATEMENT_LENGTH_MAX = 1_048_576
"""In characters. A statement with the most and longest columns a table may have is less than half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """``CREATE TABLE``. ``buckets`` and ``bucket_key`` are None where the text leaves them out."""

    name: TableName
    schema: Schema
    buckets: int | None
    bucket_key: tuple[str, ...] | None
    options: Mapping[str, str]
    if_not_exists: bool
    partition_by: tuple[str, ...] = ()

    @property
    def spec(self) -> TableSpec:
        """The table to be made; here the options and the bucket key are checked against the schema."""
        return TableSpec.make(
            str(self.name),
            self.schema,
            buckets=self.buckets,
            bucket_key=self.bucket_key,
            partition_by=self.partition_by,
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
class ShowPartitions:
    """``SHOW PARTITIONS``."""

    name: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTable:
    """``DESCRIBE``, or ``DESC`` for short."""

    name: TableName


Statement = CreateTable | Alteration | DropTable | TruncateTable | ShowTables | ShowPartitions | DescribeTable


def parse(text: str) -> Statement:
    """Read one statement; the error for one that cannot be read shows where and what was expected."""
    if len(text) > STATEMENT_LENGTH_MAX:
        raise TooLarge(f"the statement has {len(text)} characters; at most {STATEMENT_LENGTH_MAX} are read")
    reader = Reader(text)
    statement = _statement(reader)
    reader.accept(";")
    if reader.token.kind is not TokenKind.END:
        reader.fail("the end of the text (one statement is read at a time)")
    return statement


def to_ddl(info: TableInfo) -> str:
    """The statement that makes a table like this one: its ``spec`` is the same, but for the schema's ids.

    Options are written out even where they are the default, so that the text means the same to a later Kolk.
    """
    spec = info.spec
    elements = [column_text(column) for column in spec.schema.columns]
    if spec.schema.primary_key:
        elements.append(f"PRIMARY KEY ({names_text(spec.schema.primary_key)})")
    name = ".".join(map(quoted_name, str(spec.name).split(".")))
    key = f" BY ({names_text(spec.bucket_key)})" if spec.bucket_key else ""
    parts = f" PARTITIONED BY ({names_text(spec.partition_by)})" if spec.partition_by else ""
    settings = [f"{_string_text(option)} = {_string_text(value)}" for option, value in spec.option_text.items()]
    return (
        f"CREATE TABLE {name} {_block_text(elements)}{parts} DISTRIBUTED{key} INTO {spec.buckets} BUCKETS"
        f"{f' WITH {_block_text(settings)}' if settings else ''}"
    )


# --- the grammar ------------------------------------------------------------------------------------


def _statement(reader: Reader) -> Statement:
    if reader.accept("CREATE"):
        reader.expect("TABLE")
        return _create_table(reader)
    if reader.accept("ALTER"):
        reader.expect("TABLE")
        return read_alteration(reader, table_name(reader))
    if reader.accept("DROP"):
        reader.expect("TABLE")
        if_exists = reader.accept_all("IF", "EXISTS")
        return DropTable(name=table_name(reader), if_exists=if_exists)
    if reader.accept("TRUNCATE"):
        reader.expect("TABLE")
        return TruncateTable(name=table_name(reader))
    if reader.accept("SHOW"):
        if reader.accept("PARTITIONS"):
            return ShowPartitions(name=table_name(reader))
        reader.expect("TABLES")
        return ShowTables()
    if reader.accept("DESCRIBE") or reader.accept("DESC"):
        return DescribeTable(name=table_name(reader))
    reader.fail()


def _create_table(reader: Reader) -> CreateTable:
    if_not_exists = reader.accept_all("IF", "NOT", "EXISTS")
    name = table_name(reader)
    schema = _schema(reader)
    refuse_comment(reader, "table")
    partition_by: tuple[str, ...] = ()
    if reader.accept("PARTITIONED"):
        reader.expect("BY")
        partition_by = tuple(reader.listed(partial(column_name, reader), LIST_LENGTH_MAX))
    buckets, bucket_key = None, None
    if reader.accept("DISTRIBUTED"):
        bucket_key = (
            tuple(reader.listed(partial(column_name, reader), LIST_LENGTH_MAX)) if reader.accept("BY") else None
        )
        reader.expect("INTO")
        buckets = int(reader.number("the number of buckets"))
        reader.expect("BUCKETS")
    settings = options(reader) if reader.accept("WITH") else {}
    return CreateTable(
        name=name,
        schema=schema,
        buckets=buckets,
        bucket_key=bucket_key,
        options=settings,
        if_not_exists=if_not_exists,
        partition_by=partition_by,
    )


@dataclass(frozen=True, slots=True)
class _Element:
    """One item between the parentheses of CREATE TABLE: a column, a primary key, or both."""

    token: Token
    column: Column | None
    key: tuple[str, ...] | None


def _schema(reader: Reader) -> Schema:
    elements = reader.listed(partial(_element, reader), LIST_LENGTH_MAX)
    keyed = [element for element in elements if element.key is not None]
    if len(keyed) > 1:
        reader.refuse(
            keyed[1].token,
            "there are two primary keys; for a key of several columns write one PRIMARY KEY (a, b)",
        )
    columns = (element.column for element in elements if element.column is not None)
    return Schema(columns, keyed[0].key or () if keyed else ())


def _element(reader: Reader) -> _Element:
    start = reader.token
    if reader.accept_all("PRIMARY", "KEY"):
        key = tuple(reader.listed(partial(column_name, reader), LIST_LENGTH_MAX))
        reader.accept_all("NOT", "ENFORCED")
        return _Element(start, None, key)
    column = column_definition(reader)
    key = (column.name,) if reader.accept_all("PRIMARY", "KEY") else None
    if key is not None:
        reader.accept_all("NOT", "ENFORCED")
    refuse_comment(reader, "column")
    return _Element(start, column, key)


# --- text -------------------------------------------------------------------------------------------


def _string_text(text: str) -> str:
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def _block_text(items: list[str]) -> str:
    lines = ",\n  ".join(items)
    return f"(\n  {lines}\n)"
