"""What a process does that dies at a step of taking, leasing, letting go, dropping or restoring snapshots."""

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.killing import opened

import kolk
from kolk.client.database import Database
from kolk.testing.faults import KillSwitch, Step

CONFIG = kolk.EngineConfig(kv_block_cache_bytes=2**22, kv_write_buffer_bytes=2**22, log_segment_bytes=4_096)
SCHEMA = kolk.Schema([kolk.Column("id", "int"), kolk.Column("n", "int"), kolk.Column("pad", "string")], "id")
BUCKETS = 2
LEASE = "kept"
HOLDER = 7
TTL_SECONDS = 86_400.0


def rows(n: int, ids: range = range(40)) -> list[dict[str, Any]]:
    """A row for each id, all alike."""
    return [{"id": id, "n": n, "pad": "x" * 100} for id in ids]


def take(db: Database) -> None:
    """One more snapshot, with which an older one goes."""
    db.table("t").take_snapshot()


def lease(db: Database) -> None:
    """One more lease."""
    table = db.table("t")
    db._link.service.acquire_lease("new", HOLDER, {table.info.id: None}, TTL_SECONDS)


def renew(db: Database) -> None:
    """The lease for longer."""
    db._link.service.renew_lease(LEASE, db.describe_lease(LEASE).generation, 2 * TTL_SECONDS)


def release(db: Database) -> None:
    """A bucket of the lease is let go."""
    db._link.service.release_lease(LEASE, db.describe_lease(LEASE).generation, {"t": ["0"]})


def drop_lease(db: Database) -> None:
    """The lease ends, and with it its snapshots go."""
    db.drop_lease(LEASE)


def drop_table(db: Database) -> None:
    """The table goes with its snapshots, leased or not."""
    db.drop_table("t")


def restore(db: Database) -> None:
    """Buckets whose KV is lost come back."""
    db.table("t").scan().to_arrow()


DEEDS: dict[str, Callable[[Database], None]] = {
    each.__name__: each for each in (take, lease, renew, release, drop_lease, drop_table, restore)
}


def die(folder: Path, step: Step, occurrence: int, report: Path, deed: str) -> None:
    """Do it, and die at this step; what is acknowledged before is in the folder already."""
    _, db = opened(folder, CONFIG, KillSwitch(step, occurrence, report=report))
    DEEDS[deed](db)
    os._exit(0)


def live(folder: Path, seed: int, account: Path) -> None:
    """Put, take, lease, release and drop at random until somebody kills the process, and note what is done."""
    rng = random.Random(seed)
    handle = os.open(account, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(**what: Any) -> None:
        os.write(handle, json.dumps(what).encode() + b"\n")

    try:
        engine, db = opened(folder, CONFIG)
        table = db.table("t")
        service, number = db._link.service, table.info.id
        for _ in range(1_000_000):
            chance = rng.random()
            if chance < 0.5:
                put = {"n": rng.randrange(10**9), "ids": sorted(rng.sample(range(40), rng.randint(1, 20)))}
                note(putting=put)
                table.put([{"id": id, "n": put["n"], "pad": "x" * 100} for id in put["ids"]])
                note(put=put)
            elif chance < 0.75:
                table.take_snapshot()
            elif chance < 0.85:
                id = f"l{rng.randrange(4)}"
                note(dropping=id)
                db.drop_lease(id)
                note(dropped=id)
                note(leasing=id)
                state = service.acquire_lease(id, rng.randrange(2**100), {number: None}, TTL_SECONDS)
                note(leased=id, offsets=dict(state.tables["t"].offsets), snapshots=dict(state.tables["t"].snapshots))
            elif chance < 0.95:
                engine.reap()
                engine.tick()
            else:
                for tablet in engine._tablets.opened():
                    tablet.flush()
    except BaseException as error:  # noqa: BLE001 - told, and the end of the process
        note(failed=repr(error))
        sys.stderr.write(f"{error!r}\n")
        os._exit(1)
