"""Followers of tables with partitions: what is committed names the very partition that was read."""

import pytest
from tests.spec.cut import EVENTS, SCHEMA

from kolk.engine import partitions as record
from kolk.errors import FollowerTaken, HolderLost, InvalidArgument, OffsetOutOfRange

HOUR_MS = 3_600_000


@pytest.fixture
def table(timed):
    return timed.db.create_table("t", SCHEMA, partition_by=["day"])


def rows(day, count, start=0):
    return [{"day": day, "key": key, "value": 0} for key in range(start, start + count)]


def read(table, **how):
    """The changes by day, and what became of partitions, up to the present end."""
    found, told = {}, []
    with table.changelog(
        follower="f", on_partition=lambda event: told.append((event.kind.value, event.partition, event.unread)), **how
    ) as changes:
        for batch in changes:
            for day in batch["day"].to_pylist():
                found[day] = found.get(day, 0) + 1
    return found, told


def follower(bench):
    [found] = bench.db.followers()
    return found


def test_a_follower_goes_on_where_it_was_in_every_partition_after_a_restart(timed, table):
    table.put(rows("a", 3))
    assert read(table) == ({"a": 3}, [])
    table.put(rows("a", 2, 3) + rows("b", 4))
    timed.reopen()
    table = timed.db.table("t")

    assert read(table) == ({"a": 2, "b": 4}, [("created", "day=b", 0)])
    assert read(table) == ({}, [])
    assert follower(timed).lag == 0


@pytest.mark.parametrize("count", [2, 5, 9])
def test_a_partition_made_anew_is_read_from_its_beginning_however_far_the_old_one_was(timed, table, count):
    table.put(rows("a", 5))
    read(table)
    table.drop_partition(day="a")
    table.put(rows("a", count))

    assert follower(timed).lag == count
    assert read(table) == ({"a": count}, [("dropped", "day=a", 0), ("created", "day=a", 0)])
    table.put(rows("a", 3, count))
    assert read(table) == ({"a": 3}, [])


def test_a_follower_commits_in_the_middle_of_a_partition_made_anew(timed, table):
    table.put(rows("a", 5))
    read(table)
    table.drop_partition(day="a")
    table.put(rows("a", 2))
    read(table)
    table.put(rows("a", 2, 2))

    assert follower(timed).lag == 2
    assert read(table) == ({"a": 2}, [])


def test_a_commit_that_was_delayed_over_a_drop_does_not_undo_a_later_one(timed, table):
    table.put(rows("a", 5))
    engine, id = timed.engine, table.info.id
    session = engine.open_follower(id, "f", 1)
    late = {"partitions": session.offsets["partitions"], "day=a/0": 5}
    table.drop_partition(day="a")
    table.put(rows("a", 9))
    engine.commit_follower(id, "f", session.epoch, {"partitions": 4, "day=a/0": 2})

    engine.commit_follower(id, "f", session.epoch, late)

    assert follower(timed).offsets == {"partitions": 4, "day=a/0": 2}
    assert read(table) == ({"a": 7}, [])


def test_a_commit_of_a_partition_that_is_gone_is_taken_and_what_follows_is_told(timed, table):
    table.put(rows("a", 5) + rows("b", 1))
    engine, id = timed.engine, table.info.id
    session = engine.open_follower(id, "f", 1)
    table.drop_partition(day="a")

    engine.commit_follower(id, "f", session.epoch, {"partitions": 3, "day=a/0": 3})

    assert read(table) == ({"b": 1}, [("dropped", "day=a", 2)])


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ({"partitions": 99}, OffsetOutOfRange),
        ({"partitions": 2**62}, OffsetOutOfRange),
        ({"day=a/0": 6}, OffsetOutOfRange),
        ({"day=z/0": 0}, InvalidArgument),
        ({"day=" + "z" * 1_000_000 + "/0": 0}, InvalidArgument),
        ({"0": 1}, InvalidArgument),
    ],
)
def test_a_commit_of_what_is_not_there_is_refused_and_changes_nothing(timed, table, offsets, error):
    table.put(rows("a", 5))
    session = timed.engine.open_follower(table.info.id, "f", 1)
    before = follower(timed).offsets

    with pytest.raises(error) as caught:
        timed.engine.commit_follower(table.info.id, "f", session.epoch, offsets)

    assert len(str(caught.value)) < 1_000
    assert follower(timed).offsets == before


