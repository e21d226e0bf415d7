"""Values of several Python types in one column: each is what it is alone, and none becomes like its neighbours."""

import datetime
import enum
import subprocess
import sys
import uuid
from decimal import Decimal
from functools import cache

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kolk
from kolk.client.rows import key_batch, rows_batch
from kolk.errors import InvalidRows
from kolk.model.rows import checked_rows
from kolk.model.schema import Column, Schema


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    __slots__ = ()


DAY, MOMENT, NOON = datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 2, 15), datetime.time(12)  # noqa: DTZ001
VALUES = [
    *(None, True, np.True_, 1, 2**40, 16_777_217, Level.LOW, np.int8(1), np.int64(7), np.uint64(9)),
    *(1.5, float("nan"), np.float16(0.5), np.float32(1.5), np.float64(2.5), Decimal("1.25"), Decimal(1)),
    *("a", "1", Word("b"), np.str_("c"), b"x", bytearray(b"y"), memoryview(b"z"), uuid.UUID(int=1)),
    *(DAY, MOMENT, MOMENT.replace(tzinfo=datetime.UTC), pd.Timestamp(MOMENT), NOON, datetime.timedelta(1)),
    *(np.datetime64("2026-01-01T05:00:00"), pd.NaT, pd.NA, pa.scalar(1), pa.scalar("a"), [1], {"a": 1}),
]
TYPES = [
    *("boolean", "tinyint", "bigint", "float", "double", "decimal(10, 2)", "decimal(38, 30)", "char(3)", "string"),
    *("binary(1)", "bytes", "date", "time", "timestamp", "timestamp_ltz", "array<double>", "row<a bigint>"),
]


def taken(type: str, data) -> list | None:
    """The values of column ``c`` of this type, made of some data; None if they are refused."""
    schema = Schema([Column("c", type)])
    try:
        batch = checked_rows(rows_batch(data, schema, schema.columns, ignorable=False), schema.columns)
    except InvalidRows:
        return None
    return batch.column(0).to_pylist()


def dicts(values: list) -> list[dict]:
    return [{"c": value} for value in values]


def frame(values: list) -> pd.DataFrame:
    column = pd.Series([None] * len(values), dtype=object)
    for place, value in enumerate(values):
        column.iat[place] = value
    return pd.DataFrame({"c": column})


@cache
def each_alone(form, type: str) -> list[list | None]:
    return [taken(type, form([value])) for value in VALUES]


@pytest.mark.parametrize("form", [dicts, frame])
@given(data=st.data(), type=st.sampled_from(TYPES))
def test_a_value_beside_others_is_what_it_is_alone(form, data, type):
    alone = each_alone(form, type)
    fitting = [place for place, value in enumerate(alone) if value is not None]
    places = data.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=4))
    places.insert(data.draw(st.integers(0, len(places))), data.draw(st.integers(0, len(VALUES) - 1)))

    together = taken(type, form([VALUES[place] for place in places]))

    if any(alone[place] is None for place in places):
        assert together is None
    else:
        assert repr(together) == repr([value for place in places for value in alone[place]])  # NaN is not NaN


@pytest.mark.parametrize("form", [dicts, frame])
@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("timestamp", [MOMENT, 1_767_225_600]),
        ("date", [DAY, MOMENT]),
        ("date", [DAY, 1.5]),
        ("time", [NOON, Decimal("1.25")]),
        ("bytes", [b"x", "1"]),
        ("double", [1.5, True]),
        ("int", [1, np.True_]),
        ("float", [16_777_217, 1.5]),
        ("array<timestamp>", [[MOMENT, 1_767_225_600]]),
        ("map<string, double>", [{"a": 1.5, "b": True}]),
        ("row<a date>", [{"a": DAY}, {"a": MOMENT}]),
    ],
)
def test_a_value_that_is_refused_alone_is_refused_beside_one_that_is_taken(form, type, values):
    assert taken(type, form(values)) is None


