"""A server that dies at a step of a transaction, or lets its client die there; and the client, each in a process."""

from multiprocessing.connection import Connection
from pathlib import Path

from tests.faults.killing import AimedSwitch, opened
from tests.faults.processes import serve_aimed
from tests.faults.servers import PATIENCE_SECONDS
from tests.faults.transaction_worker import CONFIG, TOTALS, VISITS, transact

import kolk
from kolk.errors import StagingGone


def serve(folder: Path, port: int, pipe: Connection) -> None:
    """Serve, with the buckets of both tables open."""
    switch = AimedSwitch()
    engine, db = opened(folder, CONFIG, switch)
    for name in (TOTALS, VISITS):
        db.table(name).scan().close()
    serve_aimed(engine, switch, port, pipe)


def work(url: str, pipe: Connection) -> None:
    """Commit version 2, whatever becomes of the server meanwhile. It says what became of each run of the block: a
    server that was killed before it had sealed the rows has forgotten them, and the block is run again."""
    said: list[str] = []
    with kolk.connect(url, timeout=PATIENCE_SECONDS) as db:
        db.tables()
        pipe.send("ready")
        pipe.recv()
        while not said or said[-1] == StagingGone.__name__:
            try:
                said.append(transact(db, 2))
            except StagingGone as error:
                said.append(type(error).__name__)
    pipe.send(said)
