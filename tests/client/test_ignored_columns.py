"""Columns in the data that a call does not ask for: their names must be the table's, and nothing else counts."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kolk
from kolk.errors import InvalidRows

COLUMNS = [kolk.Column("k", "int"), kolk.Column("a", "int"), kolk.Column("b", "int"), kolk.Column("m", "map<int, int>")]
NO_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], "i4")), pa.py_buffer(b"\xff")])
FORMS = {
    "a dict": {"k": 1, "a": 5, "b": object(), "m": {1: 2, "x": None}},
    "dicts": [{"k": 1, "a": 5, "b": 2**40, "m": 7}],
    "a frame of objects": pd.DataFrame({"k": [1], "a": [5], "b": pd.Series([object()]), "m": pd.Series([[1]])}),
    "a frame of numbers": pd.DataFrame({"k": [1], "a": [5], "b": [1j], "m": [1.5]}),
    "a table": pa.table({"k": [1], "a": [5], "b": NO_UTF8, "m": ["text"]}),
    "a batch": pa.record_batch({"k": [1], "a": [5], "b": NO_UTF8, "m": ["text"]}),
}


@pytest.fixture
def table(tmp_path):
    with kolk.connect(tmp_path / "data") as db:
        made = db.create_table("t", kolk.Schema(COLUMNS, primary_key=["k"]))
        made.put([{"k": 1, "a": 1, "b": 1, "m": {1: 1}}])
        yield made


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS)
def test_what_is_not_asked_for_need_not_fit(table, data):
    assert table.get(data).num_rows == 1

    table.put(data, columns=["a"])
    assert table.get_one(k=1) == {"k": 1, "a": 5, "b": 1, "m": {1: 1}}

    table.delete(data, columns=["a"])
    assert table.get_one(k=1)["a"] is None

    table.delete(data)
    assert table.get_one(k=1) is None


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS)
def test_what_is_asked_for_must_fit(table, data):
    with pytest.raises(InvalidRows):
        table.put(data, columns=["a", "b"])
    with pytest.raises(InvalidRows):
        table.put(data)


@pytest.mark.parametrize(
    "data",
    [
        {"k": 1, "a": 5, "z": 7},
        pd.DataFrame({"k": [1], "a": [5], "z": [7]}),
        pd.DataFrame({"k": [1], "a": [5], "z": pd.Series([object()])}),
        pa.table({"k": [1], "a": [5], "z": [7]}),
    ],
)
def test_a_column_that_the_table_has_not_is_refused_all_the_same(table, data):
    for call in (table.get, table.delete, lambda data: table.put(data, columns=["a"])):
        with pytest.raises(InvalidRows, match="there is no column 'z'; the columns are k, a, b, m"):
            call(data)


@pytest.mark.parametrize(
    "data",
    [
        pa.Table.from_arrays([pa.array([1])] * 3, names=["k", "b", "b"]),
        pd.DataFrame([[1, 2, 3]], columns=["k", "b", "b"]),
        pd.DataFrame([[1, 2, 3]], columns=["k", "b", "b"], dtype=object),
    ],
)
def test_a_name_given_twice_is_refused_all_the_same(table, data):
    with pytest.raises(InvalidRows, match="twice"):
        table.get(data)


def test_changes_of_some_columns_are_read_and_a_place_in_a_log_without_its_change_is_none_of_the_tables(table):
    changes = pa.table({"k": [1], "a": [7], "b": ["text"], "_change_type": ["+U"], "_log_offset": [3]})

    table.put(changes, columns=["a"])

    assert table.get_one(k=1)["a"] == 7
    with pytest.raises(InvalidRows, match="there is no column '_log_offset'"):
        table.put(changes.drop_columns(["_change_type"]), columns=["a"])


def test_of_no_rows_nothing_is_asked(table):
    table.put([], columns=["a"])

    assert table.get([]).num_rows == 0
