"""Functions of maps: the values of each key."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.merge.bound import Bound, check_laws, cuts, groups_of, inputs, order, plain, small

import kolk
from kolk.errors import AggregateOverflow, InvalidSchema
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType

KEYS = (
    "string",
    "int",
    "boolean",
    "decimal(30, 2)",
    "bytes",
    "binary(2)",
    "date",
    "timestamp(9)",
    "char(2)",
    "time(0)",
)
VALUES = ("int", "string", "double", "array<row<a int not null>>", "row<x string, y array<int>>", "map<int, string>")
ORDERED = ("smallint", "string", "double", "decimal(25, 5)", "timestamp(6)", "float")


def test_the_last_value_of_each_key_wins():
    agg = Bound("map<string, int>", "merge_map")

    assert agg.accumulate([[("a", 1), ("b", 2)], None, [("a", 3)]], [None]) == [[("a", 3), ("b", 2)], None]
    assert agg.merge([[("a", 1)], [("a", None)]], [None, [("c", 4)]]) == [[("a", None)], [("c", 4)]]


def test_keys_are_kept_in_ascending_order_even_those_of_a_single_map():
    agg = Bound("map<string, int>", "merge_map")

    assert agg.accumulate([[("b", 2), ("\U00010000", 5), ("\uffff", 4), ("a", 1)]]) == [
        [("a", 1), ("b", 2), ("\uffff", 4), ("\U00010000", 5)]
    ]
    assert Bound("map<int, int>", "max_map").merge([[(10, 1), (9, 2), (-1, 3)]]) == [[(-1, 3), (9, 2), (10, 1)]]


def test_an_empty_map_is_a_map_and_null_is_none():
    for name in ("merge_map", "sum_map", "min_map", "max_map"):
        assert Bound("map<string, int>", name).accumulate([[]], [None, []], [None]) == [[], [], None]


def test_values_of_a_key_are_added_up_and_nulls_passed_over():
    agg = Bound("map<string, int>", "sum_map")

    assert agg.accumulate([[("a", 1), ("b", None)], [("a", 2), ("b", None), ("c", None)], [("c", 5)]]) == [
        [("a", 3), ("b", None), ("c", 5)]
    ]


def test_a_sum_that_does_not_fit_is_an_error_or_what_the_column_says():
    maps = [[("a", 100)], [("a", 100)]]

    with pytest.raises(AggregateOverflow):
        Bound("map<string, tinyint>", "sum_map").accumulate(maps)
    assert Bound("map<string, tinyint>", "sum_map(overflow = wrap)").accumulate(maps) == [[("a", -56)]]
    assert Bound("map<string, tinyint>", "sum_map(overflow = saturate)").accumulate(maps) == [[("a", 127)]]
    with pytest.raises(InvalidSchema, match="wrap is for integers"):
        Bound("map<string, decimal(4, 2)>", "sum_map(overflow = wrap)")
    with pytest.raises(InvalidSchema, match="never overflows"):
        Bound("map<string, double>", "sum_map(overflow = saturate)")
    with pytest.raises(InvalidSchema, match="its values are one of"):
        Bound("map<string, string>", "sum_map")


def test_the_least_and_the_greatest_value_of_each_key_are_kept():
    maps = [[("a", "x"), ("b", None)], [("a", "y"), ("c", "z")]]

    assert Bound("map<string, string>", "min_map").accumulate(maps) == [[("a", "x"), ("b", None), ("c", "z")]]
    assert Bound("map<string, string>", "max_map").accumulate(maps) == [[("a", "y"), ("b", None), ("c", "z")]]
    assert not Bound("map<string, string>", "max_map").column.is_retractable


def test_a_key_goes_if_the_last_that_happened_to_it_is_that_it_was_taken_back():
    agg = Bound("map<string, int>", "merge_map")

    assert agg.retract([("a", 1), ("b", 2)], ("-", [("a", 1), ("z", 0)])) == [("b", 2)]
    assert agg.retract([("a", 1)], ("-", [("a", 1)]), ("+", [("a", 2)])) == [("a", 2)]
    assert agg.retract([("a", 1)], ("+", [("a", 2), ("b", 3)]), ("-", [("a", 2)])) == [("b", 3)]
    assert agg.retract([("a", 1)], ("-", [("a", 1)])) == []
    assert agg.retract([("a", 1)], ("-", None), ("-", [])) == [("a", 1)]
    assert agg.retract(None, ("-", [("a", 1)])) is None


def test_sums_are_subtracted_from_the_keys_that_are_there():
    agg = Bound("map<string, decimal(10, 2)>", "sum_map")

    assert agg.retract([("a", 5), ("b", None)], ("-", [("b", 1), ("a", 2)]), ("-", [("x", 7), ("a", 1)])) == [
        ("a", 2),
        ("b", None),
    ]
    assert agg.retract([], ("-", [("a", 1)])) == []
    assert agg.retract(None, ("-", [("a", 1)])) is None


# --- laws


def loop_of(one):
    def loop(given):
        maps = [each for each in given if each is not None]
        found: dict = {}
        for entry in (entry for each in maps for entry in each):
            known = entry["key"] in found
            found[entry["key"]] = one(found[entry["key"]], entry["value"]) if known else entry["value"]
        ordered = sorted(found, key=lambda key: key.encode() if isinstance(key, str) else key)
        return [{"key": key, "value": found[key]} for key in ordered] if maps else None

    return loop


def ignoring_nulls(one):
    return lambda left, right: right if left is None else left if right is None else one(left, right)


@given(st.data(), st.sampled_from(KEYS), st.sampled_from(VALUES))
def test_the_last_values_are_what_a_plain_loop_finds(data, key, value):
    agg = Bound(f"map<{key}, {value}>", "merge_map")

    check_laws(data, agg, data.draw(inputs(agg.column.input)), loop_of(lambda _, last: last))


@given(st.data(), st.sampled_from(KEYS), st.sampled_from(ORDERED), st.booleans(), st.booleans())
def test_extremes_are_what_a_plain_loop_finds(data, key, value, greatest, required):
    agg = Bound(f"map<{key}, {value}{' not null' * required}>", "max_map" if greatest else "min_map")
    one = ignoring_nulls(lambda left, right: (max if greatest else min)(left, right, key=order))

    check_laws(data, agg, data.draw(inputs(agg.column.input)), loop_of(one))


def few(value):
    """Maps of few keys, so that they meet."""
    pairs = st.tuples(st.sampled_from("cab"), value)
    return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])


@given(st.data(), st.sampled_from(("int", "bigint", "decimal(38, 0)", "double")))
def test_sums_are_what_a_plain_loop_adds_up_and_can_be_taken_back(data, value):
    agg = Bound(f"map<string, {value}>", "sum_map")
    numbers = st.integers(-(2**20), 2**20).map(float if value == "double" else int)
    array = data.draw(small(agg.column.input, few(st.none() | numbers)))
    one = ignoring_nulls(lambda left, right: left + right)

    if value == "double":
        groups = data.draw(cuts(len(array)))
        found = agg.made(agg.function.accumulate(array, groups))
        parts = array.to_pylist()
        entries = [
            [each if each is None else [{"key": k, "value": v} for k, v in each] for each in parts[start:end]]
            for start, end in zip(groups.starts, groups.ends, strict=True)
        ]
        expected = [loop_of(one)(each) for each in entries]
        assert found == [each if each is None else [(e["key"], e["value"]) for e in each] for each in expected]
    else:
        check_laws(data, agg, array, loop_of(one))
    some = pa.array([[("a", 5), ("b", 6), ("c", 7)]], agg.state)
    if len(array):
        groups = groups_of(len(array))
        added = agg.function.merge(pa.concat_arrays([some, agg.function.accumulate(array, groups)]), groups_of(2))
        taken_back = agg.function.retracted(array, pa.array([True] * len(array)).to_numpy(False), groups)
        assert plain(agg.function.remove(added, taken_back)) == plain(some)


@given(st.data(), st.sampled_from(VALUES))
def test_what_is_taken_back_is_what_a_plain_loop_takes(data, value):
    agg = Bound(f"map<tinyint, {value}>", "merge_map")
    array = data.draw(inputs(agg.column.input))
    signs = data.draw(st.lists(st.sampled_from("+-"), min_size=len(array), max_size=len(array)))
    state = data.draw(inputs(agg.column.input, max_rows=1))
    if not len(array) or not len(state):
        return

    found = agg.retract(state[0].as_py(), *zip(signs, array.to_pylist(), strict=True))

    expected = None if state[0].as_py() is None else dict(state[0].as_py())
    changes = list(zip(signs, array.to_pylist(), strict=True))
    for sign, change in changes:
        if sign == "+" and change is not None:
            expected = (expected or {}) | dict(change)
    last = {key: sign for sign, change in changes for key, _ in change or []}
    if expected is not None:
        expected = [(key, expected[key]) for key in sorted(expected) if last.get(key) != "-"]
    assert repr(found if found is None else sorted(found, key=lambda entry: entry[0])) == repr(expected)


# --- tables


def test_a_table_keeps_maps_through_partial_puts_states_retractions_and_a_restart(tmp_path):
    schema = Schema(
        [
            Column("id", "bigint"),
            Column("latest", "map<string, array<int>>", agg="merge_map"),
            Column("clicks", "map<string, bigint not null>", agg="sum_map"),
        ],
        "id",
    )
    with kolk.connect(tmp_path) as db:
        table = db.create_table("t", schema)
        table.put([{"id": 1, "latest": {"b": [1], "a": None}, "clicks": {"y": 1, "x": 2}}])
        table.put([{"id": 1, "clicks": {"x": 3}}, {"id": 1, "clicks": None}], columns=["clicks"])
        rows = [{"id": 1, "latest": {"c": [3]}, "clicks": {"z": 9}}, {"id": 1, "latest": {"b": []}, "clicks": {"z": 1}}]
        table.put(table.preaggregate(rows), mode="merge_state")
        table.retract([{"id": 1, "latest": {"c": [3]}, "clicks": {"z": 4, "w": 1}}])
    with kolk.connect(tmp_path) as db:
        table = db.table("t")
        row = table.get_one(id=1)
        assert dict(row["latest"]) == {"a": None, "b": []}
        assert dict(row["clicks"]) == {"x": 5, "y": 1, "z": 6}
        changes = [
            {"id": 1, "latest": {"a": None}, "clicks": {"x": 5}, "_change_type": "-U"},
            {"id": 1, "latest": {"a": [7]}, "clicks": {"x": 6}, "_change_type": "+U"},
        ]
        table.put(changes, mode="merge_state")
        row = table.get_one(id=1)
        assert dict(row["latest"]) == {"a": [7], "b": []}
        assert dict(row["clicks"]) == {"x": 6, "y": 1, "z": 6}


def test_states_that_are_taken_back_honour_the_order_in_which_they_came(tmp_path):
    schema = Schema([Column("id", "bigint"), Column("name", "string", agg="last_value")], "id")
    with kolk.connect(tmp_path) as db:
        table = db.create_table("t", schema)
        table.put([{"id": 1, "name": "old"}])
        changes = [
            {"id": 1, "name": "old", "_change_type": "-U"},
            {"id": 1, "name": "new", "_change_type": "+U"},
        ]
        table.put(changes, mode="merge_state")
        assert table.get_one(id=1)["name"] == "new"


def test_the_same_map_in_another_order_is_no_change(tmp_path):
    schema = Schema([Column("id", "bigint"), Column("m", "map<string, int>", agg="merge_map")], "id")
    with kolk.connect(tmp_path) as db:
        table = db.create_table("t", schema, buckets=1)
        table.put([{"id": 1, "m": {"b": 2, "a": 1}}])
        before = table.put([{"id": 1, "m": {"a": 1}}])
        after = table.put([{"id": 1, "m": {"b": 2, "a": 1}}])
        assert [dict(table.get_one(id=1)["m"]), before.offsets] == [{"a": 1, "b": 2}, after.offsets]


def test_maps_are_given_as_maps():
    assert Bound("map<string, int>", "sum_map").column.input == DataType.parse("map<string, int>")
