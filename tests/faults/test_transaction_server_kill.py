"""kill -9 of a server at every step of a transaction that a client runs, and of the client at the same steps.

A server that dies is started again at its address, and its client goes on by itself: with the commit, or, if what it
had staged was not sealed, with the block once more. A client that dies leaves the server with the call half done, which
goes on; another one runs the block again. In the end both tables are those of one clean run, and so is what their
changelogs make.
"""

import shutil
import signal
from pathlib import Path

import pytest
from tests.faults.attacker import Ticks
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.killing import opened
from tests.faults.processes import Process, Serving
from tests.faults.servers import PATIENCE_SECONDS
from tests.faults.transaction_points import COMMITTING, STAGING, named, points
from tests.faults.transaction_server_worker import serve, work
from tests.faults.transaction_witness import Made, state
from tests.faults.transaction_worker import APP, CONFIG, transact

import kolk
from kolk.errors import StagingGone
from kolk.model.transaction import Verdict
from kolk.testing.faults import Step
from kolk.testing.soundness import check_sound

BEFORE_DONE = (Step.BEFORE_RECORD, 2)
ALL = [*points(STAGING), *points(COMMITTING), BEFORE_DONE]
OF_SERVERS = [
    (Step.HALF_STAGE, 4),
    (Step.AFTER_SEAL, 1),
    (Step.AFTER_SEAL, 2),
    (Step.BEFORE_RECORD, 1),
    (Step.AFTER_RECORD, 1),
    (Step.HALF_APPEND, 6),
    (Step.AFTER_APPLY, 2),
    BEFORE_DONE,
    (Step.AFTER_UNSTAGE, 1),
]
OF_CLIENTS = [
    (Step.AFTER_STAGE, 5),
    (Step.AFTER_SEAL, 1),
    (Step.BEFORE_RECORD, 1),
    (Step.AFTER_RECORD, 1),
    (Step.AFTER_APPEND, 6),
    BEFORE_DONE,
]
OTHER = {"other"}
UNSEALED = {Step.BEFORE_STAGE, Step.HALF_STAGE, Step.AFTER_STAGE, Step.BEFORE_SEAL}


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made.folder, tmp_path / "data")
    return tmp_path / "data"


def is_forgotten(step: Step, occurrence: int) -> bool:
    """Whether a server that died there has forgotten rows that it had acknowledged. It writes the magic bytes, the head
    and the first batch of the first table before it acknowledges any, and the seal of the second table last."""
    if step in (Step.BEFORE_STAGE, Step.HALF_STAGE):
        return occurrence > 3
    if step is Step.AFTER_STAGE:
        return 3 < occurrence < 10
    return step in (Step.BEFORE_SEAL, Step.AFTER_SEAL) and occurrence == 1


def run_again(db: kolk.Database) -> str:
    """What a job does that is started again: run the block, and once more if what it stages is cleared away meanwhile,
    because the commit of the run before comes to its end."""
    try:
        return transact(db, 2)
    except StagingGone:
        return transact(db, 2)


def check_clean(made: Made, db: kolk.Database) -> None:
    """It is there once, and nothing that was staged for it is left."""
    assert state(db) == made.second
    assert Ticks(PATIENCE_SECONDS).until(lambda: {one.app for one in db.transactions() if one.state != "done"} == OTHER)
    assert transact(db, 2) == "duplicate"
    assert state(db) == made.second


def check_other(made: Made, folder: Path) -> None:
    """When everybody is dead: what another application had staged is still there to be committed."""
    check_sound(folder)
    engine, db = opened(folder, CONFIG)
    with db:
        assert engine.commit_transaction(made.other).verdict is Verdict.COMMITTED
        assert state(db) == made.second_and_other
        assert {(one.app, one.version, one.state) for one in db.transactions()} == {
            (APP, 2, "done"),
            ("other", 1, "done"),
        }


@named(ALL if IS_FULL else OF_SERVERS)
def test_a_transaction_goes_on_when_its_server_dies_in_the_middle_of_a_call(made, folder, step, occurrence):
    report = folder.with_name("report")
    with Serving(serve, folder) as server, Process(work, server.url) as client:
        assert client.said() == "ready"
        server.ask((step, occurrence, report, None))
        client.pipe.send("go")
        assert server.end() == -signal.SIGKILL, f"it was done, and never was {step.value} {occurrence}"
        assert report.read_text() == f"{step.value}\n"
        with Serving(serve, folder, server.url), kolk.connect(server.url, timeout=PATIENCE_SECONDS) as db:
            said = client.said()
            assert client.end() == 0
            assert said == ["StagingGone"] * is_forgotten(step, occurrence) + ["committed"]
            check_clean(made, db)
    check_other(made, folder)
    write_figures("kill -9 of a server at a step of a transaction", times=1, lost=0, duplicated=0)


@named([point for point in ALL if "HALF" not in point[0].name] if IS_FULL else OF_CLIENTS)
def test_a_transaction_whose_client_dies_in_the_middle_of_a_call_is_whole_or_not_there(made, folder, step, occurrence):
    report = folder.with_name("report")
    with Serving(serve, folder) as server, Process(work, server.url) as client:
        assert client.said() == "ready"
        server.ask((step, occurrence, report, client.pid))
        client.pipe.send("go")
        assert client.end() == -signal.SIGKILL
        assert report.read_text() == f"{step.value}\n"
        with kolk.connect(server.url, timeout=PATIENCE_SECONDS) as db:
            is_asked = step not in UNSEALED | {Step.AFTER_SEAL}
            assert run_again(db) == ("duplicate" if is_asked else "committed")
            check_clean(made, db)
    check_other(made, folder)
    write_figures("kill -9 of a client at a step of a transaction", times=1, lost=0, duplicated=0)
