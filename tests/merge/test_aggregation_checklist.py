"""The aggregation engine against Fluss's own acceptance list, line by line: a docstring begins with the line's name.

A11 and A12 are about bitmaps, which have files of their own. B6, B20's "same merger" and B21's "same object" are about
instances, which nobody can see here; B17's names are in ``tests/model/test_options.py``, as is B18. B19 and B21 to B24
are in ``test_engine.py`` and ``tests/spec/test_evolution_model.py``, which drive these engines beside a model.
"""

from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.merge.bench import Bench

from kolk.errors import AggregateOverflow, DeletesDisabled
from kolk.merge.aggregates.binding import aggregator_of
from kolk.merge.aggregates.texts import ListAgg
from kolk.merge.engine import Merger
from kolk.model.evolution import AddColumn, DropColumn, MoveColumn
from kolk.model.functions import FUNCTIONS
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema
from kolk.model.table import TableSpec
from kolk.model.write import Action, Write

TYPES = {
    "array_agg": "array<int>",
    "collect": "array<int>",
    "top_n": "array<int>",
    "bottom_n": "array<int>",
    "histogram": "array<bigint>",
    "merge_map": "map<int, string>",
    "sum_map": "map<int, int>",
    "min_map": "map<int, int>",
    "max_map": "map<int, int>",
    "avg": "row<sum double, count bigint>",
}
PARAMETERS = {"top_n": {"n": 3}, "bottom_n": {"n": 3}, "histogram": {"bounds": "1, 2"}}


def after(type: str, agg: str, *values, params=None):
    """What a column holds after these were put, one put each."""
    bench = Bench(Column("v", type, agg=agg, params=params))
    for value in values:
        bench.put({"k": 1, "v": value})
    return bench.row["v"]


# --- A: functions


@pytest.mark.parametrize(
    ("type", "values", "total"),
    [
        ("tinyint", (5, 3), 8),
        ("smallint", (100, 200), 300),
        ("int", (1000, 2000), 3000),
        ("bigint", (10_000, 20_000), 30_000),
        ("float", (1.5, 2.5), 4.0),
        ("double", (10.5, 20.5), 31.0),
        ("decimal(4, 2)", (Decimal("10.50"), Decimal("20.50")), Decimal("31.00")),
    ],
)
def test_sums(type, values, total):
    """A1, A2: values add up in the column's type; a null on either side is passed over."""
    assert after(type, "sum", *values) == total
    assert after(type, "sum", None, *values, None) == total
    assert after(type, "sum", None, None) is None


@pytest.mark.parametrize(
    ("type", "values", "product"),
    [
        ("tinyint", (5, 3), 15),
        ("smallint", (10, 20), 200),
        ("int", (100, 200), 20_000),
        ("bigint", (100, 200), 20_000),
        ("float", (2.5, 4.0), 10.0),
        ("double", (2.5, 4.0), 10.0),
        ("decimal(6, 2)", (Decimal("2.50"), Decimal("4.00")), Decimal("10.00")),
    ],
)
def test_products(type, values, product):
    """A3: values are multiplied; a null on either side is passed over."""
    assert after(type, "product", *values) == product
    assert after(type, "product", None, *values, None) == product


@pytest.mark.parametrize(
    ("type", "less", "more"),
    [
        ("tinyint", -5, 3),
        ("smallint", 1, 300),
        ("int", -1, 1),
        ("bigint", 1, 2**40),
        ("float", -0.0, 0.0),
        ("double", 1e300, float("inf")),
        ("decimal(4, 2)", Decimal("-1.00"), Decimal("0.01")),
        ("decimal(38, 38)", Decimal("0." + "0" * 37 + "1"), Decimal("0." + "9" * 38)),
        ("string", "apple", "banana"),
        ("string", "", "test"),
        ("string", "z", "é"),
        ("char(4)", "a", "aa"),
        ("date", date(1969, 7, 20), date(2026, 11, 15)),
        ("time(3)", time(1, 2, 3), time(1, 2, 3, 1000)),
        ("timestamp(6)", datetime.fromisoformat("0001-01-01"), datetime.fromisoformat("2026-11-15 00:00:00.000001")),
        ("timestamp_ltz(6)", datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 11, 15, tzinfo=UTC)),
    ],
)
def test_extremes(type, less, more):
    """A4: the greatest and the least of every type that has an order; nulls are passed over."""
    for order in ((less, more), (more, less), (None, less, more, None)):
        assert str(after(type, "max", *order)) == str(more)
        assert str(after(type, "min", *order)) == str(less)


