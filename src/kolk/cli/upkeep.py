"""What ``kolk doctor`` finds in a database that it can open: are snapshots taken, can they be used, are leases sound,
is every transaction that was committed where it belongs, has an owner left its columns behind?

A bucket is late if it has changes that were committed more than three intervals ago and are in no snapshot: how old its
last snapshot is says nothing, for one that nobody writes to needs no other. It only looks; a folder of an older format
is not opened, because that would bring it up to the present one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kolk.cli.durations import span
from kolk.cli.findings import Finding, State
from kolk.cli.notes import counted
from kolk.errors import FolderInUse, KolkError
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kolk.client.database import Database
    from kolk.client.table import Table

_LATE_INTERVALS = 3
_NAMED_MAX = 5


def of_folder(folder: Path, *, is_deep: bool) -> Iterator[tuple[str, Finding]]:
    """The findings of a folder, if it holds a database of the present format: first in its files, and if these are
    sound, in the database."""
    import kolk
    from kolk.cli.soundness import of_files
    from kolk.runtime.migrations import FORMAT, FORMAT_FILE

    file = folder / FORMAT_FILE
    if not file.exists():
        return
    if file.read_text(errors="replace").split() != ["kolk", str(FORMAT)]:
        yield "database", Finding(State.OK, f"{folder} is not of format {FORMAT}, so it was not opened")
        return
    are_sound = True
    for name, finding in of_files(folder, is_deep=is_deep):
        are_sound = are_sound and finding.state is not State.FAIL
        yield name, finding
    if not are_sound:
        yield "database", Finding(State.WARN, "it was not opened, because that might change what is left of it")
        return
    try:
        with kolk.connect(folder) as db:
            yield from of_database(db)
    except FolderInUse as error:
        yield "database", Finding(State.OK, str(error), "give that as --url to look inside")
    except KolkError as error:
        yield "database", Finding(State.FAIL, str(error), "what the error says")


def of_database(db: "Database") -> Iterator[tuple[str, Finding]]:
    """The findings of an open database."""
    yield "snapshots", _snapshots(db)
    yield "leases", _leases(db)
    yield "transactions", _transactions(db)
    yield "owners", _owners(db)


def _snapshots(db: "Database") -> Finding:
    tables = [table for table in db.tables() if not table.info.is_log]
    newest = {table.name: _newest(table) for table in tables}
    counts = db.status()["snapshots"]
    late_seconds = _LATE_INTERVALS * counts["interval_seconds"]
    late = [table.name for table in tables if _is_late(table, newest[table.name], late_seconds)]
    buckets = sum(map(len, newest.values()))
    have = "has" if buckets == 1 else "have"
    found = f"{counted(buckets, 'bucket')} of {counted(len(tables), 'table')} {have} one"
    if counts["broken"]:
        return Finding(
            State.WARN,
            f"{found}; {counts['broken']:,} snapshots are damaged and cannot be used",
            "look at the disk; take others with kolk snapshot take TABLE",
        )
    if late:
        return Finding(
            State.WARN,
            f"{found}; changes of more than {span(late_seconds)} ago are in none: {_names(late)}",
            "a database takes them while it is open; see its log, or kolk snapshot take TABLE",
        )
    return Finding(State.OK, found)


def _newest(table: "Table") -> dict[str, int]:
    """Where the newest snapshot of each bucket that has one ends."""
    return {each.bucket: each.offset for each in table.snapshots()}


def _is_late(table: "Table", newest: dict[str, int], late_seconds: float) -> bool:
    """Whether a change of so long ago is in no snapshot. What a log has let go of since is in one."""
    then_ms = SystemClock().now_ms() - round(late_seconds * 1_000)
    offsets = table.link.service.offsets_at(table.info.id, then_ms)
    return any(offset > newest.get(bucket, 0) for bucket, offset in offsets.items())


def _leases(db: "Database") -> Finding:
    leases = db.leases()
    unreadable = [each.id for each in leases if not each.is_readable]
    if unreadable:
        return Finding(
            State.FAIL,
            f"{len(unreadable):,} leases cannot be read, so no snapshot and no log is removed: {_names(unreadable)}",
            f"if their holders are gone: kolk lease drop {unreadable[0]}",
        )
    return Finding(State.OK, f"{len(leases):,} live")


def _transactions(db: "Database") -> Finding:
    found = db.transactions()
    stuck = [one for one in found if one.problem]
    if stuck:
        return Finding(
            State.FAIL,
            f"{len(stuck):,} commits cannot be finished, and their buckets are not served: "
            + _names([f"version {one.version} of {one.app} ({one.problem})" for one in stuck]),
            "look at the disk and the log; they are tried again by themselves, and when the database is opened",
        )
    waiting = sum(len(one.handles) for one in found)
    apps = len({one.app for one in found if one.state in ("pending", "done")})
    return Finding(State.OK, f"{counted(apps, 'application')} committed, {counted(waiting, 'handle')} staged")


def _owners(db: "Database") -> Finding:
    counts = db.status()["owners"]
    if counts["abandoned"]:
        return Finding(
            State.WARN,
            f"{counts['abandoned']:,} owners are gone and have left uncommitted changes: nobody else may write their"
            " columns",
            "start their jobs again; or kolk lock list, and kolk lock release TABLE OWNER",
        )
    return Finding(State.OK, f"columns are held by {counted(counts['locks'], 'owner')}, {counts['live']:,} live")


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
