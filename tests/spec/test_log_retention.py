"""Logs that go: by age and by size, whole files at a time, never under a live follower."""

import datetime

import pytest

import kolk
from kolk.errors import HolderLost, InvalidSchema, OffsetOutOfRange

LOG = kolk.Schema([kolk.Column("n", "int")])
HOUR = 3_600
DAY = 24 * HOUR


def numbers(batches) -> list[int]:
    return [n for batch in batches for n in batch["n"].to_pylist()]


def hourly(timed, table, numbers):
    for n in numbers:
        table.put({"n": n})
        timed.clock.advance(seconds=HOUR)


def start(table):
    return table.describe()["offsets"]["0"]["start"]


def test_rows_go_when_they_are_too_old(timed):
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3h"})
    hourly(timed, table, range(5))

    timed.engine.tick()

    assert numbers(table.changelog()) == [3, 4]
    with pytest.raises(OffsetOutOfRange, match="trimmed"):
        table.changelog(start={"0": 2})


def moment(timed, hours):
    return datetime.datetime.fromtimestamp(timed.clock.now_ms() / 1000, datetime.UTC) + datetime.timedelta(hours=hours)


@pytest.mark.parametrize("follower", [None, "etl"])
def test_a_time_of_which_the_log_has_lost_changes_is_an_error_and_a_later_one_is_not(timed, follower):
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3h"})
    hourly(timed, table, range(5))  # 0 was written five hours ago, 4 an hour ago
    timed.engine.tick()

    with pytest.raises(OffsetOutOfRange, match=r"lost changes.*'earliest'"):
        table.changelog(start=moment(timed, -3), follower=follower)
    assert numbers(table.changelog(start=moment(timed, -2), follower=follower)) == [3, 4]


def test_a_time_is_asked_of_no_other_buckets_than_those_that_are_read(timed):
    table = timed.db.create_table("t", LOG, buckets=2, bucket_key=["n"], options={"table.log.ttl": "3h"})
    (trimmed,) = table.put({"n": 0}).offsets
    whole = "1" if trimmed == "0" else "0"
    timed.clock.advance(seconds=DAY)
    put = {next(iter(table.put({"n": n}).offsets)): n for n in range(1, 10)}
    timed.engine.tick()

    with pytest.raises(OffsetOutOfRange, match=f"bucket '{trimmed}'"):
        table.changelog(start=moment(timed, -25))
    assert put[whole] in numbers(table.changelog(start=moment(timed, -25), buckets=[whole]))


def test_all_rows_go_when_nobody_writes_any_more(timed):
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3 h"})
    hourly(timed, table, range(3))
    timed.clock.advance(seconds=DAY)

    timed.engine.tick()
    table.put({"n": 9})

    assert [(row["_log_offset"], row["n"]) for batch in table.changelog() for row in batch.to_pylist()] == [(3, 9)]


def test_rows_age_while_the_database_is_closed(timed):
    hourly(timed, timed.db.create_table("t", LOG, buckets=2, options={"table.log.ttl": "3h"}), range(4))
    timed.clock.advance(seconds=DAY)
    timed.reopen()

    timed.engine.tick()

    assert numbers(timed.db.table("t").changelog()) == []


def test_rows_that_were_written_under_a_clock_that_was_ahead_count_from_when_they_were_first_seen(timed):
    """Nobody knows when that was, but it was not later; nor do the rows after them say, whose times never go back."""
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3h"})
    timed.clock.jump(3650 * DAY * 1_000)
    table.put({"n": 0})
    timed.clock.jump(-3650 * DAY * 1_000)
    for n in range(1, 5):
        timed.engine.tick()
        timed.clock.advance(seconds=HOUR)
        table.put({"n": n})

    timed.engine.tick()

    assert numbers(table.changelog()) == [2, 3, 4]
    timed.clock.advance(seconds=3 * HOUR)
    timed.engine.tick()
    assert numbers(table.changelog()) == []


def test_rows_go_when_there_are_too_many(timed):
    table = timed.db.create_table("t", LOG, options={"table.log.max-bytes": "1"})
    hourly(timed, table, range(5))

    timed.engine.tick()

    assert numbers(table.changelog()) == [4]  # the last file always stays


