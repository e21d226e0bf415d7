"""kill -9 at every step of a transaction of two tables, and again while the next start finishes it.

Whatever the step: it is there as a whole or not at all, in all buckets of both tables; what it says of itself is what a
clean run leaves, and so is what the changelog makes; and the retry is a duplicate exactly if it was committed.
"""

import json
import multiprocessing
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.transaction_worker import APP, TOTALS, VISITS, create_tables, die, live, opened, rows, transact

from kolk.client.database import Database
from kolk.testing.faults import KillSwitch, Step
from kolk.testing.soundness import check_sound

PATIENCE_SECONDS = 120
KILLS = 4
KILLS_LONG = 100
AT_RANDOM, AT_A_STEP = "kill -9 among transactions", "kill -9 at a step of a transaction"
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.faults.transaction_worker"])

Points = list[tuple[Step, int]]


def points(some: dict[Step, tuple[int, ...]], most: dict[Step, int]) -> Points:
    """Some of the occurrences of each step; with KOLK_FULL=1 every one."""
    chosen = {step: tuple(range(1, most[step] + 1)) for step in some} if IS_FULL else some
    return [(step, occurrence) for step, occurrences in chosen.items() for occurrence in occurrences]


# Of each of the two tables a file: the magic bytes, the head, two batches and the seal.
STAGING = points(
    {
        Step.BEFORE_STAGE: (3,),
        Step.HALF_STAGE: (4,),
        Step.AFTER_STAGE: (5,),
        Step.BEFORE_SEAL: (1,),
        Step.AFTER_SEAL: (2,),
        Step.BEFORE_RECORD: (1,),
    },
    {
        Step.BEFORE_STAGE: 10,
        Step.HALF_STAGE: 10,
        Step.AFTER_STAGE: 10,
        Step.BEFORE_SEAL: 2,
        Step.AFTER_SEAL: 2,
        Step.BEFORE_RECORD: 1,
    },
)
# Six buckets, each with two frames, which are synced together. The first watermark is that of the commit's number.
COMMITTING = points(
    {
        Step.AFTER_RECORD: (1, 2),
        Step.BEFORE_WATERMARK: (1,),
        Step.AFTER_WATERMARK: (2,),
        Step.BEFORE_APPEND: (3,),
        Step.HALF_APPEND: (1, 2),
        Step.AFTER_APPEND: (1, 12),
        Step.BEFORE_SYNC: (4,),
        Step.AFTER_SYNC: (1,),
        Step.BEFORE_APPLY: (4,),
        Step.AFTER_APPLY: (3,),
        Step.BEFORE_UNSTAGE: (1,),
        Step.AFTER_UNSTAGE: (1,),
    },
    {
        Step.AFTER_RECORD: 2,
        Step.BEFORE_WATERMARK: 7,
        Step.AFTER_WATERMARK: 7,
        Step.BEFORE_APPEND: 12,
        Step.HALF_APPEND: 12,
        Step.AFTER_APPEND: 12,
        Step.BEFORE_SYNC: 6,
        Step.AFTER_SYNC: 6,
        Step.BEFORE_APPLY: 6,
        Step.AFTER_APPLY: 6,
        Step.BEFORE_UNSTAGE: 2,
        Step.AFTER_UNSTAGE: 2,
    },
)
BEFORE_DONE = [(Step.BEFORE_RECORD, 2)]
# With the truncation each bucket has one frame more.
TRUNCATING = points(
    {Step.AFTER_RECORD: (1,), Step.HALF_APPEND: (2,), Step.AFTER_APPEND: (1,), Step.AFTER_APPLY: (2,)},
    {Step.AFTER_RECORD: 2, Step.HALF_APPEND: 18, Step.AFTER_APPEND: 18, Step.AFTER_APPLY: 6},
)
RECOVERING = points(
    {
        Step.BEFORE_APPEND: (3,),
        Step.HALF_APPEND: (2,),
        Step.AFTER_APPEND: (1,),
        Step.BEFORE_SYNC: (2,),
        Step.AFTER_SYNC: (5,),
        Step.AFTER_APPLY: (4,),
        Step.BEFORE_RECORD: (1,),
        Step.AFTER_RECORD: (1,),
        Step.BEFORE_UNSTAGE: (1,),
        Step.AFTER_UNSTAGE: (1,),
    },
    {
        Step.BEFORE_APPEND: 8,
        Step.HALF_APPEND: 8,
        Step.AFTER_APPEND: 8,
        Step.BEFORE_SYNC: 8,
        Step.AFTER_SYNC: 8,
        Step.AFTER_APPLY: 4,
        Step.BEFORE_RECORD: 1,
        Step.AFTER_RECORD: 1,
        Step.BEFORE_UNSTAGE: 2,
        Step.AFTER_UNSTAGE: 2,
    },
)


def state(db: Database) -> list[Any]:
    """The rows of both tables, which the replay of each changelog makes, too."""
    found = []
    for name in (TOTALS, VISITS):
        table = db.table(name)
        scanned = {row["k"]: row for row in table.scan().to_arrow().to_pylist()}
        assert replayed(table) == scanned
        found.append(scanned)
    return found


