"""What is read bit by bit, for asyncio: scans, changelogs and bootstraps under their names, ``async for``.

Each runs in a thread of its own, so that one that waits for changes does not keep those of the database busy. What a
reader is told on its way, of partitions and of its progress, is told in the event loop.

A thread cannot be cancelled as a task can. So what it was asked for is kept if nobody waits for it any more, and is the
first thing that is given to whoever asks next; until then it does not count as handed out.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import pyarrow as pa

from kolk.client.aio_opener import opened
from kolk.client.aio_shown import shown
from kolk.client.bootstrap import Bootstrap
from kolk.client.changelog import Changelog, HandOut
from kolk.client.scan import Scan
from kolk.errors import Closed, InvalidArgument
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


def _uncounted() -> None:
    """The ``HandOut`` of what nobody counts."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a stream's thread took: a value, or an error to raise; and what counts it as handed out."""

    value: Any = _END
    error: BaseException | None = None
    hand_out: HandOut = _uncounted


class AsyncStream(Generic[S]):
    """One of them, and its thread. An async context manager. Of one event loop, and one task reads it at a time.

    A task that is cancelled while it waits, or has waited long enough, loses nothing: read on, and what it waited for
    comes first. Closed instead, it was not handed out, and a follower has it again.
    """

    def __init__(self, inner: S, thread: "Thread") -> None:
        # Constant after construction.
        self._inner = inner
        self._thread = thread
        weakref.finalize(self, thread.end).atexit = False  # one that nobody closed and everybody has forgotten
        # Of the event loop: what the thread was asked for and nobody has yet, with how it was asked.
        self._asked: tuple[Callable[[], _Taken], Future[_Taken]] | None = None
        self._is_awaited = False
        # Of the thread: the one iteration that is under way.
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._counting: deque[HandOut] = deque(maxlen=1)

    @property
    def offsets(self) -> dict[str, int]:
        """See ``offsets`` of ``kolk.Scan`` and ``kolk.Changelog``."""
        return self._inner.offsets

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return _Batches(partial(self._take, self._step))

    async def close(self) -> None:
        """End it, also an iteration that waits in another task. Idempotent."""
        try:
            await asyncio.to_thread(self._inner.close)
        finally:
            self._thread.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # Told what ended the block, for that decides what is committed.
        try:
            await asyncio.to_thread(lambda: self._inner.__exit__(kind, *exc))
        finally:
            self._thread.end()

    def __repr__(self) -> str:
        return shown(self._inner)

    async def _take(self, how: Callable[[], _Taken], form: Callable[[Any], Any] | None = None) -> Any:
        """What this takes in the thread, in another form if one is wanted. Kept until somebody has it."""
        if self._is_awaited:
            raise InvalidArgument("another task waits for what this gives; read it in one task, or open one for each")
        self._thread.check()
        if self._asked is None:
            self._asked = how, self._thread.ask(how)
        elif self._asked[0] != how:
            self._asked = how, self._thread.ask(partial(self._instead, self._asked[1], how))
        self._is_awaited = True
        try:
            taken = await asyncio.wrap_future(self._asked[1])
            value = taken.value
            if form is not None and taken.error is None:
                value = await self._thread.run(partial(form, value))
        finally:
            self._is_awaited = False
        # Nothing is awaited from here on: it is handed out, and cannot be lost any more.
        self._asked = None
        taken.hand_out()
        if taken.error is not None:
            raise taken.error
        return value

    # --- in the thread

    def _step(self) -> _Taken:
        """The next batch. The iteration goes on where it was until it ends or fails: a new one would be told that all
        that was handed out is handled, and would not have the batch that nobody got."""
        try:
            if self._batches is None:
                self._batches = self._inner.batches(self._counting.append)
            batch = next(self._batches, _END)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            self._batches = None
            return _Taken(error=error, hand_out=self._hand_out())
        if batch is _END:
            self._batches = None
        return _Taken(batch, hand_out=self._hand_out())

    def _hand_out(self) -> HandOut:
        return self._counting.pop() if self._counting else _uncounted

    def _instead(self, asked: Future[_Taken], how: Callable[[], _Taken]) -> _Taken:
        """What this takes, with what was taken in another way before it and nobody has."""
        taken = asked.result()  # there already: the thread does one thing after the other
        if taken.error is not None:
            return taken
        taken.hand_out()
        self._give_back(taken.value)
        return how()

    def _give_back(self, value: Any) -> None:
        raise AssertionError("only a scan is read in more than one way")


class AsyncScan(AsyncStream[Scan]):
    """See ``kolk.Scan``: ``async for batch in scan``. An async context manager."""

    @property
    def id(self) -> str:
        """See ``kolk.Scan``: the name for other readers."""
        return self._inner.id

    @property
    def consistent(self) -> bool:
        """See ``kolk.Scan``: whether all of it is of one moment."""
        return self._inner.consistent

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
        return await self._take(self._whole)

    async def to_pandas(self, **options: Any) -> "pd.DataFrame":
        """See ``kolk.Scan.to_pandas``."""
        return await self._take(self._whole, lambda rows: rows.to_pandas(**options))

    async def to_polars(self) -> "pl.DataFrame":
        """See ``kolk.Scan.to_polars``."""
        return await self._take(self._whole, _polars_of)

    def _whole(self) -> _Taken:
        self._batches = None  # it would pass by what is given back
        try:
            return _Taken(self._inner.to_arrow())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            return _Taken(error=error)

    def _give_back(self, value: Any) -> None:
        if value is not _END:
            self._inner.give_back(value.to_batches() if isinstance(value, pa.Table) else [value])


def _polars_of(rows: pa.Table) -> "pl.DataFrame":
    import polars

    return polars.DataFrame(rows)


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
            return self._kind(await opened(thread.run, partial(self._opening, **told), _close), thread)
        except BaseException:
            thread.end()
            raise


def _close(stream: Scan | Changelog | Bootstrap) -> None:
    stream.close()


class _Batches(AsyncIterator[pa.RecordBatch]):
    """An iteration. Not a generator: one of those is at its end once it was cancelled."""

    def __init__(self, take: Callable[[], Awaitable[Any]]) -> None:
        self._take = take
        self._is_over = False

    async def __anext__(self) -> pa.RecordBatch:
        if self._is_over or (batch := await self._take()) is _END:
            self._is_over = True
            raise StopAsyncIteration
        return batch


class Thread:
    """One thread for one stream. A daemon: a follower that nobody closed must not keep a process alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._ended = False
        start_thread(self._work, "kolk-aio-stream")

    def check(self) -> None:
        """Raise Closed if it takes no more calls."""
        if self._ended:
            raise Closed("this is closed; open it again")

    def ask(self, call: Callable[[], T]) -> Future[T]:
        """Call this there, after what was asked for before. It is done, whether anybody waits for it or not."""
        self.check()
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # so that one whose waiter is cancelled goes on
        self._calls.put((call, future))
        return future

    async def run(self, call: Callable[[], T]) -> T:
        """Ask for this, and wait for it."""
        return await asyncio.wrap_future(self.ask(call))

    def end(self) -> None:
        """Take no more calls."""
        self._ended = True
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            _do(*item)
            del item  # it has the stream and all that it gave, and would keep both until the next call


def _do(call: Callable[[], Any], future: Future[Any]) -> None:
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
