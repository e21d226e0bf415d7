"""partitions: what cutting a table costs a put, and what thousands of buckets take of memory."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import pyarrow as pa

import kolk
from bench.measure import Figure, Scale, race
from bench.workload import SCHEMA as ROWS
from bench.workload import Workload
from kolk.engine.database import Engine
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng

_COLUMNS = [kolk.Column("part", "int"), *(kolk.Column(column.name, column.type) for column in ROWS.columns)]
_SCHEMA = kolk.Schema(_COLUMNS, primary_key=["part", "id"])
_BUCKETS = 4
# Partitions that a put touches, rows a put, puts a round, target. Mixed over a hundred each share is tiny.
_CASES = ((1, 10_000, 5, 0.7), (4, 10_000, 5, 0.7), (4, 100_000, 1, 0.7), (100, 100_000, 1, None))
_MANY = 500
_SPAWN = get_context("spawn")
_MIB = 2**20


def partitions(scale: Scale) -> Iterator[Figure]:
    """Puts beside the same puts to a table that is not cut, and many partitions in a process of their own."""
    with TemporaryDirectory() as folder, kolk.connect(folder) as db:
        workload = Workload(scale.keys)
        flat = db.create_table("flat", _SCHEMA, buckets=_BUCKETS, bucket_key=["id"])
        cut = {count: _partitioned(db, f"cut{count}") for count in sorted({case[0] for case in _CASES})}
        for batch in workload.load():
            flat.put(_in_parts(batch, 1))
            for count, table in cut.items():
                table.put(_in_parts(batch, count))
        for count, rows, puts, target in _CASES:
            yield _race(workload, flat, cut[count], (count, rows, puts, target), scale.rounds)
    with TemporaryDirectory() as folder, ProcessPoolExecutor(1, _SPAWN) as fresh:
        yield from fresh.submit(_open_many, Path(folder)).result()


def _partitioned(db: kolk.Database, name: str) -> kolk.Table:
    return db.create_table(name, _SCHEMA, buckets=_BUCKETS, partition_by=["part"])


def _in_parts(batch: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """The rows, spread over so many partitions."""
    parts = pa.array(batch.column("id").to_numpy() // 2 % count, pa.int32())
    return pa.RecordBatch.from_arrays([parts, *batch.columns], schema=_SCHEMA.arrow)


def _race(
    workload: Workload,
    flat: kolk.Table,
    cut: kolk.Table,
    case: tuple[int, int, int, float | None],
    rounds: int,
) -> Figure:
    count, rows, puts, target = case
    updates = [[workload.updates(rows) for _ in range(puts)] for _ in range(rounds)]
    parted = [[_in_parts(batch, count) for batch in turn] for turn in updates]
    whole = [[_in_parts(batch, 1) for batch in turn] for turn in updates]

    def put_all(table: kolk.Table, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            table.put(batch)

    rates = race(lambda turn: put_all(cut, parted[turn]), lambda turn: put_all(flat, whole[turn]), rounds, rows * puts)
    name = f"{rows:,} rows a put, {count} partition{'s' * (count > 1)}"
    return Figure(bench="partitions", case=name, target=target, note=f"{_BUCKETS} buckets each, beside none", **rates)


def _open_many(folder: Path) -> list[Figure]:
    """All of a table's many buckets are written, then each is asked for a row; memory is read off before and after."""
    before, ids = _resident(), 2 * np.arange(100)
    workload = Workload(1_000)
    engine = Engine(Folder(folder), kolk.EngineConfig(durability="process"))
    with kolk.Database(engine, engine.close, Rng()) as db:
        table = _partitioned(db, "many")
        start = perf_counter()
        for part in range(_MANY):
            rows = workload.rows(ids)
            parts = pa.array(np.full(len(ids), part), pa.int32())
            table.put(pa.RecordBatch.from_arrays([parts, *rows.columns], schema=_SCHEMA.arrow))
        filled = perf_counter() - start
        grown = _resident() - before
        start = perf_counter()
        for part in range(_MANY):
            assert table.get_one(part=part, id=0) is not None
        asked = perf_counter() - start
        with table.scan() as scan:
            assert scan.to_arrow().num_rows == _MANY * len(ids)
            open_at_once, handles = _resident() - before, _handles()
        engine.tick()  # what a connection's own thread does every minute
        note = (
            f"{grown / _MIB:,.0f} MiB after filling them; with all open at once, for a scan, {open_at_once / _MIB:,.0f}"
            f" MiB and {handles:,} file handles; a minute later {(_resident() - before) / _MIB:,.0f} MiB and"
            f" {_handles():,}"
        )
    case = f"{_MANY} partitions of {_BUCKETS} buckets"
    return [
        Figure(bench="partitions", case=f"{case}, filled", rate=_MANY * len(ids) / filled, note=note),
        Figure(
            bench="partitions",
            case=f"{case}, a row of each",
            rate=_MANY / asked,
            note=f"{1000 * asked / _MANY:.1f} ms each, most of them of a bucket that has to be opened",
        ),
    ]


def _handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
