"""Rows that a lookup shows as dicts: with the values that are stored, or none at all."""

import asyncio
import datetime

import pyarrow as pa
import pytest

import kolk
import kolk.aio
from kolk.client.found import dicts_of
from kolk.errors import InvalidArgument

NOON = 12 * 3600 * 10**9
ROW = "row<at time(9), others array<map<string, time(9)>>>"


def nested(at: int, other: int) -> pa.Array:
    """A row with these times of a day, one of them three levels deep."""
    times = pa.array([at, other], pa.time64("ns"))
    entries = pa.MapArray.from_arrays([0, 1], ["a"], times[1:])
    lists = pa.ListArray.from_arrays([0, 1], entries)
    return pa.StructArray.from_arrays([times[:1], lists], names=["at", "others"])


@pytest.fixture
def folder(tmp_path):
    """A database whose rows 1 to 4 hold something that Python has no value for."""
    times = [(NOON + 1_000, 1, NOON, NOON), (NOON + 1, 1, NOON, NOON), (NOON, 1, NOON + 1, NOON)]
    times += [(NOON, 1, NOON, NOON + 999), (NOON, -800_000, NOON, NOON)]
    columns = [kolk.Column("k", "int"), kolk.Column("t", "time(9)"), kolk.Column("d", "date"), kolk.Column("r", ROW)]
    with kolk.connect(tmp_path / "data") as db:
        table = db.create_table("t", kolk.Schema(columns, primary_key=["k"]))
        for k, (time, day, at, other) in enumerate(times):
            dates = pa.array([day], pa.int32()).cast(pa.date32())
            table.put(pa.table({"k": [k], "t": pa.array([time], pa.time64("ns")), "d": dates, "r": nested(at, other)}))
    return tmp_path / "data"


@pytest.fixture
def table(folder):
    with kolk.connect(folder) as db:
        yield db.table("t")


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_what_python_cannot_show_is_an_error_and_not_another_value(table, k):
    with pytest.raises(InvalidArgument, match=r"Python has no value for what this row holds .*; use get, for Arrow"):
        table.get_one(k=k)

    assert table.get([k]).num_rows == 1


def test_what_python_can_show_is_shown_with_maps_as_dicts(table):
    row = table.get_one(k=0)

    assert row["t"].microsecond == 1
    assert row["r"]["others"][0]["a"].hour == 12


@pytest.mark.parametrize("keys", [[1], [4], [0, 1, 2, 3, 4, 5]])
def test_lookups_that_are_asked_for_together_fail_each_by_itself(folder, keys):
    async def ask():
        async with await kolk.aio.connect(folder) as db:
            shared = await db.table("t")
            return await asyncio.gather(*(shared.get_one(k=k) for k in keys), return_exceptions=True)

    expected = [type(None) if k == 5 else dict if k == 0 else InvalidArgument for k in keys]

    assert [type(row) for row in asyncio.run(ask())] == expected


def test_what_a_null_hides_need_not_be_shown():
    hidden = pa.StructArray.from_arrays([nested(NOON + 1, 1)], names=["r"], mask=pa.array([True]))
    lists = pa.ListArray.from_arrays([0, 1, 2], pa.array([1, NOON], pa.time64("ns")))[1:]
    rows = pa.record_batch({"a": hidden, "b": pa.array([None], pa.time64("ns")), "c": lists})

    assert dicts_of(rows) == [{"a": None, "b": None, "c": [datetime.time(12)]}]
