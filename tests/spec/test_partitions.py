"""Partitions as users see them: made as rows come, listed, dropped, and read as one table."""

import datetime

import pyarrow as pa
import pytest
from tests.spec.cut import EVENTS, SCHEMA

import kolk
from kolk.errors import (
    InvalidArgument,
    InvalidRows,
    PartitionExists,
    PartitionNotFound,
    TooManyPartitions,
)


@pytest.fixture
def table(db):
    return db.create_table("t", SCHEMA, buckets=2, partition_by=["day"])


@pytest.fixture
def events(db):
    return db.create_table("e", EVENTS, buckets=2, partition_by=["day"])


def row(day, key, value=0):
    return {"day": day, "key": key, "value": value}


def names(table):
    return [partition.name for partition in table.partitions()]


def rows_of(table, **how):
    with table.scan(**how) as scan:
        return sorted(tuple(row.values()) for row in scan.to_arrow().to_pylist())


# --- writing


def test_a_put_makes_the_partitions_of_its_rows_and_no_others(table):
    table.put([row("b", 1), row("a", 1), row("b", 2)])

    assert names(table) == ["day=a", "day=b"]
    assert rows_of(table) == [("a", 1, 0), ("b", 1, 0), ("b", 2, 0)]


def test_every_partition_has_the_buckets_of_the_table_and_ends_of_its_own(table):
    offsets = table.put([row(day, key) for day in "ab" for key in range(50)]).offsets

    assert set(offsets) == {"day=a/0", "day=a/1", "day=b/0", "day=b/1"}
    assert offsets["day=a/0"] + offsets["day=a/1"] == 50


def test_one_key_is_another_row_in_every_partition(table):
    table.put([row("a", 1, 10), row("b", 1, 20)])
    table.put([row("a", 1, 11)])

    assert table.get_one(day="a", key=1)["value"] == 11
    assert table.get_one(day="b", key=1)["value"] == 20


@pytest.mark.parametrize("value", ["a/b", "a=b", "", "__a", "ä", "x/zone=y", "a" * 201])
def test_rows_whose_value_cannot_be_in_a_name_are_refused_and_nothing_is_applied(table, value):
    with pytest.raises(InvalidRows):
        table.put([row("good", 1), row(value, 1)])

    assert names(table) == []
    assert table.get_one(day=value, key=1) is None


def test_days_that_no_calendar_has_are_refused(db):
    schema = kolk.Schema([kolk.Column("day", "date"), kolk.Column("key", "int")], primary_key=["day", "key"])
    table = db.create_table("d", schema, partition_by=["day"])
    days = pa.array([2_932_897], pa.int32()).cast(pa.date32())

    with pytest.raises(InvalidRows, match="out of range"):
        table.put(pa.table({"day": days, "key": [1]}))

    assert names(table) == []


def test_a_table_is_cut_by_several_columns_of_several_types(db):
    schema = kolk.Schema(
        [kolk.Column("day", "date"), kolk.Column("hour", "int"), kolk.Column("key", "int"), kolk.Column("v", "int")],
        primary_key=["day", "hour", "key"],
    )
    table = db.create_table("d", schema, partition_by=["day", "hour"])
    table.put([{"day": datetime.date(2026, 11, 15), "hour": hour, "key": 1, "v": hour} for hour in (3, 14)])

    assert names(table) == ["day=2026-11-15/hour=14", "day=2026-11-15/hour=3"]
    table.drop_partition(hour=3, day="2026-11-15")
    table.add_partition("hour=07/day=2026-11-16")
    assert names(table) == ["day=2026-11-15/hour=14", "day=2026-11-16/hour=7"]


# --- by hand


def test_a_partition_is_made_by_hand_before_anybody_writes_to_it(table):
    made = table.add_partition(day="a")

    assert (made.name, made.values) == ("day=a", {"day": "a"})
    assert names(table) == ["day=a"]
    with pytest.raises(PartitionExists, match="day=a"):
        table.add_partition("day=a")
    assert table.add_partition(day="a", if_not_exists=True) == made


@pytest.mark.parametrize("how", ["text", "values"])
def test_a_partition_whose_values_no_row_could_have_is_not_made(db, how):
    columns = [kolk.Column("region", "char(2)", nullable=False), kolk.Column("id", "int", nullable=False)]
    table = db.create_table("t", kolk.Schema(columns, primary_key=["region", "id"]), partition_by=["region"])

    with pytest.raises(InvalidRows, match=r"'region' is a char\(2\), but a value has 3 characters"):
        table.add_partition("region=abc") if how == "text" else table.add_partition(region="abc")

    assert names(table) == []
    assert table.add_partition(region="ab").name == "region=ab"


