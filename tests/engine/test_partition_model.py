"""Partitions against a small model: whatever comes, goes, expires or comes again, every reader ends with the table.

The model is a dict of partitions, each a dict of rows. Readers keep a replica each, by what they are given and told: a
scan and then the changelog from its offsets on, kept offsets that are read now and then, and followers that crash with
what they have not committed. Two buckets at most stay open, so that they rest and are opened again all the time.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule

import kolk
from kolk.engine.database import Engine
from kolk.errors import InvalidRows, PartitionExists, PartitionNotFound
from kolk.model.auto_partition import AutoPartition
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.clock import ManualClock

FULL = os.environ.get("KOLK_FULL") == "1"
SETTINGS = kolk.EngineConfig(
    durability="process",
    kv_block_cache_bytes=2**22,
    kv_write_buffer_bytes=2**22,
    buckets_open_max=2,
    scan_page_rows=2,
    scans_per_bucket_max=1_000,
)
SCHEMA = kolk.Schema(
    [kolk.Column("day", "string"), kolk.Column("key", "int"), kolk.Column("value", "int")], primary_key=["day", "key"]
)
OPTIONS = {
    "table.auto-partition.enabled": "true",
    "table.auto-partition.time-zone": "UTC",
    "table.auto-partition.num-retention": "1",
    "table.auto-partition.num-precreate": "1",
    "table.auto-partition.expiry-grace": "2h",
}
HOUR_MS = 3_600_000
GRACE_MS = 2 * HOUR_MS
DAYS = st.integers(-2, 1)
ROWS = st.lists(st.tuples(DAYS, st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=8)


class Replica:
    """A copy of the table, and where to go on."""

    def __init__(self, rows, offsets):
        self.rows = dict(rows)
        self.offsets = offsets

    def copy(self):
        return Replica(self.rows, dict(self.offsets))

    def on_partition(self, event):
        mine = [key for key in self.rows if key[0] == event.values["day"]]
        assert event.kind == "dropped" or not mine, f"{event.partition} was made and has rows already"
        for key in mine:
            del self.rows[key]

    def apply(self, batch):
        for row in batch.to_pylist():
            key = row["day"], row["key"]
            if row["_change_type"] in ("+I", "+U"):
                self.rows[key] = row["value"]
            else:
                assert self.rows[key] == row["value"]
                if row["_change_type"] == "-D":
                    del self.rows[key]

    def read(self, table, batches=None, **how):
        """Go on, for so many batches at most, else to the present end."""
        with suppress(StopIteration):
            changes = table.changelog(on_partition=self.on_partition, **how)
            each = iter(changes)
            for _ in range(10**6 if batches is None else batches):
                self.apply(next(each))
                self.offsets = dict(changes.offsets)
        self.offsets = dict(changes.offsets)
        return changes


class Scanned:
    """An open scan, and the table as it was when it was opened."""

    def __init__(self, scan, model):
        self.scan = scan
        self.rows = {(day, key): value for day, rows in model.items() for key, value in rows.items()}
        self.days = set(model)
        self.gone = []

    def pins(self, day):
        """Whether it may still have this day's rows open."""
        return day in self.days and day not in self.gone


