"""What a table is and how it is changed, for asyncio: ``kolk.client.handle`` under its names, awaited."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from kolk.client.aio_shown import shown
from kolk.client.table import Table
from kolk.model.evolution import Operation
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo


class AsyncHandle:
    """See ``kolk.client.handle.Handle``."""

    def __init__(self, table: Table, run: Callable[..., Awaitable[Any]]) -> None:
        self._inner = table
        self._run = run

    def __repr__(self) -> str:
        return shown(self._inner)

    @property
    def inner(self) -> Table:
        """The table behind it."""
        return self._inner

    @property
    def name(self) -> str:
        """See ``kolk.Table.name``."""
        return self._inner.name

    @property
    def schema(self) -> Schema:
        """See ``kolk.Table.schema``."""
        return self._inner.schema

    @property
    def info(self) -> TableInfo:
        """See ``kolk.Table.info``."""
        return self._inner.info

    async def describe(self) -> dict[str, object]:
        """See ``kolk.Table.describe``."""
        return await self._run(self._inner.describe)

    async def refresh(self) -> Schema:
        """See ``kolk.Table.refresh``."""
        return await self._run(self._inner.refresh)

    async def alter(self, operations: Iterable[Operation] | Operation) -> Schema:
        """See ``kolk.Table.alter``."""
        return await self._run(self._inner.alter, operations)

    async def add_column(self, column: Column | str, *args: Any, **options: Any) -> Schema:
        """See ``kolk.Table.add_column``."""
        return await self._run(self._inner.add_column, column, *args, **options)

    async def drop_column(self, name: str) -> Schema:
        """See ``kolk.Table.drop_column``."""
        return await self._run(self._inner.drop_column, name)

    async def rename_column(self, name: str, to: str) -> Schema:
        """See ``kolk.Table.rename_column``."""
        return await self._run(self._inner.rename_column, name, to)

    async def widen_column(self, name: str, type: Any) -> Schema:
        """See ``kolk.Table.widen_column``."""
        return await self._run(self._inner.widen_column, name, type)

    async def move_column(self, name: str, *, first: bool = False, after: str | None = None) -> Schema:
        """See ``kolk.Table.move_column``."""
        return await self._run(self._inner.move_column, name, first=first, after=after)

    async def drop_not_null(self, name: str) -> Schema:
        """See ``kolk.Table.drop_not_null``."""
        return await self._run(self._inner.drop_not_null, name)

    async def set_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """See ``kolk.Table.set_options``."""
        return await self._run(self._inner.set_options, options)
