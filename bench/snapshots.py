"""snapshot: how long one takes and how much it copies, what it is to read, and how much sooner a lost KV is back.

The floor of a first one is a copy of the same bytes, synced. A second one is taken after one row in a hundred was
changed, all over the table. A bucket whose KV is gone comes back from a snapshot and a tail of the log; the floor is
the same bucket without its snapshots, which replays all of it.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import kolk
from bench.measure import Figure, Scale, race
from bench.workload import Workload, count, open_table

_CHANGED = 100
"""One row in so many is changed before the second snapshot, and again before the KV is lost."""


def snapshot(scale: Scale) -> Iterator[Figure]:
    """One bucket, from its first snapshot to its loss."""
    workload, rows = Workload(scale.keys), scale.keys
    with TemporaryDirectory() as name:
        folder = Path(name) / "ours"
        with open_table(folder) as table:
            for batch in workload.load():
                table.put(batch)
            yield _first(table, Path(name), rows)
            table.put(workload.updates(rows // _CHANGED))
            yield _second(table, rows)
            rates = race(
                lambda _: count(table.scan(source="snapshot")), lambda _: count(table.scan()), scale.rounds, rows
            )
            note = "floor: the living rows"
            yield Figure(bench="snapshot", case="scan of a snapshot", target=0.5, note=note, **rates)
            table.put(workload.updates(rows // _CHANGED))
        yield _lost(folder, rows)


def _first(table: kolk.Table, folder: Path, rows: int) -> Figure:
    took, taken = _take(table)
    (kept,) = (folder / "ours" / "snapshots").glob("*/*/*/1")
    start = perf_counter()
    copied = shutil.copytree(kept, folder / "copy")
    for file in copied.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    least = perf_counter() - start
    note = f"{taken.size_bytes / 2**20:,.0f} MiB in {took * 1000:,.0f} ms; floor: a copy of them, synced"
    rates = {"rate": rows / took, "floor_rate": rows / least, "ratio": least / took}
    return Figure(bench="snapshot", case="the first", note=note, **rates)


def _second(table: kolk.Table, rows: int) -> Figure:
    took, taken = _take(table)
    share = taken.new_bytes / taken.size_bytes
    note = f"{share:.1%} of {taken.size_bytes / 2**20:,.0f} MiB copied, in {took * 1000:,.0f} ms"
    return Figure(bench="snapshot", case=f"after 1 row in {_CHANGED} changed", rate=rows / took, note=note)


def _take(table: kolk.Table) -> tuple[float, kolk.SnapshotInfo]:
    start = perf_counter()
    (taken,) = table.take_snapshot()
    return perf_counter() - start, taken


def _lost(folder: Path, rows: int) -> Figure:
    """The time until a lookup is answered, without the KV: with snapshots, and without."""
    took = _reopened(folder)
    shutil.rmtree(folder / "snapshots")
    least = _reopened(folder)
    note = f"{took * 1000:,.0f} ms from a snapshot and 1 change in {_CHANGED}; {least * 1000:,.0f} ms by the whole log"
    rates = {"rate": rows / took, "floor_rate": rows / least, "ratio": least / took}
    return Figure(bench="snapshot", case="a lost KV", target=1.5, note=note, **rates)


def _reopened(folder: Path) -> float:
    (kv,) = folder.glob("tables/*/*/*/kv")
    shutil.rmtree(kv)
    start = perf_counter()
    with open_table(folder) as table:
        assert table.get_one(id=0) is not None
        return perf_counter() - start
