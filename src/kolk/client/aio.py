"""The client for asyncio: the calls of ``kolk.Database`` and ``kolk.Table`` under their names, awaited. Not here are
those of one thread, or of Spark: ``put_stream`` (await several puts at once instead) and the tasks of an owner.

It runs in a few threads: Arrow Flight has no other form. What is more than a wrapper is ``get_one``: lookups that are
asked for at the same time travel together, so that a thousand of them cost a few calls. Everything belongs to the event
loop in which it was opened.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

import pyarrow as pa

from kolk.client.aio_handle import AsyncHandle
from kolk.client.aio_lease import LeaseOpening, plain
from kolk.client.aio_opener import opened
from kolk.client.aio_shown import shown
from kolk.client.aio_streams import AsyncBootstrap, AsyncChangelog, AsyncScan, Callback, Opening, in_loop
from kolk.client.aio_transaction import AsyncTransaction
from kolk.client.aio_writer import WriterOpening
from kolk.client.database import Database
from kolk.client.found import dicts_of
from kolk.client.lease import Lease
from kolk.client.rows import Data
from kolk.client.table import PutResult, Table
from kolk.errors import Closed, KolkError
from kolk.model.backup import BackupInfo
from kolk.model.follower import Follower
from kolk.model.lease import LeaseInfo
from kolk.model.lease_state import LeaseState
from kolk.model.owner import OwnerInfo
from kolk.model.partition import Partition
from kolk.model.scan import ScanInfo
from kolk.model.schema import Schema
from kolk.model.snapshot import SnapshotInfo
from kolk.model.transaction import TransactionInfo

T = TypeVar("T")
_THREADS = 16
_LOOKUPS_AT_ONCE = 4
_KEYS_PER_LOOKUP = 1_000
_CLOSED = "this is closed; open it again"
_WRONG_KEY = (KolkError, ValueError, OverflowError)


async def open_database(connect: Callable[[], Database]) -> "AsyncDatabase":
    """Call this in a thread, and wrap what it opens; ``kolk.aio.connect`` is for everybody else."""
    pool = ThreadPoolExecutor(_THREADS, "kolk-aio")
    try:
        return AsyncDatabase(await opened(partial(_in_thread, pool), connect, Database.close), pool)
    except BaseException:
        pool.shutdown(wait=False)
        raise


class AsyncDatabase:
    """See ``kolk.Database``. An async context manager."""

    def __init__(self, database: Database, pool: ThreadPoolExecutor) -> None:
        self._database = database
        self._pool = pool

    async def create_table(self, name: str, schema: Schema, **options: Any) -> "AsyncTable":
        """See ``kolk.Database.create_table``."""
        return self._table(await self._run(self._database.create_table, name, schema, **options))

    async def table(self, name: str) -> "AsyncTable":
        """See ``kolk.Database.table``."""
        return self._table(await self._run(self._database.table, name))

    async def tables(self) -> "list[AsyncTable]":
        """See ``kolk.Database.tables``."""
        return [self._table(table) for table in await self._run(self._database.tables)]

    async def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """See ``kolk.Database.drop_table``."""
        await self._run(self._database.drop_table, name, if_exists=if_exists)

    async def execute(self, statement: str) -> "AsyncTable | pa.Table | None":
        """See ``kolk.Database.execute``."""
        answer = await self._run(self._database.execute, statement)
        return self._table(answer) if isinstance(answer, Table) else answer

    async def followers(self) -> list[Follower]:
        """See ``kolk.Database.followers``."""
        return await self._run(self._database.followers)

    async def drop_follower(self, table: str, name: str) -> None:
        """See ``kolk.Database.drop_follower``."""
        await self._run(self._database.drop_follower, table, name)

    async def scans(self) -> list[ScanInfo]:
        """See ``kolk.Database.scans``."""
        return await self._run(self._database.scans)

    async def close_scan(self, scan: str) -> bool:
        """See ``kolk.Database.close_scan``."""
        return await self._run(self._database.close_scan, scan)

    def transaction(self, app_id: str, version: int, **options: str) -> AsyncTransaction:
        """See ``kolk.Database.transaction``: ``async with db.transaction("nightly-load", 42) as tx``."""
        return AsyncTransaction(self._database.transaction(app_id, version, **options), self._run)

    async def transactions(self) -> list[TransactionInfo]:
        """See ``kolk.Database.transactions``."""
        return await self._run(self._database.transactions)

    async def locks(self) -> list[OwnerInfo]:
        """See ``kolk.Database.locks``."""
        return await self._run(self._database.locks)

    async def release_lock(self, table: str, owner: str, *, keep: bool = False) -> bool:
        """See ``kolk.Database.release_lock``."""
        return await self._run(self._database.release_lock, table, owner, keep=keep)

    async def discard(self, handles: Iterable[str]) -> int:
        """See ``kolk.Database.discard``."""
        return await self._run(self._database.discard, handles)

    def lease(self, *args: Any, on_lost: Callback | None = None, **options: Any) -> LeaseOpening:
        """See ``kolk.Database.lease``: ``async with db.lease([...]) as lease``, or ``lease = await db.lease([...])``.

        ``on_lost`` is called in the event loop, and may be a coroutine function.
        """
        return LeaseOpening(self._run, partial(self._database.lease, *args, **options), on_lost)

    def join_lease(self, *args: Any, on_lost: Callback | None = None, **options: Any) -> LeaseOpening:
        """See ``kolk.Database.join_lease``; opened like ``lease``."""
        # One whose task is cancelled leaves the lease to whoever joins it next: it was there before.
        return LeaseOpening(self._run, partial(self._database.join_lease, *args, **options), on_lost, Lease.detach)

    async def leases(self) -> list[LeaseInfo]:
        """See ``kolk.Database.leases``."""
        return await self._run(self._database.leases)

    async def describe_lease(self, lease_id: str) -> LeaseState:
        """See ``kolk.Database.describe_lease``."""
        return await self._run(self._database.describe_lease, lease_id)

    async def drop_lease(self, lease_id: str) -> bool:
        """See ``kolk.Database.drop_lease``."""
        return await self._run(self._database.drop_lease, lease_id)

    async def backup(self, path: Any, *, on_progress: Callback | None = None) -> BackupInfo:
        """See ``kolk.Database.backup``. ``on_progress`` is called in the event loop, and may be a coroutine function.
        A task that is cancelled leaves it going on in its thread."""
        told = None if on_progress is None else in_loop(on_progress)
        return await self._run(self._database.backup, path, on_progress=told)

    async def status(self) -> dict[str, Any]:
        """See ``kolk.Database.status``."""
        return await self._run(self._database.status)

    async def close(self) -> None:
        """Let go. Idempotent."""
        # Not in the pool, which is about to end and whose threads may all wait for the server.
        await asyncio.to_thread(self._database.close)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return shown(self._database)

    def _table(self, table: Table) -> "AsyncTable":
        return AsyncTable(table, self._run)

    async def _run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        return await _in_thread(self._pool, partial(call, *args, **options))


class AsyncTable(AsyncHandle):
    """See ``kolk.Table``."""

    def __init__(self, table: Table, run: Callable[..., Awaitable[Any]]) -> None:
        super().__init__(table, run)
        self._lookups = _Lookups(table, run)

    async def put(self, data: Data, *args: Any, **options: Any) -> PutResult:
        """See ``kolk.Table.put``. Puts that are awaited together may be applied in any order, and one whose task is
        cancelled goes on in its thread; with a ``tag`` of your own you can put it again."""
        return await self._run(self._inner.put, data, *args, **options)

    async def retract(self, data: Data, *args: Any, **options: Any) -> PutResult:
        """See ``kolk.Table.retract``."""
        return await self._run(self._inner.retract, data, *args, **options)

    async def preaggregate(self, data: Data, *args: Any, **options: Any) -> pa.RecordBatch:
        """See ``kolk.Table.preaggregate``."""
        return await self._run(self._inner.preaggregate, data, *args, **options)

    async def delete(self, keys: Data, *args: Any, **options: Any) -> PutResult:
        """See ``kolk.Table.delete``."""
        return await self._run(self._inner.delete, keys, *args, **options)

    async def get(self, keys: Data, *args: Any, **options: Any) -> pa.Table:
        """See ``kolk.Table.get``."""
        return await self._run(self._inner.get, keys, *args, **options)

    async def get_one(self, /, **key: Any) -> dict[str, Any] | None:
        """See ``kolk.Table.get_one``. Those that are asked for at the same time travel together."""
        return await self._lookups.get(key)

    async def prefix(self, *args: Any, **options: Any) -> pa.Table:
        """See ``kolk.Table.prefix``."""
        return await self._run(self._inner.prefix, *args, **options)

    async def partitions(self) -> list[Partition]:
        """See ``kolk.Table.partitions``."""
        return await self._run(self._inner.partitions)

    async def add_partition(self, *args: Any, **options: Any) -> Partition:
        """See ``kolk.Table.add_partition``."""
        return await self._run(self._inner.add_partition, *args, **options)

    async def drop_partition(self, *args: Any, **options: Any) -> None:
        """See ``kolk.Table.drop_partition``."""
        await self._run(self._inner.drop_partition, *args, **options)

    async def take_snapshot(self) -> list[SnapshotInfo]:
        """See ``kolk.Table.take_snapshot``."""
        return await self._run(self._inner.take_snapshot)

    async def snapshots(self) -> list[SnapshotInfo]:
        """See ``kolk.Table.snapshots``."""
        return await self._run(self._inner.snapshots)

    def lease(self, *args: Any, on_lost: Callback | None = None, **options: Any) -> LeaseOpening:
        """See ``kolk.Table.lease``: ``async with table.lease() as lease``, or ``lease = await table.lease()``.

        ``on_lost`` is called in the event loop, and may be a coroutine function.
        """
        return LeaseOpening(self._run, partial(self._inner.lease, *args, **options), on_lost)

    def transaction(self, app_id: str, version: int, **options: str) -> AsyncTransaction:
        """See ``kolk.Table.transaction``: ``async with table.transaction("nightly-load", 42) as tx``."""
        return AsyncTransaction(self._inner.transaction(app_id, version, **options), self._run)

    def writer(self, *args: Any, **options: Any) -> WriterOpening:
        """See ``kolk.Table.writer``: ``async with table.writer("job-1", ["pv"]) as w``, or ``w = await
        table.writer(...)``."""
        return WriterOpening(self._run, partial(self._inner.writer, *args, **options))

    async def truncate(self) -> dict[str, int]:
        """See ``kolk.Table.truncate``."""
        return await self._run(self._inner.truncate)

    def scan(
        self,
        *args: Any,
        on_partition: Callback | None = None,
        on_progress: Callback | None = None,
        **options: Any,
    ) -> Opening[AsyncScan]:
        """See ``kolk.Table.scan``: ``async with table.scan() as scan``, or ``scan = await table.scan()``.

        ``on_partition`` and ``on_progress`` are called in the event loop, and may be coroutine functions.
        """
        given = {name: plain(value) for name, value in options.items()}
        opening = partial(self._inner.scan, *map(plain, args), **given)
        return Opening(AsyncScan, opening, on_partition=on_partition, on_progress=on_progress)

    def join_scan(
        self,
        scan: str,
        *,
        on_partition: Callback | None = None,
        on_progress: Callback | None = None,
        **options: Any,
    ) -> Opening[AsyncScan]:
        """See ``kolk.Table.join_scan``; opened like a scan."""
        opening = partial(self._inner.join_scan, scan, **options)
        return Opening(AsyncScan, opening, on_partition=on_partition, on_progress=on_progress)

    def bootstrap(
        self,
        *args: Any,
        on_partition: Callback | None = None,
        on_progress: Callback | None = None,
        **options: Any,
    ) -> Opening[AsyncBootstrap]:
        """See ``kolk.Table.bootstrap``; opened like a scan."""
        opening = partial(self._inner.bootstrap, *args, **options)
        return Opening(AsyncBootstrap, opening, on_partition=on_partition, on_progress=on_progress)

    def changelog(self, *args: Any, on_partition: Callback | None = None, **options: Any) -> Opening[AsyncChangelog]:
        """See ``kolk.Table.changelog``; opened like a scan."""
        opening = partial(self._inner.changelog, *args, **options)
        return Opening(AsyncChangelog, opening, on_partition=on_partition)


async def _in_thread(pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    try:
        future = pool.submit(call)
    except RuntimeError as error:  # the pool's word for it
        raise Closed(_CLOSED) from error
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if future.cancelled() and task is not None and not task.cancelling():
            # By the end of the pool: the task itself was not cancelled, and must not look so.
            raise Closed(_CLOSED) from None
        raise


class _Lookups:
    """Joins single lookups into batches: those that wait when a call becomes free go with it. Of one event loop."""

    def __init__(self, table: Table, run: Callable[..., Awaitable[Any]]) -> None:
        self._table = table
        self._run = run
        self._waiting: deque[tuple[dict[str, Any], asyncio.Future[dict[str, Any] | None]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, key: dict[str, Any]) -> dict[str, Any] | None:
        self._table.whole_key(key)
        found: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, found))
        if len(self._tasks) < _LOOKUPS_AT_ONCE:
            task = asyncio.create_task(self._serve())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await found

    async def _serve(self) -> None:
        """Serve lookups as long as some wait. It starts after everybody who is ready now has asked."""
        task = asyncio.current_task()
        assert task is not None
        try:
            while self._waiting:
                await self._serve_some()
        finally:
            # Not only when it has ended: whoever was served last runs before that, and may ask again.
            self._tasks.discard(task)

    async def _serve_some(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _KEYS_PER_LOOKUP))]
        try:
            rows: list[Any] = await self._run(self._rows_of, [key for key, _ in taken])
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            rows = [error] * len(taken)
        except BaseException:
            # Closed, or the loop ends, in the middle: nobody is left waiting.
            for _, found in (*taken, *self._waiting):
                found.cancel()
            self._waiting.clear()
            raise
        for (_, found), row in zip(taken, rows, strict=True):
            if found.done():
                continue
            if isinstance(row, BaseException):
                found.set_exception(row)
            else:
                found.set_result(row)

    def _rows_of(self, keys: list[dict[str, Any]]) -> list[Any]:
        """The row of each key, or None, or its error: one key that is wrong does not fail the others."""
        try:
            return self._together(keys)
        except _WRONG_KEY as error:
            if len(keys) == 1:
                return [error]
        return [self._alone(key) for key in keys]

    def _together(self, keys: list[dict[str, Any]]) -> list[Any]:
        names = self._table.schema.primary_key
        rows = dicts_of(self._table.get(keys))
        # A key that is asked for twice has a row twice: everybody gets one of their own.
        by_key: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            by_key.setdefault(tuple(row[name] for name in names), []).append(row)
        found = [_popped(by_key, tuple(key[name] for name in names)) for key in keys]
        if sum(row is not None for row in found) != len(rows):
            # A key was given in another form than it is kept in, such as a date as a timestamp, bytes as a bytearray.
            return [self._alone(key) if row is None else row for key, row in zip(keys, found, strict=True)]
        return found

    def _alone(self, key: dict[str, Any]) -> Any:
        try:
            return self._table.get_one(**key)
        except _WRONG_KEY as error:
            return error


def _popped(by_key: dict[tuple[Any, ...], list[dict[str, Any]]], key: tuple[Any, ...]) -> dict[str, Any] | None:
    try:
        rows = by_key.get(key)
    except TypeError:  # it has no hash
        return None
    return rows.pop() if rows else None
