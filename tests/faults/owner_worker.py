"""What a process does as an owner of columns that dies at a step of it.

The folder has been made by ``prepared``: the owners ``a`` and ``b`` have different columns of one table, and each has
committed an epoch and left more uncommitted. An action is a generator: what it does before it first yields is
there when steps begin to be counted, and what it does after it yields again is the rest of the epoch, for who lives to
write it.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.faults.killing import opened

import kolk
from kolk.client.service import Service
from kolk.client.writes import put_write
from kolk.codec.bucketing import bucket_of
from kolk.engine.database import Engine
from kolk.model.ids import OwnerTag, TableId
from kolk.model.options import MergeMode
from kolk.model.owner import Claim, OwnerRecord
from kolk.testing.clock import ManualClock
from kolk.testing.faults import KillSwitch, Step

CONFIG = kolk.EngineConfig(kv_block_cache_bytes=2**23, kv_write_buffer_bytes=2**23)
TTL = 30.0
PARTS = 2
"""The puts of an epoch."""
SCHEMA = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("pv", "bigint", agg="sum"),
        kolk.Column("note", "string", agg="listagg"),
        kolk.Column("title", "string", agg="last_value"),
        kolk.Column("seen", "bigint", agg="count"),
        kolk.Column("top", "bigint", agg="max"),
        kolk.Column("mark", "string", agg="last_value"),
    ],
    "k",
)
OWNED = {"a": ("pv", "note", "title"), "b": ("seen", "top")}
BUCKETS = 4
_BUCKET = bucket_of(pa.record_batch({"k": pa.array(range(80), pa.int32())}), (SCHEMA.column("k"),), BUCKETS).tolist()
KEYS = [key for key, bucket in enumerate(_BUCKET) if bucket < BUCKETS - 1]
STRAYS = [key for key, bucket in enumerate(_BUCKET) if bucket == BUCKETS - 1]
"""What only an attempt that fails puts, to a bucket that has nothing else."""
TASKS = [[key for key in KEYS if _BUCKET[key] < 2], [key for key in KEYS if _BUCKET[key] == 2], STRAYS]

Row = dict[str, Any]
Served = Service | Engine


def rows(owner: str, epoch: int, keys: Sequence[int] = KEYS) -> list[Row]:
    """What an owner puts in an epoch. Some keys are of one owner, some of both, some of one epoch only."""
    if owner == "a":
        return [
            {"k": key, "pv": 10**epoch, "note": f"e{epoch}", "title": f"t{epoch}"}
            for key in keys
            if key % 5 - epoch in (0, 1, 2)
        ]
    return [
        {"k": key, "seen": None if key % 7 == epoch else key, "top": (7 * key + 13 * epoch) % 31}
        for key in keys
        if key % 4 - epoch in (0, 1)
    ]


def marks(word: str, every: int) -> list[Row]:
    """What is put to a column that nobody owns."""
    return [{"k": key, "mark": word} for key in KEYS[::every]]


def clean_run(a: Sequence[int] = (0, 1), b: Sequence[int] = (0, 1)) -> dict[int, Row]:
    """The rows after these epochs of each owner, and nothing else of theirs, by key; what is null is left out."""
    found: dict[int, Row] = {}
    for row in (row for epoch in a for row in rows("a", epoch)):
        known = found.setdefault(row["k"], {})
        known["pv"] = known.get("pv", 0) + row["pv"]
        known["note"] = f"{known['note']},{row['note']}" if "note" in known else row["note"]
        known["title"] = row["title"]
    for row in (row for epoch in b for row in rows("b", epoch)):
        known = found.setdefault(row["k"], {})
        known["seen"] = known.get("seen", 0) + (row["seen"] is not None)
        known["top"] = max(row["top"], known.get("top", 0))
    for row in marks("x", 3) + marks("y", 5):
        found.setdefault(row["k"], {})["mark"] = row["mark"]
    return found


@dataclass
class Job:
    """What a writer has in its hand. Its server may go and come back meanwhile: then it has another ``service``."""

    service: Served
    table: TableId
    record: OwnerRecord
    seq: int = 0
    seqs: dict[int, dict[str, int]] = field(default_factory=dict)
    """The last puts of each epoch by bucket."""

    @property
    def name(self) -> str:
        return self.record.name

    def put(self, found: list[Row], epoch: int, ticket: int = 0) -> dict[str, int]:
        """One put; the answer is its number, by bucket."""
        self.seq += 1
        write = put_write(SCHEMA, found, OWNED[self.name], MergeMode.ACCUMULATE)
        tag = OwnerTag(self.record.number, self.record.fence, ticket, epoch, self.seq)
        return dict.fromkeys(self.service.put_owned(self.table, write, tag), self.seq)

    def write(self, epoch: int, parts: Sequence[int] = range(PARTS)) -> None:
        """All puts of an epoch, or some."""
        for part in parts:
            put = self.put(rows(self.name, epoch)[part::PARTS], epoch)
            self.seqs.setdefault(epoch, {}).update(put)

    def commit(self, epoch: int) -> None:
        """Let an epoch stand, and say so in the state."""
        seqs, state = self.seqs.get(epoch, {}), f"through {epoch}".encode()
        self.service.commit_owner(self.table, self.record.number, self.record.fence, epoch, seqs, state)

    def begin_task(self, epoch: int, task: int) -> int:
        """The ticket of one more attempt."""
        return self.service.begin_task(self.table, self.record.number, self.record.fence, epoch, task).ticket

    def put_task(self, epoch: int, task: int, ticket: int) -> dict[str, int]:
        """What an attempt at a task puts, which is all that an epoch has of its buckets."""
        keys = TASKS[task]
        if keys is STRAYS:
            return self.put([{"k": key, "pv": 1, "note": "stray", "title": "stray"} for key in keys], epoch, ticket)
        return self.put(rows(self.name, epoch, keys), epoch, ticket)

    def seal(self, task: int, ticket: int, put: dict[str, int]) -> None:
        """Say that an attempt is through."""
        self.service.seal_task(self.table, self.record.number, self.record.fence, task, ticket, put, b"done")

    def commit_tasks(self, epoch: int, tickets: dict[int, int], puts: dict[int, dict[str, int]]) -> None:
        """Let what these tickets have put stand, and nothing else."""
        tasks = {bucket: (tickets[task], seq) for task in tickets for bucket, seq in puts[task].items()}
        state = f"through {epoch}".encode()
        self.service.commit_tasks(self.table, self.record.number, self.record.fence, epoch, tasks, state)

    def finish_tasks(self, tickets: dict[int, int], puts: dict[int, dict[str, int]]) -> None:
        """Say of each attempt that it is through, and let them stand."""
        for task, ticket in tickets.items():
            self.seal(task, ticket, puts[task])
        self.commit_tasks(1, tickets, puts)


def begin(service: Served, owner: str = "a", columns: Sequence[str] = (), **claim: Any) -> Job:
    """Take columns, those that are usual or others, and take back what was left."""
    [table] = [info.id for info in service.tables()]
    asked = Claim(owner=owner, columns=columns or OWNED[owner], ttl_seconds=TTL, **claim)
    return Job(service, table, service.begin_owner(table, asked))


def prepared(folder: Path) -> dict[str, Job]:
    """Of both owners epoch 0 is committed, and epoch 1 is written and not committed, nor is what ``a`` wrote after it;
    the answer is what they have in their hands."""
    engine, db = opened(folder, CONFIG, clock=ManualClock())
    with db:
        table = db.create_table("t", SCHEMA, buckets=BUCKETS)
        table.put(marks("x", 3), columns=["mark"])
        jobs = [begin(engine, owner) for owner in OWNED]
        for job in jobs:
            job.write(0)
            job.commit(0)
        for part in range(PARTS):
            for job in jobs:
                job.write(1, [part])
        jobs[0].write(2)
        table.put(marks("y", 5), columns=["mark"])
        return {job.name: job for job in jobs}


# --- actions


def recover(service: Served, clock: ManualClock) -> Iterator[None]:
    """The owner begins again."""
    yield
    job = begin(service)
    yield
    job.write(1)
    job.commit(1)


def change_columns(service: Served, clock: ManualClock) -> Iterator[None]:
    """The owner begins again, with one column more, and one less."""
    yield
    begin(service, columns=("note", "title", "mark"))
    yield
    begin_and_commit(service)


def resume(service: Served, clock: ManualClock) -> Iterator[None]:
    """The owner begins again, and knows that the last epoch was to be committed."""
    yield
    begin(service, resume_epoch=1)


def evict(service: Served, clock: ManualClock) -> Iterator[None]:
    """The owner's time is up, and somebody else takes one of its columns."""
    clock.advance(seconds=TTL + 1)
    yield
    begin(service, "c", ("pv",))


