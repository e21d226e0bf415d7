"""Tasks of an owner as an engine uses them: begin, put, seal, commit; attempts that fail, run twice or are late."""

import pickle

import pytest
from tests.spec.owned import TTL, hurried

from kolk.client.tasks import Left
from kolk.errors import (
    BucketSplit,
    Closed,
    ColumnLockConflict,
    CommitMismatch,
    CommitPointGone,
    EpochClosed,
    Fenced,
    InvalidArgument,
    InvalidRows,
    LockExpired,
    OwnerRolledBack,
    StreamChanged,
    TooLarge,
)
from kolk.model.owner import MESSAGE_BYTES_MAX


@pytest.fixture
def keys(t):
    return t.a_key_of_each_bucket()


@pytest.fixture
def task(t):
    """An attempt at a task, which ends with the test."""
    made = []

    def make(attempt="run", epoch=0, partition=0, owner="a", columns=("pv",), **options):
        one = t.table.task(owner, columns, TTL, attempt=attempt, epoch=epoch, partition=partition, **options)
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


def pv(t):
    return {key: row["pv"] for key, row in t.rows().items() if "pv" in row}


def row(key, value=1):
    return [{"k": key, "pv": value}]


def test_an_epoch_is_seen_at_once_and_stands_once_it_is_committed(t, task, keys):
    one, two = task(partition=0), task(partition=1)
    one.put(row(keys[0], 1))
    two.put(row(keys[1], 2))
    assert pv(t) == {keys[0]: 1, keys[1]: 2}

    t.table.commit_tasks([one.seal(), two.seal()], b"state")

    after = t.begin()
    assert (after.record.committed, after.record.state) == (0, b"state")
    t.check({keys[0]: {"pv": 1}, keys[1]: {"pv": 2}})


def test_the_next_run_takes_back_what_was_not_committed(t, task, keys):
    task("run-1").put(row(keys[0], 10))
    again = task("run-2")
    assert pv(t) == {}

    again.put(row(keys[0], 1))

    t.table.commit_tasks([again.seal()])
    t.check({keys[0]: {"pv": 1}})


def test_a_task_that_failed_is_tried_again_and_counts_once(t, task, keys):
    first = task()
    first.put(row(keys[0], 10))
    first.put(row(keys[1], 10))
    second = task()
    second.put(row(keys[0], 1))

    with pytest.raises(Fenced):
        first.put(row(keys[0], 10))

    t.table.commit_tasks([second.seal()])
    t.check({keys[0]: {"pv": 1}})


def test_h34_a_copy_of_a_task_that_is_through_is_told_what_it_left_and_writes_nothing(t, task, keys):
    winner = task()
    winner.put(row(keys[0], 1))
    left = winner.seal()

    copy = task()
    assert not copy.is_through
    assert copy.put(row(keys[0], 1)) is False
    assert copy.is_through
    assert copy.seal() == left

    t.table.commit_tasks([copy.seal()])
    t.check({keys[0]: {"pv": 1}})


@pytest.mark.parametrize("winner", [0, 1])
def test_h34_of_two_copies_at_once_the_newer_goes_on_whichever_ends_first(t, task, keys, winner):
    """A speculative copy: both are under way. Whoever may seal has all the rows of the task, and the other none."""
    copies = [task(), task()]
    for copy in copies:
        copy.put(row(keys[0], 1))
    lefts = []

    for copy in (copies[winner], copies[1 - winner]):
        try:
            copy.put(row(keys[1], 1))
            lefts.append(copy.seal())
        except Fenced:
            pass

    assert len(lefts) == 1
    t.table.commit_tasks(lefts)
    t.check({keys[0]: {"pv": 1}, keys[1]: {"pv": 1}})


def test_a_copy_that_wins_after_the_other_was_sealed_leaves_the_same(t, task, keys):
    """Spark takes the message of the copy, which has read nothing, and drops that of the first."""
    first, copy = task(), task()
    assert not copy.is_through
    first.put(row(keys[0], 5))
    left = first.seal()
    copy.put(row(keys[0], 5))

    assert copy.seal() == left
    t.table.commit_tasks([copy.seal()])
    t.check({keys[0]: {"pv": 5}})


def test_a_task_without_rows_leaves_nothing_and_its_epoch_is_committed(t, task):
    left = task().seal()

    t.table.commit_tasks([left])

    assert (left.ticket, left.seqs) == (0, {})
    assert t.begin().record.committed == 0


def test_a_put_without_rows_is_no_put(t, task, keys):
    one = task()
    one.put([])
    one.put(row(keys[0], 1))

    t.table.commit_tasks([one.seal()])

    t.check({keys[0]: {"pv": 1}})


