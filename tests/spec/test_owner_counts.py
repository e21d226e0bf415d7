"""What is counted of owners: locks as they are, and what became of beginnings, puts, commits and undos."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.spec.owned import TTL, open_rack

from kolk.engine.owner_tally import OwnerTally
from kolk.errors import ColumnLockConflict, Fenced, LockExpired, PartialPut
from kolk.testing.clock import ManualClock


@pytest.fixture
def rack(folder):
    with open_rack(folder) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


def test_counts_from_many_threads_add_up():
    tally = OwnerTally()

    def work(_):
        for _ in range(500):
            tally.add(undone_rows=2, undo_seconds=0.5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))

    assert (tally.counts.undone_rows, tally.counts.undo_seconds) == (4_000, 1_000)


def test_locks_are_live_until_their_time_is_up_and_dirty_until_they_are_committed(t):
    a = t.begin("a", ["pv"])
    t.begin("b", ["top"], ttl=3 * TTL)
    a.put({1: {"pv": 1}})
    dirty = t.engine.owners.totals()
    t.rack.clock.advance(seconds=2 * TTL)
    expired = t.engine.owners.totals()
    a.commit()
    committed = t.engine.owners.totals()

    assert (dirty.locks, dirty.live, dirty.dirty, dirty.abandoned) == (2, 2, 1, 0)
    assert (expired.locks, expired.live, expired.dirty, expired.abandoned) == (2, 1, 1, 1)
    assert (committed.dirty, committed.abandoned, committed.begun, committed.committed) == (0, 0, 2, 1)


def test_to_count_them_opens_no_bucket(t):
    t.begin().put({1: {"pv": 1}})
    t.rack.reopen()

    unknown = t.engine.owners.totals()
    opened = t.engine._tablets.opened()
    t.rows()
    known = t.engine.owners.totals()

    assert (unknown.locks, unknown.dirty, opened) == (1, 0, [])
    assert known.dirty == 1


def test_puts_of_writers_that_are_over_are_counted(t):
    a = t.begin(ttl=2 * TTL)
    newer = t.begin(ttl=TTL)
    with pytest.raises(Fenced):
        a.put({1: {"pv": 1}})
    t.rack.clock.advance(seconds=TTL + 1)
    with pytest.raises(LockExpired):
        newer.put({1: {"pv": 1}})

    assert t.engine.owners.totals().fenced == 2


def test_a_put_that_is_fenced_in_the_middle_is_counted_once(t):
    a = t.begin()
    bucket = t.table.info.bucket_ids[1]
    with t.engine._tablets.use_one(t.table.info, bucket) as tablet:
        tablet._owning._guard = dict  # as if the lock were withdrawn between two buckets

        with pytest.raises(PartialPut):
            a.put({key: {"pv": 1} for key in range(20)})

    assert t.engine.owners.totals().fenced == 1


def test_conflicts_evictions_and_what_was_taken_back_are_counted(t):
    a = t.begin()
    a.put({key: {"pv": 1} for key in range(20)})
    with pytest.raises(ColumnLockConflict):
        t.begin("b")
    t.rack.clock.advance(seconds=TTL + 1)
    t.engine.owners.buckets._clock = Slow()

    t.begin("b")

    found = t.engine.owners.totals()
    assert (found.conflicts, found.evicted, found.undone_rows) == (1, 1, 20)
    assert found.undo_seconds == 2  # one for each bucket


class Slow(ManualClock):
    """A second passes from one look to the next."""

    def monotonic(self):
        self.advance(seconds=1)
        return super().monotonic()
