"""get, changelog: rows by key, and the log read back as changes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from bench.floor import loaded
from bench.measure import Figure, Scale, race
from bench.workload import SCHEMA, Ids, Workload, count, open_table
from kolk.codec.frame import FrameHeader, decode_header
from kolk.codec.key import KeyCodec
from kolk.merge.changes import change_schema

Get = Callable[[Any], object]


def get(scale: Scale) -> Iterator[Figure]:
    """Lookups of one key and of 1,000 keys that have a row, in the order drawn."""
    workload = Workload(scale.keys)
    with loaded(workload) as (_, table, floor):
        one, many = workload.stored_ids(2_000), [workload.stored_ids(1_000) for _ in range(20)]
        keys_of_many = [_keys(ids) for ids in many]
        cases: list[tuple[str, int, Get, Sequence[Any], Sequence[Any]]] = [
            ("get_one", 1, lambda key: table.get_one(id=key), one.tolist(), _keys(one)),
            ("get, 1 key", 1, lambda key: table.get([key]), one.tolist(), _keys(one)),
            ("get, 1,000 in a list", 1_000, table.get, [ids.tolist() for ids in many], keys_of_many),
            ("get, 1,000 in Arrow", 1_000, table.get, [_batch(ids) for ids in many], keys_of_many),
        ]
        for case, rows, ours, asked, keys in cases:
            samples: list[float] = []
            timed, floor_timed = partial(_timed, ours, asked, samples), partial(_timed, floor.db.get, keys, [])
            rates = race(timed, floor_timed, scale.rounds, rows * len(asked))
            p50, p99 = np.percentile(samples, [50, 99]) * 1e6
            yield Figure(bench="get", case=case, note=f"p50 {p50:,.0f} us, p99 {p99:,.0f} us", **rates)


def changelog(scale: Scale) -> Iterator[Figure]:
    """All changes of a log; the floor reads, checks and decodes the same frames."""
    for rows in (1_000, 10_000):
        with TemporaryDirectory() as folder, open_table(Path(folder)) as table:
            workload = Workload(10 * rows)
            for _ in range(50):
                table.put(workload.updates(rows))
            logs = [(path, list(_headers(path.read_bytes()))) for path in sorted(Path(folder).rglob("*.log"))]
            changes, read = count(table.changelog()), table.changelog
            rates = race(lambda _: count(read()), partial(_read_logs, logs), scale.rounds, changes)  # noqa: B023 - now
            yield Figure(bench="changelog", case=f"of {rows:,}-row puts", note=f"{changes:,} changes", **rates)


def _timed(get: Get, asked: Sequence[Any], samples: list[float], _: int) -> None:
    for keys in asked:
        start = perf_counter()
        get(keys)
        samples.append(perf_counter() - start)


def _batch(ids: Ids) -> pa.RecordBatch:
    return pa.record_batch({"id": ids})


def _keys(ids: Ids) -> list[bytes]:
    return KeyCodec(SCHEMA).encode(_batch(ids)).to_pylist()


def _headers(log: bytes) -> Iterator[FrameHeader]:
    start = 0
    while start < len(log):
        yield (header := decode_header(memoryview(log)[start:]))
        start += header.length


def _read_logs(logs: Sequence[tuple[Path, Sequence[FrameHeader]]], _: int) -> None:
    schema = change_schema(SCHEMA)
    for path, headers in logs:
        with path.open("rb", buffering=0) as log:
            for header in headers:
                frame = pa.py_buffer(log.read(header.length))
                crc32(memoryview(frame)[8:])
                pa.ipc.read_record_batch(frame.slice(header.header_length, header.body_length), schema)
