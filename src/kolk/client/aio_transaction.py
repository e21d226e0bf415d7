"""Transactions for asyncio: ``kolk.client.transaction`` under its names, awaited.

``async with table.transaction("nightly-load", 42) as tx: await tx.put(rows)``. What is awaited together goes one after
the other, since a transaction has an order.
"""

from collections.abc import Sequence
from typing import Any, Self

from kolk.client.aio_handle import AsyncHandle
from kolk.client.aio_shown import shown
from kolk.client.aio_turns import Run, Turns
from kolk.client.rows import Data
from kolk.client.transaction import Transaction
from kolk.model.transaction import CommitResult


class AsyncTransaction:
    """See ``kolk.client.transaction.Transaction``. An async context manager, of one event loop."""

    def __init__(self, transaction: Transaction, run: Run) -> None:
        self._inner = transaction
        self._turns = Turns(run)

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
        await self._turns.take(self._inner.put, data, columns, mode, table=_plain(table))

    async def delete(
        self,
        keys: Data,
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        table: str | AsyncHandle | None = None,
    ) -> None:
        """See ``Transaction.delete``."""
        await self._turns.take(self._inner.delete, keys, columns, mode, table=_plain(table))

    async def truncate(self, *, table: str | AsyncHandle | None = None) -> None:
        """See ``Transaction.truncate``."""
        await self._turns.take(self._inner.truncate, table=_plain(table))

    async def commit(self) -> CommitResult:
        """See ``Transaction.commit``. A task that is cancelled leaves it going on in its thread."""
        return await self._turns.take(self._inner.commit)

    async def rollback(self) -> None:
        """See ``Transaction.rollback``."""
        await self._turns.take(self._inner.rollback)

    async def __aenter__(self) -> Self:
        self._inner.__enter__()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._turns.take(self._inner.__exit__, kind, error, trace)

    def __repr__(self) -> str:
        return shown(self._inner)


def _plain(table: str | AsyncHandle | None) -> Any:
    return table.inner if isinstance(table, AsyncHandle) else table
