"""kill -9 at every step of a transaction of two tables, and again while the next start finishes it.

Whatever the step: it is there as a whole or not at all, in all buckets of both tables; what it says of itself is what a
clean run leaves, and so is what the changelog makes; and the retry is a duplicate exactly if it was committed.
"""

import json
import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.attacker import Ticks
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.killing import FORKS, CountingSwitch, killed, opened
from tests.faults.servers import PATIENCE_SECONDS
from tests.faults.transaction_points import COMMITTING, STAGING, Steps, named, points
from tests.faults.transaction_witness import Made, state
from tests.faults.transaction_worker import APP, CONFIG, create_tables, die, live, ready, rows, transact

from kolk.model.transaction import Verdict
from kolk.testing.faults import Step
from kolk.testing.soundness import check_sound

KILLS = 4
KILLS_LONG = 100
AT_RANDOM, AT_A_STEP = "kill -9 among transactions", "kill -9 at a step of a transaction"

HALFWAY = (Step.AFTER_APPEND, 5)
BEFORE_DONE = (Step.BEFORE_RECORD, 2)
# With the truncation each bucket has one frame more.
TRUNCATING: Steps = {
    Step.AFTER_RECORD: (2, [1]),
    Step.HALF_APPEND: (18, [2]),
    Step.AFTER_APPEND: (18, [1]),
    Step.AFTER_APPLY: (6, [2]),
}
# Two buckets have it, and of the third the first frame, which goes. All six are opened, and four of them written.
RECOVERING: Steps = {
    Step.BEFORE_APPEND: (8, [3]),
    Step.HALF_APPEND: (8, [2]),
    Step.AFTER_APPEND: (8, [1]),
    Step.BEFORE_SYNC: (10, [2]),
    Step.AFTER_SYNC: (10, [5]),
    Step.BEFORE_WATERMARK: (10, [7]),
    Step.AFTER_WATERMARK: (10, [10]),
    Step.BEFORE_APPLY: (6, [1]),
    Step.AFTER_APPLY: (6, [4]),
    Step.BEFORE_RECORD: (1, [1]),
    Step.AFTER_RECORD: (1, [1]),
    Step.BEFORE_UNSTAGE: (2, [1]),
    Step.AFTER_UNSTAGE: (2, [1]),
}


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made.folder, tmp_path / "data")
    return tmp_path / "data"


def check(made: Made, folder: Path, before: list[Any], verdict: str, *, truncates: bool = False) -> None:
    """What is there is this; the retry becomes this and leaves what a clean run does; and what another application had
    staged is still there to be committed. At the next start it is all the same."""
    engine, db = opened(folder, CONFIG)
    with db:
        assert state(db) == before
        assert engine.transactions.commits.pending() == []
        assert transact(db, 2, truncates=truncates) == verdict
        assert state(db) == (made.anew if truncates else made.second)
        assert engine.commit_transaction(made.other).verdict is Verdict.COMMITTED
        assert state(db) == (made.anew_and_other if truncates else made.second_and_other)
        assert list((folder / "staging").iterdir()) == []
    if IS_FULL:
        engine, db = opened(folder, CONFIG)
        with db:
            assert transact(db, 2, truncates=truncates) == "duplicate"
            engine.commit_transaction(made.other)  # once more
            assert state(db) == (made.anew_and_other if truncates else made.second_and_other)
            assert transact(db, 3) == "committed"
    check_sound(folder)
    write_figures(AT_A_STEP, times=1, lost=0, duplicated=0)


@named(points(STAGING))
def test_nothing_has_happened_when_the_process_dies_before_the_record(made, folder, step, occurrence):
    killed(folder, step, occurrence, die)

    check(made, folder, made.first, "committed")


@named([*points(COMMITTING), BEFORE_DONE])
def test_everything_has_happened_when_the_process_dies_after_the_record(made, folder, step, occurrence):
    killed(folder, step, occurrence, die)

    check(made, folder, made.second, "duplicate")


@named(points(TRUNCATING))
def test_a_table_is_loaded_anew_as_a_whole_when_the_process_dies_after_the_record(made, folder, step, occurrence):
    killed(folder, step, occurrence, die, 2, True)

    check(made, folder, made.anew, "duplicate", truncates=True)


