"""DDL: what is read, what is refused and where the error points, and the way there and back."""

import dataclasses

import pytest

from kolk.errors import InvalidInput, InvalidName, InvalidSchema, InvalidStatement, TooLarge, UnknownAggregate
from kolk.model.ddl import (
    STATEMENT_LENGTH_MAX,
    CreateTable,
    DescribeTable,
    DropTable,
    ShowTables,
    TruncateTable,
    parse,
    to_ddl,
)
from kolk.model.ids import TableId
from kolk.model.names import TableName
from kolk.model.options import MergeEngine
from kolk.model.schema import COLUMNS_MAX, Column, Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.model.types import DataType

PAGES = TableName("web", "pages")
NULLABLE = Schema([Column("page", "string"), Column("pv", "bigint")])
KEYED = Schema([Column("page", "string"), Column("pv", "bigint")], "page")


def refusal(text: str, kind: type[InvalidInput] = InvalidStatement) -> str:
    """What the user is told; the error is exactly of this kind."""
    with pytest.raises(kind) as caught:
        parse(text)
    assert type(caught.value) is kind
    return str(caught.value)


def first_line(text: str, kind: type[InvalidInput] = InvalidStatement) -> str:
    return refusal(text, kind).splitlines()[0]


def column_of(definition: str) -> Column:
    return parse(f"CREATE TABLE t ({definition})").schema.columns[0]


# --- what is read ---


def test_a_table_is_read_with_all_its_clauses():
    statement = parse("""
        CREATE TABLE IF NOT EXISTS web.pages (
            page STRING NOT NULL, -- the path
            pv BIGINT,            /* views,
                                     of all time */
            PRIMARY KEY (page) NOT ENFORCED
        ) DISTRIBUTED BY (page) INTO 4 BUCKETS
        WITH ('table.merge-engine' = 'first_row', 'table.changelog.image' = 'wal');
    """)

    assert statement == CreateTable(
        name=PAGES,
        schema=KEYED,
        buckets=4,
        bucket_key=("page",),
        options={"table.merge-engine": "first_row", "table.changelog.image": "wal"},
        if_not_exists=True,
    )


def test_a_table_is_read_with_no_more_than_a_column():
    statement = parse("create table t(a int)")

    assert statement == CreateTable(
        name=TableName("default", "t"),
        schema=Schema([Column("a", "int")]),
        buckets=None,
        bucket_key=None,
        options={},
        if_not_exists=False,
    )


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE web.pages (page STRING, pv BIGINT, PRIMARY KEY (page))",
        "CREATE TABLE web.pages (PRIMARY KEY (page), page STRING, pv BIGINT)",
        "CREATE TABLE web.pages (page STRING PRIMARY KEY, pv BIGINT)",
        "CREATE TABLE web.pages (page STRING NOT NULL PRIMARY KEY NOT ENFORCED, pv BIGINT)",
        'Create Table `web`.`pages` (`page` String, "pv" BigInt, Primary Key ("page"))',
        "create/**/table\tweb . pages--\n(page\u00a0string,pv bigint,primary key(page))  ;  -- done",
    ],
)
def test_a_primary_key_may_be_written_in_several_ways(text):
    statement = parse(text)

    assert (statement.name, statement.schema) == (PAGES, KEYED)


def test_a_primary_key_keeps_the_order_it_is_written_in():
    statement = parse("CREATE TABLE t (a INT, b INT, c INT, PRIMARY KEY (c, a))")

    assert statement.schema.primary_key == ("c", "a")


