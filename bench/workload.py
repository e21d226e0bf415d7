"""The rows that every bench works on: a bigint key, a double, two strings and a timestamp, about 75 bytes stored.

Stored keys are even numbers, so that odd ones are inserts anywhere between them. Two runs see the same rows.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import kolk

Ids = np.ndarray[Any, np.dtype[np.int64]]
_TYPES = {"id": "bigint", "amount": "double", "user": "string", "city": "string", "seen": "timestamp(6)"}
SCHEMA = kolk.Schema([kolk.Column(name, type_) for name, type_ in _TYPES.items()], primary_key="id")
LOAD_ROWS = 100_000
_TEXTS = 20_000


class Workload:
    """Draws batches of rows for a table of ``keys`` rows. Confined to one thread."""

    def __init__(self, keys: int) -> None:
        self.keys = keys
        self._rng = np.random.default_rng(1)
        letters = self._rng.integers(97, 123, _TEXTS, "u1").tobytes().decode()
        widths = self._rng.integers(10, 30, _TEXTS).tolist()
        self._texts = pa.array([(letters * 2)[place : place + width] for place, width in enumerate(widths)])

    def load(self) -> Iterator[pa.RecordBatch]:
        """The whole table, in key order, in batches."""
        for start in range(0, self.keys, LOAD_ROWS):
            yield self.rows(2 * np.arange(start, min(start + LOAD_ROWS, self.keys)))

    def updates(self, count: int) -> pa.RecordBatch:
        """Rows with uniformly drawn keys, of which about one in fifty is new."""
        return self.rows(self.stored_ids(count) + (self._rng.random(count) < 1 / 50))

    def stored_ids(self, count: int) -> Ids:
        """Uniformly drawn keys that have a row."""
        return 2 * self._rng.integers(0, self.keys, count)

    def rows(self, ids: Ids) -> pa.RecordBatch:
        """Fresh values for these keys."""
        user, city, seen = self._rng.integers(0, [[_TEXTS], [_TEXTS], [10**12]], (3, len(ids)))
        amounts, times = self._rng.random(len(ids)), pa.array(1_800_000_000_000_000 + seen)
        arrays = [ids, amounts, self._texts.take(pa.array(user)), self._texts.take(pa.array(city)), times]
        wanted = zip(arrays, SCHEMA.arrow, strict=True)
        return pa.RecordBatch.from_arrays([pa.array(a).cast(field.type) for a, field in wanted], schema=SCHEMA.arrow)


@contextmanager
def open_table(folder: Path) -> Iterator[kolk.Table]:
    """The bench's table with one bucket, made if it is not there. By default every put is synced."""
    with kolk.connect(folder) as db:
        yield db.create_table("bench", SCHEMA, buckets=1, if_not_exists=True)


@contextmanager
def scanning(table: kolk.Table) -> Iterator[None]:
    """Scan a table in another thread, again and again, for as long as the block lasts."""
    stop = threading.Event()

    def scan() -> None:
        while not stop.is_set():
            with table.scan() as pages:
                for _ in pages:
                    if stop.is_set():
                        break

    thread = threading.Thread(target=scan)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def count(pages: Iterable[pa.RecordBatch]) -> int:
    """Read all pages, and say how many rows they have."""
    return sum(page.num_rows for page in pages)
