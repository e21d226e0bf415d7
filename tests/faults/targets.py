"""The tables that hostile clients aim at, good messages to make bad ones of, and a good client beside them."""

import datetime
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from time import perf_counter

import pyarrow as pa
from tests.faults.attacker import Attacker, Ticks
from tests.faults.mutations import HANDLE, get_message, owned_message, put_message, stage_message
from tests.faults.servers import PATIENCE_SECONDS, Server

import kolk
from kolk.model.owner import Claim, OwnerRecord
from kolk.wire import messages as m
from kolk.wire import owners as o
from kolk.wire import transactions as t

MIB = 2**20
SCAN_SECONDS = 3_600
UNKNOWN_SCAN = "0" * 32
P99_SECONDS_MAX = 2.0
"""On two cores that attackers, server and this client share; without attack it is a hundredth of that."""
ROWS = kolk.Schema(
    [
        kolk.Column("key", "string", nullable=False),
        kolk.Column("part", "int", nullable=False),
        kolk.Column("price", "decimal(10, 2)"),
        kolk.Column("items", "array<row<name string, count int>>"),
        kolk.Column("tags", "map<string, bigint>"),
        kolk.Column("at", "timestamp(3)"),
        kolk.Column("open", "boolean"),
        kolk.Column("code", "char(3)"),
    ],
    primary_key=["key", "part"],
)
PARTS = kolk.Schema(
    [kolk.Column("day", "string"), kolk.Column("hour", "int"), kolk.Column("key", "int")],
    primary_key=["day", "hour", "key"],
)
OWNED = kolk.Schema([kolk.Column("id", "int"), kolk.Column("count", "bigint")], primary_key="id")
EVENTS = kolk.Schema([kolk.Column("text", "string"), kolk.Column("number", "double")])