@named(points(RECOVERING))
def test_a_commit_is_finished_in_the_end_when_the_process_dies_while_it_is_finished(made, folder, step, occurrence):
    killed(folder, *HALFWAY, die)
    killed(folder, step, occurrence, die, 0)

    check(made, folder, made.second, "duplicate")


@pytest.mark.parametrize("truncates", [False, True])
def test_a_commit_is_finished_in_the_end_however_often_the_process_dies(made, folder, truncates):
    killed(folder, Step.AFTER_RECORD, 1, die, 2, truncates)
    for step in (Step.AFTER_APPEND, Step.HALF_APPEND, Step.AFTER_APPLY, Step.BEFORE_RECORD):
        killed(folder, step, 1, die, 0)

    check(made, folder, made.anew if truncates else made.second, "duplicate", truncates=truncates)


def test_no_step_of_a_commit_or_of_its_recovery_is_left_out(folder):
    switch, again = CountingSwitch(), folder.with_name("again")
    shutil.copytree(folder, again)
    with ready(folder, switch) as db:
        switch.counted()
        transact(db, 2)
        committing = switch.counted()
    killed(again, *HALFWAY, die)
    switch.counted()
    _, db = opened(again, CONFIG, switch)
    with db:
        recovering = switch.counted()

    assert committing == counts(STAGING) + counts(COMMITTING) + Counter([BEFORE_DONE[0]])
    assert recovering == counts(RECOVERING)


def counts(steps: Steps) -> Counter[Step]:
    return Counter({step: count for step, (count, _) in steps.items()})


# --- at random


@pytest.mark.timeout(300)
def test_every_version_counts_once_when_the_process_is_killed_at_random(tmp_path):
    kill_at_random(tmp_path, random.Random(2_026), KILLS)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_version_counts_once_when_the_process_is_killed_at_random_a_hundred_times(tmp_path):
    kill_at_random(tmp_path, random.Random(2_027), KILLS_LONG)


def kill_at_random(tmp_path: Path, rng: random.Random, kills: int) -> None:
    """Let a process commit, kill it, and look at what is left, again and again. After the last version that was
    answered one more may be there; which, the tables say, both the same."""
    folder, account, read = tmp_path / "data", tmp_path / "account", 0
    _, db = opened(folder, CONFIG)
    with db:
        create_tables(db)
    last, news = {APP: 0, "other": 0}, 0
    for death in range(kills):
        new = 0 if rng.random() < 1 / 6 else rng.randint(1, 6)  # some die before anything is new, or while they open
        news += new
        starts = {app: max(version, 1) for app, version in last.items()}  # the last one again: a duplicate
        process = FORKS.Process(target=live, args=(folder, death, account, starts))
        process.start()
        if new:
            wait_for(process, account, read + len(last) + new)
        process.join(rng.uniform(0, 0.1 if new else 0.5))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        check_sound(folder)

        lines = lines_of(account)
        for line in map(json.loads, lines[read:]):
            assert "failed" not in line, line
            is_again = line["version"] <= last[line["app"]]
            assert line["verdict"] == ("duplicate" if is_again else "committed"), line
            last[line["app"]] = line["version"]
        read = len(lines)
        engine, db = opened(folder, CONFIG)
        with db:
            committed = {app: 0 for app in last} | {
                record.app: record.version for record in engine.transactions.commits.all()
            }
            for app, version in last.items():
                assert committed[app] - version in (0, 1)
            last = committed
            for found in state(db):
                expected = sum(row["total"] for n in last.values() for v in range(1, n + 1) for row in rows(v))
                assert sum(row["total"] for row in found.values()) == expected
                times = {row["times"] for row in found.values()} or {0}
                assert times == {2 * sum(last.values())}
    assert sum(last.values()) >= news > 0
    write_figures(AT_RANDOM, times=kills, puts=sum(last.values()), lost=0, duplicated=0)


def lines_of(account: Path) -> list[str]:
    return account.read_text().splitlines() if account.exists() else []


def wait_for(process: Any, account: Path, count: int) -> None:
    """Until so many lines are in the account; or the process is dead, which is looked at next."""
    told = Ticks(PATIENCE_SECONDS, 0.01).until(lambda: len(lines_of(account)) >= count or not process.is_alive())
    assert told, "nothing is committed any more"