def test_buckets_may_be_counted_without_a_key():
    statement = parse("CREATE TABLE t (a INT) DISTRIBUTED INTO 8 BUCKETS")

    assert (statement.buckets, statement.bucket_key) == (8, None)


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("decimal( 10 , 2 )", "decimal(10, 2)"),
        ("DECIMAL(5)", "decimal(5, 0)"),
        ("TIMESTAMP_LTZ(3)", "timestamp_ltz(3)"),
        ("integer", "int"),
        ("char /* wide */ (20)", "char(20)"),
        ("ARRAY < STRING NOT NULL >", "array<string not null>"),
        ("MAP<STRING, ARRAY<ARRAY<INT>>>", "map<string, array<array<int>>>"),
        ("ROW<x DOUBLE, `y-z` DECIMAL(5)>", "row<x double, `y-z` decimal(5, 0)>"),
        ("struct<x: double, if: int /* a keyword */>", "row<x double, if int>"),
    ],
)
def test_types_are_read_as_the_model_reads_them(text, data_type):
    assert column_of(f"x {text}").type == DataType.parse(data_type)


@pytest.mark.parametrize("word", ["date", "time", "key", "comment", "table", "sum", "not", "with", "exists"])
def test_a_keyword_may_be_a_column_name_where_nothing_else_can_stand(word):
    assert column_of(f"{word} INT").name == word


@pytest.mark.parametrize("name", ["primary", "if", "2026-11-15", "web-pages", "0"])
def test_any_name_may_be_quoted(name):
    statement = parse(f'CREATE TABLE "{name}".`{name}` (`{name}` INT, PRIMARY KEY ("{name}"))')

    assert statement.name == TableName(name, name)
    assert statement.schema.primary_key == (name,)


def test_names_keep_their_case():
    statement = parse("CREATE TABLE Web.Pages (A INT, b INT)")

    assert (statement.name, statement.schema.names) == (TableName("Web", "Pages"), ("A", "b"))


def test_a_quote_is_doubled_in_a_string():
    statement = parse("CREATE TABLE t (a INT) WITH ('it''s' = '''', 'empty' = '', '--' = '/* ; */')")

    assert statement.options == {"it's": "'", "empty": "", "--": "/* ; */"}


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("DROP TABLE web.pages", DropTable(name=PAGES, if_exists=False)),
        ("drop table if exists `web`.pages;", DropTable(name=PAGES, if_exists=True)),
        ("TRUNCATE TABLE web.pages", TruncateTable(name=PAGES)),
        ("SHOW TABLES", ShowTables()),
        ("show tables ;", ShowTables()),
        ("DESCRIBE web.pages", DescribeTable(name=PAGES)),
        ("desc web.pages", DescribeTable(name=PAGES)),
    ],
)
def test_the_short_statements_are_read(text, statement):
    assert parse(text) == statement


def test_a_statement_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse("DROP TABLE t").if_exists = True


# --- what the model refuses later ---


def test_a_statement_gives_the_spec_that_the_python_call_gives():
    statement = parse(
        "CREATE TABLE web.pages (page STRING PRIMARY KEY, pv BIGINT) DISTRIBUTED INTO 4 BUCKETS"
        " WITH ('table.merge-engine' = 'versioned', 'table.merge-engine.versioned.ver-column' = 'pv')"
    )

    assert statement.spec == TableSpec.make(
        "web.pages",
        KEYED,
        buckets=4,
        merge_engine="versioned",
        options={"table.merge-engine.versioned.ver-column": "pv"},
    )


@pytest.mark.parametrize(
    ("clauses", "message"),
    [
        (
            "DISTRIBUTED BY (pv) INTO 2 BUCKETS",
            "bucket.key: 'pv' is not a primary key column; choose among page",
        ),
        ("DISTRIBUTED INTO 0 BUCKETS", "bucket.num is a number from 1 to 4096, not '0'"),
        (
            "DISTRIBUTED INTO 2 BUCKETS WITH ('bucket.num' = '3')",
            "bucket.num is given twice and differently: '3' and '2'",
        ),
        ("WITH ('bucket.nun' = '3')", "unknown table option 'bucket.nun'; did you mean 'bucket.num'?"),
        (
            "WITH ('table.merge-engine' = 'versioned')",
            "table.merge-engine.versioned.ver-column must be set for versioned merge engine",
        ),
    ],
)
def test_options_and_buckets_are_checked_when_the_spec_is_made(clauses, message):
    statement = parse(f"CREATE TABLE t (page STRING PRIMARY KEY, pv BIGINT) {clauses}")

    with pytest.raises(InvalidSchema) as caught:
        _ = statement.spec

    assert str(caught.value) == message