def test_a_commit_from_long_ago_is_of_no_effect(timed, table):
    table.put(rows("a", 5))
    session = timed.engine.open_follower(table.info.id, "f", 1)
    before = follower(timed).offsets

    timed.engine.commit_follower(table.info.id, "f", session.epoch, {"partitions": -5, "gone/0": 7})

    assert follower(timed).offsets == before


def test_a_follower_that_begins_at_a_scan_goes_on_from_there_though_its_partitions_are_gone(timed, table):
    table.put(rows("a", 5) + rows("b", 5))
    with table.scan() as scan:
        pass
    table.put(rows("a", 2, 5))
    table.drop_partition(day="a")
    table.put(rows("c", 1))

    found = read(table, start=scan.offsets)

    assert found == ({"c": 1}, [("dropped", "day=a", 2), ("created", "day=c", 0)])


def test_a_reader_that_was_replaced_learns_so_when_it_tells_of_a_partition(timed, table):
    changes = table.changelog(follower="f", follow=True, commit_interval=0)
    with table.changelog(follower="f"):
        table.put(rows("a", 1))

        with pytest.raises(FollowerTaken):
            list(changes)


def test_a_follower_that_stayed_away_for_too_many_events_has_lost_its_place(timed, table, monkeypatch):
    monkeypatch.setattr(record, "EVENTS_MAX", 4)
    table.put(rows("a", 1))
    read(table)
    session = timed.engine.open_follower(table.info.id, "f", 1)
    changes = table.changelog(start=follower(timed).offsets, follow=True)
    for day in "bcdef":
        table.add_partition(day=day)

    with pytest.raises(HolderLost, match="record of partitions"):
        timed.engine.commit_follower(table.info.id, "f", session.epoch, {})
    with pytest.raises(HolderLost, match="record of partitions"):
        read(table)
    with pytest.raises(OffsetOutOfRange, match="scan the table"):
        list(changes)
    assert follower(timed).state == "lost"


def test_a_late_follower_holds_the_log_of_every_partition_and_of_those_it_has_not_heard_of(timed):
    table = timed.db.create_table("e", EVENTS, partition_by=["day"], options={"table.log.ttl": "1h"})
    table.put([{"day": "a", "n": 1}])
    read(table)
    for day in "ab":
        for n in range(3):
            table.put([{"day": day, "n": n}])
    timed.clock.advance(ms=2 * HOUR_MS)

    timed.engine.tick()

    assert read(table) == ({"a": 3, "b": 3}, [("created", "day=b", 0)])
    timed.engine.tick()
    bounds = timed.engine.bounds(table.info.id)
    assert bounds["day=a/0"] == (4, 4)
    assert bounds["day=b/0"] == (3, 3)


def test_without_a_follower_the_log_of_every_partition_goes_when_its_time_has_come(timed):
    table = timed.db.create_table("e", EVENTS, partition_by=["day"], options={"table.log.ttl": "1h"})
    table.put([{"day": day, "n": 1} for day in "ab"])
    kept = table.changelog(follower="f")
    timed.clock.advance(ms=8 * 24 * HOUR_MS)
    timed.engine.tick()

    with pytest.raises(HolderLost):
        list(kept)
    assert follower(timed).state == "lost"
    table.put([{"day": "b", "n": 2}])
    assert sum(batch.num_rows for batch in table.changelog()) == 1


def test_the_lag_counts_what_is_unread_in_the_partitions_that_there_are(timed, table):
    table.put(rows("a", 3))
    read(table)
    table.put(rows("a", 2, 3) + rows("b", 4))
    assert follower(timed).lag == 6

    table.drop_partition(day="b")

    assert follower(timed).lag == 2
