"""A minute with Kolk: load, look up, scan, follow, and survive a kill -9.

It needs neither a server nor Spark: ``python examples/tour.py``. It works in a temporary folder, ends with a check that
everything it showed is right, and exits with 1 if it is not. What Spark does with it is in ``examples/demo.py``.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

import kolk

BATCH_ROWS = 20_000
SECTIONS = ("news", "sport", "music", "shop", "wiki", "maps", "mail", "play")
console = Console(highlight=False)


def main() -> int:
    """Take the tour; the answer is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="rows to load (default: 300,000)")
    parser.add_argument("--write", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_until_killed(Path(arguments.write))
    with tempfile.TemporaryDirectory(prefix="kolk-tour-") as folder:
        data = Path(folder) / "data"
        console.print("[bold]Kolk[/]: primary-key tables for streams, in one process, in one folder.\n")
        with kolk.connect(data) as db:
            table = create(db)
            load(table, arguments.rows)
            look_up(table, arguments.rows)
            scan(table, arguments.rows)
            follow(table)
        return survive(data)


def heading(number: int, text: str) -> None:
    """A numbered step."""
    console.print(f"\n[bold cyan]{number}[/] [bold]{text}[/]")


def create(db: kolk.Database) -> kolk.Table:
    """The table of the tour, by DDL."""
    statement = (
        "CREATE TABLE web.pages (page STRING, pv BIGINT, seconds DOUBLE, seen TIMESTAMP(3), PRIMARY KEY (page))"
        " DISTRIBUTED BY (page) INTO 2 BUCKETS"
    )
    heading(1, "Create a table")
    console.print(f"  [dim]db.execute([/]{statement!r}[dim])[/]")
    table = db.execute(statement)
    assert isinstance(table, kolk.Table)
    return table


def page_name(number: int) -> str:
    """The key of a row."""
    return f"/{SECTIONS[number % len(SECTIONS)]}/{number}"


def batches(rows: int, seed: int = 7) -> Iterator[pa.RecordBatch]:
    """Random page views."""
    rng = np.random.default_rng(seed)
    for start in range(0, rows, BATCH_ROWS):
        numbers = range(start, min(start + BATCH_ROWS, rows))
        size = len(numbers)
        yield pa.record_batch(
            {
                "page": [page_name(number) for number in numbers],
                "pv": rng.integers(1, 1000, size),
                "seconds": rng.random(size),
                "seen": pa.array(1_700_000_000_000 + rng.integers(0, 10**9, size), pa.timestamp("ms")),
            }
        )


def load(table: kolk.Table, rows: int) -> None:
    """Put rows; each put is durable when it returns."""
    heading(2, f"Load {rows:,} rows, every put synced to disk before it is acknowledged")
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    started = time.perf_counter()
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        task = progress.add_task("putting", total=rows)
        for batch in batches(rows):
            table.put(batch)
            progress.advance(task, batch.num_rows)
    seconds = time.perf_counter() - started
    console.print(f"  {rows:,} rows in {seconds:.1f} s: [bold]{rows / seconds:,.0f} rows/s[/]")


def look_up(table: kolk.Table, rows: int) -> None:
    """Point lookups."""
    heading(3, "Look rows up by key")
    wanted = page_name(rows // 2)
    started = time.perf_counter()
    for _ in range(1000):
        row = table.get_one(page=wanted)
    micros = (time.perf_counter() - started) * 1e3
    console.print(
        f"  [dim]table.get_one(page={wanted!r})[/] → pv={row['pv'] if row else None}, [bold]{micros:.0f} µs[/] each"
    )
    keys = [page_name(number) for number in range(0, rows, max(rows // 1000, 1))]
    started = time.perf_counter()
    found = table.get(keys).num_rows
    console.print(f"  {found:,} keys in one call: {(time.perf_counter() - started) * 1e3:.1f} ms")


def scan(table: kolk.Table, rows: int) -> None:
    """The whole table at one moment, while it is being written."""
    heading(4, "Scan the whole table at one moment, while somebody writes")
    with table.scan(columns=["page", "pv"]) as pages:
        table.put({"page": page_name(0), "pv": -1, "seconds": 0.0, "seen": None})
        started = time.perf_counter()
        everything = pages.to_arrow()
    seconds = time.perf_counter() - started
    sections = pc.list_element(pc.split_pattern(everything["page"], "/"), 1)
    totals = everything.append_column("section", sections).group_by("section").aggregate([("pv", "sum")])
    grid = Grid("section", "views", box=None, padding=(0, 3), header_style="dim")
    for row in totals.sort_by([("pv_sum", "descending")]).slice(0, 4).to_pylist():
        grid.add_row(row["section"], f"{row['pv_sum']:,}")
    count = everything.num_rows
    console.print(f"  {count:,} rows in {seconds * 1e3:.0f} ms: [bold]{count / seconds:,.0f} rows/s[/]")
    console.print(grid)
    check(count == rows and pc.min(everything["pv"]).as_py() > 0, "the scan did not see the later put")


def follow(table: kolk.Table) -> None:
    """The changelog, live."""
    heading(5, "Follow the changelog")
    changes = []
    changelog = table.changelog(start="latest", follow=True)

    def read() -> None:
        for batch in changelog:
            changes.extend(batch.to_pylist())
            if len(changes) >= 6:
                return

    reader = threading.Thread(target=read)
    reader.start()
    key = page_name(3)
    table.put({"page": "/new", "pv": 1, "seconds": 0.5, "seen": None})
    table.put({"page": key, "pv": 10**6}, columns=["pv"])
    table.delete(["/new"])
    table.put({"page": key, "pv": 10**6 + 1}, columns=["pv"])
    reader.join(timeout=30)
    changelog.close()
    grid = Grid("", "bucket", "offset", "page", "pv", box=None, padding=(0, 2), header_style="dim")
    colours = {"+I": "green", "+U": "green", "-U": "yellow", "-D": "red"}
    for change in changes:
        kind = change["_change_type"]
        shown = f"[{colours[kind]}]{kind}[/]"
        grid.add_row(shown, change["_bucket"], str(change["_log_offset"]), change["page"], f"{change['pv']:,}")
    console.print(grid)
    check(len(changes) == 6, "every change arrived, with the row before and after")


def survive(data: Path) -> int:
    """Kill a writing process and account for every row it was told is safe."""
    heading(6, "Kill the writing process with -9, in the middle of its puts")
    child = subprocess.Popen([sys.executable, __file__, "--write", str(data)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = [int(line) for line, _ in zip(child.stdout, range(25), strict=False)]
    child.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in child.stdout.read().splitlines() if line]
    child.wait()
    console.print(f"  process {child.pid} is dead; it had {len(acknowledged)} puts of 2,000 rows acknowledged")
    started = time.perf_counter()
    with kolk.connect(data) as db:
        table = db.table("web.pages")
        there = set(table.scan(columns=["page"]).to_arrow()["page"].to_pylist())
        console.print(f"  reopened, recovered and scanned in {(time.perf_counter() - started) * 1e3:.0f} ms")
        lost = [page for put in acknowledged for page in killed_pages(put) if page not in there]
        check(len(acknowledged) >= 25 and not lost, f"{2000 * len(acknowledged):,} acknowledged rows, {len(lost)} lost")
        replayed, dense = replay(table)
        current = {row["page"]: row for row in table.scan().to_arrow().to_pylist()}
        check(dense, "the changelog has every offset once, in order")
        check(replayed == current, f"replaying the changelog gives the table, all {len(current):,} rows of it")
    console.print("\n[bold green]All of it is right.[/]")
    return 0


def killed_pages(put: int) -> list[str]:
    """The keys of one put of the process that is killed."""
    return [f"/killed/{put}/{number}" for number in range(2000)]


def write_until_killed(data: Path) -> None:
    """The child: put, tell the parent, go on."""
    with kolk.connect(data) as db:
        table = db.table("web.pages")
        for put in range(100_000):
            pages = killed_pages(put)
            empty = [None] * len(pages)
            table.put(pa.table({"page": pages, "pv": [put] * len(pages), "seconds": empty, "seen": empty}))
            os.write(1, f"{put}\n".encode())


def replay(table: kolk.Table) -> tuple[dict[str, dict], bool]:
    """The table as its changelog makes it, and whether the offsets are dense."""
    state: dict[str, dict] = {}
    expected: dict[str, int] = {}
    dense = True
    for batch in table.changelog():
        for change in batch.to_pylist():
            bucket, offset = change["_bucket"], change["_log_offset"]
            dense = dense and offset == expected.get(bucket, 0)
            expected[bucket] = offset + 1
            row = {name: change[name] for name in table.schema.names}
            if change["_change_type"] in ("+I", "+U"):
                state[row["page"]] = row
            elif change["_change_type"] == "-D":
                del state[row["page"]]
    return state, dense


def check(holds: bool, claim: str) -> None:
    """Show a claim with its verdict; a wrong one ends the tour."""
    console.print(f"  [green]✓[/] {claim}" if holds else f"  [red]✗ WRONG:[/] {claim}")
    if not holds:
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
