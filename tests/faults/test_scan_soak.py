"""Scans that are left in every way there is: after their time nothing of them is left, in the server or in RocksDB."""

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from tests.faults.attacker import Attacker, Ticks
from tests.faults.campaign import IS_FULL, ROOT, write_figures
from tests.faults.servers import PATIENCE_SECONDS
from tests.faults.servers import Server as ServerProcess

import kolk
from kolk.engine.database import Engine
from kolk.runtime.folder import Folder
from kolk.server.run import Server
from kolk.testing.clock import ManualClock
from kolk.wire import messages as m

ROWS = 40_000
EACH = 25
"""Of eight ways to leave a scan: two hundred of them."""
MIB = 2**20
GROWTH_BYTES_MAX = 64 * MIB
TTL_SECONDS = 2.0
BUCKETS = 1_000 if IS_FULL else 250
"""The short form has more than there may be scans."""
SECONDS = 600 if IS_FULL else 120
CACHE_BYTES = 200
"""What an empty cache counts as pinned, of its own."""
FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""What is freed is given back at once, so that the size of a process is what it holds."""
FAULT = "scans that are left open"
SCHEMA = kolk.Schema([kolk.Column("id", "int", nullable=False), kolk.Column("text", "string")], ["id"])
CONFIG = kolk.EngineConfig(
    durability="process",
    kv_block_cache_bytes=16 * MIB,
    kv_write_buffer_bytes=16 * MIB,
    scans_max=1_000,
    scans_per_bucket_max=1_000,
)
CLIENT = """
import sys, kolk
table = kolk.connect(sys.argv[1]).table("large")
left = [iter(table.scan()) for _ in range(int(sys.argv[2]))]
for place, batches in enumerate(left):
    for _ in range(place % 3):
        next(batches)
