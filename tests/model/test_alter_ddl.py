"""ALTER TABLE as text: every form becomes one value, and what is none is refused at its place."""

import pytest

from kolk.errors import InvalidInput, InvalidSchema, InvalidStatement, UnknownAggregate
from kolk.model.alter_ddl import AddPartition, AlterTable, DropPartition, SetOptions
from kolk.model.ddl import parse
from kolk.model.evolution import AddColumn, DropColumn, DropNotNull, MoveColumn, RenameColumn, WidenColumn
from kolk.model.names import TableName
from kolk.model.schema import Column, Schema

NAME = TableName("web", "pages")
SCHEMA = Schema([Column("page", "string"), Column("pv", "int")], "page")


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("ADD COLUMN x INT", AddColumn(Column("x", "int"))),
        ("ADD COLUMN x INT NOT NULL DEFAULT 0", AddColumn(Column("x", "int", nullable=False, default=0))),
        ("ADD COLUMN x INT DEFAULT 0 NOT NULL FIRST", AddColumn(Column("x", "int", False, default=0), first=True)),
        ("add column x int after `pv`", AddColumn(Column("x", "int"), after="pv")),
        ("ADD COLUMN x INT DEFAULT NULL", AddColumn(Column("x", "int"))),
        ("ADD COLUMN x DOUBLE DEFAULT -1.5e-3", AddColumn(Column("x", "double", default=-0.0015))),
        ("ADD COLUMN x DECIMAL(6, 2) DEFAULT +1.5", AddColumn(Column("x", "decimal(6, 2)", default="1.5"))),
        ("ADD COLUMN x BIGINT DEFAULT 12345678901234", AddColumn(Column("x", "bigint", default=12345678901234))),
        ("ADD COLUMN x BOOLEAN DEFAULT true", AddColumn(Column("x", "boolean", default=True))),
        ("ADD COLUMN x STRING DEFAULT 'it''s'", AddColumn(Column("x", "string", default="it's"))),
        ("ADD COLUMN x DATE DEFAULT DATE '2026-11-15'", AddColumn(Column("x", "date", default="2026-11-15"))),
        ("ADD COLUMN x array<row<a int>> AFTER pv", AddColumn(Column("x", "array<row<a int>>"), after="pv")),
        ("DROP COLUMN pv", DropColumn("pv")),
        ("RENAME COLUMN pv TO `page-views`", RenameColumn("pv", "page-views")),
        ("ALTER COLUMN pv TYPE BIGINT", WidenColumn("pv", "bigint")),
        ("ALTER COLUMN pv SET DATA TYPE DECIMAL(20, 2)", WidenColumn("pv", "decimal(20, 2)")),
        ("ALTER COLUMN pv DROP NOT NULL", DropNotNull("pv")),
        ("ALTER COLUMN pv FIRST", MoveColumn("pv", first=True)),
        ("ALTER COLUMN pv AFTER page", MoveColumn("pv", after="page")),
    ],
)
def test_each_form_is_one_operation(text, operation):
    assert parse(f"ALTER TABLE web.pages {text};") == AlterTable(name=NAME, operations=(operation,))


def test_several_columns_are_added_and_dropped_at_once():
    added = parse("ALTER TABLE web.pages ADD COLUMNS (x INT, y STRING DEFAULT 'z' AFTER x)")
    dropped = parse("ALTER TABLE web.pages DROP COLUMNS (x, y)")

    assert added.operations == (
        AddColumn(Column("x", "int")),
        AddColumn(Column("y", "string", default="z"), after="x"),
    )
    assert dropped.operations == (DropColumn("x"), DropColumn("y"))


def test_what_is_so_already_is_left_out_if_that_is_said():
    add, drop = "ALTER TABLE web.pages ADD COLUMN", "ALTER TABLE web.pages DROP COLUMN"

    assert parse(f"{add} IF NOT EXISTS PV INT").wanted(SCHEMA) == []
    assert parse(f"{add} IF NOT EXISTS x INT").wanted(SCHEMA) == [AddColumn(Column("x", "int"))]
    assert parse(f"{add} pv INT").wanted(SCHEMA) == [AddColumn(Column("pv", "int"))]
    assert parse(f"{drop} IF EXISTS x").wanted(SCHEMA) == []
    assert parse(f"{drop} IF EXISTS pv").wanted(SCHEMA) == [DropColumn("pv")]
    assert parse(f"{drop} x").wanted(SCHEMA) == [DropColumn("x")]


