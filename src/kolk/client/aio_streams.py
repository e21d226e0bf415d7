"""What is read bit by bit, for asyncio: scans, changelogs and bootstraps under their names, ``async for``.

Each runs in a thread of its own, so that one that waits for changes does not keep those of the database busy. What a
reader is told on its way, of partitions and of its progress, is told in the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from inspect import isawaitable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import pyarrow as pa

from kolk.client.bootstrap import Bootstrap
from kolk.client.changelog import Changelog
from kolk.client.scan import Scan
from kolk.errors import Closed
from kolk.model.schema import Schema
from kolk.runtime.threads import start_thread

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

T = TypeVar("T")
S = TypeVar("S", Scan, Changelog, Bootstrap)
Callback = Callable[..., object]
"""Called in the event loop; what it gives back is awaited if it can be."""
_END = object()


class AsyncStream(Generic[S]):
    """One of them, and its thread. An async context manager."""

    def __init__(self, inner: S, thread: "Thread") -> None:
        self._inner = inner
        self._thread = thread

    @property
    def offsets(self) -> dict[str, int]:
        """See ``offsets`` of ``kolk.Scan`` and ``kolk.Changelog``."""
        return self._inner.offsets

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self._thread.each(iter(self._inner))

    async def close(self) -> None:
        """End it, also an iteration that waits in another task. Idempotent."""
        await asyncio.to_thread(self._inner.close)
        self._thread.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # Told what ended the block, for that decides what is committed.
        try:
            await asyncio.to_thread(lambda: self._inner.__exit__(kind, *exc))
        finally:
            self._thread.end()


class AsyncScan(AsyncStream[Scan]):
    """See ``kolk.Scan``: ``async for batch in scan``. An async context manager."""

    @property
    def id(self) -> str:
        """See ``kolk.Scan``: the name for other readers."""
        return self._inner.id

    @property
    def token(self) -> str:
        """See ``kolk.Scan``: the place after the last batch."""
        return self._inner.token

    @property
    def rows(self) -> int:
        """See ``kolk.Scan``: how many rows were handed out."""
        return self._inner.rows

    @property
    def estimate(self) -> int | None:
        """See ``kolk.Scan``: about how many there are."""
        return self._inner.estimate

    @property
    def schema(self) -> pa.Schema:
        """See ``kolk.Scan``: the columns of its batches."""
        return self._inner.schema

    async def to_arrow(self) -> pa.Table:
        """See ``kolk.Scan.to_arrow``."""
        return await self._thread.run(self._inner.to_arrow)

    async def to_pandas(self, **options: Any) -> "pd.DataFrame":
        """See ``kolk.Scan.to_pandas``."""
        return await self._thread.run(partial(self._inner.to_pandas, **options))

    async def to_polars(self) -> "pl.DataFrame":
        """See ``kolk.Scan.to_polars``."""
        return await self._thread.run(self._inner.to_polars)


class AsyncChangelog(AsyncStream[Changelog]):
    """See ``kolk.Changelog``: ``async for batch in changelog``. An async context manager."""

    async def schema(self) -> Schema:
        """See ``kolk.Changelog.schema``; awaited, since it may have to be asked for."""
        return await asyncio.to_thread(lambda: self._inner.schema)

    async def commit(self) -> None:
        """See ``kolk.Changelog.commit``."""
        # Not in its own thread, where the iteration may be waiting for a change.
        await asyncio.to_thread(self._inner.commit)


class AsyncBootstrap(AsyncStream[Bootstrap]):
    """See ``kolk.client.bootstrap.Bootstrap``: ``async for batch in bootstrap``. An async context manager."""

    @property
    def is_scanned(self) -> bool:
        """See ``Bootstrap.is_scanned``."""
        return self._inner.is_scanned

    async def commit(self) -> None:
        """See ``Bootstrap.commit``."""
        await asyncio.to_thread(self._inner.commit)


R = TypeVar("R", AsyncScan, AsyncChangelog, AsyncBootstrap)


class Opening(Generic[R]):
    """What is being opened: await it, or enter it with ``async with``."""

    def __init__(self, kind: type[R], opening: Callable[..., Any], **callbacks: Callback | None) -> None:
        self._kind = kind
        self._opening = opening
        self._callbacks = callbacks
        self._resource: R | None = None

    def __await__(self) -> Generator[Any, None, R]:
        return self._opened().__await__()

    async def __aenter__(self) -> R:
        self._resource = await self._opened()
        return self._resource

    async def __aexit__(self, *exc: Any) -> None:
        assert self._resource is not None
        await self._resource.__aexit__(*exc)

    async def _opened(self) -> R:
        told = {name: None if callback is None else in_loop(callback) for name, callback in self._callbacks.items()}
        thread = Thread()
        try:
            return self._kind(await thread.run(partial(self._opening, **told)), thread)
        except BaseException:
            thread.end()
            raise


class Thread:
    """One thread for one stream. A daemon: a follower that nobody closed must not keep a process alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._ended = False
        start_thread(self._work, "kolk-aio-stream")

    async def run(self, call: Callable[[], T]) -> T:
        """Call this there, after what was asked for before."""
        if self._ended:
            raise Closed("this is closed; open it again")
        future: Future[T] = Future()
        self._calls.put((call, future))
        return await asyncio.wrap_future(future)

    async def each(self, batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        """Take them one by one there."""
        # With a mark for the end, since a StopIteration cannot leave a thread.
        while (batch := await self.run(lambda: next(batches, _END))) is not _END:
            yield batch

    def end(self) -> None:
        """Take no more calls."""
        self._ended = True
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                    future.set_exception(error)


def in_loop(callback: Callback) -> Callback:
    """The same for another thread, which waits until it is done: what it touches belongs to the event loop. A loop that
    is over is told nothing."""
    loop = asyncio.get_running_loop()

    async def call(*told: Any) -> None:
        done = callback(*told)
        if isawaitable(done):
            await done

    def tell(*told: Any) -> None:
        if loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(call(*told), loop).result()

    return tell
