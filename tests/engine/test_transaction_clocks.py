"""A clock that was wrong for a moment: what it spoils stays with the bucket that was written then."""

import errno

import pytest
from tests.engine.transaction_bench import PLAIN, events, plain

from kolk.errors import Stopped, TooManyStagings
from kolk.model.transaction import Verdict
from kolk.testing.faults import Call
from kolk.testing.meta import Outcome

MINUTE_MS = 60_000
YEARS_MS = 10 * 365 * 86_400_000


@pytest.fixture
def tables(tx):
    """Three tables of one bucket."""
    return [tx.db.create_table(name, PLAIN, buckets=1) for name in "abc"]


def ahead(tx, table, ms):
    """Put to a table while the clock is ahead; the answer is what it says when it is right again."""
    tx.clock.jump(ms)
    table.put(plain(0))
    tx.clock.jump(-ms)
    return tx.clock.now_ms()


def both(tx, *tables, app="a", version=1):
    """One commit to several tables."""
    return tx.commit([(table, [tx.staged(table, plain(version), app, version)]) for table in tables], app, version)


def last(tx, table):
    """The time of the last change of a table."""
    return max(header.timestamp_ms for _, header in tx.headers(table))


def test_the_future_of_one_bucket_does_not_spread_to_others_by_transactions(tx, tables):
    a, b, c = tables
    now_ms = ahead(tx, a, YEARS_MS)

    both(tx, a, b, app="one")
    both(tx, b, c, app="other")

    assert [last(tx, table) - now_ms for table in tables] == [YEARS_MS, 0, 0]
    assert {record.timestamp_ms for record in tx.transactions.commits.all()} == {now_ms}


def test_a_clock_that_is_put_back_a_little_leaves_a_transaction_of_one_moment_in_all_buckets(tx, tables):
    a, b, _ = tables
    now_ms = ahead(tx, a, MINUTE_MS)

    both(tx, a, b)

    assert last(tx, b) == now_ms + MINUTE_MS
    tx.check()


def test_a_bucket_that_is_given_its_share_later_has_the_time_that_it_would_have_had(tx, tables):
    a, b, _ = tables
    now_ms = ahead(tx, a, YEARS_MS)
    tx.disk.fail_always(Call.WRITE, errno.ENOSPC, within="/tables/")
    both(tx, a, b)
    assert tx.transactions.counts().pending == 1
    tx.disk.heal()
    tx.clock.advance(seconds=1)

    tx.engine.reap()

    assert tx.transactions.counts().pending == 0
    assert [last(tx, table) - now_ms for table in (a, b)] == [YEARS_MS, 0]


def test_names_that_were_drawn_under_a_clock_that_was_ahead_go_once_they_are_known_for_an_hour(transaction_bench):
    tx = transaction_bench(txn_apps_max=2)
    table = tx.totals()
    tx.clock.jump(YEARS_MS)
    for shot in (1, 2):
        tx.committed(table, events(1), app=f"{shot:032x}")
    tx.clock.jump(-YEARS_MS)
    tx.reopen()
    table = tx.db.table("t")

    tx.clock.advance(seconds=3_600)
    with pytest.raises(TooManyStagings, match="without a name"):
        tx.committed(table, events(1), app=f"{3:032x}")
    tx.clock.advance(seconds=1)

    assert tx.committed(table, events(1), app=f"{3:032x}").verdict is Verdict.COMMITTED
    assert {record.app for record in tx.transactions.commits.all()} == {f"{2:032x}", f"{3:032x}"}


def test_a_clock_that_is_put_forward_lets_no_name_give_way_that_was_drawn_less_than_an_hour_ago(transaction_bench):
    tx = transaction_bench(txn_apps_max=2)
    table = tx.totals()
    for shot in (1, 2):
        tx.committed(table, events(1), app=f"{shot:032x}")
    tx.clock.jump(YEARS_MS)

    with pytest.raises(TooManyStagings, match="without a name"):
        tx.committed(table, events(1), app=f"{3:032x}")
    tx.clock.advance(seconds=3_601)

    assert tx.committed(table, events(1), app=f"{3:032x}").verdict is Verdict.COMMITTED


def test_nor_does_it_where_the_records_had_to_be_read_again(transaction_bench):
    """After a write of which nobody knows what became: that is no restart, and the times that are known stay known."""
    tx = transaction_bench(txn_apps_max=2)
    table = tx.totals()
    for shot in (1, 2):
        tx.committed(table, events(1), app=f"{shot:032x}")
    tx.meta.fail_next(Outcome.LOST)
    with pytest.raises(Stopped):
        tx.committed(table, events(1), app="a")
    tx.clock.jump(YEARS_MS)

    with pytest.raises(TooManyStagings, match="without a name"):
        tx.committed(table, events(1), app=f"{3:032x}")


def test_names_that_were_drawn_an_hour_before_a_restart_give_way_at_once(transaction_bench):
    tx = transaction_bench(txn_apps_max=2)
    table = tx.totals()
    for shot in (1, 2):
        tx.committed(table, events(1), app=f"{shot:032x}")
    tx.clock.advance(seconds=3_601)
    tx.reopen()

    assert tx.committed(tx.db.table("t"), events(1), app=f"{3:032x}").verdict is Verdict.COMMITTED
