"""Rows that are past their time: they go by themselves, visibly, and no row goes that should not."""

import datetime

import pyarrow as pa
import pytest

import kolk
from kolk.errors import InvalidSchema, TableNotFound

TTL = {"table.kv.ttl": "1h", "table.kv.ttl.column": "at"}
HOUR_MS = 3_600_000
ENGINES = {
    "default": {},
    "first_row": {"table.merge-engine": "first_row"},
    "versioned": {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"},
}


def schema(type="timestamp_ltz(3)", **columns):
    more = [kolk.Column(name, kind) for name, kind in columns.items()]
    return kolk.Schema([kolk.Column("k", "int"), kolk.Column("at", type), *more], "k")


def at(timed, ms=0):
    """A moment so many milliseconds after now."""
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=timed.clock.now_ms() + ms)


def keys(table, **how):
    with table.scan(**how) as scan:
        return sorted(scan.to_arrow().column(table.schema.primary_key[-1]).to_pylist())


def changes(table, **how):
    return [row for batch in table.changelog(**how) for row in batch.to_pylist()]


def kinds(table):
    return [(row["_change_type"], row["k"]) for row in changes(table)]


def ends(table):
    return {name: bounds["end"] for name, bounds in table.describe()["offsets"].items()}


# --- which rows go


def test_a_row_goes_at_the_very_millisecond_its_time_is_up(timed):
    table = timed.db.create_table("t", schema(), options=TTL)
    table.put([{"k": 1, "at": at(timed)}, {"k": 2, "at": at(timed, 1)}])

    timed.clock.advance(ms=HOUR_MS - 1)
    timed.engine.tick()
    assert keys(table) == [1, 2]

    timed.clock.advance(ms=1)
    timed.engine.tick()
    assert keys(table) == [2]

    timed.clock.advance(ms=1)
    timed.engine.tick()
    assert keys(table) == []


def test_a_row_without_a_time_never_goes(timed):
    table = timed.db.create_table("t", schema(), options=TTL)
    table.put([{"k": 1, "at": None}])

    timed.clock.advance(seconds=1_000 * 86_400)
    timed.engine.tick()

    assert keys(table) == [1]


