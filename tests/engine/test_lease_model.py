"""Leases against a small model: whatever is acquired, renewed, taken over, let go or lost, in whatever order, and
whichever writes fail, what is counted is exactly what living leases keep.

The model knows of each lease what it keeps, whose it is and when it ends. A write fails before it is made, after it was
made, or so that nobody can tell; the last makes a lease unreadable, and everything is kept until it is dropped. A
restart is a kill, or clean; either way time that a lease has left may only become more.
"""

import os
import shutil
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.engine.lease_bench import CUT, PLAIN, LeaseBench, kept

from kolk.errors import Corrupted, DiskFull, LeaseExists, LeaseLost, SnapshotNotFound
from kolk.model.ids import BucketId

FULL = os.environ.get("KOLK_FULL") == "1"
IDS = st.sampled_from(["a", "b"])
BUCKETS = [BucketId(PLAIN, 0, 0), BucketId(PLAIN, 0, 300), BucketId(CUT, 1, 0, "d=1"), BucketId(CUT, 40, 0, "d=2")]
SNAPSHOTS = st.dictionaries(st.sampled_from(BUCKETS), st.integers(0, 2), min_size=1)
EXISTING = {(bucket, snapshot) for bucket in BUCKETS for snapshot in (0, 1)}
TTLS_MS = st.sampled_from([1_000, 3_000, 60_000])
FAILURES = st.sampled_from([None] * 6 + ["before", "after", "before, blind", "after, blind"])
HOLDERS = st.integers(1, 2)
PRINCIPALS = st.sampled_from(["me"] * 4 + ["other"])


@dataclass
class Known:
    """What the model knows of a lease."""

    holder: int
    principal: str
    generation: int
    ttl_ms: int
    ends_ms: int
    first: dict
    kept: dict = field(default_factory=dict)
    is_vague: bool = False
    """Whether its times were perhaps written otherwise than they are shown."""


