"""Leases in a hurry: two calls that meet come out one way or the other, very often, and never in between."""

import os
import threading
from contextlib import contextmanager

import pytest
from tests.spec.cut import SCHEMA as BY_DAY
from tests.spec.kept import follow, numbers
from tests.spec.scanned import SCHEMA, rows

from kolk.errors import KolkError, LeaseExists, LeaseLost, SnapshotNotFound, TableNotFound

FULL = os.environ.get("KOLK_FULL") == "1"
OFTEN = 10_000 if FULL else 1_000
SELDOM = 1_000 if FULL else 40
"""Where each time needs snapshots of its own."""

pytestmark = [
    pytest.mark.parametrize("form", ["embedded"], indirect=True),  # the network has more locks, and other tests
    pytest.mark.timeout(3_600 if FULL else 120),
]


@contextmanager
def running(work):
    """Something done again and again beside the block; what it raises is raised at its end."""
    is_done, wrong = threading.Event(), []

    def run():
        try:
            while not is_done.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - raised below
            wrong.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
    if wrong:
        raise wrong[0]


class Pair:
    """Two calls at the same time, as often as one likes."""

    def __init__(self):
        self._barrier = threading.Barrier(2)
        self._calls = [None, None]
        self._found = [None, None]
        self._thread = threading.Thread(target=self._run)
        self._is_over = False
        self._thread.start()

    def meet(self, one, other):
        """The answers, or errors, of both."""
        self._calls = [one, other]
        self._barrier.wait()
        self._do(0)
        self._barrier.wait()
        return self._found

    def close(self):
        self._is_over = True
        self._barrier.wait()
        self._thread.join()

    def _run(self):
        while True:
            self._barrier.wait()
            if self._is_over:
                return
            self._do(1)
            self._barrier.wait()

    def _do(self, place):
        try:
            self._found[place] = self._calls[place]()
        except KolkError as error:
            self._found[place] = error


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def test_the_latest_snapshots_are_leased_while_newer_ones_take_their_place(bench):
    """Acquire-vs-subsume race: what is leased is there, and so is the log after it."""
    small = bench(kv_snapshot_num_retained=1)
    table = small.db.create_table("t", SCHEMA, buckets=2, options={"table.log.max-bytes": "1"})
    table.put(rows(range(8)))
    service, turn = small.engine, iter(range(10**9))

    def churn():
        table.put(rows(range(8), n=next(turn)))
        table.take_snapshot()
        small.engine.tick()

    with running(churn):
        for place in range(OFTEN):
            state = service.acquire_lease(f"a{place}", place, {table.info.id: None}, 600.0)
            leased = state.tables["t"]
            assert not state.unavailable
            there = numbers(table)
            assert all(id in there[bucket] for bucket, id in leased.snapshots.items())
            starts = {name: start for name, (start, _) in service.bounds(table.info.id).items()}
            assert all(starts[name] <= offset for name, offset in leased.offsets.items())
            if place % 100 == 0:
                with small.db.join_lease(state.id) as lease:
                    shown = table.scan(source=lease).to_arrow().to_pylist()
                    assert len({row["n"] for row in shown}) == 1 or not lease.consistent
                    follow(table, shown, lease.offsets["t"])
            service.drop_lease(state.id)

    small.engine.reap()
    assert {len(kept) for kept in numbers(table).values()} == {1}
    assert {each.leases for each in table.snapshots()} == {0}


def test_a_named_snapshot_is_leased_or_said_to_be_gone(bench):
    """Acquire-vs-subsume race, of the one that is just about to go."""
    small = bench(kv_snapshot_num_retained=1)
    table = small.db.create_table("t", SCHEMA, options={"table.log.max-bytes": "1"})
    table.put(rows(range(8)))
    table.take_snapshot()
    service, turn = small.engine, iter(range(10**9))
    outcomes = set()

    def churn():
        table.put(rows(range(8), n=next(turn)))
        table.take_snapshot()
        small.engine.tick()

    with running(churn):
        for place in range(OFTEN):
            wanted = max(numbers(table)["0"])
            try:
                state = service.acquire_lease(f"a{place}", place, {table.info.id: {"0": wanted}}, 600.0)
            except SnapshotNotFound:
                outcomes.add("gone")
                continue
            outcomes.add("leased")
            assert wanted in numbers(table)["0"]
            assert service.bounds(table.info.id)["0"][0] <= state.tables["t"].offsets["0"]
            service.drop_lease(state.id)

    assert "leased" in outcomes


