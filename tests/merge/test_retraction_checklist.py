"""Retractions, and what else was proposed for Fluss: lines J of its acceptance list; a docstring begins with the name.

J15 is about collections and J16 about sketches, which have files of their own. J9, J10, J13 and J14 are about Fluss's
requests and Flink's sink; J12 is in ``test_aggregate_laws.py``.
"""

from decimal import Decimal

import pyarrow as pa
import pytest
from tests.merge.bench import Bench

from kolk.errors import AggregateOverflow, InvalidRows
from kolk.model.change import ChangeKind
from kolk.model.options import MergeMode
from kolk.model.schema import Column
from kolk.model.write import CHANGE, Action, Write, expected_columns

PAIR = (Column("a", "int", agg="sum"), Column("b", "double", agg="sum"))
SUMS = (Column("v", "int", agg="sum"), Column("w", "string", agg="last_value"))


def change(kind: str, k: int, v, w="x") -> dict:
    return {"k": k, "v": v, "w": w, "_change_type": kind}


def test_a_retraction_and_a_put_of_one_key_are_one_change():
    """J1: -U and +U of one key in one put."""
    bench = Bench(*SUMS)
    bench.put({"k": 1, "v": 10, "w": "a"})

    changes = bench.put(change("-U", 1, 10, "a"), change("+U", 1, 3, "b"))

    assert changes == [("-U", {"k": 1, "v": 10, "w": "a"}), ("+U", {"k": 1, "v": 3, "w": "b"})]


def test_lone_retractions():
    """J2, J3, J4: they subtract; of a key that is not there they are passed over; zero is a value to go on from."""
    bench = Bench(*SUMS)
    bench.put({"k": 1, "v": 10, "w": "a"})

    assert bench.retract({"k": 1, "v": 10, "w": "a"}, {"k": 2, "v": 1, "w": "b"})[-1] == (
        "+U",
        {"k": 1, "v": 0, "w": None},
    )
    bench.put({"k": 1, "v": 4, "w": "c"})

    assert bench.row == {"k": 1, "v": 4, "w": "c"}


def test_what_cannot_be_taken_back_is_refused():
    """J5: a function that cannot, by name; a product cannot either (J11)."""
    for agg in ("max", "product", "listagg"):
        bench = Bench(Column("v", "string" if agg == "listagg" else "int", agg=agg))
        with pytest.raises(InvalidRows, match=f"{agg}.*cannot take a value back"):
            bench.retract({"k": 1, "v": None})


def test_a_partial_retraction_is_about_its_targets():
    """J6: only they have to be able to."""
    bench = Bench(Column("s", "int", agg="sum"), Column("m", "int", agg="max"))
    bench.put({"k": 1, "s": 5, "m": 5})

    bench.retract({"k": 1, "s": 2}, columns=("s",))

    assert bench.row == {"k": 1, "s": 3, "m": 5}


def test_what_changes_nothing_emits_nothing():
    """J7: a result that is equal to the stored row, whatever led to it."""
    bench = Bench(*SUMS)
    bench.put({"k": 1, "v": 10, "w": "a"})

    assert bench.put({"k": 1, "v": 0, "w": "a"}) == []
    assert bench.put(change("-U", 1, 10, "a"), change("+U", 1, 10, "a")) == []
    assert bench.put({"k": 1}, columns=()) == []


@pytest.mark.parametrize(("deletes", "left"), [("allow", []), ("ignore", [{"k": 1, "v": None, "w": None}])])
def test_a_row_of_which_a_retraction_leaves_nothing(deletes, left):
    """J8: it goes if deletes are allowed."""
    bench = Bench(Column("v", "int", agg="last_value"), Column("w", "string", agg="last_value"), deletes=deletes)
    bench.put({"k": 1, "v": 1, "w": "a"})

    bench.retract({"k": 1, "v": 1, "w": "a"})

    assert bench.rows == left


