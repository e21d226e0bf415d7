"""scan: the whole table as Arrow, in this process and over the network, again, in part; and lookups beside it.

The floor of a whole scan is RocksDB's own iterator and our codec, in pages of our size. What asks for little is timed
beside a single lookup.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter

import numpy as np

import kolk
from bench.floor import loaded
from bench.measure import Figure, Scale, race
from bench.workload import Workload, count, scanning

_LIMIT = 20
_LITTLE = 200
_LOOKUPS = 2_000


def scan(scale: Scale) -> Iterator[Figure]:
    """Tables of several sizes, each in all ways."""
    for keys in scale.scan_keys:
        workload = Workload(keys)
        with loaded(workload) as (folder, table, floor):
            whole = partial(_against, lambda _: floor.scan(), scale.rounds, keys)
            yield whole(f"{keys:,} rows", lambda _: count(table.scan()), 0.8)
            yield whole(f"{keys:,} rows again", _again(table), 0.5)
            for share in (100, 2):
                some = partial(table.scan, where=f"amount < {1 / share}")
                rates = race(lambda _: count(some()), lambda _: count(table.scan()), scale.rounds, keys)  # noqa: B023
                note = f"{count(some()):,} rows; floor: the whole scan"
                yield Figure(bench="scan", case=f"where: 1 row in {share}", note=note, **rates)
            yield from _little(workload, table, scale, keys)
            yield _beside("in process", workload, table, table)
            with _served(folder, table) as served:
                yield whole(f"{keys:,} rows over Flight", lambda _: count(served.scan()), 0.5)
                yield _beside("over Flight", workload, served, served)


def _against(
    floor: Callable[[int], object],
    rounds: int,
    rows: int,
    case: str,
    ours: Callable[[int], object],
    target: float | None = None,
) -> Figure:
    return Figure(bench="scan", case=case, target=target, **race(ours, floor, rounds, rows))


def _again(table: kolk.Table) -> Callable[[int], int]:
    """Read one scan to its end once, and then as often as is asked."""
    opened = table.scan(shared=True)
    count(opened)

    def read(_: int) -> int:
        assert opened.id  # kept open by this
        return count(table.join_scan(opened.id))

    return read


def _little(workload: Workload, table: kolk.Table, scale: Scale, keys: int) -> Iterator[Figure]:
    """What moves little must not cost much: at most so many lookups of one key."""
    ids = workload.stored_ids(_LITTLE).tolist()
    page = ids[0]
    for case, ask, target in (
        (f"limit {_LIMIT} of {keys:,}", lambda: table.scan(limit=_LIMIT).to_arrow(), 0.2),
        (f"where: one key of {keys:,}", lambda: table.scan(where=f"id = {page}").to_arrow(), None),
    ):
        rates = race(
            lambda _: [ask() for _ in ids],  # noqa: B023 - now
            lambda _: [table.get_one(id=each) for each in ids],
            scale.rounds,
            _LITTLE,
        )
        note = f"{1e6 / rates['rate']:,.0f} us; floor: get_one"
        yield Figure(bench="scan", case=case, target=target, note=note, **rates)


def _beside(where: str, workload: Workload, table: kolk.Table, scanned: kolk.Table) -> Figure:
    """Lookups of one key while the table is scanned all the time."""
    ids = workload.stored_ids(_LOOKUPS).tolist()
    alone = _samples(table, ids)
    with scanning(scanned):
        beside = _samples(table, ids)
    (p50, p99), (calm50, calm99) = (np.percentile(each, [50, 99]) * 1e6 for each in (beside, alone))
    note = f"p50 {p50:,.0f} us, p99 {p99:,.0f} us; alone {calm50:,.0f} and {calm99:,.0f}"
    return Figure(bench="scan", case=f"get_one beside a scan, {where}", rate=len(ids) / sum(beside), note=note)


def _samples(table: kolk.Table, ids: Iterable[int]) -> list[float]:
    samples: list[float] = []
    for each in ids:
        start = perf_counter()
        table.get_one(id=each)
        samples.append(perf_counter() - start)
    return samples


@contextmanager
def _served(folder: object, table: kolk.Table) -> Iterator[kolk.Table]:
    """The same rows, served by another process."""
    with kolk.start(f"{folder}-served") as server, kolk.connect(server.url) as db:
        served = db.create_table("bench", table.schema, buckets=1)
        for batch in table.scan():
            served.put(batch)
        yield served
