"""Work that is due again and again."""

import threading

import pytest

from kolk.runtime.ticker import Ticker, in_turn
from kolk.testing.clock import ManualClock


def test_work_is_done_when_it_is_due_by_the_clock():
    clock, done = ManualClock(), []
    ticker = Ticker(lambda: done.append(1), seconds=60, clock=clock)

    assert not ticker.tick()
    clock.advance(seconds=60)
    assert ticker.tick()
    assert not ticker.tick()

    assert done == [1]


def test_work_that_fails_is_told_and_tried_again(caplog):
    clock, tries = ManualClock(), []

    def work():
        tries.append(1)
        raise OSError("no")

    ticker = Ticker(work, seconds=1, clock=clock, name="sweeper")
    for _ in range(2):
        clock.advance(seconds=1)
        ticker.tick()

    assert len(tries) == 2
    assert "sweeper failed" in caplog.text


def test_closing_ends_the_thread():
    started = []

    def start(run, name):
        started.append(threading.Thread(target=run, name=name, daemon=True))
        started[0].start()
        return started[0]

    clock = ManualClock()
    ticker = Ticker(lambda: None, seconds=60, clock=clock, start=start)
    ticker.start()

    ticker.close()
    ticker.close()

    assert not started[0].is_alive()
    clock.advance(seconds=60)
    assert not ticker.tick()


def test_parts_have_their_turn_whatever_the_others_do_and_the_first_failure_is_raised(caplog):
    done = []

    def failing(why):
        done.append(why)
        raise OSError(why)

    with pytest.raises(OSError, match="one"):
        in_turn(
            lambda: done.append("first"), lambda: failing("one"), lambda: failing("two"), lambda: done.append("last")
        )

    assert done == ["first", "one", "two", "last"]
    assert "two" in caplog.text


def test_who_is_interrupted_in_a_part_does_no_more():
    done = []

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_turn(interrupted, lambda: done.append("last"))

    assert done == []


def test_a_round_that_took_long_does_not_put_the_next_one_off():
    """A renewal that waits for its time-out at every turn still has its turns."""
    clock = ManualClock()
    ticker = Ticker(lambda: clock.advance(seconds=15), seconds=20, clock=clock)
    clock.advance(seconds=20)
    ticker.tick()

    assert ticker.due_in() == 5


def test_after_a_round_longer_than_a_turn_others_have_one_too():
    clock = ManualClock()
    ticker = Ticker(lambda: clock.advance(seconds=30), seconds=20, clock=clock)
    clock.advance(seconds=20)
    ticker.tick()

    assert ticker.due_in() == 2
