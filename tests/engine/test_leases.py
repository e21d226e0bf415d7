"""Leases: who may have one, what it keeps, what becomes of that when it is extended, and who goes on in its name."""

import pytest
from tests.engine.lease_bench import CUT, D0, D3, E0, ME, OTHER, P0, P1, P5, PLAIN, TTL_MS, kept, lost, wanted_of

from kolk.engine.leases import Acquired
from kolk.errors import InvalidArgument, LeaseExists, SnapshotNotFound, TooLarge, TooManyLeases
from kolk.model.ids import BucketId
from kolk.model.lease import HOLDER_MAX, LeaseCounts, Pinned, Wanted

# --- acquiring


def test_a_database_has_no_leases_at_first(leased):
    """L1."""
    assert leased.leases.all() == []
    assert leased.leases.get("a") is None
    assert leased.leases.counts() == LeaseCounts()
    assert leased.record_keys() == []


def test_a_new_lease_keeps_what_was_asked_for(leased):
    found = leased.acquire("a", {P0: 2, D0: 3}, holder=7, position=9, is_consistent=True)

    lease = found.lease
    assert found == Acquired(leased.leases.get("a"), {})
    assert (lease.id, lease.holder, lease.principal, lease.ttl_ms, lease.left_ms) == ("a", 7, ME, TTL_MS, TTL_MS)
    assert lease.created_ms == leased.clock.now_ms()
    assert lease.pin(P0) == Pinned(2, 20)
    assert (lease.tables[CUT].position, lease.tables[CUT].is_consistent) == (9, True)
    leased.check()


def test_two_leases_keep_different_snapshots_of_the_same_buckets(leased):
    """L2, H2, H5: counted each for itself; acquiring another snapshot of a bucket moves the pin."""
    first = leased.acquire("a", {P0: 1, P1: 1, D0: 1, D3: 1}).lease
    leased.acquire("b", {P0: 2, P1: 2, D0: 2})
    assert leased.leases.counts().pins == 7

    leased.acquire("a", {P0: 3}, generation=first.generation)
    assert leased.leases.counts().pins == 7
    leased.acquire("a", {P5: 3}, generation=first.generation)
    assert leased.leases.counts().pins == 8
    leased.leases.release("a", first.generation, [D0])
    leased.leases.release("a", first.generation, [D0, BucketId(CUT, 77, 0)])

    assert leased.leases.counts().pins == 7
    assert leased.kept("a") == {P0: 3, P1: 1, D3: 1, P5: 3}
    assert leased.kept("b") == {P0: 2, P1: 2, D0: 2}
    leased.check()


def test_what_does_not_exist_comes_back_and_the_rest_is_kept(leased):
    """L6, H2."""
    found = leased.acquire("a", {P0: 2, P1: 9, E0: 4})

    assert found.unavailable == {P1: 9}
    assert leased.kept("a") == {P0: 2, E0: 4}
    assert leased.leases.counts().unavailable == 1
    leased.check()


def test_a_lease_that_would_keep_nothing_is_not_begun(leased):
    """L6: nothing is left behind, and the id is free."""
    with pytest.raises(SnapshotNotFound, match="9 of bucket 0"):
        leased.acquire("a", {P0: 9, P1: 9})

    assert leased.leases.all() == []
    assert leased.record_keys() == []
    assert lost(leased.leases.renew, "a", 1) == "unknown"
    leased.check()
    leased.acquire("a", {P0: 1}, holder=2, principal=OTHER)


def test_extending_by_what_does_not_exist_keeps_what_there_was(leased):
    lease = leased.acquire("a", {P0: 2, P1: 2}).lease

    found = leased.acquire("a", {P0: 9, P5: 9}, generation=lease.generation)

    assert found.unavailable == {P0: 9, P5: 9}
    assert leased.kept("a") == {P0: 2, P1: 2}
    leased.check()


def test_extending_by_what_is_kept_already_changes_nothing_but_the_time(leased):
    lease = leased.acquire("a", {P0: 2}).lease
    leased.clock.advance(seconds=30)

    found = leased.acquire("a", {P0: 2}, generation=lease.generation, ttl_ms=90_000)

    assert found.unavailable == {}
    assert (found.lease.left_ms, found.lease.generation) == (90_000, lease.generation)
    assert leased.pins.counts == {(P0, 2): 1}


