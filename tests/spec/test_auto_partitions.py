"""Partitions that follow time, on a clock moved by hand: made ahead, and gone when nobody is in the way."""

import datetime

import pytest
from tests.spec.cut import SCHEMA

import kolk
from kolk.errors import InvalidRows, PartitionDropped

DAY_MS, HOUR_MS = 24 * 3_600_000, 3_600_000
ON = {
    "table.auto-partition.enabled": "true",
    "table.auto-partition.time-zone": "UTC",
    "table.auto-partition.num-retention": "1",
    "table.auto-partition.num-precreate": "2",
    "table.auto-partition.expiry-grace": "2h",
}


@pytest.fixture
def table(timed):
    return timed.db.create_table("t", SCHEMA, partition_by=["day"], options=ON)


def day(bench, place=0):
    moment = datetime.datetime.fromtimestamp(bench.clock.now_ms() / 1000, datetime.UTC)
    return (moment + datetime.timedelta(days=place)).strftime("%Y%m%d")


def days(table):
    return [partition.values["day"] for partition in table.partitions()]


def at_midnight(bench):
    """The beginning of the next day."""
    bench.clock.advance(ms=DAY_MS - bench.clock.now_ms() % DAY_MS)


def row(day, key=1):
    return {"day": day, "key": key, "value": 0}


def test_partitions_are_ready_when_the_table_is_made_and_before_their_day_comes(timed, table):
    assert days(table) == [day(timed), day(timed, 1)]

    timed.clock.advance(ms=DAY_MS)
    timed.engine.tick()

    assert days(table) == [day(timed, -1), day(timed), day(timed, 1)]


def test_a_partition_goes_when_it_is_past_its_time_and_not_before(timed, table):
    first = day(timed)
    table.put([row(first)])
    at_midnight(timed)
    timed.clock.advance(ms=DAY_MS - 1)
    timed.engine.tick()
    assert first in days(table)

    timed.clock.advance(ms=1)
    timed.engine.tick()

    assert first not in days(table)
    assert table.get_one(day=first, key=1) is None


def test_rows_that_come_too_late_are_refused_and_make_nothing(timed, table):
    late = day(timed, -2)

    with pytest.raises(InvalidRows, match=r"past its time.*num-retention"):
        table.put([row(day(timed)), row(late)])
    with pytest.raises(InvalidRows, match="past its time"):
        table.add_partition(day=late)
    with pytest.raises(InvalidRows, match="holds a day"):
        table.put([row("someday")])

    assert days(table) == [day(timed), day(timed, 1)]
    with table.scan() as scan:
        assert scan.to_arrow().num_rows == 0
    table.delete([row(late)])
    table.put([row(day(timed, -1))])


def expired(bench, table):
    """A day with rows whose time is over, as nobody has noticed yet."""
    first = day(bench)
    table.put([row(first, key) for key in range(3)])
    at_midnight(bench)
    bench.clock.advance(ms=DAY_MS)
    return first


def expired_and_wide(bench):
    """The same, with so much in it that no network takes it in before it is read."""
    timed = bench(scan_page_rows=1, log_segment_bytes=2**26)
    schema = kolk.Schema(
        [kolk.Column("day", "string"), kolk.Column("key", "int"), kolk.Column("text", "string")],
        primary_key=["day", "key"],
    )
    table = timed.db.create_table("t", schema, partition_by=["day"], options=ON)
    first = day(timed)
    table.put([{"day": first, "key": key, "text": "x" * 2**20} for key in range(16)])
    at_midnight(timed)
    timed.clock.advance(ms=DAY_MS)
    return timed, table, first


def test_expiry_waits_for_a_scan_and_no_longer(bench):
    timed, table, first = expired_and_wide(bench)
    with table.scan() as scan:
        timed.engine.tick()
        assert first in days(table)

        assert scan.to_arrow().num_rows == 16
        timed.clock.advance(seconds=11)  # over the network it lingers, for a client that lost the last page
        timed.engine.reap()
        timed.engine.tick()

        assert first not in days(table)


def test_expiry_does_not_wait_for_a_scan_beyond_the_grace(bench):
    timed, table, first = expired_and_wide(bench)
    with table.scan(ttl="1d") as scan:
        timed.clock.advance(ms=2 * HOUR_MS - 1)
        timed.engine.tick()
        assert first in days(table)

        timed.clock.advance(ms=1)
        timed.engine.tick()

        assert first not in days(table)
        with pytest.raises(PartitionDropped) as caught:
            scan.to_arrow()
        assert caught.value.partition == f"day={first}"


