"""Tasks of an owner that run twice, end at odd moments, or get in each other's way."""

import pytest
from tests.spec.moments import open_moments

from kolk.errors import (
    InvalidArgument,
)


@pytest.fixture
def rack(folder):
    with open_moments(folder) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


@pytest.fixture
def keys(t):
    return t.a_key_of_each_bucket()


def sums(t):
    return {key: row["pv"] for key, row in t.rows().items() if "pv" in row}


def test_h34_what_a_task_leaves_is_judged_before_it_counts_as_through(t, keys):
    """A message that is too long must not leave buckets sealed by a task that is not."""
    a = t.begin(attempt="r")
    task = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=task.ticket)

    with pytest.raises(InvalidArgument):
        a.seal(1, task.ticket, {"0": 1}, b"x" * 65_537)

    again = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 5}}, 0, seq=1, ticket=again.ticket)
    a.seal(1, again.ticket, {"0": 1}, b"x" * 65_536)
    assert a.begin_task(0, 1).message == b"x" * 65_536
    assert sums(t) == {keys[0]: 5}


def test_h34_a_seal_that_is_repeated_leaves_the_first_message(t, keys):
    """Its answer was lost: a copy may have been given the message meanwhile."""
    a = t.begin(attempt="r")
    task = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=task.ticket)
    for message in (b"first", b"second"):
        a.seal(1, task.ticket, {"0": 1}, message)

    assert a.begin_task(0, 1).message == b"first"
    assert sum(tag.sealed for tag in t.frames(0)) == 1
