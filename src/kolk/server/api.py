"""What a request does: check who asks, check what came, ask the engine, answer.

The order is the same for every request: may this principal do this to this table, do the bytes fit, then the engine.
A table that the caller may do nothing with is not found, as if it were not there. No bytes of Flight here and no
state: both are the transport's.
"""

from collections.abc import Callable, Generator
from typing import Any

import pyarrow as pa

from kolk.codec.table import encode_schema
from kolk.engine.database import Engine
from kolk.engine.rows import GET_KEYS_MAX
from kolk.errors import InvalidArgument, PermissionDenied, TableExists, TableNotFound
from kolk.model.follower import Follower
from kolk.model.grant import Operation, Principal
from kolk.model.ids import TableId
from kolk.model.names import TableName
from kolk.model.page import ChangelogPage, changelog_schema
from kolk.model.partition import PartitionEvent
from kolk.model.predicate import Predicate
from kolk.model.schema import Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.server.backups import BackupRequests
from kolk.server.keeping import KeepingRequests
from kolk.server.owners import OwnerRequests
from kolk.server.records import received, shown_names, table_record, write_of
from kolk.server.scanning import Scanning
from kolk.server.transactions import TransactionRequests
from kolk.server.watch import Served
from kolk.wire import keeping as k
from kolk.wire import messages as m
from kolk.wire import owners as o
from kolk.wire import transactions as t
from kolk.wire.operations import column_of, decode_operations
from kolk.wire.rows import encode_rows

_WAIT_SECONDS = 1.0
"""After so long without a change a follower is sent a sign of life: by it both sides notice if the other is gone."""
_OFFSETS_PER_ANSWER = 50_000
"""How many offsets of followers one answer holds, unless one follower alone has more."""

Streamed = Generator[tuple[pa.RecordBatch, m.Page], None, None]


