"""owners: puts that own their columns against plain ones, and how quickly what was not committed is taken back."""

from collections.abc import Iterator
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import pyarrow as pa

import kolk
from bench.measure import Figure, Scale, race
from kolk.client.writer import Writer

_SCHEMA = kolk.Schema(
    [kolk.Column("id", "bigint"), kolk.Column("pv", "bigint", agg="sum"), kolk.Column("seen", "bigint", agg="max")],
    primary_key="id",
)
_ROWS, _PUTS = 10_000, 20
_COLUMNS = ["pv", "seen"]


def owners(scale: Scale) -> Iterator[Figure]:
    """Rows a second of both kinds of puts, commits included, and rows a second of an undo."""
    rng = np.random.default_rng(3)
    batches = [[_rows(rng, scale.keys) for _ in range(_PUTS)] for _ in range(scale.rounds)]
    with TemporaryDirectory() as folder, kolk.connect(folder) as db:
        owned, plain = db.create_table("owned", _SCHEMA, buckets=4), db.create_table("plain", _SCHEMA, buckets=4)
        with owned.writer("bench", _COLUMNS) as writer:
            _put_owned(writer, batches, 0)
            _put_plain(plain, batches, 0)
            ours, floor = partial(_put_owned, writer, batches), partial(_put_plain, plain, batches)
            rates = race(ours, floor, scale.rounds, _ROWS * _PUTS)
        yield Figure(
            bench="owners",
            case=f"put as an owner: {_ROWS:,} rows a put, {_PUTS} an epoch",
            target=0.9,
            note="the floor is plain puts; each epoch is committed",
            **rates,
        )
        yield _undo(owned, plain, batches)


def _undo(owned: kolk.Table, plain: kolk.Table, batches: list[list[pa.RecordBatch]]) -> Figure:
    """Every key that an epoch touched, taken back by the next to begin, against a put of as many rows."""
    rates: list[tuple[float, float]] = []
    for epoch in batches:
        writer = owned.writer("bench", _COLUMNS)
        for batch in epoch:
            writer.put(batch)
        distinct = pa.Table.from_batches(epoch).group_by("id").aggregate([(name, "max") for name in _COLUMNS])
        rows = distinct.rename_columns(["id", *_COLUMNS])
        start = perf_counter()
        with owned.writer("bench", _COLUMNS):
            undone = perf_counter()
        begun = perf_counter()
        plain.put(rows, columns=_COLUMNS)
        rates.append((rows.num_rows / (undone - start), rows.num_rows / (perf_counter() - begun)))
    rate, floor_rate = (median(side) for side in zip(*rates, strict=True))
    return Figure(
        bench="owners",
        case="undo: rows taken back",
        rate=rate,
        floor_rate=floor_rate,
        ratio=rate / floor_rate,
        target=0.67,
        note="the floor is a plain put of as many rows",
    )


def _rows(rng: np.random.Generator, keys: int) -> pa.RecordBatch:
    ids, numbers = rng.choice(keys, _ROWS, replace=False), rng.integers(0, 1_000, (2, _ROWS))
    return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(numbers[0]), pa.array(numbers[1])], schema=_SCHEMA.arrow)


def _put_owned(writer: Writer, batches: list[list[pa.RecordBatch]], turn: int) -> None:
    for batch in batches[turn]:
        writer.put(batch)
    writer.commit()


def _put_plain(table: kolk.Table, batches: list[list[pa.RecordBatch]], turn: int) -> None:
    for batch in batches[turn]:
        table.put(batch, columns=_COLUMNS)