class LeasesAgainstAModel(RuleBasedStateMachine):
    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        self.bench = LeaseBench(self.folder / "meta.sqlite", EXISTING)
        self.leases = self.bench.leases
        self.known = {}
        self.unreadable = set()
        self.generations = {}
        self.now_ms = 0

    # --- what the model does

    def live(self, id):
        found = self.known.get(id)
        if found is not None and found.ends_ms <= self.now_ms:
            del self.known[id]
            return None
        return found

    @contextmanager
    def failing(self, how, id, *, only_time=False):
        """Let the next write fail; yields what says afterwards whether the change counts."""
        outcome = {"is_made": True, "is_failed": False}
        self.bench.meta.fail = how
        try:
            yield outcome
        except DiskFull:
            assert how is not None
            outcome["is_failed"] = True
            outcome["is_made"] = "after" in how
            if "blind" in how:
                outcome["is_made"] = False
                if only_time:
                    self.known[id].is_vague = True
                else:
                    self.known.pop(id, None)
                    self.unreadable.add(id)
        else:
            if id in self.known:
                self.known[id].is_vague = False
        finally:
            self.bench.meta.fail = None
            self.bench.meta.is_blind = False

    def settle(self, id):
        """Expire what is due before a failure is armed, so that it hits the call and not the expiry."""
        if id not in self.unreadable and self.live(id) is None:
            self.leases.drop(id)

    @rule(
        id=IDS,
        holder=HOLDERS,
        principal=PRINCIPALS,
        snapshots=SNAPSHOTS,
        ttl_ms=TTLS_MS,
        is_extending=st.booleans(),
        how=FAILURES,
    )
    def acquire(self, id, holder, principal, snapshots, ttl_ms, is_extending, how):
        self.settle(id)
        found = self.live(id)
        generation = self.generations.get(id, 1) if is_extending else 0
        said = {"holder": holder, "principal": principal, "ttl_ms": ttl_ms, "generation": generation}
        if id in self.unreadable:
            with pytest.raises(LeaseExists):
                self.bench.acquire(id, snapshots, **said)
            return
        if found is None and generation:
            with pytest.raises(LeaseLost):
                self.bench.acquire(id, snapshots, **said)
            return
        is_mine = found is not None and (found.holder, found.principal) == (holder, principal)
        is_again = is_mine and not generation and found.first == snapshots
        if found is not None and not is_again and not (is_mine and generation == found.generation):
            with pytest.raises(LeaseExists):
                self.bench.acquire(id, snapshots, **said)
            return
        before = {} if found is None else found.kept
        got = {} if is_again else {b: n for b, n in snapshots.items() if (b, n) in EXISTING or before.get(b) == n}
        if not before and not got:
            with pytest.raises(SnapshotNotFound):
                self.bench.acquire(id, snapshots, **said)
            return
        with self.failing(how, id, only_time=bool(before) and before == before | got) as outcome:
            answer = self.bench.acquire(id, snapshots, **said)
        if not outcome["is_failed"]:
            assert answer.unavailable == {b: n for b, n in snapshots.items() if (before | got).get(b) != n}
            assert kept(answer.lease) == before | got
        if not outcome["is_made"]:
            return
        if found is None:
            lease = self.leases.get(id)
            assert lease.generation > self.generations.get(id, 0)
            self.generations[id] = lease.generation
            found = self.known[id] = Known(holder, principal, lease.generation, ttl_ms, 0, dict(snapshots))
        found.kept = before | got
        found.ttl_ms = found.ttl_ms if is_again else ttl_ms
        found.ends_ms = self.now_ms + found.ttl_ms

    @rule(id=IDS, holder=HOLDERS, principal=PRINCIPALS, ttl_ms=st.none() | TTLS_MS, how=FAILURES)
    def join(self, id, holder, principal, ttl_ms, how):
        self.settle(id)
        found = self.live(id)
        if id in self.unreadable or found is None or found.principal != principal:
            with pytest.raises(Corrupted if id in self.unreadable else LeaseLost):
                self.leases.join(id, holder, principal, ttl_ms)
            return
        with self.failing(how, id, only_time=found.holder == holder) as outcome:
            self.leases.join(id, holder, principal, ttl_ms)
        if outcome["is_made"]:
            found.generation += found.holder != holder
            self.generations[id] = found.generation
            found.holder = holder
            found.ttl_ms = ttl_ms or found.ttl_ms
            found.ends_ms = self.now_ms + found.ttl_ms

    @rule(id=IDS, back=st.integers(0, 1), ttl_ms=st.none() | TTLS_MS, how=FAILURES)
    def renew(self, id, back, ttl_ms, how):
        self.settle(id)
        found = self.live(id)
        generation = self.generations.get(id, 1) - back
        if id in self.unreadable or found is None or found.generation != generation:
            with pytest.raises(Corrupted if id in self.unreadable else LeaseLost):
                self.leases.renew(id, generation, ttl_ms)
            return
        with self.failing(how, id, only_time=True) as outcome:
            self.leases.renew(id, generation, ttl_ms)
        if outcome["is_made"]:
            found.ttl_ms = ttl_ms or found.ttl_ms
            found.ends_ms = self.now_ms + found.ttl_ms

    @rule(id=IDS, back=st.integers(0, 1), buckets=st.lists(st.sampled_from(BUCKETS)), how=FAILURES)
    def release(self, id, back, buckets, how):
        self.settle(id)
        found = self.live(id)
        generation = self.generations.get(id, 1) - back
        if found is None or found.generation != generation or not set(buckets) & set(found.kept):
            left = self.leases.release(id, generation, buckets)
            is_mine = found is not None and found.generation == generation
            assert (None if left is None else kept(left)) == (found.kept if is_mine else None)
            return
        with self.failing(how, id) as outcome:
            self.leases.release(id, generation, buckets)
        if outcome["is_made"]:
            self.keep(id, lambda bucket: bucket not in buckets)

    @rule(id=IDS, is_forced=st.booleans(), how=FAILURES)
    def drop(self, id, is_forced, how):
        self.settle(id)
        generation = None if is_forced else self.generations.get(id, 1)
        if id in self.unreadable:
            assert self.leases.drop(id, generation) is is_forced
            self.unreadable -= {id} if is_forced else set()
            return
        if self.live(id) is None:
            assert self.leases.drop(id, generation) is False
            return
        with self.failing(how, id) as outcome:
            assert self.leases.drop(id, generation)
        if outcome["is_made"]:
            del self.known[id]

    @rule(table=st.sampled_from([PLAIN, CUT]), partition=st.sampled_from([None, 0, 1, 40]))
    def drop_table_or_partition(self, table, partition):
        if partition is None:
            self.leases.drop_table(table)
        else:
            self.leases.drop_partition(table, partition)
        for id in list(self.known):
            self.keep(id, lambda bucket: bucket.table != table or partition not in (None, bucket.partition))

    def keep(self, id, condition):
        found = self.known[id]
        found.kept = {bucket: snapshot for bucket, snapshot in found.kept.items() if condition(bucket)}
        if not found.kept:
            del self.known[id]

    @rule(ms=st.sampled_from([1, 333, 999, 1_000, 2_000, 30_000]))
    def wait(self, ms):
        self.bench.clock.advance(ms=ms)
        self.now_ms += ms

    @rule(ms=st.sampled_from([-(10**9), 10**9]))
    def jump(self, ms):
        self.bench.clock.jump(ms)

    @rule(how=st.sampled_from([None, "before", "after"]))
    def reap(self, how):
        for id in list(self.known):
            self.live(id)
        self.bench.meta.fail = how
        self.leases.reap()
        self.bench.meta.fail = None
        self.leases.reap()

    @rule(is_clean=st.booleans())
    def restart(self, is_clean):
        """What was unreadable is on disk in one of two states: it is read, or gone."""
        self.leases.reap()
        left = {id: found.ends_ms - self.now_ms for id in list(self.known) if (found := self.live(id))}
        self.bench.restart(is_clean=is_clean)
        self.leases = self.bench.leases
        for id in list(self.known):
            lease = self.leases.get(id)
            found, least_ms = self.known[id], max(left[id], -(-lease.ttl_ms // 3))
            if is_clean or not found.is_vague:
                assert lease.left_ms >= least_ms
                assert not is_clean or lease.left_ms == least_ms
            found.ttl_ms, found.ends_ms, found.is_vague = lease.ttl_ms, self.now_ms + lease.left_ms, False
        for id in self.unreadable:
            assert id not in self.leases.unreadable()
            self.leases.drop(id)
        self.unreadable.clear()

    # --- what always holds

    @precondition(lambda self: hasattr(self, "bench"))
    @invariant()
    def leases_are_those_of_the_model(self):
        live = {id: found for id, found in self.known.items() if found.ends_ms > self.now_ms}
        shown = {lease.id: lease for lease in self.leases.all()}
        assert {id: kept(lease) for id, lease in shown.items()} == {id: found.kept for id, found in live.items()}
        for id, found in live.items():
            assert (shown[id].generation, shown[id].holder) == (found.generation, found.holder)
            assert shown[id].left_ms == found.ends_ms - self.now_ms
        assert set(self.leases.unreadable()) == self.unreadable
        assert self.bench.pins.frozen == len(self.unreadable)

    @precondition(lambda self: hasattr(self, "bench"))
    @invariant()
    def what_is_counted_is_what_is_kept(self):
        """Those that are overdue keep what they had until somebody comes by."""
        held = [each.lease for each in self.leases._book.held.values()]
        assert self.bench.pins.counts == Counter(pin for lease in held for pin in kept(lease).items())
        assert {lease.id for lease in held} >= {lease.id for lease in self.leases.all()}

    def teardown(self):
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.folder)


TestLeases = LeasesAgainstAModel.TestCase
TestLeases.settings = settings(max_examples=1000 if FULL else 50, stateful_step_count=30)
