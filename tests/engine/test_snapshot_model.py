"""Snapshots and leases against a small model: whatever is written, taken, leased, lost, dropped or broken off, what is
leased is there and is what it was, what nobody keeps is gone, and the log goes on from every lease.

The model remembers what each bucket held at each offset, and which snapshots each lease and each open scan keeps. Two
tables: one of two buckets, one that is cut by day. The disk fails when told to, the process ends with and without a
word, and time passes, or only seems to.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from tests.engine.snapshot_bench import SnapshotBench

import kolk
from kolk.errors import InvalidArgument, KolkError, LeaseExists, LeaseLost, SnapshotNotFound
from kolk.model.scan import ScanRequest, ScanSource
from kolk.testing.copies import copy_of_one_moment

FULL = os.environ.get("KOLK_FULL") == "1"
SCHEMA = kolk.Schema(
    [kolk.Column("day", "string"), kolk.Column("key", "int"), kolk.Column("n", "int")], primary_key=["day", "key"]
)
OPTIONS = {"table.log.ttl": "1h"}
TABLES = {
    "t": {"buckets": 2, "bucket_key": ["key"]},
    "p": {"buckets": 1, "partition_by": ["day"]},
}
SCANS_MAX = 4
NAMES = st.sampled_from(sorted(TABLES))
DAYS = st.sampled_from("ab")
ROWS = st.lists(st.tuples(DAYS, st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=6)
TTL = st.sampled_from([60.0, 86_400.0, 86_400.0])


@dataclass
class Leased:
    """A lease of the model: its pins by table and bucket, each a snapshot and its rows."""

    id: str
    holder: int
    generation: int
    ttl: float
    deadline: float
    tables: dict = field(default_factory=dict)


@dataclass
class Scanned:
    """An open scan, what it has still to show, and what was dropped under it."""

    scan: object
    table: str
    pins: dict
    left: dict
    is_dropped: bool = False
    gone: set = field(default_factory=set)


class Model(RuleBasedStateMachine):
    leases = Bundle("leases")
    scans = Bundle("scans")

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        self.folders = count(1)
        self.numbers = count(1)
        self.bench = SnapshotBench(self.folder / "0", scan_page_rows=2)
        self.held = {}
        self.open_scans = []
        self.rows = {}
        self.history = {}
        for name in TABLES:
            self._create(name)

    @property
    def engine(self):
        return self.bench.engine

    def _create(self, name):
        self.bench.db.create_table(name, SCHEMA, options=OPTIONS, **TABLES[name])
        self.rows[name] = {}
        self._note(name)

    def _table(self, name):
        return self.bench.db.table(name)

    # --- what the model knows of buckets

    def _key(self, name, bucket):
        """What a bucket is known by, which one that is dropped and made anew has not: its numbers."""
        info = self._table(name).info
        found = self.engine._partitions.bucket(info, bucket)
        return found.table, found.partition, found.bucket

    def _note(self, name):
        """What each bucket holds at the offset where it now ends. Which rows it has it says itself, once."""
        table = self._table(name)
        seen = {}
        for bucket, bounds in table.describe()["offsets"].items():
            with table.scan(buckets=[bucket]) as scan:
                held = {(row["day"], row["key"]): row["n"] for row in scan.to_arrow().to_pylist()}
            seen |= held
            known = self.history.setdefault(self._key(name, bucket), {0: {}})
            assert known.setdefault(bounds["end"], held) == held
        assert seen == self.rows[name]

    def _at(self, name, bucket, offset):
        return self.history[self._key(name, bucket)][offset]

    # --- writers

    @rule(name=NAMES, writes=st.lists(ROWS, min_size=1, max_size=3), how=st.sampled_from("ttttdn"))
    def write(self, name, writes, how):
        """Some puts, each with its snapshot, or without; or deletes."""
        for rows in writes:
            self.delete(name, rows) if how == "d" else self.put(name, rows)
            if how == "t":
                self.take(name)

    @rule(name=NAMES, day=DAYS, what=st.sampled_from(["truncate", "partition", "partition", "table"]))
    def remove(self, name, day, what):
        if what == "truncate":
            self.truncate(name)
        elif what == "table":
            self.drop_table(name)
        else:
            self.drop_partition(day)

    def put(self, name, rows):
        self._table(name).put([{"day": day, "key": key, "n": n} for day, key, n in rows])
        self.rows[name] |= {(day, key): n for day, key, n in rows}
        self._note(name)

    def delete(self, name, rows):
        self._table(name).delete([{"day": day, "key": key} for day, key, _ in rows])
        for day, key, _ in rows:
            self.rows[name].pop((day, key), None)
        self._note(name)

    def truncate(self, name):
        self._table(name).truncate()
        self.rows[name] = {}
        self._note(name)

    def drop_partition(self, day):
        if f"day={day}" not in {each.name for each in self._table("p").partitions()}:
            return
        self._table("p").drop_partition(day=day)
        self.rows["p"] = {key: n for key, n in self.rows["p"].items() if key[0] != day}
        for lease in list(self.held.values()):
            self._let_go(lease, "p", [f"day={day}/0"])
        for scan in self.open_scans:
            if scan.table == "p":
                scan.gone.add(day)
                scan.pins.pop(f"day={day}/0", None)

    def drop_table(self, name):
        self.bench.db.drop_table(name)
        for lease in list(self.held.values()):
            self._let_go(lease, name, None)
        for scan in self.open_scans:
            scan.is_dropped |= scan.table == name
        self._create(name)

    # --- snapshots

    @rule(
        name=NAMES,
        step=st.integers(0, 120),
        within=st.sampled_from(["/snapshots/", "/snapshots/", "/checkpoints/", ""]),
    )
    def take_somehow(self, name, step, within):
        """By the clock, or on a disk that fails."""
        if within:
            self.put(name, [("a", step % 6, step % 10)])
            self.take_on_a_failing_disk(name, step, within)
        else:
            self.take_due()

    def take(self, name):
        infos = self.engine.take_snapshot(self._table(name).info.id)
        ends = {bucket: bounds["end"] for bucket, bounds in self._table(name).describe()["offsets"].items()}
        assert {each.bucket: each.offset for each in infos} == ends

    def take_due(self):
        self._pass(100.0)
        self.engine.take_due()
        for name in TABLES:
            newest = {each.bucket: each.offset for each in self.engine.snapshots(self._table(name).info.id)}
            ends = {bucket: bounds["end"] for bucket, bounds in self._table(name).describe()["offsets"].items()}
            assert {bucket: end for bucket, end in ends.items() if end} == {
                bucket: newest[bucket] for bucket, end in ends.items() if end
            }

    def take_on_a_failing_disk(self, name, step, within):
        self.bench.disk.fail_at(step, within)
        with suppress(KolkError):
            self.engine.take_snapshot(self._table(name).info.id)
        self.bench.disk.heal()

    # --- leases

    @rule(target=leases, names=st.lists(NAMES, min_size=1, max_size=2, unique=True), ttl=TTL)
    def lease_latest(self, names, ttl):
        wanted = {self._table(name).info.id: None for name in names}
        return self._acquire(wanted, ttl, f"l{next(self.numbers)}")

    @rule(target=leases, name=NAMES, ttl=TTL, back=st.integers(-1, 3))
    def lease_by_number(self, name, ttl, back):
        wanted = self._numbered(name, back)
        if not wanted:
            return multiple()
        return self._acquire({self._table(name).info.id: wanted}, ttl, f"l{next(self.numbers)}")

    @rule(lease=leases, name=NAMES, back=st.none() | st.integers(-1, 3))
    def lease_more(self, lease, name, back):
        wanted = None if back is None else self._numbered(name, back)
        if wanted == {}:
            return
        self._acquire({self._table(name).info.id: wanted}, lease.ttl, lease.id, lease)

    def _numbered(self, name, back):
        """Snapshots by number, so many before the newest of each bucket; some of them there are not."""
        newest = {each.bucket: each.id for each in self.engine.snapshots(self._table(name).info.id)}
        return {bucket: max(id - back, 0) for bucket, id in newest.items()}

    def _acquire(self, wanted, ttl, id, lease=None):
        holder, generation = (next(self.numbers), 0) if lease is None else (lease.holder, lease.generation)
        try:
            state = self.engine.acquire_lease(id, holder, wanted, ttl, generation)
        except InvalidArgument:
            assert self._table("p").info.id in wanted, "a table without partitions has nothing to lease"
            return multiple()
        except SnapshotNotFound:
            assert None not in wanted.values()
            return multiple()
        except LeaseLost:
            assert lease is not None
            assert lease.id not in self.held
            return multiple()
        except LeaseExists:
            assert lease is not None
            assert self.held[lease.id] is not lease, "somebody else has joined it"
            return multiple()
        if lease is not None:
            assert self.held[id].generation == generation
        made = Leased(id, holder, state.generation, ttl, self._now + ttl)
        self._note_pins(made, state)
        for table, snapshots in wanted.items():
            name = str(self.engine.table_by_id(table).name)
            if snapshots is None:
                assert name not in state.unavailable
            for bucket, number in (snapshots or {}).items():
                there = state.tables[name].snapshots.get(bucket) if name in state.tables else None
                assert there == number or state.unavailable[name][bucket] == number
        self.held[id] = made
        if lease is None:
            return made
        lease.generation, lease.deadline, lease.tables = made.generation, made.deadline, made.tables
        self.held[id] = lease
        return None

    def _note_pins(self, lease, state):
        lease.tables = {
            name: {
                bucket: (number, table.offsets[bucket], self._at(name, bucket, table.offsets[bucket]))
                for bucket, number in table.snapshots.items()
            }
            for name, table in state.tables.items()
        }

    @rule(target=leases, lease=leases)
    def join(self, lease):
        holder = next(self.numbers)
        if lease.id not in self.held:
            with pytest.raises(LeaseLost):
                self.engine.join_lease(lease.id, holder)
            return multiple()
        before = self.held[lease.id]
        state = self.engine.join_lease(lease.id, holder)
        assert state.generation > before.generation
        joined = Leased(lease.id, holder, state.generation, before.ttl, self._now + before.ttl, before.tables)
        self.held[lease.id] = joined
        return joined

    @rule(lease=leases)
    def renew(self, lease):
        if self.held.get(lease.id) is not lease:
            with pytest.raises(LeaseLost):
                self.engine.renew_lease(lease.id, lease.generation)
            return
        self.engine.renew_lease(lease.id, lease.generation)
        lease.deadline = self._now + lease.ttl

    @rule(lease=leases, name=NAMES, some=st.booleans())
    def release(self, lease, name, some):
        buckets = sorted(lease.tables.get(name, {}))[:1] if some else None
        self.engine.release_lease(lease.id, lease.generation, {name: buckets})
        if self.held.get(lease.id) is lease:
            self._let_go(lease, name, buckets)

    def _let_go(self, lease, name, buckets):
        """What the model's lease keeps no more; one that keeps nothing is gone."""
        pins = lease.tables.get(name, {})
        for bucket in list(pins) if buckets is None else buckets:
            pins.pop(bucket, None)
        if not pins:
            lease.tables.pop(name, None)
        if not lease.tables:
            self.held.pop(lease.id, None)

    @rule(lease=leases, force=st.booleans())
    def drop_lease(self, lease, force):
        there = self.held.get(lease.id)
        is_meant = there is not None and (force or there.generation == lease.generation)
        assert self.engine.drop_lease(lease.id, None if force else lease.generation) == is_meant
        if is_meant:
            del self.held[lease.id]

    # --- time

    @property
    def _now(self):
        return self.bench.clock.monotonic()

    def _pass(self, seconds):
        self.bench.clock.advance(seconds=seconds)
        self.held = {id: lease for id, lease in self.held.items() if lease.deadline > self._now}

    @rule(seconds=st.sampled_from([1.0, 1.0, 59.999, 60.0, 7_200.0]), hours=st.sampled_from([-48, 0, 1, 48]))
    def wait(self, seconds, hours):
        """And let the log go that may go."""
        self._pass(seconds)
        if hours:
            self.jump(hours)
        self.trim()

    def jump(self, hours):
        self.bench.clock.jump(hours * 3_600_000)

    def trim(self):
        self.engine.tick()

    # --- readers

    @rule(target=scans, name=NAMES, lease=st.none() | leases)
    def scan(self, name, lease):
        """Opened, and not read yet."""
        if len(self.open_scans) == SCANS_MAX:
            self._close(self.open_scans[0])
        pins = None if lease is None else self.held.get(lease.id, Leased("", 0, 0, 0, 0)).tables.get(name)
        source = ScanSource.SNAPSHOT if lease is None else ScanSource.LEASE
        request = ScanRequest(source=source, lease="" if lease is None else lease.id)
        if lease is not None and pins is None:
            with pytest.raises((LeaseLost, SnapshotNotFound)):
                self.engine.open_scan(self._table(name).info.id, request)
            return multiple()
        scan = self.engine.open_scan(self._table(name).info.id, request)
        if pins is not None:
            assert scan.pins == {bucket: each[0] for bucket, each in pins.items()}
            assert scan.offsets.items() >= {bucket: each[1] for bucket, each in pins.items()}.items()
        rows = {}
        for bucket in scan.pins:
            rows |= self._at(name, bucket, scan.offsets[bucket])
        opened = Scanned(scan, name, dict(scan.pins), rows)
        if not rows:
            assert scan.next() is None
            scan.close()
            return multiple()
        self.open_scans.append(opened)
        return opened

    @rule(scan=scans, pages=st.sampled_from([1, 1, 100]))
    def read(self, scan, pages):
        if scan not in self.open_scans:
            return
        try:
            for _ in range(pages):
                page = scan.scan.next()
                if page is None:
                    assert {key for key in scan.left if key[0] not in scan.gone or scan.table == "t"} == set()
                    self._close(scan)
                    return
                for row in [] if page.batch is None else page.batch.to_pylist():
                    assert scan.left.pop((row["day"], row["key"])) == row["n"]
        except KolkError:
            assert scan.is_dropped
            self._close(scan)

    @rule(scan=scans)
    def close_scan(self, scan):
        if scan in self.open_scans:
            self._close(scan)

    def _close(self, scan):
        scan.scan.close()
        self.open_scans.remove(scan)

    @rule(lease=leases)
    def read_lease_and_what_came_after(self, lease):
        held = self.held.get(lease.id)
        for name, pins in ({} if held is None else held.tables).items():
            self._check_lease(name, held.id, pins)

    def _check_lease(self, name, id, pins):
        table = self._table(name)
        rows, _ = self.bench.scanned(table, lease=id)
        replica = {(row["day"], row["key"]): row["n"] for row in rows}
        expected = {}
        for _, _, state in pins.values():
            expected |= state
        assert replica == expected
        assert len(rows) == len(replica)
        if len(pins) < len(table.describe()["offsets"]):
            return  # of the other buckets it knows nothing, nor where they go on

        def on_partition(event):
            for key in [key for key in replica if key[0] == event.values["day"]]:
                del replica[key]

        start = self.engine.lease(id).tables[name].start
        for batch in table.changelog(start=start, on_partition=on_partition):
            for row in batch.to_pylist():
                key = row["day"], row["key"]
                if row["_change_type"] in ("+I", "+U"):
                    replica[key] = row["n"]
                elif row["_change_type"] == "-D":
                    assert replica.pop(key) == row["n"]
        assert replica == self.rows[name]

    # --- ends and beginnings

    @rule(name=NAMES, how=st.sampled_from(["reopen", "crash", "crash", "lose"]))
    def begin_anew(self, name, how):
        if how == "lose":
            self.lose_the_rows(name)
        else:
            getattr(self, how)()

    def reopen(self):
        self._close_all()
        self.bench.reopen()
        self._meet_again()

    def crash(self):
        """The folder as a kill would leave it, opened by another process."""
        target = self.folder / str(next(self.folders))
        copy_of_one_moment(self.bench.path, target)
        self._close_all()
        self.bench.close()
        shutil.rmtree(self.bench.path)
        self.bench.path = target
        self.bench.open_engine()
        self._meet_again()

    def lose_the_rows(self, name):
        """Those of all buckets of a table, while the database is closed; snapshots and log have them."""
        table = self._table(name).info.id
        self._close_all()
        self.bench.close()
        for kv in (self.bench.path / "tables" / str(table)).glob("*/*/kv"):
            shutil.rmtree(kv)
        self.bench.open_engine()
        self._meet_again()
        self._note(name)

    def _close_all(self):
        for scan in list(self.open_scans):
            self._close(scan)

    def _meet_again(self):
        """A lease has all the time that it had, and a third of its time at least."""
        for name in TABLES:
            self.engine.snapshots(self._table(name).info.id)  # as the next round does
        for lease in self.held.values():
            state = self.engine.lease(lease.id)
            left = state.expires.timestamp() - self.bench.clock.now_ms() / 1_000
            assert left >= max(min(lease.deadline - self._now, lease.ttl), lease.ttl / 3) - 0.002
            lease.deadline = self._now + left

    # --- what always holds

    @invariant()
    def everything_that_is_kept_is_there_and_nothing_else(self):
        if not hasattr(self, "bench"):
            return
        self.engine.reap()
        self._check_leases()
        kept = self._kept()
        for name in TABLES:
            found = {}
            for each in self.engine.snapshots(self._table(name).info.id):
                assert each.rows == len(self._at(name, each.bucket, each.offset))
                found.setdefault(each.bucket, []).append(each.id)
                key = self._key(name, each.bucket)
                assert each.leases == sum(
                    self._key(name, each.bucket) == key and pins.get(each.bucket, (0,))[0] == each.id
                    for lease in self.held.values()
                    for pins in [lease.tables.get(name, {})]
                )
            for bucket, ids in found.items():
                assert set(ids) == set(ids[-2:]) | kept.get((name, bucket), set())
            for (kept_name, bucket), ids in kept.items():
                assert kept_name != name or ids <= set(found.get(bucket, []))
            self._check_log(name)
        self.bench.check_files()

    def _check_leases(self):
        listed = {each.id: each.pins for each in self.engine.leases()}
        assert listed == {id: sum(map(len, lease.tables.values())) for id, lease in self.held.items()}

    def _kept(self):
        """The snapshots that leases and open scans keep, by table and bucket."""
        kept = {}
        for lease in self.held.values():
            for name, pins in lease.tables.items():
                for bucket, (id, *_) in pins.items():
                    kept.setdefault((name, bucket), set()).add(id)
        for scan in self.open_scans:
            if scan.is_dropped:
                continue
            views = {view_bucket.name for view_bucket in self._viewed(scan)}
            for bucket, id in scan.pins.items():
                if bucket in views:
                    kept.setdefault((scan.table, bucket), set()).add(id)
        return kept

    def _viewed(self, scan):
        """The buckets that a scan still has open: one without rows it never had."""
        info = self._table(scan.table).info
        found = []
        for bucket in scan.pins:
            id = self.engine._partitions.bucket(info, bucket)
            if scan.pins[bucket] in self.engine._snapshots.of(id)._opened:
                found.append(id)
        return found

    def _check_log(self, name):
        """It starts at or before every offset that somebody goes on from."""
        starts = {bucket: bounds["start"] for bucket, bounds in self._table(name).describe()["offsets"].items()}
        for lease in self.held.values():
            for bucket, (_, offset, _) in lease.tables.get(name, {}).items():
                assert starts[bucket] <= offset
        for each in self.engine.snapshots(self._table(name).info.id)[-1:]:
            assert starts[each.bucket] <= each.offset

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        try:
            for lease in self.held.values():
                for name, pins in lease.tables.items():
                    self._check_lease(name, lease.id, pins)
            self._close_all()
            for id in list(self.held):
                self.engine.drop_lease(id)
            self.held = {}
            self.everything_that_is_kept_is_there_and_nothing_else()
        finally:
            self.bench.close()
            shutil.rmtree(self.folder)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150 if FULL else 15, stateful_step_count=60 if FULL else 30)
