"""A tablet whose log lies on an injected disk and whose KV is real RocksDB in a temporary folder."""

from functools import partial
from pathlib import Path

import pytest

from kolk.config import Durability
from kolk.merge.append import Appender
from kolk.merge.engine import Merger
from kolk.model.ids import BucketId, TableId
from kolk.model.options import TableOptions
from kolk.model.schema import Column, Schema
from kolk.runtime.clock import WatchedClock
from kolk.runtime.disk import OsDisk
from kolk.storage.kv import Kv, KvMemory
from kolk.storage.log import Log
from kolk.tablet.recovery import open_tablet
from kolk.tablet.signal import Signal
from kolk.testing.clock import ManualClock

SCHEMA = Schema([Column("id", "bigint"), Column("n", "bigint"), Column("s", "string")], ["id"])
LOG_SCHEMA = Schema([Column("n", "bigint")])
BUCKET = BucketId(TableId(1), 0, 0)


class Bench:
    """Opens and reopens one bucket."""

    def __init__(self, folder: Path, disk=None) -> None:
        self.folder = folder
        self.disk = disk or OsDisk()
        self.clock = ManualClock(now_ms=1_000_000)
        self.watched = WatchedClock(self.clock)
        self.memory = KvMemory(block_cache_bytes=2**22, write_buffer_bytes=2**22)
        self.durability = Durability.MACHINE
        self.kv = Kv

    def open(self, merger=None, options: dict[str, str] | None = None, *, copies=None, guard=dict):
        chosen = merger or Merger(SCHEMA, TableOptions.parse(options or {}, SCHEMA))
        return open_tablet(
            BUCKET,
            self.folder,
            chosen,
            disk=self.disk,
            open_log=lambda path: Log.open(self.disk, path, self.durability, 4096),
            open_kv=partial(self.kv, memory=self.memory),
            clock=self.watched,
            signal=Signal(),
            copies=copies,
            guard=guard,
        )

    def open_log_table(self):
        return self.open(Appender(LOG_SCHEMA))


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "bucket")
