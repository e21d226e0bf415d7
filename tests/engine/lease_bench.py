"""Leases driven by hand: on a clock that is moved by hand, over a meta that fails when told to, and over pins that
count, and say so when the count is wrong."""

import threading
from collections import Counter

import pytest

from kolk.config import EngineConfig
from kolk.engine.leases import Leases
from kolk.errors import DiskFull, LeaseLost, Stopped
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import Pinned, Wanted
from kolk.storage.meta import Meta
from kolk.testing.clock import ManualClock

ME, OTHER = "me", "other"
TTL_MS = 60_000
PLAIN, CUT = TableId(1), TableId(2)
"""A table without partitions, and one with them."""
P0, P1, P5 = (BucketId(PLAIN, 0, number) for number in (0, 1, 5))
D0, D3 = (BucketId(CUT, 2001, number, "day=1") for number in (0, 3))
E0 = BucketId(CUT, 2002, 0, "day=2")
OFFSETS_PER_SNAPSHOT = 10


class CountedPins:
    """Snapshots that exist, and how often each is pinned; nothing may be taken back that was not counted.
    Thread-safe."""

    def __init__(self, existing=()):
        self.existing = set(existing)
        self.counts = Counter()
        self.frozen = 0
        self.lets_go = []
        self.on_let_go = lambda: None
        self._lock = threading.Lock()

    def pin(self, wanted):
        with self._lock:
            found = {bucket: snapshot for bucket, snapshot in wanted.items() if (bucket, snapshot) in self.existing}
            self.counts.update(found.items())
            return {bucket: Pinned(number, number * OFFSETS_PER_SNAPSHOT) for bucket, number in found.items()}

    def hold(self, pins):
        with self._lock:
            self.counts.update(pins.items())

    def let_go(self, pins):
        self.on_let_go()
        with self._lock:
            self.lets_go.append(dict(pins))
            self.counts.subtract(pins.items())
            assert all(self.counts[pin] >= 0 for pin in pins.items()), f"taken back without being counted: {pins}"
            self.counts = +self.counts

    def freeze(self):
        with self._lock:
            self.frozen += 1

    def thaw(self):
        with self._lock:
            self.frozen -= 1
            assert self.frozen >= 0


class FlakyMeta(Meta):
    """The real thing, whose next write fails before it is made, or after, or so that nobody can tell."""

    def __init__(self, path):
        super().__init__(path)
        self.fail = None
        self.is_blind = False
        self.written = []

    def write(self, changes):
        how, self.fail = self.fail, None
        self.is_blind = how is not None and "blind" in how
        if how is not None and "before" in how:
            raise DiskFull("the disk is full")
        super().write(changes)
        self.written.append(list(changes))
        if how is not None:
            raise DiskFull("the disk is full, it seems")

    def get(self, key):
        if self.is_blind:
            self.is_blind = False
            raise Stopped("the disk is gone")
        return super().get(key)


class LeaseBench:
    """Leases, and what they are made of."""

    def __init__(self, path, existing=(), **settings):
        self.path = path
        self.config = EngineConfig(**settings)
        self.clock = ManualClock()
        self.tables = {PLAIN, CUT}
        self.pins = CountedPins(existing)
        self.open()

    def open(self):
        self.meta = FlakyMeta(self.path)
        try:
            self.leases = Leases(self.meta, self.clock, self.pins, self.config, self.tables)
        except BaseException:
            self.meta.close()
            raise

    def restart(self, *, is_clean=False, away_seconds=0):
        """The end of the process, by a kill unless it is clean, and another one: clocks that count time begin anew."""
        if is_clean:
            self.leases.close()
        self.close()
        self.clock = ManualClock(self.clock.now_ms() + away_seconds * 1_000)
        self.pins = CountedPins(self.pins.existing)
        self.open()

    def close(self):
        self.meta.close()

    def take(self, *buckets, upto=5):
        """Snapshots 0 to 5 of these buckets exist."""
        self.pins.existing |= {(bucket, snapshot) for bucket in buckets for snapshot in range(upto + 1)}

    def acquire(self, id, snapshots, **said):
        call = {"holder": 1, "principal": ME, "ttl_ms": TTL_MS, "generation": 0} | said
        table_wide = {name: call.pop(name) for name in ("position", "is_consistent") if name in call}
        return self.leases.acquire(id=id, wanted=wanted_of(snapshots, **table_wide), **call)

    def kept(self, id):
        """What a lease keeps, by bucket; None if there is none."""
        lease = self.leases.get(id)
        return None if lease is None else kept(lease)

    def record_keys(self):
        """What is written of leases."""
        return [record.key for record in self.meta.list("lease/")]

    def check(self):
        """What is counted is exactly what leases keep."""
        assert self.pins.counts == Counter(pin for lease in self.leases.all() for pin in kept(lease).items())


def kept(lease):
    return {bucket: pinned.snapshot for table in lease.tables.values() for bucket, pinned in table.pins.items()}


def wanted_of(snapshots, **said):
    """What asks for these snapshots, table by table."""
    return {
        table: Wanted(snapshots={each: number for each, number in snapshots.items() if each.table == table}, **said)
        for table in sorted({bucket.table for bucket in snapshots})
    }


def lost(call, *args, **said):
    """Why a lease is gone, as its holder is told."""
    with pytest.raises(LeaseLost) as error:
        call(*args, **said)
    return error.value.reason
