"""Clocks and random identities."""

import pytest

from kolk.runtime.clock import SystemClock
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