def test_expiry_waits_for_a_follower_that_has_not_read_the_partition_to_its_end(timed, table):
    first = day(timed)
    changes = table.changelog(follower="f", follow=True, commit_interval=None)
    assert expired(timed, table) == first
    timed.engine.tick()
    assert first in days(table)

    batches = iter(changes)
    assert next(batches).num_rows == 3
    changes.commit()
    timed.engine.tick()

    assert first not in days(table)


def test_expiry_does_not_wait_for_a_follower_beyond_the_grace_and_says_what_it_missed(timed, table):
    table.changelog(follower="f")
    first = expired(timed, table)
    timed.clock.advance(ms=2 * HOUR_MS)
    timed.engine.tick()
    told = []

    assert list(table.changelog(follower="f", on_partition=told.append)) == []
    assert [(event.partition, event.unread) for event in told if event.kind == "dropped"] == [(f"day={first}", 3)]


def test_expiry_does_not_wait_for_a_follower_that_is_dead(bench):
    timed = bench(follower_ttl_seconds=3_600)
    table = timed.db.create_table("t", SCHEMA, partition_by=["day"], options=ON)
    table.changelog(follower="f")
    first = expired(timed, table)

    timed.engine.tick()

    assert first not in days(table)


def test_a_drop_by_hand_waits_for_nobody(timed, table):
    first = day(timed)
    table.put([row(first)])
    table.changelog(follower="f")
    with table.scan():
        table.drop_partition(day=first)

        assert first not in days(table)


def test_a_full_table_makes_room_by_what_is_expired(bench):
    timed = bench(partitions_max=2)
    table = timed.db.create_table("t", SCHEMA, partition_by=["day"], options=ON)
    timed.clock.advance(ms=5 * DAY_MS)

    timed.engine.tick()

    assert days(table) == [day(timed), day(timed, 1)]


def test_a_table_that_could_not_have_its_first_partitions_is_not_made(bench):
    db = bench(partitions_max=3).db
    options = ON | {"table.auto-partition.num-precreate": "4"}

    with pytest.raises(kolk.errors.TooManyPartitions):
        db.create_table("t", SCHEMA, partition_by=["day"], options=options)

    assert db.tables() == []


def test_of_several_partition_columns_the_time_decides(timed):
    schema = kolk.Schema(
        [kolk.Column("region", "string"), kolk.Column("day", "date"), kolk.Column("key", "int")],
        primary_key=["region", "day", "key"],
    )
    options = {key: value for key, value in ON.items() if "precreate" not in key} | {"table.auto-partition.key": "day"}
    table = timed.db.create_table("t", schema, partition_by=["region", "day"], options=options)
    today = datetime.datetime.fromtimestamp(timed.clock.now_ms() / 1000, datetime.UTC).date()
    table.put(
        [
            {"region": region, "day": today + datetime.timedelta(days=place), "key": 1}
            for region in ("eu", "us")
            for place in (0, 1)
        ]
    )
    assert len(table.partitions()) == 4

    timed.clock.advance(ms=2 * DAY_MS)
    timed.engine.tick()

    assert [each.values["region"] for each in table.partitions()] == ["eu", "us"]
    with pytest.raises(InvalidRows, match="past its time"):
        table.put([{"region": "asia", "day": today, "key": 1}])


def test_a_table_that_fails_does_not_stop_the_others(timed, table, tmp_path):
    other = timed.db.create_table("u", SCHEMA, partition_by=["day"], options=ON)
    first = expired(timed, table)
    other.put([row(day(timed))])
    broken = tmp_path / "data" / "tables" / str(table.info.id) / str(table.partitions()[0].id) / "0"
    timed.close()
    for path in broken.rglob("*.log"):
        path.write_bytes(b"x" * 10_000)
    timed.reopen()

    timed.engine.tick()

    assert days(timed.db.table("u")) == [day(timed, -1), day(timed), day(timed, 1)]
    # Its bucket cannot be read any more, which is no reason to keep it.
    assert first not in days(timed.db.table("t"))


def test_how_many_periods_are_kept_can_be_set_on_a_living_table(timed, table):
    first = day(timed)
    table.put([row(first)])
    options = {"table.auto-partition.num-retention": 3, "table.auto-partition.num-precreate": 3}
    assert table.set_options(options)["table.auto-partition.num-retention"] == "3"

    timed.clock.advance(ms=3 * DAY_MS)
    timed.engine.tick()
    assert days(table) == [first, day(timed, -2), day(timed), day(timed, 1), day(timed, 2)]

    timed.db.execute("ALTER TABLE t SET ('table.auto-partition.num-retention' = '1')")
    timed.engine.tick()
    assert days(table) == [day(timed), day(timed, 1), day(timed, 2)]
