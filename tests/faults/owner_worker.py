"""A process that does one thing as an owner, and dies at a step of it.

Run as ``python -m tests.faults.owner_worker folder action step occurrence report``. The folder has been made by
``prepared``: the owner ``a`` has committed an epoch and left another one uncommitted. The kill switch is armed once the
database is open, so steps are counted from the beginning of the action.
"""

import sys
from pathlib import Path

import kolk
from kolk.client.writes import put_write
from kolk.engine.database import Engine
from kolk.model.ids import OwnerTag
from kolk.model.options import MergeMode
from kolk.model.owner import Claim, OwnerRecord
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.clock import ManualClock
from kolk.testing.faults import KillingDisk, KillingKv, KillingMeta, KillSwitch, Step

TTL = 30.0
KEYS = range(40)
PARTS = 2
SCHEMA = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("pv", "bigint", agg="sum"),
        kolk.Column("note", "string", agg="listagg"),
        kolk.Column("title", "string", agg="last_value"),
    ],
    "k",
)
ACTIONS = ("begin", "other columns", "evict", "write", "commit", "rest", "release")
CONFIG = kolk.EngineConfig(kv_block_cache_bytes=2**23, kv_write_buffer_bytes=2**23)


class Job:
    """One owner's work: each epoch adds to every key once, in two puts."""

    def __init__(self, engine: Engine, owner: str = "a", columns: tuple[str, ...] = ("pv", "note")) -> None:
        self.engine = engine
        self.table = kolk.Database(engine, lambda: None, Rng()).table("t")
        self.record = self.begin(owner, columns)
        self.seq = 0
        self.seqs: dict[int, dict[str, int]] = {}

    def begin(self, owner: str, columns: tuple[str, ...]) -> OwnerRecord:
        claim = Claim(owner=owner, columns=columns, ttl_seconds=TTL)
        return self.engine.begin_owner(self.table.info.id, claim)

    def write(self, epoch: int) -> None:
        """All puts of an epoch."""
        for part in range(PARTS):
            rows = [{"k": key, "pv": 10**epoch, "note": f"e{epoch}"} for key in KEYS if key % PARTS == part]
            self.seq += 1
            write = put_write(SCHEMA, rows, ("pv", "note"), MergeMode.ACCUMULATE)
            tag = OwnerTag(self.record.number, self.record.fence, 0, epoch, self.seq)
            ends = self.engine.put_owned(self.table.info.id, write, tag)
            self.seqs.setdefault(epoch, {}).update(dict.fromkeys(ends, self.seq))

    def commit(self, epoch: int) -> None:
        """Let an epoch stand, and say so in the state."""
        record = self.record
        state = f"through {epoch}".encode()
        seqs = self.seqs.get(epoch, {})
        self.engine.commit_owner(self.table.info.id, record.number, record.fence, epoch, seqs, state)


def open_engine(folder: Path, switch: KillSwitch, clock: ManualClock) -> Engine:
    """The database, with the kill switch wherever an owner passes."""
    return Engine(
        Folder(folder),
        CONFIG,
        clock=clock,
        disk=KillingDisk(switch),
        open_kv=lambda path, memory: KillingKv(path, memory, switch),
        open_meta=lambda path: KillingMeta(path, switch),
    )


def prepared(folder: Path) -> None:
    """Epoch 0 is committed, epoch 1 is written and not committed, and others have written too."""
    engine = open_engine(folder, KillSwitch(), ManualClock())
    db = kolk.Database(engine, lambda: None, Rng())
    table = db.create_table("t", SCHEMA, buckets=2)
    table.put([{"k": key, "title": "x"} for key in KEYS if key % 3 == 0], columns=["title"])
    job = Job(engine)
    job.write(0)
    job.commit(0)
    job.write(1)
    table.put([{"k": key, "title": "y"} for key in KEYS if key % 5 == 0], columns=["title"])
    engine.close()


def act(engine: Engine, clock: ManualClock, action: str) -> Job | None:
    """What is done before the switch is armed; the answer is who acts then."""
    if action in ("write", "commit", "rest", "release"):
        job = Job(engine)
        if action != "write":
            job.write(1)
        return job
    if action == "evict":
        clock.advance(seconds=TTL + 1)
    return None


def main() -> None:
    folder, action, step, occurrence, report = sys.argv[1:]
    switch, clock = KillSwitch(), ManualClock()
    engine = open_engine(Path(folder), switch, clock)
    job = act(engine, clock, action)
    switch.__init__(Step(step), int(occurrence), report=Path(report))
    if action == "begin":
        Job(engine)
    elif action == "other columns":
        Job(engine, columns=("note", "title"))
    elif action == "evict":
        Job(engine, "b", ("pv",))
    elif job is not None and action == "write":
        job.write(1)
    elif job is not None and action == "commit":
        job.commit(1)
    elif job is not None and action == "rest":
        engine.rest_owner(job.table.info.id, job.record.number, job.record.fence)
    elif job is not None:
        engine.release_owner(job.table.info.id, "a", job.record.fence)


if __name__ == "__main__":
    main()