def test_nan_is_greater_than_every_number():
    """A4: as Java's compare, NaN is above infinity and the least only of NaNs."""
    nan = float("nan")

    assert str(after("double", "max", float("inf"), nan)) == "nan"
    assert after("float", "min", nan, 1.0, nan) == 1.0
    assert str(after("float", "min", nan, nan)) == "nan"


EVERY_TYPE = [
    ("char(10)", "a", "b", "c"),
    ("string", "a", "b", ""),
    ("boolean", True, True, False),
    ("bytes", b"a", b"", b"\0"),
    ("binary(2)", b"ab", b"cd", b"\0\0"),
    ("decimal(4, 2)", Decimal("1.00"), Decimal("2.00"), Decimal("0.50")),
    ("tinyint", 1, 3, 2),
    ("smallint", 1, 3, 2),
    ("int", 1, 3, 2),
    ("bigint", 1, 3, 2),
    ("float", 1.0, 3.0, 2.0),
    ("double", 1.0, 3.0, 2.0),
    ("date", date(2026, 1, 1), date(2026, 1, 3), date(2026, 1, 2)),
    ("time(0)", time(1), time(3), time(2)),
    ("timestamp(3)", *(datetime.fromisoformat(f"2026-01-0{day}") for day in (1, 3, 2))),
    ("timestamp_ltz(9)", *(datetime(2026, 1, day, tzinfo=UTC) for day in (1, 3, 2))),
    ("array<int>", [1], [], [None]),
    ("map<int, string>", [(1, "a")], [], [(2, None)]),
    ("row<x int>", {"x": 1}, {"x": None}, {"x": 2}),
]


@pytest.mark.parametrize(("type", "first", "second", "third"), EVERY_TYPE)
def test_first_and_last_values(type, first, second, third):
    """A5, A6, A7, A8: first and last of three, with and without nulls, of every type."""

    def shown(value):
        return str(value)

    assert shown(after(type, "last_value", first, second, third)) == shown(third)
    assert after(type, "last_value", first, second, None) is None
    assert shown(after(type, "last_value_ignore_nulls", first, second, None)) == shown(second)
    assert shown(after(type, "last_value_ignore_nulls", first, None, third)) == shown(third)
    assert shown(after(type, "first_value", first, second, third)) == shown(first)
    assert shown(after(type, "first_value_ignore_nulls", None, second, third)) == shown(second)


def test_a_null_that_came_first_is_no_first_value():
    """A7: first_value passes over nulls as Fluss's does, whatever its documentation says."""
    assert after("int", "first_value", None, 5, 6) == 5


def test_booleans():
    """A9: and, or, and nulls that are passed over."""
    assert [after("boolean", "bool_and", *pair) for pair in ((True, True), (True, False), (False, False))] == [
        True,
        False,
        False,
    ]
    assert [after("boolean", "bool_or", *pair) for pair in ((False, False), (True, False), (True, True))] == [
        False,
        True,
        True,
    ]
    assert after("boolean", "bool_and", None, True) is True
    assert after("boolean", "bool_or", None, False) is False
    assert after("boolean", "bool_or", None, None) is None


def test_lists_of_texts():
    """A10: with a comma, with another delimiter, without nulls; an empty text is one."""
    assert after("string", "listagg", "a", "b", "c") == "a,b,c"
    assert after("string", "string_agg", "a", "b", params={"delimiter": " | "}) == "a | b"
    assert after("string", "listagg", None, "a", None, "b") == "a,b"
    assert after("string", "listagg", "a", "") == "a,"
    assert after("string", "listagg", "a,b", "b,c", "a", params={"distinct": True}) == "a,b,c"


def test_a_list_in_a_char_that_is_too_long_is_an_error_and_nothing_is_written():
    """A10: Fluss takes the column and fails with every merge; here it works as long as it fits."""
    bench = Bench(Column("v", "char(3)", agg="listagg"))
    bench.put({"k": 1, "v": "é"})
    bench.put({"k": 1, "v": "b"})

    with pytest.raises(AggregateOverflow, match="4 characters"):
        bench.put({"k": 1, "v": ""})
    assert bench.row == {"k": 1, "v": "é,b"}


