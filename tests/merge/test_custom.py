"""A user's aggregate function over groups of values: called as it promises to be, and never trusted."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kolk
from kolk.errors import InvalidArgument, InvalidRows, InvalidSchema, UnknownAggregate
from kolk.merge.aggregates.aggregator import Retractable
from kolk.merge.aggregates.binding import aggregator_of
from kolk.merge.finishing_custom import finished
from kolk.merge.groups import Groups
from kolk.model import functions
from kolk.model.kinds import Kind
from kolk.model.schema import Column, Schema


class Total:
    """A sum that can take back."""

    types = ("double", "bigint")
    commutative = True

    def init(self):
        return 0

    def accumulate(self, state, value):
        return state + value

    def merge(self, state, other):
        return state + other

    def retract(self, state, value):
        return state - value


class Mean:
    """The mean of the numbers given."""

    types = "row<total double, seen bigint>"
    input = "double"
    output = "double"

    def init(self):
        return {"total": 0.0, "seen": 0}

    def accumulate(self, state, value):
        state["total"] += value
        state["seen"] += 1
        return state

    def merge(self, state, other):
        return {"total": state["total"] + other["total"], "seen": state["seen"] + other["seen"]}

    def finish(self, state):
        return state["total"] / state["seen"]


class Joined:
    """All texts one behind the other."""

    def init(self):
        return ""

    def accumulate(self, state, value):
        return state + value

    def merge(self, state, other):
        return state + other


def made(**methods):
    """A function that is like Joined, but for these methods and attributes."""
    return type(
        "Made", (Joined,), {name: staticmethod(each) if callable(each) else each for name, each in methods.items()}
    )


@pytest.fixture(autouse=True)
def only_mine(monkeypatch):
    monkeypatch.setattr(functions, "_registered", {})


def bound(implementation, type="string", name="mine"):
    kolk.register_aggregate(name, implementation)
    schema = Schema([Column("k", "bigint"), Column("c", type, agg=name)], "k")
    return aggregator_of(schema.column("c"), schema)


def groups(*counts):
    return Groups.of_counts(np.array(counts, np.int64))


def test_values_are_added_in_order_and_nulls_are_passed_over():
    joined = bound(Joined)

    states = joined.accumulate(pa.array(["a", None, "b", None, "c"]), groups(3, 1, 1))

    assert states.to_pylist() == ["ab", None, "c"]


def test_states_are_merged_in_order_and_one_that_is_alone_is_not_touched():
    calls = []
    joined = bound(made(merge=lambda one, other: calls.append((one, other)) or one + other))

    states = joined.merge(pa.array(["a", "b", "c", None, "d", None]), groups(3, 2, 1))

    assert states.to_pylist() == ["abc", "d", None]
    assert calls == [("a", "b"), ("ab", "c")]


@given(st.lists(st.lists(st.integers(-(2**40), 2**40) | st.none(), min_size=1), min_size=1), st.data())
def test_the_states_of_parts_are_merged_to_the_state_of_the_whole(lists, data):
    total = bound(Total, "bigint")
    flat = [value for values in lists for value in values]
    cuts = [data.draw(st.integers(1, len(values))) for values in lists]
    parts = [size for values, cut in zip(lists, cuts, strict=True) for size in (cut, len(values) - cut) if size]

    whole = total.accumulate(pa.array(flat, pa.int64()), groups(*map(len, lists)))
    pieces = total.accumulate(pa.array(flat, pa.int64()), groups(*parts))
    merged = total.merge(pieces, groups(*(1 + (cut < len(values)) for values, cut in zip(lists, cuts, strict=True))))

    assert merged.equals(whole)


def test_a_state_of_none_is_the_state_of_nothing():
    fickle = bound(made(accumulate=lambda state, value: None if value == "reset" else state + value))

    states = fickle.accumulate(pa.array(["a", "reset", "b", "a", "reset"]), groups(3, 2))

    assert states.to_pylist() == ["b", None]


def test_what_is_taken_back_is_taken_from_the_state_value_by_value():
    total = bound(Total, "bigint")
    retracts = np.array([True, False, True, True, False])

    removed = total.retracted(pa.array([5, 1, 2, None, 1]), retracts, groups(3, 1, 1))
    states = total.remove(pa.array([10, 20, 30]), removed)

    assert states.to_pylist() == [3, 20, 30]
    assert total.remove(pa.array([None, None, 1], pa.int64()), removed).to_pylist() == [None, None, 1]


def test_a_function_without_retract_says_so():
    assert isinstance(bound(Total, "bigint"), Retractable)
    assert not isinstance(bound(Joined), Retractable)
    assert Column("c", "bigint", agg="mine").is_retractable is False


@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("array<row<x double, tags map<string, bigint>>>", [[{"x": 1.5, "tags": {"a": 1}}], [], None]),
        ("map<string, array<bigint>>", [{"a": [1, 2]}, {}, None]),
        ("decimal(10, 2)", [Decimal("1.50"), None]),
        ("timestamp_ltz(6)", [datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC), None]),
        ("bytes", [b"\x00\xff", None]),
        ("binary(2)", [b"ab", None]),
        ("float", [0.5, float("inf"), None]),
        ("boolean", [True, False, None]),
    ],
)
def test_states_of_every_type_come_back_as_the_python_values_that_they_were(type, values):
    seen = []
    keeps = bound(
        made(init=lambda: None, accumulate=lambda _, value: value, merge=lambda one, _: seen.append(one) or one), type
    )
    array = pa.array(values, Column("c", type).type.arrow)

    states = keeps.accumulate(array, groups(*[1] * len(values)))
    twice = [place for place in range(len(values)) for _ in "ab"]
    merged = keeps.merge(states.take(pa.array(twice)), groups(*[2] * len(values)))

    assert states.equals(array)
    assert merged.equals(array)
    assert seen == values[:-1]


@pytest.mark.parametrize("step", ["init", "accumulate", "merge", "retract"])
def test_what_a_method_raises_names_the_function_and_the_column(step):
    def fails(*_):
        raise ZeroDivisionError("too bad")

    failing = bound(type("Failing", (Total,), {step: fails}), "bigint")
    calls = {
        "init": lambda: failing.accumulate(pa.array([1]), groups(1)),
        "accumulate": lambda: failing.accumulate(pa.array([1]), groups(1)),
        "merge": lambda: failing.merge(pa.array([1, 2]), groups(2)),
        "retract": lambda: failing.remove(pa.array([1]), pa.array([[1]])),
    }

    with pytest.raises(InvalidRows, match=r"'mine' of the column 'c' failed to .*too bad"):
        calls[step]()


def test_a_method_that_ends_the_program_only_fails():
    leaving = bound(made(accumulate=lambda *_: exit(3)))

    with pytest.raises(InvalidRows, match="failed to accumulate: SystemExit"):
        leaving.accumulate(pa.array(["a"]), groups(1))


@pytest.mark.parametrize(
    ("type", "state"),
    [
        ("bigint", 1.5),
        ("bigint", 2**63),
        ("bigint", "7"),
        ("tinyint", 128),
        ("char(3)", "abcd"),
        ("decimal(4, 2)", Decimal("123.45")),
        ("string", 7),
        ("row<x double>", {"y": 1.0}),
        ("array<bigint>", 7),
        ("timestamp_ltz(0)", datetime.datetime(2026, 11, 15, microsecond=1, tzinfo=datetime.UTC)),
        ("double", object()),
    ],
)
def test_a_state_that_does_not_fit_its_column_is_refused_and_not_rounded(type, state):
    misfit = bound(made(init=lambda: None, accumulate=lambda *_: state, input="bigint"), type)

    with pytest.raises(InvalidRows, match="a state that the aggregate function 'mine' gave does not fit"):
        misfit.accumulate(pa.array([1]), groups(1))


@pytest.mark.parametrize("type", ["time(9)", "array<time(9)>"])
def test_a_time_that_python_has_no_value_for_is_refused_and_not_cut(type):
    latest = bound(made(init=lambda: None, accumulate=lambda _, value: value, merge=lambda _, other: other), type)
    times = pa.array([1_000, 1_001], pa.time64("ns"))
    states = times if type == "time(9)" else pa.ListArray.from_arrays([0, 1, 2], times)

    assert latest.accumulate(states[:1], groups(1)).equals(states[:1])
    with pytest.raises(InvalidRows, match="Python has no value for what the column 'c' holds"):
        latest.accumulate(states, groups(1, 1))
    with pytest.raises(InvalidRows, match="Python has no value for what the column 'c' holds"):
        latest.merge(states, groups(2))


# --- registration


def test_a_function_may_be_an_instance_and_its_name_is_read_in_any_case():
    kolk.register_aggregate("My-Total", Total())

    assert Column("c", "bigint", agg="MY_TOTAL").agg == Column("c", "bigint", agg="my-total").agg
    assert str(Column("c", "bigint", agg="my_total").agg) == "my_total(version = 1)"


def test_the_version_is_kept_with_the_column():
    kolk.register_aggregate("total", Total, version=3)

    assert Column("c", "bigint", agg="total").agg.get("version") == "3"
    assert Column("c", "bigint", agg="total(version = 3)") == Column("c", "bigint", agg="total")
    with pytest.raises(UnknownAggregate, match="version 2 of total, and version 3 is registered"):
        Column("c", "bigint", agg="total(version = 2)")


@pytest.mark.parametrize(
    "types", [("double", "array<double>"), ["double", "array<double>"], (Kind.DOUBLE, "array<double>")]
)
def test_the_types_of_columns_are_kinds_or_whole_types(types):
    kolk.register_aggregate("mine", made(types=types))

    assert Column("c", "double", agg="mine").agg is not None
    assert Column("c", "array<double>", agg="mine").agg is not None
    for other in ("bigint", "array<bigint>"):
        with pytest.raises(InvalidSchema, match="mine works on"):
            Column("c", other, agg="mine")


def test_a_plain_name_stands_for_all_types_of_its_kind():
    kolk.register_aggregate("mine", made(types="decimal"))

    assert Column("c", "decimal(38, 7)", agg="mine").agg is not None


def test_the_input_is_the_columns_type_or_what_the_function_says():
    kolk.register_aggregate("same", Joined)
    kolk.register_aggregate("fixed", made(input="double"))
    kolk.register_aggregate("item", made(input=lambda type: type.fields[0].type))

    assert str(Column("c", "string", agg="same").input) == "string"
    assert str(Column("c", "string", agg="fixed").input) == "double"
    assert str(Column("c", "array<date>", agg="item").input) == "date"
    with pytest.raises(InvalidSchema, match="input of the aggregate function 'item' fails for"):
        _ = Column("c", "string", agg="item").input


@pytest.mark.parametrize(
    ("name", "implementation", "version", "says"),
    [
        ("mine", object(), 1, "has no method init, accumulate, merge"),
        ("mine", made(init=7), 1, "has no method init"),
        ("mine", made(retract=7), 1, "retract .* is no method"),
        ("mine", made(types=()), 1, "names none"),
        ("mine", made(types="nonsense"), 1, "unknown column type"),
        ("mine", made(input="nonsense"), 1, "unknown column type"),
        ("mine", made(idempotent="yes"), 1, "True or False"),
        ("mine", Joined, 0, "version is a number"),
        ("mine", Joined, True, "version is a number"),
        ("mine", type("Needy", (Joined,), {"__init__": lambda self, size: None}), 1, "cannot be made"),
        ("sum", Joined, 1, "one of Kolk's own"),
        ("REPLACE", Joined, 1, "one of Kolk's own"),
        ("first", Joined, 1, "a word of DDL"),
        ("7up", Joined, 1, "is not the name"),
        ("", Joined, 1, "is empty"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_registered(name, implementation, version, says):
    with pytest.raises((InvalidArgument, InvalidSchema), match=says):
        kolk.register_aggregate(name, implementation, version=version)

    assert not functions.registered()


# --- reading


def test_finished_applies_finish_and_leaves_the_rest_alone():
    kolk.register_aggregate("mean", Mean)
    schema = Schema([Column("k", "bigint"), Column("m", Mean.types, agg="mean"), Column("n", "bigint", agg="sum")], "k")
    states = [{"total": 3.0, "seen": 2}, None]
    rows = pa.table([pa.array([1, 2]), pa.array(states, schema.column("m").type.arrow), pa.array([5, 6])], schema.arrow)

    table, batch = finished(rows, schema), finished(rows.to_batches()[0], schema)

    assert table.to_pylist() == [{"k": 1, "m": 1.5, "n": 5}, {"k": 2, "m": None, "n": 6}]
    assert batch.to_pylist() == table.to_pylist()
    assert table.schema.field("m").type == pa.float64()
    assert finished(rows.select(["n"]), schema).equals(rows.select(["n"]))


def test_a_finish_that_fails_names_the_column():
    kolk.register_aggregate("mean", Mean)
    schema = Schema([Column("k", "bigint"), Column("m", Mean.types, agg="mean")], "k")
    rows = pa.table([pa.array([1]), pa.array([{"total": 3.0, "seen": 0}], schema.column("m").type.arrow)], schema.arrow)

    with pytest.raises(InvalidRows, match="of the column 'm' failed to finish"):
        finished(rows, schema)
