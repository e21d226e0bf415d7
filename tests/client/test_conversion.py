"""What people hand in for nested columns: kept as it is, or refused by name."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.client import rows
from kolk.client.rows import rows_batch
from kolk.errors import InvalidRows, TooLarge
from kolk.model.rows import checked_rows
from kolk.model.schema import Column, Schema
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import batches, schemas


def taken(type: str, data) -> list:
    """The values of column ``c`` of this type, made of some data."""
    schema = Schema([Column("c", type)])
    batch = checked_rows(rows_batch(data, schema, schema.columns, ignorable=False), schema.columns)
    return batch.column(0).to_pylist()


@pytest.mark.parametrize(
    ("type", "given", "kept"),
    [
        ("array<int>", (1, None), [1, None]),
        ("array<int>", np.array([1, 2]), [1, 2]),
        ("array<array<double>>", np.array([[1.0, 2.0], [3.0, 4.0]]), [[1.0, 2.0], [3.0, 4.0]]),
        ("array<float>", [0.5], [0.5]),
        ("array<decimal(5, 2)>", [1, Decimal("2.5")], [Decimal("1.00"), Decimal("2.50")]),
        ("array<timestamp(3)>", [datetime.datetime(2026, 1, 1)], [datetime.datetime(2026, 1, 1)]),  # noqa: DTZ001
        ("map<string, int>", {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        ("map<string, int>", [("a", 1), ["b", 2]], [("a", 1), ("b", 2)]),
        ("map<string, int>", [{"key": "a", "value": 1}], [("a", 1)]),
        ("map<int, map<string, int>>", {1: {"x": 2}, 2: None}, [(1, [("x", 2)]), (2, None)]),
        ("row<a int, b array<string>>", {"b": ["x"], "a": 1}, {"a": 1, "b": ["x"]}),
        ("row<a row<b int>>", {"a": None}, {"a": None}),
    ],
)
def test_python_values_are_kept_within_nested_ones(type, given, kept):
    rows = [{"c": None}, {"c": given}]

    assert taken(type, rows) == [None, kept]
    assert taken(type, pd.DataFrame({"c": pd.Series([None, given], dtype=object)})) == [None, kept]


@pytest.mark.parametrize(
    ("type", "given", "message"),
    [
        ("array<int>", "text", "'c' is a array<int>; give a list, not a str"),
        ("array<int>", {1}, "give a list, not a set"),
        ("array<int>", [1.5], "'c.item' is a int, got double"),
        ("array<int>", ["1"], "'c.item' is a int, got string"),
        ("array<tinyint>", [300], "'c.item' is a tinyint"),
        ("array<int not null>", [None], "'c.item' is NOT NULL"),
        ("array<float>", [1e300], "'c.item' is a float, but a value is out of its range"),
        ("array<array<int>>", [1], "'c.item' is a array<int>; give a list, not a int"),
        ("map<string, int>", [1], "each entry is a pair"),
        ("map<string, int>", 5, "give a dict or a list of pairs, not a int"),
        ("map<string, int>", {1: 1}, "'c.key' is a string, got int64"),
        ("map<string, int>", [("a", 1), ("a", 2)], "same key twice"),
        ("map<string, int>", [(None, 1)], "'c' is a map<string, int>, but a key is null"),
        ("row<a int, b int>", {"a": 1}, "differs in b: give every field"),
        ("row<a int>", {"a": 1, "z": 1}, "differs in z"),
        ("row<a int>", (1,), "give a dict, not a tuple"),
        ("row<a row<b date>>", {"a": {"b": "2026-01-01"}}, "'c.a.b' is a date, got string"),
        ("int", [1], "'c' is a int, got list"),
    ],
)
def test_python_values_that_do_not_fit_are_refused_by_name(type, given, message):
    with pytest.raises(InvalidRows) as caught:
        taken(type, [{"c": given}])

    assert message in str(caught.value)


@pytest.mark.parametrize(
    "arrow",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.int8()),
        pa.list_view(pa.uint16()),
        pa.large_list_view(pa.int32()),
        pa.list_(pa.field("element", pa.int32(), nullable=False)),
        pa.list_(pa.dictionary(pa.int8(), pa.int64())),
    ],
    ids=str,
)
def test_every_kind_of_arrow_list_is_taken_whatever_its_slice(arrow):
    whole = pa.array([[9], [1, 2], None, [], [3]], pa.list_(pa.int64()))
    values = pa.array(whole.to_pylist(), arrow)

    assert taken("array<int>", pa.table({"c": values.slice(1)})) == [[1, 2], None, [], [3]]


def test_lists_of_a_fixed_size_and_dictionaries_of_lists_are_taken():
    fixed = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)).slice(1)
    coded = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), pa.array([[1], [2, 3]]))

    assert taken("array<int>", pa.table({"c": fixed})) == [None, [3, 4]]
    assert taken("array<bigint>", pa.table({"c": coded})) == [[2, 3], None, [1]]
    assert taken("array<array<int>>", pa.table({"c": pa.nulls(2)})) == [None, None]
    assert taken("array<int>", pa.table({"c": pa.array([[], [None]])})) == [[], [None]]


def coded(values, type=None):
    """A chunk that is a dictionary of these values, each of them once."""
    places = pa.array(range(len(values)), pa.int8())
    return pa.DictionaryArray.from_arrays(places, pa.array(values).cast(type) if type else pa.array(values))


@pytest.mark.parametrize(
    ("type", "chunks"),
    [
        ("string", [coded([f"{name}{n}" for n in range(100)]) for name in "abc"]),  # more than their indices can count
        ("string", [coded(["a"], pa.string_view()), coded(["b", None], pa.string_view())]),
        ("row<a int>", [coded([{"a": 1}, None]), coded([{"a": 2}])]),
        ("array<int>", [coded([[1], []]), coded([[2]])]),
        ("int", [pa.DictionaryArray.from_arrays(pa.array([None, 1], pa.uint8()), pa.array([1, 2]))] * 2),
    ],
    ids=["many", "views", "rows", "lists", "with nulls"],
)
def test_chunks_with_a_dictionary_each_are_taken(type, chunks):
    column = pa.chunked_array(chunks)

    assert taken(type, pa.table({"c": column})) == [value for chunk in chunks for value in chunk.to_pylist()]
    assert taken(type, pa.table({"c": column.slice(1)})) == column.to_pylist()[1:]
    assert taken(type, pa.table({"c": pa.chunked_array([], column.type)})) == []


@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("tinyint", pa.array([1, 300, 2])),
        ("decimal(2, 0)", pa.array([1, 300, 2])),
        ("timestamp(0)", pa.array([0, 1, 10**6], pa.timestamp("us"))),
        ("array<tinyint>", pa.array([[1], [300], [2]])),
    ],
)
def test_a_value_of_a_dictionary_that_no_row_has_need_not_fit(type, values):
    coded = pa.DictionaryArray.from_arrays(pa.array([1, 2, None, 0, 2], pa.int8()), values)[1:]
    kept = [values[2].as_py(), None, values[0].as_py(), values[2].as_py()]

    assert taken(type, pa.table({"c": coded})) == kept
    with pytest.raises(InvalidRows, match=r"'c(\.item)?' is a"):
        taken(type, pa.table({"c": pa.DictionaryArray.from_arrays(pa.array([0, 1]), values)}))


def test_a_category_that_was_filtered_away_need_not_fit():
    frame = pd.DataFrame({"c": pd.Categorical([1, 300, 2])})

    assert taken("tinyint", frame[frame["c"] != 300]) == [1, 2]


def test_a_column_of_no_chunks_and_of_another_type_is_refused_by_name():
    with pytest.raises(InvalidRows, match="'c' is a string, got sparse_union"):
        taken("string", pa.table({"c": pa.chunked_array([], pa.sparse_union([pa.field("a", pa.int32())]))}))


@pytest.mark.parametrize("scale", [0, 2, 18, 20, 25, 37])
def test_arrow_integers_are_taken_by_decimals_that_have_room_for_their_digits(scale):
    type, most = f"decimal(38, {scale})", min(10 ** (38 - scale) - 1, 2**63 - 1)

    assert taken(type, pa.table({"c": pa.array([5, None, -most, most])})) == [5, None, -most, most]
    assert taken(f"array<{type}>", pa.table({"c": pa.array([[5]])})) == [[5]]
    if scale > 18:
        with pytest.raises(InvalidRows, match="'c' is a decimal"):
            taken(type, pa.table({"c": pa.array([most + 1])}))


def test_arrow_maps_are_taken_and_so_are_lists_of_keys_and_values():
    wide = pa.array([[("a", 1)], None, [("b", None), ("c", 3)]], pa.map_(pa.large_string(), pa.int64())).slice(1)
    entries = pa.list_(pa.struct([("value", pa.int64()), ("key", pa.string())]))
    listed = pa.array([[{"value": 1, "key": "a"}], [], None], entries)

    assert taken("map<string, int>", pa.table({"c": wide})) == [None, [("b", None), ("c", 3)]]
    assert taken("map<string, int>", pa.table({"c": listed})) == [[("a", 1)], [], None]
    with pytest.raises(InvalidRows, match="an entry is null"):
        taken("map<string, int>", pa.table({"c": pa.array([[None]], entries)}))
    with pytest.raises(InvalidRows, match="a key is null"):
        taken("map<string, int>", pa.table({"c": pa.array([[{"value": 1}]], entries)}))
    with pytest.raises(InvalidRows, match="'c' is a map<string, int>, got struct"):
        taken("map<string, int>", pa.table({"c": pa.array([{"a": 1}])}))
    with pytest.raises(InvalidRows, match="'c' is a array<int>, got map"):
        taken("array<int>", pa.table({"c": wide}))


def test_the_fields_of_arrow_rows_are_matched_by_name():
    rows = pa.array([{"b": 1, "a": "x"}, None], pa.struct([("b", pa.int64()), ("a", pa.string())]))

    assert taken("row<a string, b int>", pa.table({"c": rows})) == [{"a": "x", "b": 1}, None]
    with pytest.raises(InvalidRows, match="differs in b"):
        taken("row<a string>", pa.table({"c": rows}))
    twice = pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["a", "a"])
    with pytest.raises(InvalidRows, match="twice"):
        taken("row<a string>", pa.table({"c": twice}))


def test_what_a_null_hides_need_not_fit():
    beneath = pa.StructArray.from_arrays([pa.array([1, 2**40])], names=["a"], mask=pa.array([False, True]))

    assert taken("row<a int>", pa.table({"c": beneath})) == [{"a": 1}, None]


def test_polars_and_pandas_frames_with_nested_columns_are_taken():
    frame = pl.DataFrame({"c": [[1, None], None, []]}, schema={"c": pl.List(pl.Int64)})
    entries = pl.DataFrame({"c": [[{"key": "a", "value": 1}], []]})
    arrow_backed = pd.DataFrame({"c": pd.Series([[1], None], dtype=pd.ArrowDtype(pa.list_(pa.int64())))})

    assert taken("array<int>", frame) == [[1, None], None, []]
    assert taken("array<int>", pl.DataFrame({"c": [[1, 2]]}, schema={"c": pl.Array(pl.Int8, 2)})) == [[1, 2]]
    assert taken("row<x int, y string>", pl.DataFrame({"c": [{"x": 1, "y": "a"}]})) == [{"x": 1, "y": "a"}]
    assert taken("map<string, int>", entries) == [[("a", 1)], []]
    assert taken("array<int>", arrow_backed) == [[1], None]
    assert taken("array<int>", pd.DataFrame({"c": [[1], float("nan"), pd.NA]})) == [[1], None, None]
    with pytest.raises(InvalidRows, match="twice"):
        taken("array<int>", pd.DataFrame([[[1], [2]]], columns=["c", "c"], dtype=object))


def test_arrow_data_that_is_not_valid_is_refused_before_it_is_taken_apart():
    offsets = pa.py_buffer(np.array([0, 1_000_000, 1], "i4"))
    bad = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [None, offsets], children=[pa.array([1])])

    with pytest.raises(InvalidRows, match="not valid Arrow data"):
        taken("array<int>", pa.table({"c": bad}))


@pytest.mark.parametrize(("type", "value"), [("string", "x"), ("bytes", b"x"), ("array<string>", ["x", "y"])])
def test_more_text_than_one_array_has_room_for_is_too_large(monkeypatch, type, value):
    """Two GiB of it are too many for a test: here Arrow does after two values what it does after two GiB."""
    made = pa.array
    monkeypatch.setattr(pa, "array", lambda values, *of: pa.chunked_array([made(values[:1]), made(values[1:])]))

    with pytest.raises(TooLarge, match=r"'c.*' has more than 2 GiB; put it in pieces"):
        taken(type, [{"c": value}] * 2)


def test_a_frame_with_more_text_than_one_array_has_room_for_is_too_large(monkeypatch):
    def fails(_arrays):
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    chunks = pd.arrays.ArrowExtensionArray(pa.chunked_array([["x"], ["y"]]))
    monkeypatch.setattr(pa, "concat_arrays", fails)
    monkeypatch.setattr(rows, "_CHUNK_BYTES_MAX", 1)

    with pytest.raises(TooLarge, match="'c' has more than 2 GiB; put it in pieces"):
        taken("string", pd.DataFrame({"c": chunks}))


@given(st.data())
def test_rows_that_fit_are_taken_as_they_are_from_arrow_and_nearly_all_from_python(data):
    schema = data.draw(schemas(max_key=0, min_values=1, max_values=3))
    batch = data.draw(batches(schema))

    assert plain_rows(rows_batch(batch, schema, schema.columns, ignorable=False)) == plain_rows(batch)