print("left", flush=True)
sys.stdin.read()
"""


def filled(db: kolk.Database, rows: int = ROWS, text: str = "x" * 1_000) -> kolk.Table:
    table = db.create_table("large", SCHEMA, buckets=2)
    table.put(pa.table({"id": pa.array(range(rows), pa.int32()), "text": [text] * rows}))
    return table


@dataclass
class Leavers:
    """Clients that open scans and leave them. What stays open of them, connections and all, stays in ``open``."""

    url: str
    table: int
    open: ExitStack = field(default_factory=ExitStack)

    def all(self) -> int:
        """So many of every kind; how many scans they were."""
        ways: list[Callable[[Attacker], object]] = [
            self._close,
            self._drain,
            self._look_away,
            self._stop_in_the_middle,
            self._stall,
            self._share,
        ]
        for way in ways:
            attacker = self.open.enter_context(Attacker(self.url))
            for _ in range(EACH):
                way(attacker)
        for _ in range(EACH):
            with Attacker(self.url) as gone:
                self._stop_in_the_middle(gone)
        self._kill()
        return EACH * (len(ways) + 2)

    def _ask(self, **changes: Any) -> m.OpenScan:
        return replace_head(m.OpenScan(table=self.table, page_bytes=65_536), **changes)

    def _close(self, attacker: Attacker) -> None:
        scan = attacker.open_scan(self._ask()).scan
        assert attacker.act(m.encode(m.CloseScan(scan=scan))) is None

    def _drain(self, attacker: Attacker) -> None:
        record = attacker.open_scan(self._ask(limit=50))
        assert record.first is not None
        assert record.first.last

    def _look_away(self, attacker: Attacker) -> None:
        attacker.open_scan(self._ask())

    def _stop_in_the_middle(self, attacker: Attacker) -> None:
        scan = attacker.open_scan(self._ask()).scan
        for seq in range(3):
            page = m.NextPage(scan=scan, cursor="c", seq=seq, page_bytes=1_000)
            assert attacker.call(m.join(page).to_pybytes()) is None

    def _stall(self, attacker: Attacker) -> None:
        scan = attacker.open_scan(self._ask()).scan
        stream = attacker.open_stream(m.encode(m.ReadScan(scan=scan)))
        self.open.callback(stream.cancel)

    def _share(self, attacker: Attacker) -> None:
        scan = attacker.open_scan(self._ask(shared=True)).scan
        assert attacker.act(m.encode(m.JoinScan(scan=scan))) is None
        assert attacker.stream(m.encode(m.ReadScan(scan=scan)), pages=1) is None

    def _kill(self) -> None:
        command = [sys.executable, "-c", CLIENT, self.url, str(EACH)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"left\n"
            client.kill()
        assert client.returncode == -signal.SIGKILL


def replace_head(head: m.OpenScan, **changes: Any) -> m.OpenScan:
    return m.OpenScan(**({name: getattr(head, name) for name in head.__struct_fields__} | changes))


class Clocked:
    """A server in this process whose time is moved by hand."""

    def __init__(self, folder, config: kolk.EngineConfig) -> None:
        self.clock = ManualClock()
        self.engine = Engine(Folder(folder), config, clock=self.clock)
        self._server = Server(self.engine, kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1), self.engine.close)
        self.url = self._server.url

    def counts(self) -> tuple[int, int]:
        """The scans that are open, and the views that they have."""
        counts = self.engine.scans.sessions.counts()
        return counts.open, counts.views

    def pinned(self) -> list[tuple[int, int, int]]:
        """Of each bucket: the bytes that iterators pin in the cache, the versions that they keep alive besides the
        present one, and the bytes of files that only they need."""
        found = []
        for tablet in self.engine._tablets.opened():
            asked = partial(tablet._kv._db.property_int_value)
            sizes = asked("rocksdb.total-sst-files-size") - asked("rocksdb.live-sst-files-size")
            versions = asked("rocksdb.num-live-versions") - 1
            found.append((asked("rocksdb.block-cache-pinned-usage"), versions, sizes))
        return found

    def compact(self) -> None:
        """What iterators keep of the rows before is theirs alone then."""
        for tablet in self.engine._tablets.opened():
            tablet._kv.flush()
            tablet._kv.compact()

    def close(self) -> None:
        self._server.close()


@contextmanager
def clocked(folder, config: kolk.EngineConfig = CONFIG) -> Iterator[Clocked]:
    server = Clocked(folder, config)
    try:
        yield server
    finally:
        server.close()


@pytest.mark.timeout(300)
def test_nothing_is_pinned_after_the_time_of_scans_that_were_left_in_every_way(tmp_path):
    with clocked(tmp_path / "data") as server, kolk.connect(server.url) as db:
        table = filled(db)
        server.compact()
        leavers = Leavers(server.url, table.info.id)
        with leavers.open:
            left = leavers.all()
            table.put([{"id": number, "text": "new"} for number in range(ROWS)])
            server.compact()
            assert server.counts()[0] >= left - 2 * EACH  # but for those that are closed or drained
            assert all(map(all, server.pinned())), "nothing is pinned by open scans, so this test shows nothing"

            server.clock.advance(seconds=CONFIG.scan_ttl_seconds / 2)
            assert server.counts()[0] >= left - 2 * EACH
            server.clock.advance(seconds=CONFIG.scan_ttl_seconds / 2 + 1)
            server.engine.reap()

            shared = server.counts()
            server.clock.advance(seconds=CONFIG.scan_shared_ttl_seconds)
            server.engine.reap()

            assert shared == (EACH, 2 * EACH)
            assert server.counts() == (0, 0)
            server.compact()
            assert all(pinned < CACHE_BYTES and not any(kept) for pinned, *kept in server.pinned()), server.pinned()
            assert not server.engine._tablets.are_viewed(tablet.bucket for tablet in server.engine._tablets.opened())
    # Iterators would keep RocksDB open, and its folder locked.
    with kolk.connect(tmp_path / "data", config=CONFIG) as db:
        assert db.table("large").scan(limit=5).to_arrow().num_rows == 5
    write_figures(FAULT, times=left, wrong=0)


@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_scans_that_were_left(tmp_path, monkeypatch):
    for name, value in FRUGAL.items():
        monkeypatch.setenv(name, value)
    config = replace(CONFIG, scan_ttl_seconds=TTL_SECONDS, scan_shared_ttl_seconds=TTL_SECONDS)
    with ServerProcess(tmp_path / "data", config) as server, kolk.connect(server.start()) as db:
        table = filled(db)
        sizes = []
        for _ in range(2):
            leavers = Leavers(server.url, table.info.id)
            with leavers.open:
                left = leavers.all()
                assert Ticks(PATIENCE_SECONDS).until(lambda: is_left_nothing(db)), db.scans()
            assert Ticks(PATIENCE_SECONDS).until(lambda: db.status()["streams"] <= 1), db.status()
            sizes.append(server.memory_bytes)

        assert server.failures() == []
        assert db.status()["scans"]["opened"] >= 2 * left
        assert sizes[1] - sizes[0] < GROWTH_BYTES_MAX, f"{sizes[0]:,} bytes became {sizes[1]:,}"
    write_figures(FAULT, times=2 * left, wrong=0, second_round_mb=max(sizes[1] - sizes[0], 0) // 10**6)


def is_left_nothing(db: kolk.Database) -> bool:
    scans = db.status()["scans"]
    return (scans["open"], scans["views"]) == (0, 0)


@pytest.mark.timeout(600)
def test_dashboards_that_scan_every_second_meet_no_cap(tmp_path):
    """None of them closes what it has read; who stops early uses a block."""
    defaults = kolk.EngineConfig(durability="process", kv_block_cache_bytes=16 * MIB, kv_write_buffer_bytes=16 * MIB)
    with clocked(tmp_path / "data", defaults) as server, ExitStack() as opened:
        dbs = [opened.enter_context(kolk.connect(server.url)) for _ in range(3)]
        filled(dbs[0], rows=5_000, text="x" * 100)
        tables = [db.table("large") for db in dbs]
        kept: list[kolk.Scan] = []
        for second, table in itertools.product(range(SECONDS), tables):
            server.clock.advance(ms=1_000 / len(tables))
            scan = look(table, second)
            kept = [*kept[-20:], scan]  # so that nothing is closed because it is forgotten

        counts = server.engine.scans.sessions.counts()
        assert counts.refused == 0
        assert counts.opened == SECONDS * len(tables)
        assert counts.open == 0
        server.clock.advance(seconds=11)
        assert server.counts() == (0, 0)
    write_figures("dashboards that scan every second", times=counts.opened, wrong=counts.refused)


def look(table: kolk.Table, second: int) -> kolk.Scan:
    match second % 4:
        case 0:
            scan = table.scan(limit=20)
            assert scan.to_arrow().num_rows == 20
        case 1:
            scan = table.scan()
            assert scan.to_arrow().num_rows == 5_000
        case 2:
            scan = table.scan(["id"], where="id < 100")
            assert scan.to_arrow().num_rows == 100
        case _:
            with table.scan() as scan:
                assert next(iter(scan)).num_rows
    return scan


@pytest.mark.timeout(600)
def test_a_table_of_very_many_buckets_is_one_scan_under_the_caps_as_they_are(tmp_path):
    with clocked(tmp_path / "data", kolk.EngineConfig(durability="process")) as server, kolk.connect(server.url) as db:
        table = db.create_table("wide", SCHEMA, buckets=BUCKETS)
        table.put(pa.table({"id": pa.array(range(5 * BUCKETS), pa.int32()), "text": ["x" * 400] * 5 * BUCKETS}))
        buckets = len([each for each in table.describe()["offsets"].values() if each["end"]])

        with table.scan() as scan:
            assert server.counts() == (1, buckets)
            assert scan.to_arrow().num_rows == 5 * BUCKETS
        for _ in range(2 * server.engine.config.scan_views_max // BUCKETS + 1):  # those that linger make room
            with table.scan(limit=5) as scan:
                assert scan.to_arrow().num_rows == 5

        counts = server.engine.scans.sessions.counts()
        assert counts.refused == 0
        assert counts.views <= server.engine.config.scan_views_max
