"""Lists of what was given, the best of it, and histograms."""

import math
from bisect import bisect_right
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.merge.bound import Bound, check_laws, groups_of, inputs, number, order, plain

import kolk
from kolk.errors import AggregateOverflow, InvalidArgument, InvalidRows, InvalidSchema
from kolk.merge.finishing import histogram_quantile
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType

SCALARS = ("int", "string", "double", "decimal(20, 3)", "boolean", "binary(3)", "timestamp(3)", "char(4)", "float")
NESTED = ("row<a int, b string not null>", "array<string>", "array<row<y bigint>>", "map<string, int>")
ORDERED = ("tinyint", "bigint", "string", "char(3)", "double", "decimal(38, 10)", "date", "time(9)", "timestamp_ltz(6)")


def test_elements_are_kept_in_the_order_in_which_they_came():
    agg = Bound("array<int>", "array_agg")

    assert agg.accumulate([3, 1, 3], [2]) == [[3, 1, 3], [2]]
    assert agg.merge([[3, 1], [2], []], [None, [7]]) == [[3, 1, 2], [7]]


def test_null_elements_are_passed_over_unless_they_are_to_be_kept():
    assert Bound("array<int>", "array_agg").accumulate([1, None], [None]) == [[1], None]
    assert Bound("array<int>", "array_agg(nulls = keep)").accumulate([1, None], [None]) == [[1, None], [None]]


def test_arrays_are_joined_with_the_nulls_within_them_unless_those_are_to_be_left_out():
    assert Bound("array<int>", "collect").accumulate([[1, None], None, [2]], [None]) == [[1, None, 2], None]
    assert Bound("array<int>", "collect(nulls = skip)").accumulate([[1, None], None], [[None]]) == [[1], []]


def test_an_empty_array_gives_an_empty_list_and_null_gives_nothing():
    assert Bound("array<int>", "collect").accumulate([[]], [None]) == [[], None]


def test_array_agg_takes_arrays_and_collect_elements_if_they_are_told_to():
    assert Bound("array<int>", "array_agg(input = array)").accumulate([[1], [2]]) == [[1, 2]]
    assert Bound("array<int>", "collect(input = element)").accumulate([1, 2]) == [[1, 2]]


def test_distinct_things_stand_where_they_came_first():
    agg = Bound("array<string>", "array_agg(distinct = true, nulls = keep)")

    assert agg.accumulate(["b", "a", None, "b", None]) == [["b", "a", None]]
    assert agg.merge([["a", "a"]], [["b"], ["a", "b"]]) == [["a"], ["b", "a"]]


def test_every_nan_is_the_same_thing_but_the_zeros_are_two():
    agg = Bound("array<double>", "array_agg(distinct = true)")
    odd = float(np.frombuffer(b"\x01\0\0\0\0\0\xf8\x7f")[0])

    (found,) = agg.accumulate([0.0, -0.0, math.nan, odd, -math.nan])

    assert [repr(each) for each in found] == ["0.0", "-0.0", "nan"]


def test_a_list_that_is_full_takes_no_more():
    agg = Bound("array<int>", "array_agg(max_size = 2)")

    assert agg.accumulate([1, 2, 3], [4]) == [[1, 2], [4]]
    assert agg.merge([[1], [2, 3]], [[1, 2, 3]]) == [[1, 2], [1, 2]]
    assert Bound("array<int>", "array_agg(max_size = 2, distinct = true)").accumulate([1, 1, 2, 3]) == [[1, 2]]


def test_items_that_are_not_null_stay_so():
    agg = Bound("array<int not null>", "array_agg")

    assert agg.accumulate([1, None], [None]) == [[1], None]
    with pytest.raises(InvalidSchema, match="nulls = keep puts nulls among the items"):
        Bound("array<int not null>", "array_agg(nulls = keep)")


def test_taking_back_removes_the_first_that_is_equal_once_for_each():
    agg = Bound("array<int>", "array_agg")

    assert agg.retract([1, 2, 1, 1], ("-", 1), ("-", 1)) == [2, 1]
    assert agg.retract([1, 2], ("-", 3), ("-", None)) == [1, 2]
    assert agg.retract([1], ("+", 2), ("-", 1)) == [2]
    assert agg.retract([1], ("-", 1)) == []
    assert agg.retract(None, ("-", 1)) is None


