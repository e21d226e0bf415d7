"""Clocks and random identities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.runtime.clock import SystemClock, WatchedClock
from kolk.runtime.rng import Rng
from kolk.testing.clock import ManualClock


def test_the_system_clock_speaks_of_this_century_and_does_not_go_back():
    clock = SystemClock()
    before = clock.monotonic()

    assert 1_600_000_000_000 < clock.now_ms() < 4_000_000_000_000
    assert clock.monotonic() >= before


def test_a_manual_clock_stands_still_until_time_passes():
    clock = ManualClock(now_ms=1_000)

    clock.advance(ms=250, seconds=2)

    assert clock.now_ms() == 3_250
    assert clock.monotonic() == pytest.approx(2.25)


def test_a_jump_of_the_wall_clock_lets_no_time_pass():
    clock = ManualClock(now_ms=10_000)

    clock.jump(-3_600_000)

    assert clock.now_ms() == 10_000 - 3_600_000
    assert clock.monotonic() == 0


def test_time_does_not_pass_backwards():
    with pytest.raises(AssertionError):
        ManualClock().advance(ms=-1)


HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
spans_ms = st.one_of(st.integers(0, 3 * HOUR_MS), st.integers(0, 2 * YEAR_MS))
moves = st.lists(st.tuples(st.sampled_from(["pass", "forward", "back"]), spans_ms), max_size=6)


def move(clock, moves):
    """Let time pass, or the wall clock jump, with a look at it after each; how much time has passed."""
    for how, ms in moves:
        clock.advance(ms=ms if how == "pass" else 0)
        clock.jump({"pass": 0, "forward": ms, "back": -ms}[how])
        yield ms if how == "pass" else 0


@given(before=moves, after=moves, ms=spans_ms)
def test_whatever_a_wall_clock_does_nothing_that_it_saw_is_old_more_than_an_hour_early(before, after, ms):
    clock = ManualClock()
    watched = WatchedClock(clock)
    for _ in move(clock, before):
        watched.now_ms()
    then_ms, passed_ms = watched.now_ms(), 0

    for more_ms in move(clock, after):
        passed_ms += more_ms

        assert not watched.has_passed(ms, then_ms) or passed_ms > ms - HOUR_MS


@given(before=moves, ms=spans_ms)
def test_under_a_wall_clock_that_goes_right_from_now_on_what_is_written_now_is_old_in_time(before, ms):
    clock = ManualClock()
    watched = WatchedClock(clock)
    for _ in move(clock, before):
        watched.now_ms()
    then_ms = watched.now_ms()

    clock.advance(ms=ms)
    assert not watched.has_passed(ms, then_ms)
    clock.advance(ms=1)

    assert watched.has_passed(ms, then_ms)


def test_what_is_from_before_the_start_is_old_after_an_hour_if_the_wall_clock_says_so():
    clock = ManualClock()
    watched = WatchedClock(clock)
    then_ms = clock.now_ms() - YEAR_MS

    clock.advance(ms=HOUR_MS)
    assert not watched.has_passed(YEAR_MS, then_ms)
    clock.advance(ms=1)

    assert watched.has_passed(YEAR_MS, then_ms)


def test_what_is_from_before_a_jump_is_old_once_as_much_has_passed_since():
    clock = ManualClock()
    watched = WatchedClock(clock)
    then_ms = watched.now_ms()
    clock.jump(50 * YEAR_MS)
    assert not watched.has_passed(YEAR_MS, then_ms)

    clock.advance(ms=YEAR_MS)
    assert not watched.has_passed(YEAR_MS, then_ms)
    clock.advance(ms=1)

    assert watched.has_passed(YEAR_MS, then_ms)


def test_the_same_seed_draws_the_same_ids():
    assert [Rng(7).id128(), Rng(7).token_hex()] == [Rng(7).id128(), Rng(7).token_hex()]
    assert Rng(7).id128() != Rng(8).id128()


def test_without_a_seed_no_two_ids_are_alike_and_all_bits_are_used():
    ids = [Rng().id128() for _ in range(500)]

    assert len(set(ids)) == 500
    assert max(ids).bit_length() > 120


def test_a_token_has_the_length_that_was_asked_for():
    assert len(Rng().token_hex()) == 32
    assert len(Rng(0).token_hex(4)) == 8
