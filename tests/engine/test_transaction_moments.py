"""Scans and commits that meet: who comes between two buckets of the other must wait for all of it."""

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

import pytest
from tests.engine.transaction_bench import PLAIN

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
