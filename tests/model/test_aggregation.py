"""What a table may say of its aggregate functions: in columns, in options, in DDL; and what is read back.

Docstrings begin with the lines of Fluss's acceptance list. D1 to D11 and D21, D22 are about tables: see
``tests/spec/test_aggregation.py``. D14, D15 and D17 are in ``test_options.py``; D29 is about Flink's sink.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.table import decode_table, encode_table
from kolk.errors import InvalidSchema, UnknownAggregate
from kolk.model.aggregate import Aggregate
from kolk.model.aggregation import field_options
from kolk.model.ddl import CreateTable, parse, to_ddl
from kolk.model.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn, altered
from kolk.model.functions import FUNCTIONS, function, is_function
from kolk.model.ids import TableId
from kolk.model.kinds import Kind
from kolk.model.options import DeleteBehavior, MergeEngine
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.wire.operations import column_of, column_text

KEY = Column("k", "int")
PLAIN = Schema(
    [KEY, Column("n", "bigint"), Column("s", "string"), Column("b", "boolean"), Column("t", "timestamp(3)")], ["k"]
)
ALL = {"fields.default.agg": "last_value"}


def made(options: dict[str, str], schema: Schema = PLAIN) -> TableSpec:
    return TableSpec.make("t", schema, options=options)


def of(options: dict[str, str], schema: Schema = PLAIN) -> dict[str, str]:
    """The functions of a table with these options."""
    return {column.name: str(column.agg) for column in made(options, schema).schema.value_columns}


def refusal(options: dict[str, str], schema: Schema = PLAIN) -> str:
    with pytest.raises(InvalidSchema) as raised:
        made(options, schema)
    return str(raised.value)


def test_half_a_surrogate_pair_is_no_parameter_however_it_is_given():
    """It has no UTF-8, in which the catalog keeps it."""
    half, says = "\ud800", "half a surrogate pair"

    assert says in refusal({"fields.s.agg": "listagg", "fields.s.listagg.delimiter": half})
    for form in ({"agg": "listagg", "params": {"delimiter": half}}, {"agg": f"listagg(delimiter = '{half}')"}):
        with pytest.raises(InvalidSchema, match=says):
            Schema([KEY, Column("s", "string", **form)], ["k"])
    with pytest.raises(InvalidSchema, match=says):
        parse(f"CREATE TABLE t (k INT PRIMARY KEY, s STRING LISTAGG(delimiter = '{half}'))")


# --- options


def test_options_without_fields_say_nothing():
    """D27: no functions, no aggregation table."""
    spec = made({})

    assert spec.options.merge_engine is MergeEngine.DEFAULT
    assert field_options(spec.schema) == {}


def test_options_name_functions_and_parameters():
    """D27: plain, with parameters, in any case and order, by an alias; and nothing leaks from column to column."""
    found = of(
        ALL
        | {
            "fields.s.string_agg.delimiter": "|",
            "fields.n.agg": "SUM",
            "fields.s.agg": "String-Agg",
            "fields.b.agg": "every",
        }
    )

    assert found == {"n": "sum", "s": "listagg(delimiter = '|')", "b": "bool_and", "t": "last_value"}


@pytest.mark.parametrize("prefix", ["listagg", "string_agg", "LISTAGG", "group-concat"])
def test_a_parameter_goes_by_any_name_of_its_function(prefix):
    """D27: whatever the function itself is called there."""
    assert of(ALL | {"fields.s.agg": "listagg", f"fields.s.{prefix}.delimiter": "; "})["s"] == (
        "listagg(delimiter = '; ')"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields.n.agg": "summ"}, "no aggregate function 'summ'; did you mean 'sum'"),
        ({"fields.n.agg": ""}, "fields.n.agg is empty"),
        ({"fields.n.agg": "  "}, "fields.n.agg is empty"),
        ({"fields.nope.agg": "sum"}, "'nope' is not a column"),
        ({"fields.n": "sum"}, "unknown table option 'fields.n'"),
        ({"fields.n.agg.sum.x": "sum"}, "unknown table option"),
        ({"fields.s.listagg.delimiter": "|"}, "goes with fields.s.agg, which is missing"),
        ({"fields.s.agg": "max", "fields.s.listagg.delimiter": "|"}, "is a parameter of 'listagg'"),
        ({"fields.s.agg": "listagg", "fields.s.listagg.delimiter": ""}, "a text of one character at least"),
        ({"fields.s.agg": "listagg", "fields.s.listagg.limit": "1"}, "no parameter 'limit'"),
        ({"fields.n.agg": "sum", "fields.n.sum.delimiter": "|"}, "sum has no parameter 'delimiter'"),
        ({"fields.n.agg": "sum", "fields.n.sum.overflow": "maybe"}, "one of error, wrap, saturate, not 'maybe'"),
        ({"fields.k.agg": "sum"}, "primary key column 'k' has the aggregate function sum"),
        ({"fields.s.agg": "sum"}, "sum works on .* not on a string"),
        ({"fields.n.agg": "bool_and"}, "bool_and works on boolean, not on a bigint"),
        ({"fields.b.agg": "max"}, "max works on .* not on a boolean"),
        ({"fields.s.agg": "max_by"}, "max_by needs its parameter by"),
        ({"fields.s.agg": "max_by", "fields.s.max_by.by": "n"}, "'n' must be a column with the aggregate function max"),
        ({"fields.s.agg": "max_by", "fields.s.max_by.by": "k"}, "'k' must be a column with the aggregate function max"),
        ({"fields.default.agg": "sum"}, "sum works on .* not on a string"),
        ({"fields.default.agg": "nope"}, "no aggregate function 'nope'"),
        ({"table.changelog.image": "wal"}, "wal does not go with the aggregation merge engine"),
        ({"table.merge-engine": "first_row"}, "merge engine is first_row|goes with table.merge-engine=aggregation"),
    ],
)
def test_options_that_cannot_be(options, message):
    """D18, D19, D20, D24, D26, D27: each with what is wrong and what would be right."""
    assert re.search(message, refusal(ALL | options))


def test_an_unknown_function_is_told_all_of_them():
    """D27: under an error of its own."""
    with pytest.raises(UnknownAggregate) as raised:
        Column("n", "int", agg="frobnicate")

    assert all(each.name in str(raised.value) for each in FUNCTIONS)


def test_every_column_names_its_function_unless_there_is_one_for_all():
    """D16: none is guessed."""
    assert "'s', 'b', 't' does not" in refusal({"fields.n.agg": "sum"})
    assert of({"fields.n.agg": "sum", "fields.default.agg": "first_value"})["t"] == "first_value"
    assert "and 'n', 's', 'b', 't' does not" in refusal({"table.merge-engine": "aggregation"})


def test_a_table_whose_columns_have_functions_aggregates_and_ignores_deletes():
    """D12, D13, D16: unless it is told to allow them; functions are no options any more."""
    spec = made(ALL | {"fields.n.agg": "sum"})
    allowing = made(ALL | {"table.delete.behavior": "allow"})

    assert spec.options.merge_engine is MergeEngine.AGGREGATION
    assert spec.options.delete_behavior is DeleteBehavior.IGNORE
    assert allowing.options.delete_behavior is DeleteBehavior.ALLOW
    assert [key for key in spec.options.text if key.startswith("fields.")] == ["fields.default.agg"]


@pytest.mark.parametrize("image", [None, "full"])
def test_the_whole_image_goes_with_aggregation(image):
    """D20: said or not."""
    assert made(ALL | ({"table.changelog.image": image} if image else {})).options.merge_engine.value == "aggregation"


def test_a_log_table_aggregates_nothing():
    """D22: it has no rows to merge."""
    log = Schema([Column("n", "int", agg="sum")])

    assert refusal({}, log)
    assert refusal({"fields.n.agg": "sum"}, Schema([Column("n", "int")]))


# --- what is kept is what was said


def text_values() -> st.SearchStrategy[str]:
    return st.text(st.sampled_from("ab'\"`\\|;,\n\t ()=0é\U0001f600-_"), min_size=1, max_size=8) | st.sampled_from(
        ["007", "1e5", "NULL", "not", "-1", "''", "x", "true"]
    )


@st.composite
def specs(draw: st.DrawFn) -> TableSpec:
    """Tables with some functions, each with parameters."""
    columns = [
        Column("n", "bigint", agg="sum", params={"overflow": draw(st.sampled_from(["error", "wrap", "saturate"]))}),
        Column("s", "string", agg="listagg", params={"delimiter": draw(text_values())}, default="it's"),
        Column("d", "string", agg="listagg", params={"delimiter": draw(text_values()), "distinct": True}),
        Column("At-1", "timestamp(3)", agg="max"),
        Column("who", draw(st.sampled_from(["string", "array<int>"])), agg="max_by", params={"by": "At-1"}),
        Column("c", "bigint", False, agg="count", params={"input": "row<x int, y decimal(3, 1)>"}),
        Column("r", "bigint", agg="count_rows", default=0),
        Column("m", "int"),
    ]
    chosen = draw(st.permutations(columns))
    return TableSpec.make("t", Schema([KEY, *chosen], ["k"]), options={"fields.default.agg": "min"})


@given(specs())
def test_functions_are_read_back_from_options(spec):
    """D23, D27, D28: the options of a schema make the same schema of one without functions."""
    options = field_options(spec.schema)
    bare = Schema(
        [Column(each.name, each.type, each.nullable, default=each.default) for each in spec.schema.columns], ["k"]
    )

    assert TableSpec.make("t", bare, options=options).schema == spec.schema


@given(specs())
def test_functions_are_read_back_from_ddl(spec):
    """D23, D28: as SHOW CREATE TABLE writes them."""
    again = parse(to_ddl(TableInfo(id=TableId(1), spec=spec, created_ms=0)))

    assert isinstance(again, CreateTable)
    remade = TableSpec.make("t", again.schema, options=again.options)
    assert remade.schema == spec.schema
    assert remade.options == spec.options


@given(specs())
def test_functions_are_read_back_from_the_catalog_and_from_the_wire(spec):
    """D25: with their parameters, exactly."""
    info = TableInfo(id=TableId(1), spec=spec, created_ms=0)

    assert decode_table(info.id, encode_table(info)) == info
    for column in spec.schema.columns:
        again = column_of(column_text(column))
        assert (again.agg, again.type, again.default) == (column.agg, column.type, column.default)


@given(st.sampled_from(FUNCTIONS), st.dictionaries(st.sampled_from(["a", "b_c"]), text_values(), max_size=2))
def test_an_aggregate_is_read_back_from_its_text(known, parameters):
    """D25: whatever is in it."""
    aggregate = Aggregate.make(known.name, parameters)

    assert Aggregate.parse(str(aggregate)) == aggregate
    assert Aggregate.parse(aggregate.ddl) == aggregate


def test_a_table_of_a_function_that_nobody_knows_can_be_read_but_not_used():
    """D25: Fluss drops the function and goes on with another one."""
    column = Column("v", "int", agg=Aggregate("of_my_own"))

    assert column.agg == Aggregate("of_my_own")
    assert not is_function("of_my_own")
    with pytest.raises(UnknownAggregate):
        assert column.function
    with pytest.raises(UnknownAggregate):
        TableSpec.make("t", Schema([KEY, column], ["k"]))


@pytest.mark.parametrize("known", FUNCTIONS, ids=lambda known: known.name)
def test_every_name_of_a_function_is_its_own(known):
    """A13, D27: in capitals, with hyphens, by its aliases."""
    for name in (known.name, *known.aliases):
        assert function(name) is known
        assert function(Aggregate.parse(name.upper().replace("_", "-")).name) is known


# --- alters

BY = Schema(
    [
        KEY,
        Column("at", "int", agg="max"),
        Column("who", "string", agg="max_by", params={"by": "at"}),
        Column("v", "tinyint", agg="sum"),
    ],
    ["k"],
)


def by_of(spec: TableSpec) -> dict[str, str | None]:
    return {column.name: column.agg.get("by") for column in spec.schema.value_columns if column.agg.get("by")}


def test_a_column_follows_the_one_that_decides_about_it():
    """D21: by its name of that moment, whoever has had that name before."""
    spec = TableSpec.make("t", BY)

    renamed = altered(spec, [RenameColumn("at", "moment")])
    assert by_of(renamed) == {"who": "moment"}

    swapped = altered(
        spec,
        [
            RenameColumn("at", "moment"),
            AddColumn(Column("at", "bigint", agg="max")),
            AddColumn(Column("whom", "string", agg="max_by", params={"by": "at"})),
        ],
    )
    assert by_of(swapped) == {"who": "moment", "whom": "at"}

    twice = altered(spec, [RenameColumn("at", "x"), RenameColumn("x", "y"), WidenColumn("y", "bigint")])
    assert by_of(twice) == {"who": "y"}


def test_a_column_that_decides_stays_as_long_as_it_does():
    """D21: the one that it decides about goes first."""
    spec = TableSpec.make("t", BY)

    with pytest.raises(InvalidSchema, match="decides about 'who'"):
        altered(spec, [DropColumn("at")])
    with pytest.raises(InvalidSchema, match="decides about 'who'"):
        altered(spec, [RenameColumn("at", "x"), DropColumn("x")])
    assert altered(spec, [DropColumn("who"), DropColumn("at")]).schema.names == ("k", "v")


def test_an_added_column_names_its_function_too():
    """D21, D22: or gets the one for all; a table of another engine takes none."""
    spec = TableSpec.make("t", BY)
    falling_back = made(ALL)

    with pytest.raises(InvalidSchema, match="'x' does not"):
        altered(spec, [AddColumn(Column("x", "int"))])
    with pytest.raises(InvalidSchema, match="merge engine is default"):
        altered(made({}), [AddColumn(Column("x", "int", agg="sum"))])
    assert str(altered(falling_back, [AddColumn(Column("x", "int"))]).schema.column("x").agg) == "last_value"


def test_a_widened_column_keeps_its_function():
    """D21: with its parameters."""
    assert str(altered(TableSpec.make("t", BY), [WidenColumn("v", "bigint")]).schema.column("v")) == "v bigint SUM"
    assert Kind.TINYINT in function("sum").kinds