def test_a_dropped_partition_takes_its_rows_along_and_those_of_no_other(table):
    table.put([row("a", 1), row("b", 1)])

    table.drop_partition(day="a")

    assert names(table) == ["day=b"]
    assert rows_of(table) == [("b", 1, 0)]
    assert table.get([row("a", 1), row("b", 1)]).num_rows == 1
    with pytest.raises(PartitionNotFound, match="day=b"):
        table.drop_partition(day="a")
    table.drop_partition(day="a", if_exists=True)


def test_a_partition_that_is_made_anew_starts_empty_under_a_new_number(table):
    table.put([row("a", 1, 1)])
    first = table.partitions()[0]
    table.drop_partition(day="a")

    offsets = table.put([row("a", 2, 2)]).offsets

    assert sum(offsets.values()) == 1
    assert rows_of(table) == [("a", 2, 2)]
    assert table.partitions()[0].id > first.id


def test_a_table_without_partitions_says_so(db):
    table = db.create_table("plain", SCHEMA)

    for ask in (table.partitions, lambda: table.add_partition(day="a"), lambda: table.drop_partition(day="a")):
        with pytest.raises(InvalidArgument, match="has no partitions"):
            ask()


@pytest.mark.parametrize("name", ["a", "day=a/x=b", "x=a", {"x": 1}, {}, None, 7, "day=a" * 1_000_000])
def test_what_is_no_name_of_a_partition_is_refused(table, name):
    for ask in (table.add_partition, table.drop_partition):
        with pytest.raises((InvalidArgument, InvalidRows)):
            ask(name)


# --- without making any


def test_a_table_whose_puts_make_no_partitions_takes_rows_only_for_those_that_there_are(db):
    options = {"table.dynamic-partition.enabled": "false"}
    table = db.create_table("t", SCHEMA, partition_by=["day"], options=options)
    table.add_partition(day="a")

    with pytest.raises(PartitionNotFound, match=r"day=b.*add_partition"):
        table.put([row("a", 1), row("b", 1)])
    assert rows_of(table) == []
    table.put([row("a", 1)])

    assert names(table) == ["day=a"]
    assert rows_of(table) == [("a", 1, 0)]


@pytest.mark.parametrize("dynamic", ["true", "false"])
def test_deleting_what_is_not_there_makes_no_partition(db, dynamic):
    options = {"table.dynamic-partition.enabled": dynamic}
    table = db.create_table("t", SCHEMA, partition_by=["day"], options=options)
    table.add_partition(day="a")
    table.put([row("a", 1), row("a", 2)])

    table.delete([row("a", 1), row("b", 1), row("c/c", 1)])
    nothing = table.delete([row("b", 1)])

    assert nothing.offsets == {}
    assert names(table) == ["day=a"]
    assert rows_of(table) == [("a", 2, 0)]


def test_a_table_that_refuses_deletes_refuses_those_of_partitions_that_are_not_there(db):
    options = {"table.delete.behavior": "disable"}
    table = db.create_table("t", SCHEMA, partition_by=["day"], options=options)

    with pytest.raises(kolk.errors.KolkError, match="delete"):
        table.delete([row("b", 1)])


# --- limits


def test_a_table_has_so_many_partitions_and_no_more(bench):
    table = bench(partitions_max=3).db.create_table("t", SCHEMA, partition_by=["day"])
    table.put([row(day, 1) for day in "abc"])

    with pytest.raises(TooManyPartitions, match="of at most 3"):
        table.put([row("a", 2), row("d", 1)])
    with pytest.raises(TooManyPartitions):
        table.add_partition(day="d")
    with pytest.raises(TooManyPartitions, match="5 partitions"):
        table.put([row(day, 1) for day in "defgh"])

    assert len(rows_of(table)) == 3
    table.drop_partition(day="a")
    table.put([row("d", 1)])
    assert names(table) == ["day=b", "day=c", "day=d"]


def test_the_buckets_of_all_partitions_together_are_limited(db):
    table = db.create_table("t", SCHEMA, buckets=4_096, partition_by=["day"])
    for day in "abcd":
        table.add_partition(day=day)

    with pytest.raises(TooManyPartitions, match="of at most 4"):
        table.add_partition(day="e")


