"""Threads: the few places that need one take it from here, most as an argument, so that tests can do without."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

_SIDE_BY_SIDE_MAX = 8


def start_thread(run: Callable[[], None], name: str = "kolk") -> threading.Thread:
    """Run in a daemon thread: it never keeps a process alive."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def side_by_side(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls that wait for a disk and never raise, several at a time; returns when all of them have returned."""
    left = iter(calls)  # taking one is one step for the interpreter

    def work() -> None:
        for call in left:
            call()

    threads: list[threading.Thread] = []
    try:
        with suppress(RuntimeError):  # no thread is to be had: it takes longer, then
            threads.extend(start_thread(work, "kolk-disk") for _ in range(min(len(calls), _SIDE_BY_SIDE_MAX) - 1))
        work()
    finally:
        for thread in threads:
            thread.join()