def write(service: Served, clock: ManualClock) -> Iterator[None]:
    """An epoch is written."""
    job = begin(service)
    yield
    job.write(1)
    yield
    job.commit(1)


def commit(service: Served, clock: ManualClock) -> Iterator[None]:
    """It is committed."""
    job = begin(service)
    job.write(1)
    yield
    job.commit(1)


def rest(service: Served, clock: ManualClock) -> Iterator[None]:
    """The owner lets its columns go, with an epoch that is not committed."""
    job = begin(service)
    job.write(1)
    yield
    service.rest_owner(job.table, job.record.number, job.record.fence)
    yield
    begin_and_commit(service)


def release(service: Served, clock: ManualClock) -> Iterator[None]:
    """The owner is forgotten."""
    job = begin(service)
    job.write(1)
    yield
    service.release_owner(job.table, "a", job.record.fence, number=job.record.number)
    yield
    begin_and_commit(service)


def work_together(service: Served, clock: ManualClock) -> Iterator[None]:
    """Both owners write and commit, in turns."""
    jobs = [begin(service, owner) for owner in OWNED]
    yield
    for part in range(PARTS):
        for job in jobs:
            job.write(1, [part])
    for job in jobs:
        job.commit(1)


def begin_tasks(service: Served, clock: ManualClock) -> Iterator[None]:
    """Each task of a run has an attempt, and the first another one."""
    job = begin(service, attempt="run")
    yield
    tickets = {task: job.begin_task(1, task) for task in (0, 1, 0)}
    yield
    job.finish_tasks(tickets, {task: job.put_task(1, task, ticket) for task, ticket in tickets.items()})