def replayed(table: Any) -> dict[int, Any]:
    made: dict[int, Any] = {}
    for batch in table.changelog(start="earliest"):
        for change in batch.to_pylist():
            row = {name: value for name, value in change.items() if not name.startswith("_")}
            match change["_change_type"]:
                case "+I":
                    assert row["k"] not in made
                    made[row["k"]] = row
                case "+U":
                    made[row["k"]] = row
                case "-U":
                    assert made[row["k"]] == row
                case _:
                    assert made.pop(row["k"]) == row
    return made


def run(folder: Path, *versions: int, truncates: bool = False) -> list[list[Any]]:
    """Commit versions undisturbed; what is there after each."""
    _, db = opened(folder, KillSwitch())
    with db:
        found = []
        for version in versions:
            assert transact(db, version, truncates=truncates and version > 1) == "committed"
            found.append(state(db))
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A database with version 1, and what it holds with version 1, with 2, and loaded anew with 2."""
    place = tmp_path_factory.mktemp("made")
    _, db = opened(place / "data", KillSwitch())
    with db:
        create_tables(db)
    [first] = run(place / "data", 1)
    shutil.copytree(place / "data", place / "clean")
    shutil.copytree(place / "data", place / "anew")
    [second] = run(place / "clean", 2)
    [anew] = run(place / "anew", 2, truncates=True)
    assert len(first[0]) == len(second[0]) == len(anew[0]) == 20
    return place / "data", first, second, anew


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "data")
    return tmp_path / "data"


def killed(folder: Path, step: Step, occurrence: int, version: int = 2, *, truncates: bool = False) -> None:
    """Let a process die at a step; that it was there it has written down."""
    report = folder.parent / "report"
    report.unlink(missing_ok=True)
    process = _forks.Process(target=die, args=(str(folder), step.value, occurrence, str(report), version, truncates))
    process.start()
    try:
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == -signal.SIGKILL, f"it was done, and never was {step.value} {occurrence}"
    finally:
        process.kill()
        process.join()
    assert report.read_text() == f"{step.value}\n"
    check_sound(folder)


def check(folder: Path, before: list[Any], after: list[Any], verdict: str, *, truncates: bool = False) -> None:
    """What is there is this; and after the retry, of which this becomes, that; also at the next start."""
    engine, db = opened(folder, KillSwitch())
    with db:
        assert state(db) == before
        assert engine.transactions.commits.pending() == []
        assert transact(db, 2, truncates=truncates) == verdict
        assert state(db) == after
        assert list((folder / "staging").iterdir()) == []
    if IS_FULL:
        _, db = opened(folder, KillSwitch())
        with db:
            assert state(db) == after
            assert transact(db, 2, truncates=truncates) == "duplicate"
            assert transact(db, 3) == "committed"
    check_sound(folder)
    write_figures(AT_A_STEP, times=1, lost=0, duplicated=0)


def named(steps: Points) -> Any:
    return pytest.mark.parametrize(("step", "occurrence"), steps, ids=lambda part: getattr(part, "value", part))


@named(STAGING)
def test_nothing_has_happened_when_the_process_dies_before_the_record(made, folder, step, occurrence):
    killed(folder, step, occurrence)

    check(folder, made[1], made[2], "committed")


@named(COMMITTING + BEFORE_DONE)
def test_everything_has_happened_when_the_process_dies_after_the_record(made, folder, step, occurrence):
    killed(folder, step, occurrence)

    check(folder, made[2], made[2], "duplicate")


@named(TRUNCATING)
def test_a_table_is_loaded_anew_as_a_whole_when_the_process_dies_after_the_record(made, folder, step, occurrence):
    killed(folder, step, occurrence, truncates=True)

    check(folder, made[3], made[3], "duplicate", truncates=True)


@named(RECOVERING)
def test_a_commit_is_finished_in_the_end_when_the_process_dies_while_it_is_finished(made, folder, step, occurrence):
    # Two buckets have it, and of the third the first frame.
    killed(folder, Step.AFTER_APPEND, 5)
    killed(folder, step, occurrence, version=0)

    check(folder, made[2], made[2], "duplicate")


@pytest.mark.parametrize("truncates", [False, True])
def test_a_commit_is_finished_in_the_end_however_often_the_process_dies(made, folder, truncates):
    killed(folder, Step.AFTER_RECORD, 1, truncates=truncates)
    for step in (Step.AFTER_APPEND, Step.HALF_APPEND, Step.AFTER_APPLY, Step.BEFORE_RECORD):
        killed(folder, step, 1, version=0, truncates=truncates)

    expected = made[3] if truncates else made[2]
    check(folder, expected, expected, "duplicate", truncates=truncates)


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
    _, db = opened(folder, KillSwitch())
    with db:
        create_tables(db)
    last = {APP: 0, "other": 0}
    for death in range(kills):
        starts = {app: max(version, 1) for app, version in last.items()}  # the last one again: a duplicate
        process = _forks.Process(target=live, args=(str(folder), death, str(account), starts))
        process.start()
        process.join(rng.uniform(0.2, 1.5))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        check_sound(folder)

        lines = [json.loads(line) for line in account.read_text().splitlines()] if account.exists() else []
        for line in lines[read:]:
            assert "failed" not in line, line
            is_again = line["version"] <= last[line["app"]]
            assert line["verdict"] == ("duplicate" if is_again else "committed"), line
            last[line["app"]] = line["version"]
        read = len(lines)
        engine, db = opened(folder, KillSwitch())
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
    assert sum(last.values()) > kills
    write_figures(AT_RANDOM, times=kills, puts=sum(last.values()), lost=0, duplicated=0)
