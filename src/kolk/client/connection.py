"""A database over the network: the small service interface, served by a server through Arrow Flight.

Every call has a deadline. What fails in a way that a retry can mend is tried again until then, puts with the same write
tag, so that a server that is restarted in the middle costs time and nothing else. A scan goes on where it was as long
as the server has it; a changelog always does.

Requests with rows go over persistent exchanges, which are kept for reuse: opening one costs more than a lookup. The
bytes of the protocol are in ``kolk.wire``; Flight is known here and in ``streams`` alone.
"""

import os
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from kolk.client.address import Address, url_of
from kolk.client.deadlines import Deadlines
from kolk.client.remote_keeping import RemoteKeeping
from kolk.client.remote_owners import RemoteOwners
from kolk.client.remote_transactions import RemoteTransactions
from kolk.client.retry import LEAVE_DOUBT, Deadline, Retry, doubted
from kolk.client.scan_reader import FIRST_PAGE_BYTES, RemoteScan, opened_scan
from kolk.client.spares import Spares
from kolk.client.streams import ChangeStream, Exchange, Pipeline, Sent, Stream, result, typed
from kolk.codec.table import decode_schema, decode_table
from kolk.errors import (
    Closed,
    FollowerNotFound,
    KolkError,
    PartitionExists,
    PartitionNotFound,
    PermissionDenied,
    StaleTag,
    TableExists,
    TableNotFound,
    TimedOut,
    Unavailable,
    Unreachable,
    UsedAfterFork,
)
from kolk.model.evolution import Operation
from kolk.model.follower import Follower, Session
from kolk.model.ids import PlainTag, TableId
from kolk.model.names import TableName
from kolk.model.partition import Partition
from kolk.model.predicate import Predicate
from kolk.model.scan import ScanInfo, ScanRequest
from kolk.model.schema import Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.model.write import Write
from kolk.runtime.rng import Rng
from kolk.wire import messages as m
from kolk.wire.operations import column_text, encode_operations
from kolk.wire.rows import encode_rows, encode_schema, read_answer, write_fields

CONNECT_SECONDS = 5.0
IN_FLIGHT = 4
"""Puts of one stream that are under way at once. A bucket remembers the last 5 of a writer, so all can be retried."""
_KEYS_PER_CALL = 20_000
_SCHEMAS_MAX = 1_000
"""How many versions of schemas are remembered; a follower meets few."""
_DESCRIPTOR = flight.FlightDescriptor.for_command(b"kolk")
_CHANNEL = [
    # gRPC would wait up to two minutes before it looks again for a server that was restarted.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # In spite of its name this is how long one attempt may take; a slow line needs its time.
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1_000)),
]