# --- what is refused, and where ---


def test_an_error_points_at_the_place_and_says_what_was_found_and_expected():
    message = refusal("CREATE TABLE t (\n\ta INT,\n\tb STRING PRIMRY KEY\n)")

    assert message == (
        "line 3, column 11: found 'PRIMRY', expected '(', NOT, DEFAULT, PRIMARY, ',' or ')'\n"
        "   b STRING PRIMRY KEY\n"
        "            ^"
    )


def test_an_error_at_the_end_points_behind_the_last_word():
    message = refusal("DROP TABLE\n\n")

    assert message == (
        "line 1, column 11: found the end of the text, expected IF or a table name\n  DROP TABLE\n            ^"
    )


def test_an_error_in_a_long_line_shows_the_part_around_it():
    message = refusal("DROP" + " " * 5_000 + "VIEW" + " x" * 5_000)

    place, line, caret = message.splitlines()
    assert place == "line 1, column 5005: found 'VIEW', expected TABLE"
    assert line[caret.index("^") :].startswith("VIEW")
    assert len(line) <= 110


def test_an_error_lets_no_control_character_through():
    message = refusal("DROP\x1b[2J\x07\ud800 TABLE t")

    assert all(line.isprintable() for line in message.splitlines())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "line 1, column 1: found the end of the text, expected CREATE, ALTER, DROP, TRUNCATE, SHOW, DESCRIBE or"
            " DESC",
        ),
        (
            "SELECT 1",
            "line 1, column 1: found 'SELECT', expected CREATE, ALTER, DROP, TRUNCATE, SHOW, DESCRIBE or DESC",
        ),
        (
            "- x",
            "line 1, column 1: found '-', expected CREATE, ALTER, DROP, TRUNCATE, SHOW, DESCRIBE or DESC",
        ),
        ("CREATE VIEW v", "line 1, column 8: found 'VIEW', expected TABLE"),
        ("CREATE TABLE IF EXISTS t (a INT)", "line 1, column 17: found 'EXISTS', expected NOT"),
        ("CREATE TABLE t", "line 1, column 15: found the end of the text, expected '.' or '('"),
        ("CREATE TABLE 't' (a INT)", "line 1, column 14: found 't', expected IF or a table name"),
        ("CREATE TABLE a.b.c (a INT)", "line 1, column 17: found '.', expected '('"),
        ("CREATE TABLE t ()", "line 1, column 17: found ')', expected PRIMARY or a column name"),
        ("CREATE TABLE t (a INT,)", "line 1, column 23: found ')', expected PRIMARY or a column name"),
        ("CREATE TABLE t (a)", "line 1, column 18: found ')', expected a column type"),
        ("CREATE TABLE t (a `INT`)", "line 1, column 19: found 'INT', expected a column type"),
        ("CREATE TABLE t (a CHAR())", "line 1, column 24: found ')', expected a number"),
        ("CREATE TABLE t (a CHAR(-1))", "line 1, column 24: found '-', expected a number"),
        ("CREATE TABLE t (a DECIMAL(1, 2, 3))", "line 1, column 31: found ',', expected ')'"),
        ("CREATE TABLE t (a INT NOT)", "line 1, column 26: found ')', expected NULL"),
        ("CREATE TABLE t (a INT, PRIMARY (a))", "line 1, column 32: found '(', expected KEY"),
        ("CREATE TABLE t (a INT, PRIMARY KEY ())", "line 1, column 37: found ')', expected a column name"),
        (
            "CREATE TABLE t (a INT) DISTRIBUTED BY (a)",
            "line 1, column 42: found the end of the text, expected INTO",
        ),
        (
            "CREATE TABLE t (a INT) DISTRIBUTED INTO x BUCKETS",
            "line 1, column 41: found 'x', expected the number of buckets",
        ),
        (
            "CREATE TABLE t (a INT) DISTRIBUTED INTO 4",
            "line 1, column 42: found the end of the text, expected BUCKETS",
        ),
        (
            "CREATE TABLE t (a INT) WITH (bucket.num = 4)",
            "line 1, column 30: found 'bucket', expected an option name in single quotes",
        ),
        (
            "CREATE TABLE t (a INT) WITH ('bucket.num' = 4)",
            "line 1, column 45: found '4', expected a value in single quotes",
        ),
        ("CREATE TABLE t (a INT) WITH ('a' '1')", "line 1, column 34: found '1', expected '='"),
        (
            "CREATE TABLE t (a INT) WIHT ('a' = '1')",
            "line 1, column 24: found 'WIHT', expected PARTITIONED, DISTRIBUTED, WITH, ';' or"
            " the end of the text (one statement is read at a time)",
        ),
        (
            "DROP TABLE a; DROP TABLE b",
            "line 1, column 15: found 'DROP', expected the end of the text (one statement is read at a time)",
        ),
        ("SHOW TABLE", "line 1, column 6: found 'TABLE', expected PARTITIONS or TABLES"),
    ],
)
def test_what_cannot_be_read_is_refused_in_few_words(text, message):
    assert first_line(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DROP TABLE 'a", "line 1, column 12: this string has no closing '"),
        ("DROP TABLE 'a''", "line 1, column 12: this string has no closing '"),
        ("DROP TABLE `a", "line 1, column 12: this name has no closing `"),
        ('DROP TABLE "a', 'line 1, column 12: this name has no closing "'),
        ("DROP TABLE a\n/* b", "line 2, column 1: this comment has no closing */"),
    ],
)
def test_what_is_opened_must_be_closed(text, message):
    assert first_line(text) == message


