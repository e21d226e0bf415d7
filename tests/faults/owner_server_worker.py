"""A server that dies at a step of an owner's call, or lets its client die there; and the client, each in a process.

Both do as they are told through pipes: the client says when its action is about to begin, and then the server is aimed.
"""

from multiprocessing.connection import Connection
from pathlib import Path

from tests.faults.killing import AimedSwitch, opened
from tests.faults.owner_worker import ACTIONS, CONFIG, begin_and_commit
from tests.faults.processes import serve_aimed
from tests.faults.servers import PATIENCE_SECONDS

import kolk
from kolk.errors import CommitMismatch, EpochClosed, Fenced
from kolk.testing.clock import ManualClock


def serve(folder: Path, port: int, pipe: Connection) -> None:
    """Serve, with the buckets of the table open."""
    switch = AimedSwitch()
    engine, db = opened(folder, CONFIG, switch)
    db.table("t").scan().close()
    serve_aimed(engine, switch, port, pipe)


def work(url: str, action: str, pipe: Connection) -> None:
    """Do an action, whatever becomes of the server meanwhile, and the rest of the epoch. It says what was refused: a
    server that is not the same any more has forgotten what tasks have said, and the run is begun again."""
    refused = ""
    with kolk.connect(url, timeout=PATIENCE_SECONDS) as db:
        doing = ACTIONS[action](db._link.service, ManualClock())
        next(doing)
        pipe.send("ready")
        pipe.recv()
        try:
            for _ in doing:
                pass
        except (Fenced, EpochClosed, CommitMismatch) as error:
            refused = type(error).__name__
            begin_and_commit(db._link.service)
    pipe.send(refused)
