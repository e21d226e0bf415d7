"""A database, for those who use it: its tables, and DDL text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Self

import pyarrow as pa

from kolk.client.backup import OnProgress, backed_up
from kolk.client.lease import LEASE_TTL, Lease, OnLost, chosen_tables, joined, leased
from kolk.client.link import Link
from kolk.client.service import Service
from kolk.client.table import Table
from kolk.client.transaction import Transaction
from kolk.errors import InvalidArgument, InvalidSchema, InvalidStatement, TableNotFound
from kolk.model.alter_ddl import AddPartition, Alteration, AlterTable, DropPartition, SetOptions
from kolk.model.backup import BackupInfo
from kolk.model.ddl import CreateTable, DescribeTable, DropTable, ShowPartitions, ShowTables, TruncateTable, parse
from kolk.model.durations import Duration
from kolk.model.follower import Follower
from kolk.model.lease import LeaseInfo, check_lease_id
from kolk.model.lease_state import LeaseState
from kolk.model.names import TableName, check_name
from kolk.model.owner import OwnerInfo, check_owner
from kolk.model.scan import ScanInfo, check_scan_id
from kolk.model.schema import Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.model.transaction import TransactionInfo, check_handle
from kolk.runtime.clock import Clock, SystemClock
from kolk.runtime.rng import Rng


class Database:
    """A connection to a database. Thread-safe. A context manager; ``close`` is idempotent."""

    def __init__(
        self,
        service: Service,
        release: Callable[[], None],
        rng: Rng,
        *,
        forget: Callable[[], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._link = Link(service, release, forget or release, rng, clock or SystemClock())

    @property
    def link(self) -> Link:
        """The connection, for those who build on the client."""
        return self._link

    def create_table(
        self,
        name: str,
        schema: Schema,
        *,
        buckets: int | None = None,
        bucket_key: Sequence[str] | None = None,
        partition_by: Sequence[str] | None = None,
        merge_engine: str | None = None,
        options: Mapping[str, str] | None = None,
        if_not_exists: bool = False,
    ) -> Table:
        """Make a table; without a primary key in the schema it is a log table.

        ``buckets`` (1) is how many shares the table has, each with an order of its own; ``bucket_key`` (the primary
        key) chooses the share. ``partition_by`` cuts the table by the values of some key columns into partitions that
        are made as rows come and dropped as a whole, each with so many buckets. ``merge_engine`` is "default",
        "first_row", "versioned" or "aggregation", which is also what a table is whose columns name functions.
        """
        if not isinstance(schema, Schema):
            raise InvalidSchema("schema is a kolk.Schema; make one of an Arrow schema with kolk.Schema.from_arrow(...)")
        spec = TableSpec.make(
            name,
            schema,
            buckets=buckets,
            bucket_key=bucket_key,
            partition_by=partition_by,
            merge_engine=merge_engine,
            options=options,
        )
        return self._table(self._service.create_table(spec, if_not_exists=if_not_exists))

    def table(self, name: str) -> Table:
        """The table of this name."""
        return self._table(self._service.table(TableName.parse(name)))

    def tables(self) -> list[Table]:
        """All tables, by name."""
        return [self._table(info) for info in self._service.tables()]

    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Remove a table, its rows, its log and its followers."""
        try:
            self._service.drop_table(TableName.parse(name))
        except TableNotFound:
            if not if_exists:
                raise

    def followers(self) -> list[Follower]:
        """The followers of all tables, by table and name: how far each has come, and what log is kept for it."""
        return self._service.followers()

    def drop_follower(self, table: str, name: str) -> None:
        """Forget a follower: the log is no longer kept for it, and its reader can commit no more."""
        self._service.drop_follower(self._service.table(TableName.parse(table)).id, check_name(name, "follower"))

    def transaction(
        self, app_id: str, version: int, *, on_different: str = "answer", on_old: str = "answer"
    ) -> Transaction:
        """Writes to several tables that are applied together, and once for each (``app_id``, ``version``)::

        with db.transaction("nightly-load", 42) as tx:
            tx.put(pages, table="web.pages")
            tx.put(users, table="web.users")

        ``on_different`` and ``on_old`` are those of ``table.transaction``.
        """
        return Transaction(self._link, app_id, version, open_table=self.table, on_different=on_different, on_old=on_old)

    def transactions(self) -> list[TransactionInfo]:
        """What is staged, and the last version that every application has committed."""
        return self._service.list_transactions()

    def locks(self) -> list[OwnerInfo]:
        """The columns that are owned: of which table, by whom, and for how long still."""
        return self._service.list_owners()

    def release_lock(self, table: str, owner: str, *, keep: bool = False) -> bool:
        """Forget an owner, whoever writes in its name, after what is not committed was taken back; whether there was
        one. To ``keep`` it instead is for when it cannot be taken back (``UndoImpossible``)."""
        return self._service.release_owner(
            self._service.table(TableName.parse(table)).id, check_owner(owner), keep=keep
        )

    def discard(self, handles: Iterable[str]) -> int:
        """Forget what was staged under these handles, whoever's it is, unless a commit needs it; how many there were.
        Nobody needs to: what nobody commits goes by itself."""
        if isinstance(handles, str) or not isinstance(handles, Iterable):
            raise InvalidArgument(f"handles is a list of what db.transactions() shows as staged, not {handles!r}")
        return self._service.discard([check_handle(handle) for handle in handles])

    def scans(self) -> list[ScanInfo]:
        """The scans that are open, of all tables: who reads, how many rows so far, and when each is given up."""
        return self._service.list_scans()

    def close_scan(self, scan: str) -> bool:
        """End a scan, whoever reads it; whether there was one. Its reader is told with the next batch."""
        return self._service.close_scan(check_scan_id(scan))

    def lease(
        self,
        tables: Iterable[str] | Mapping[str, Mapping[str, int] | None],
        ttl: Duration = LEASE_TTL,
        lease_id: str | None = None,
        *,
        on_lost: OnLost | None = None,
    ) -> Lease:
        """Keep snapshots of several tables with one lease: the newest, or some by bucket,
        ``db.lease({"web.pages": None, "web.users": {"0": 7}})``. See ``Table.lease``."""
        return leased(self._link, chosen_tables(self._service, tables), ttl, lease_id, on_lost)

    def join_lease(self, lease_id: str, ttl: Duration | None = None, *, on_lost: OnLost | None = None) -> Lease:
        """Go on with a lease, after a restart say, with all that it keeps; whoever held it before has lost it.
        LeaseLost if it is gone."""
        return joined(self._link, lease_id, ttl, on_lost)

    def leases(self) -> list[LeaseInfo]:
        """The leases that there are: whose, of what, how much they keep, and when each expires."""
        return self._service.leases()

    def describe_lease(self, lease_id: str) -> LeaseState:
        """A lease, with every snapshot that it keeps."""
        return self._service.lease(check_lease_id(lease_id))

    def drop_lease(self, lease_id: str) -> bool:
        """End a lease, whoever's it is; whether there was one. Its holder is told at its next turn."""
        return self._service.drop_lease(check_lease_id(lease_id))

    def backup(self, path: str | PathLike[str], *, on_progress: OnProgress | None = None) -> BackupInfo:
        """Copy the whole database into a folder that is new or empty, while it is used; `kolk restore` makes a database
        of it. Each table is as of one moment, after everything that was acknowledged before.

        On a server ``path`` is a name within its ``backup_folder``. ``on_progress`` is called with the bytes so far and
        of how many, which is 0 until that is known.
        """
        return backed_up(self._link, path, on_progress)

    def execute(self, statement: str) -> Table | pa.Table | None:
        """Run one DDL statement: CREATE TABLE and ALTER TABLE (the answer is the table), DROP TABLE, TRUNCATE TABLE,
        SHOW TABLES, SHOW PARTITIONS and DESCRIBE (the answer is an Arrow table)."""
        if not isinstance(statement, str):
            raise InvalidStatement(f"a statement is text, not a {type(statement).__name__}")
        match parse(statement):
            case CreateTable() as create:
                return self._table(self._service.create_table(create.spec, if_not_exists=create.if_not_exists))
            case AlterTable() | SetOptions() | AddPartition() | DropPartition() as alteration:
                return self._altered(alteration)
            case DropTable(name=name, if_exists=if_exists):
                return self.drop_table(str(name), if_exists=if_exists)
            case TruncateTable(name=name):
                self.table(str(name)).truncate()
                return None
            case ShowPartitions(name=name):
                names = [partition.name for partition in self.table(str(name)).partitions()]
                return pa.table({"partition": pa.array(names, pa.string())})
            case ShowTables():
                return pa.table({"table": pa.array([table.name for table in self.tables()], pa.string())})
            case DescribeTable(name=name):
                return _described(self._service.table(name))

    def status(self) -> dict[str, Any]:
        """How the database is, in plain values: its durability and how many tables it has, and of a server its
        version, address, uptime, streams and disk."""
        return self._service.status()

    def close(self) -> None:
        """Let go. Idempotent; the last connection of a process to a folder closes it."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kolk.Database {self._link.place}{', closed' if self._link.is_closed else ''}>"

    @property
    def _service(self) -> Service:
        return self._link.service

    def _altered(self, alteration: Alteration) -> Table:
        table = self.table(str(alteration.name))
        match alteration:
            case AlterTable():
                operations = alteration.wanted(table.schema)
                if operations or not alteration.is_lenient:
                    table.alter(operations)
            case SetOptions(options=options):
                table.set_options(options)
            case AddPartition(values=values, if_not_exists=if_not_exists):
                table.add_partition(values, if_not_exists=if_not_exists)
            case DropPartition(values=values, if_exists=if_exists):
                table.drop_partition(values, if_exists=if_exists)
        return table

    def _table(self, info: TableInfo) -> Table:
        return Table(self._link, info)


def _described(info: TableInfo) -> pa.Table:
    columns = info.schema.columns
    functions = pa.array([None if column.agg is None else str(column.agg) for column in columns], pa.string())
    return pa.table(
        {
            "column": [column.name for column in columns],
            "type": [str(column.type) for column in columns],
            "nullable": [column.nullable for column in columns],
            "default": pa.array([column.default for column in columns], pa.string()),
            "key": [column.name in info.schema.primary_key for column in columns],
        }
        | ({"aggregate": functions} if info.schema.aggregates else {})
        | ({"partition": [column.name in info.spec.partition_by for column in columns]} if info.is_partitioned else {})
    )
