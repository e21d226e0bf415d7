"""Leases: how what they keep is let go, and how they look from outside."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engine.lease_bench import CUT, D0, D3, E0, ME, OTHER, P0, P1, P5, PLAIN, TTL_MS, kept, lost

from kolk.model.ids import BucketId, TableId
from kolk.model.lease import LeaseCounts
from kolk.tablet.retention import Holder, HolderKind

# --- releasing and dropping


def test_the_last_release_ends_a_lease(leased):
    """L3, L12: in memory and on disk; what it does not have is ignored."""
    generation = leased.acquire("a", {P0: 2, D0: 2, D3: 2}).lease.generation
    release = leased.leases.release

    assert kept(release("a", generation, [P0, P1, BucketId(PLAIN, 0, 10**9)])) == {D0: 2, D3: 2}
    assert kept(release("a", generation, [])) == {D0: 2, D3: 2}
    assert kept(release("a", generation, [P0, D3])) == {D0: 2}
    assert release("a", generation, [D0]) is None

    assert leased.leases.get("a") is None
    assert leased.record_keys() == []
    assert release("a", generation, [D0]) is None
    assert lost(leased.leases.renew, "a", generation) == "dropped"
    leased.check()


def test_releasing_does_not_touch_the_time(leased):
    generation = leased.acquire("a", {P0: 2, P1: 2}).lease.generation
    leased.clock.advance(seconds=20)

    assert leased.leases.release("a", generation, [P0]).left_ms == 40_000
    leased.clock.advance(seconds=40)

    assert leased.leases.get("a") is None


def test_a_release_that_changes_nothing_writes_nothing(leased):
    generation = leased.acquire("a", {P0: 2}).lease.generation
    leased.meta.written.clear()

    leased.leases.release("a", generation, [P1, D0])
    leased.leases.release("nobody", 1, [P0])

    assert leased.meta.written == []


def test_a_late_release_of_an_earlier_life_changes_nothing(leased):
    """An id may be used again, a generation may not."""
    first = leased.acquire("a", {P0: 2}).lease
    leased.leases.drop("a")
    second = leased.acquire("a", {P0: 2}, holder=2).lease

    assert second.generation > first.generation
    assert leased.leases.release("a", first.generation, [P0]) is None
    assert leased.leases.drop("a", first.generation) is False
    assert lost(leased.leases.renew, "a", first.generation) == "taken"
    assert leased.kept("a") == {P0: 2}


def test_generations_are_not_used_again_after_a_restart(leased):
    first = leased.acquire("a", {P0: 2}).lease
    joined = leased.leases.join("a", 2, ME)
    leased.leases.drop("a")
    leased.restart()

    assert leased.acquire("a", {P0: 2}).lease.generation > joined.generation > first.generation


def test_a_shared_snapshot_is_let_go_with_the_last_lease_of_it(leased):
    """L4."""
    leased.acquire("a", {P0: 2, P1: 2})
    leased.acquire("b", {P0: 2}, principal=OTHER)
    assert leased.pins.counts[P0, 2] == 2

    assert leased.leases.drop("a")
    assert leased.pins.counts == {(P0, 2): 1}
    assert leased.leases.drop("b", leased.leases.get("b").generation)

    assert not leased.pins.counts
    assert leased.record_keys() == []
    assert leased.leases.drop("b") is False
    assert leased.leases.drop("non-exist") is False


def test_another_principal_changes_nothing_where_one_is_named(leased):
    lease = leased.acquire("a", {P0: 2}).lease

    assert leased.leases.release("a", lease.generation, [P0], principal=OTHER) is None
    assert leased.leases.drop("a", lease.generation, principal=OTHER) is False
    assert lost(leased.leases.renew, "a", lease.generation, principal=OTHER) == "unknown"
    assert leased.leases.get("a") == lease


@pytest.mark.parametrize("what", ["table", "partition"])
def test_a_dropped_table_or_partition_takes_its_slots_along(leased, what):
    """Release then still succeeds, and a lease of which nothing is left goes."""
    some = leased.acquire("some", {P0: 2, D0: 2, E0: 2}).lease
    leased.acquire("only", {D0: 3, D3: 3})

    if what == "table":
        leased.leases.drop_table(CUT)
    else:
        leased.leases.drop_partition(CUT, D0.partition)

    assert leased.kept("some") == ({P0: 2} if what == "table" else {P0: 2, E0: 2})
    assert leased.leases.get("only") is None
    assert lost(leased.leases.join, "only", 1, ME) == "dropped"
    leased.check()
    assert kept(leased.leases.release("some", some.generation, [D0])) == leased.kept("some")
    leased.restart()
    leased.check()
    assert leased.kept("some") == ({P0: 2} if what == "table" else {P0: 2, E0: 2})


def test_dropping_a_table_that_nobody_leases_writes_nothing(leased):
    leased.acquire("a", {P0: 2})
    leased.meta.written.clear()

    leased.leases.drop_table(TableId(99))
    leased.leases.drop_partition(PLAIN, 5)

    assert leased.meta.written == []


# --- looking


def test_leases_hold_the_log_from_the_offsets_of_their_snapshots(leased):
    """Until they expire, on the wall clock of now, whatever it did meanwhile."""
    leased.acquire("a", {P0: 2, P1: 2})
    leased.acquire("b", {P0: 4}, ttl_ms=1_000)
    leased.clock.advance(ms=500)
    leased.clock.jump(-(10**9))
    now_ms = leased.clock.now_ms()

    a = Holder(kind=HolderKind.LEASE, owner="lease a", offset=20, expires_ms=now_ms + TTL_MS - 500)
    b = Holder(kind=HolderKind.LEASE, owner="lease b", offset=40, expires_ms=now_ms + 500)
    assert leased.leases.holders(P0) == [a, b]
    assert leased.leases.holders(P1) == [a]
    assert leased.leases.holders(P5) == []
    leased.clock.advance(ms=500)
    assert [holder.owner for holder in leased.leases.holders(P0)] == ["lease a"]


def test_what_became_of_leases_is_counted(leased):
    generation = leased.acquire("a", {P0: 2, P1: 9}).lease.generation
    leased.clock.advance(seconds=5)
    leased.acquire("b", {P0: 2, E0: 2}, ttl_ms=1_000)
    leased.clock.advance(seconds=1)
    lost(leased.leases.renew, "b", 2)
    lost(leased.leases.renew, "a", generation + 7)
    leased.leases.renew("a", generation)

    assert leased.leases.counts() == LeaseCounts(
        leases=1, pins=1, expired=1, unavailable=1, renew_failures=2, oldest_age_seconds=6.0
    )
    leased.clock.jump(-(10**9))
    assert leased.leases.counts().oldest_age_seconds == 0.0


def test_leases_are_listed_by_age(leased):
    """M1: those that are over are not."""
    leased.acquire("z", {P0: 2})
    leased.acquire("brief", {P0: 2}, ttl_ms=1_000)
    leased.clock.advance(seconds=1)
    leased.acquire("a", {P0: 2})

    assert [lease.id for lease in leased.leases.all()] == ["z", "a"]


def test_what_is_let_go_is_reclaimed_without_the_lock(leased):
    """Deleting files takes long: others go on meanwhile."""
    generation = leased.acquire("a", {P0: 2, P1: 2}).lease.generation
    leased.acquire("b", {P0: 2})
    with ThreadPoolExecutor(1) as beside:
        leased.pins.on_let_go = lambda: beside.submit(leased.leases.counts).result(30)

        leased.leases.release("a", generation, [P0])
        leased.acquire("a", {P1: 3}, generation=generation)
        leased.leases.drop_table(CUT)
        leased.leases.drop("a")
        leased.clock.advance(ms=TTL_MS)
        leased.leases.reap()

    assert len(leased.pins.lets_go) == 4
