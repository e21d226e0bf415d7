"""Rounds of what is due now and then, of which a part fails: all the others have their turn."""

import pytest
from tests.engine.transaction_bench import DAY, EVENTS, PLAIN, plain

from kolk.testing.meta import Outcome

TTL = {"table.log.ttl": "1h"}


@pytest.fixture
def tight(transaction_bench):
    """An engine with log files of one put each, in which nobody may keep any beyond its time."""
    return transaction_bench(log_segment_bytes=1, log_pinned_max_bytes=1)


def start(table):
    return table.describe()["offsets"]["0"]["start"]


def filled(tx, name):
    """A log table all of which has had its time."""
    table = tx.db.create_table(name, EVENTS, options=TTL)
    for n in range(3):
        table.put([{"k": n, "n": n}])
    tx.clock.advance(seconds=DAY)
    return table


def followed(tx):
    """A table, and the offset from which on somebody holds its log."""
    table = tx.db.create_table("held", EVENTS, options=TTL)
    table.changelog(follower="slow").close()
    for n in range(4):
        table.put([{"k": n, "n": n}])
    return table, 0


def leased(tx):
    """The same."""
    table = tx.db.create_table("held", PLAIN, options=TTL)
    table.put(plain(0))
    table.lease(ttl="7d").detach()
    for n in range(1, 4):
        table.put(plain(n))
        table.take_snapshot()
    return table, len(plain(0))


@pytest.mark.parametrize("holding", [followed, leased])
def test_who_cannot_be_released_is_spared_and_told_of_and_other_logs_are_trimmed(tight, holding, caplog):
    (held, offset), other = holding(tight), filled(tight, "other")
    tight.meta.fail_next(Outcome.REFUSED)

    tight.engine.tick()

    assert not tight.meta.is_due
    assert (start(held), start(other)) == (offset, 3)
    assert "cannot be released: the disk is full" in caplog.text
    tight.engine.tick()
    assert start(held) > offset