def test_rows_and_nulls_can_be_taken_back_as_well():
    agg = Bound("array<row<a int, b array<string>>>", "array_agg(nulls = keep)")
    one, other = {"a": 1, "b": ["x"]}, {"a": 1, "b": ["x", None]}

    assert agg.retract([one, None, other], ("-", other), ("-", None)) == [one]


def test_a_set_or_a_bounded_list_cannot_take_anything_back():
    assert Bound("array<int>", "array_agg").column.is_retractable
    assert not Bound("array<int>", "array_agg(distinct = true)").column.is_retractable
    assert not Bound("array<int>", "collect(max_size = 3)").column.is_retractable


def test_the_best_come_first():
    assert Bound("array<int>", "top_n(n = 2)").accumulate([1, 3, None, 3], [None], [5]) == [[3, 3], None, [5]]
    assert Bound("array<int>", "bottom_n(n = 2)").accumulate([1, 3, None, 2]) == [[1, 2]]
    assert Bound("array<int>", "top_n(n = 2, distinct = true)").accumulate([1, 3, 3]) == [[3, 1]]
    assert Bound("array<string>", "top_n(n = 3)").accumulate(["\uffff", "\U00010000", "b"]) == [
        ["\U00010000", "\uffff", "b"]
    ]


def test_the_best_are_put_right_when_they_are_merged():
    agg = Bound("array<int>", "top_n(n = 2)")

    assert agg.merge([[1, 5, 3]], [[2], None, [4, 1]], [None], [[]]) == [[5, 3], [4, 2], None, []]
    with pytest.raises(InvalidRows, match="has a null in it"):
        agg.check([1, None])


def test_nan_is_the_greatest_and_the_negative_zero_the_lesser():
    (found,) = Bound("array<float>", "bottom_n(n = 4)").accumulate([math.nan, 0.0, math.inf, -0.0])

    assert [repr(each) for each in found] == ["-0.0", "0.0", "inf", "nan"]


def test_a_histogram_counts_a_value_below_the_first_bound_that_is_greater():
    agg = Bound("array<bigint>", "histogram(bounds = '0, 10, 100')")

    assert agg.accumulate([-5.0, 0.0, 9.99, 10.0, None, 100.0, math.nan, math.inf, -math.inf], [None]) == [
        [2, 2, 1, 3],
        None,
    ]
    assert agg.merge([[1, 0, 0, 0], None, [1, 2, 3, 4]], [None, None]) == [[2, 2, 3, 4], None]
    assert agg.retract([2, 2, 1, 3], ("-", 5.0), ("-", None), ("-", math.nan)) == [2, 1, 1, 2]
    assert agg.retract(None, ("-", 5.0)) is None


def test_large_integers_are_compared_with_bounds_exactly():
    bound = 2.0**53 + 4
    agg = Bound("array<bigint>", f"histogram(bounds = '-1e30, 0.5, {bound!r}, 1e30', input = bigint)")

    assert agg.accumulate([2**53 + 3, 2**53 + 4, 0, 1, 2**63 - 1, -(2**63)]) == [[0, 2, 2, 2, 0]]


def test_a_histogram_that_does_not_fit_its_counts_is_an_error():
    agg = Bound("array<bigint>", "histogram(bounds = '1')")

    with pytest.raises(AggregateOverflow):
        agg.merge([[2**63 - 1, 0], [1, 0]])


def test_a_state_of_a_histogram_has_a_count_for_each_place():
    agg = Bound("array<bigint>", "histogram(bounds = '1, 2')")

    agg.check([1, 2, 3], None)
    with pytest.raises(InvalidRows, match="2 bounds is a list of 3 counts; one of these has 2"):
        agg.check([1, 2, 3], [1, 2])
    with pytest.raises(InvalidRows, match="is null"):
        agg.check([1, None, 3])