def test_a_run_of_an_epoch_that_is_committed_wants_no_rows(t, task, keys):
    """The engine has not heard of the commit, and runs all of the epoch again."""
    one = task("run-1")
    one.put(row(keys[0], 1))
    t.table.commit_tasks([one.seal()], b"of run-1")

    again = task("run-2")

    assert again.is_through
    assert again.user_state == b"of run-1"
    assert again.put(row(keys[0], 1)) is False
    t.table.commit_tasks([again.seal()], b"of run-2")
    assert task("run-3").user_state == b"of run-1"
    t.check({keys[0]: {"pv": 1}})


def test_an_epoch_before_the_last_is_an_older_checkpoint_and_refused(t, task, keys):
    for epoch in (0, 1):
        one = task(f"run-{epoch}", epoch)
        one.put(row(keys[0], 1))
        t.table.commit_tasks([one.seal()])

    with pytest.raises(CommitPointGone, match="older checkpoint"):
        task("run-2", epoch=0)


def test_a_straggler_of_the_run_that_was_committed_is_refused(t, task, keys):
    one = task()
    one.put(row(keys[0], 1))
    t.table.commit_tasks([one.seal()])

    with pytest.raises(EpochClosed):
        task()


def test_a_commit_whose_answer_was_lost_is_made_again(t, task, keys):
    one = task()
    one.put(row(keys[0], 1))
    for _ in range(3):
        t.table.commit_tasks([one.seal()])

    t.check({keys[0]: {"pv": 1}})


def test_who_abandons_a_run_that_is_committed_takes_nothing_back(t, task, keys):
    one = task()
    one.put(row(keys[0], 1))
    left = one.seal()
    t.table.commit_tasks([left])

    t.table.abandon_tasks([left])

    t.check({keys[0]: {"pv": 1}})


def test_a_run_that_is_abandoned_is_taken_back_and_lets_its_columns_go(t, task, keys):
    one = task()
    one.put(row(keys[0], 1))

    t.table.abandon_tasks([one.seal()])

    t.check({})
    assert t.locks() == {}
    with pytest.raises(OwnerRolledBack):
        t.table.commit_tasks([one.seal()])
    with pytest.raises(Fenced):
        task()


def test_who_abandons_an_older_run_leaves_the_newer_alone(t, task, keys):
    old = task("run-1")
    left = old.seal()
    new = task("run-2")
    new.put(row(keys[0], 1))

    t.table.abandon_tasks([left])

    t.table.commit_tasks([new.seal()])
    t.check({keys[0]: {"pv": 1}})


def test_a_run_of_a_table_that_is_gone_is_abandoned_without_a_word(t, task):
    table, left = t.table, task().seal()
    t.rack.db.drop_table("t")

    table.abandon_tasks([left])


def test_h37_rows_of_one_bucket_in_two_tasks_are_refused_also_beside_others_that_are_not(t, task, keys):
    one, two = task(partition=0), task(partition=1)
    one.put(row(keys[0], 1))

    with pytest.raises(BucketSplit):
        two.put([*row(keys[0], 1), *row(keys[1], 1)])
    with pytest.raises(CommitMismatch):
        two.seal()


def test_what_tasks_of_two_runs_left_is_not_committed_together(t, task, keys):
    old, new = task("run-1", partition=0).seal(), task("run-2", partition=1).seal()

    with pytest.raises(CommitMismatch):
        t.table.commit_tasks([old, new])
    with pytest.raises(InvalidArgument):
        t.table.commit_tasks([])
    twice = task("run-2", partition=0)
    twice.put(row(keys[0], 1))
    with pytest.raises(BucketSplit):
        t.table.commit_tasks([twice.seal(), twice.seal()])


def test_after_a_put_that_was_refused_nothing_is_sealed(t, task, keys):
    one = task()
    with pytest.raises(InvalidRows):
        one.put([{"k": keys[0], "title": "x"}], columns=["title"])

    with pytest.raises(CommitMismatch):
        one.seal()
    with pytest.raises(CommitMismatch):
        one.put(row(keys[0]))


def test_an_attempt_that_is_over_writes_no_more(task, keys):
    one = task()
    one.close()
    one.close()

    with pytest.raises(Closed):
        one.put(row(keys[0]))
    with pytest.raises(Closed):
        one.seal()


def test_the_lock_is_renewed_while_a_task_runs(t, task, keys):
    one = task()
    for _ in range(4):
        t.rack.clock.advance(seconds=TTL * 0.9)
        one.turn()
    one.put(row(keys[0], 1))
    one.close()
    t.rack.clock.advance(seconds=TTL + 1)
    one.turn()

    assert not t.locks()["a"].is_live


def test_a_task_that_was_still_for_too_long_is_told(t, task, keys):
    one = task()
    t.rack.clock.advance(seconds=TTL + 1)
    one.turn()

    with pytest.raises(LockExpired):
        one.put(row(keys[0], 1))