def test_only_rows_that_something_was_taken_from_can_go():
    """J8: a row without values stays if it is another key that something is taken back from."""
    bench = Bench(*SUMS, deletes="allow")
    bench.put({"k": 1, "v": None, "w": None}, {"k": 3, "v": 1, "w": "a"})

    bench.put(change("-D", 3, 1, "a"), change("+I", 1, None, None), change("+I", 2, None, None))

    assert bench.rows == [
        {"k": 1, "v": None, "w": None},
        {"k": 2, "v": None, "w": None},
        {"k": 3, "v": 0, "w": None},
    ]


@pytest.mark.parametrize(
    ("type", "value", "other"),
    [
        ("tinyint", 100, 101),
        ("smallint", 2**14, 2**15 - 1),
        ("int", 2**31 - 1, -(2**31)),
        ("bigint", 2**63 - 1, -(2**63)),
        ("float", 1.5, 2.0),
        ("double", 1.5, 2.0),
        ("decimal(2, 1)", Decimal("9.9"), Decimal("-9.9")),
        ("decimal(37, 0)", Decimal(10**37 - 1), Decimal(1)),
    ],
)
def test_a_sum_takes_back_in_every_type(type, value, other):
    """J11: and only the end has to fit, not what comes and goes on the way."""
    bench = Bench(Column("v", type, agg="sum"))
    bench.put({"k": 1, "v": value})

    bench.put({"k": 1, "v": value, "_change_type": "-U"}, {"k": 1, "v": other, "_change_type": "+U"})
    assert bench.row == {"k": 1, "v": other}

    bench.put(
        *({"k": 1, "v": each, "_change_type": kind} for kind, each in
          [("-U", other), ("+U", value), ("-U", value), ("+U", value), ("-U", value), ("+U", other)])
    )  # fmt: skip
    assert bench.row == {"k": 1, "v": other}


@pytest.mark.parametrize(
    ("type", "value"),
    [("tinyint", -128), ("int", -(2**31)), ("bigint", -(2**63)), ("decimal(3, 1)", Decimal("-99.9"))],
)
def test_a_sum_that_does_not_fit_after_a_retraction_is_an_error(type, value):
    """J11: nothing is written then; a column that saturates stops at its end, one that wraps goes round."""
    bench = Bench(Column("v", type, agg="sum"))
    bench.put({"k": 1, "v": value})
    more = type if not type.startswith("decimal") else None

    with pytest.raises(AggregateOverflow, match="does not fit"):
        bench.retract({"k": 1, "v": 1})
    assert bench.row == {"k": 1, "v": value}

    clipped = Bench(Column("v", type, agg="sum", params={"overflow": "saturate"}))
    clipped.put({"k": 1, "v": value})
    clipped.retract({"k": 1, "v": 1})
    assert clipped.row == {"k": 1, "v": value}

    if more:
        round_ = Bench(Column("v", type, agg="sum", params={"overflow": "wrap"}))
        round_.put({"k": 1, "v": value})
        round_.retract({"k": 1, "v": 1})
        assert round_.row == {"k": 1, "v": -value - 1}


def test_retractions_and_nulls():
    """J11: nothing is taken from null, null takes nothing; infinity less infinity is NaN."""
    bench = Bench(Column("v", "double", agg="sum"))
    bench.put({"k": 1, "v": None}, {"k": 2, "v": 2.0}, {"k": 3, "v": float("inf")})

    bench.retract({"k": 1, "v": 1.0}, {"k": 2, "v": None}, {"k": 3, "v": float("inf")})

    assert str(bench.rows) == str([{"k": 1, "v": None}, {"k": 2, "v": 2.0}, {"k": 3, "v": float("nan")}])


def test_states_are_taken_back_as_states():
    """J1: with merge_state a count takes back as many as the state says, a last value its value."""
    bench = Bench(Column("n", "bigint", agg="count"), Column("w", "string", agg="last_value"))
    bench.put(*({"k": 1, "n": 1, "w": "a"} for _ in range(5)))

    bench.put({"k": 1, "n": 3, "w": "a", "_change_type": "-D"}, mode=MergeMode.MERGE_STATE)

    assert bench.row == {"k": 1, "n": 2, "w": None}


