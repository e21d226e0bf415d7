"""Tasks of an owner that run twice, end at odd moments, or get in each other's way."""

from dataclasses import replace

import pytest
from tests.spec.moments import open_moments

from kolk.errors import BucketSplit, CommitMismatch, EpochClosed, InvalidArgument
from kolk.model.ids import UndoTag


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


@pytest.mark.parametrize("first", [0, 1])
def test_h37_two_tasks_do_not_write_to_one_bucket_whoever_comes_first(t, keys, first):
    """One task's undo would wipe the other's rows; and neither is told that it is merely too old."""
    a = t.begin(attempt="r")
    tasks = [a.begin_task(0, 1), a.begin_task(0, 2)]
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=tasks[first].ticket)

    for seq in (1, 2):
        with pytest.raises(BucketSplit) as caught:
            a.put({keys[0]: {"pv": 1}}, 0, seq=seq, ticket=tasks[1 - first].ticket)
        assert not caught.value.retriable

    assert sums(t) == {keys[0]: 1}


@pytest.mark.parametrize("partition", [0, 1])
def test_h37_a_task_does_not_take_back_what_was_written_without_tickets(t, keys, partition):
    """Nor the other way round: the two are never the same writer."""
    a = t.begin()
    a.put({keys[0]: {"pv": 1}}, 0, seq=1)
    task = a.begin_task(0, partition)

    with pytest.raises(BucketSplit):
        a.put({keys[0]: {"pv": 7}}, 0, seq=1, ticket=task.ticket)
    a.put({keys[1]: {"pv": 7}}, 0, seq=1, ticket=task.ticket)
    for epoch in (0, 1):
        with pytest.raises(BucketSplit):
            a.put({keys[1]: {"pv": 1}}, epoch, seq=2)

    assert sums(t) == {keys[0]: 1, keys[1]: 7}


def test_h29_what_tasks_have_written_is_committed_by_their_tickets_alone(t, keys):
    """A commit that names counts only would let stand what is not sealed."""
    a = t.begin(attempt="r")
    task = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=task.ticket)

    with pytest.raises(CommitMismatch, match="task"):
        a.commit(0, {"0": 1})

    a.seal(1, task.ticket, {"0": 1})
    a.commit_tasks(0, {"0": (task.ticket, 1)})
    assert sums(t) == {keys[0]: 1}


def test_a_task_that_ended_in_some_of_its_buckets_only_is_done_again_by_the_next_run(t, keys):
    """It said so in one bucket, and the server died: nobody can tell any more, so nothing of it is committed."""
    a = t.begin(attempt="r1")
    task = a.begin_task(0, 1)
    a.put({key: {"pv": 1} for key in keys}, 0, seq=1, ticket=task.ticket)
    t.engine.owners.buckets.seal(t.table.info, replace(a.tag(0, 0, task.ticket), sealed=True), {"0": 1})
    t.rack.reopen()

    copy = a.begin_task(0, 1)
    with pytest.raises(EpochClosed):
        a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=copy.ticket)
    with pytest.raises(CommitMismatch):
        a.commit_tasks(0, {bucket: (task.ticket, 1) for bucket in "01"})
    b = t.begin(attempt="r2")
    assert sums(t) == {}
    task = b.begin_task(0, 1)
    b.put({key: {"pv": 1} for key in keys}, 0, seq=1, ticket=task.ticket)
    b.seal(1, task.ticket, {"0": 1, "1": 1})
    b.commit_tasks(0, {bucket: (task.ticket, 1) for bucket in "01"})

    assert sums(t) == dict.fromkeys(keys, 1)


def test_h33_without_undo_an_attempt_is_followed_and_not_taken_back(t, keys):
    """Neither by a newer attempt at its task, nor by a commit that does not name its bucket."""
    a = t.begin(columns=["top"], undo="none", attempt="r")
    first = a.begin_task(0, 1)
    a.put({key: {"top": 9} for key in keys}, 0, seq=1, ticket=first.ticket)
    second = a.begin_task(0, 1)
    a.put({keys[0]: {"top": 5}}, 0, seq=1, ticket=second.ticket)
    a.seal(1, second.ticket, {"0": 1})
    a.commit_tasks(0, {"0": (second.ticket, 1)})

    t.check({key: {"top": 9} for key in keys})
    assert not [tag for bucket in (0, 1) for tag in t.frames(bucket) if isinstance(tag, UndoTag)]
