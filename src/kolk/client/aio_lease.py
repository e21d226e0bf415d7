"""Leases for asyncio: ``kolk.Lease`` under its names, awaited, and ``async with table.lease() as lease``.

A lease is renewed in a thread of its own, whatever the event loop does meanwhile: a loop that is busy for long loses no
lease. What its holder is told, that it is lost, is told in the loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from kolk.client.aio_opener import opened
from kolk.client.aio_shown import shown
from kolk.client.aio_streams import Callback, in_loop
from kolk.client.lease import Lease
from kolk.model.durations import Duration
from kolk.model.lease_state import LeasedTable, LeaseState

Run = Callable[..., Awaitable[Any]]


class AsyncLease:
    """See ``kolk.Lease``: scan with it, ``table.scan(source=lease)``. An async context manager."""

    def __init__(self, lease: Lease, run: Run) -> None:
        self.inner = lease
        self._run = run

    @property
    def id(self) -> str:
        """See ``kolk.Lease.id``."""
        return self.inner.id

    @property
    def state(self) -> LeaseState:
        """See ``kolk.Lease.state``."""
        return self.inner.state

    @property
    def offsets(self) -> dict[str, dict[str, int]]:
        """See ``kolk.Lease.offsets``."""
        return self.inner.offsets

    @property
    def snapshots(self) -> dict[str, dict[str, int]]:
        """See ``kolk.Lease.snapshots``."""
        return self.inner.snapshots

    @property
    def unavailable(self) -> dict[str, dict[str, int]]:
        """See ``kolk.Lease.unavailable``."""
        return self.inner.unavailable

    @property
    def consistent(self) -> bool:
        """See ``kolk.Lease.consistent``."""
        return self.inner.consistent

    @property
    def is_lost(self) -> bool:
        """See ``kolk.Lease.is_lost``."""
        return self.inner.is_lost

    def table(self, name: str) -> LeasedTable | None:
        """See ``kolk.Lease.table``."""
        return self.inner.table(name)

    def check(self) -> None:
        """See ``kolk.Lease.check``; nobody is asked for it, so it is not awaited."""
        self.inner.check()

    async def renew(self, ttl: Duration | None = None) -> None:
        """See ``kolk.Lease.renew``."""
        await self._run(self.inner.renew, ttl)

    async def add(self, tables: Iterable[str] | Mapping[str, Mapping[str, int] | None]) -> None:
        """See ``kolk.Lease.add``."""
        await self._run(self.inner.add, tables)

    async def release(self, table: str, buckets: Sequence[str] | None = None) -> None:
        """See ``kolk.Lease.release``."""
        await self._run(self.inner.release, table, buckets)

    async def detach(self) -> LeaseState:
        """See ``kolk.Lease.detach``."""
        return await asyncio.to_thread(self.inner.detach)

    async def close(self) -> None:
        """Let everything go. Idempotent."""
        # Not in the pool, whose threads may all wait for the server.
        await asyncio.to_thread(self.inner.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await asyncio.to_thread(lambda: self.inner.__exit__(kind, *exc))

    def __repr__(self) -> str:
        return shown(self.inner)


class LeaseOpening:
    """A lease that is being taken: await it, or enter it with ``async with``."""

    def __init__(
        self,
        run: Run,
        opening: Callable[..., Lease],
        on_lost: Callback | None,
        give_up: Callable[[Lease], object] = Lease.close,
    ) -> None:
        self._run = run
        self._opening = opening
        self._on_lost = on_lost
        self._give_up = give_up
        self._lease: AsyncLease | None = None

    def __await__(self) -> Generator[Any, None, AsyncLease]:
        return self._opened().__await__()

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._opened()
        return self._lease

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, *exc)

    async def _opened(self) -> AsyncLease:
        told = None if self._on_lost is None else in_loop(self._on_lost)
        return AsyncLease(await opened(self._run, partial(self._opening, on_lost=told), self._give_up), self._run)


def plain(value: Any) -> Any:
    """What the client behind takes: of a lease the one within."""
    return value.inner if isinstance(value, AsyncLease) else value