def test_a_snapshot_that_is_gone_from_retention_stays_in_a_lease_that_asks_for_it_again(leased):
    """It is kept by this very lease, so there is nothing to check."""
    lease = leased.acquire("a", {P0: 2}).lease
    leased.pins.existing.clear()

    assert leased.acquire("a", {P0: 2}, generation=lease.generation).unavailable == {}


def test_the_last_duration_counts_also_if_it_is_shorter(leased):
    lease = leased.acquire("a", {P0: 2}).lease

    leased.acquire("a", {P1: 2}, generation=lease.generation, ttl_ms=1_000)
    leased.clock.advance(seconds=1)

    assert leased.leases.get("a") is None


def test_a_first_call_that_is_made_again_is_answered_alike(leased):
    """Pins are not counted twice, also after a restart, and what did not exist then comes back again."""
    first = leased.acquire("a", {P0: 2, P1: 9})
    leased.restart()
    leased.take(P1, upto=9)

    again = leased.acquire("a", {P1: 9, P0: 2})

    assert again == first
    leased.check()


def test_a_call_is_told_by_its_wishes_not_by_their_order(leased):
    wanted = wanted_of({P0: 2, D0: 2})
    call = {"holder": 1, "principal": ME, "ttl_ms": TTL_MS}

    first = leased.leases.acquire(id="a", wanted=wanted, **call)

    assert leased.leases.acquire(id="a", wanted=dict(reversed(wanted.items())), **call) == first


def test_a_first_call_that_is_made_again_does_not_shorten_what_came_after_it(leased):
    first = leased.acquire("a", {P0: 2}, ttl_ms=1_000)
    leased.leases.renew("a", first.lease.generation, 90_000)

    assert leased.acquire("a", {P0: 2}, ttl_ms=1_000).lease.left_ms == 90_000


@pytest.mark.parametrize(
    "said",
    [
        {"holder": 2},
        {"principal": OTHER},
        {"holder": 2, "generation": 1},
        {"principal": OTHER, "generation": 1},
        {"generation": 5},
    ],
    ids=str,
)
def test_two_jobs_do_not_share_an_id(leased, said):
    """Not tested upstream: two jobs sharing an id would let go of each other's snapshots. M3."""
    leased.acquire("a", {P0: 2})
    before = leased.leases.get("a")

    with pytest.raises(LeaseExists) as error:
        leased.acquire("a", {P0: 2}, **said)

    assert leased.leases.get("a") == before
    assert ME not in str(error.value).split()
    leased.check()


def test_the_same_holder_does_not_begin_the_same_lease_with_other_snapshots(leased):
    leased.acquire("a", {P0: 2})

    with pytest.raises(LeaseExists):
        leased.acquire("a", {P0: 3})

    assert leased.kept("a") == {P0: 2}


@pytest.mark.parametrize("end", ["expired", "dropped"])
def test_extending_a_lease_that_is_gone_does_not_begin_another(leased, end):
    """Its holder would believe that what it had is still kept."""
    lease = leased.acquire("a", {P0: 2}).lease
    if end == "expired":
        leased.clock.advance(ms=TTL_MS)
    else:
        leased.leases.drop("a")

    assert lost(leased.acquire, "a", {P1: 2}, generation=lease.generation) == end
    leased.check()
    assert leased.record_keys() == []


# --- arguments and limits


@pytest.mark.parametrize("id", ["", "a/b", "../a", "x" * 129, None])
def test_ids_are_checked(leased, id):
    """Not tested upstream: lease_id validation."""
    with pytest.raises(InvalidArgument, match="lease id"):
        leased.acquire(id, {P0: 2})


@pytest.mark.parametrize("ttl_ms", [0, -1, 999, 7 * 86_400_000 + 1, 2**70, 1_000.0, "5", True, None])
def test_durations_are_checked(leased, ttl_ms):
    """Not tested upstream: duration validation."""
    with pytest.raises(InvalidArgument, match="lives for 1s to 7d after"):
        leased.acquire("a", {P0: 2}, ttl_ms=ttl_ms)
    lease = leased.acquire("a", {P0: 2}).lease
    if ttl_ms is None:
        return
    with pytest.raises(InvalidArgument, match="lives for 1s to 7d after"):
        leased.leases.renew("a", lease.generation, ttl_ms)
    with pytest.raises(InvalidArgument, match="lives for 1s to 7d after"):
        leased.leases.join("a", 2, ME, ttl_ms)
    assert leased.leases.get("a") == lease


