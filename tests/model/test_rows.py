"""The check that every row passes: what is within nested values obeys its type, and what nulls hide need not."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidRows
from kolk.model.nested import bounds_of, list_array
from kolk.model.rows import checked_rows
from kolk.model.schema import Column, Schema
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import batches, schemas


def check(type: str, values, nullable: bool = True) -> pa.RecordBatch:
    column = Column("c", type, nullable)
    array = values if isinstance(values, pa.Array) else pa.array(values, column.type.arrow)
    return checked_rows(pa.record_batch([array], ["c"]), [column])


@given(st.data())
def test_rows_that_fit_pass_unchanged(data):
    schema = data.draw(schemas(max_key=0, min_values=1))
    batch = data.draw(batches(schema))

    checked = checked_rows(batch, schema.columns)

    assert checked.schema.equals(schema.arrow, check_metadata=True)
    assert plain_rows(checked) == plain_rows(batch)


@pytest.mark.parametrize(
    ("type", "value", "message"),
    [
        ("array<int not null>", [1, None], "'c.item' is NOT NULL, but 1 of its values"),
        ("map<string, int not null>", [("a", None)], "'c.value' is NOT NULL"),
        ("row<a int, b int not null>", {"a": 1, "b": None}, "'c.b' is NOT NULL"),
        ("row<a row<b array<int not null>>>", {"a": {"b": [None]}}, "'c.a.b.item' is NOT NULL"),
        ("array<char(2)>", ["ab", "abc"], "'c.item' is a char(2), but a value has 3 characters"),
        ("map<char(1), int>", [("ab", 1)], "'c.key' is a char(1)"),
        ("row<t time(0)>", {"t": datetime.time(1, 2, 3)}, None),
        ("row<t time(1)>", {"t": datetime.time(1, 2, 3, 50_000)}, "'c.t' is a time(1), but a value is finer"),
        ("map<string, int>", [("a", 1), ("b", 1), ("a", 2)], "'c' has a map with the same key twice"),
        ("array<map<decimal(5, 2), int>>", [[(1, 1), (1, 1)]], "'c.item' has a map with the same key twice"),
    ],
)
def test_what_is_within_a_nested_value_is_checked_and_named(type, value, message):
    if message is None:
        check(type, [value])
    else:
        with pytest.raises(InvalidRows) as caught:
            check(type, [None, value])

        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("type", "key"),
    [
        *(("int", 1), ("boolean", False), ("decimal(20, 3)", 1), ("binary(1)", b"1"), ("string", ""), ("bytes", b"")),
        *(("date", 1), ("time(9)", 1), ("timestamp(3)", 1), ("timestamp_ltz", 1), ("char(3)", "a")),
    ],
)
def test_a_key_may_stand_in_several_maps_but_once_in_each(type, key):
    assert check(f"map<{type}, int>", [[(key, 1)], [(key, 2)], None, []]).num_rows == 4

    with pytest.raises(InvalidRows, match="same key twice"):
        check(f"map<{type}, int>", [[(key, 1)], [(key, 2), (key, 3)]])


def test_what_stands_beneath_a_null_is_not_checked():
    texts = Column("c", "array<char(1) not null>").type.arrow
    hidden = list_array(texts, bounds_of(np.array([1, 2])), [pa.array(["a", None, "too long"])], pa.py_buffer(b"\x01"))
    unused = list_array(texts, np.array([1, 2]), [pa.array([None, "a", "too long"])], None)

    assert check("array<char(1) not null>", hidden).column(0).to_pylist() == [["a"], None]
    assert check("array<char(1) not null>", unused).column(0).to_pylist() == [["a"]]


def test_a_row_that_is_null_may_have_no_fields_though_they_are_required():
    assert check("row<a int not null>", [{"a": 1}, None]).num_rows == 2
    with pytest.raises(InvalidRows, match="'c' is NOT NULL"):
        check("row<a int not null>", [{"a": 1}, None], nullable=False)


def test_the_names_that_arrow_gives_to_items_become_ours():
    foreign = pa.map_(pa.field("k", pa.string(), nullable=False), pa.list_(pa.field("element", pa.int32())))
    column = Column("c", "map<string, array<int>>")

    checked = check("map<string, array<int>>", pa.array([[("a", [1])]], foreign))

    assert checked.column(0).type.equals(column.type.arrow, check_metadata=True)
    assert checked.column(0).to_pylist() == [[("a", [1])]]


def test_a_type_that_differs_within_is_refused():
    column = Column("c", "array<int not null>")

    with pytest.raises(InvalidRows, match="'c' is a array<int not null>"):
        checked_rows(pa.record_batch([pa.array([[1]], pa.list_(pa.int32()))], ["c"]), [column])


def test_every_schema_has_batches_that_hold_nested_values():
    """So that the laws above mean something: the strategies do draw nested columns."""
    found: set[str] = set()

    @given(schemas(max_key=0, min_values=4))
    def look(schema: Schema) -> None:
        found.update(column.type.kind.value for column in schema.columns if column.type.is_nested)

    look()

    assert found == {"array", "map", "row"}
