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
    """Make calls that wait for a disk, several at a time. All of them have returned when it does, or when it raises the
    first error of one."""
    left = iter(calls)  # taking one is one step for the interpreter
    errors: list[BaseException] = []

    def work() -> None:
        for call in left:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the caller
                errors.append(error)

    threads: list[threading.Thread] = []
    try:
        with suppress(RuntimeError):  # no thread is to be had: it takes longer, then
            threads.extend(start_thread(work, "kolk-disk") for _ in range(min(len(calls), _SIDE_BY_SIDE_MAX) - 1))
        work()
    finally:
        for thread in threads:
            thread.join()
    for error in errors:
        raise error
