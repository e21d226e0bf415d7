"""``kolk doctor``: is this machine fit for a database, and is everything where it is said to be?

Each check is a function that answers in words; the worst they can say is ``fail``. A disk is judged by what a put waits
for, a small write and its sync.
"""

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kolk.cli.common import Common, connected, folder_of
from kolk.cli.failures import ERROR
from kolk.cli.findings import Finding, State
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.errors import AccessDenied, KolkError, Unauthenticated, Unavailable
from kolk.runtime.clock import SystemClock

SYNCS = 20
SYNC_SLOW_SECONDS = 0.05
SYNC_IMPLAUSIBLE_SECONDS = 0.00002
OPEN_FILES_MIN, OPEN_FILES_USUAL = 256, 4_096
PORT = 9123
_YEAR_2026_MS = 1_767_225_600_000


def doctor(
    common: Common,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", parser=folder_of, help="Where the database is or will be.  [default: KOLK_URL, or .]"
        ),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read all logs and rows, however large they are.")] = False,
    format: FormatOption = None,
) -> None:
    """Check that this machine is fit for Kolk, and a database sound.

    Looks at Python, the libraries, the folder and its disk, the limits, the clock, the port, the server of KOLK_URL,
    and the snapshots, leases and transactions of the database. In a folder that no process has open it reads catalog,
    logs and rows, and sees whether they agree; nothing is changed by that. Ends with 1 if something fails.
    """
    style = chosen(format)
    findings = list(_findings(common, folder, is_deep=deep))
    if style is Format.TABLE:
        _show(findings)
    else:
        import pyarrow as pa

        from kolk.cli.writers import write_table

        rows = [{"check": name, **asdict(one), "state": one.state.value} for name, one in findings]
        write_table(pa.Table.from_pylist(rows), style)
    if any(one.state is State.FAIL for _, one in findings):
        raise typer.Exit(ERROR)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(connected(doctor))


def _findings(common: Common, folder: Path | None, *, is_deep: bool) -> Iterator[tuple[str, Finding]]:
    target = common.url or os.environ.get("KOLK_URL") or ""
    place = folder or (Path(target) if target and "://" not in target else Path())
    is_remote = "://" in target
    on_disk: list[tuple[str, Callable[[], Finding]]] = [
        ("folder", lambda: _folder(place)),
        ("fsync", lambda: _fsync(_existing(place))),
        ("disk", lambda: _disk(_existing(place))),
    ]
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", _python),
        ("pyarrow", lambda: _library("pyarrow", (26,))),
        ("rocksdict", lambda: _library("rocksdict", (0, 3, 29))),
        *(on_disk if folder is not None or not is_remote else []),
        ("open files", _open_files),
        ("clock", lambda: _clock(place)),
        (f"port {PORT}", _port),
        *([("server", lambda: _server(common))] if is_remote else []),
    ]
    for name, check in checks:
        try:
            yield name, check()
        except OSError as error:
            yield name, Finding(State.FAIL, str(error), "see whether this account may use it")
    yield from _upkeep(common, None if is_remote and folder is None else place, is_deep=is_deep)


def _upkeep(common: Common, folder: Path | None, *, is_deep: bool) -> Iterator[tuple[str, Finding]]:
    """What is in the database of the folder, or of the server."""
    from kolk.cli.upkeep import of_database, of_folder

    if folder is not None:
        yield from of_folder(folder, is_deep=is_deep)
        return
    try:
        with common.connect(timeout=5.0) as db:
            yield from of_database(db)
    except (Unavailable, Unauthenticated):
        return  # told by the check of the server
    except KolkError as error:
        yield "database", Finding(State.WARN, f"not all of it could be looked at: {error}", "use a token that may read")


def _python() -> Finding:
    found = f"{platform.python_version()}, {platform.system()} on {platform.machine()}"
    if sys.version_info < (3, 11):  # noqa: UP036 - pip can be told to ignore what a package needs
        return Finding(State.FAIL, found, "Kolk needs Python 3.11 or newer")
    return Finding(State.OK, found)


def _library(name: str, least: tuple[int, ...]) -> Finding:
    import importlib.metadata  # slow to import, and every command imports this module

    wanted = f"pip install '{name}>={'.'.join(map(str, least))}'"
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(State.FAIL, "not installed", wanted)
    numbers = tuple(int(part) for part in found.split(".")[: len(least)] if part.isdigit())
    return Finding(State.OK, found) if numbers >= least else Finding(State.FAIL, found, wanted)