def test_a_size_is_kept_up_to(timed):
    plain = timed.db.create_table("plain", LOG)
    hourly(timed, plain, range(5))
    size = timed.engine._tablets.opened()[0].log.bytes
    table = timed.db.create_table("t", LOG, options={"table.log.max-bytes": str(size * 3 // 5)})
    hourly(timed, table, range(5))

    timed.engine.tick()

    assert numbers(table.changelog()) == [2, 3, 4]
    assert numbers(plain.changelog()) == [0, 1, 2, 3, 4]


def test_a_table_keeps_everything_unless_told_otherwise(timed):
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "-1", "table.log.max-bytes": "-1"})
    hourly(timed, table, range(3))
    timed.clock.advance(seconds=1000 * DAY)

    timed.engine.tick()

    assert numbers(table.changelog()) == [0, 1, 2]


def test_the_options_are_shown_and_survive_a_reopen(timed):
    ddl = "CREATE TABLE t (n INT) WITH ('table.log.ttl' = '168 h', 'table.log.max-bytes' = '1000')"
    timed.db.execute(ddl)
    timed.reopen()

    described = timed.db.table("t").describe()

    assert described["options"] == {"table.log.ttl": "7d", "table.log.max-bytes": "1000"}
    assert "'table.log.ttl' = '7d'" in described["ddl"]


@pytest.mark.parametrize("options", [{"table.log.ttl": "1h"}, {"table.log.max-bytes": "1"}])
def test_a_table_with_a_key_keeps_its_log_until_a_snapshot_has_its_rows(timed, options):
    table = timed.db.create_table("t", kolk.Schema([kolk.Column("n", "int")], "n"), options=options)
    hourly(timed, table, range(5))

    timed.engine.tick()
    assert start(table) == 0

    table.take_snapshot()
    timed.engine.tick()
    assert start(table) > 0
    assert table.scan().to_arrow()["n"].to_pylist() == list(range(5))


@pytest.mark.parametrize(
    ("option", "value"),
    [("table.log.ttl", "soon"), ("table.log.ttl", "0d"), ("table.log.max-bytes", "0"), ("table.log.max-bytes", "1kb")],
)
def test_an_option_that_makes_no_sense_is_refused(db, option, value):
    with pytest.raises(InvalidSchema, match=f"{option} is a"):
        db.create_table("t", LOG, options={option: value})


def test_a_live_follower_keeps_what_it_has_not_seen(timed):
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3h"})
    hourly(timed, table, range(5))
    assert numbers(table.changelog(follower="job", stop={"0": 1})) == [0]

    timed.engine.tick()
    assert start(table) == 1
    assert numbers(table.changelog(follower="job")) == [1, 2, 3, 4]
    timed.engine.tick()

    assert start(table) == 3


def test_a_follower_that_expired_keeps_nothing_and_is_told_what_it_lost(timed):
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3h"})
    hourly(timed, table, range(5))
    numbers(table.changelog(follower="job", stop={"0": 1}))
    timed.clock.advance(seconds=7 * DAY)

    timed.engine.tick()

    assert [(f.state, f.pinned_bytes) for f in timed.db.followers()] == [("lost", 0)]
    with pytest.raises(HolderLost, match="offset 1 of bucket '0', and the log starts at 5"):
        table.changelog(follower="job")
    timed.db.drop_follower("t", "job")
    assert numbers(table.changelog(follower="job")) == []


def test_a_follower_that_was_left_behind_is_told_while_it_reads(timed):
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3h"})
    hourly(timed, table, range(2))
    changelog = table.changelog(follower="job", follow=True)
    batches = iter(changelog)
    next(batches)
    hourly(timed, table, range(2, 4))
    timed.clock.advance(seconds=7 * DAY)
    timed.engine.tick()

    with pytest.raises(HolderLost):
        changelog.commit()
    with pytest.raises(HolderLost):
        next(batches)


def test_a_lost_follower_does_not_keep_the_others_from_being_trimmed(timed):
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3h"})
    hourly(timed, table, range(2))
    table.changelog(follower="lost")
    table.truncate()
    hourly(timed, table, range(2, 9))

    timed.engine.tick()

    assert start(table) == 7


def test_whoever_keeps_too_much_is_released(bench):
    timed = bench(log_pinned_max_bytes=500)  # one row's file and not two
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3h"})
    hourly(timed, table, range(8))
    table.changelog(follower="greedy")
    assert numbers(table.changelog(follower="modest", stop={"0": 5})) == [0, 1, 2, 3, 4]

    timed.engine.tick()

    assert start(table) == 5
    assert {f.name: f.state for f in timed.db.followers()} == {"greedy": "lost", "modest": "live"}
    assert numbers(table.changelog(follower="modest")) == [5, 6, 7]
    with pytest.raises(HolderLost):
        table.changelog(follower="greedy")


def test_a_follower_that_keeps_nothing_beyond_its_time_is_never_released(bench):
    timed = bench(log_pinned_max_bytes=1)
    table = timed.db.create_table("t", LOG)
    hourly(timed, table, range(8))
    table.changelog(follower="job")

    timed.engine.tick()

    assert [(f.state, f.lag) for f in timed.db.followers()] == [("live", 8)]


def test_a_retried_put_is_known_after_its_frame_is_gone(timed):
    table = timed.db.create_table("t", LOG, options={"table.log.ttl": "3h"})
    tag = kolk.PlainTag(writer=5, seq=0)
    first = table.put({"n": 1}, tag=tag)
    timed.clock.advance(seconds=DAY)
    timed.engine.tick()

    again = table.put({"n": 1}, tag=tag)

    assert again.offsets == first.offsets
    assert numbers(table.changelog()) == []
