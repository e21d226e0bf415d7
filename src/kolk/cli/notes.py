"""Everything that is not data: notes, errors, questions and progress, all of it on stderr.

Stdout belongs to the data, so that a pipe carries nothing else. Colour and moving bars are for people: they are there
when stderr is a terminal, and ``NO_COLOR`` turns the colour off.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BOLD_RED, DIM = "1;31", "2"


def note(text: str) -> None:
    """Something worth knowing."""
    sys.stderr.write(_painted(text, DIM) + "\n")
    sys.stderr.flush()


def say_error(text: str) -> None:
    """What went wrong."""
    sys.stderr.write(f"{_painted('error:', BOLD_RED)} {text}\n")
    sys.stderr.flush()


def counted(count: int, word: str) -> str:
    """So many of something: ``1 row``, ``2,000 rows``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def is_watched() -> bool:
    """Whether a person looks at stderr."""
    return sys.stderr.isatty()


def is_confirmed(question: str) -> bool:
    """Ask on the terminal; anything but yes is no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


Advance = Callable[[int, int], None]
"""Called with the rows so far, and with how much of the total is done."""


@contextmanager
def progress(what: str, *, total: int | None, unit: str, quiet: bool) -> Iterator[Advance]:
    """A bar that shows rows, rows per second and the time left; without a total, no bar, and the time so far."""
    if quiet or not is_watched():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    known = [BarColumn(bar_width=30), DownloadColumn() if unit == "bytes" else TaskProgressColumn()]
    columns = [
        TextColumn("{task.description}"),
        *(known if total else []),
        TextColumn("{task.fields[rows]:,} rows"),
        TextColumn("[dim]{task.fields[speed]}"),
        TimeRemainingColumn(compact=True) if total else TimeElapsedColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task(what, total=total, rows=0, speed="")

        def advance(rows: int, done: int) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            speed = f"{rows / elapsed:,.0f} rows/s" if elapsed > 0.5 else ""
            bar.update(task, completed=done if total else None, rows=rows, speed=speed)

        yield advance


def _ignore(rows: int, done: int) -> None:
    """Nothing moves."""


def _painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if is_watched() and not os.environ.get("NO_COLOR") else text
