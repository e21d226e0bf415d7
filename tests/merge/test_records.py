"""Averages: a sum and a count, and what is made of them."""

import math
from decimal import ROUND_HALF_UP, Decimal, localcontext

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.merge.bound import Bound, check_laws, groups_of, plain, small

import kolk
from kolk.errors import AggregateOverflow, InvalidArgument, InvalidRows, InvalidSchema
from kolk.merge.finishing import avg_of
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType


def state(sum, count):
    return {"sum": sum, "count": count}


def test_values_are_added_up_and_counted():
    agg = Bound("row<sum bigint, count bigint>", "avg")

    assert agg.accumulate([1, 2, None], [None], [5]) == [state(3, 2), None, state(5, 1)]
    assert agg.merge([state(3, 2), None, state(5, 1)], [None, None]) == [state(8, 3), None]


def test_what_is_taken_back_is_subtracted_from_both():
    agg = Bound("row<sum decimal(10, 2), count bigint>", "avg")

    assert agg.retract(state(Decimal(8), 3), ("-", 5), ("-", None)) == state(Decimal("3.00"), 2)
    assert agg.retract(state(Decimal(8), 3), ("-", None)) == state(Decimal("8.00"), 3)
    assert agg.retract(state(None, 0), ("+", 1), ("-", 2)) == state(Decimal("-1.00"), 0)
    assert agg.retract(state(None, 0), ("-", 2)) == state(Decimal("-2.00"), -1)
    assert agg.retract(None, ("-", 5)) is None


def test_a_sum_that_does_not_fit_is_an_error():
    with pytest.raises(AggregateOverflow):
        Bound("row<sum tinyint, count bigint>", "avg").accumulate([100, 100])


def test_fields_that_are_not_null_stay_so():
    agg = Bound("row<sum double not null, count bigint not null>", "avg")

    assert agg.accumulate([1.5, 2.5], [None]) == [state(4.0, 2), None]
    assert agg.merge([None, state(1.0, 1)], [None]) == [state(1.0, 1), None]


def test_a_state_has_a_count_and_a_sum_of_what_was_counted():
    agg = Bound("row<sum bigint, count bigint>", "avg")

    agg.check(state(1, 1), None, state(None, 0), state(0, 0))
    for bad in (state(1, None), state(None, 1), state(None, None)):
        with pytest.raises(InvalidRows):
            agg.check(state(1, 1), bad)


@pytest.mark.parametrize("type", ["row<sum string, count bigint>", "row<sum double, count int>", "row<a double>"])
def test_an_average_is_kept_in_a_row_of_a_sum_and_a_count_only(type):
    with pytest.raises(InvalidSchema, match="avg keeps a row<sum t, count bigint>"):
        Bound(type, "avg")


def test_the_average_of_numbers_is_a_double():
    states = pa.array([state(7, 2), None, state(0, 0), state(None, 0), state(2**62 + 1, 1), state(-1, -1)])

    assert avg_of(states).to_pylist() == [3.5, None, None, None, float(2**62), None]
    assert avg_of(pa.chunked_array([states.slice(0, 1), states.slice(1, 1)])).to_pylist() == [3.5, None]
    floats = pa.array([state(1.0, 4), state(math.inf, 2)], pa.struct([("sum", pa.float32()), ("count", pa.int64())]))
    assert avg_of(floats).to_pylist() == [0.25, math.inf]
    assert avg_of(floats).type == pa.float64()


def test_the_average_of_decimals_has_more_digits_as_far_as_there_are_any():
    def averages(type, *states):
        return avg_of(pa.array([state(Decimal(sum), count) for sum, count in states], DataType.parse(type).arrow))

    found = averages("row<sum decimal(10, 2), count bigint>", ("10.00", 3), ("-20.00", 3), ("0.05", 10_000))
    assert found.type == pa.decimal128(14, 6)
    assert found.to_pylist() == [Decimal("3.333333"), Decimal("-6.666667"), Decimal("0.000005")]
    assert averages("row<sum decimal(36, 1), count bigint>", ("0.2", 3)).type == pa.decimal128(38, 3)
    most = "9" * 38
    assert averages("row<sum decimal(38, 0), count bigint>", (most, 1), (most, 2)).to_pylist() == [
        Decimal(most),
        Decimal("5" + "0" * 37),
    ]


