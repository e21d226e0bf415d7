"""The rounds in which expired rows go: bounded, fair, and never at a bucket where there is nothing to find."""

import datetime
import errno
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kolk
from kolk.engine.database import Engine
from kolk.engine.expiry import STEP_ROWS_MAX, Expiry
from kolk.model.ids import SystemTag, SystemWork
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.storage.kv import Kv
from kolk.testing.clock import ManualClock
from kolk.testing.faults import Call, FailingDisk

SCHEMA = kolk.Schema([kolk.Column("k", "int"), kolk.Column("at", "timestamp_ltz(3)")], "k")
TTL = {"table.kv.ttl": "1h", "table.kv.ttl.column": "at"}
HOUR_MS = 3_600_000


class Aging:
    """A database whose rounds are made by hand, and which counts the buckets that are opened."""

    def __init__(self, folder, disk=None, **settings):
        self.clock = ManualClock()
        self.opened = 0
        config = {"durability": "process", "kv_block_cache_bytes": 2**22, "kv_write_buffer_bytes": 2**22}
        self.engine = Engine(
            Folder(folder),
            kolk.EngineConfig(**(config | settings)),
            clock=self.clock,
            open_kv=self.open_kv,
            disk=disk or OsDisk(),
        )
        self.db = kolk.Database(self.engine, self.engine.close, Rng(), clock=self.clock)

    def open_kv(self, path, memory):
        self.opened += 1
        return Kv(path, memory)

    def table(self, name="t", **how):
        return self.db.create_table(name, SCHEMA, options=TTL, **how)

    def expiry(self, rows_max):
        engine = self.engine
        return Expiry(engine._catalog, engine._partitions, engine._tablets, self.clock, rows_max)

    def put(self, table, keys, ms=0):
        """Put rows whose time is so many milliseconds after now."""
        times = pa.array(np.full(len(keys), self.clock.now_ms() + ms)).cast(SCHEMA.arrow.field("at").type)
        table.put(pa.table({"k": pa.array(keys, pa.int32()), "at": times}))


@pytest.fixture
def aging(tmp_path):
    made = []

    def make(**settings):
        made.append(Aging(tmp_path / "data", **settings))
        return made[-1]

    yield make
    for each in made:
        each.db.close()


def keys(table):
    with table.scan() as scan:
        return sorted(scan.to_arrow().column("k").to_pylist())


def count(table):
    return len(keys(table))


# --- bounds


def test_one_frame_removes_no_more_rows_than_one_step_may(aging):
    bench = aging()
    table = bench.table()
    bench.put(table, range(10_000), -HOUR_MS)

    bench.engine.tick()

    (tablet,) = bench.engine._tablets.opened()
    frames = [frame for frame in tablet.log.read(0) if frame.header.tag == SystemTag(SystemWork.TTL)]
    assert [frame.header.rows for frame in frames] == [STEP_ROWS_MAX, STEP_ROWS_MAX, 10_000 - 2 * STEP_ROWS_MAX]
    assert count(table) == 0


def test_a_round_looks_at_so_many_rows_and_the_next_one_goes_on_there(aging):
    bench = aging()
    table = bench.table()
    expiry = bench.expiry(3_000)
    bench.put(table, range(8_000), -HOUR_MS)

    left = []
    for _ in range(4):
        expiry.round()
        left.append(count(table))

    assert left == [5_000, 2_000, 0, 0]
    assert keys(table) == []


def test_every_table_has_its_turn_however_large_the_others_are(aging):
    bench = aging()
    large, small, last = (bench.table(name) for name in ("a", "b", "c"))
    expiry = bench.expiry(2_000)
    bench.put(large, range(20_000), -HOUR_MS)
    for table in (small, last):
        bench.put(table, range(10), -HOUR_MS)

    expiry.round()
    assert [count(table) for table in (large, small, last)] == [18_000, 10, 10]
    expiry.round()
    assert [count(table) for table in (large, small, last)] == [18_000, 0, 0]
    for _ in range(9):
        expiry.round()

    assert count(large) == 0


def test_a_round_opens_only_so_many_buckets(aging):
    bench = aging()
    table = bench.table(buckets=5)
    bench.put(table, range(100), -HOUR_MS)
    offsets = [tablet.end for tablet in bench.engine._tablets.opened()]
    assert len(offsets) == 5
    expiry = bench.expiry(2_500)

    expiry.round()
    walked = len(expiry._walks)
    expiry.round()

    assert (walked, count(table)) == (3, 0)


# --- nothing for nothing


def test_a_bucket_that_nobody_writes_to_rests_until_a_row_of_it_is_due(aging):
    bench = aging(buckets_open_max=1)
    table = bench.table(buckets=4)
    bench.put(table, range(100), 0)
    bench.put(table, [100], HOUR_MS)
    bench.engine.tick()

    before = bench.opened
    for _ in range(59):
        bench.clock.advance(seconds=60)
        bench.engine.tick()
    assert bench.opened <= before + 1, "one of them stays open"
    bench.clock.advance(seconds=60)
    bench.engine.tick()

    assert keys(table) == [100]


def test_a_bucket_is_walked_again_when_somebody_wrote_to_it_and_not_when_only_the_walk_did(aging):
    bench = aging()
    table = bench.table()
    bench.put(table, range(10), -HOUR_MS)
    bench.put(table, range(10, 20), HOUR_MS)
    expiry = bench.expiry(10_000)
    expiry.round()
    (bucket,) = expiry._walks
    finished = expiry._walks[bucket]

    expiry.round()
    assert expiry._walks[bucket] is finished
    bench.put(table, [30], -HOUR_MS)
    expiry.round()

    assert expiry._walks[bucket] is not finished
    assert keys(table) == list(range(10, 20))


