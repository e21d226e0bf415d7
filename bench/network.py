"""network: what a server costs on top of the same table in this process.

Client and server share the machine, as in a notebook. The floor is the embedded table, put and read in turn with the
served one.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import pyarrow as pa

import kolk
from bench.measure import Figure, Scale, race
from bench.workload import SCHEMA, Workload, count, open_table, scanning

_PUTS = ((10_000, 12, 0.6), (100_000, 4, 0.6))
_LOOKUPS = 2_000
_TOGETHER = 20_000
_FOLLOWED = 200


def network(scale: Scale) -> Iterator[Figure]:
    """Puts, scans, lookups and following over loopback."""
    workload = Workload(scale.keys)
    with TemporaryDirectory() as name, _both(Path(name)) as (url, served, ours):
        for table in (served, ours):
            deque(table.put_stream(workload.load()), maxlen=0)
        yield from _puts(workload, served, ours, scale)
        rates = race(lambda _: count(served.scan()), lambda _: count(ours.scan()), scale.rounds, scale.keys)
        yield Figure(bench="network", case=f"scan of {scale.keys:,} rows", note="floor: embedded", **rates)
        yield from _lookups(workload, url, served)
        yield _follow(url, served)


@contextmanager
def _both(folder: Path) -> Iterator[tuple[str, kolk.Table, kolk.Table]]:
    """The address of a server, its table, and the same table in this process."""
    with (
        kolk.start(folder / "served") as server,
        kolk.connect(server.url) as db,
        open_table(folder / "embedded") as ours,
    ):
        yield server.url, db.create_table("bench", SCHEMA, buckets=1), ours


def _puts(workload: Workload, served: kolk.Table, ours: kolk.Table, scale: Scale) -> Iterator[Figure]:
    for rows, puts, target in _PUTS:
        batches = [[workload.updates(rows) for _ in range(puts)] for _ in range(scale.rounds)]
        for case, work, wanted in (
            ("a put", _one_by_one, None),
            ("a put, streamed", lambda table, turn: deque(table.put_stream(turn), maxlen=0), target),
        ):
            race_of = partial(_turn, work, batches)
            rates = race(partial(race_of, served), partial(race_of, ours), scale.rounds, rows * puts)
            case = f"{rows:,} rows {case}"
            yield Figure(bench="network", case=case, target=wanted, note="floor: embedded", **rates)


def _turn(
    work: Callable[[kolk.Table, Sequence[pa.RecordBatch]], object],
    batches: Sequence[Sequence[pa.RecordBatch]],
    table: kolk.Table,
    turn: int,
) -> None:
    work(table, batches[turn])


def _one_by_one(table: kolk.Table, batches: Sequence[pa.RecordBatch]) -> None:
    for batch in batches:
        table.put(batch)


def _lookups(workload: Workload, url: str, served: kolk.Table) -> Iterator[Figure]:
    keys = workload.stored_ids(_LOOKUPS).tolist()
    many = [workload.stored_ids(1_000).tolist() for _ in range(20)]
    for beside, work in (("", nullcontext()), (" beside a scan", _scanned(url))):
        with work:
            yield _timed(f"get_one{beside}", lambda key: served.get_one(id=key), keys, 1)
            yield _timed(f"get of 1,000{beside}", served.get, many, 1_000)
            yield _gathered(f"aio get_one, many at once{beside}", url, workload.stored_ids(_TOGETHER).tolist())


def _timed(case: str, look_up: Callable[[object], object], asked: Sequence[object], rows: int) -> Figure:
    samples: list[float] = []
    for keys in asked:
        start = perf_counter()
        look_up(keys)
        samples.append(perf_counter() - start)
    return Figure(bench="network", case=case, rate=rows * len(asked) / sum(samples), note=_percentiles(samples))


def _gathered(case: str, url: str, keys: Sequence[int]) -> Figure:
    async def main() -> float:
        async with await kolk.aio.connect(url) as db:
            table = await db.table("bench")
            start = perf_counter()
            await asyncio.gather(*(table.get_one(id=key) for key in keys))
            return perf_counter() - start

    return Figure(bench="network", case=case, rate=len(keys) / asyncio.run(main()))


def _follow(url: str, served: kolk.Table) -> Figure:
    """From the answer to a put to the change in a follower's hands, in another thread of this process."""
    seen: deque[float] = deque()
    ready, arrived = threading.Event(), threading.Semaphore(0)

    def follow() -> None:
        with kolk.connect(url) as db, db.table("bench").changelog(start="latest", follow=True) as log:
            ready.set()
            for _ in log:
                seen.append(perf_counter())
                arrived.release()
                if len(seen) == _FOLLOWED:
                    return

    reader = threading.Thread(target=follow)
    reader.start()
    ready.wait()
    rows = Workload(1).rows(np.arange(_FOLLOWED) * 2 + 10**12)
    samples: list[float] = []
    for place in range(_FOLLOWED):
        served.put(rows.slice(place, 1))
        acknowledged = perf_counter()
        arrived.acquire()
        samples.append(seen[-1] - acknowledged)
    reader.join()
    note = f"{_percentiles(samples)}, from ack to reader"
    return Figure(bench="network", case="follow", rate=0.0, note=note)


@contextmanager
def _scanned(url: str) -> Iterator[None]:
    """Scan the whole table all the time, over a connection of its own."""
    with kolk.connect(url) as db, scanning(db.table("bench")):
        yield


def _percentiles(samples: Sequence[float]) -> str:
    p50, p99 = np.percentile(samples, [50, 99]) * 1e6
    return f"p50 {p50:,.0f} us, p99 {p99:,.0f} us"
