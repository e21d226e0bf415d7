"""What a process does that dies at a step of a transaction: of staging, committing, clearing up or recovering."""

import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.killing import opened

import kolk
from kolk.client.database import Database
from kolk.client.writes import put_write
from kolk.model.options import MergeMode
from kolk.model.transaction import CommitRequest, Staging
from kolk.testing.faults import KillSwitch, Step

CONFIG = kolk.EngineConfig(kv_block_cache_bytes=2**22, kv_write_buffer_bytes=2**22, put_rows_max=30)
TOTALS, VISITS = "totals", "visits"
APP = "job"
BUCKETS = 3
SCHEMA = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("total", "bigint", agg="sum"),
        kolk.Column("most", "int", agg="max"),
        kolk.Column("last", "string", agg="last_value"),
        kolk.Column("names", "string", agg="listagg"),
        kolk.Column("seen", "bigint", agg="count"),
        kolk.Column("times", "bigint", agg="count_rows"),
    ],
    primary_key=["k"],
)

Row = dict[str, Any]


def rows(version: int, keys: Sequence[int] = range(20)) -> list[Row]:
    """What a version puts; two rows for each key, so that a transaction of it has two frames in a bucket."""
    return [
        {
            "k": k,
            "total": version + part,
            "most": version * k,
            "last": f"{version}.{part}",
            "names": f"{version}",
            "seen": k % 3 or None,
        }
        for part in range(2)
        for k in keys
    ]


def create_tables(db: Database) -> None:
    """Two tables of three buckets each, with a version of each."""
    for name in (TOTALS, VISITS):
        db.create_table(name, SCHEMA, buckets=BUCKETS, merge_engine="aggregation")


def transact(db: Database, version: int, app: str = APP, *, truncates: bool = False) -> str:
    """A version of both tables: what became of it."""
    with db.transaction(app, version) as tx:
        for name in (TOTALS, VISITS):
            if truncates:
                tx.truncate(table=name)
            for piece in (rows(version)[:20], rows(version)[20:]):
                tx.put(piece, table=name)
    return tx.verdict


def staged_beside(db: Database) -> CommitRequest:
    """What another application has staged and sealed, of some columns of both tables, and is about to commit."""
    service, columns, handles = db._link.service, ("names", "seen"), {}
    for number, name in enumerate((TOTALS, VISITS)):
        info = db.table(name).info
        write = put_write(info.schema, rows(9)[:20], columns, MergeMode.ACCUMULATE)
        staging = Staging(
            handle=f"{number:032x}",
            app="other",
            version=1,
            table=info.id,
            schema_id=write.schema_id,
            columns=tuple(info.schema.column(column).id for column in columns),
        )
        service.stage(staging, 0, write.rows)
        service.seal(staging, 1)
        handles[info.id] = (staging.handle,)
    return CommitRequest(app="other", version=1, handles=handles)


def die(folder: Path, step: Step, occurrence: int, report: Path, version: int = 2, truncates: bool = False) -> None:
    """Begin, commit a version and die at this step. Steps are counted once the tables are open, but for version 0,
    which only begins: the steps are those of recovery then."""
    if not version:
        opened(folder, CONFIG, KillSwitch(step, occurrence, report=report))
        os._exit(0)
    switch = KillSwitch()
    db = ready(folder, switch)
    switch.arm(step, occurrence, report=report)
    transact(db, version, truncates=truncates)
    os._exit(0)


def ready(folder: Path, switch: KillSwitch) -> Database:
    """The database, with the buckets of its tables open."""
    _, db = opened(folder, CONFIG, switch)
    for name in (TOTALS, VISITS):
        db.table(name).scan().close()
    return db


def live(folder: Path, seed: int, account: Path, starts: dict[str, int]) -> None:
    """Commit version after version, of two applications in turn, until somebody kills the process; note what is
    answered."""
    handle = os.open(account, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    rng = random.Random(seed)
    try:
        engine, db = opened(folder, CONFIG)
        versions = dict(starts)
        for _ in range(1_000_000):
            app = rng.choice(sorted(versions))
            verdict = transact(db, versions[app], app)
            line = {"app": app, "version": versions[app], "verdict": verdict}
            os.write(handle, json.dumps(line).encode() + b"\n")
            versions[app] += 1
            if rng.random() < 0.1:
                engine.reap()
                engine.tick()
    except BaseException as error:  # noqa: BLE001 - told, and the end of the process
        os.write(handle, json.dumps({"failed": repr(error)}).encode() + b"\n")
        sys.stderr.write(f"{error!r}\n")
        os._exit(1)
