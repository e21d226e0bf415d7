"""What is forgotten of those who were idle for long, and that a wall clock that jumps makes nobody forgotten: whoever
comes back to be told what became of a write would write it twice."""

import pytest
from tests.engine.transaction_bench import events

from kolk.model.ids import BucketId, PlainTag
from kolk.model.transaction import Verdict

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TAG = PlainTag(7, 0)
SHOT = f"{7:032x}"


@pytest.fixture
def table(tx):
    """One bucket that counts how often each row was put."""
    return tx.totals(buckets=1)


def others(table, seq=0):
    """A put of another writer, to the same bucket."""
    table.put(events(1, keys=[99]), tag=PlainTag(8, seq))


def writers(tx, table):
    """Those that the bucket remembers."""
    with tx.engine._tablets.use_one(table.info, BucketId(table.info.id, 0, 0)) as tablet:
        return {int.from_bytes(name[1:]) for name in tablet._kv.records(b"w")}


def puts(tx, table):
    """How often the rows of the put that is tried again are there."""
    return {row["times"] for row in tx.rows(table).values() if row["k"] != 99}


# --- writers


def test_a_clock_that_is_put_forward_lets_no_put_be_applied_twice(tx, table):
    table.put(events(1), tag=TAG)
    tx.clock.jump(8 * DAY_MS)
    others(table)

    table.put(events(1), tag=TAG)

    assert puts(tx, table) == {1}


def test_a_clock_that_was_ahead_once_lets_no_put_be_applied_twice_after_a_crash(tx, table):
    """The times of a log never go back, so all of its frames from then on have that time."""
    tx.clock.jump(30 * DAY_MS)
    others(table)
    tx.clock.jump(-30 * DAY_MS)
    table.put(events(1), tag=TAG)
    tx.reopen()
    others(tx.db.table("t"), seq=1)
    tx.crash()
    tx.clock.advance(ms=2 * HOUR_MS)

    tx.db.table("t").put(events(1), tag=TAG)

    assert puts(tx, tx.db.table("t")) == {1}


@pytest.mark.parametrize("days", [8, 50 * 365], ids=["a bit", "much"])
def test_a_clock_that_is_put_forward_while_nothing_runs_lets_no_put_be_applied_twice(tx, table, days):
    table.put(events(1), tag=TAG)
    tx.clock.jump(days * DAY_MS)
    tx.reopen()
    others(tx.db.table("t"))

    tx.db.table("t").put(events(1), tag=TAG)

    assert puts(tx, tx.db.table("t")) == {1}


def test_a_clock_that_was_behind_for_a_moment_lets_no_put_be_applied_twice(tx, table):
    tx.clock.jump(-30 * DAY_MS)
    table.put(events(1), tag=TAG)
    tx.clock.jump(30 * DAY_MS)
    others(table)

    table.put(events(1), tag=TAG)

    assert puts(tx, table) == {1}


@pytest.mark.parametrize(("is_reopened", "least_ms"), [(False, 7 * DAY_MS), (True, HOUR_MS)], ids=["jump", "restart"])
def test_writers_go_once_the_clock_is_believed_again(tx, table, is_reopened, least_ms):
    table.put(events(1), tag=TAG)
    tx.clock.jump(8 * DAY_MS)
    if is_reopened:
        tx.reopen()
    others(tx.db.table("t"))
    tx.clock.advance(ms=least_ms)
    others(tx.db.table("t"), seq=1)
    assert TAG.writer in writers(tx, table)
    tx.clock.advance(ms=1)

    others(tx.db.table("t"), seq=2)

    assert writers(tx, table) == {8}


# --- applications


@pytest.mark.parametrize("app", ["job", SHOT], ids=["a name", "a drawn name"])
@pytest.mark.parametrize("is_reopened", [False, True], ids=["in use", "while nothing runs"])
def test_a_clock_that_is_put_forward_lets_no_commit_be_applied_twice(tx, table, app, is_reopened):
    tx.clock.jump(-tx.clock.now_ms())
    tx.committed(table, events(1), app=app, version=7)
    tx.clock.jump(1_700_000_000_000)
    if is_reopened:
        tx.reopen()
    tx.engine.reap()

    again = tx.committed(tx.db.table("t"), events(1), app=app, version=7)

    assert again.verdict is Verdict.DUPLICATE
    assert puts(tx, tx.db.table("t")) == {1}