def test_what_is_written_behind_a_walk_is_found_by_the_next(aging):
    bench = aging()
    table = bench.table()
    bench.put(table, range(1_000, 5_000), -HOUR_MS)
    expiry = bench.expiry(2_000)
    expiry.round()
    bench.put(table, [1], -HOUR_MS)

    for _ in range(3):
        expiry.round()

    assert keys(table) == []


def test_buckets_without_a_row_and_tables_without_a_ttl_are_never_opened(aging):
    bench = aging()
    bench.table("empty", buckets=16)
    bench.db.create_table("plain", SCHEMA, buckets=16)

    for _ in range(3):
        bench.engine.tick()

    assert bench.opened == 0


def test_what_is_known_of_a_bucket_goes_with_it(aging):
    bench = aging()
    table = bench.table(buckets=3)
    bench.put(table, range(100))
    expiry = bench.expiry(10_000)
    expiry.round()
    assert len(expiry._walks) == 3

    bench.db.drop_table("t")
    expiry.round()

    assert expiry._walks == {}


# --- failures


def test_a_table_that_fails_is_told_of_once_and_does_not_stop_the_others(aging, caplog):
    disk = FailingDisk()
    bench = aging(disk=disk)
    broken, sound = bench.table("broken", buckets=3), bench.table("sound")
    for table in (broken, sound):
        bench.put(table, range(30), -HOUR_MS)
    disk.fail_always(Call.WRITE, errno.EIO, within=f"/tables/{broken.info.id}/")

    bench.engine.tick()

    assert keys(sound) == []
    (told,) = [record.message for record in caplog.records if "broken" in record.message]
    assert told.startswith("the expired rows of broken are not removed: ")


def test_a_disk_that_is_full_for_a_while_only_delays_it(aging):
    disk = FailingDisk()
    bench = aging(disk=disk)
    table = bench.table(buckets=2)
    bench.put(table, range(30), -HOUR_MS)
    disk.fail_always(Call.WRITE, errno.ENOSPC)

    bench.engine.tick()
    assert count(table) == 30
    disk.heal()
    bench.engine.tick()

    assert count(table) == 0


def test_a_database_that_closes_under_a_round_is_no_news(aging, caplog):
    bench = aging()
    bench.put(bench.table(buckets=2), range(30), -HOUR_MS)
    bench.engine.close()

    bench.engine._expiry.round()

    assert caplog.records == []


# --- against a table as a dict

_MOVES = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 6), st.none() | st.integers(-5, 5)),
    st.tuples(st.just("delete"), st.integers(0, 6), st.none()),
    st.tuples(st.just("advance"), st.integers(0, 3), st.none()),
    st.tuples(st.just("jump"), st.integers(-4, 4), st.none()),
    st.tuples(st.just("ttl"), st.sampled_from([-1, 1, 2, 4]), st.none()),
    st.tuples(st.just("truncate"), st.just(0), st.none()),
    st.tuples(st.just("rename"), st.just(0), st.none()),
    st.tuples(st.just("tick"), st.just(0), st.none()),
)


@given(st.lists(_MOVES, min_size=1, max_size=25))
def test_after_a_round_the_table_has_the_rows_that_a_dict_would_have(moves):
    """Times and ttls are whole hours, so that moves meet: rows at, before and after their time."""
    rows: dict[int, int | None] = {}
    ttl, names = 2, iter(range(1_000))
    with tempfile.TemporaryDirectory() as folder:
        bench = Aging(Path(folder) / "data")
        table = bench.db.create_table("t", SCHEMA, buckets=2, options={**TTL, "table.kv.ttl": "2h"})
        for move, number, hours in [*moves, ("tick", 0, None)]:
            column = table.schema.names[1]
            match move:
                case "put":
                    rows[number] = None if hours is None else bench.clock.now_ms() + hours * HOUR_MS
                    table.put([{"k": number, column: rows[number] and _moment(rows[number])}])
                case "delete":
                    rows.pop(number, None)
                    table.delete([{"k": number}])
                case "advance":
                    bench.clock.advance(ms=number * HOUR_MS)
                case "jump":
                    bench.clock.jump(number * HOUR_MS)
                case "ttl":
                    ttl = number
                    table.set_options({"table.kv.ttl": "-1" if ttl < 0 else f"{ttl}h"})
                case "truncate":
                    rows.clear()
                    table.truncate()
                case "rename":
                    table.rename_column(column, f"at{next(names)}")
                case _:
                    bench.engine.tick()
                    before = bench.clock.now_ms() - ttl * HOUR_MS
                    gone = [k for k, time in rows.items() if ttl > 0 and time is not None and time <= before]
                    rows = {k: time for k, time in rows.items() if k not in gone}
                    assert keys(table) == sorted(rows)
        assert _replayed(table) == sorted(rows)
        bench.db.close()


def _moment(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1_000, datetime.UTC)


def _replayed(table: kolk.Table) -> list[int]:
    """The keys that are left when the changelog is done from its start."""
    left: set[int] = set()
    for batch in table.changelog(schema="latest"):
        for row in batch.to_pylist():
            (left.add if row["_change_type"] in ("+I", "+U") else left.discard)(row["k"])
    return sorted(left)