def test_every_function_is_bound():
    """A13: every name has its code, an alias that of its function."""
    for function in FUNCTIONS:
        if function.name.endswith("_by"):
            continue
        type, params = TYPES.get(function.name, function.kinds[0].value), PARAMETERS.get(function.name)
        column = Column("v", type, agg=function.name, params=params)
        assert aggregator_of(column, Schema([Column("k", "int"), column], ["k"]))
    alias = Column("v", "string", agg="STRING-AGG")
    assert isinstance(aggregator_of(alias, Schema([Column("k", "int"), alias], ["k"])), ListAgg)


# --- B: rows

PEOPLE = (
    Column("total", "int", agg="sum"),
    Column("score", "double", agg="sum"),
    Column("best", "int", agg="max"),
    Column("worst", "int", agg="min"),
    Column("name", "string", agg="last_value_ignore_nulls"),
)


def person(*values):
    return dict(zip(["k", "total", "score", "best", "worst", "name"], values, strict=True))


def test_a_first_row_stands_as_it_is_and_later_ones_are_merged_into_it():
    """B1, B4: the first write is what is stored; then every column by its function, and null changes nothing."""
    bench = Bench(*PEOPLE)

    assert bench.put(person(1, None, 1.5, 5, 5, "Bob")) == [("+I", person(1, None, 1.5, 5, 5, "Bob"))]
    bench.put(person(1, 10, 1.0, 9, 9, "Bob"))
    bench.put(person(1, 5, None, 1, 1, None))

    assert bench.row == person(1, 15, 2.5, 9, 1, "Bob")


def test_deletes_by_their_behaviour():
    """B2, B3: ignored unless said otherwise; allowed they remove the row; disabled they are an error."""
    rows = [{"k": 1, "v": 1}]
    ignoring, allowing, disabled = (Bench(Column("v", "int", agg="sum"), deletes=each) for each in
                                    (None, "allow", "disable"))  # fmt: skip
    for bench in (ignoring, allowing, disabled):
        bench.put(*rows)

    assert ignoring.delete(1) == []
    assert allowing.delete(1, 2) == [("-D", {"k": 1, "v": 1})]
    with pytest.raises(DeletesDisabled):
        disabled.delete(2)
    assert ignoring.rows == disabled.rows == rows
    assert allowing.rows == []


PAIR = (Column("a", "int", agg="sum"), Column("b", "double", agg="sum"))


def test_a_partial_put_merges_its_targets_and_leaves_the_others():
    """B5, C9: what is not named is neither merged nor taken from the rows, of a new key neither."""
    bench = Bench(*PAIR)
    bench.put({"k": 1, "a": 10, "b": 100.0})

    bench.put({"k": 1, "a": 5}, {"k": 2, "a": 7}, columns=("a",))

    assert bench.rows == [{"k": 1, "a": 15, "b": 100.0}, {"k": 2, "a": 7, "b": None}]


def test_columns_that_came_later():
    """B7, B8, B9: in a row from before a new column is null, until it is a target; each by its function."""
    bench = Bench(*PAIR)
    bench.put({"k": 1, "a": 10, "b": 1.0})
    bench.alter(AddColumn(Column("c", "int", agg="min")), AddColumn(Column("d", "int", agg="sum")))

    bench.put({"k": 1, "a": 5}, columns=("a",))
    assert bench.row == {"k": 1, "a": 15, "b": 1.0, "c": None, "d": None}

    bench.put({"k": 1, "c": 10, "d": 30}, columns=("c", "d"))
    assert bench.row == {"k": 1, "a": 15, "b": 1.0, "c": 10, "d": 30}


def test_columns_are_matched_by_id():
    """B10, B11, B12, B13: moved, dropped from and put into the middle; for whole and for partial puts."""
    bench = Bench(Column("a", "int", agg="sum"), Column("b", "string", agg="last_value"), Column("c", "int", agg="sum"))
    bench.put({"k": 1, "a": 20, "b": "old", "c": 1})

    bench.alter(MoveColumn("c", first=True))
    bench.put({"k": 1, "a": 30, "c": 2}, columns=("a", "c"))
    assert bench.row == {"c": 3, "k": 1, "a": 50, "b": "old"}

    bench.alter(DropColumn("a"), AddColumn(Column("a", "int", agg="max"), after="k"))
    bench.put({"k": 1, "a": 4, "b": "new", "c": 1})
    assert bench.row == {"c": 4, "k": 1, "a": 4, "b": "new"}


