"""Tasks of an owner: runs with tokens, attempts with tickets, and what a commit makes of those that failed."""

import pytest
from tests.spec.owned import TTL, open_rack

from kolk.errors import BucketSplit, CommitMismatch, EpochClosed, Fenced, InvalidArgument, LockExpired


@pytest.fixture
def rack(folder, form):
    with open_rack(folder, form) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


@pytest.fixture
def keys(t):
    return t.a_key_of_each_bucket()


def test_tasks_of_one_run_share_a_fence_and_those_of_older_runs_are_fenced(t):
    """begin(attempt=token): the first task of a run fences older runs and undoes them, the others get its fence."""
    first = t.begin(attempt="run-1")
    first.put({1: {"pv": 1}})
    assert t.begin(attempt="run-1").record == first.record
    t.check({1: {"pv": 1}})

    second = t.begin(attempt="run-2")

    t.check({})
    assert t.begin(attempt="run-2").record.fence == second.record.fence == first.record.fence + 1
    with pytest.raises(Fenced):
        t.begin(attempt="run-1")
    with pytest.raises(Fenced):
        first.put({1: {"pv": 1}})


def test_a_token_lasts_beyond_a_restart_and_not_beyond_its_time(t):
    first = t.begin(attempt="run-1")
    t.rack.reopen()
    assert t.begin(attempt="run-1").record.fence == first.record.fence
    t.rack.clock.advance(seconds=TTL)
    with pytest.raises(LockExpired):
        t.begin(attempt="run-1")
    t.begin("other")
    with pytest.raises(Fenced):
        t.begin(attempt="run-1")


def test_h29_what_attempts_left_in_buckets_that_the_commit_does_not_name_is_undone(t, keys):
    """H29: a failed attempt's rows go before the commit is written."""
    a = t.begin(attempt="r")
    one = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=one.ticket)
    a.seal(1, one.ticket, {"0": 1})
    lost = a.begin_task(0, 2)
    a.put({keys[1]: {"pv": 1}}, 0, seq=1, ticket=lost.ticket)

    a.commit_tasks(0, {"0": (one.ticket, 1)}, b"s")

    rows = {key: row for key, row in t.rows().items() if "pv" in row}
    assert {key: row["pv"] for key, row in rows.items()} == {keys[0]: 1}
    assert t.begin().record.state == b"s"


def test_h29_only_what_is_sealed_and_named_is_committed(t, keys):
    """H29: the named ticket is the bucket's, sealed, with the last put."""
    a = t.begin(attempt="r")
    task = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=task.ticket)
    with pytest.raises(CommitMismatch):
        a.commit_tasks(0, {"0": (task.ticket, 1)})
    with pytest.raises(CommitMismatch):
        a.seal(1, task.ticket, {"0": 2})
    a.seal(1, task.ticket, {"0": 1})
    a.seal(1, task.ticket, {"0": 1})
    for wrong in ((task.ticket + 1, 1), (task.ticket, 2)):
        with pytest.raises(CommitMismatch):
            a.commit_tasks(0, {"0": wrong})
    with pytest.raises(EpochClosed):
        a.put({keys[0]: {"pv": 1}}, 0, seq=2, ticket=task.ticket)

    a.commit_tasks(0, {"0": (task.ticket, 1)})
    a.commit_tasks(0, {"0": (task.ticket, 1)})

    assert t.rows()[keys[0]]["pv"] == 1


def test_the_first_put_of_a_newer_attempt_undoes_the_older_one_which_is_refused(t, keys):
    """A task that failed halfway is tried again: its rows count once."""
    a = t.begin(attempt="r")
    a.put({keys[0]: {"pv": 100}}, 0, ticket=a.begin_task(0, 1).ticket)
    old = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=old.ticket)
    a.put({keys[0]: {"pv": 1}}, 0, seq=2, ticket=old.ticket)
    new = a.begin_task(0, 1)

    with pytest.raises(Fenced):
        a.put({keys[0]: {"pv": 1}}, 0, seq=3, ticket=old.ticket)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=new.ticket)
    a.put({keys[0]: {"pv": 1}}, 0, seq=2, ticket=new.ticket)
    a.seal(1, new.ticket, {"0": 2})
    a.commit_tasks(0, {"0": (new.ticket, 2)})

    assert t.rows()[keys[0]]["pv"] == 2


def test_h34_a_sealed_task_is_not_displaced(t, keys):
    """H34: a copy that starts after the winner finished gets the winner's message, and wipes nothing."""
    a = t.begin(attempt="r")
    winner = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=winner.ticket)
    a.seal(1, winner.ticket, {"0": 1}, b"the message")

    loser = a.begin_task(0, 1)

    assert (loser.ticket, loser.message) == (winner.ticket, b"the message")
    a.commit_tasks(0, {"0": (winner.ticket, 1)})
    assert t.rows()[keys[0]]["pv"] == 1


def test_h34_a_sealed_task_is_not_displaced_by_one_that_a_restart_let_in(t, keys):
    """H34, after a restart: what the winner left is forgotten, that it is through is not."""
    a = t.begin(attempt="r")
    winner = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=winner.ticket)
    a.seal(1, winner.ticket, {"0": 1})
    t.rack.reopen()

    copy = a.begin_task(0, 1)
    with pytest.raises(EpochClosed):
        a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=copy.ticket)

    a.commit_tasks(0, {"0": (winner.ticket, 1)})
    assert t.rows()[keys[0]]["pv"] == 1


def test_h37_two_tasks_do_not_write_to_one_bucket(t, keys):
    """H37: one task's undo would wipe the other's rows."""
    a = t.begin(attempt="r")
    one, two = a.begin_task(0, 1), a.begin_task(0, 2)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=one.ticket)

    with pytest.raises(BucketSplit):
        a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=two.ticket)

    assert t.rows()[keys[0]]["pv"] == 1


def test_tickets_grow_also_over_a_restart(t):
    a = t.begin(attempt="r")
    first = a.begin_task(0, 1)
    t.rack.reopen()
    second = a.begin_task(0, 1)
    assert second.ticket > first.ticket
    with pytest.raises(Fenced):
        a.put({1: {"pv": 1}}, 0, seq=1, ticket=first.ticket)


def test_an_epoch_of_tasks_begins_after_the_commit_of_the_last(t, keys):
    a = t.begin(attempt="r")
    task = a.begin_task(0, 1)
    with pytest.raises(EpochClosed):
        a.begin_task(1, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=task.ticket)
    a.seal(1, task.ticket, {"0": 1})
    a.commit_tasks(0, {"0": (task.ticket, 1)})
    with pytest.raises(EpochClosed):
        a.begin_task(0, 1)
    task = a.begin_task(1, 2)
    a.put({keys[0]: {"pv": 1}}, 1, seq=1, ticket=task.ticket)
    with pytest.raises(InvalidArgument):
        a.begin_task(1, -1)


def test_a_run_that_replays_what_is_committed_adds_nothing(t, keys):
    """Committed here, and the engine's own commit file was not written: the batch is run again, whole."""
    for run in ("r1", "r2"):
        a = t.begin(attempt=run)
        task = a.begin_task(0, 1)
        a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=task.ticket)
        a.seal(1, task.ticket, {"0": 1})
        a.commit_tasks(0, {"0": (task.ticket, 1)})

    assert t.rows()[keys[0]]["pv"] == 1
