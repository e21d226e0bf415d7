"""DDL: the laws. A table is read back from its own text, and no text does more than be refused."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidInput
from kolk.model.ddl import (
    CreateTable,
    DescribeTable,
    DropTable,
    ShowTables,
    TruncateTable,
    parse,
    to_ddl,
)
from kolk.model.ids import TableId
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.model.types import DataType, Kind
from kolk.testing.strategies import data_types as any_types

NULLABLE = Schema([Column("page", "string"), Column("pv", "bigint")])


names = st.one_of(
    st.from_regex(r"(?!__)[A-Za-z0-9_][A-Za-z0-9_-]{0,12}", fullmatch=True),
    st.sampled_from(
        [
            "if",
            "IF",
            "primary",
            "Primary",
            "key",
            "not",
            "exists",
            "table",
            "with",
            "sum",
            "comment",
            "default",
        ]
    ),
)
data_types = st.one_of(
    st.sampled_from([DataType(kind) for kind in (Kind.BOOLEAN, Kind.BIGINT, Kind.STRING, Kind.BYTES, Kind.DATE)]),
    st.sampled_from([DataType.parse(text) for text in ("double", "float", "decimal(38, 0)", "decimal(5, 5)")]),
    st.builds(
        lambda kind, digits: DataType(kind, (digits,)),
        st.sampled_from((Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)),
        st.integers(0, 9),
    ),
    st.builds(
        lambda kind, length: DataType(kind, (length,)),
        st.sampled_from((Kind.CHAR, Kind.BINARY)),
        st.integers(1, 65_535),
    ),
    any_types().filter(lambda type: type.is_nested),
)


@st.composite
def specs(draw: st.DrawFn) -> TableSpec:
    """Any table: of rows or a log, with any of the options that go with its columns."""
    columns = draw(
        st.lists(
            st.builds(Column, names, data_types, st.booleans()),
            min_size=1,
            max_size=8,
            unique_by=lambda column: column.name.lower(),
        )
    )
    exact = [column.name for column in columns if not column.type.is_floating and not column.type.is_nested]
    key = draw(st.lists(st.sampled_from(exact), unique=True)) if exact else []
    among = key or exact
    bucket_key = draw(st.none() | st.lists(st.sampled_from(among), min_size=1, unique=True)) if among else None
    options: dict[str, str] = {}
    if key:
        versions = [
            column.name
            for column in columns
            if column.type.kind in (Kind.BIGINT, Kind.TIMESTAMP) and column.name not in key
        ]
        engine = draw(st.sampled_from(["default", "first_row", *(["versioned"] if versions else [])]))
        options["table.merge-engine"] = engine
        if engine == "versioned":
            options["table.merge-engine.versioned.ver-column"] = draw(st.sampled_from(versions))
        behaviors = ["ignore", "disable", *(["allow"] if engine == "default" else [])]
        options["table.delete.behavior"] = draw(st.sampled_from(behaviors))
        options["table.changelog.image"] = draw(st.sampled_from(["full", "wal"]))
    name = draw(st.builds("{}.{}".format, names, names) | names)
    schema = Schema(columns, key)
    hashed = bucket_key or key
    most = 4096 if all(schema.column(column).type.is_hashable for column in hashed) else 1
    return TableSpec.make(name, schema, buckets=draw(st.integers(1, most)), bucket_key=bucket_key, options=options)


@given(specs())
def test_a_table_is_read_back_from_its_own_ddl(spec):
    text = to_ddl(TableInfo(id=TableId(1), spec=spec, created_ms=0))

    assert parse(text).spec == spec


@given(specs())
def test_the_ddl_of_a_table_leaves_nothing_to_defaults_that_may_change(spec):
    statement = parse(to_ddl(TableInfo(id=TableId(1), spec=spec, created_ms=0)))

    assert statement.buckets == spec.buckets
    assert statement.bucket_key == (spec.bucket_key or None)
    assert statement.options == (spec.options.text if spec.schema.primary_key else {})


def test_the_ddl_of_a_table_reads_well():
    schema = Schema(
        [Column("page", "string"), Column("web-views", "bigint"), Column("price", "decimal(10, 2)")], "page"
    )
    spec = TableSpec.make("web.if", schema, buckets=4)

    text = to_ddl(TableInfo(id=TableId(1), spec=spec, created_ms=0))

    assert text == (
        "CREATE TABLE web.`if` (\n"
        "  page STRING NOT NULL,\n"
        "  `web-views` BIGINT,\n"
        "  price DECIMAL(10, 2),\n"
        "  PRIMARY KEY (page)\n"
        ") DISTRIBUTED BY (page) INTO 4 BUCKETS WITH (\n"
        "  'table.merge-engine' = 'default',\n"
        "  'table.delete.behavior' = 'allow',\n"
        "  'table.changelog.image' = 'full'\n"
        ")"
    )


def test_the_ddl_of_a_log_table_has_no_options():
    spec = TableSpec.make("events", NULLABLE, buckets=2)

    text = to_ddl(TableInfo(id=TableId(1), spec=spec, created_ms=0))

    assert text == "CREATE TABLE events (\n  page STRING,\n  pv BIGINT\n) DISTRIBUTED INTO 2 BUCKETS"


WORDS = """
    CREATE TABLE DROP TRUNCATE SHOW TABLES DESCRIBE DESC IF NOT EXISTS NULL PRIMARY KEY ENFORCED COMMENT SUM
    PARTITIONED DISTRIBUTED BY INTO BUCKETS WITH INT STRING DECIMAL DOUBLE TIMESTAMP a b c ( ) , . ; = - --
    ARRAY MAP ROW < > :
    /* */ ' '' 'bucket.num' '4' ` `a` `` " "b" 0 4 99999999999 \u0661 \u00e9 \x00 \ud800 (a) (10,2)
"""
words = st.sampled_from(WORDS.split())
soup = st.lists(words, max_size=40).map(" ".join)
# Statements that begin well, and go wrong somewhere.
almost = st.builds(
    lambda spec, position, junk, length: (
        (text := to_ddl(TableInfo(id=TableId(1), spec=spec, created_ms=0)))[: position % len(text)]
        + junk
        + text[position % len(text) + length :]
    ),
    specs(),
    st.integers(0, 10_000),
    st.text(max_size=3) | words,
    st.integers(0, 5),
)


@given(st.one_of(st.text(), soup, soup.map("CREATE TABLE t ( a INT".__add__), almost))
def test_any_text_is_a_statement_or_invalid_input_and_nothing_else(text):
    with contextlib.suppress(InvalidInput):
        statement = parse(text)

        assert isinstance(statement, CreateTable | DropTable | TruncateTable | ShowTables | DescribeTable)


@given(almost)
def test_what_is_read_as_a_table_is_a_spec_or_invalid_input_and_nothing_else(text):
    with contextlib.suppress(InvalidInput):
        spec = parse(text).spec

        assert parse(to_ddl(TableInfo(id=TableId(1), spec=spec, created_ms=0))).spec == spec
