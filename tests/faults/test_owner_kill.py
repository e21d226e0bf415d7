"""kill -9 at every step of an owner: of beginning, being undone, writing, committing, leaving, and of its tasks.

Two owners have different columns of one table, with other functions, and both have left an epoch uncommitted. One of
them is at work when the process dies. The other one is not touched by what becomes of it: it goes on after the restart
as if nothing had happened. Who was at work begins again, finds what it had committed and nothing else, and writes the
rest: the table is that of one clean run, and so is what its changelog makes.
"""

from collections import Counter

import pytest
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.killing import CountingSwitch, killed, opened
from tests.faults.owner_points import WRITES, named, points
from tests.faults.owner_witness import check_recovery, go_on, haunt
from tests.faults.owner_worker import ACTIONS, CONFIG, OWNED, TTL, act, clean_run, die, rows

from kolk.testing.clock import ManualClock
from kolk.testing.faults import Step
from kolk.testing.soundness import check_sound

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
POINTS = [point for action in ACTIONS for point in points(action)] if IS_FULL else SOME


@named([point for point in POINTS if point[0] != "work together"])
def test_an_owner_that_dies_goes_on_as_if_it_had_not_and_the_other_one_notices_nothing(
    owners, owned, action, step, occurrence
):
    killed(owned, step, occurrence, die, action)

    clock = ManualClock()
    engine, db = opened(owned, CONFIG, clock=clock)
    with db:
        go_on(owners[1]["b"], engine)
        haunt(owners[1]["a"], engine)
        clock.advance(seconds=TTL + 1)
        [a] = check_recovery(db, engine, "a")
        assert a.record.fence > 1 or action == "release", "only who was released is forgotten"
    check_sound(owned)
    write_figures("kill -9 at a step of an owner", times=1, lost=0, duplicated=0)


@named([point for point in POINTS if point[0] == "work together"])
def test_two_owners_that_die_together_go_on_each_from_its_own_commit(owned, action, step, occurrence):
    killed(owned, step, occurrence, die, action)

    engine, db = opened(owned, CONFIG, clock=ManualClock())
    with db:
        check_recovery(db, engine, *OWNED)
    check_sound(owned)
    write_figures("kill -9 at a step of an owner", times=1, lost=0, duplicated=0)


@pytest.mark.parametrize("action", ACTIONS if IS_FULL else ["evict", "work together", "try tasks again"])
def test_no_step_of_an_action_is_left_out(owned, action):
    switch = CountingSwitch()
    acting = act(owned, action, switch)
    next(acting)
    switch.counted()

    engine = next(acting)

    assert switch.counted() == Counter(step for _, step, _ in points(action))
    engine.close()


def test_both_owners_have_rows_of_their_own_in_every_epoch_and_rows_in_common():
    """Else taking back what one of them left could not go wrong."""
    keys = {(owner, epoch): {row["k"] for row in rows(owner, epoch)} for owner in OWNED for epoch in range(2)}

    for mine in keys:
        assert keys[mine] - set().union(*(keys[other] for other in keys if other != mine))
    assert set.intersection(*keys.values())
    assert clean_run() not in (clean_run(a=(0,)), clean_run(b=(0,)))
