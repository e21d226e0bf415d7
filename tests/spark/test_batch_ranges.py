"""A batch read shows exactly what was fixed for it, or says what is gone, whatever happens to the log in between.

Without Spark: the parts of a frame are planned once and read as often as one likes, as Spark does.
"""

import datetime
import json
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from kolk import Column, Schema
from kolk.errors import OffsetOutOfRange, PartitionDropped
from kolk.spark import reading
from kolk.spark.asking import Asked
from kolk.spark.changes import ranges_of
from kolk.spark.connections import table as opened
from kolk.spark.options import Options
from kolk.spark.types import arrow_schema

ROWS = [Column("day", "string", nullable=False), Column("id", "bigint", nullable=False)]
KEYED = Schema(ROWS, primary_key=["day", "id"])


class Frame:
    """What ``load()`` gives, with its plan, which stays."""

    def __init__(self, **options):
        self.options = Options.parse(options)
        self.schema = Asked.of(self.options, opened(self.options).info).schema
        self.shares = reading.planned(self.options, self.schema)

    def read(self, run="one", shares=None):
        found = [
            batch for share in shares or self.shares for batch in reading.read(self.options, self.schema, share, run)
        ]
        return pa.Table.from_batches(found, arrow_schema(self.schema)).to_pylist()

    def ids(self, run="one"):
        return sorted(row["id"] for row in self.read(run))


@pytest.fixture
def frame(server, name):
    """A frame of this test's table."""

    def make(**options):
        return Frame(url=server.url, table=name, **options)

    return make


@pytest.fixture
def changes(frame):
    """A frame of its changelog."""

    def make(**options):
        return frame(source="changelog", **options)

    return make


@pytest.fixture
def days(db, name):
    return db.create_table(name, KEYED, buckets=2, partition_by=["day"])


def put(table, day, ids):
    table.put([{"day": day, "id": each} for each in ids])


def ends(table):
    return {name: end for name, (_, end) in table.link.service.bounds(table.info.id).items()}


# --- ranges of a changelog


def test_a_range_is_of_the_partition_that_was_planned_and_not_of_another_with_its_name(days, changes):
    put(days, "1", range(10))
    put(days, "2", range(20, 25))
    planned = changes()
    assert planned.ids() == [*range(10), *range(20, 25)]

    days.drop_partition(day="1")
    with pytest.raises(PartitionDropped, match=r"day=1 was dropped.*load\(\) it again"):
        planned.read()
    put(days, "1", range(50, 80))
    with pytest.raises(PartitionDropped, match=r"day=1 was dropped.*load\(\) it again"):
        planned.read()

    assert changes().ids() == [*range(20, 25), *range(50, 80)]


def test_a_range_whose_end_the_log_has_lost_is_an_error(days, changes):
    put(days, "1", range(10))
    planned = changes(parallelism="1")
    (share,) = planned.shares
    longer = replace(share, ranges=tuple(replace(each, stop=each.stop + 1) for each in share.ranges))

    with pytest.raises(OffsetOutOfRange, match=r"has lost what was not synced.*Nothing is left out"):
        planned.read(shares=[longer])


def test_a_range_that_is_trimmed_after_it_was_fixed_is_an_error(db, name, changes):
    table = db.create_table(name, Schema(ROWS), buckets=1)
    put(table, "1", range(10))
    planned = changes()

    table.truncate()

    with pytest.raises(OffsetOutOfRange, match="since its range was fixed"):
        planned.read()


# --- from offsets that were kept


@pytest.fixture
def kept(days, changes):
    """Two days, of which three ids of each are read, and two are not."""
    for day, ids in (("1", (0, 1, 2)), ("2", (20, 21, 22))):
        put(days, day, ids)
    offsets = json.dumps(ends(days))
    for day, ids in (("1", (3, 4)), ("2", (23, 24))):
        put(days, day, ids)
    assert changes(start=offsets).ids() == [3, 4, 23, 24]
    return offsets


def test_what_a_dropped_partition_had_unread_is_missed_loudly_or_on_purpose(days, changes, kept):
    days.drop_partition(day="1")
    for _ in range(2):
        with pytest.raises(PartitionDropped, match=r"day=1 of .* 2 changes unread.*'ignore'") as error:
            changes(start=kept)
        assert (error.value.partition, error.value.unread) == ("day=1", 2)
        assert changes(start=kept, where="day = '2'").ids() == [23, 24], "what it does not read does not concern it"
        put(days, "1", [50])

    assert changes(start=kept, **{"dropped-partitions": "ignore"}).ids() == [23, 24, 50]


def test_a_partition_that_was_read_to_its_end_may_go(days, changes, kept):
    offsets = json.dumps(ends(days))
    days.drop_partition(day="1")
    put(days, "1", [50])
    put(days, "3", [70])

    assert changes(start=offsets).ids() == [50, 70]


def test_a_partition_that_came_and_went_unread_is_missed_too(days, changes, kept):
    put(days, "3", [70])
    days.drop_partition(day="3")

    with pytest.raises(PartitionDropped, match="day=3"):
        changes(start=kept)