@dataclass(frozen=True)
class Targets:
    """The tables by id, rows for them, and an open scan that everybody may read."""

    rows: int
    events: int
    parts: int
    batch: pa.RecordBatch
    keys: pa.RecordBatch
    event_batch: pa.RecordBatch
    scan: str
    token: str
    owner: OwnerRecord

    @staticmethod
    def make(db: kolk.Database) -> "Targets":
        rows = db.create_table("rows", ROWS, buckets=4, bucket_key=["key"], if_not_exists=True)
        events = db.create_table("events", EVENTS, buckets=2, if_not_exists=True)
        batch = pa.RecordBatch.from_pylist([_row(number) for number in range(6)], schema=ROWS.arrow)
        event_batch = pa.RecordBatch.from_pylist(
            [{"text": "a", "number": 1.0}, {"text": None, "number": None}], schema=EVENTS.arrow
        )
        parts = db.create_table("parts", PARTS, buckets=2, partition_by=["day", "hour"], if_not_exists=True)
        parts.put([{"day": "a", "hour": 7, "key": key} for key in range(6)])
        rows.put(batch)
        events.put(event_batch)
        scan = rows.scan(nonce="target", ttl=SCAN_SECONDS)
        next(iter(scan))
        keys = batch.select(["key", "part"])
        owned = db.create_table("owned", OWNED, buckets=2, if_not_exists=True)
        claim = Claim(owner="job", columns=["count"], ttl_seconds=86_400.0)
        owner = db._link.service.begin_owner(owned.info.id, claim)
        return Targets(
            rows.info.id, events.info.id, parts.info.id, batch, keys, event_batch, scan.id, scan.token, owner
        )

    def messages(self) -> list[bytes]:
        """Good ones, of every kind."""
        some = self.batch.select(["key", "part", "price", "code"])
        return [
            put_message(self.rows, self.batch),
            put_message(self.rows, self.batch, mode="overwrite"),
            put_message(self.rows, some, columns=["price", "code"]),
            put_message(self.rows, self.keys, action="delete"),
            put_message(self.rows, self.keys, action="delete", columns=["price"]),
            put_message(self.events, self.event_batch),
            stage_message(self.rows, self.batch),
            stage_message(self.rows, self.keys, handle="1" * 32, action="delete", columns=[2]),
            stage_message(self.events, self.event_batch, handle="2" * 32),
            *self._owned_messages(),
            get_message(self.rows, self.keys),
            get_message(self.rows, self.keys, names=["key", "price"]),
            get_message(self.rows, self.keys.select(["key"]).slice(0, 1), prefix=1),
            *(m.join(call).to_pybytes() for call in self._scan_calls()),
        ]

    def _owned_messages(self) -> list[bytes]:
        rows = pa.RecordBatch.from_pylist([{"id": id, "count": 1} for id in range(6)], schema=OWNED.arrow)
        who = (self.owner.table, self.owner.number, self.owner.fence)
        return [
            owned_message(*who, rows, columns=["count"]),
            owned_message(*who, rows.select(["id"]), columns=["count"], action="delete", mode="overwrite", seq=2),
            owned_message(*who, rows, columns=["count"], ticket=2**20 + 1, epoch=7),
        ]

    def _scan_calls(self) -> list[m.Call]:
        """Scans that are over with their first page, or soon after it, and pages of the one that stays."""
        where = "price > 1.5 AND NOT (key IN ('a', 'b') OR at < '2026-11-15')"
        return [
            m.OpenScan(table=self.rows, page_bytes=65_536),
            m.OpenScan(table=self.rows, page_bytes=1, names=["key", "price"], limit=3, ttl_seconds=0.01),
            m.OpenScan(table=self.rows, page_bytes=65_536, names=["key"], where=where, nonce="n", buckets=["0", "3"]),
            m.OpenScan(table=self.rows, page_bytes=65_536, resume=self.token),
            m.OpenScan(table=self.parts, page_bytes=65_536, shared=True, nonce="p", ttl_seconds=0.01),
            m.NextPage(scan=self.scan, cursor="c", seq=0, page_bytes=1),
            m.NextPage(scan=self.scan, cursor="d", seq=0, page_bytes=200, token=self.token, buckets=["1", "2"]),
        ]

    def actions(self) -> list[bytes]:
        """Good ones, but none that empties a table: changed, it could hit the table of the good client."""
        columns = [
            m.ColumnText("id", "int", False),
            m.ColumnText("inside", "array<map<string, row<a int, b decimal(10, 2)>>>"),
            m.ColumnText("at", "timestamp(3)"),
        ]
        options = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "at"}
        heads = [
            m.Hello(protocol=m.PROTOCOL),
            m.Status(),
            m.CreateTable("made.up", columns, ["id"], 2, ["id"], options),
            m.CreateTable("made.log", columns, options={"bucket.num": "3"}),
            m.GetTable(name="rows"),
            m.ListTables(),
            m.DropTable(name="made.up"),
            m.Bounds(table=self.rows),
            m.OffsetsAt(table=self.rows, timestamp_ms=1_700_000_000_000),
            m.Describe(table=self.rows),
            m.ListPartitions(table=self.parts),
            m.AddPartition(table=self.parts, name="day=a/hour=7", if_not_exists=True),
            m.DropPartition(table=self.parts, name="day=b/hour=8", number=3),
            m.JoinScan(scan=self.scan),
            m.CloseScan(scan=UNKNOWN_SCAN),
            m.CloseScan(nonce="nobody's"),
            m.ListScans(),
            t.KeepHandle(handle=HANDLE, app="app", version=1, table=self.rows, schema_id=1),
            t.SealHandle(handle=HANDLE, app="app", version=1, table=self.rows, schema_id=1, batches=1),
            t.Commit(app="app", version=1, tables=[t.CommitTable(self.rows, ["3" * 32])], rows=6, checksum=1),
            t.Discard(handles=[HANDLE, "1" * 32]),
            t.ListTransactions(after="a"),
            *self._owner_actions(),
        ]
        return [m.encode(head) for head in heads]

    def _owner_actions(self) -> list[m.Action]:
        """But for a beginning, which, changed, could take the columns of the good client."""
        who = {"table": self.owner.table, "number": self.owner.number, "fence": self.owner.fence}
        return [
            o.CommitOwner(**who, epoch=0, seqs={"0": 1, "1": 1}, state=b"here"),
            o.RenewOwner(**who),
            o.BeginTask(**who, epoch=1, partition=3),
            o.SealTask(**who, partition=3, ticket=2**20 + 3, seqs={"0": 1}, message=b"done"),
            o.CommitTasks(**who, epoch=1, tasks={"0": (2**20 + 3, 1)}),
            o.ReleaseOwner(table=self.owner.table, owner="nobody", number=9, fence=1),
            o.ListOwners(after=("a", "b")),
        ]

    def tickets(self) -> list[bytes]:
        """Good ones, all of which end."""
        starts = dict.fromkeys("0123", 0)
        heads = [
            m.ReadScan(scan=self.scan),
            m.ReadScan(scan=self.scan, token=self.token),
            m.ReadScan(scan=self.scan, buckets=["0", "2"]),
            m.Follow(table=self.rows, starts=starts, stops=dict.fromkeys("0123", 1)),
            m.Follow(table=self.events, starts={"0": 0}, stops={"0": 1}),
            m.Follow(table=self.parts, starts={"partitions": 1}, stops={"partitions": 2, "day=a/hour=7/0": 1}),
        ]
        return [m.encode(head) for head in heads]


