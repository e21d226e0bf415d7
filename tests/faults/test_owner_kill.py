"""kill -9 at every step of an owner: of beginning, being undone, writing, committing, leaving, and of its tasks.

Two owners have different columns of one table, with other functions, and both have left an epoch uncommitted. One of
them is at work when the process dies. The other one is not touched by what becomes of it: it goes on after the restart
as if nothing had happened. Who was at work begins again, finds what it had committed and nothing else, and writes the
rest: the table is that of one clean run, and so is what its changelog makes.
"""

import shutil
from collections import Counter
from dataclasses import replace

import pytest
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.killing import CountingSwitch, killed, opened
from tests.faults.owner_worker import ACTIONS, CONFIG, OWNED, PARTS, TTL, act, begin, clean_run, die, prepared, rows
from tests.spec.kept import present
from tests.spec.replica import replayed

from kolk.testing.clock import ManualClock
from kolk.testing.faults import Step

RECORDS = (Step.BEFORE_RECORD, Step.AFTER_RECORD)
FRAMES = (
    Step.BEFORE_APPEND, Step.HALF_APPEND, Step.AFTER_APPEND, Step.BEFORE_SYNC, Step.AFTER_SYNC, Step.BEFORE_WATERMARK,
    Step.AFTER_WATERMARK, Step.BEFORE_APPLY, Step.AFTER_APPLY,
)  # fmt: skip
# How many records and frames each action writes. A bucket is undone with the rows that come back, with those that
# go, if there are any, and with a mark.
WRITES = {
    "recover": (2, 8),
    "change columns": (2, 8),
    "resume": (3, 0),
    "evict": (5, 8),
    "write": (0, 6),
    "commit": (1, 0),
    "rest": (2, 8),
    "release": (3, 8),
    "work together": (2, 12),
    "begin tasks": (3, 0),
    "try tasks again": (2, 11),
    "seal tasks": (0, 3),
    "commit tasks": (1, 2),
}
ALL = [
    (action, step, occurrence)
    for action, (records, frames) in WRITES.items()
    for steps, count in ((RECORDS, records), (FRAMES, frames))
    for step in steps
    for occurrence in range(1, count + 1)
]
# After each record, and within and after a frame of each action, of another bucket each time.
SOME = [
    (action, step, occurrence)
    for turn, action in enumerate(WRITES)
    for step, occurrences in (
        (Step.BEFORE_RECORD, range(1, 2) if action.startswith("commit") else ()),
        (Step.AFTER_RECORD, range(1, WRITES[action][0] + 1)),
        (Step.HALF_APPEND, [1 + 3 * turn % WRITES[action][1]] if WRITES[action][1] else []),
        (Step.AFTER_APPLY, [1 + 5 * turn % WRITES[action][1]] if WRITES[action][1] else []),
    )
    for occurrence in occurrences
]
POINTS = ALL if IS_FULL else SOME


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder, and what ``b`` has in its hand."""
    folder = tmp_path_factory.mktemp("owners") / "data"
    return folder, prepared(folder)


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "data")
    return tmp_path / "data"


def contents(db):
    """The rows without what is null, by key; the replay of the changelog makes the same."""
    table = db.table("t")
    found = present(table)
    assert replayed(table) == found
    return {
        key: {name: value for name, value in row.items() if value is not None and name != "k"}
        for (key,), row in found.items()
    }


def named(points):
    return pytest.mark.parametrize(
        ("action", "step", "occurrence"), points, ids=lambda part: str(getattr(part, "value", part)).replace(" ", "-")
    )


@named([point for point in POINTS if point[0] != "work together"])
def test_an_owner_that_dies_goes_on_as_if_it_had_not_and_the_other_one_notices_nothing(
    made, folder, action, step, occurrence
):
    killed(folder, step, occurrence, die, action)

    clock = ManualClock()
    engine, db = opened(folder, CONFIG, clock=clock)
    with db:
        b = replace(made[1], service=engine, seq=made[1].seq - 1)
        b.write(1, [PARTS - 1])  # its answer could have been lost: once more it adds nothing
        b.commit(1)
        clock.advance(seconds=TTL + 1)
        a = begin(engine)
        assert a.record.fence > 1 or action == "release", "only who was released is forgotten"
        assert contents(db) == clean_run(a=(0, 1) if a.record.committed == 1 else (0,))
        if a.record.committed < 1:
            a.write(1)
            a.commit(1)
        assert contents(db) == clean_run()
        records = [begin(engine, owner).record for owner in OWNED]
        assert contents(db) == clean_run()
        assert [record.committed for record in records] == [1, 1]
        assert action == "resume" or {record.state for record in records} == {b"through 1"}
    write_figures("kill -9 at a step of an owner", times=1, lost=0, duplicated=0)


@named([point for point in POINTS if point[0] == "work together"])
def test_two_owners_that_die_together_go_on_each_from_its_own_commit(folder, action, step, occurrence):
    killed(folder, step, occurrence, die, action)

    engine, db = opened(folder, CONFIG, clock=ManualClock())
    with db:
        jobs = {owner: begin(engine, owner) for owner in OWNED}
        epochs = {owner: range(job.record.committed + 1) for owner, job in jobs.items()}
        assert contents(db) == clean_run(**epochs)
        for job in jobs.values():
            if job.record.committed < 1:
                job.write(1)
                job.commit(1)
        assert contents(db) == clean_run()
    write_figures("kill -9 at a step of an owner", times=1, lost=0, duplicated=0)


@pytest.mark.parametrize("action", ACTIONS if IS_FULL else ["evict", "work together", "try tasks again"])
def test_no_step_of_an_action_is_left_out(folder, action):
    switch = CountingSwitch()
    acting = act(folder, action, switch)
    next(acting)
    switch.counted()

    engine = next(acting)

    steps = Counter(step for of, step, _ in ALL if of == action)
    assert switch.counted() == steps
    engine.close()


def test_both_owners_have_rows_of_their_own_in_every_epoch_and_rows_in_common():
    """Else taking back what one of them left could not go wrong."""
    keys = {(owner, epoch): {row["k"] for row in rows(owner, epoch)} for owner in OWNED for epoch in range(2)}

    for mine in keys:
        assert keys[mine] - set().union(*(keys[other] for other in keys if other != mine))
    assert set.intersection(*keys.values())
    assert clean_run() not in (clean_run(a=(0,)), clean_run(b=(0,)))