def test_a_name_with_a_dash_is_told_to_stand_in_quotes():
    message = first_line("CREATE TABLE web-pages (a INT)")

    assert message == ("line 1, column 17: found '-', expected '.' or '('; a name with a - stands in `backticks`")


@pytest.mark.parametrize("function", ["SUM", "max", "last_value_ignore_nulls", "sum(overflow = wrap)", "BIT_OR"])
@pytest.mark.parametrize("text", ["pv BIGINT NOT NULL {}", "pv BIGINT {} NOT NULL", "pv BIGINT {} NOT NULL DEFAULT 0"])
def test_an_aggregate_function_stands_behind_the_type_or_the_rest(function, text):
    statement = parse(f"CREATE TABLE t (page STRING PRIMARY KEY, {text.format(function)})")

    column = statement.schema.column("pv")
    assert (str(column.agg), column.nullable) == (function.lower(), False)
    assert statement.spec.options.merge_engine is MergeEngine.AGGREGATION


@pytest.mark.parametrize("word", ["SUMM", "summ", "NOT NULL SUMM", "DEFAULT 0 SUMM", "SUMM NOT NULL", "SUMM(a = 1)"])
def test_an_aggregate_function_that_there_is_not_is_told_which_one_was_meant(word):
    message = refusal(f"CREATE TABLE t (k INT PRIMARY KEY, pv BIGINT {word})", UnknownAggregate)

    assert "the column 'pv': there is no aggregate function 'summ'; did you mean 'sum'?" in message
    assert message.splitlines()[-1].index("^") == message.splitlines()[-2].lower().index("summ")


@pytest.mark.parametrize(
    "word", ["UNIQUE", "NULL", "CHECK (k > 0)", "REFERENCES u", "DEFALT 0", "COLATE x", "SUM SUMM"]
)
def test_a_word_that_sql_has_elsewhere_is_taken_for_no_function(word):
    assert "expected" in first_line(f"CREATE TABLE t (k INT {word})")


