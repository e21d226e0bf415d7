"""``kolk status``: what a database is and how far it has come."""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from kolk.cli.common import Common, connected
from kolk.cli.durations import span
from kolk.cli.failures import Misuse
from kolk.cli.formats import DescriptionFormatOption, Format, chosen
from kolk.cli.notes import counted
from kolk.cli.sizes import size_text

if TYPE_CHECKING:
    from kolk.client.database import Database

ENDS_SHOWN = 16


def status(common: Common, format: DescriptionFormatOption = None) -> None:
    """Show what a database is, and how far it has come.

    That is version, durability, open scans, snapshots, leases, transactions, owners, and of each table the offsets.
    """
    style = chosen(format)
    if style not in (Format.TABLE, Format.JSON, Format.JSONL):
        raise Misuse(f"a status is a table, json or jsonl, not {style.value}")
    with common.connect() as db:
        found = {"target": common.target, **_about(db), "tables": _tables(db)}
    if style is Format.TABLE:
        _show(found, has_past=common.is_remote)
    else:
        sys.stdout.write(json.dumps(found, indent=2 if style is Format.JSON else None, ensure_ascii=False) + "\n")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(connected(status))


def _about(db: "Database") -> dict[str, Any]:
    """What the database tells of itself; a folder has the version of whoever opens it."""
    import kolk

    return {"version": kolk.__version__, **{name: value for name, value in db.status().items() if name != "tables"}}


def _tables(db: "Database") -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = []
    for table in db.tables():
        described: dict[str, Any] = table.describe()
        offsets: dict[str, dict[str, int]] = described["offsets"]
        kept = sum(ends["end"] - ends["start"] for ends in offsets.values())
        ends = {bucket: ends["end"] for bucket, ends in offsets.items()}
        rows = {"rows": described["rows"]} if "rows" in described else {}
        parts = {"partitions": len(described["partitions"])} if "partitions" in described else {}
        tables.append({"table": table.name, **parts, "buckets": len(offsets), **rows, "changes": kept, "ends": ends})
    return tables


def _show(found: dict[str, Any], *, has_past: bool) -> None:
    from rich.text import Text

    from kolk.cli.grid import Column, print_grid, stdout

    console = stdout()
    tables: list[dict[str, Any]] = found.pop("tables")
    for name, value in found.items():
        told = _for_people(name, value, has_past=has_past)
        console.print(Text.assemble((f"{name.removesuffix('_seconds'):<14}", "dim"), told))
    console.print(Text.assemble((f"{'tables':<14}", "dim"), f"{len(tables):,}"))
    if not tables:
        return
    console.print()
    numbers = [name for name in ("partitions", "buckets", "rows", "changes") if any(name in one for one in tables)]
    print_grid(
        [
            Column(name="table", cells=[one["table"] for one in tables]),
            *(Column(name=name, cells=[_number(one.get(name)) for one in tables], is_number=True) for name in numbers),
            Column(name="log ends", cells=[_ends(one["ends"]) for one in tables]),
        ]
    )


def _for_people(name: str, value: Any, *, has_past: bool) -> str:
    """A value in words. What a folder has counted it counts since this command opened it, which tells nobody anything;
    only a server has a past."""
    if name == "uptime_seconds":
        return span(value)
    if name == "disk_used":
        return f"{value:.0%}"
    if name in _SHOWN:
        now, past = _SHOWN[name](value)
        return f"{now}; {', '.join(past)} so far" if past and has_past else now
    return value if isinstance(value, str) else json.dumps(value)


Told = tuple[str, list[str]]
"""What is the case now, and what has become of others."""


def _scans(counts: dict[str, int]) -> Told:
    """Those that are open, and what became of others, if there were any."""
    now = f"{counts['open']:,} open" + (f" with {counted(counts['views'], 'view')}" if counts["views"] else "")
    return now, _past(counts, {end: end for end in ("opened", "expired", "revoked", "refused")})


def _snapshots(counts: dict[str, Any]) -> Told:
    """How often they are taken, how many were, and what went wrong, if anything did."""
    now = [f"every {span(counts['interval_seconds'])}"]
    now += [] if counts.get("last_seconds") is None else [f"the last in {counts['last_seconds']:.1f} s"]
    now += [f"{counts['broken']:,} broken"] if counts.get("broken") else []
    past = [f"{counts['taken']:,} taken", f"{size_text(counts['copied_bytes'])} copied"]
    return ", ".join(now), past + _past(counts, {"failed": "failed"})


def _leases(counts: dict[str, Any]) -> Told:
    """Those that are live, and what they keep; and what became of others, if there were any."""
    now = f"{counts['leases']:,} live"
    if counts["pins"]:
        now += f" with {counted(counts['pins'], 'snapshot')}, {size_text(counts.get('pinned_bytes', 0))}"
    if counts["unreadable"]:
        now += f", {counts['unreadable']:,} unreadable"
    words = {"expired": "expired", "unavailable": "snapshot{s} unavailable", "renew_failures": "renewal{s} refused"}
    return now, _past(counts, words)


def _transactions(counts: dict[str, Any]) -> Told:
    """What waits, and what became of others, if there were any."""
    handles, apps = counted(counts["handles"], "handle"), counted(counts["apps"], "app")
    now = f"{size_text(counts['staged_bytes'])} staged under {handles}, {apps}"
    if counts["pending"]:
        now += f", {counts['pending']:,} pending"
    words = {"committed": "committed", "duplicates": "duplicate{s}", "different": "with other rows", "old": "old"}
    return now, _past(counts, words)


def _owners(counts: dict[str, Any]) -> Told:
    """Who holds columns, and what became of others, if there were any."""
    hold = "holds" if counts["locks"] == 1 else "hold"
    now = f"{counts['locks']:,} {hold} columns, {counts['live']:,} live, {counts['dirty']:,} with uncommitted changes"
    words = {"begun": "begun", "committed": "epoch{s} committed", "conflicts": "conflict{s}", "evicted": "evicted"}
    return now, _past(counts, words | {"fenced": "put{s} fenced", "undone_rows": "row{s} taken back"})


def _past(counts: dict[str, Any], words: dict[str, str]) -> list[str]:
    """What has happened, of these; ``{s}`` is where a word has its plural."""
    seen = {word: counts[name] for name, word in words.items() if counts[name]}
    return [f"{count:,} {word.format(s='' if count == 1 else 's')}" for word, count in seen.items()]


_SHOWN: dict[str, Callable[[dict[str, Any]], Told]] = {
    "scans": _scans,
    "snapshots": _snapshots,
    "leases": _leases,
    "transactions": _transactions,
    "owners": _owners,
}


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _ends(ends: dict[str, int]) -> str:
    shown = [f"{bucket}:{end:,}" for bucket, end in list(ends.items())[:ENDS_SHOWN]]
    return " ".join([*shown, f"and {len(ends) - ENDS_SHOWN:,} more"] if len(ends) > ENDS_SHOWN else shown)