class Partitions(RuleBasedStateMachine):
    scans = Bundle("scans")
    readers = Bundle("readers")

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.committed = {}
        self.open_scans = []
        self._open_engine()
        self.db.create_table("t", SCHEMA, buckets=2, partition_by=["day"], options=OPTIONS)
        self.table = self.db.table("t")
        self.auto = AutoPartition.parse(OPTIONS, SCHEMA, ["day"])
        self.model = {self.day(0): {}}

    def _open_engine(self):
        self.engine = Engine(Folder(self.folder), SETTINGS, clock=self.clock)
        self.opened_ms = self.clock.now_ms()
        self.db = kolk.Database(self.engine, self.engine.close, Rng(), clock=self.clock)

    def day(self, place):
        return self.auto.value_at(self.clock.now_ms() + place * 24 * HOUR_MS)

    def is_late(self, day):
        return day not in self.model and self.auto.expires_ms(day) <= self.clock.now_ms()

    @rule(rows=ROWS)
    def put(self, rows):
        rows = [(self.day(place), key, value) for place, key, value in rows]
        data = [{"day": day, "key": key, "value": value} for day, key, value in rows]
        if any(self.is_late(day) for day, *_ in rows):
            with pytest.raises(InvalidRows, match="past its time"):
                self.table.put(data)
            return
        self.table.put(data)
        for day, key, value in rows:
            self.model.setdefault(day, {})[key] = value

    @rule(rows=ROWS)
    def delete(self, rows):
        rows = [(self.day(place), key) for place, key, _ in rows]
        self.table.delete([{"day": day, "key": key} for day, key in rows])
        for day, key in rows:
            self.model.get(day, {}).pop(key, None)

    @rule()
    def truncate(self):
        self.table.truncate()
        self.model = {day: {} for day in self.model}

    @rule(place=DAYS)
    def add(self, place):
        day = self.day(place)
        expected = PartitionExists if day in self.model else InvalidRows if self.is_late(day) else None
        if expected is None:
            self.table.add_partition(day=day)
            self.model[day] = {}
        else:
            with pytest.raises(expected):
                self.table.add_partition(day=day)

    @rule(place=DAYS, anew=st.booleans())
    def drop(self, place, anew):
        day = self.day(place)
        if self.model.pop(day, None) is None:
            with pytest.raises(PartitionNotFound):
                self.table.drop_partition(day=day)
            return
        self.table.drop_partition(day=day)
        self._forget_in_scans({day})
        if anew and not self.is_late(day):
            self.table.put([{"day": day, "key": 0, "value": 7}])
            self.model[day] = {0: 7}

    @rule(hours=st.sampled_from([1, 3, 12, 24]))
    def tick(self, hours):
        self.clock.advance(ms=hours * HOUR_MS)
        now_ms = self.clock.now_ms()
        lagging = any(follower.lag for follower in self.db.followers())
        self.engine.tick()
        left = {partition.values["day"] for partition in self.table.partitions()}
        assert self.day(0) in left
        for day in self.model.keys() - left:
            assert self.auto.expires_ms(day) <= now_ms
        for day in left - {self.day(0)}:
            expires_ms = self.auto.expires_ms(day)
            # While the database was closed nobody could read: that much longer readers are waited for.
            assert max(expires_ms, self.opened_ms) + GRACE_MS > now_ms
            assert expires_ms > now_ms or lagging or any(scan.pins(day) for scan in self.open_scans)
        self._forget_in_scans(self.model.keys() - left)
        self.model = {day: rows for day, rows in self.model.items() if day in left} | (
            {} if self.day(0) in self.model else {self.day(0): {}}
        )

    def _forget_in_scans(self, days):
        for scan in self.open_scans:
            scan.gone += days

    # --- readers

    @rule(target=scans)
    def scan(self):
        found = Scanned(None, self.model)
        found.scan = self.table.scan(on_partition=lambda event: None)
        self.open_scans.append(found)
        return found

    @rule(target=readers, found=scans)
    def read_scan(self, found):
        """To its end, and then the changes since."""
        if found not in self.open_scans:
            return multiple()
        self.open_scans.remove(found)
        with found.scan as scan:
            rows = {(row["day"], row["key"]): row["value"] for row in scan.to_arrow().to_pylist()}
        assert rows.items() <= found.rows.items()
        assert {key[0] for key in found.rows.keys() - rows.keys()} <= set(found.gone)
        # What it did not get because its partition went is told again, and of no harm.
        return Replica(found.rows, found.scan.offsets)

    @rule(target=readers)
    def keep_offsets(self):
        replica = Replica({}, {})
        replica.read(self.table, 1)
        return replica

    @rule(reader=readers, batches=st.integers(0, 3))
    def read_some(self, reader, batches):
        reader.read(self.table, batches, start=reader.offsets)

    @rule(reader=readers)
    def read_all(self, reader):
        reader.read(self.table, start=reader.offsets)
        self._check(reader)

    @rule(name=st.sampled_from(["a", "b"]), batches=st.integers(0, 3), commits=st.booleans())
    def follow(self, name, batches, commits):
        """Some batches in a follower's name; what is not committed is lost with the reader."""
        reader = self.committed.get(name, Replica({}, {})).copy()
        changes = reader.read(self.table, batches, follower=name, commit_interval=None)
        if commits:
            changes.commit()
            self.committed[name] = reader
        else:
            self.committed.setdefault(name, self._first(name))

    def _first(self, name):
        """A follower that was opened is there from then on; nothing is committed but where it began."""
        offsets = next(follower.offsets for follower in self.db.followers() if follower.name == name)
        return Replica({}, offsets)

    @rule()
    def read_table(self):
        with self.table.scan() as scan:
            found = {(row["day"], row["key"]): row["value"] for row in scan.to_arrow().to_pylist()}
        assert found == self._expected()
        listed = {partition.values["day"] for partition in self.table.partitions()}
        assert listed == set(self.model)

    @rule()
    def rest(self):
        self.engine._tablets.rest(-1)

    @rule()
    def reopen(self):
        for scan in self.open_scans:
            scan.scan.close()
        self.open_scans = []
        self.db.close()
        self._open_engine()
        self.table = self.db.table("t")

    def _expected(self):
        return {(day, key): value for day, rows in self.model.items() for key, value in rows.items()}

    def _check(self, replica):
        assert replica.rows == self._expected()

    def teardown(self):
        if not hasattr(self, "db"):
            return
        try:
            self.read_table()
            for name, replica in self.committed.items():
                replica.read(self.table, follower=name)
                self._check(replica)
                [follower] = [each for each in self.db.followers() if each.name == name]
                assert follower.lag == 0
        finally:
            for scan in self.open_scans:
                scan.scan.close()
            self.db.close()
            shutil.rmtree(self.folder)


TestPartitions = Partitions.TestCase
TestPartitions.settings = settings(max_examples=100 if FULL else 20, stateful_step_count=50 if FULL else 25)