def test_who_the_columns_belong_to_is_in_the_refusal(task):
    task(owner="hourly")

    with pytest.raises(ColumnLockConflict, match="hourly"):
        task(owner="daily")
    task(owner="titles", columns=["title"])


def test_another_stream_under_the_name_is_refused(task):
    task("run-1", stream="query-1")

    with pytest.raises(StreamChanged):
        task("run-2", stream="query-2")


def test_a_task_needs_the_token_of_its_run(task):
    with pytest.raises(InvalidArgument, match="token"):
        task("")


def test_many_rows_are_put_in_pieces_and_count_once(t, task, monkeypatch):
    monkeypatch.setattr("kolk.client.tasks._ROWS_MAX", 7)
    monkeypatch.setattr("kolk.client.tasks._BYTES_MAX", 300)
    one = task(columns=["pv", "note"])
    rows = [{"k": key, "pv": 1, "note": "x" * (1 if key % 10 else 500)} for key in range(100)]
    one.put(rows)

    t.table.commit_tasks([one.seal()])

    assert pv(t) == dict.fromkeys(range(100), 1)
    assert one.seal().rows == 100


def test_what_a_task_leaves_crosses_processes_and_has_a_limit():
    left = Left(table=1, owner="a", number=2, fence=3, epoch=4, partition=5, ticket=6, rows=7, seqs={"day=1/0": 8})
    assert Left.decoded(left.encoded()) == left
    assert pickle.loads(pickle.dumps(left)) == left

    several = Left(table=1, owner="a", number=2, fence=3, epoch=4, partition=5,
                   seqs={f"day=2026-11-{day}/{day % 7}": day % 13 for day in range(3_000)})  # fmt: skip
    assert len(several.encoded()) < MESSAGE_BYTES_MAX
    many = Left(table=1, owner="a", number=2, fence=3, epoch=4, partition=5,
                seqs={f"p={hash((place, 'x'))}/{place}": hash(place) for place in range(30_000)})  # fmt: skip
    with pytest.raises(TooLarge, match="30,000 buckets"):
        many.encoded()


def test_a_restart_of_the_server_costs_the_tasks_that_run_one_more_attempt(t, task, keys, form):
    if form == "embedded":
        pytest.skip("without a network the tasks end with it")
    one, through = task(partition=0), task(partition=1)
    one.put(row(keys[0], 1))
    through.put(row(keys[1], 1))
    left = through.seal()
    t.rack.reopen()
    with pytest.raises(Fenced):
        one.seal()

    again = task(partition=0)
    again.put(row(keys[0], 1))

    t.table.commit_tasks([again.seal(), left])
    t.check({keys[0]: {"pv": 1}, keys[1]: {"pv": 1}})


def test_after_a_restart_a_task_that_was_through_is_not_done_again_but_its_run(t, task, keys):
    """What it left is forgotten with the process, so nobody can say it: the run is begun again."""
    one = task("run-1")
    one.put(row(keys[0], 1))
    one.seal()
    t.rack.reopen()
    with hurried(t.rack.db), pytest.raises(EpochClosed):
        task("run-1").put(row(keys[0], 1))

    again = task("run-2")
    again.put(row(keys[0], 1))

    t.table.commit_tasks([again.seal()])
    t.check({keys[0]: {"pv": 1}})


def test_who_cannot_know_that_it_had_all_its_rows_leaves_them_to_the_commit(t, task, keys):
    one = task()
    one.put(row(keys[0], 1))
    left = one.leave()

    assert not left.is_sealed
    t.table.commit_tasks([left])
    t.table.commit_tasks([left])

    t.check({keys[0]: {"pv": 1}})


def test_an_attempt_that_was_left_before_all_its_rows_came_does_not_stand_in_the_way(t, task, keys):
    """Spark ends the input of a task that fails as if it were complete, and tries it again."""
    half = task()
    half.put(row(keys[0], 1))
    half.leave()

    whole = task()
    whole.put(row(keys[0], 1))
    whole.put(row(keys[1], 1))

    t.table.commit_tasks([whole.leave()])
    t.check({keys[0]: {"pv": 1}, keys[1]: {"pv": 1}})


def test_what_was_left_and_then_displaced_is_not_committed(t, task, keys):
    first = task()
    first.put(row(keys[0], 1))
    left = first.leave()
    copy = task()
    copy.put(row(keys[0], 1))

    with pytest.raises(CommitMismatch):
        t.table.commit_tasks([left])
    with pytest.raises(Fenced):
        first.leave()

    t.table.commit_tasks([copy.leave()])
    t.check({keys[0]: {"pv": 1}})


def test_what_was_left_is_committed_also_after_a_restart(t, task, keys):
    one = task()
    one.put(row(keys[0], 1))
    left = one.leave()
    t.rack.reopen()

    t.table.commit_tasks([left])

    t.check({keys[0]: {"pv": 1}})