def test_a_function_without_a_key_is_said_to_need_one():
    for text in ("CREATE TABLE t (k INT, pv BIGINT SUM)", "CREATE TABLE t (pv BIGINT) WITH ('fields.pv.agg' = 'sum')"):
        with pytest.raises(InvalidSchema, match=r"^pv bigint SUM needs a PRIMARY KEY"):
            _ = parse(text).spec


def test_an_aggregate_function_that_does_not_suit_its_column_is_refused_at_its_place():
    with pytest.raises(InvalidSchema) as caught:
        parse("CREATE TABLE t (page STRING PRIMARY KEY, title STRING SUM)")

    assert str(caught.value).splitlines()[0] == (
        "line 1, column 42: the aggregate function of the column 'title': sum works on tinyint, smallint, int, bigint,"
        " float, double, decimal, not on a string"
    )


def test_partition_columns_come_before_the_buckets():
    text = "CREATE TABLE t (day DATE, k INT, PRIMARY KEY (day, k)) PARTITIONED BY (day) DISTRIBUTED INTO 2 BUCKETS"

    spec = parse(text).spec

    assert (spec.partition_by, spec.bucket_key, spec.buckets) == (("day",), ("k",), 2)


def test_the_partitions_of_a_table_are_shown_by_a_statement():
    assert parse("show partitions web.pages").name == TableName.parse("web.pages")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("CREATE TABLE t (a INT COMMENT 'x')", "column"),
        ("CREATE TABLE t (a INT PRIMARY KEY NOT ENFORCED COMMENT 'x')", "column"),
        ("CREATE TABLE t (a INT) COMMENT 'x'", "table"),
    ],
)
def test_a_comment_is_refused_rather_than_forgotten(text, what):
    assert first_line(text).endswith(f": {what} comments are not kept; leave COMMENT out, or write it as -- text")


@pytest.mark.parametrize(
    ("elements", "column"),
    [
        ("a INT PRIMARY KEY, b INT PRIMARY KEY", 36),
        ("a INT PRIMARY KEY, PRIMARY KEY (a)", 36),
        ("a INT, PRIMARY KEY (a), PRIMARY KEY (a)", 41),
    ],
)
def test_a_second_primary_key_is_refused(elements, column):
    assert first_line(f"CREATE TABLE t ({elements})") == (
        f"line 1, column {column}: there are two primary keys;"
        " for a key of several columns write one PRIMARY KEY (a, b)"
    )


@pytest.mark.parametrize(("clauses", "word"), [("NOT NULL NOT NULL", "NOT NULL"), ("DEFAULT 1 DEFAULT 1", "DEFAULT")])
def test_a_clause_given_twice_is_refused_even_if_alike(clauses, word):
    assert first_line(f"CREATE TABLE t (a INT, b INT {clauses})").endswith(f": {word} is given twice")


def test_an_option_given_twice_is_refused_even_if_alike():
    message = first_line("CREATE TABLE t (a INT) WITH ('bucket.num' = '1', 'bucket.num' = '1')")

    assert message == "line 1, column 50: the option 'bucket.num' is given twice"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("varchar(10)", "unknown column type 'varchar(10)'; the types are boolean, "),
        ("MAP<DOUBLE, INT>", "double cannot be the key of a map: NaN and -0.0 have no one identity"),
        ("STRING(10)", "string takes 0 arguments, got 1"),
        ("DECIMAL(39, 0)", "decimal(39, 0): precision is 1 to 38 and scale 0 to precision"),
    ],
)
def test_a_type_that_the_model_refuses_is_refused_with_its_place(text, message):
    line, *picture = refusal(f"CREATE TABLE t (\n  a {text})", InvalidSchema).splitlines()

    assert line.startswith(f"line 2, column 5: {message}")
    assert picture == [f"    a {text})", "      ^"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE t (a INT, a INT)", "column names must differ; given twice: a"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (b))", "the primary key column 'b' is not a column; they are a"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (a, a))", "the primary key names a column twice"),
        ("CREATE TABLE t (PRIMARY KEY (a))", "a table has 1 to 1600 columns, this one has 0"),
    ],
)
def test_a_schema_that_the_model_refuses_is_refused(text, message):
    assert refusal(text, InvalidSchema) == message