def test_a_quantile_is_found_between_bounds():
    states = pa.array([[0, 10, 0], [4, 0, 0], [0, 0, 3], [0, 0, 0], None], pa.list_(pa.int64()))

    assert histogram_quantile(states, [10, 20], 0.5).to_pylist() == [15.0, 5.0, 20.0, None, None]
    assert histogram_quantile(pa.chunked_array([states.slice(1, 2)]), [-1.0, 20], 0).to_pylist() == [-1.0, 20.0]
    assert histogram_quantile(states.slice(0, 1), [10, 20], 1).to_pylist() == [20.0]
    assert histogram_quantile(states.slice(0, 0), [10, 20], 1).to_pylist() == []


@pytest.mark.parametrize(
    ("bounds", "q"), [([1, 2, 3], 0.5), ([], 0.5), ([2, 1], 0.5), ([1, 2], 1.5), ([1, 2], math.nan)]
)
def test_a_quantile_of_other_bounds_or_no_share_is_refused(bounds, q):
    with pytest.raises(InvalidArgument):
        histogram_quantile(pa.array([[1, 2, 3]]), bounds, q)


# --- laws


@given(
    st.data(),
    st.sampled_from((*SCALARS, *NESTED)),
    st.sampled_from(("array_agg", "collect")),
    st.sampled_from(("skip", "keep")),
    st.sampled_from((None, 1, 3)),
    st.booleans(),
)
def test_lists_are_what_a_plain_loop_makes(data, item, name, nulls, max_size, distinct):
    distinct = distinct and item in SCALARS
    limit = "" if max_size is None else f", max_size = {max_size}"
    agg = Bound(f"array<{item}>", f"{name}(nulls = {nulls}, distinct = {distinct}{limit})")

    def loop(given):
        lists = given if name == "collect" else [[each] for each in given if each is not None or nulls == "keep"]
        lists = [each for each in lists if each is not None]
        found = []
        for value in (value for each in lists for value in each):
            if (value is not None or nulls == "keep") and not (distinct and value in found):
                found.append(value)
        return found[:max_size] if lists else None

    check_laws(data, agg, data.draw(inputs(agg.column.input)), loop)


@given(st.data(), st.sampled_from((*SCALARS, *NESTED)))
def test_what_is_taken_back_is_gone_as_often_as_it_was(data, item):
    agg = Bound(f"array<{item}>", "array_agg(nulls = keep)")
    array = data.draw(inputs(agg.column.input))
    retracts = np.array(data.draw(st.lists(st.booleans(), min_size=len(array), max_size=len(array))), np.bool_)
    groups = groups_of(len(array)) if len(array) else groups_of()

    states = agg.function.accumulate(array, groups)
    left = agg.function.remove(states, agg.function.retracted(array, retracts, groups))

    agg.made(left)
    if len(array):
        values = plain(array)
        expected = list(values)
        for value in (value for value, goes in zip(values, retracts, strict=True) if goes):
            expected.remove(value)
        assert plain(left) == [expected]


@given(st.data(), st.sampled_from(ORDERED), st.booleans(), st.integers(1, 4), st.booleans())
def test_the_best_are_the_first_of_a_sorted_list(data, item, greatest, n, distinct):
    agg = Bound(f"array<{item} not null>", f"{'top_n' if greatest else 'bottom_n'}(n = {n}, distinct = {distinct})")

    def loop(given):
        values = [each for each in given if each is not None]
        found = sorted(set(values) if distinct else values, key=order, reverse=greatest)
        return found[:n] if values else None

    check_laws(data, agg, data.draw(inputs(agg.column.input)), loop)


@given(
    st.data(),
    st.lists(st.integers(-20, 20) | st.floats(-1e18, 1e18), min_size=1, max_size=5, unique=True).map(sorted),
    st.sampled_from(("tinyint", "bigint", "float", "double")),
)
def test_histograms_are_what_a_plain_loop_counts_and_can_be_taken_back(data, bounds, input):
    texts = ", ".join(map(str, bounds))
    agg = Bound("array<bigint not null>", f"histogram(bounds = '{texts}', input = {input})")
    array = data.draw(inputs(agg.column.input))

    def loop(given):
        counts = [0] * (len(bounds) + 1)
        for value in given:
            value = number(value) if isinstance(value, bytes) else value
            if value is not None:
                counts[len(bounds) if value != value else bisect_right(bounds, value)] += 1
        return counts if any(counts) else None

    check_laws(data, agg, array, loop)
    if len(array):
        half, groups = np.arange(len(array)) % 2 == 0, groups_of(len(array))
        kept = array.filter(pa.array(~half))
        left = agg.function.remove(agg.function.accumulate(array, groups), agg.function.retracted(array, half, groups))
        assert (plain(left)[0] or [0] * (len(bounds) + 1)) == (loop(plain(kept)) or [0] * (len(bounds) + 1))


