"""Calls of one object that are made one after the other, whoever awaits them together: it has an order, and a thread of
its own only as long as a call lasts."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
Run = Callable[..., Awaitable[Any]]


class Turns:
    """Lets calls of an object run in threads, in turn. Of one event loop."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._turn = asyncio.Lock()
        # A call whose task was cancelled goes on in its thread, and the next one waits for it there.
        self._thread = threading.Lock()

    async def take(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Make this call when those before it are over."""
        async with self._turn:
            return await self._run(self._alone, call, *args, **options)

    def _alone(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        with self._thread:
            return call(*args, **options)
