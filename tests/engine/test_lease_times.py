"""Leases and time: when they end, what renewing does, and what a restart or a wall clock that jumps does not."""

import pytest
from tests.engine.lease_bench import ME, OTHER, P0, P1, TTL_MS, kept, lost

from kolk.engine.lease_book import _ENDED_MAX
from kolk.errors import DiskFull


def test_leases_end_each_at_its_own_time(leased):
    """L5: nothing before, and what is gone is gone from the disk too."""
    leased.acquire("a", {P0: 2}, ttl_ms=1_000)
    leased.acquire("b", {P0: 2, P1: 2}, ttl_ms=2_000)
    leased.leases.reap()
    assert leased.leases.counts().leases == 2

    leased.clock.advance(ms=1_005)
    leased.leases.reap()
    assert [lease.id for lease in leased.leases.all()] == ["b"]
    assert all(key.startswith("lease/b") for key in leased.record_keys())
    leased.check()
    leased.clock.advance(ms=1_005)
    leased.leases.reap()

    assert leased.leases.counts().expired == 2
    assert leased.record_keys() == []
    assert not leased.pins.counts


@pytest.mark.parametrize("already_ms", [0, 100, 333, 123_457])
def test_a_lease_is_over_exactly_at_its_time(leased, already_ms):
    """Not a microsecond before, whatever the clock says by then."""
    leased.clock.advance(ms=already_ms)
    leased.acquire("a", {P0: 2}, ttl_ms=1_003)
    leased.clock.advance(ms=1_002.999)
    assert leased.leases.get("a").left_ms == 1

    leased.clock.advance(ms=0.001)

    assert leased.leases.get("a") is None


def test_renewing_begins_the_time_anew(leased):
    """Not tested upstream: renew semantics. Nothing else changes, and the pins are not written again."""
    lease = leased.acquire("a", {P0: 2, P1: 2}).lease
    leased.meta.written.clear()
    for _ in range(3):
        leased.clock.advance(ms=TTL_MS - 1)
        assert leased.leases.renew("a", lease.generation) == lease

    assert [[change.key for change in write] for write in leased.meta.written] == [["lease/a"]] * 3
    assert max(len(change.value) for (change,) in leased.meta.written) < 100
    leased.check()


def test_the_last_duration_wins(leased):
    """Not tested upstream: renew semantics. It counts from then on, also for renewals that name none."""
    generation = leased.acquire("a", {P0: 2}).lease.generation

    assert leased.leases.renew("a", generation, 90_000).left_ms == 90_000
    leased.clock.advance(seconds=60)
    assert leased.leases.renew("a", generation).left_ms == 90_000
    assert leased.leases.renew("a", generation, 1_000).left_ms == 1_000


def test_a_lease_that_is_overdue_is_lost_before_anybody_reaped_it(leased):
    """Not tested upstream: renew after expiry. What it kept is let go, and it does not come back as an empty one."""
    generation = leased.acquire("a", {P0: 2}).lease.generation
    leased.clock.advance(ms=TTL_MS)

    assert lost(leased.leases.renew, "a", generation) == "expired"
    assert not leased.pins.counts
    assert leased.record_keys() == []
    assert lost(leased.leases.renew, "a", generation) == "expired"
    assert leased.leases.all() == []


@pytest.mark.parametrize("call", ["release", "drop", "join", "acquire"])
def test_whoever_comes_by_finds_an_overdue_lease_gone(leased, call):
    generation = leased.acquire("a", {P0: 2, P1: 2}).lease.generation
    leased.clock.advance(ms=TTL_MS)

    if call == "release":
        assert leased.leases.release("a", generation, [P0]) is None
    elif call == "drop":
        assert leased.leases.drop("a") is False
    elif call == "join":
        assert lost(leased.leases.join, "a", 2, ME) == "expired"
    else:
        assert kept(leased.acquire("a", {P1: 3}, holder=5, principal=OTHER).lease) == {P1: 3}

    assert leased.leases.counts().expired == 1
    leased.check()


@pytest.mark.parametrize(("end", "reason"), [("drop", "dropped"), ("join", "taken"), (None, "unknown")])
def test_whoever_renews_what_is_gone_is_told_why(leased, end, reason):
    """Not tested upstream: renew semantics. Never a silent empty lease."""
    generation = leased.acquire("a", {P0: 2}).lease.generation if end else 1
    if end == "drop":
        leased.leases.drop("a", generation)
    elif end == "join":
        leased.leases.join("a", 2, ME)

    assert lost(leased.leases.renew, "a", generation) == reason


def test_why_leases_ended_is_remembered_for_a_while_only(leased):
    book = leased.leases._book
    leased.acquire("first", {P0: 2})
    leased.leases.drop("first")
    assert lost(leased.leases.renew, "first", 1) == "dropped"

    for number in range(_ENDED_MAX):
        book.unreadable[str(number)] = "made up"
        leased.pins.freeze()
        leased.leases.drop(str(number))

    assert lost(leased.leases.renew, "first", 1) == "unknown"
    assert lost(leased.leases.renew, "0", 1) == "dropped"
    assert len(book._ended) == _ENDED_MAX


