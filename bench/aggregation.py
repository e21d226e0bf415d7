"""aggregation: sum, max and last_value at write time, against the default engine; and states instead of events."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

import kolk
from bench.measure import Figure, Scale, race

_TYPES = {"id": ("bigint", None), "amount": ("bigint", "sum"), "seen": ("timestamp(6)", "max"),
          "user": ("string", "last_value")}  # fmt: skip
_PLAIN = kolk.Schema([kolk.Column(name, type_) for name, (type_, _) in _TYPES.items()], primary_key="id")
_SUMMED = kolk.Schema([kolk.Column(name, type_, agg=agg) for name, (type_, agg) in _TYPES.items()], primary_key="id")
_EVENTS, _PUTS = 10_000, 10
_LOAD_ROWS = 100_000
_SKEW = 1.2


def aggregation(scale: Scale) -> Iterator[Figure]:
    """Events a second into a table of all keys, and the gain of aggregating a skewed stream before it is sent."""
    yield _against_default(scale)
    yield from _preaggregated(scale)


def _against_default(scale: Scale) -> Figure:
    rng = np.random.default_rng(1)
    with TemporaryDirectory() as folder, kolk.connect(folder) as db:
        summed, plain = db.create_table("summed", _SUMMED), db.create_table("plain", _PLAIN)
        for start in range(0, scale.keys, _LOAD_ROWS):
            rows = _events(rng, np.arange(start, min(start + _LOAD_ROWS, scale.keys)))
            summed.put(rows)
            plain.put(rows)
        batches = [
            [_events(rng, rng.integers(0, scale.keys, _EVENTS)) for _ in range(_PUTS)] for _ in range(scale.rounds)
        ]
        rates = race(
            partial(_put_all, summed, batches), partial(_put_all, plain, batches), scale.rounds, _EVENTS * _PUTS
        )
    return Figure(
        bench="aggregation",
        case=f"sum, max, last_value: {_EVENTS:,} events a put",
        target=0.7,
        note="the floor is the default engine",
        **rates,
    )


def _preaggregated(scale: Scale) -> Iterator[Figure]:
    """A stream that comes in small batches: each of them put as it is, or many of them as the states of their keys."""
    rng = np.random.default_rng(2)
    batches = [[_events(rng, rng.zipf(_SKEW, _EVENTS) % scale.keys) for _ in range(_PUTS)] for _ in range(scale.rounds)]
    with TemporaryDirectory() as folder, kolk.start(Path(folder) / "data") as server, kolk.connect(server.url) as db:
        table = db.create_table("summed", _SUMMED)
        table.put(batches[0][0])
        share = table.preaggregate(pa.concat_batches(batches[0])).num_rows / (_EVENTS * _PUTS)
        ours, raw = partial(_put_states, table, batches), partial(_put_all, table, batches)
        yield Figure(
            bench="aggregation",
            case=f"{_PUTS} puts as one of states, over loopback",
            note=f"zipf {_SKEW}: {share:.0%} of the rows are left; the floor puts {_EVENTS:,} events at a time",
            **race(ours, raw, scale.rounds, _EVENTS * _PUTS),
        )


def _events(rng: np.random.Generator, ids: Any) -> pa.RecordBatch:
    users = pa.array([f"user-{number}" for number in range(1_000)]).take(pa.array(rng.integers(0, 1_000, len(ids))))
    times = pa.array(1_800_000_000_000_000 + rng.integers(0, 10**12, len(ids))).cast(pa.timestamp("us"))
    return pa.RecordBatch.from_arrays(
        [pa.array(ids), pa.array(rng.integers(1, 100, len(ids))), times, users], schema=_PLAIN.arrow
    )


def _put_all(table: kolk.Table, batches: Sequence[Sequence[pa.RecordBatch]], turn: int) -> None:
    for batch in batches[turn]:
        table.put(batch)


def _put_states(table: kolk.Table, batches: Sequence[Sequence[pa.RecordBatch]], turn: int) -> None:
    table.put(table.preaggregate(pa.concat_batches(batches[turn])), mode="merge_state")
