"""Leases and threads that meet: whoever wins, what is counted is what is kept, and what is written is what is shown."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from random import Random

import pytest
from tests.engine.lease_bench import CUT, D0, D3, ME, P0, P1, P5, TTL_MS

from kolk.errors import LeaseExists, LeaseLost

ROUNDS = 100
SECONDS = 60


@pytest.fixture
def meet():
    """Do several things at the same time; what each gave, or the error that it raised.

    Who is begun last tends to come first, so they are begun in another order each time.
    """
    random = Random(1)
    with ThreadPoolExecutor(8) as threads:

        def at_once(*steps):
            start = threading.Barrier(len(steps))

            def run(step):
                start.wait(SECONDS)
                try:
                    return step()
                except (LeaseLost, LeaseExists) as error:
                    return error

            begun = {place: threads.submit(run, steps[place]) for place in random.sample(range(len(steps)), len(steps))}
            return [begun[place].result(SECONDS) for place in range(len(steps))]

        yield at_once


def settled(bench):
    """Counted as kept, now and after a restart."""
    bench.check()
    shown = {lease.id: bench.kept(lease.id) for lease in bench.leases.all()}
    bench.restart()
    assert {lease.id: bench.kept(lease.id) for lease in bench.leases.all()} == shown
    bench.check()


def test_a_renewal_and_the_reaper_agree_on_who_came_first(leased, meet):
    """A renewal that succeeded is never undone by an expiry that was decided before it."""
    for _ in range(ROUNDS):
        lease = leased.acquire("a", {P0: 2, P1: 2}).lease
        leased.clock.advance(ms=TTL_MS - 1)

        def expire():
            leased.clock.advance(ms=1)
            leased.leases.reap()

        renewed, _ = meet(lambda lease=lease: leased.leases.renew("a", lease.generation), expire)

        is_lost = isinstance(renewed, LeaseLost)
        assert leased.kept("a") == (None if is_lost else {P0: 2, P1: 2})
        leased.check()
        leased.leases.drop("a")
    settled(leased)


def test_a_renewal_that_is_being_written_is_not_lost_to_a_reaper_that_comes_meanwhile(leased):
    """By the old deadline the lease is over, by the new one it is not: the reaper looks under the lock."""
    lease = leased.acquire("a", {P0: 2}).lease
    leased.clock.advance(ms=TTL_MS - 1)
    write = leased.meta.write
    with ThreadPoolExecutor(1) as beside:

        def slowly(changes):
            leased.meta.write = write
            leased.clock.advance(ms=1)
            reaped.append(beside.submit(leased.leases.reap))
            assert not wait(reaped, timeout=0.1).done, "it waits for the lock"
            write(changes)

        reaped = []
        leased.meta.write = slowly
        leased.leases.renew("a", lease.generation)
        reaped[0].result(SECONDS)

    assert leased.kept("a") == {P0: 2}
    assert leased.leases.get("a").left_ms == TTL_MS - 1
    settled(leased)


def test_acquiring_and_dropping_meet(leased, meet):
    for round in range(ROUNDS):
        first = leased.acquire("a", {P0: 2}, holder=1).lease

        found, dropped, other = meet(
            lambda first=first: leased.acquire("a", {P1: 2}, holder=1, generation=first.generation),
            lambda: leased.leases.drop("a"),
            lambda: leased.acquire("a", {P5: 2}, holder=2),
        )

        assert dropped is True
        now = leased.leases.get("a")
        assert isinstance(found, LeaseLost | LeaseExists) or leased.kept("a") in (None, {P5: 2})
        assert (now is None) or (now.holder == 2 and leased.kept("a") == {P5: 2})
        assert isinstance(other, LeaseExists) or now is None or now == other.lease
        leased.check()
        leased.leases.drop("a")
        assert not leased.pins.counts, round
    settled(leased)


def test_dropping_a_table_and_releasing_its_buckets_meet(leased, meet):
    for _ in range(ROUNDS):
        generation = leased.acquire("a", {P0: 2, D0: 2, D3: 2}).lease.generation
        only = leased.acquire("b", {D0: 2}).lease.generation

        meet(
            lambda: leased.leases.drop_table(CUT),
            lambda generation=generation: leased.leases.release("a", generation, [D0]),
            lambda generation=generation: leased.leases.release("a", generation, [D3, P1]),
            lambda only=only: leased.leases.release("b", only, [D0]),
        )

        assert leased.kept("a") == {P0: 2}
        assert leased.kept("b") is None
        leased.check()
        leased.leases.drop("a")
    settled(leased)


def test_those_who_join_at_once_fence_each_other_but_for_the_last(leased, meet):
    for _ in range(ROUNDS):
        first = leased.acquire("a", {P0: 2}).lease

        joined = meet(*(lambda holder=holder: leased.leases.join("a", holder, ME) for holder in (2, 3, 4)))

        assert sorted(lease.generation - first.generation for lease in joined) == [1, 2, 3]
        last = max(joined, key=lambda lease: lease.generation)
        assert leased.leases.get("a").holder == last.holder
        leased.leases.drop("a", last.generation)
        assert leased.leases.all() == []
    settled(leased)


def test_many_leases_live_their_lives_beside_each_other(leased, meet):
    """X7: each is acquired, renewed three times and dropped, with no error and nothing left."""

    def live(id):
        generation = leased.acquire(id, {P0: 2, P1: 3, D0: 4}).lease.generation
        for _ in range(3):
            leased.leases.renew(id, generation)
            leased.leases.reap()
        leased.leases.release(id, generation, [P1])
        return leased.leases.drop(id, generation)

    for _ in range(10):
        assert meet(*(lambda id=id: live(id) for id in ("a", "b", "c", "d", "e"))) == [True] * 5

    assert leased.record_keys() == []
    assert not leased.pins.counts
