"""Rounds of what is due now and then, of which a part fails: all the others have their turn."""

import pytest
from tests.engine.transaction_bench import DAY, EVENTS, PLAIN, plain

from kolk.errors import DiskFull
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


def test_a_part_of_a_tick_that_fails_keeps_no_other_from_its_turn_and_is_heard_of(tight, monkeypatch):
    table = filled(tight, "t")

    def failing():
        raise OSError("as told")

    monkeypatch.setattr(tight.engine._lives, "round", failing)

    with pytest.raises(OSError, match="as told"):
        tight.engine.tick()

    assert start(table) == 3


def test_a_part_of_the_reaping_that_fails_keeps_no_other_from_its_turn_and_is_heard_of(tx):
    """The nonce of a scan cannot be forgotten; what was staged, and nobody came back for, is."""
    table = tx.db.create_table("t", PLAIN)
    table.put(plain(1))
    table.scan(shared=True, nonce="n").close()
    tx.staged(table, plain(2))
    tx.clock.advance(seconds=2 * DAY)
    tx.meta.fail_next(Outcome.REFUSED)

    with pytest.raises(DiskFull):
        tx.engine.reap()

    assert not tx.meta.is_due
    assert tx.files() == set()
