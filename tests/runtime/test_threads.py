"""Calls that wait, side by side."""

import threading

import pytest

from kolk.runtime.threads import side_by_side


def test_calls_wait_side_by_side_and_all_have_returned_afterwards():
    together, done = threading.Barrier(4, timeout=30), []

    def call(number):
        together.wait()  # nobody gets past it alone
        done.append(number)

    side_by_side([lambda number=number: call(number) for number in range(4)])

    assert sorted(done) == [0, 1, 2, 3]


def test_every_call_of_many_is_made_once():
    made = []

    side_by_side([lambda number=number: made.append(number) for number in range(1_000)])

    assert sorted(made) == list(range(1_000))


def test_an_error_of_a_call_is_raised_when_all_have_returned():
    made = []

    def call(number):
        made.append(number)
        if number == 3:
            raise OSError("as told")

    with pytest.raises(OSError, match="as told"):
        side_by_side([lambda number=number: call(number) for number in range(20)])

    assert sorted(made) == list(range(20))


def test_calls_are_made_one_after_the_other_where_there_are_no_threads(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    made = []
    monkeypatch.setattr(threading.Thread, "start", refuse)

    side_by_side([lambda number=number: made.append(number) for number in range(5)])

    assert made == [0, 1, 2, 3, 4]