def test_a_range_between_kept_offsets_has_the_partitions_of_its_time(days, changes, kept):
    """The next range begins where this one ends, so what came later must not be in both."""
    stop = json.dumps(ends(days))
    put(days, "1", [5])
    put(days, "3", [70])

    assert changes(start=kept, stop=stop).ids() == [3, 4, 23, 24]
    assert changes(start=stop).ids() == [5, 70]
    assert changes(start=stop, stop=kept).ids() == []
    days.drop_partition(day="2")
    put(days, "2", range(80, 90))
    with pytest.raises(PartitionDropped, match="day=2"):
        changes(start=kept, stop=stop)
    assert changes(start=kept, stop=stop, **{"dropped-partitions": "ignore"}).ids() == [3, 4]
    assert changes(stop=stop).ids() == [0, 1, 2, 3, 4], "the earliest is what there still is"


def test_a_planned_range_passes_over_a_partition_that_is_dropped_later_if_it_is_told_to(days, changes, kept):
    planned = changes(start=kept, **{"dropped-partitions": "ignore"})
    days.drop_partition(day="1")

    assert planned.ids() == [23, 24]


# --- times


class Growing:
    """A service whose table is written to between two questions."""

    def __init__(self, service, grow):
        self._service, self._grow = service, grow

    def __getattr__(self, name):
        return getattr(self._service, name)

    def offsets_at(self, *args, **more):
        self._grow()
        return self._service.offsets_at(*args, **more)


def test_a_time_to_come_is_where_the_log_ends_now_however_busy_the_table_is(db, name):
    table = db.create_table(name, Schema(ROWS), buckets=1)
    put(table, "1", range(5))
    growing = SimpleNamespace(service=Growing(table.link.service, lambda: put(table, "1", range(3))))
    asked = SimpleNamespace(link=growing, info=table.info, name=table.name)

    (found,) = ranges_of(asked, None, None, "2999-01-01T00:00:00Z")

    assert (found.start, found.stop) == (0, 5)
    assert ranges_of(asked, None, "2999-01-01T00:00:00Z", None) == []


def test_a_time_of_which_the_log_has_lost_changes_is_an_error_and_a_later_one_is_not(db, name, changes):
    table = db.create_table(name, Schema(ROWS), buckets=1)
    put(table, "1", range(5))
    (last,) = {row["_commit_timestamp"] for row in changes().read()}
    table.truncate()
    later = (last + datetime.timedelta(milliseconds=1)).isoformat()

    with pytest.raises(OffsetOutOfRange, match=r"lost changes.*'earliest'"):
        changes(start=last.isoformat())
    assert changes(start=later).ids() == [], "the trimmed ones are older, though nothing else is there"
    put(table, "1", [7])
    with pytest.raises(OffsetOutOfRange, match=r"lost changes.*'earliest'"):
        changes(start=last.isoformat())
    assert changes(start=later).ids() == changes().ids() == [7]
    assert changes(start="earliest", stop=last.isoformat()).ids() == []


def test_a_time_does_not_concern_partitions_that_are_not_read(db, name, changes):
    table = db.create_table(name, Schema(ROWS), buckets=1, partition_by=["day"], options={"table.log.ttl": "1d"})
    put(table, "1", range(5))
    (first,) = {row["_commit_timestamp"].isoformat() for row in changes().read()}
    table.truncate()
    put(table, "2", [20])

    with pytest.raises(OffsetOutOfRange, match="day=1"):
        changes(start=first)
    assert changes(start=first, where="day = '2'").ids() == [20]


# --- the moment of a log table


@pytest.fixture
def logged(db, name):
    return db.create_table(name, Schema(ROWS), buckets=3)


@pytest.mark.parametrize("limit", [{}, {"limit": "5"}])
def test_the_moment_of_a_log_table_is_gone_once_its_rows_are(logged, frame, limit):
    """Else a task that is tried again would show fewer rows than the others: of another moment, without a word."""
    put(logged, "1", range(20))
    planned = frame(parallelism="2", **limit)
    first = planned.ids("one")

    logged.truncate()
    put(logged, "1", range(50, 53))

    with pytest.raises(OffsetOutOfRange, match=r"is gone.*Run the action again"):
        planned.read("one")
    assert len(first) == (5 if limit else 20)
    assert planned.ids("two") == [50, 51, 52]


def test_what_is_written_after_the_moment_of_a_log_table_is_not_shown(logged, frame):
    planned = frame(parallelism="2")
    assert planned.ids("none") == []
    put(logged, "1", range(20))
    assert planned.ids("one") == list(range(20))
    put(logged, "1", range(20, 40))

    assert (planned.ids("none"), planned.ids("one")) == ([], list(range(20)))
    assert planned.ids("two") == list(range(40))


@pytest.mark.parametrize("limit", [{}, {"limit": "5"}])
def test_a_partition_of_a_log_table_is_the_one_of_the_moment_or_nothing_is_read(db, name, frame, limit):
    table = db.create_table(name, Schema(ROWS), buckets=2, partition_by=["day"])
    put(table, "1", range(3))
    put(table, "2", range(20, 22))
    planned, other = frame(parallelism="2", **limit), frame(where="day = '2'", **limit)
    assert planned.ids() == [0, 1, 2, 20, 21]
    assert other.ids() == [20, 21]

    table.drop_partition(day="1")
    with pytest.raises(PartitionDropped, match=r"day=1.*Run the action again"):
        planned.read()
    put(table, "1", range(50, 52))
    with pytest.raises(PartitionDropped, match=r"day=1.*Run the action again"):
        planned.read()

    assert other.ids() == [20, 21], "what it does not read does not concern it"
    assert planned.ids("two") == [20, 21, 50, 51]
