"""Scans and commits that meet: who comes between two buckets of the other must wait for all of it."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

import pytest
from tests.engine.transaction_bench import DAYS, PLAIN

import kolk
from kolk.model.transaction import Verdict

A_MOMENT = 0.3
"""How long somebody is given who must not get any further."""


@pytest.fixture
def beside():
    with ThreadPoolExecutor(4) as pool:

        def start(call, *args):
            future = pool.submit(call, *args)
            wait([future], A_MOMENT)
            return future

        yield start


@pytest.fixture
def table(tx):
    table = tx.db.create_table("t", PLAIN, buckets=3)
    assert tx.committed(table, rows(1), version=1).verdict is Verdict.COMMITTED
    return table


@pytest.fixture
def held(tx, table):
    """Within its block the bucket in the middle is somebody's, so that whoever takes all of them has the first only."""
    with ExitStack() as stack:
        info = table.info
        tablet = stack.enter_context(tx.engine._tablets.use_one(info, info.bucket_ids[1]))
        yield tablet.held


@pytest.fixture
def waiting(tx, beside):
    """Begin a commit, and come back once it waits at the gate."""
    gate = tx.transactions._gate

    def wait_at_the_gate(*commit):
        future = beside(tx.committed, *commit)
        while not gate._waiting_together:
            assert not wait([future], 0.01).done
        return future

    return wait_at_the_gate


def rows(n, keys=range(12)):
    return [{"k": k, "n": n, "s": "x"} for k in keys]


def keys_of(table, *buckets):
    """Keys that belong to these buckets."""
    found = table.scan(buckets=[str(bucket) for bucket in buckets]).to_arrow()
    return found.column("k").to_pylist()


def test_h16_a_commit_does_not_come_between_two_buckets_of_a_scan(tx, table, held, beside):
    """The scan has one bucket and waits for the next: the commit, of the first and the last, waits for the scan."""
    outer = keys_of(table, 0, 2)
    with held():
        scan = beside(lambda: table.scan().to_arrow().to_pylist())
        commit = beside(tx.committed, table, rows(2, outer), "b")
        assert not scan.done()

    seen = {row["n"] for row in scan.result(10)}
    assert commit.result(10).verdict is Verdict.COMMITTED
    assert seen == {1}
    assert {row["n"] for row in table.scan(buckets=["0", "2"]).to_arrow().to_pylist()} == {2}


def test_h16_a_scan_does_not_come_between_two_buckets_of_a_commit(tx, table, held, beside):
    """The commit has one bucket and waits for the next: the scan sees nothing of it before it has them all."""
    with held():
        commit = beside(tx.committed, table, rows(2), "b")
        scan = beside(lambda: table.scan().to_arrow().to_pylist())
        assert not commit.done()

    assert commit.result(10).verdict is Verdict.COMMITTED
    assert len({row["n"] for row in scan.result(10)}) == 1


def test_h38_a_put_does_not_come_between_the_merge_of_a_commit_and_its_frames(tx, table, held, beside):
    """What was merged is only true as long as nobody else writes: the put waits, and is merged upon it."""
    first = keys_of(table, 0)
    with held():
        commit = beside(tx.committed, table, rows(2), "b")
        put = beside(table.put, rows(3, first))
        assert not put.done()

    assert commit.result(10).verdict is Verdict.COMMITTED
    put.result(10)
    assert {row["n"] for row in table.scan(buckets=["0"]).to_arrow().to_pylist()} == {3}
    tx.check()


def test_h38_two_commits_take_their_buckets_in_one_order(tx, table, held, beside):
    """The second does not get the last bucket while the first waits for the one in the middle: else the order would not
    be the same everywhere."""
    outer = keys_of(table, 0, 2)
    with held():
        one = beside(tx.committed, table, rows(2), "b")
        other = beside(tx.committed, table, rows(3, outer), "c")
        assert not one.done()
        assert not other.done()

    assert [each.result(10).verdict for each in (one, other)] == [Verdict.COMMITTED] * 2
    assert {row["n"] for row in table.scan(buckets=["0", "2"]).to_arrow().to_pylist()} == {3}
    tx.check()


# --- buckets are opened before the gate, and are what they were when it is passed


def test_nobody_waits_at_the_gate_for_a_bucket_that_must_recover(tx, table, beside):
    """A commit opens it first, without keeping scans and commits of other tables waiting."""
    tx.db.create_table("cold", PLAIN).put(rows(1))
    tx.reopen()
    cold, warm = tx.db.table("cold"), tx.db.table("t")
    assert warm.scan().to_arrow().num_rows == 12
    is_opening, may_open = threading.Event(), threading.Event()

    def slowly(path):
        is_opening.set()
        assert may_open.wait(30)

    tx.before_opening = slowly
    commit = beside(tx.committed, cold, rows(2), "b")
    try:
        assert is_opening.wait(10)

        assert beside(lambda: warm.scan().to_arrow().num_rows).result(10) == 12
        assert beside(tx.committed, warm, rows(2), "c").result(10).verdict is Verdict.COMMITTED
        assert not commit.done()
    finally:
        may_open.set()

    assert commit.result(10).verdict is Verdict.COMMITTED
    assert {row["n"] for row in tx.rows(cold).values()} == {2}


def test_a_partition_that_is_dropped_while_a_commit_waits_at_the_gate_is_made_anew(tx, waiting):
    days = tx.db.create_table("days", DAYS, partition_by=["day"])
    days.put([{"day": "1", "k": 1, "n": 1}])

    with tx.transactions._gate.exclusive():
        commit = waiting(days, [{"day": "1", "k": 2, "n": 2}, {"day": "2", "k": 2, "n": 2}])
        days.drop_partition("day=1")

    assert commit.result(10).verdict is Verdict.COMMITTED
    assert sorted((row["day"], row["k"]) for row in tx.rows(days).values()) == [("1", 2), ("2", 2)]
    tx.check()


def test_a_bucket_that_recovers_while_a_commit_waits_at_the_gate_is_looked_for_again(tx, table, waiting):
    with tx.transactions._gate.exclusive():
        commit = waiting(table, rows(2), "b")
        for tablet in tx.engine._tablets.opened():
            tablet.suspend("somebody was interrupted")
        assert table.get_one(k=1)["n"] == 1

    assert commit.result(10).verdict is Verdict.COMMITTED
    assert {row["n"] for row in tx.rows(table).values()} == {2}
    tx.check()


def test_a_table_that_is_altered_while_a_commit_waits_at_the_gate_is_written_as_it_is_then(tx, table, beside, waiting):
    with tx.transactions._gate.shared():
        alter = beside(table.alter, [kolk.AddColumn(kolk.Column("more", "int"))])
        commit = waiting(table, rows(2), "b")
        assert not alter.done()

    alter.result(10)
    assert commit.result(10).verdict is Verdict.COMMITTED
    assert {header.schema_id for _, header in tx.headers(table)} == {1, 2}
    assert {row["n"] for row in tx.rows(table).values()} == {2}