@pytest.mark.parametrize("form", [dicts, frame])
def test_values_of_several_types_that_are_taken_keep_their_order(form):
    assert taken("decimal(5, 2)", form([1, Decimal("2.5"), None, np.int64(3), Level.LOW, 4])) == [
        *(Decimal("1.00"), Decimal("2.50"), None, Decimal("3.00"), Decimal("1.00"), Decimal("4.00"))
    ]
    assert taken("double", form([1, 2.5, None, np.float32(0.5), 3])) == [1.0, 2.5, None, 0.5, 3.0]
    assert taken("string", form(["a", Word("b"), None, np.str_("c"), "d"])) == ["a", "b", None, "c", "d"]
    assert taken("timestamp", form([pd.Timestamp(MOMENT), None, MOMENT])) == [MOMENT, None, MOMENT]
    assert taken("array<double>", form([[1, 2.5], None, [3]])) == [[1.0, 2.5], None, [3.0]]


def test_objects_of_a_frame_lose_neither_their_zone_nor_nanoseconds():
    assert taken("time", frame([NOON.replace(tzinfo=datetime.UTC)])) is None
    assert taken("timestamp_ltz", frame([MOMENT, MOMENT.replace(tzinfo=datetime.UTC)])) is None
    assert taken("timestamp(9)", frame([pd.Timestamp("2020-01-01 00:00:00.000000001")])) is None


def test_every_way_of_pandas_to_say_nothing_is_null_among_objects():
    nothing = [None, float("nan"), np.float32("nan"), pd.NaT, pd.NA, Decimal("NaN"), np.datetime64("NaT")]

    assert taken("string", frame(["a", *nothing])) == ["a"] + [None] * 7
    assert taken("timestamp", frame([*nothing, MOMENT])) == [None] * 7 + [MOMENT]
    assert taken("double", frame([1.5, *nothing])) == [1.5] + [None] * 7


def test_categories_that_are_objects_are_taken_as_such():
    assert taken("date", pd.DataFrame({"c": pd.Categorical([DAY, None, DAY])})) == [DAY, None, DAY]
    assert taken("date", pd.DataFrame({"c": pd.Categorical([DAY, 5], categories=[DAY, 5])})) is None


@pytest.mark.parametrize(
    "form", [list, lambda keys: np.array(keys, object), lambda keys: pd.Series(keys, dtype=object)]
)
def test_a_key_that_is_refused_alone_names_no_row_beside_others(tmp_path, form):
    with kolk.connect(tmp_path / "data") as db:
        table = db.create_table("t", Schema([Column("day", "date")], primary_key=["day"]))
        table.put([{"day": DAY}, {"day": MOMENT.date()}])

        with pytest.raises(InvalidRows, match="'day' is a date"):
            table.delete(form([DAY, MOMENT]))

        assert table.get(form([DAY, MOMENT.date()])).num_rows == 2


def test_keys_in_an_array_of_objects_are_those_of_a_list():
    schema = Schema([Column("k", "string")], primary_key=["k"])
    keys = ["a", Word("b")]

    for form in (np.array(keys, object), pd.Series(keys, dtype=object), pl.Series(keys, dtype=pl.Categorical)):
        assert key_batch(form, schema).column(0).to_pylist() == ["a", "b"]
    with pytest.raises(InvalidRows):
        key_batch(np.array("a", object), schema)


def test_a_number_beside_a_time_of_numpy_does_not_end_the_process():
    script = """
import numpy as np
from kolk.client.rows import rows_batch
from kolk.errors import InvalidRows
from kolk.model.schema import Column, Schema
schema = Schema([Column("c", "timestamp")])
try:
    rows = [{"c": np.datetime64("2026-01-01T05:00:00")}, {"c": np.int64(7)}]
    rows_batch(rows, schema, schema.columns, ignorable=False)
except InvalidRows as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "'c' is a timestamp(6), got int64" in done.stdout