class Connection(RemoteKeeping, RemoteTransactions, RemoteOwners):
    """A server, as ``Service``. Thread-safe. Refuses to be used by a forked child."""

    def __init__(
        self,
        address: Address,
        *,
        retry: Retry,
        deadlines: Deadlines,
        spares: Spares,
        rng: Rng,
        token: str | None = None,
        tls_ca: bytes | None = None,
        tls_cert: bytes | None = None,
        tls_key: bytes | None = None,
    ) -> None:
        self._address = address
        self._retry = retry
        self._deadlines = deadlines
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode("latin-1"))]
        self._pid = os.getpid()
        self._spares = spares
        self._rng = rng
        self._closed = False
        self._orphans: deque[str] = deque()
        # Written item by item; two that race ask twice.
        self._schemas: dict[tuple[TableId, int], Schema] = {}
        # Last, because it may refuse what it is given.
        scheme = "grpc+tls" if address.is_tls else "grpc+tcp"
        tls = {"tls_root_certs": tls_ca, "cert_chain": tls_cert, "private_key": tls_key} if address.is_tls else {}
        location = url_of(scheme, address.host, address.port)
        self._client = flight.FlightClient(location, generic_options=_CHANNEL, **tls)

    @property
    def path(self) -> Address:
        """The address of the server."""
        return self._address

    def hello(self) -> None:
        """Greet the server, so that a wrong address or token is told at once."""
        self._act(m.Hello(protocol=m.PROTOCOL), self._retry.deadline(CONNECT_SECONDS))

    def status(self) -> dict[str, Any]:
        """How the server is, in plain values."""
        return self._act(m.Status())

    # --- tables

    def create_table(self, spec: TableSpec, *, if_not_exists: bool = False) -> TableInfo:
        """See ``Service``. If an answer was lost, a table that is just like the wanted one is taken for ours."""
        request = m.CreateTable(
            name=str(spec.name),
            columns=[column_text(column) for column in spec.schema.columns],
            primary_key=list(spec.schema.primary_key),
            buckets=spec.buckets,
            bucket_key=list(spec.bucket_key),
            partition_by=list(spec.partition_by),
            options=spec.option_text,
            if_not_exists=if_not_exists,
        )
        lost: list[KolkError] = []
        try:
            return _table(self._act(request, lost=lost))
        except TableExists:
            if lost:
                found = self.table(spec.name)
                auto = found.spec.options.auto_partition
                if found.spec == (spec if auto is None else spec.in_zone(auto.zone or "")):
                    return found
            raise

    def table(self, name: TableName) -> TableInfo:
        """See ``Service``."""
        return _table(self._act(m.GetTable(name=str(name))))

    def tables(self) -> list[TableInfo]:
        """See ``Service``."""
        return [_table(record) for record in self._act(m.ListTables())]

    def drop_table(self, name: TableName, table: TableId | None = None) -> None:
        """See ``Service``. A retry after a lost answer must not drop a new table of that name, hence the id; without it
        there is no retry."""
        if table is None:
            with suppress(PermissionDenied):
                table = self.table(name).id
        lost: list[KolkError] = []
        try:
            self._act(m.DropTable(name=str(name), table=table), lost=lost, once=table is None)
        except TableNotFound:
            if not lost:
                raise

    def alter_table(self, table: TableId, based_on: int, operations: Sequence[Operation]) -> TableInfo:
        """See ``Service``. The server knows a retry by the version that it is based on."""
        changes = encode_operations(operations)
        return _table(self._act(m.AlterTable(table=table, based_on=based_on, changes=changes)))

    def set_options(self, table: TableId, options: Mapping[str, str]) -> TableInfo:
        """See ``Service``."""
        return _table(self._act(m.SetOptions(table=table, options=dict(options))))

    def schema(self, table: TableId, schema_id: int) -> Schema:
        """See ``Service``. A version never changes, so each is asked for once."""
        known = self._schemas.get((table, schema_id))
        if known is None:
            known = decode_schema(self._act(m.GetSchema(table=table, schema_id=schema_id)))
            if len(self._schemas) >= _SCHEMAS_MAX:
                self._schemas.clear()
            self._schemas[table, known.id] = known
        return known

    def truncate(self, table: TableId) -> dict[str, int]:
        """See ``Service``. Not tried again after a lost answer: somebody may have filled the empty table meanwhile. So
        it is asked of a server that has just answered, not over a connection that died long ago."""
        self._act(m.Hello(protocol=m.PROTOCOL))
        return self._act(m.Truncate(table=table), once=True)

    def describe(self, table: TableId) -> dict[str, object]:
        """See ``Service``."""
        return self._act(m.Describe(table=table))

    # --- partitions

    def partitions(self, table: TableId) -> list[Partition]:
        """See ``Service``."""
        return m.as_record(self._act(m.ListPartitions(table=table)), list[Partition])

    def add_partition(self, table: TableId, name: str, *, if_not_exists: bool = False) -> Partition:
        """See ``Service``. If an answer was lost, a partition that is there now has been made by us."""
        lost: list[KolkError] = []
        try:
            made = self._act(m.AddPartition(table=table, name=name, if_not_exists=if_not_exists), lost=lost)
        except PartitionExists:
            if not lost:
                raise
            made = self._act(m.AddPartition(table=table, name=name, if_not_exists=True))
        return m.as_record(made, Partition)

    def drop_partition(self, table: TableId, name: str, number: int | None = None) -> None:
        """See ``Service``. A retry after a lost answer must not drop a new partition of that name, hence the number;
        without it there is no retry."""
        if number is None:
            with suppress(PermissionDenied):
                number = next((each.id for each in self.partitions(table) if each.name == name), None)
        lost: list[KolkError] = []
        try:
            self._act(m.DropPartition(table=table, name=name, number=number), lost=lost, once=number is None)
        except PartitionNotFound:
            if not lost:
                raise

    # --- rows

    def put(self, table: TableId, write: Write, tag: PlainTag) -> dict[str, int]:
        """See ``Service``. If an answer was lost, and then the put was refused, nobody knows whether it was applied the
        first time: that is what is raised."""
        return self._put(_put_message(table, write, tag), StaleTag)

    def puts(self, table: TableId, writes: Iterable[tuple[Write, PlainTag]]) -> Generator[dict[str, int], None, None]:
        """See ``Service``. Each is sent as it comes, and the answers are taken in order, with ``IN_FLIGHT`` under way.

        If the connection breaks, all that are not answered are sent again in order, with their tags; nobody knows of
        those whether they were applied, if they are refused then.
        """
        pipeline = Pipeline(self._new_exchange)
        failure: Exception | None = None
        try:
            source = iter(writes)
            while True:
                try:
                    write, tag = next(source)
                except StopIteration:
                    break
                except Exception as error:  # noqa: BLE001 - raised below, after the answers to what was sent
                    failure = error
                    break
                pipeline.waiting.append(Sent(_put_message(table, write, tag)))
                with suppress(Unavailable):  # told, and tried again, when its answer is due
                    pipeline.send(self._retry.deadline())
                if len(pipeline.waiting) >= IN_FLIGHT:
                    yield self._advanced(pipeline)
            while pipeline.waiting:
                yield self._advanced(pipeline)
        except GeneratorExit:
            # What was taken is applied all the same, so that nobody has to guess what was.
            while pipeline.waiting:
                self._advanced(pipeline)
            raise
        finally:
            pipeline.end()
        if failure is not None:
            raise failure

    def get(
        self, table: TableId, keys: pa.RecordBatch, names: Sequence[str] | None = None, schema_id: int = 0
    ) -> pa.RecordBatch:
        """See ``Service``. Very many keys are asked for in pieces, so that no answer is too large for a message."""
        head = m.Get(table=table, schema=encode_schema(keys.schema), names=_list(names), schema_id=schema_id)
        if keys.num_rows <= _KEYS_PER_CALL:
            return self._get(head, keys)
        pieces = (keys.slice(start, _KEYS_PER_CALL) for start in range(0, keys.num_rows, _KEYS_PER_CALL))
        return pa.concat_batches([self._get(head, piece) for piece in pieces])

    def prefix(
        self, table: TableId, rows: pa.RecordBatch, names: Sequence[str] | None = None, schema_id: int = 0
    ) -> pa.RecordBatch:
        """See ``Service``."""
        schema, columns = encode_schema(rows.schema), rows.num_columns
        head = m.Get(table=table, schema=schema, prefix=columns, names=_list(names), schema_id=schema_id)
        return self._get(head, rows)

    # --- scans

    def open_scan(self, table: TableId, request: ScanRequest) -> RemoteScan:
        """See ``Service``. The server knows a retry by its nonce."""
        self._end_orphans()
        nonce = request.nonce or self._rng.token_hex()
        call = m.OpenScan(
            table=table,
            page_bytes=FIRST_PAGE_BYTES,
            names=_list(request.names),
            limit=request.limit,
            where=None if request.where is None else str(request.where),
            schema_id=request.schema_id,
            buckets=_list(request.buckets),
            nonce=nonce,
            shared=request.is_shared,
            ttl_seconds=request.ttl_seconds,
            linger_seconds=request.linger_seconds,
            resume=request.resume,
            source=request.source.value,
            lease=request.lease,
            generation=request.generation,
            pins=None if request.pins is None else dict(request.pins),
            position=request.position,
        )
        is_owned = not (request.is_shared and request.nonce)
        record, rows = opened_scan(
            lambda: self.scan_page(call), lambda: is_owned and self.end_scan("", nonce, CONNECT_SECONDS)
        )
        try:
            return self._reader(record, rows, request.limit, is_owned, request.is_shared)
        except BaseException:
            if is_owned and record.scan:
                with suppress(KolkError):
                    self.end_scan(record.scan, "", CONNECT_SECONDS)
            raise

    def join_scan(self, scan: str, token: str = "", buckets: Sequence[str] | None = None) -> RemoteScan:
        """See ``Service``."""
        record = m.as_record(self._act(m.JoinScan(scan=scan)), m.ScanRecord)
        return self._reader(record, None, None, False, True, token, buckets)

    def list_scans(self) -> list[ScanInfo]:
        """See ``Service``."""
        return m.as_record(self._act(m.ListScans()), list[ScanInfo])

    def close_scan(self, scan: str) -> bool:
        """See ``Service``. If an answer was lost, one that is not there has been ended by us."""
        lost: list[KolkError] = []
        return self._act(m.CloseScan(scan=scan), lost=lost) or bool(lost)

    def scan_page(self, call: m.OpenScan | m.NextPage) -> tuple[Any, pa.Buffer]:
        """See ``ScanCalls``."""
        message = m.join(call)
        return self._retry.run(lambda deadline: self._call(message, deadline))

    def scan_stream(self, ticket: m.ReadScan, deadline: Deadline) -> Stream:
        """See ``ScanCalls``."""
        return self._open(ticket, deadline)

    def end_scan(self, scan: str, nonce: str, seconds: float) -> bool:
        """See ``ScanCalls``."""
        return self._act(m.CloseScan(scan=scan, nonce=nonce), self._retry.deadline(seconds))

    def orphan_scan(self, scan: str) -> None:
        """See ``ScanCalls``."""
        self._orphans.append(scan)

    def _end_orphans(self) -> None:
        """End the scans that were dropped without a close, before one more is opened: it may need their place."""
        while self._orphans:
            with suppress(KolkError, IndexError):
                self.end_scan(self._orphans.popleft(), "", CONNECT_SECONDS)

    # --- the log

    def bounds(self, table: TableId) -> dict[str, tuple[int, int]]:
        """See ``Service``."""
        return {bucket: (start, end) for bucket, (start, end) in self._act(m.Bounds(table=table)).items()}

    def offsets_at(self, table: TableId, timestamp_ms: int) -> dict[str, int]:
        """See ``Service``."""
        return self._act(m.OffsetsAt(table=table, timestamp_ms=timestamp_ms))

    def offsets_since(self, table: TableId, timestamp_ms: int) -> dict[str, int | None]:
        """See ``Service``."""
        return self._act(m.OffsetsAt(table=table, timestamp_ms=timestamp_ms, complete=True))

    def open_changes(
        self,
        table: TableId,
        starts: Mapping[str, int],
        stops: Mapping[str, int | None],
        where: Predicate | None = None,
        schema_id: int | None = None,
    ) -> ChangeStream:
        """See ``Service``."""
        text = None if where is None else str(where)

        def reopened(offsets: Mapping[str, int], deadline: Deadline) -> Stream:
            ticket = m.Follow(table=table, starts=dict(offsets), stops=dict(stops), where=text, schema_id=schema_id)
            return self._open(ticket, deadline)

        return ChangeStream(reopened, starts, self._retry, partial(self.schema, table))

    # --- followers

    def open_follower(self, table: TableId, name: str, reader: int, starts: Mapping[str, int] | None) -> Session:
        """See ``Service``. The server knows a retry by its reader."""
        given = None if starts is None else dict(starts)
        request = m.OpenFollower(table=table, name=name, reader=reader.to_bytes(16, "big"), starts=given)
        return m.as_record(self._act(request), Session)

    def commit_follower(self, table: TableId, name: str, epoch: int, offsets: Mapping[str, int]) -> None:
        """See ``Service``."""
        self._act(m.CommitFollower(table=table, name=name, epoch=epoch, offsets=dict(offsets)))

    def drop_follower(self, table: TableId, name: str) -> None:
        """See ``Service``. If an answer was lost, a follower that is not there has been dropped by us."""
        lost: list[KolkError] = []
        try:
            self._act(m.DropFollower(table=table, name=name), lost=lost)
        except FollowerNotFound:
            if not lost:
                raise

    def followers(self) -> list[Follower]:
        """See ``Service``. They come in pieces."""
        found: list[Follower] = []
        while records := self._act(m.ListFollowers(after=(found[-1].table, found[-1].name) if found else None)):
            found += m.as_record(records, list[Follower])
        return found

    def close(self) -> None:
        """Let the connection go. Idempotent."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        self._spares.close()
        self._deadlines.close()
        self._client.close()

    # --- inside

    def _act(
        self,
        action: m.Action,
        deadline: Deadline | None = None,
        lost: list[KolkError] | None = None,
        patience: Deadline | None = None,
        *,
        once: bool = False,
    ) -> Any:
        """A request without rows. ``lost`` gets the failures after which nobody knows whether it was served.
        ``patience`` is how long to wait for an answer, if that is longer than to try again. What is sent ``once`` is
        not sent again after such a failure."""
        body = m.encode(action)

        def attempt(deadline: Deadline) -> Any:
            self._check_usable()
            seconds = max((patience or deadline).seconds_left, 0.001)
            options = flight.FlightCallOptions(timeout=seconds, headers=self._headers)
            try:
                (reply,) = self._client.do_action(flight.Action("kolk", body), options)
            except Exception as error:
                meant = typed(error, self._address)
                if lost is not None and isinstance(meant, Unreachable | TimedOut):
                    lost.append(meant)
                meant.retriable = meant.retriable and not once
                raise meant from error
            return result(m.decode_answer(reply.body))

        return self._retry.run(attempt, deadline)

    def _deadline(self, seconds: float) -> Deadline:
        return self._retry.long_deadline(seconds)

    def _soon(self) -> Deadline:
        return self._retry.deadline(CONNECT_SECONDS)

    def _sent(self, message: pa.Buffer, lost: list[KolkError] | None = None) -> Any:
        """A request with rows, and its answer without; ``lost`` as above."""

        def attempt(deadline: Deadline) -> Any:
            try:
                return self._call(message, deadline)[0]
            except LEAVE_DOUBT as error:
                if lost is not None:
                    lost.append(error)
                raise

        return self._retry.run(attempt)

    def _put(self, message: pa.Buffer, *decisive: type[KolkError]) -> dict[str, int]:
        """A put, and where it ends; ``decisive`` as in ``doubted``."""
        lost: list[KolkError] = []
        with doubted(lost, *decisive):
            return self._sent(message, lost)

    def _advanced(self, pipeline: Pipeline) -> dict[str, int]:
        """The same of the first that waits in a pipeline."""
        with doubted(pipeline.waiting[0].lost, StaleTag):
            return self._retry.run(pipeline.advance)

    def _reader(
        self,
        record: m.ScanRecord,
        rows: pa.Buffer | None,
        limit: int | None,
        is_owned: bool,
        is_shared: bool,
        token: str = "",
        buckets: Sequence[str] | None = None,
    ) -> RemoteScan:
        schema = self.schema(TableId(record.table), record.schema_id).arrow_of(record.names)
        return RemoteScan(
            self,
            record,
            schema,
            rows,
            self._retry,
            cursor=self._rng.token_hex(),
            limit=limit,
            is_owned=is_owned,
            is_shared=is_shared,
            token=token,
            buckets=buckets,
        )

    def _get(self, head: m.Get, rows: pa.RecordBatch) -> pa.RecordBatch:
        message = m.join(head, encode_rows(rows))
        schema, found = self._retry.run(lambda deadline: self._call(message, deadline))
        return read_answer(found, _schema(schema))

    def _call(self, message: pa.Buffer, deadline: Deadline) -> tuple[Any, pa.Buffer]:
        """A request with rows, and its answer with rows."""
        exchange = self._exchange()
        try:
            answered = exchange.call(message, deadline)
        except Unavailable:
            # The others lead to the same server, which is gone, or about to go and keeps them until its end.
            self._spares.drop_all()
            raise
        self._spares.keep(exchange)
        return answered

    def _exchange(self) -> Exchange:
        self._check_usable()
        return self._spares.take() or self._new_exchange()

    def _new_exchange(self) -> Exchange:
        self._check_usable()
        try:
            writer, reader = self._client.do_exchange(_DESCRIPTOR, self._options())
        except Exception as error:
            raise typed(error, self._address) from error
        return Exchange(writer, reader, self._deadlines, self._address)

    def _open(self, ticket: m.Ticket, deadline: Deadline) -> Stream:
        return Stream(self._new_exchange(), m.join(ticket), deadline)

    def _options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(headers=self._headers)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork("this connection was made before a fork; call kolk.connect in the child")
        if self._closed:
            raise Closed("the connection is closed; call kolk.connect again")


def _put_message(table: TableId, write: Write, tag: PlainTag) -> pa.Buffer:
    head = m.Put(table=table, writer=tag.writer.to_bytes(16, "big"), seq=tag.seq, **write_fields(write))
    return m.join(head, encode_rows(write.rows))


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _table(record: Mapping[str, Any]) -> TableInfo:
    return decode_table(TableId(record["id"]), record["record"])


@lru_cache(maxsize=256)
def _schema(encoded: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(encoded))
