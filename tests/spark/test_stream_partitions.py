"""Streaming reads of tables with partitions: those that come, those that go, those that are made anew, some of them."""

import json

import pytest

from kolk import Column, Schema
from kolk.errors import PartitionDropped
from kolk.spark.log_slices import changes_of

DAYS = Schema(
    [Column("day", "string", nullable=False), Column("id", "bigint", nullable=False), Column("v", "bigint")],
    primary_key=["day", "id"],
)


@pytest.fixture
def days(db, name):
    return db.create_table(name, DAYS, buckets=2, partition_by=["day"])


def put_days(table, day, ids, v=0):
    table.put([{"day": day, "id": each, "v": v} for each in ids])


def test_new_partitions_are_read_and_dropped_ones_are_let_go(days, query):
    put_days(days, "1", range(10))
    stream = query(changes="cdc")
    stream.drain()
    put_days(days, "2", range(100, 105))
    stream.drain()
    days.drop_partition(day="1")
    put_days(days, "3", range(200, 203))
    stream.drain()
    stream.start()
    put_days(days, "2", [100], 9)
    stream.drain()

    ids = [row["id"] for row in stream.everything() if row["_change_type"] == "insert"]
    assert sorted(ids) == [*range(10), *range(100, 105), *range(200, 203)]


def test_a_partition_that_is_made_anew_has_a_log_of_its_own(days, query):
    put_days(days, "1", range(10))
    stream = query(start="earliest", changes="cdc")
    stream.drain()
    days.drop_partition(day="1")
    put_days(days, "1", range(50, 53))

    stream.drain()

    assert sorted(row["id"] for row in stream.rows[1]) == [50, 51, 52]


def test_a_partition_that_is_dropped_unread_is_loud_unless_it_is_to_be_ignored(days, query):
    put_days(days, "1", range(10))
    put_days(days, "2", range(20, 25))
    stream = query(start="earliest", maxRowsPerTrigger="4", changes="cdc", follower="f")
    stream.trigger()
    days.drop_partition(day="1")

    with pytest.raises(PartitionDropped, match=r"changes unread.*'dropped-partitions', 'ignore'"):
        stream.drain()
    stream.options["dropped-partitions"] = "ignore"
    stream.start()
    stream.drain()

    assert {row["id"] for row in stream.everything()} >= set(range(20, 25))


def test_a_partition_that_is_dropped_before_its_rows_are_read_is_loud(days, query):
    put_days(days, "1", range(100))
    put_days(days, "2", range(200, 205))
    stream = query(maxRowsPerTrigger="10", changes="cdc")
    stream.trigger()
    days.drop_partition(day="1")

    with pytest.raises(PartitionDropped, match="ignore"):
        stream.drain()
    stream.options["dropped-partitions"] = "ignore"
    stream.start()
    stream.drain()

    assert {row["id"] for row in stream.everything()} >= set(range(200, 205))


def test_where_chooses_partitions_and_holds_nothing_of_the_others(days, query, db, name):
    put_days(days, "1", range(10))
    put_days(days, "2", range(20, 25))
    stream = query(where="day = '2'", changes="cdc")
    stream.drain()
    put_days(days, "1", range(30, 40))
    put_days(days, "2", [26])
    put_days(days, "3", [70])
    stream.drain()
    stream.reader.commit(json.loads(stream.ends[-1]))

    assert sorted(row["id"] for row in stream.everything()) == [20, 21, 22, 23, 24, 26]
    (follower,) = [each for each in db.followers() if each.table == name]
    assert follower.lag == 0


def test_a_batch_that_is_read_again_after_its_partition_was_made_anew_is_refused_or_passed_over(days, query):
    put_days(days, "1", range(10))
    put_days(days, "2", range(20, 25))
    stream = query(start="earliest", changes="cdc")
    stream.trigger()
    days.drop_partition(day="1")
    put_days(days, "1", range(50, 70))
    stream.committed = 0

    with pytest.raises(PartitionDropped, match="while a query read it"):
        stream.start()
    stream.options["dropped-partitions"] = "ignore"
    stream.start()
    assert sorted(row["id"] for row in stream.rows[0]) == list(range(20, 25))
    stream.drain()
    assert sorted(row["id"] for row in stream.rows[1]) == list(range(50, 70))


def test_a_partition_that_is_made_anew_under_a_task_spoils_what_it_has_read(days, query):
    put_days(days, "1", range(10))
    stream = query(start="earliest", changes="cdc")
    stream.trigger()
    (part,) = [each for each in stream.parts(0) if each.slices][:1]
    reading = changes_of(days, part.slices, days.schema.id)
    next(reading)
    days.drop_partition(day="1")
    put_days(days, "1", range(50, 70))

    with pytest.raises(PartitionDropped):
        list(reading)