@pytest.mark.parametrize("jump_ms", [10**12, -(10**11)])
def test_a_wall_clock_that_jumps_ends_nothing_and_lengthens_nothing(leased, jump_ms):
    leased.acquire("a", {P0: 2})
    leased.clock.jump(jump_ms)
    leased.leases.reap()
    leased.clock.advance(ms=TTL_MS - 1)
    assert leased.leases.get("a").left_ms == 1

    leased.clock.advance(ms=1)

    assert leased.leases.get("a") is None


# --- over a restart


def test_after_a_clean_restart_a_lease_has_the_time_that_was_left(leased):
    """L1: however long the database was closed for."""
    leased.acquire("a", {P0: 2, P1: 2})
    leased.clock.advance(seconds=15)

    leased.restart(is_clean=True, away_seconds=10**6)

    assert leased.leases.get("a").left_ms == 45_000
    leased.check()


def test_after_a_restart_a_lease_has_a_third_of_its_time_at_least(leased):
    """Which is when its holder renews it."""
    leased.acquire("a", {P0: 2}, ttl_ms=61_000)
    leased.clock.advance(seconds=60)

    leased.restart(is_clean=True)

    assert leased.leases.get("a").left_ms == 20_334
    leased.clock.advance(ms=20_334)
    assert leased.leases.get("a") is None


def test_after_a_kill_a_lease_has_what_was_last_written_down(leased):
    """A reaper does that, three times in the life of a lease and no more often."""
    leased.acquire("a", {P0: 2})
    leased.meta.written.clear()
    for _ in range(59):
        leased.clock.advance(seconds=1)
        leased.leases.reap()
    assert [[change.key for change in write] for write in leased.meta.written] == [["lease/a"]] * 2

    leased.restart()

    assert leased.leases.get("a").left_ms == 20_000


def test_the_time_left_is_written_down_for_all_leases_at_once(leased):
    for id in ("a", "b", "c"):
        leased.acquire(id, {P0: 2})
    leased.clock.advance(seconds=10)
    leased.meta.written.clear()

    leased.leases.close()
    leased.leases.close()

    assert [len(write) for write in leased.meta.written] == [3, 3]
    leased.restart()
    assert {lease.left_ms for lease in leased.leases.all()} == {50_000}


def test_other_changes_write_down_the_time_that_is_left(leased):
    generation = leased.acquire("a", {P0: 2, P1: 2}).lease.generation
    leased.clock.advance(seconds=20)
    leased.leases.release("a", generation, [P0])

    leased.restart()

    assert leased.leases.get("a").left_ms == 40_000


@pytest.mark.parametrize("how", ["before", "after", "before, blind", "after, blind"])
def test_time_that_could_not_be_written_down_is_no_harm(leased, how, caplog):
    leased.acquire("a", {P0: 2})
    leased.clock.advance(seconds=25)
    leased.meta.fail = how
    leased.leases.reap()
    leased.meta.fail = how
    leased.leases.close()

    assert "could not be written down" in caplog.text
    assert leased.leases.get("a").left_ms == 35_000
    assert leased.leases.unreadable() == {}
    leased.check()


@pytest.mark.parametrize("how", ["before", "after"])
def test_an_overdue_lease_that_cannot_be_removed_is_gone_and_keeps_its_snapshots(leased, how, caplog):
    """Persist, then delete: what it kept goes when that is written."""
    generation = leased.acquire("a", {P0: 2}).lease.generation
    leased.clock.advance(ms=TTL_MS)
    leased.meta.fail = how

    assert lost(leased.leases.renew, "a", generation) == "expired"
    assert leased.pins.counts == ({(P0, 2): 1} if how == "before" else {})
    assert "expired, and could not be removed" in caplog.text
    leased.leases.reap()

    assert not leased.pins.counts
    assert leased.record_keys() == []
    assert leased.leases.counts().expired == 1


def test_the_id_of_an_overdue_lease_that_cannot_be_removed_is_not_free(leased):
    """Its records are in the way; as soon as they can be removed it is."""
    leased.acquire("a", {P0: 2})
    leased.clock.advance(ms=TTL_MS)
    leased.meta.fail = "before"
    leased.leases.reap()
    leased.meta.fail = "before"
    write = leased.meta.write

    def failing(changes):
        leased.meta.fail = "before"
        write(changes)

    leased.meta.write = failing
    with pytest.raises(DiskFull):
        leased.acquire("a", {P0: 2})
    assert leased.pins.counts == {(P0, 2): 1}
    leased.meta.write = write
    leased.meta.fail = None

    leased.acquire("a", {P0: 2})
    leased.check()
