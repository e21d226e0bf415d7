"""Transactions for asyncio: ``kolk.client.transaction`` under its names, awaited.

``async with table.transaction("nightly-load", 42) as tx: await tx.put(rows)``. What is awaited together goes one after
the other, since a transaction has an order.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

from kolk.client.aio_handle import AsyncHandle
from kolk.client.rows import Data
from kolk.client.transaction import Transaction
from kolk.model.transaction import CommitResult

T = TypeVar("T")
Run = Callable[..., Awaitable[Any]]


class AsyncTransaction:
    """See ``kolk.client.transaction.Transaction``. An async context manager, of one event loop."""

    def __init__(self, transaction: Transaction, run: Run) -> None:
        self._inner = transaction
        self._run = run
        self._turn = asyncio.Lock()
        # A call whose task was cancelled goes on in its thread, and the next one waits for it there.
        self._thread = threading.Lock()

    @property
    def app_id(self) -> str:
        """The application."""
        return self._inner.app_id

    @property
    def version(self) -> int:
        """Its version."""
        return self._inner.version

    @property
    def verdict(self) -> str:
        """See ``Transaction.verdict``."""
        return self._inner.verdict

    @property
    def is_new(self) -> bool:
        """See ``Transaction.is_new``."""
        return self._inner.is_new

    @property
    def offsets(self) -> dict[str, dict[str, int]]:
        """See ``Transaction.offsets``."""
        return self._inner.offsets

    async def put(
        self,
        data: Data,
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        table: str | AsyncHandle | None = None,
    ) -> None:
        """See ``Transaction.put``."""
        await self._in_turn(self._inner.put, data, columns, mode, table=_plain(table))

    async def delete(
        self,
        keys: Data,
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        table: str | AsyncHandle | None = None,
    ) -> None:
        """See ``Transaction.delete``."""
        await self._in_turn(self._inner.delete, keys, columns, mode, table=_plain(table))

    async def truncate(self, *, table: str | AsyncHandle | None = None) -> None:
        """See ``Transaction.truncate``."""
        await self._in_turn(self._inner.truncate, table=_plain(table))

    async def commit(self) -> CommitResult:
        """See ``Transaction.commit``. A task that is cancelled leaves it going on in its thread."""
        return await self._in_turn(self._inner.commit)

    async def rollback(self) -> None:
        """See ``Transaction.rollback``."""
        await self._in_turn(self._inner.rollback)

    async def __aenter__(self) -> Self:
        self._inner.__enter__()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._in_turn(self._inner.__exit__, kind, error, trace)

    async def _in_turn(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        async with self._turn:
            return await self._run(self._alone, call, *args, **options)

    def _alone(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        with self._thread:
            return call(*args, **options)


def _plain(table: str | AsyncHandle | None) -> Any:
    return table.inner if isinstance(table, AsyncHandle) else table