# --- tables


def test_a_table_keeps_lists_through_partial_puts_states_retractions_and_a_restart(tmp_path):
    schema = Schema(
        [
            Column("id", "bigint"),
            Column("tags", "array<string>", agg="array_agg"),
            Column("rows", "array<row<x int, y array<double>>>", agg="collect"),
            Column("latency", "array<bigint>", agg="histogram(bounds = '10, 100', input = int)"),
        ],
        "id",
    )
    with kolk.connect(tmp_path) as db:
        table = db.create_table("t", schema)
        table.put([{"id": 1, "tags": "a", "rows": [{"x": 1, "y": [0.5]}], "latency": 5}])
        table.put([{"id": 1, "tags": tag} for tag in "bca"], columns=["tags"])
        states = table.preaggregate(
            [{"id": 1, "tags": None, "rows": [None], "latency": 50}, {"id": 1, "tags": "z", "rows": [], "latency": 500}]
        )
        assert states.num_rows == 1
        table.put(states, mode="merge_state")
        table.retract([{"id": 1, "tags": "a", "rows": [{"x": 1, "y": [0.5]}], "latency": 7}])
        with pytest.raises(InvalidRows, match="is a list of 3 counts"):
            table.put([{"id": 1, "latency": [1]}], columns=["latency"], mode="merge_state")
        with pytest.raises(InvalidRows, match="is a list of 3 counts"):
            table.put([{"id": 1, "latency": [1]}], columns=["latency"], mode="overwrite")
    with kolk.connect(tmp_path) as db:
        table = db.table("t")
        assert table.get_one(id=1) == {"id": 1, "tags": ["b", "c", "a", "z"], "rows": [None], "latency": [0, 1, 1]}
        table.put([{"id": 1, "tags": "y", "rows": None, "latency": None}])
        assert table.get_one(id=1)["tags"] == ["b", "c", "a", "z", "y"]
        assert histogram_quantile(table.scan().to_arrow()["latency"], (10, 100), 0.25).to_pylist() == [55.0]


def test_a_table_keeps_the_best_and_emits_nothing_when_they_stay_the_same(tmp_path):
    schema = Schema([Column("id", "bigint"), Column("best", "array<decimal(6, 2)>", agg="top_n(n = 2)")], "id")
    with kolk.connect(tmp_path) as db:
        table = db.create_table("t", schema)
        table.put([{"id": 1, "best": Decimal(each)} for each in ("1.5", "7", "3.25")])
        before = table.get_one(id=1)
        table.put([{"id": 1, "best": Decimal("0.5")}])
        assert before == table.get_one(id=1) == {"id": 1, "best": [Decimal("7.00"), Decimal("3.25")]}
        with pytest.raises(InvalidRows, match="cannot take a value back"):
            table.retract([{"id": 1, "best": Decimal(7)}])
        table.put([{"id": 1, "best": [Decimal(9)]}], mode="merge_state")
        assert table.get_one(id=1)["best"] == [Decimal("9.00"), Decimal("7.00")]


def test_lists_of_types_are_declared_with_their_input():
    assert Bound("array<decimal(4, 1)>", "array_agg").column.input == DataType.parse("decimal(4, 1)")
    assert Bound("array<decimal(4, 1)>", "collect").column.input == DataType.parse("array<decimal(4, 1)>")
    assert Bound("array<bigint>", "histogram(bounds = '1')").column.input == DataType.parse("double")
    with pytest.raises(InvalidSchema, match="distinct items are scalar"):
        Bound("array<array<int>>", "array_agg(distinct = true)")
