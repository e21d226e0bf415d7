"""transactions: the same rows staged, sealed and committed, against plain puts of them."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

import kolk
from bench.measure import Figure, Scale, race
from bench.workload import SCHEMA, Workload

_BUCKETS = 4
# Rows a put, puts of a transaction, transactions a round.
_CASES = ((1_000, 1, 50), (10_000, 1, 10), (10_000, 10, 2), (100_000, 1, 2), (100_000, 5, 1))
_TARGET = 0.67


def transactions(scale: Scale) -> Iterator[Figure]:
    """One figure for each size: at most half as much again as the puts alone. In one bucket, which a put syncs once, a
    small one pays most for the syncs of what is staged and of the record: that is shown, without a target."""
    workload = Workload(scale.keys)
    with TemporaryDirectory() as folder, kolk.connect(Path(folder) / "data") as db:
        versions = count(1)
        for buckets, cases, target in ((_BUCKETS, _CASES, _TARGET), (1, _CASES[:1], None)):
            ours, plain = (db.create_table(f"{name}{buckets}", SCHEMA, buckets=buckets) for name in ("ours", "plain"))
            for batch in workload.load():
                ours.put(batch)
                plain.put(batch)
            for rows, puts, times in cases:
                batches = [
                    [[workload.updates(rows) for _ in range(puts)] for _ in range(times)] for _ in range(scale.rounds)
                ]
                rates = race(
                    partial(_transact, ours, versions, batches),
                    partial(_put, plain, batches),
                    scale.rounds,
                    rows * puts * times,
                )
                case = f"{puts} x {rows:,} rows a transaction, {buckets} {'buckets' if buckets > 1 else 'bucket'}"
                note = "the floor is plain puts of the same rows"
                yield Figure(bench="transactions", case=case, target=target, note=note, **rates)


def _transact(
    table: kolk.Table, versions: Iterator[int], batches: Sequence[Sequence[Sequence[pa.RecordBatch]]], turn: int
) -> None:
    for batch in batches[turn]:
        with table.transaction("bench", next(versions)) as tx:
            for rows in batch:
                tx.put(rows)
        assert tx.is_new


def _put(table: kolk.Table, batches: Sequence[Sequence[Sequence[pa.RecordBatch]]], turn: int) -> None:
    for batch in batches[turn]:
        for rows in batch:
            table.put(rows)