def test_a_float_primary_key_is_refused():
    message = refusal("CREATE TABLE t (x DOUBLE PRIMARY KEY)", InvalidSchema)

    assert message.startswith("'x' is a double and cannot be a primary key: ")


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a.b", "a\0", "-a", "__a", "pаge", "a" * 201, "a``b", " a"])
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE `{}`",
        "DESCRIBE `{}`.t",
        "TRUNCATE TABLE db.`{}`",
        "CREATE TABLE t (`{}` INT)",
        "CREATE TABLE t (a INT, PRIMARY KEY (`{}`))",
        "CREATE TABLE t (a INT) DISTRIBUTED BY (`{}`) INTO 1 BUCKETS",
    ],
)
def test_no_quotes_let_a_hostile_name_in(statement, name):
    assert "name: use 1 to 200 of A-Z" in refusal(statement.format(name), InvalidName)


# --- limits ---


def test_the_longest_text_is_read_and_a_longer_one_is_not():
    padding = " " * (STATEMENT_LENGTH_MAX - len("SHOW TABLES"))

    assert parse(f"SHOW TABLES{padding}") == ShowTables()
    assert refusal(f"SHOW TABLES{padding} ", TooLarge) == (
        "the statement has 1048577 characters; at most 1048576 are read"
    )


@pytest.mark.parametrize("digits", ["9" * 10, "9" * 5_000])
@pytest.mark.parametrize("text", ["CREATE TABLE t (a CHAR({}))", "CREATE TABLE t (a INT) DISTRIBUTED INTO {} BUCKETS"])
def test_a_number_has_at_most_nine_digits(text, digits):
    assert first_line(text.format(digits)).endswith("of at most 9 digits")


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 1_000_000, "'" * 999_999, "`" * 999_999, '"' * 999_999, "/*" * 500_000, "-" * 1_000_000),
        *("/**/" * 250_000, "\n" * 1_000_000, ";" * 1_000_000, "a" * 1_000_000, "\0" * 1_000_000),
        "CREATE TABLE t (" + "a INT," * 150_000,
        "CREATE TABLE t (" + "a INT," * 80_000 + "PRIMARY KEY (" + "b," * 250_000 + "b))",
        "CREATE TABLE t (a DECIMAL(" + "1," * 500_000,
        "CREATE TABLE t (a INT) WITH (" + "'a'='b'," * 100_000 + "'a'='b')",
        "DROP TABLE " + "a." * 500_000,
        "DROP TABLE `" + "``" * 400_000 + "`",
    ],
    ids=lambda text: f"{text[:12]!a}-{text[-6:]!a}",
)
def test_a_megabyte_of_anything_is_refused_in_reasonable_time_and_few_words(text):
    with pytest.raises(InvalidInput) as caught:
        parse(text)

    assert len(str(caught.value)) < 1_000


def test_a_list_of_more_than_all_columns_is_refused_before_it_is_read_to_its_end():
    message = first_line("CREATE TABLE t (" + "a INT, " * 10_000)

    assert message == f"line 1, column {len('CREATE TABLE t (') + 7 * 1_601 + 1}: a list has at most 1601 items"


def test_the_widest_table_is_read_back_from_its_own_text():
    columns = [Column(f"{number:0>4}".rjust(200, "c"), "timestamp_ltz(9)", False) for number in range(COLUMNS_MAX)]
    spec = TableSpec.make("t", Schema(columns, [column.name for column in columns[:32]]))

    text = to_ddl(TableInfo(id=TableId(1), spec=spec, created_ms=0))

    assert parse(text).spec == spec
