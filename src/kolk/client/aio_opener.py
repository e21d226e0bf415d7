"""What is opened in a thread for a task that may be gone when it is there: nobody else could close it."""

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from kolk.errors import KolkError
from kolk.runtime.threads import start_thread

T = TypeVar("T")


async def opened(
    run: Callable[[Callable[[], T]], Awaitable[Any]], opening: Callable[[], T], close: Callable[[T], Any]
) -> T:
    """Open something in the thread that ``run`` has for it. If the task is cancelled meanwhile, it does not wait: what
    was opened is closed when it arrives."""
    opener = _Opener(opening, close)
    try:
        return await run(opener)
    except BaseException:
        opener.give_up()
        raise


class _Opener(Generic[T]):
    """Opens something once. Thread-safe."""

    def __init__(self, opening: Callable[[], T], close: Callable[[T], Any]) -> None:
        # Constant after construction.
        self._opening = opening
        self._close = close
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._opened: list[T] = []
        self._is_given_up = False

    def __call__(self) -> T:
        one = self._opening()
        with self._lock:
            self._opened.append(one)
            is_given_up = self._is_given_up
        if is_given_up:
            self._let_go(one)
        return one

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._is_given_up = True
            opened = [*self._opened]
        for one in opened:
            # Not here: it may have to ask the server, and the event loop must not wait for that.
            start_thread(partial(self._let_go, one), "kolk-aio-close")

    def _let_go(self, one: T) -> None:
        with suppress(KolkError):  # then it ends when its time is over, as that of a process that died
            self._close(one)
