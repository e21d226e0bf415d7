"""reopen, memory: what only a process of its own can show. Linux only."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from bench.floor import kv_memory
from bench.measure import Figure, Scale
from bench.workload import LOAD_ROWS, Workload, open_table
from kolk.storage.kv import Kv
from kolk.tablet.records import APPLIED, applied_offset

_SPAWN = get_context("spawn")
_PUT_ROWS = 10_000
_MILLION = 1_000_000
_WARM = 3  # millions of rows
_FLAT = 0.8  # the least that the size when warm may be of the size at the end
_STEP = 7_654_321  # shares no factor with a power of ten: in steps of it every key comes once, all over the table


def reopen(scale: Scale) -> Iterator[Figure]:
    """From connect to the first answer, after kill -9 in the middle of a put, and after a clean close."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "ours"
        acknowledged = _write_until_killed(folder, scale.keys)
        applied = _applied(folder, Path(name) / "copy")
        took, end = _open(folder)
        assert end >= acknowledged, "an acknowledged put is gone"
        note = f"{took * 1000:,.0f} ms, replayed {end - applied:,} of {end:,} changes"
        yield Figure(bench="reopen", case="after kill -9", rate=(end - applied) / took, note=note)
        yield Figure(bench="reopen", case="after close", rate=0, note=f"{_open(folder)[0] * 1000:,.0f} ms")


def memory(scale: Scale) -> Iterator[Figure]:
    """The resident size while distinct rows are put, whose ratio says how flat it stays, and then scanned."""
    with TemporaryDirectory() as folder, ProcessPoolExecutor(1, _SPAWN) as fresh:
        yield from fresh.submit(_put_and_scan, Path(folder), scale.memory_rows).result()


def _write_until_killed(folder: Path, rows: int) -> int:
    """The end offset of the last put that the child called done."""
    done, tell = _SPAWN.Pipe(duplex=False)
    child = _SPAWN.Process(target=_put_for_ever, args=(folder, rows, tell))
    child.start()
    tell.close()  # ours; so that a child that dies of itself is an EOFError here
    try:
        return [done.recv() for _ in range(rows // _PUT_ROWS)][-1]
    finally:
        child.kill()
        child.join()


def _put_for_ever(folder: Path, rows: int, tell: Connection) -> None:
    workload = Workload(rows)
    with open_table(folder) as table:
        while True:
            tell.send(table.put(workload.updates(_PUT_ROWS)).offsets["0"])


def _applied(folder: Path, copy: Path) -> int:
    """Up to where the KV has the log; read in a copy, so that nothing is recovered before its time."""
    (kv,) = folder.glob("tables/*/*/*/kv")
    with closing(Kv(shutil.copytree(kv, copy), kv_memory())) as copied:
        return applied_offset(copied.records(APPLIED))


def _open(folder: Path) -> tuple[float, int]:
    """The seconds until a lookup is answered, and the end offset found."""
    start = perf_counter()
    with open_table(folder) as table:
        table.get_one(id=0)
        return perf_counter() - start, table.changelog(start="latest").offsets["0"]


def _put_and_scan(folder: Path, rows: int) -> list[Figure]:
    workload, sizes = Workload(rows), list[int]()
    with open_table(folder) as table:
        start = perf_counter()
        for done in range(LOAD_ROWS, rows + 1, LOAD_ROWS):
            table.put(workload.rows(np.arange(done - LOAD_ROWS, done) * _STEP % rows))
            if done % _MILLION == 0:
                sizes.append(_mib("VmRSS"))
        rate, since = rows / (perf_counter() - start), min(_WARM, len(sizes))
        marks = ", ".join(f"{sizes[n - 1]:,} at {n}M" for n in (1, _WARM, 5, 10) if n <= len(sizes))
        note = f"MiB: {marks}, peak {_mib('VmHWM'):,}, from {since}M on {sizes[-1] - sizes[since - 1]:+,}"
        case, flat = f"put {rows:,} rows", {"ratio": sizes[since - 1] / sizes[-1], "target": _FLAT}
        put = Figure(bench="memory", case=case, rate=rate, note=note, **flat)
        start = perf_counter()
        assert sum(page.num_rows for page in table.scan()) == rows
        rate, note = rows / (perf_counter() - start), f"MiB: {_mib('VmRSS'):,} after it, peak {_mib('VmHWM'):,}"
        return [put, Figure(bench="memory", case=f"scan {rows:,} rows", rate=rate, note=note)]


def _mib(name: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) // 1024
