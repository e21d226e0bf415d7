"""The engine: one database folder, opened in this process. The composition root.

Everything is built here, once, in order, and closed in reverse. The engine serves the small interface that the
client speaks; it does no work of its own but check, route and gather. What it is given is not trusted: rows are
checked against the table before anything else happens.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from kolk.codec.table import described_for_people
from kolk.config import EngineConfig
from kolk.engine.backup import Backups
from kolk.engine.backup_cut import BackupCuts
from kolk.engine.catalog import Catalog
from kolk.engine.changes import TableChanges
from kolk.engine.commits import Commits
from kolk.engine.cutting import Cutting
from kolk.engine.expiry import Expiry
from kolk.engine.followers import Followers, described
from kolk.engine.gate import Gate
from kolk.engine.keeping import Keeping
from kolk.engine.keeping_calls import KeepingCalls
from kolk.engine.leases import Leases
from kolk.engine.lives import PartitionLives
from kolk.engine.lock_table import LockTable
from kolk.engine.logs import Logs
from kolk.engine.opening import Opening, OpenKv
from kolk.engine.owned_buckets import OwnedBuckets
from kolk.engine.owner_calls import OwnerCalls
from kolk.engine.owner_tasks import OwnerTasks
from kolk.engine.owners import Owners
from kolk.engine.partitions import Partitions
from kolk.engine.retention import Retention
from kolk.engine.routing import Routing
from kolk.engine.rows import Rows
from kolk.engine.scans import LocalScan, Scans
from kolk.engine.snapshots import Snapshots
from kolk.engine.stagings import Stagings
from kolk.engine.tablets import Tablets
from kolk.engine.taking import Taking
from kolk.engine.transaction_calls import TransactionCalls
from kolk.engine.transactions import Transactions
from kolk.errors import (
    Closed,
    InvalidArgument,
    PartitionDropped,
    PartitionNotFound,
    TableExists,
    TableNotFound,
    UsedAfterFork,
)
from kolk.model.ddl import to_ddl
from kolk.model.evolution import Operation
from kolk.model.follower import Follower, Session
from kolk.model.ids import BucketId, OwnerTag, PlainTag, TableId
from kolk.model.names import TableName
from kolk.model.page import BucketOffsets
from kolk.model.partition import PARTITIONS, Layout, Partition, new_partition, parse_partition
from kolk.model.predicate import Predicate
from kolk.model.scan import ScanInfo, ScanRequest
from kolk.model.schema import Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.model.write import Write
from kolk.runtime.clock import Clock, SystemClock, WatchedClock
from kolk.runtime.closing import Closing
from kolk.runtime.disk import Disk, OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.handles import file_handles
from kolk.runtime.rng import Rng
from kolk.runtime.ticker import in_turn
from kolk.runtime.zone import system_zone
from kolk.storage.kv import Kv
from kolk.storage.meta import Meta
from kolk.storage.staging import StagingFiles
from kolk.tablet.signal import Signal
from kolk.tablet.tablet import Tablet

_HANDLES_PER_BUCKET = 16
"""Of the files that a process may have open, so that half of them are left for buckets in use and everything else."""


class Engine(KeepingCalls, OwnerCalls, TransactionCalls):
    """A database in this process. Thread-safe. Refuses to be used by a forked child."""

    def __init__(
        self,
        folder: Folder,
        config: EngineConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        open_kv: OpenKv = Kv,
        open_meta: Callable[[Path], Meta] = Meta,
        zone: Callable[[], str] = system_zone,
        rng: Rng | None = None,
    ) -> None:
        self.config = config
        self._folder = folder
        # One for each table that anybody writes or follows, so that a put wakes its own followers only.
        self._signals: dict[TableId, Signal] = {}
        self._clock = WatchedClock(clock or SystemClock())
        self._zone = zone
        disk = disk or OsDisk()
        locks = LockTable(self._clock)
        opening = Opening(disk, config, self._clock, open_kv, self._signal, locks.guard)
        self._meta = open_meta(folder.path / "meta.sqlite")
        self._catalog = Catalog(self._meta)
        tables = self._catalog.list()
        self._partitions = Partitions(self._meta, self._clock, config.partitions_max, tables, self._catalog.by_id)
        self._snapshots = Snapshots(
            folder.path / "snapshots", disk, opening.read_only, config.kv_snapshot_num_retained, self._check_alive
        )
        commits = Commits(self._meta, config, self._clock, disk, str(folder.path / "csn"))
        self._tablets = self._opened_tablets(disk, opening)
        routing = Routing(self._partitions)
        self.owners = self._opened_owners(locks, tables)
        self.tasks = OwnerTasks(self.owners)
        self._rows = Rows(self._tablets, routing, config)
        layouts = {info.id: self._partitions.of(info) if info.is_partitioned else None for info in tables}
        self._tablets.sweep(layouts, self._catalog.next_id)
        self._snapshots.sweep(layouts, self._catalog.next_id)
        self._followers = Followers(
            self._meta, self._clock, round(config.follower_ttl_seconds * 1_000), self._partitions, set(layouts)
        )
        self._logs = Logs(self._partitions, self._tablets, self.table_by_id)
        gate = Gate()
        self.transactions = self._opened_transactions(disk, commits, routing, gate)
        self._taking = self._opened_taking(disk, opening, gate)
        self._leases = Leases(self._meta, self._clock, self._snapshots, config, set(layouts))
        self.keeping = Keeping(
            self._partitions, self._snapshots, self._taking, self._leases, self._clock, self._catalog.by_id
        )
        self.keeping.forget_dropped()
        self.scans = self._opened_scans(gate, rng or Rng())
        self.backups = self._opened_backups(disk, gate, rng or Rng())
        self._lives, self._expiry, self._retention = self._rounds()
        self._closed = False
        self._closing = self._ends()
        self.transactions.recover()

    @property
    def path(self) -> Path:
        """The data folder."""
        return self._folder.path

    @property
    def is_in_place(self) -> bool:
        """Whether the folder is still where it was opened."""
        return self._folder.is_in_place

    def announce(self, url: str) -> None:
        """Tell processes that find the folder in use where it is served."""
        self._folder.announce(url)

    def status(self) -> dict[str, Any]:
        """The database in plain values."""
        scans = asdict(self.scans.sessions.counts())
        return {
            "durability": self.config.durability.value,
            "tables": len(self.tables()),
            "scans": scans,
            "snapshots": asdict(self.keeping.snapshot_counts()),
            "leases": asdict(self.keeping.lease_counts()),
            "owners": asdict(self.owners.totals()),
            "transactions": asdict(self.transactions.counts()),
        }

    # --- tables

    def create_table(self, spec: TableSpec, *, if_not_exists: bool = False) -> TableInfo:
        """Make a table. With ``if_not_exists`` an existing one is the answer, whatever it is like."""
        self.check_usable()
        spec = spec.in_zone(self._zone())
        self._partitions.check_room(spec, self._lives.wanted(spec))
        try:
            info = self._catalog.create(spec, self._clock.now_ms())
        except TableExists:
            if not if_not_exists:
                raise
            return self._catalog.get(spec.name)
        self._lives.prepare(info)
        return info

    def table(self, name: TableName) -> TableInfo:
        """The table of this name."""
        self.check_usable()
        return self._catalog.get(name)

    def table_by_id(self, table: TableId) -> TableInfo:
        """The table of this id; TableNotFound if it was dropped, even if there is a new one of its name."""
        self.check_usable()
        return self._catalog.by_id(table)

    def tables(self) -> list[TableInfo]:
        """All tables, by name."""
        self.check_usable()
        return self._catalog.list()

    def drop_table(self, name: TableName, table: TableId | None = None) -> None:
        """Remove a table: first its record, then its files. With an id, only if the name still stands for it."""
        info = self.table(name)
        if table is not None and info.id != table:
            raise TableNotFound(f"the table {name} that was to be dropped is gone; there is a new one of its name")
        self._catalog.drop(info)
        self._tablets.drop(info)
        self.keeping.drop_table(info)
        self._partitions.forget(info.id)
        self._followers.drop_table(info.id)
        self.owners.drop_table(info.id)
        self.transactions.commits.drop_gone({other.id for other in self._catalog.list()})
        self._notify(info.id)
        self._signals.pop(info.id, None)

    def alter_table(self, table: TableId, based_on: int, operations: Sequence[Operation]) -> TableInfo:
        """Make the next version of a table's schema: durable first, then every open bucket goes on in it.

        A bucket that a crash keeps from it opens in the new version. A put under way is written in one or the other.
        """
        self.check_usable()
        with self.transactions.still(table):
            info = self._catalog.alter(table, based_on, operations)
        self._tablets.switch(info)
        return info

    def set_options(self, table: TableId, options: Mapping[str, str]) -> TableInfo:
        """Set options of a living table."""
        self.check_usable()
        return self._catalog.set_options(table, options)

    def schema(self, table: TableId, schema_id: int = 0) -> Schema:
        """A version of a table's schema; 0 is the current one."""
        return self._spoken(table, schema_id)[1]

    def truncate(self, table: TableId) -> dict[str, int]:
        """Remove every row of a table, bucket by bucket; the answer is the end offsets."""
        info = self._info(table)
        ends: dict[str, int] = {}
        with self.owners.unowned(info):
            for bucket in self._partitions.buckets(info):
                with suppress(PartitionDropped), self._tablets.use_one(info, bucket) as tablet:
                    ends[bucket.name] = tablet.truncate()
        return ends

    # --- partitions

    def partitions(self, table: TableId) -> list[Partition]:
        """A table's partitions, by name."""
        return sorted(self._partitioned(table)[1].partitions.values(), key=lambda partition: partition.name)

    def add_partition(self, table: TableId, name: str, *, if_not_exists: bool = False) -> Partition:
        """Make a partition before anybody writes to it."""
        info, _ = self._partitioned(table)
        return self._lives.add(info, new_partition(info.partition_columns, name), if_not_exists=if_not_exists)

    def drop_partition(self, table: TableId, name: str, number: int | None = None) -> None:
        """Remove a partition: first its record, then its files. With a number, only if the name still stands for it."""
        info, _ = self._partitioned(table)
        partition = self._partitions.named(info, parse_partition(info.partition_columns, name))
        if number is not None and partition.id != number:
            raise PartitionNotFound(f"the partition {name} that was to be dropped is gone; there is a new one")
        self._lives.drop(info, partition)

    # --- rows

    def put(self, table: TableId, write: Write, tag: PlainTag | OwnerTag) -> dict[str, int]:
        """Apply a write once: all its rows are checked before the first bucket sees any of them."""
        info, schema = self._spoken(table, write.schema_id)
        if isinstance(tag, PlainTag):
            self.owners.lapse(info)
        return self._rows.put(info, schema, write, tag)

    def puts(self, table: TableId, writes: Iterable[tuple[Write, PlainTag]]) -> Generator[dict[str, int], None, None]:
        """Apply writes one after the other; the first that fails ends it."""
        for write, tag in writes:
            yield self.put(table, write, tag)

    def get(
        self, table: TableId, keys: pa.RecordBatch, names: Sequence[str] | None = None, schema_id: int = 0
    ) -> pa.RecordBatch:
        """The rows of these keys, in the order of the keys; a key that has no row is left out."""
        info, schema = self._spoken(table, schema_id)
        return self._rows.get(info, schema, keys, names)

    def prefix(
        self, table: TableId, rows: pa.RecordBatch, names: Sequence[str] | None = None, schema_id: int = 0
    ) -> pa.RecordBatch:
        """The rows whose keys start with the values of this one row, in key order."""
        info, schema = self._spoken(table, schema_id)
        return self._rows.prefix(info, schema, rows, names)

    # --- scans

    def open_scan(self, table: TableId, request: ScanRequest) -> LocalScan:
        """Pin a table, or some of its buckets, at one moment."""
        info, schema = self._spoken(table, request.schema_id)
        return self.scans.local(self.scans.open(info, schema, request))

    def join_scan(self, scan: str, token: str = "", buckets: Sequence[str] | None = None) -> LocalScan:
        """Read an open scan from its start, or from a token on, all of it or some buckets."""
        self.check_usable()
        return self.scans.local(self.scans.join(scan, only=buckets), token, buckets)

    def list_scans(self) -> list[ScanInfo]:
        """The scans that are open."""
        self.check_usable()
        return self.scans.sessions.listed()

    def close_scan(self, scan: str) -> bool:
        """End a scan, whoever reads it; whether there was one."""
        self.check_usable()
        return self.scans.end(scan, None)

    # --- the log

    def bounds(self, table: TableId) -> dict[str, tuple[int, int]]:
        """The start and end offset of every bucket, and of the record of partitions if there is one."""
        return self._logs.bounds(self._info(table))

    def open_offsets(self) -> Iterator[BucketOffsets]:
        """Where the logs of the buckets that are open start and end; none is opened for it."""
        self.check_usable()
        names = {info.id: str(info.name) for info in self._catalog.list()}
        for tablet in self._tablets.opened():
            name = names.get(tablet.bucket.table)
            if name is not None:
                yield BucketOffsets(name, tablet.bucket.name, tablet.log.start, tablet.end)

    def offsets_at(self, table: TableId, timestamp_ms: int) -> dict[str, int]:
        """The first offset of every bucket that was committed at or after this time."""
        return self._logs.offsets_at(self._info(table), timestamp_ms)

    def offsets_since(self, table: TableId, timestamp_ms: int) -> dict[str, int | None]:
        """The same; None for a bucket whose log may not have all that was committed since."""
        return self._logs.offsets_since(self._info(table), timestamp_ms)

    def open_changes(
        self,
        table: TableId,
        starts: Mapping[str, int],
        stops: Mapping[str, int | None],
        where: Predicate | None = None,
        schema_id: int | None = None,
    ) -> TableChanges:
        """The changelog from these offsets on, which can be waited for; of the partitions that a predicate selects; in
        one version of the schema, or each page as it was written."""
        info, schema = self._spoken(table, schema_id or 0)
        info.schema.check_known()
        shown = None if schema_id is None else schema
        return self._logs.open(info, shown, starts, stops, where, self._signal(table))

    # --- followers

    def open_follower(self, table: TableId, name: str, reader: int, starts: Mapping[str, int] | None = None) -> Session:
        """Begin to read in a follower's name, or go on; whoever did so before may commit no more."""
        self.bounds(table)  # buckets that must recover do so before anybody waits for the followers
        return self._followers.open(self._info(table), name, reader, starts, partial(self.bounds, table))

    def commit_follower(self, table: TableId, name: str, epoch: int, offsets: Mapping[str, int]) -> None:
        """Persist how far a follower has come; it never goes back."""
        self.bounds(table)
        self._followers.commit(self._info(table), name, epoch, offsets, partial(self.bounds, table))

    def drop_follower(self, table: TableId, name: str) -> None:
        """Forget a follower: it no longer holds the log, and its reader may commit no more."""
        self._followers.drop(self._info(table), name)

    def followers(self, tables: Iterable[TableInfo] | None = None) -> list[Follower]:
        """The followers of these tables, or of all, by table and name."""
        found: list[Follower] = []
        for info in self.tables() if tables is None else tables:
            bookmarks = self._followers.of(info.id)
            if bookmarks:
                states = self._tablets.states(info, self._partitions.buckets(info))
                now_ms = self._clock.now_ms()
                found += [
                    described(
                        info, name, bookmarks[name], states, self._partitions.of(info), now_ms, self._followers.ttl_ms
                    )
                    for name in sorted(bookmarks)
                ]
        return found

    def tick(self) -> None:
        """One round of what is due now and then: partitions come and go, old rows and old log go, idle buckets are
        closed. Whoever owns the engine calls this, from a thread."""
        self.check_usable()
        rest = partial(self._tablets.rest, self.config.bucket_idle_seconds)
        in_turn(self._lives.round, self._expiry.round, self._retention.round, rest)

    def reap(self) -> None:
        """End scans and leases whose time is up, and remove the snapshots that they kept. Called like ``tick``, more
        often."""
        self.check_usable()
        kept = (self._leases.reap, self.backups.reap, self._snapshots.reclaim)
        in_turn(self.scans.reap, *kept, self.transactions.reap, self.owners.reap)

    def stop_taking(self) -> None:
        """Let whoever takes snapshots end soon, because the database is about to close."""
        self._snapshots.close(Closed("the database is closed"))

    def take_due(self) -> None:
        """Take the snapshots that are due. Called like ``tick``, from a thread of its own: copying may take long."""
        self.check_usable()
        self._taking.round()

    @property
    def reap_seconds(self) -> float:
        """How often that is: so that nothing is kept much longer than its time."""
        return min(self.config.scan_ttl_seconds / 4, 15.0)

    @property
    def take_seconds(self) -> float:
        """How often to look which snapshots are due."""
        return min(self.config.kv_snapshot_interval_seconds / 4, 15.0)

    def describe(self, table: TableId) -> dict[str, object]:
        """A table and the state of its buckets, in plain values."""
        bounds = self.bounds(table)
        bounds.pop(PARTITIONS, None)
        offsets = {name: {"start": start, "end": end} for name, (start, end) in bounds.items()}
        info = self._info(table)
        partitions = {"partitions": sorted(self._partitions.of(info).partitions)} if info.is_partitioned else {}
        return {"id": table, **described_for_people(info), "ddl": to_ddl(info), **partitions, "offsets": offsets}

    def close(self) -> None:
        """Flush and close everything. Idempotent; whatever fails or is interrupted, nothing stays open."""
        if os.getpid() == self._folder.pid:
            self._closed = True
            self._closing.close()

    def abandon(self) -> None:
        """In a forked child: let go of the folder's handle, and never tear down what belongs to the parent."""
        self._tablets.abandon()
        self._snapshots.abandon()
        self._folder.abandon()

    # --- inside

    def _opened_tablets(self, disk: Disk, opening: Opening) -> Tablets:
        return Tablets(
            self.path / "tables",
            disk,
            opening,
            self._catalog.versions,
            self._check_alive,
            self._clock,
            min(self.config.buckets_open_max, max(file_handles() // _HANDLES_PER_BUCKET, 1)),
            self._snapshots.of,
            self._settle,
        )

    def _settle(self, tablet: Tablet) -> None:
        """Bring a bucket that was opened in step with the catalog, or refuse it."""
        self.owners.check_log(tablet.bucket, tablet.owners())
        self.transactions.settle(tablet)

    def _opened_owners(self, locks: LockTable, tables: Sequence[TableInfo]) -> Owners:
        return Owners(
            self._meta,
            locks,
            OwnedBuckets(self._tablets, self._partitions, self._clock),
            self._clock,
            self.config,
            self._catalog.by_id,
            tables,
        )

    def _opened_transactions(self, disk: Disk, commits: Commits, routing: Routing, gate: Gate) -> Transactions:
        files = StagingFiles(disk, str(self.path / "staging"))
        return Transactions(
            commits,
            Stagings(files, self.config, self._clock, commits.named),
            self._catalog,
            self._partitions,
            self._tablets,
            routing,
            gate,
            self._clock,
            self.config,
            self.owners.lapse,
        )

    def _opened_taking(self, disk: Disk, opening: Opening, gate: Gate) -> Taking:
        return Taking(
            self.path / "checkpoints",
            disk,
            opening,
            self._catalog,
            self._partitions,
            self._tablets,
            self._snapshots,
            gate,
            self._meta,
            self._clock,
            self.config.kv_snapshot_interval_seconds,
        )

    def _opened_backups(self, disk: Disk, gate: Gate, rng: Rng) -> Backups:
        cuts = BackupCuts(
            self.path / "checkpoints",
            disk,
            self._meta,
            self._catalog,
            self._partitions,
            self._tablets,
            self._snapshots,
            self._taking,
            gate,
            self.transactions,
            self.owners,
        )
        return Backups(self.path, disk, cuts, self.keeping, self._clock, rng, self.config.lease_ttl_seconds_max)

    def _opened_scans(self, gate: Gate, rng: Rng) -> Scans:
        cutting = Cutting(
            self._partitions,
            self._tablets,
            self._snapshots,
            self.keeping.pinned,
            gate,
            self.config.scan_page_rows,
            self._catalog.by_id,
        )
        return Scans(cutting, self._meta, self._clock, rng, self.config)

    def _rounds(self) -> tuple[PartitionLives, Expiry, Retention]:
        """What ``tick`` does, in this order."""
        lives = PartitionLives(
            self._catalog, self._partitions, self._tablets, self._followers, self.keeping, self._clock, self._notify
        )
        expiry = Expiry(self._catalog, self._partitions, self._tablets, self._clock)
        retention = Retention(
            self._catalog,
            self._partitions,
            self._tablets,
            self._followers,
            self.scans.sessions,
            self.keeping,
            self.owners,
            self._clock,
            self.config.log_pinned_max_bytes,
        )
        return lives, expiry, retention

    def _ends(self) -> Closing:
        """What ``close`` does, in this order."""
        users = (self.scans.sessions.close, self.stop_taking, self.transactions.stagings.close, self.backups.close)
        kept = (self._leases.close, self._taking.close, self._tablets.close, self._meta.close)
        return Closing(*users, *kept, self._folder.close, self._wake)

    def _info(self, table: TableId) -> TableInfo:
        return self.table_by_id(table)

    def _spoken(self, table: TableId, schema_id: int) -> tuple[TableInfo, Schema]:
        """A table, and the version of its schema that a caller speaks, which is never newer."""
        info = self.table_by_id(table)
        if schema_id in (0, info.schema.id):
            return info, info.schema
        return info, self._catalog.versions(info).spoken(schema_id)

    def _partitioned(self, table: TableId) -> tuple[TableInfo, Layout]:
        info = self._info(table)
        if not info.is_partitioned:
            raise InvalidArgument(f"{info.name} has no partitions; create the table with partition_by=[...]")
        return info, self._partitions.of(info)

    def _check_alive(self, bucket: BucketId) -> None:
        self._catalog.by_id(bucket.table)
        self._partitions.check_alive(bucket)

    def _notify(self, table: TableId) -> None:
        self._signal(table).notify()

    def _wake(self) -> None:
        for signal in list(self._signals.values()):
            signal.notify()

    def _signal(self, table: TableId) -> Signal:
        return self._signals.setdefault(table, Signal())

    def check_usable(self) -> None:
        """Raise Closed or UsedAfterFork if nothing can be asked of it any more."""
        if os.getpid() != self._folder.pid:
            raise UsedAfterFork("this database was opened before a fork; call kolk.connect in the child")
        if self._closed:
            raise Closed("the database is closed; call kolk.connect again")
