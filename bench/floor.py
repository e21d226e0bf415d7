"""The floor: the same bytes through rocksdict and the file system alone, as any store on RocksDB must move them.

It has our RocksDB options and our rows, but keeps no promise. What it takes as bytes is made beforehand, untimed.
"""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from rocksdict import Rdict, WriteBatch, WriteOptions

import kolk
from bench.workload import SCHEMA, Workload, open_table
from kolk.merge.engine import Merger
from kolk.model.options import TableOptions
from kolk.model.write import Action, Write
from kolk.storage.kv import KvMemory

Encoded = tuple[list[bytes], list[bytes]]  # distinct keys in order, and their values
_CONFIG = kolk.EngineConfig()
_MERGER = Merger(SCHEMA, TableOptions())


def encoded(batch: pa.RecordBatch) -> Encoded:
    """What our put writes for these rows."""
    prepared = _MERGER.prepare(Write(action=Action.UPSERT, rows=batch))
    assert prepared.values is not None
    return list(prepared.keys), prepared.values.to_pylist()


def kv_memory() -> KvMemory:
    """The memory that an engine with the default settings gives RocksDB."""
    return KvMemory(block_cache_bytes=_CONFIG.kv_block_cache_bytes, write_buffer_bytes=_CONFIG.kv_write_buffer_bytes)


class Floor:
    """RocksDB and one file. Confined to one thread."""

    def __init__(self, folder: Path) -> None:
        self.db = Rdict(str(folder / "floor"), kv_memory().options())
        self._log = os.open(folder / "floor.bytes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._no_wal = WriteOptions()
        self._no_wal.disable_wal = True

    def put(self, log_bytes: bytes, rows: Encoded) -> None:
        """Read the old rows, make the log durable, write the new rows."""
        self.db.get(rows[0])
        os.write(self._log, log_bytes)
        os.fdatasync(self._log)
        self.write(rows)

    def write(self, rows: Encoded) -> None:
        """Write rows in one batch, without RocksDB's own log."""
        batch = WriteBatch(raw_mode=True)
        deque(map(batch.__setitem__, *rows), maxlen=0)
        self.db.write(batch, self._no_wal)

    def scan(self) -> int:
        """Every row as Arrow, in pages of our size; the answer is their number."""
        values, count = self.db.values(), 0
        while page := list(islice(values, _CONFIG.scan_page_rows)):
            count += _MERGER.codec.decode(pa.array(page, pa.binary())).num_rows
        return count

    def close(self) -> None:
        """Let the files go."""
        self.db.close()
        os.close(self._log)


@contextmanager
def loaded(workload: Workload) -> Iterator[tuple[Path, kolk.Table, Floor]]:
    """The workload's rows twice, in our table and on the floor; and the folder of our table."""
    with TemporaryDirectory() as name, open_table(Path(name) / "ours") as table, closing(Floor(Path(name))) as floor:
        for batch in workload.load():
            table.put(batch)
            floor.write(encoded(batch))
        yield Path(name) / "ours", table, floor
