"""kill -9 at every step of an owner: of beginning, writing, committing, closing, being evicted.

After the restart the owner begins again, writes what is not committed, and commits: the table is that of one clean run,
and so is what its changelog makes.
"""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from tests.faults.owner_worker import KEYS, TTL, Job, open_engine, prepared

from kolk.testing.clock import ManualClock
from kolk.testing.faults import KillSwitch, Step
from kolk.testing.soundness import check_sound

FULL = os.environ.get("KOLK_FULL") == "1"
RECORDS = (Step.BEFORE_RECORD, Step.AFTER_RECORD)
FRAMES = (
    Step.BEFORE_APPEND, Step.HALF_APPEND, Step.AFTER_APPEND, Step.BEFORE_SYNC, Step.AFTER_SYNC, Step.BEFORE_APPLY,
    Step.AFTER_APPLY,
)  # fmt: skip
# How many records and frames each action writes. Two buckets are undone with an image frame and a done mark each.
WRITES = {
    "begin": (2, 4),
    "other columns": (2, 4),
    "evict": (5, 4),
    "write": (0, 4),
    "commit": (1, 0),
    "rest": (2, 4),
    "release": (3, 4),
}
ALL = [
    (action, step, occurrence)
    for action, (records, frames) in WRITES.items()
    for steps, count in ((RECORDS, records), (FRAMES, frames))
    for step in steps
    for occurrence in range(1, count + 1)
]
SOME = [
    *[case for case in ALL if case[0] == "begin" and case[1] in (Step.AFTER_RECORD, Step.HALF_APPEND)],
    *[case for case in ALL if case[0] == "evict" and case[1] in (Step.AFTER_RECORD,)],
    *[case for case in ALL if case[0] in ("write", "rest", "release") and case[1:] in ((Step.AFTER_APPEND, 2),)],
    *[case for case in ALL if case[0] == "commit" and case[1] in RECORDS],
    ("other columns", Step.AFTER_RECORD, 1),
    ("release", Step.BEFORE_RECORD, 3),
]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("owners") / "data"
    prepared(folder)
    return folder


def contents(table):
    """The rows, and those that the changelog makes."""
    with table.scan() as scan:
        rows = {row["k"]: (row["pv"], row["note"], row["title"]) for row in scan.to_arrow().to_pylist()}
    replayed = {}
    for batch in table.changelog():
        for row in batch.to_pylist():
            if row["_change_type"] == "-D":
                del replayed[row["k"]]
            elif row["_change_type"] != "-U":
                replayed[row["k"]] = (row["pv"], row["note"], row["title"])
    assert replayed == rows
    return rows


def clean_run(*, epochs=(0, 1)):
    titles = {key: "y" if key % 5 == 0 else "x" if key % 3 == 0 else None for key in KEYS}
    pv, note = sum(10**epoch for epoch in epochs), ",".join(f"e{epoch}" for epoch in epochs)
    return {key: (pv, note, titles[key]) for key in KEYS}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("action", "step", "occurrence"),
    ALL if FULL else SOME,
    ids=lambda value: value.value.replace(" ", "-") if isinstance(value, Step) else str(value).replace(" ", "-"),
)
def test_an_owner_that_dies_goes_on_as_if_it_had_not(template, tmp_path, action, step, occurrence):
    folder, report = tmp_path / "data", tmp_path / "report"
    shutil.copytree(template, folder)
    worker = [sys.executable, "-m", "tests.faults.owner_worker", str(folder), action, step.value, str(occurrence)]

    died = subprocess.run([*worker, str(report)], timeout=100, check=False, stderr=subprocess.PIPE, text=True)

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert report.read_text().strip() == step.value
    check_sound(folder)
    clock = ManualClock()
    engine = open_engine(folder, KillSwitch(), clock)
    try:
        clock.advance(seconds=TTL + 1)
        was_released = action == "release" and not [lock for lock in engine.list_owners() if lock.owner == "a"]
        job = Job(engine)
        is_forgotten = job.record.fence == 1
        assert was_released or not is_forgotten
        undone = clean_run(epochs=(0, 1) if job.record.committed == 1 else (0,))
        assert contents(job.table) == undone
        if job.record.committed < 1:
            job.write(1)
            job.commit(1)
        assert contents(job.table) == clean_run()
        assert engine.owners._records[job.table.info.id, "a"].state == b"through 1"
        job = Job(engine)
        assert contents(job.table) == clean_run()
    finally:
        engine.close()
    check_sound(folder)


def test_the_actions_write_what_the_matrix_says(template, tmp_path):
    """Else a step would be left out: one more occurrence than there are is never reached."""
    for action, (records, frames) in WRITES.items() if FULL else [("evict", WRITES["evict"])]:
        for step, count in ((Step.BEFORE_RECORD, records), (Step.BEFORE_APPLY, frames)):
            folder = tmp_path / f"{action}-{step.name}"
            shutil.copytree(template, folder)
            worker = [sys.executable, "-m", "tests.faults.owner_worker", str(folder), action, step.value]
            died = subprocess.run([*worker, str(count + 1), str(tmp_path / "report")], timeout=100, check=False)
            assert died.returncode == 0, (action, step)
