"""Writers that own columns, for asyncio: ``kolk.client.writer`` under its names, awaited.

``async with table.writer(owner="job-1", columns=["pv"]) as w: await w.put(rows)``. What is awaited together goes one
after the other, since a writer has an order. Its lock is renewed in a thread of its own, whatever the event loop does
meanwhile.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Self

from kolk.client.aio_opener import opened
from kolk.client.aio_shown import shown
from kolk.client.aio_turns import Run, Turns
from kolk.client.rows import Data
from kolk.client.writer import Writer
from kolk.model.ids import PlainTag


class AsyncWriter:
    """See ``kolk.client.writer.Writer``. An async context manager, of one event loop."""

    def __init__(self, writer: Writer, run: Run) -> None:
        self._inner = writer
        self._turns = Turns(run)

    @property
    def owner(self) -> str:
        """Its name."""
        return self._inner.owner

    @property
    def committed(self) -> int | None:
        """See ``Writer.committed``."""
        return self._inner.committed

    @property
    def epoch(self) -> int:
        """See ``Writer.epoch``."""
        return self._inner.epoch

    @property
    def user_state(self) -> bytes:
        """See ``Writer.user_state``."""
        return self._inner.user_state

    def state(self, epoch: int | None = None) -> str:
        """See ``Writer.state``; nobody is asked for it, so it is not awaited."""
        return self._inner.state(epoch)

    async def put(
        self,
        data: Data,
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        epoch: int | None = None,
        tag: PlainTag | None = None,
    ) -> dict[str, int]:
        """See ``Writer.put``. A task that is cancelled leaves it going on in its thread."""
        return await self._turns.take(self._inner.put, data, columns, mode, epoch=epoch, tag=tag)

    async def delete(self, keys: Data, *, epoch: int | None = None, tag: PlainTag | None = None) -> dict[str, int]:
        """See ``Writer.delete``."""
        return await self._turns.take(self._inner.delete, keys, epoch=epoch, tag=tag)

    async def commit(self, epoch: int | None = None, user_state: bytes = b"") -> None:
        """See ``Writer.commit``. A task that is cancelled leaves it going on in its thread."""
        await self._turns.take(self._inner.commit, epoch, user_state)

    async def close(self) -> None:
        """See ``Writer.close``."""
        await self._turns.take(self._inner.close)

    async def detach(self) -> None:
        """See ``Writer.detach``."""
        await self._turns.take(self._inner.detach)

    async def release(self) -> None:
        """See ``Writer.release``."""
        await self._turns.take(self._inner.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._turns.take(self._inner.__exit__, kind, error, trace)

    def __repr__(self) -> str:
        return shown(self._inner)


class WriterOpening:
    """A writer that begins: await it, or enter it with ``async with``."""

    def __init__(self, run: Run, begin: Callable[[], Writer]) -> None:
        self._run = run
        self._begin = begin
        self._writer: AsyncWriter | None = None

    def __await__(self) -> Generator[Any, None, AsyncWriter]:
        return self._begun().__await__()

    async def __aenter__(self) -> AsyncWriter:
        self._writer = await self._begun()
        return self._writer

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._writer is not None
        await self._writer.__aexit__(kind, error, trace)

    async def _begun(self) -> AsyncWriter:
        return AsyncWriter(await opened(self._run, self._begin, Writer.close), self._run)