def test_a_write_of_an_earlier_version_leaves_alone_what_it_does_not_know():
    """B16: names and columns of the version that it was made for; new columns keep what they have."""
    bench = Bench(*PAIR)
    before = bench.spec.schema
    bench.alter(
        AddColumn(Column("n", "int", agg="sum", default=100)), AddColumn(Column("r", "bigint", agg="count_rows"))
    )
    bench.put({"k": 1, "a": 1, "b": 1.0, "n": 5, "r": None})

    bench.put({"k": 1, "a": 1, "b": 1.0}, {"k": 2, "a": 1, "b": 1.0}, schema=before)

    assert bench.rows == [
        {"k": 1, "a": 2, "b": 2.0, "n": 5, "r": 2},
        {"k": 2, "a": 1, "b": 1.0, "n": 100, "r": 1},
    ]


def test_a_state_of_an_earlier_version_counts_nothing_that_it_does_not_know():
    """B16: a default is what a new row begins with, and no state to be added with every put."""
    bench = Bench(*PAIR)
    before = bench.spec.schema
    bench.alter(AddColumn(Column("r", "bigint", agg="count_rows", default=5)))

    for _ in range(2):
        bench.put({"k": 1, "a": 1, "b": 1.0}, schema=before, mode=MergeMode.MERGE_STATE)

    assert bench.row == {"k": 1, "a": 2, "b": 2.0, "r": 5}


def test_a_write_of_an_earlier_version_goes_on_though_it_now_decides_about_a_column():
    """B16: its rows have null in the new column, and the newest row decides."""
    bench = Bench(Column("at", "int", agg="max"))
    before = bench.spec.schema
    bench.put({"k": 1, "at": 1})
    bench.alter(AddColumn(Column("who", "string", agg="max_by", params={"by": "at"})))
    bench.put({"k": 1, "at": 3, "who": "ada"})

    bench.put({"k": 1, "at": 2}, schema=before)
    assert bench.row == {"k": 1, "at": 3, "who": "ada"}

    bench.put({"k": 1, "at": 4}, schema=before)
    assert bench.row == {"k": 1, "at": 4, "who": None}

    bench.put({"k": 1, "at": 5, "who": "bob"})
    bench.put({"k": 1, "at": 6}, schema=before, columns=("at",))
    assert bench.row == {"k": 1, "at": 6, "who": None}


def test_partial_deletes():
    """B14, B15: targets become null; a row with nothing left goes; across versions, too."""
    bench = Bench(*PAIR, deletes="allow")
    bench.put({"k": 1, "a": 1, "b": 2.0})
    bench.alter(AddColumn(Column("c", "int", agg="sum")))

    assert [kind for kind, _ in bench.delete(1, columns=("a",))] == ["-U", "+U"]
    assert bench.row == {"k": 1, "a": None, "b": 2.0, "c": None}
    assert [kind for kind, _ in bench.delete(1, columns=("b",))] == ["-D"]


def test_a_key_of_several_columns_and_several_functions():
    """B17: keys are never merged."""
    spec = TableSpec.make(
        "t",
        Schema(
            [Column("a", "int"), Column("s", "int", agg="sum"), Column("b", "string"), Column("m", "int", agg="max")],
            ["b", "a"],
        ),
    )
    merger = Merger(spec.schema, spec.options)
    rows = pa.RecordBatch.from_pylist(
        [{"a": 1, "s": 1, "b": "x", "m": 1}, {"a": 1, "s": 2, "b": "x", "m": 0}, {"a": 2, "s": 4, "b": "x", "m": 9}],
        spec.schema.arrow,
    )

    prepared = merger.prepare(Write(action=Action.UPSERT, rows=rows))

    assert prepared.rows.select(["a", "b", "s", "m"]).to_pylist() == [
        {"a": 1, "b": "x", "s": 3, "m": 1},
        {"a": 2, "b": "x", "s": 4, "m": 9},
    ]