def test_the_names_of_all_partitions_together_are_limited_so_that_a_follower_can_be_kept(db):
    columns = [letter * 200 for letter in "abcdefgh"]
    schema = kolk.Schema(
        [kolk.Column(name, "string") for name in columns] + [kolk.Column("key", "int")], [*columns, "key"]
    )
    table = db.create_table("t", schema, buckets=200, partition_by=columns)
    table.put([{**{name: "x" * 200 for name in columns}, "key": 1}])

    with pytest.raises(TooManyPartitions, match="names"):
        table.put([{**{name: "y" * 200 for name in columns}, "key": 1}])

    with table.changelog(follower="f") as changes:
        assert sum(batch.num_rows for batch in changes) == 1
    assert db.followers()[0].lag == 0


def test_a_limit_that_was_lowered_keeps_what_there_is(bench):
    made = bench(partitions_max=3)
    made.db.create_table("t", SCHEMA, partition_by=["day"]).put([row(day, 1) for day in "abc"])
    made._settings["partitions_max"] = 2
    made.reopen()
    table = made.db.table("t")

    table.put([row("a", 2)])
    assert table.add_partition(day="a", if_not_exists=True).name == "day=a"

    with pytest.raises(TooManyPartitions):
        table.add_partition(day="d")
    assert len(rows_of(table)) == 4


# --- the table as a whole


def test_a_lookup_finds_rows_in_their_partitions_in_the_order_of_the_keys(table):
    table.put([row(day, key, key) for day in "ab" for key in range(20)])

    found = table.get([row("b", 3), row("z", 1), row("a", 19), row("b", 99), row("a/b", 1), row("b", 4)])

    assert [(each["day"], each["key"]) for each in found.to_pylist()] == [("b", 3), ("a", 19), ("b", 4)]


def test_a_prefix_lies_in_one_partition_and_must_say_which(db):
    schema = kolk.Schema(
        [kolk.Column("day", "string"), kolk.Column("user", "int"), kolk.Column("key", "int")],
        primary_key=["day", "user", "key"],
    )
    table = db.create_table("t", schema, buckets=2, bucket_key=["user"], partition_by=["day"])
    table.put([{"day": day, "user": user, "key": key} for day in "ab" for user in (1, 2) for key in range(3)])
    other = db.create_table("u", schema, partition_by=["user"])

    assert table.prefix(day="a", user=2).num_rows == 3
    assert table.prefix(day="z", user=2).num_rows == 0
    assert table.partitions()[-1].name == "day=b"
    with pytest.raises(InvalidArgument, match="partition columns"):
        other.prefix(day="a")
    with pytest.raises(InvalidArgument, match="bucket key"):
        table.prefix(day="a")


def test_truncate_empties_every_partition_and_keeps_them(table, events):
    table.put([row(day, key) for day in "ab" for key in range(5)])
    events.put([{"day": "a", "n": 1}])

    ends = table.truncate()
    events.truncate()

    assert rows_of(table) == []
    assert names(table) == ["day=a", "day=b"]
    assert sum(ends.values()) == 20
    assert [batch.num_rows for batch in events.changelog()] == []


def test_describe_tells_of_partitions_and_of_the_offsets_of_their_buckets(table, events):
    table.put([row("b", 1), row("a", 1)])

    told = table.describe()

    assert told["partitions"] == ["day=a", "day=b"]
    assert set(told["offsets"]) == {"day=a/0", "day=a/1", "day=b/0", "day=b/1"}
    assert "PARTITIONED BY (day)" in str(told["ddl"])
    assert events.describe()["partitions"] == []


def test_a_scan_with_columns_a_limit_and_a_condition_is_of_all_partitions(table):
    table.put([row(day, key, key) for day in "abc" for key in range(10)])

    assert len(rows_of(table, columns=["value"], where="value >= 8")) == 6
    assert len(rows_of(table, limit=25)) == 25
    assert {found[0] for found in rows_of(table, where="day = 'b'")} == {"b"}


def test_partitions_and_their_rows_are_there_after_a_restart(bench):
    made = bench()
    table = made.db.create_table("t", SCHEMA, buckets=2, partition_by=["day"])
    table.put([row(day, key) for day in "abc" for key in range(5)])
    table.drop_partition(day="b")
    listed = table.partitions()
    made.reopen()
    table = made.db.table("t")

    assert table.partitions() == listed
    assert len(rows_of(table)) == 10
    assert table.add_partition(day="b").id == 5


def test_a_table_that_is_made_anew_knows_nothing_of_the_partitions_of_the_old_one(db, table):
    table.put([row("a", 1)])
    db.drop_table("t")
    again = db.create_table("t", SCHEMA, partition_by=["day"])

    assert again.partitions() == []
    with pytest.raises(kolk.errors.TableNotFound):
        table.add_partition(day="b")
    with pytest.raises(kolk.errors.TableNotFound):
        table.put([row("b", 1)])