def _row(number: int) -> dict[str, object]:
    return {
        "key": f"key {number}",
        "part": number,
        "price": Decimal(number),
        "items": [{"name": "x", "count": number}] * (number % 3),
        "tags": [("a", number), ("b", None)],
        "at": datetime.datetime(2026, 1, 1) if number % 2 else None,  # noqa: DTZ001 - a TIMESTAMP has no zone
        "open": bool(number % 2),
        "code": "abc",
    }


class Bystander(threading.Thread):
    """A client that does nothing wrong: it puts, reads back what it put, and keeps how long that took."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self.seconds: list[float] = []
        self.begun = threading.Event()
        self._url = url
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            with kolk.connect(self._url) as db:
                columns = [kolk.Column("id", "int"), kolk.Column("count", "bigint")]
                table = db.create_table("bystander", kolk.Schema(columns, ["id"]), if_not_exists=True)
                count = 0
                while not self._stopped.wait(0.005):
                    count += 1
                    began = perf_counter()
                    table.put({"id": count % 10, "count": count})
                    found = table.get_one(id=count % 10)
                    self.seconds.append(perf_counter() - began)
                    assert found == {"id": count % 10, "count": count}
                    self.begun.set()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failure = error
            self.begun.set()

    def end(self) -> float:
        """Stop; the answer is the 99th percentile of its seconds."""
        self._stopped.set()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "the good client hangs"
        if self.failure is not None:
            raise self.failure
        return sorted(self.seconds)[len(self.seconds) * 99 // 100]


@contextmanager
def unharmed(server: Server, *, growth_bytes_max: int = 256 * MIB) -> Iterator[Attacker]:
    """An attacker, at whose end the same server serves as before, a good client saw nothing, and nothing is left."""
    pid, memory, failures = server.pid, server.memory_bytes, len(server.failures())
    with kolk.connect(server.url) as db:
        base, scans = db.status()["streams"], db.status()["scans"]["open"]
        bystander = Bystander(server.url)
        bystander.start()
        assert bystander.begun.wait(PATIENCE_SECONDS)
        try:
            with Attacker(server.url) as attacker:
                yield attacker
        finally:
            p99 = bystander.end() if server.is_alive else 0.0
        assert server.is_alive, f"the server died: {server.log()[-2_000:]}"
        assert server.pid == pid
        assert p99 < P99_SECONDS_MAX, f"the good client waited {p99:.3f} s"
        growth = server.memory_bytes - memory
        assert growth < growth_bytes_max, f"{memory:,} bytes became {server.memory_bytes:,}"
        attacker.figures = {"p99_ms": round(p99 * 1_000), "growth_mb": max(growth, 0) // 10**6}
        assert Ticks(PATIENCE_SECONDS).until(lambda: db.status()["streams"] <= base), db.status()
        assert Ticks(PATIENCE_SECONDS).until(lambda: db.status()["scans"]["open"] <= scans), db.scans()
    told = server.failures()[failures:]
    assert not told, told[:3]
