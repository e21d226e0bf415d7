"""Owners at the moments between their own steps: late puts, copies, lapses, drops and takeovers that come in between.

What comes in between is started by the step itself, just before it writes (``tests.spec.moments``); who has to wait for
the step is given a moment to show that it does not.
"""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from tests.spec.moments import open_moments

from kolk.errors import Busy, EpochClosed, KolkError

A_MOMENT = 0.2
"""How long somebody is given who must not get any further."""


@pytest.fixture
def rack(folder):
    with open_moments(folder) as rack:
        yield rack


@pytest.fixture
def moments(rack):
    return rack.moments


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


@pytest.fixture
def keys(t):
    return t.a_key_of_each_bucket()


@pytest.fixture
def beside():
    """Calls that go on in another thread; each is given a moment to get as far as it can."""
    with ThreadPoolExecutor(4) as pool:

        def start(call, *args, **options):
            future = pool.submit(call, *args, **options)
            wait([future], A_MOMENT)
            return future

        yield start


def sums(t):
    return {key: row["pv"] for key, row in t.rows().items() if "pv" in row}


# --- commits


def test_h29_what_a_failed_attempt_writes_under_a_commit_is_not_committed(t, keys, moments):
    """Its bucket was looked at, and taken back, before it came: it must not come any more."""
    a = t.begin(attempt="r")
    one, lost = a.begin_task(0, 1), a.begin_task(0, 2)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=one.ticket)
    a.seal(1, one.ticket, {"0": 1})
    a.put({keys[1]: {"pv": 1}}, 0, seq=1, ticket=lost.ticket)

    def straggle():
        with pytest.raises(Busy):
            a.put({keys[1]: {"pv": 7}}, 0, seq=2, ticket=lost.ticket)

    moments.at_record(straggle)
    a.commit_tasks(0, {"0": (one.ticket, 1)})

    with pytest.raises(EpochClosed):
        a.put({keys[1]: {"pv": 7}}, 0, seq=2, ticket=lost.ticket)
    t.begin()
    assert sums(t) == {keys[0]: 1}


def test_h29_a_put_under_way_is_waited_for_by_the_commit(t, keys, moments, beside):
    """It has been let in, and is not in its bucket yet: the commit must see it."""
    a = t.begin(attempt="r")
    one, lost = a.begin_task(0, 1), a.begin_task(0, 2)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=one.ticket)
    a.seal(1, one.ticket, {"0": 1})
    commits = []
    moments.at_frames(lambda: commits.append(beside(a.commit_tasks, 0, {"0": (one.ticket, 1)})))

    a.put({keys[1]: {"pv": 7}}, 0, seq=1, ticket=lost.ticket)

    commits[0].result(10)
    assert sums(t) == {keys[0]: 1}


def test_a_late_put_is_not_committed_unnamed(t, keys, moments):
    """A put that its client has given up must not be in an epoch that it has not named it for."""
    a = t.begin()
    a.put({keys[0]: {"pv": 1}}, 0, seq=1)

    def straggle():
        with pytest.raises(Busy):
            a.put({keys[1]: {"pv": 7}}, 0, seq=2)
        a.put({keys[1]: {"pv": 10}}, 1, seq=3)
        a.put({keys[0]: {"pv": 1}}, 0, seq=1)

    moments.at_record(straggle)
    a.commit(0, {"0": 1})

    t.begin()
    assert sums(t) == {keys[0]: 1}


def test_a_commit_that_is_refused_leaves_its_epoch_open(t, keys):
    a = t.begin()
    a.put({keys[0]: {"pv": 1}}, 0, seq=1)
    with pytest.raises(KolkError, match="last put"):
        a.commit(0, {"0": 2})

    a.put({keys[0]: {"pv": 1}}, 0, seq=2)
    a.commit(0, {"0": 2})

    assert sums(t) == {keys[0]: 2}


def test_h34_a_copy_that_begins_while_the_winner_ends_is_given_its_message(t, keys, moments, beside):
    """Else neither could end: the winner is displaced, and its buckets are sealed."""
    a = t.begin(attempt="r")
    winner = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=winner.ticket)
    copies = []
    moments.at_frames(lambda: copies.append(beside(a.begin_task, 0, 1)))

    a.seal(1, winner.ticket, {"0": 1}, b"won")

    assert copies[0].result(10).message == b"won"
    a.commit_tasks(0, {"0": (winner.ticket, 1)})
    assert sums(t) == {keys[0]: 1}