def test_a_lease_is_renewed_or_expires(small, pair):
    """Renew after expiry, in the very moment: a renewal that succeeded is never taken back."""
    table = small.db.create_table("t", SCHEMA)
    table.take_snapshot()
    engine, outcomes = small.engine, {True: 0, False: 0}

    def expire():
        small.clock.advance(ms=600)
        engine.reap()

    state = None
    for place in range(OFTEN):
        if state is None:
            state = engine.acquire_lease("a", place, {table.info.id: None}, 1.0)
        small.clock.advance(ms=600)
        generation = state.generation

        renewed, _ = pair.meet(lambda: engine.renew_lease("a", generation), expire)  # noqa: B023

        is_there = [each.id for each in engine.leases()] == ["a"]
        is_lost = isinstance(renewed, LeaseLost)
        assert is_there is not is_lost
        assert {each.leases for each in table.snapshots()} == {int(is_there)}
        outcomes[is_there] += 1
        state = None if is_lost else renewed
        if is_lost:
            assert renewed.reason == "expired"
    assert outcomes[True]


def test_a_table_is_dropped_while_its_lease_is_released_and_added_to(small, pair):
    """Drop table with live lease, in the very moment: release still succeeds, and nothing of it is left."""
    engine = small.engine
    kept = small.db.create_table("kept", SCHEMA)
    base = engine.acquire_lease("base", 1, {kept.info.id: None}, 600.0)
    for place in range(SELDOM):
        table = small.db.create_table("t", SCHEMA, buckets=2)
        number = table.info.id
        base = engine.acquire_lease("base", 1, {number: None}, 600.0, base.generation)
        calls = [
            lambda: engine.release_lease("base", base.generation, {"t": ["0"]}),  # noqa: B023
            lambda: engine.acquire_lease("base", 1, {number: {"0": 1}}, 600.0, base.generation),  # noqa: B023
            lambda: engine.acquire_lease("other", 2, {number: None}, 600.0),  # noqa: B023
            table.take_snapshot,
        ]

        done, dropped = pair.meet(calls[place % len(calls)], lambda: small.db.drop_table("t"))

        assert dropped is None
        assert not isinstance(done, KolkError) or isinstance(done, TableNotFound | SnapshotNotFound)
        assert place % len(calls) != 0 or not isinstance(done, KolkError)
        assert {each.id: each.tables for each in engine.leases()} == {"base": ("kept",)}
        assert not (engine.path / "snapshots" / str(number)).exists()
    assert not [bucket for bucket in engine._snapshots._buckets if bucket.table != kept.info.id]


def test_a_partition_is_dropped_while_it_is_leased(small, pair):
    """Drop partition with live lease, in the very moment."""
    engine = small.engine
    days = small.db.create_table("d", BY_DAY, partition_by=["day"])
    days.add_partition(day="0")
    for place in range(SELDOM):
        days.add_partition(day="1")
        days.take_snapshot()

        leased, dropped = pair.meet(
            lambda: engine.acquire_lease("a", place, {days.info.id: None}, 600.0),  # noqa: B023
            lambda: days.drop_partition(day="1"),
        )

        assert dropped is None
        assert not isinstance(leased, KolkError)
        assert engine.lease("a").tables["d"].snapshots.keys() == {"day=0/0"}
        engine.drop_lease("a")
    assert len(list((engine.path / "snapshots" / str(days.info.id)).iterdir())) == 1
    assert len(engine._snapshots._buckets) == 1


def test_a_lease_is_dropped_while_it_is_scanned(bench, pair):
    """A scan that was opened shows all of it, and what is dropped goes when that is closed."""
    small = bench(kv_snapshot_num_retained=1)
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(8)))
    engine, outcomes = small.engine, set()
    for place in range(SELDOM):
        lease = table.lease(lease_id="a")
        table.put(rows(range(8), n=place + 1))
        table.take_snapshot()

        scan, dropped = pair.meet(lambda: table.scan(source=lease), lambda: engine.drop_lease("a"))  # noqa: B023

        assert dropped is True
        if isinstance(scan, KolkError):
            assert isinstance(scan, LeaseLost | SnapshotNotFound)
            outcomes.add("lost")
        else:
            assert {row["n"] for row in scan.to_arrow().to_pylist()} == {place}
            scan.close()
            outcomes.add("shown")
        lease.close()
        engine.reap()
        assert len(numbers(table)["0"]) == 1
    assert outcomes
    assert engine._snapshots.of(table.info.bucket_ids[0])._opened == {}


def test_of_two_who_begin_the_same_lease_one_has_it(small, pair):
    """Two jobs sharing a lease id, in the very moment."""
    table = small.db.create_table("t", SCHEMA)
    table.take_snapshot()
    engine = small.engine
    for _ in range(OFTEN // 4):
        found = pair.meet(
            lambda: engine.acquire_lease("a", 1, {table.info.id: None}, 600.0),
            lambda: engine.acquire_lease("a", 2, {table.info.id: None}, 600.0),
        )

        assert sum(isinstance(each, LeaseExists) for each in found) == 1
        [mine] = [each for each in found if not isinstance(each, KolkError)]
        engine.renew_lease("a", mine.generation)
        assert engine.drop_lease("a", mine.generation)
    assert {each.leases for each in table.snapshots()} == {0}