@pytest.mark.parametrize("ttl_ms", [1_000, 7 * 86_400_000])
def test_the_shortest_and_the_longest_duration_are_taken(leased, ttl_ms):
    assert leased.acquire("a", {P0: 2}, ttl_ms=ttl_ms).lease.left_ms == ttl_ms


@pytest.mark.parametrize("snapshots", [{BucketId(PLAIN, 0, -1): 0}, {BucketId(PLAIN, -1, 0): 0}, {P0: -1}], ids=str)
def test_numbers_below_zero_are_refused_before_anything_is_pinned(leased, snapshots):
    """Not tested upstream: bucket validation."""
    with pytest.raises(InvalidArgument):
        leased.acquire("a", {P1: 2} | snapshots)

    assert not leased.pins.counts


@pytest.mark.parametrize("holder", [-1, HOLDER_MAX + 1, "x", None, True])
def test_holders_are_checked(leased, holder):
    with pytest.raises(InvalidArgument, match="128 bits"):
        leased.acquire("a", {P0: 2}, holder=holder)
    with pytest.raises(InvalidArgument, match="128 bits"):
        leased.leases.join("a", holder, ME)


@pytest.mark.parametrize("wanted", [{}, {PLAIN: Wanted(snapshots={})}])
def test_asking_for_nothing_is_refused(leased, wanted):
    lease = leased.acquire("a", {P0: 2}).lease
    for id, generation in (("b", 0), ("a", lease.generation)):
        with pytest.raises(InvalidArgument, match="at least one"):
            leased.leases.acquire(id=id, holder=1, principal=ME, ttl_ms=TTL_MS, wanted=wanted, generation=generation)


def test_there_are_so_many_leases_and_no_more(lease_bench):
    bench = lease_bench(leases_max=2)
    bench.acquire("a", {P0: 2})
    bench.acquire("b", {P0: 2}, ttl_ms=1_000)

    with pytest.raises(TooManyLeases, match="leases_max"):
        bench.acquire("c", {P0: 2})
    bench.check()
    bench.clock.advance(seconds=1)
    bench.acquire("c", {P0: 2})

    assert [lease.id for lease in bench.leases.all()] == ["a", "c"]
    bench.check()


def test_a_lease_keeps_so_many_snapshots_and_no_more(lease_bench):
    """The same buckets with other snapshots are not more."""
    bench = lease_bench(lease_pins_max=2)
    with pytest.raises(TooLarge, match="lease_pins_max"):
        bench.acquire("a", {P0: 2, P1: 2, P5: 9})
    lease = bench.acquire("a", {P0: 2, P1: 2}).lease

    bench.acquire("a", {P0: 3, P1: 2}, generation=lease.generation)
    with pytest.raises(TooLarge):
        bench.acquire("a", {P0: 4, P5: 2}, generation=lease.generation)

    assert bench.kept("a") == {P0: 3, P1: 2}
    bench.check()


# --- taking over


def test_who_joins_a_lease_fences_whoever_held_it(leased):
    """Two jobs that share an id know of each other: the earlier one is told that it was taken."""
    first = leased.acquire("a", {P0: 2, P1: 2}).lease
    leased.clock.advance(seconds=30)

    joined = leased.leases.join("a", 2, ME)

    assert (joined.generation, joined.holder, joined.left_ms) == (first.generation + 1, 2, TTL_MS)
    assert kept(joined) == kept(first)
    assert lost(leased.leases.renew, "a", first.generation) == "taken"
    assert leased.leases.release("a", first.generation, [P0]) is None
    assert leased.leases.drop("a", first.generation) is False
    with pytest.raises(LeaseExists):
        leased.acquire("a", {P5: 2}, holder=1, generation=first.generation)
    leased.acquire("a", {P5: 2}, holder=2, generation=joined.generation)
    assert leased.kept("a") == {P0: 2, P1: 2, P5: 2}
    leased.check()


def test_joining_again_is_answered_alike(leased):
    """Also after a restart: a job that is told nothing asks again."""
    leased.acquire("a", {P0: 2})
    joined = leased.leases.join("a", 2, ME)
    leased.restart()

    assert leased.leases.join("a", 2, ME) == joined
    assert leased.leases.join("a", 2, ME, 90_000).left_ms == 90_000


def test_nobody_joins_the_lease_of_another_principal_or_none_at_all(leased):
    leased.acquire("a", {P0: 2})

    assert lost(leased.leases.join, "a", 2, OTHER) == "unknown"
    assert lost(leased.leases.join, "b", 2, ME) == "unknown"
    assert leased.leases.get("a").generation == 1