def test_options_and_partitions_are_statements_of_their_own():
    values = {"day": "2026-11-15", "region": "eu", "n": "-7"}
    text = "PARTITION (day = '2026-11-15', region = 'eu', n = -7)"

    assert parse("ALTER TABLE web.pages SET ('table.log.ttl' = '7d')") == SetOptions(
        name=NAME, options={"table.log.ttl": "7d"}
    )
    for words, lenient in (("ADD", False), ("ADD IF NOT EXISTS", True)):
        expected = AddPartition(name=NAME, values=values, if_not_exists=lenient)
        assert parse(f"ALTER TABLE web.pages {words} {text}") == expected
    for words, lenient in (("DROP", False), ("DROP IF EXISTS", True)):
        assert parse(f"ALTER TABLE web.pages {words} {text}") == DropPartition(
            name=NAME, values=values, if_exists=lenient
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected ADD, DROP, RENAME, ALTER or SET"),
        ("ADD x INT", "expected IF, PARTITION, COLUMNS or COLUMN"),
        ("ADD COLUMN x INT DEFAULT now()", "expected NULL, TRUE, FALSE, DATE, TIME, TIMESTAMP, a number or a text"),
        ("ADD COLUMN x STRING DEFAULT 5", "column 51: the default of a string stands in single quotes"),
        ("ADD COLUMN x INT DEFAULT 1 DEFAULT 2", "column 50: DEFAULT is given twice"),
        ("ADD COLUMN x INT DEFAULT NULL NOT NULL DEFAULT 2", "column 62: DEFAULT is given twice"),
        ("ADD COLUMN x INT NOT NULL DEFAULT 1 NOT NULL", "column 59: NOT NULL is given twice"),
        ("ADD COLUMN x INT DEFALT 1", "found 'DEFALT', expected"),
        ("ADD COLUMN x INT COMMENT 'c'", "column comments are not kept"),
        ("ALTER COLUMN x SET NOT NULL", "cannot become NOT NULL"),
        ("ALTER COLUMN x SET DEFAULT 5", "a default stays what it is"),
        ("ALTER COLUMN x DROP DEFAULT", "a default stays what it is"),
        ("RENAME TO y", "a table keeps its name"),
        ("ADD PARTITION (a = 1, a = 2)", "the column a is given twice"),
        ("ADD PARTITION (a = NULL)", "never null"),
        ("SET ('a' = '1', 'a' = '2')", "given twice"),
    ],
)
def test_what_cannot_be_read_is_refused_at_its_place(text, message):
    with pytest.raises(InvalidStatement) as caught:
        parse(f"ALTER TABLE web.pages {text}")

    assert "line 1" in str(caught.value)
    assert message in str(caught.value)


def test_a_word_that_is_no_function_is_told_which_one_was_meant():
    with pytest.raises(UnknownAggregate) as caught:
        parse("ALTER TABLE web.pages ADD COLUMN x INT SUMM")

    assert str(caught.value).startswith(
        "line 1, column 40: the aggregate function of the column 'x': there is no aggregate function 'summ';"
        " did you mean 'sum'?"
    )


@pytest.mark.parametrize("value", ["1.5", "'x'", "TRUE", "99999999999999999999", "1e", "-", "0x1"])
def test_a_default_that_does_not_fit_its_type_is_refused_at_its_place(value):
    with pytest.raises(InvalidInput, match="line 1"):
        parse(f"ALTER TABLE t ADD COLUMN x INT DEFAULT {value}")


def test_a_created_table_has_defaults_too():
    statement = parse("CREATE TABLE t (k INT, a INT NOT NULL DEFAULT 1, b INT DEFAULT 2 NOT NULL, PRIMARY KEY (k))")

    assert [column.default for column in statement.schema.columns] == [None, "1", "2"]
    with pytest.raises(InvalidSchema, match="every row gives its key"):
        parse("CREATE TABLE t (k INT DEFAULT 1 PRIMARY KEY)")
