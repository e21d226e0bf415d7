"""Streaming reads of tables with partitions: those that come, those that go, those that are made anew, some of them."""

import json

import pytest

from kolk import Column, Schema
from kolk.errors import InvalidArgument, LeaseLost, OffsetOutOfRange, PartitionDropped
from kolk.spark.limits import Limits
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


def start_and_trigger(stream):
    stream.start()
    stream.trigger()


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


@pytest.mark.parametrize("where", ["", "day = '2'"])
def test_a_query_begins_before_there_is_a_partition(days, query, db, name, where):
    stream = query(changes="cdc", where=where)

    assert stream.drain() == 1
    put_days(days, "2", range(10))
    stream.start()
    stream.drain()

    assert sorted(row["id"] for row in stream.everything()) == list(range(10))
    assert [each for each in db.leases() if name in each.tables] == []


def test_a_query_begins_before_there_is_a_partition_that_it_wants(days, query):
    put_days(days, "1", range(10))
    stream = query(changes="cdc", where="day = '2'")

    assert stream.drain() == 1
    put_days(days, "2", range(20, 25))
    stream.drain()

    assert sorted(row["id"] for row in stream.everything()) == list(range(20, 25))


def test_a_partition_that_is_made_while_a_query_begins_without_any_is_read(days, query):
    following = query().reader._following
    begun = following.begin()
    put_days(days, "1", range(10))

    end = following.latest(begun, Limits())

    assert sum(each.rows for each in following.planned(begun, end)) == 10


@pytest.mark.parametrize(
    "given", [{"partitions": 9}, {"partitions": 1, "day=9/0": 3}, {"partitions": 2, "day=1/0": 99}]
)
def test_offsets_that_no_partition_has_had_are_refused_before_they_are_written_down(days, query, given):
    put_days(days, "1", range(10))
    put_days(days, "2", range(20, 25))
    stream = query(start=json.dumps(given))

    with pytest.raises(OffsetOutOfRange, match=r"and 9 is next|'day=9/0'|and 99 is next"):
        stream.trigger()

    assert stream.ends == []


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


@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("is_read_again", [False, True])
@pytest.mark.parametrize("is_now", [False, True])
def test_a_query_goes_on_after_all_partitions_are_dropped_whose_rows_it_was_reading(
    days, query, is_made_anew, is_read_again, is_now
):
    """The lease of its first rows ends with the last of them."""
    put_days(days, "1", range(100))
    stream = query(maxRowsPerTrigger="10", changes="cdc")
    stream.trigger()
    stream.trigger()
    stream.stop()
    days.drop_partition(day="1")
    if is_made_anew:
        put_days(days, "1", range(200, 205))
    put_days(days, "2", range(300, 303))
    stream.committed -= is_read_again

    with pytest.raises(PartitionDropped, match="'dropped-partitions', 'ignore'"):
        start_and_trigger(stream)
    stream.options["dropped-partitions"] = "ignore"
    stream.start()
    if is_now:
        stream.reader.prepareForTriggerAvailableNow()
    stream.drain()

    ids = {row["id"] for row in stream.everything()}
    assert ids - set(range(100)) == {*range(300, 303)} | ({*range(200, 205)} if is_made_anew else set())


def test_a_query_ends_after_all_partitions_are_dropped_and_there_are_no_others(days, query, db, name):
    put_days(days, "1", range(100))
    stream = query(maxRowsPerTrigger="10", **{"dropped-partitions": "ignore"})
    stream.trigger()
    stream.stop()
    days.drop_partition(day="1")
    stream.start()
    stream.reader.prepareForTriggerAvailableNow()

    assert stream.drain() == 1
    put_days(days, "2", range(3))
    stream.start()
    stream.drain()

    assert len(stream.rows[2]) == 3


def test_a_lease_that_is_gone_while_a_partition_is_there_is_an_error_also_if_dropped_ones_are_ignored(
    days, query, db, name
):
    put_days(days, "1", range(100))
    put_days(days, "2", range(200, 300))
    stream = query(maxRowsPerTrigger="10", **{"dropped-partitions": "ignore"})
    stream.trigger()
    stream.stop()
    (lease,) = [each for each in db.leases() if name in each.tables]
    db.drop_lease(lease.id)
    days.drop_partition(day="1")

    stream.start()

    with pytest.raises(LeaseLost, match="new checkpoint"):
        stream.trigger()


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


@pytest.mark.parametrize("start", ["full", "earliest"])
@pytest.mark.parametrize("then", ["day >= '1'", "day = '2'", ""])
def test_other_partitions_than_before_are_refused_at_a_restart(days, query, start, then):
    """What was passed over is in no offsets: nobody would ever come back to it."""
    put_days(days, "1", range(10))
    put_days(days, "2", range(20, 25))
    stream = query(where="day = '1'", start=start)
    stream.drain()
    stream.options["where"] = then
    stream.start()

    with pytest.raises(InvalidArgument, match=r"never read what it has passed over.*'where', \"day = '1'\""):
        stream.trigger()
    stream.committed -= 1
    with pytest.raises(InvalidArgument, match="never read what it has passed over"):
        stream.start()


def test_a_where_that_comes_later_is_refused_at_a_restart(days, query):
    put_days(days, "1", range(10))
    stream = query()
    stream.drain()
    stream.options["where"] = "day = '1'"
    stream.start()

    with pytest.raises(InvalidArgument, match="no option 'where'"):
        stream.trigger()


def test_the_same_partitions_in_other_words_go_on(days, query):
    put_days(days, "1", range(10))
    stream = query(where="day = '1'")
    stream.drain()
    stream.options["where"] = "(day='1')"
    stream.start()
    put_days(days, "1", [50])

    stream.drain()

    assert [row["id"] for row in stream.rows[1]] == [50]


def test_a_checkpoint_of_before_the_where_was_kept_goes_on_and_keeps_it_from_then_on(days, query):
    put_days(days, "1", range(10))
    stream = query(where="day = '1'", start="earliest", maxRowsPerTrigger="4")
    stream.trigger()
    stream.ends = [json.dumps(without_where(json.loads(end))) for end in stream.ends]
    stream.committed = 0

    stream.start()
    stream.drain()

    assert sorted(row["id"] for row in stream.everything()) == list(range(10))
    stream.options["where"] = "day = '2'"
    stream.start()
    with pytest.raises(InvalidArgument, match="passed over"):
        stream.trigger()


def without_where(offsets):
    """As a Kolk wrote them that did not keep it."""
    first = {"first": without_where(offsets["first"])} if "first" in offsets else {}
    return {key: value for key, value in offsets.items() if key != "where"} | first


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
