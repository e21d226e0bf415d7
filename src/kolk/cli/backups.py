"""``kolk backup`` and ``kolk restore``: a copy of a whole database, made while it is used, and a database of a copy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kolk.cli.common import Common, connected, folder_of, local
from kolk.cli.notes import counted, is_watched, note
from kolk.cli.rows import QuietOption
from kolk.cli.sizes import size_text
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kolk.model.backup import BackupInfo


def backup(
    common: Common,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The database: a folder or kolk://HOST:PORT.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A new or empty folder; of a server a name in its backup_folder.")
    ],
    quiet: QuietOption = False,
) -> None:
    """Copy a whole database into a folder, while it is used.

    Each table is as of one moment. The folder is a backup once it has a file BACKUP, which is written last; what fails
    leaves nothing.

    \b
    kolk backup ./data /backups/2026-11-16
    kolk backup kolk://127.0.0.1:9123 2026-11-16
    """
    common.url = source
    clock = SystemClock()
    started = clock.monotonic()
    with common.connect() as db, _bar("backup", quiet=quiet) as on_progress:
        info = db.backup(target, on_progress=on_progress)
    if not quiet:
        note(f"{info.path} is a backup of {_told(info)}, made in {clock.monotonic() - started:.1f} s")
    if info.mixed:
        note(f"of several moments, for they have very many buckets: {', '.join(info.mixed)}")


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", parser=folder_of, help="The folder of the backup.")],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", parser=folder_of, help="A new or empty folder for the database.")
    ],
    quiet: QuietOption = False,
) -> None:
    """Make a database of a backup.

    Every file is verified first; if one is damaged it is named, and nothing is restored.

    \b
    kolk restore /backups/2026-11-16 ./data
    """
    from kolk.engine.restore import restore as run

    clock = SystemClock()
    started = clock.monotonic()
    with _bar("restore", quiet=quiet) as on_progress:
        info = run(source, folder, on_progress=on_progress)
    if not quiet:
        note(
            f"{folder} is a database of {_told(info)}, as of {info.taken:%Y-%m-%d %H:%M:%SZ}, restored in"
            f" {clock.monotonic() - started:.1f} s"
        )


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(connected(backup))
    app.command()(local(restore))


# --- inside


def _told(info: "BackupInfo") -> str:
    return f"{counted(info.tables, 'table')}, {counted(info.files, 'file')}, {size_text(info.size_bytes)}"


@contextmanager
def _bar(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar of bytes, for people."""
    if quiet or not is_watched():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