def test_a_date_is_its_midnight_in_utc(timed):
    table = timed.db.create_table("t", schema("date"), options={**TTL, "table.kv.ttl": "1d"})
    today = at(timed).date()
    midnight = datetime.datetime.combine(today, datetime.time(), datetime.UTC)
    table.put([{"k": 1, "at": today}, {"k": 2, "at": today - datetime.timedelta(days=1)}])
    timed.engine.tick()
    assert keys(table) == [1]

    timed.clock.advance(seconds=(midnight - at(timed)).total_seconds() + 86_400 - 0.001)
    timed.engine.tick()
    assert keys(table) == [1]

    timed.clock.advance(ms=1)
    timed.engine.tick()
    assert keys(table) == []


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ltz"])
@pytest.mark.parametrize("digits", range(10))
def test_a_time_of_any_precision_counts_as_utc_and_to_its_last_digit(timed, kind, digits):
    table = timed.db.create_table("t", schema(f"{kind}({digits})"), options=TTL)
    arrow = table.schema.column("at").type.arrow
    step = 10 ** (9 - digits)
    limit = timed.clock.now_ms() // 1_000 * 1_000_000_000
    timed.clock.jump(limit // 1_000_000 + HOUR_MS - timed.clock.now_ms())
    per_tick = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[arrow.unit]
    ticks = pa.array([(limit + move) // per_tick for move in (-step, 0, step)], pa.int64()).cast(arrow)
    table.put(pa.table({"k": pa.array([1, 2, 3], pa.int32()), "at": ticks}))

    timed.engine.tick()

    assert keys(table) == [3]


def test_a_row_lives_as_long_as_its_newest_time_says(timed):
    table = timed.db.create_table("t", schema(), options=TTL)
    table.put([{"k": 1, "at": at(timed)}, {"k": 2, "at": at(timed)}])
    timed.clock.advance(ms=HOUR_MS - 1)
    table.put([{"k": 1, "at": at(timed)}])

    timed.clock.advance(ms=1)
    timed.engine.tick()

    assert keys(table) == [1]


def test_a_row_that_is_put_when_its_time_is_up_is_taken_and_goes_with_the_next_round(timed):
    table = timed.db.create_table("t", schema(), options=TTL)
    table.put([{"k": 1, "at": at(timed, -2 * HOUR_MS)}])

    assert keys(table) == [1]
    timed.engine.tick()
    assert keys(table) == []
    table.put([{"k": 1, "at": at(timed, -2 * HOUR_MS)}])
    timed.engine.tick()

    assert kinds(table) == [("+I", 1), ("-D", 1)] * 2


def test_the_time_may_be_part_of_the_key(timed):
    made = kolk.Schema([kolk.Column("at", "timestamp"), kolk.Column("k", "int")], ["at", "k"])
    table = timed.db.create_table("t", made, options=TTL)
    past, now = at(timed, -2 * HOUR_MS).replace(tzinfo=None), at(timed).replace(tzinfo=None)
    table.put([{"at": past, "k": 1}, {"at": now, "k": 2}])

    timed.engine.tick()

    assert keys(table) == [2]


def test_a_clock_that_is_put_back_brings_nothing_back_and_removes_nothing(timed):
    table = timed.db.create_table("t", schema(), options=TTL)
    table.put([{"k": 1, "at": at(timed)}, {"k": 2, "at": at(timed, HOUR_MS)}])
    timed.clock.advance(ms=HOUR_MS)
    timed.engine.tick()
    assert keys(table) == [2]

    timed.clock.jump(-10 * HOUR_MS)
    timed.engine.tick()
    table.put([{"k": 3, "at": at(timed)}])
    timed.engine.tick()
    assert keys(table) == [2, 3]

    timed.clock.advance(ms=HOUR_MS)
    timed.engine.tick()
    assert keys(table) == [2]
    timed.clock.advance(ms=10 * HOUR_MS)
    timed.engine.tick()
    assert keys(table) == []


# --- how they go


@pytest.mark.parametrize("image", ["full", "wal"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("behavior", ["ignore", "disable"])
def test_the_changelog_shows_the_whole_row_whatever_the_table_does_with_deletes(timed, engine, behavior, image):
    options = {**TTL, **ENGINES[engine], "table.delete.behavior": behavior, "table.changelog.image": image}
    table = timed.db.create_table("t", schema(v="bigint", s="string"), options=options)
    row = {"k": 1, "at": at(timed), "v": 1, "s": "all of it"}
    table.put([row])

    timed.clock.advance(ms=HOUR_MS)
    timed.engine.tick()

    gone = changes(table)[-1]
    assert gone["_change_type"] == "-D"
    assert {name: gone[name] for name in row} == row
    assert keys(table) == []
    assert table.get_one(k=1) is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_key_is_new_again_when_its_row_has_gone(timed, engine):
    table = timed.db.create_table("t", schema(v="bigint"), options={**TTL, **ENGINES[engine]})
    table.put([{"k": 1, "at": at(timed), "v": 9}])
    timed.clock.advance(ms=HOUR_MS)
    timed.engine.tick()

    table.put([{"k": 1, "at": at(timed), "v": 1}])

    assert table.get_one(k=1)["v"] == 1
    assert kinds(table) == [("+I", 1), ("-D", 1), ("+I", 1)]


def test_a_follower_is_told_and_a_scan_that_was_open_keeps_its_rows(timed):
    table = timed.db.create_table("t", schema(), options=TTL)
    table.put([{"k": 1, "at": at(timed)}, {"k": 2, "at": None}])
    timed.clock.advance(ms=HOUR_MS)
    seen = [row["_change_type"] for row in changes(table, follower="job")]

    with table.scan() as scan:
        timed.engine.tick()
        assert sorted(scan.to_arrow().column("k").to_pylist()) == [1, 2]
        rest = [row["_change_type"] for row in changes(table, start=scan.offsets)]

    assert (seen, rest) == (["+I", "+I"], ["-D"])
    assert [(row["_change_type"], row["k"]) for row in changes(table, follower="job")] == [("-D", 1)]


def test_every_bucket_of_every_partition_is_gone_through(timed):
    made = kolk.Schema([kolk.Column("day", "string"), kolk.Column("k", "int"), kolk.Column("at", "date")], ["day", "k"])
    table = timed.db.create_table("t", made, buckets=3, partition_by=["day"], options={**TTL, "table.kv.ttl": "2d"})
    old = at(timed).date() - datetime.timedelta(days=5)
    table.put([{"day": day, "k": k, "at": old if k % 2 else None} for day in "abc" for k in range(20)])

    timed.engine.tick()

    assert keys(table) == sorted(list(range(0, 20, 2)) * 3)
    assert sum(row["_change_type"] == "-D" for row in changes(table)) == 30


def test_a_partition_may_go_before_its_rows_do(timed):
    made = kolk.Schema([kolk.Column("day", "string"), kolk.Column("k", "int"), kolk.Column("at", "date")], ["day", "k"])
    table = timed.db.create_table("t", made, partition_by=["day"], options=TTL)
    table.put([{"day": day, "k": 1, "at": at(timed).date()} for day in "ab"])
    timed.engine.tick()
    table.drop_partition(day="a")
    timed.clock.advance(seconds=3 * 86_400)

    timed.engine.tick()

    assert keys(table) == []
    assert [partition.name for partition in table.partitions()] == ["day=b"]


def test_a_table_that_is_truncated_or_dropped_meanwhile_is_no_trouble(timed):
    kept, dropped = (timed.db.create_table(name, schema(), options=TTL) for name in ("kept", "dropped"))
    for table in (kept, dropped):
        table.put([{"k": 1, "at": at(timed)}])
    timed.engine.tick()
    kept.truncate()
    timed.db.drop_table("dropped")
    timed.clock.advance(ms=2 * HOUR_MS)

    timed.engine.tick()
    kept.put([{"k": 2, "at": at(timed)}])
    timed.engine.tick()

    assert kinds(kept) == [("+I", 1), ("-D", 1), ("+I", 2)]
    with pytest.raises(TableNotFound):
        timed.db.table("dropped")


def test_what_has_gone_stays_gone_after_a_restart_and_what_is_due_goes_then(timed):
    table = timed.db.create_table("t", schema(), buckets=2, options=TTL)
    table.put([{"k": k, "at": at(timed, k % 2 * HOUR_MS)} for k in range(10)])
    timed.clock.advance(ms=HOUR_MS)
    timed.engine.tick()
    timed.clock.advance(ms=HOUR_MS)

    timed.reopen()
    table = timed.db.table("t")
    assert keys(table) == [1, 3, 5, 7, 9]
    timed.engine.tick()

    assert keys(table) == []
    assert sum(ends(table).values()) == 20


# --- a table that changes


def test_the_time_is_known_under_any_name_and_old_rows_too(timed):
    table = timed.db.create_table("t", schema(s="string"), options=TTL)
    table.put([{"k": 1, "at": at(timed), "s": "x"}, {"k": 2, "at": at(timed, HOUR_MS), "s": "x"}])
    table.alter([kolk.RenameColumn("at", "seen"), kolk.MoveColumn("seen", first=True), kolk.DropColumn("s")])
    table.alter([kolk.AddColumn(kolk.Column("at", "timestamp_ltz(3)", default="1970-01-01 00:00:00Z"))])
    table.put([{"k": 3, "seen": at(timed)}, {"k": 4, "seen": at(timed, HOUR_MS)}])
    assert table.describe()["options"]["table.kv.ttl.column"] == "seen"

    timed.clock.advance(ms=HOUR_MS)
    timed.engine.tick()
    assert keys(table) == [2, 4]
    timed.reopen()
    timed.clock.advance(ms=HOUR_MS)
    timed.engine.tick()

    assert keys(timed.db.table("t")) == []


def test_the_column_of_the_time_cannot_be_dropped(timed):
    table = timed.db.create_table("t", schema(), options=TTL)

    with pytest.raises(InvalidSchema, match=r"table\.kv\.ttl\.column.*cannot be dropped"):
        table.drop_column("at")
    with pytest.raises(InvalidSchema, match=r"table\.kv\.ttl\.column is decided when a table is made"):
        table.set_options({"table.kv.ttl.column": "at"})


def test_the_ttl_of_a_living_table_is_set_changed_and_turned_off(timed):
    table = timed.db.execute("CREATE TABLE t (k INT, at DATE, PRIMARY KEY (k)) WITH ('table.kv.ttl.column' = 'at')")
    today = at(timed).date()
    table.put([{"k": days, "at": today - datetime.timedelta(days=days)} for days in range(6)])
    timed.engine.tick()
    assert len(keys(table)) == 6

    timed.db.execute("ALTER TABLE t SET ('table.kv.ttl' = '5d')")
    timed.engine.tick()
    assert keys(table) == [0, 1, 2, 3, 4]
    timed.db.execute("ALTER TABLE t SET ('table.kv.ttl' = '3d')")
    timed.engine.tick()
    assert keys(table) == [0, 1, 2]
    timed.db.execute("ALTER TABLE t SET ('table.kv.ttl' = '-1')")
    timed.clock.advance(seconds=100 * 86_400)
    timed.engine.tick()

    assert keys(table) == [0, 1, 2]
    assert "table.kv.ttl" not in table.describe()["options"]


def test_a_table_that_says_nothing_of_a_ttl_keeps_its_rows(timed):
    table = timed.db.create_table("t", schema())
    table.put([{"k": 1, "at": at(timed)}])
    timed.clock.advance(seconds=10_000 * 86_400)

    timed.engine.tick()

    assert keys(table) == [1]