def _folder(folder: Path) -> Finding:
    there = _existing(folder)
    if not there.is_dir():
        return Finding(State.FAIL, f"{there} is a file", "give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(State.FAIL, f"{there} cannot be written", "give this account the right to, or another folder")
    if (folder / "FORMAT").exists():
        return Finding(State.OK, f"{folder} holds a database and can be written")
    if folder.is_dir() and any(folder.iterdir()):
        return Finding(
            State.OK, f"{folder} can be written, but holds other files", "give a database a folder of its own"
        )
    return Finding(State.OK, f"{folder} is free for a database")


def _fsync(folder: Path) -> Finding:
    clock = SystemClock()
    times: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            started = clock.monotonic()
            os.write(file.fileno(), b"k" * 4096)
            os.fdatasync(file.fileno())
            times.append(clock.monotonic() - started)
    times.sort()
    middle, slow = times[SYNCS // 2], times[-1]  # of 20, the slowest is the one percent
    found = f"p50 {middle * 1000:.2f} ms, p99 {slow * 1000:.2f} ms for a write of 4 KiB and its sync, of {SYNCS}"
    if slow > SYNC_SLOW_SECONDS:
        return Finding(State.WARN, found, "every put waits for a sync; a local SSD takes about 1 ms")
    if middle < SYNC_IMPLAUSIBLE_SECONDS:
        return Finding(State.WARN, found, "no disk is so quick: in memory, or with syncs off, a power cut loses puts")
    return Finding(State.OK, found)


def _disk(folder: Path) -> Finding:
    usage = shutil.disk_usage(folder)
    # As df and the server count it: what is kept for root is nobody's.
    share = usage.used / max(usage.used + usage.free, 1)
    found = f"{usage.free / 2**30:,.1f} GiB free, {share:.0%} used"
    if share > 0.95:
        return Finding(State.FAIL, found, "above 95% a server refuses puts; free some space")
    if share > 0.8 or usage.free < 2**30:
        return Finding(State.WARN, found, "compaction needs room for a while; free some space soon")
    return Finding(State.OK, found)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} at once, {'any number' if hard == resource.RLIM_INFINITY else f'{hard:,}'} if asked for"
    most = OPEN_FILES_USUAL if hard == resource.RLIM_INFINITY else hard  # a database asks for all that it may have
    if most < OPEN_FILES_MIN:
        return Finding(State.FAIL, found, f"ulimit -Hn {OPEN_FILES_USUAL}")
    if most < OPEN_FILES_USUAL:
        return Finding(State.WARN, found, f"many buckets have many files: ulimit -Hn {OPEN_FILES_USUAL}, or more")
    return Finding(State.OK, found)


def _clock(folder: Path) -> Finding:
    now_ms = SystemClock().now_ms()
    shown = moment_text(now_ms)
    if now_ms < _YEAR_2026_MS:
        return Finding(State.FAIL, shown, "this is in the past; set the clock, best with NTP")
    newest_ms = max((int(file.stat().st_mtime * 1000) for file in folder.glob("*") if file.is_file()), default=0)
    if newest_ms > now_ms + 60_000:
        late = f"a file of the folder is from {moment_text(newest_ms)}"
        return Finding(State.WARN, f"{shown}, but {late}", "the clock was set back; commit times repeat until then")
    return Finding(State.OK, shown)


def moment_text(ms: int) -> str:
    """A moment as people write it."""
    import datetime

    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _port() -> Finding:
    with socket.socket() as probe:
        probe.settimeout(1)
        is_taken = probe.connect_ex(("127.0.0.1", PORT)) == 0
    if is_taken:
        return Finding(State.OK, "something listens here", f"if it is Kolk: kolk status --url kolk://127.0.0.1:{PORT}")
    return Finding(State.OK, "free; kolk serve would take it")


def _server(common: Common) -> Finding:
    try:
        with common.connect(timeout=5.0) as db:
            db.tables()
    except AccessDenied as error:
        return Finding(State.FAIL, f"{common.target}: {error}", "give --token-file FILE, or set KOLK_TOKEN")
    except KolkError as error:
        return Finding(State.FAIL, f"{common.target}: {error}", "start it with kolk serve, or correct KOLK_URL")
    return Finding(State.OK, f"{common.target} answers")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there: a doctor leaves nothing behind."""
    return next((one for one in (folder, *folder.absolute().parents) if one.exists()), Path("/"))


_PAINT = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}


def _show(findings: list[tuple[str, Finding]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from kolk.cli.grid import stdout, visible

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, one in findings:
        words = Text(visible(one.found))
        if one.next_step:
            words.append(f"\n→ {visible(one.next_step)}", style="" if one.state is not State.OK else "dim")
        table.add_row(Text(one.state.value, style=_PAINT[one.state]), Text(name, style="bold"), words)
    stdout().print(table)
