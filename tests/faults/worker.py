"""A process that writes until somebody kills it, and keeps an account of what it was told is done.

Run as ``python -m tests.faults.worker``. It waits for one line of JSON on its standard input, a ``Job``, so that
it can be started ahead. Then it opens the folder and lets every writer go on where the account says it was: first
the last acknowledged put once more, then the next one, which the process before may or may not have got through.
Each acknowledgement is a line in the account before the writer's next put begins, and a byte on standard output.
"""

import json
import os
import sys
import threading
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.puts import create_tables, perform, put_of

import kolk
from kolk.client.database import Database
from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.faults import KillingDisk, KillingKv, KillSwitch, Step

SMALL_FILES = EngineConfig(log_segment_bytes=256 * 1024, kv_write_buffer_bytes=1024 * 1024)
"""So small that logs roll and memtables are flushed all the time."""

_FOREVER = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to do: ``acked`` has the last acknowledged put of each writer, -1 for none."""

    folder: str
    account: str
    acked: list[int]
    durability: str = "machine"
    puts: int = _FOREVER
    """How many puts each writer does before the database is closed and the process ends well."""
    step: str | None = None
    occurrence: int = 1
    report: str | None = None

    def to_line(self) -> bytes:
        """As the worker reads it."""
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(slots=True)
class Account:
    """The file of acknowledgements. Thread-safe: every line is one write to its end."""

    path: str
    _handle: int = field(init=False)

    def __post_init__(self) -> None:
        self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, writer: int, seq: int, offsets: dict[str, int], *, again: bool) -> None:
        """Keep an acknowledgement, and tell whoever watches."""
        line = json.dumps({"writer": writer, "seq": seq, "offsets": offsets, "again": again})
        os.write(self._handle, line.encode() + b"\n")
        os.write(sys.stdout.fileno(), b".")


def open_database(folder: Path, durability: str, switch: KillSwitch) -> Database:
    """The database, with the kill switch wherever a put passes."""
    config = EngineConfig(
        durability=durability,
        log_segment_bytes=SMALL_FILES.log_segment_bytes,
        kv_write_buffer_bytes=SMALL_FILES.kv_write_buffer_bytes,
    )
    engine = Engine(
        Folder(folder, OsDisk()),
        config,
        disk=KillingDisk(switch),
        open_kv=lambda path, memory: KillingKv(path, memory, switch),
    )
    return Database(engine, engine.close, Rng())


def write(tables: dict[str, kolk.Table], writer: int, acked: int, puts: int, account: Account) -> None:
    """One writer's life: the last put again, then new ones."""
    try:
        if acked >= 0:
            account.note(writer, acked, perform(tables, put_of(writer, acked)), again=True)
        for seq in range(acked + 1, acked + 1 + puts):
            account.note(writer, seq, perform(tables, put_of(writer, seq)), again=False)
    except BaseException:  # noqa: BLE001 - printed, and the end of the whole process
        traceback.print_exc()
        os._exit(1)


def leave_with_the_parent() -> None:
    """Standard input ends when the parent does: nobody is left to kill us then."""
    sys.stdin.read()
    os._exit(2)


def main() -> None:
    job = Job(**json.loads(sys.stdin.readline()))
    threading.Thread(target=leave_with_the_parent, daemon=True).start()
    switch = KillSwitch(
        Step(job.step) if job.step else None,
        job.occurrence,
        report=Path(job.report) if job.report else None,
    )
    account = Account(job.account)
    with open_database(Path(job.folder), job.durability, switch) as db:
        tables = create_tables(db)
        threads = [
            threading.Thread(target=write, args=(tables, writer, acked, job.puts, account))
            for writer, acked in enumerate(job.acked)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    os._exit(0)


if __name__ == "__main__":
    main()