def try_tasks_again(service: Served, clock: ManualClock) -> Iterator[None]:
    """An attempt at each task has failed after its put, and another one puts: that of the first is taken back."""
    job = begin(service, attempt="run")
    for task in (0, 1):
        job.put_task(1, task, job.begin_task(1, task))
    yield
    tickets, puts = {}, {}
    for task in (0, 1):
        tickets[task] = job.begin_task(1, task)
        puts[task] = job.put_task(1, task, tickets[task])
    yield
    job.finish_tasks(tickets, puts)


def seal_tasks(service: Served, clock: ManualClock) -> Iterator[None]:
    """The attempts say that they are through."""
    job = begin(service, attempt="run")
    tickets = {task: job.begin_task(1, task) for task in (0, 1)}
    puts = {task: job.put_task(1, task, ticket) for task, ticket in tickets.items()}
    yield
    for task in (0, 1):
        job.seal(task, tickets[task], puts[task])
    yield
    job.commit_tasks(1, tickets, puts)


def commit_tasks(service: Served, clock: ManualClock) -> Iterator[None]:
    """They are committed; what a third task has left is not named, so it is taken back."""
    job = begin(service, attempt="run")
    tickets = {task: job.begin_task(1, task) for task in range(3)}
    puts = {task: job.put_task(1, task, ticket) for task, ticket in tickets.items()}
    for task in (0, 1):
        job.seal(task, tickets[task], puts[task])
    yield
    del tickets[2]
    job.commit_tasks(1, tickets, puts)


def begin_and_commit(service: Served) -> None:
    """What an owner does that has let go of its columns, or has lost what it held: all of the epoch, anew."""
    job = begin(service)
    job.write(1)
    job.commit(1)


ACTIONS = {
    each.__name__.replace("_", " "): each
    for each in (
        recover, change_columns, resume, evict, write, commit, rest, release, work_together, begin_tasks,
        try_tasks_again, seal_tasks, commit_tasks,
    )
}  # fmt: skip


def act(folder: Path, action: str, switch: KillSwitch) -> Iterator[Engine]:
    """Open the table and do an action: it yields before and after what its steps are counted of."""
    clock = ManualClock()
    engine, db = opened(folder, CONFIG, switch, clock)
    db.table("t").scan().close()
    doing = ACTIONS[action](engine, clock)
    next(doing)
    yield engine
    next(doing, None)  # what comes then is not done
    yield engine


def die(folder: Path, step: Step, occurrence: int, report: Path, action: str) -> None:
    """Do it, and die at this step."""
    switch = KillSwitch()
    acting = act(folder, action, switch)
    next(acting)
    switch.arm(step, occurrence, report=report)
    next(acting)
    os._exit(0)