@pytest.mark.parametrize("column", [pa.array([1.0]), pa.array([{"a": 1}]), [1, 2]])
def test_what_is_no_average_is_refused(column):
    with pytest.raises(InvalidArgument):
        avg_of(column)


# --- laws


@given(st.data(), st.sampled_from(("smallint", "bigint", "decimal(38, 3)", "decimal(9, 0) not null", "int not null")))
def test_averages_are_what_a_plain_loop_adds_up_and_can_be_taken_back(data, type):
    agg = Bound(f"row<sum {type}, count bigint{' not null' * ('not' in type)}>", "avg")
    array = data.draw(small(agg.column.input, st.integers(-2000, 2000)))

    def loop(given):
        values = [each for each in given if each is not None]
        return state(sum(values), len(values)) if values else None

    check_laws(data, agg, array, loop)
    if len(array):
        groups, all_of_it = groups_of(len(array)), np.ones(len(array), np.bool_)
        some = pa.array([state(7, 2)], agg.state)
        added = agg.function.merge(pa.concat_arrays([some, agg.function.accumulate(array, groups)]), groups_of(2))
        assert plain(agg.function.remove(added, agg.function.retracted(array, all_of_it, groups))) == plain(some)


@given(
    st.integers(1, 38).flatmap(lambda precision: st.tuples(st.just(precision), st.integers(0, precision))),
    st.lists(
        st.tuples(
            st.integers(-(10**38), 10**38) | st.integers(1, 9).map(lambda part: part * 10**38 // 10 - 1),
            st.integers(1, 2**63 - 1) | st.integers(1, 30),
        )
    ),
)
def test_decimal_averages_are_rounded_half_away_from_zero(digits, given):
    precision, scale = digits
    type = DataType.parse(f"row<sum decimal({precision}, {scale}), count bigint>").arrow
    with localcontext(prec=80):
        states = [state((Decimal(units) // 10 ** (39 - precision)).scaleb(-scale), count) for units, count in given]
        step = Decimal(1).scaleb(-min(scale + 4, scale + 38 - precision))
        expected = [(each["sum"] / each["count"]).quantize(step, ROUND_HALF_UP) for each in states]

        assert avg_of(pa.array(states, type)).to_pylist() == expected


# --- tables


def test_a_table_keeps_averages_through_partial_puts_states_retractions_and_a_restart(tmp_path):
    schema = Schema(
        [
            Column("id", "bigint"),
            Column("price", "row<sum decimal(12, 2), count bigint>", agg="avg"),
            Column("note", "string", agg="last_value"),
        ],
        "id",
    )
    with kolk.connect(tmp_path) as db:
        table = db.create_table("t", schema)
        table.put([{"id": 1, "price": Decimal("1.50"), "note": "x"}, {"id": 2, "price": None, "note": "y"}])
        table.put([{"id": 1, "price": Decimal(each)} for each in (2, 3, 4)], columns=["price"])
        table.put(table.preaggregate([{"id": 1, "price": Decimal(10), "note": "z"}]), mode="merge_state")
        table.retract([{"id": 1, "price": Decimal(10)}], columns=["price"])
        with pytest.raises(InvalidRows, match="the count of an average is null"):
            table.put([{"id": 1, "price": state(Decimal(1), None)}], columns=["price"], mode="merge_state")
    with kolk.connect(tmp_path) as db:
        table = db.table("t")
        table.put([{"id": 2, "price": Decimal("0.10"), "note": None}])
        assert table.get_one(id=1) == {"id": 1, "price": state(Decimal("10.50"), 4), "note": "z"}
        rows = table.scan().to_arrow().sort_by("id")
        assert avg_of(rows["price"]).to_pylist() == [Decimal("2.625000"), Decimal("0.100000")]