def test_only_omitted_columns_have_to_be_nullable():
    """J17: a target may be NOT NULL; one that is left out needs a default; a partial delete nulls none."""
    bench = Bench(Column("a", "int", nullable=False, agg="sum"), Column("b", "int", agg="sum"), deletes="allow")

    bench.put({"k": 1, "a": 1}, columns=("a",))
    with pytest.raises(InvalidRows, match="'a' is NOT NULL, so a partial put"):
        bench.put({"k": 1, "b": 1}, columns=("b",))
    with pytest.raises(InvalidRows, match="'a' is NOT NULL, so a partial delete"):
        bench.delete(1, columns=("a",))

    assert bench.row == {"k": 1, "a": 1, "b": None}


def test_a_retraction_never_leaves_null_where_nothing_may_be():
    """J8: an error, unless the whole row goes; and of keys that are not there nothing is asked."""
    required = Column("w", "string", nullable=False, agg="last_value")
    staying, going = Bench(required), Bench(required, deletes="allow")
    for bench in (staying, going):
        bench.put({"k": 1, "w": "a"})

    with pytest.raises(InvalidRows, match="'w' is NOT NULL"):
        staying.retract({"k": 1, "w": "a"})
    going.retract({"k": 1, "w": "a"}, {"k": 2, "w": "a"})

    assert staying.rows == [{"k": 1, "w": "a"}]
    assert going.rows == []


def test_a_change_of_no_kind_is_refused():
    """J9: numbers that are none."""
    bench = Bench(Column("v", "int", agg="sum"))
    rows = pa.record_batch(
        {"k": pa.array([1], pa.int32()), "v": pa.array([1], pa.int32()), CHANGE.name: pa.array([4], pa.int8())}
    )

    with pytest.raises(InvalidRows, match="a change is one of 0, 1, 2, 3"):
        bench.write(Write(action=Action.CHANGE, rows=rows))
    assert [int(kind) for kind in ChangeKind] == [0, 1, 2, 3]


@pytest.mark.parametrize("columns", [None, ()])
def test_no_rows_and_no_targets_are_no_trouble(columns):
    """C3: a put of nothing, of keys alone, and a retraction of keys alone."""
    bench = Bench(*PAIR)
    empty = pa.schema([column.arrow for column in expected_columns(bench.spec.schema, Action.UPSERT, columns,
                                                                   MergeMode.ACCUMULATE)])  # fmt: skip

    assert bench.write(Write(action=Action.UPSERT, rows=pa.RecordBatch.from_pylist([], empty), columns=columns)) == []
    assert bench.retract({"k": 1}, columns=()) == []
    assert [kind for kind, _ in bench.put({"k": 1}, {"k": 1}, columns=())] == ["+I"]
    assert bench.retract({"k": 1}, columns=()) == []


@pytest.mark.parametrize(
    ("type", "values", "product"),
    [
        ("tinyint", (100, 100, 0), 0),
        ("bigint", (2**62, 2**62, -2, 0), 0),
        ("bigint", (-(2**62), 2), -(2**63)),
        ("decimal(20, 0)", (Decimal(10**15), Decimal(10**15), Decimal(0)), Decimal(0)),
        ("decimal(38, 2)", (Decimal(10**30), Decimal(10**30), Decimal("0.00")), Decimal("0.00")),
        ("decimal(4, 2)", (Decimal("50.00"), Decimal("50.00"), Decimal("0.01")), Decimal("25.00")),
    ],
)
def test_of_a_product_only_the_result_has_to_fit(type, values, product):
    """J11: what is too large on the way may be small in the end."""
    bench = Bench(Column("v", type, agg="product"))

    bench.put(*({"k": 1, "v": value} for value in values))

    assert bench.row == {"k": 1, "v": product}