class Api:
    """The requests of clients, served by an engine. Thread-safe."""

    def __init__(self, engine: Engine, status: Callable[[], dict[str, Any]], backup_folder: str | None = None) -> None:
        self._engine = engine
        self._status = status
        self.scanning = Scanning(engine, self._table)
        self.transactions = TransactionRequests(engine, self._table)
        self._owners = OwnerRequests(engine, self._table, self._described)
        self._keeping = KeepingRequests(engine, self._table)
        self._backups = BackupRequests(engine, backup_folder)

    def act(self, principal: Principal, action: m.Action, served: Served) -> Any:
        """Serve a request without rows; the answer is plain values."""
        if isinstance(action, m.AboutScans):
            return self.scanning.act(principal, action)
        if isinstance(action, t.AboutTransactions):
            return self.transactions.act(principal, action, served)
        if isinstance(action, o.AboutOwners):
            return self._owners.act(principal, action, served)
        if isinstance(action, k.AboutBackups):
            return self._backups.act(principal, action)
        if isinstance(action, k.AboutKeeping):
            return self._keeping.act(principal, action, served)
        return self._act(principal, action, served)

    def write(
        self, principal: Principal, call: m.Put | o.PutOwned | t.Stage, rows: pa.Buffer, served: Served
    ) -> dict[str, int] | None:
        """Serve a request that brings rows; the answer is the end offsets, if they were put."""
        if isinstance(call, t.Stage):
            return self.transactions.stage(principal, call, rows, served)
        if isinstance(call, o.PutOwned):
            return self._owners.put(principal, call, rows, served)
        return self._put(principal, call, rows, served)

    def _put(self, principal: Principal, put: m.Put, rows: pa.Buffer, served: Served) -> dict[str, int]:
        """Write rows; the answer is the end offsets."""
        info = self._table(principal, put.table, Operation.WRITE)
        served.table = str(info.name)
        write = write_of(put, rows, self._engine.schema(info.id, put.schema_id), self._engine.config.put_rows_max)
        served.rows = write.rows.num_rows
        return self._engine.put(info.id, write, put.tag)

    def get(self, principal: Principal, get: m.Get, rows: pa.Buffer, served: Served) -> pa.RecordBatch:
        """Look keys up; the answer is rows."""
        info = self._table(principal, get.table, Operation.READ)
        served.table = str(info.name)
        schema = self._engine.schema(info.id, get.schema_id)
        names, keys = shown_names(schema, get.names), schema.key_columns
        wanted, most = (keys[: get.prefix], 1) if get.prefix else (keys, GET_KEYS_MAX)
        given = received(get.schema, rows, wanted, most)
        served.rows = given.num_rows
        look_up = self._engine.prefix if get.prefix else self._engine.get
        return look_up(info.id, given, names, schema.id)

    def stream(self, principal: Principal, ticket: m.Ticket) -> tuple[TableInfo, pa.Schema, Streamed]:
        """Serve a request for a stream: its schema at once, then its pages. Nothing is held before the first page."""
        if isinstance(ticket, m.ReadScan):
            return self.scanning.stream(principal, ticket)
        info = self._table(principal, ticket.table, Operation.READ)
        schema = self._engine.schema(info.id, ticket.schema_id or 0)
        where = None if ticket.where is None else Predicate.parse(ticket.where, schema)
        return info, changelog_schema(schema), self._follow(info, ticket, where, schema)

    def _act(self, principal: Principal, action: m.AboutTables | m.AboutReading, served: Served) -> Any:
        match action:
            case m.Hello():
                return self._hello(action)
            case m.Status():
                return self._status()
            case m.CreateTable():
                return self._create(principal, action)
            case m.GetTable():
                return table_record(self._named(principal, action.name, Operation.DESCRIBE))
            case m.ListTables():
                return [table_record(info) for info in self._described(principal)]
            case m.DropTable():
                info = self._named(principal, action.name, Operation.DROP)
                served.table = str(info.name)
                return self._engine.drop_table(info.name, info.id if action.table is None else TableId(action.table))
            case m.AlterTable() | m.SetOptions() | m.GetSchema():
                return self._evolve(principal, action, served)
            case m.Truncate():
                return self._engine.truncate(self._table(principal, action.table, Operation.WRITE).id)
            case m.Describe():
                return self._engine.describe(self._table(principal, action.table, Operation.DESCRIBE).id)
            case m.ListFollowers():
                return self._followers(principal, action)
            case m.ListPartitions() | m.AddPartition() | m.DropPartition():
                return self._partition(principal, action, served)
            case _:
                return self._read(self._table(principal, action.table, Operation.READ), action)

    def _evolve(
        self, principal: Principal, action: m.AlterTable | m.SetOptions | m.GetSchema, served: Served
    ) -> m.TableRecord | bytes:
        """Change what a table is, or show what it was."""
        if isinstance(action, m.GetSchema):
            info = self._table(principal, action.table, Operation.DESCRIBE)
            return encode_schema(self._engine.schema(info.id, action.schema_id))
        info = self._table(principal, action.table, Operation.ALTER)
        served.table = str(info.name)
        if isinstance(action, m.SetOptions):
            return table_record(self._engine.set_options(info.id, action.options))
        return table_record(self._engine.alter_table(info.id, action.based_on, decode_operations(action.changes)))

    def _partition(
        self, principal: Principal, action: m.ListPartitions | m.AddPartition | m.DropPartition, served: Served
    ) -> Any:
        is_look = isinstance(action, m.ListPartitions)
        info = self._table(principal, action.table, Operation.DESCRIBE if is_look else Operation.WRITE)
        served.table = str(info.name)
        match action:
            case m.ListPartitions():
                return self._engine.partitions(info.id)
            case m.AddPartition():
                return self._engine.add_partition(info.id, action.name, if_not_exists=action.if_not_exists)
            case m.DropPartition():
                return self._engine.drop_partition(info.id, action.name, action.number)

    def _read(
        self, info: TableInfo, action: m.Bounds | m.OffsetsAt | m.OpenFollower | m.CommitFollower | m.DropFollower
    ) -> Any:
        """What a reader of the changelog asks for."""
        match action:
            case m.Bounds():
                return self._engine.bounds(info.id)
            case m.OffsetsAt():
                asked = self._engine.offsets_since if action.complete else self._engine.offsets_at
                return asked(info.id, action.timestamp_ms)
            case m.OpenFollower():
                reader = int.from_bytes(action.reader, "big")
                return self._engine.open_follower(info.id, action.name, reader, action.starts)
            case m.CommitFollower():
                return self._engine.commit_follower(info.id, action.name, action.epoch, action.offsets)
            case m.DropFollower():
                return self._engine.drop_follower(info.id, action.name)

    def _followers(self, principal: Principal, wanted: m.ListFollowers) -> list[Follower]:
        """The next followers; so many that the answer fits a message, whatever the number of buckets."""
        after = None if wanted.after is None else (TableName.parse(wanted.after[0]), wanted.after[1])
        seen = self._described(principal)
        found: list[Follower] = []
        offsets = 0
        for info in seen if after is None else [info for info in seen if info.name >= after[0]]:
            for follower in self._engine.followers([info]):
                if after is not None and (info.name, follower.name) <= after:
                    continue
                offsets += len(follower.offsets)
                if found and offsets > _OFFSETS_PER_ANSWER:
                    return found
                found.append(follower)
        return found

    def _described(self, principal: Principal) -> list[TableInfo]:
        return [info for info in self._engine.tables() if principal.may(Operation.DESCRIBE, info.name)]

    def _hello(self, hello: m.Hello) -> dict[str, Any]:
        if hello.protocol != m.PROTOCOL:
            raise InvalidArgument(
                f"the client speaks protocol {hello.protocol} and the server {m.PROTOCOL}; upgrade the older one of the"
                " two"
            )
        return {"protocol": m.PROTOCOL}

    def _create(self, principal: Principal, create: m.CreateTable) -> m.TableRecord:
        name = TableName.parse(create.name)
        if not principal.may(Operation.CREATE, name):
            raise _denied(principal, Operation.CREATE, name)
        columns = [column_of(column) for column in create.columns]
        spec = TableSpec.make(
            create.name,
            Schema(columns, create.primary_key),
            buckets=create.buckets,
            bucket_key=create.bucket_key or None,
            partition_by=create.partition_by,
            options=create.options,
        )
        try:
            return table_record(self._engine.create_table(spec))
        except TableExists:
            if not create.if_not_exists:
                raise
        # It is somebody's table, and its schema is not for everybody who may make others.
        return table_record(self._named(principal, create.name, Operation.DESCRIBE))

    def _follow(self, info: TableInfo, follow: m.Follow, where: Predicate | None, schema: Schema) -> Streamed:
        pages = self._engine.open_changes(info.id, follow.starts, follow.stops, where, follow.schema_id)
        nothing = pa.RecordBatch.from_pylist([], schema=changelog_schema(schema))
        try:
            yield nothing, SIGN_OF_LIFE
            while not pages.is_finished:
                found = pages.next(_WAIT_SECONDS)
                if found is None:
                    yield nothing, SIGN_OF_LIFE
                elif isinstance(found, PartitionEvent):
                    yield nothing, m.Page(event=found)
                else:
                    yield _changes(*found, schema, nothing)
        finally:
            pages.close()

    def _named(self, principal: Principal, name: str, operation: Operation) -> TableInfo:
        """A table by name. The engine's own error lists all tables; this one only those that the caller may see."""
        parsed = TableName.parse(name)
        try:
            info = self._engine.table(parsed)
        except TableNotFound:
            info = None
        if info is None or not principal.may_anything(parsed):
            seen = [str(info.name) for info in self._engine.tables() if principal.may_anything(info.name)]
            known = ", ".join(seen[:20]) or "none that you may see"
            raise TableNotFound(f"there is no table {str(parsed)!r}; the tables are: {known}")
        return _allowed(principal, operation, info)

    def _table(self, principal: Principal, table: int, operation: Operation) -> TableInfo:
        info = self._engine.table_by_id(TableId(table))
        if not principal.may_anything(info.name):
            raise TableNotFound("this table was dropped; get the table of that name anew, if there is one")
        return _allowed(principal, operation, info)


SIGN_OF_LIFE = m.Page()


def _allowed(principal: Principal, operation: Operation, info: TableInfo) -> TableInfo:
    if not principal.may(operation, info.name):
        raise _denied(principal, operation, info.name)
    return info


def _denied(principal: Principal, operation: Operation, table: TableName) -> PermissionDenied:
    denied = PermissionDenied(f"{principal.name} may not {operation.value} the table {str(table)!r}")
    denied.table = str(table)
    return denied


def _changes(
    bucket: str, page: ChangelogPage, schema: Schema, nothing: pa.RecordBatch
) -> tuple[pa.RecordBatch, m.Page]:
    """A page of a changelog as a stream with one schema carries it."""
    if page.batch is None:
        return nothing, m.Page(bucket=bucket, next_offset=page.next_offset)
    if page.schema_id == schema.id:
        return page.batch, m.Page(bucket=bucket, next_offset=page.next_offset, schema_id=schema.id)
    rows = encode_rows(page.batch).to_pybytes()
    return nothing, m.Page(bucket=bucket, next_offset=page.next_offset, schema_id=page.schema_id, rows=rows)
