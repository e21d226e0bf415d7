"""Two minutes with Kolk and Spark: count clicks as they come, kill the driver on the way, and compare in the end.

Run it with ``./scripts/demo``. Clicks come as files, all the time. A PySpark driver, a process of its own, runs the two
queries of ``clickstream.py``: clicks are added up in ``web.pages``, whose changelog is followed into ``web.sections``.
This process is the dashboard: it scans both tables every second. In the middle of a batch it kills the driver and its
JVM with -9, and starts the driver again. When all clicks are counted, Spark counts them once more, in one batch; the
demo exits with 1 if a single row of either table is not the same, or if any scan on the way saw half a batch.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from board import Board, Reading, read
from clickstream import TABLES, count_clicks, differences, follow_pages, write_clicks
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console

import kolk
import kolk.spark

FILES = 120
SHARE_BEFORE_KILL = 1 / 3
BATCHES_AT_LEAST = 12
"""So few files go into a batch that there are so many batches, however late Spark is: the kill comes between them."""
AHEAD = {"starting": 0.25, "running": 0.6, "killed": 0.8, "back": 1.0}
"""How far the clicks may get in each part of the story: where Spark takes long to start, they wait for it."""
FAILURES_MAX = 8
"""So often a query is started again: on a busy machine Spark gives its own workers up, after 10 s."""
PATIENCE_SECONDS = 240.0
SECONDS_FOR_A_BATCH, SECONDS_OF_SILENCE = 20.0, 3.0


def main() -> int:
    """Run the demo; the answer is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clicks", type=int, default=300_000, help="how many clicks there are (default: 300,000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="the time in which they come (default: 60)")
    parser.add_argument("--drive", nargs=2, metavar=("FOLDER", "URL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        return driven(Path(arguments.drive[0]), arguments.drive[1])
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="kolk-demo-", ignore_cleanup_errors=True) as folder:
        return Demo(console, Path(folder), arguments.clicks, arguments.seconds).run()


# --- the driver: what a job of yours would be


def driven(folder: Path, url: str) -> int:
    """Drive, and tell the dashboard what goes wrong: in the log it is buried under what the JVM says when it ends."""
    try:
        drive(folder, url)
    except Exception as error:
        say(stage="failed", problem=str(error))
        raise
    return 0


def drive(folder: Path, url: str) -> None:
    """Run both queries until all clicks are there; then compare. It can be killed at any time, and run again."""
    threading.Thread(target=end_with_the_dashboard, daemon=True).start()
    spark = kolk.spark.session("kolk-demo")
    say(stage="running")
    writers = {
        "pages": count_clicks(spark, url, folder / "clicks", files=FILES // BATCHES_AT_LEAST),
        "sections": follow_pages(spark, url),
    }
    queries = Queries(writers, folder / "checkpoints")
    while not (folder / "complete").exists():
        queries.mend()
        say(batches=queries.batches())
        time.sleep(0.3)
    queries.finish()
    say(stage="comparing")
    say(stage="compared", wrong=differences(spark, url, folder / "clicks"))


class Queries:
    """Streaming queries, started one after the other, and again when they fail, a few times, each from its checkpoint.
    Nothing is lost and nothing counted twice by that. Confined to one thread."""

    def __init__(self, writers: dict[str, DataStreamWriter], checkpoints: Path) -> None:
        self._writers = {
            name: writer.queryName(name)
            .option("checkpointLocation", str(checkpoints / name))
            .trigger(processingTime="1 second")
            for name, writer in writers.items()
        }
        self._running: dict[str, StreamingQuery] = {}
        self._failures = 0

    def mend(self) -> None:
        """Start the next one if those before it are at work, and those again that have failed; raise what is wrong with
        them if it happens too often."""
        if len(self.batches()) == len(self._running) < len(self._writers):
            name = list(self._writers)[len(self._running)]
            self._running[name] = self._writers[name].start()
        for name, query in list(self._running.items()):
            problem = query.exception()
            if problem is not None and self._failures >= FAILURES_MAX:
                raise problem
            if problem is not None:
                self._failures += 1
                self._running[name] = self._writers[name].start()

    def batches(self) -> list[int]:
        """The last batch of each, of those that had one."""
        found = [query.lastProgress for query in self._running.values()]
        return [progress["batchId"] for progress in found if progress is not None]

    def finish(self) -> None:
        """Take all that is there, one after the other, since the second follows the first; then stop."""
        for name in self._writers:
            while True:
                self.mend()
                try:
                    if name in self._running:
                        self._running[name].processAllAvailable()
                        break
                except StreamingQueryException:
                    continue  # mended with the next turn
                time.sleep(0.3)
            self._running[name].stop()


def end_with_the_dashboard() -> None:
    """Nobody should find a JVM tomorrow that was left behind today."""
    sys.stdin.read()  # which ends when the other side does
    os.killpg(0, signal.SIGKILL)


def say(**what: Any) -> None:
    """To the dashboard, a line each."""
    print(json.dumps(what), flush=True)


class Driver:
    """The process of the driver, and what it has said so far, to which a thread of its own listens."""

    def __init__(self, folder: Path, url: str) -> None:
        self.stage = "starting"
        self.batches: list[int] = []
        self.wrong: dict[str, int] | None = None
        self._problem = ""
        self._log = folder / "driver.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--drive", str(folder), url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a group of its own, of which the JVM is, too
            )
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the Python process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """``kill -9`` of the driver and its JVM, at once."""
        self.stage = "killed"
        if self.is_alive:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def complaint(self) -> str:
        """Why it has failed, or else the end of what Spark has to say."""
        return self._problem or "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            self.stage = said.get("stage", self.stage)
            self.wrong = said.get("wrong", self.wrong)
            self._problem = said.get("problem", self._problem)
            self.batches = said.get("batches", self.batches)


class DriverFailed(Exception):
    """The driver has ended, or does not come to an end, and nobody has killed it."""


# --- the show


class Demo:
    """The story, from the first click to the last row. Confined to one thread, but for the clicks."""

    def __init__(self, console: Console, folder: Path, clicks: int, seconds: float) -> None:
        self._folder = folder
        self._per_file = max(clicks // FILES, 1)
        self._clicks = self._per_file * FILES
        self._seconds = seconds
        self._files = 0
        self._part = "starting"
        self._is_over = threading.Event()
        self._board = Board(console, self._clicks)
        self._torn = 0

    def run(self) -> int:
        """Tell it; the answer is the exit code."""
        driver: Driver | None = None
        with kolk.start(self._folder / "data") as server, kolk.connect(server.url) as db, self._board as board:
            for statement in TABLES:
                db.execute(statement)
            board.tell(f"a server at [bold]{server.url}[/], with two empty tables")
            threading.Thread(target=self._make_clicks, daemon=True).start()
            try:
                driver = first = self._start(server.url)
                board.tell("clicks come in, as files; a driver of Spark starts, which takes a while ...")
                self._watch(db, first, lambda _: first.stage == "running")
                board.tell("streaming queries start: one adds clicks up, and one follows the changes")
                self._watch(db, driver, lambda seen: seen.views > 0)
                board.tell("the first batch is in web.pages, and this dashboard reads it")
                self._watch(db, driver, lambda seen: seen.section_views > 0)
                board.tell("web.sections follows: a full copy first, and then every change")
                self._part = "running"
                self._watch(db, driver, lambda seen: seen.views >= self._clicks * SHARE_BEFORE_KILL)
                self._kill(db, driver)
                driver = self._start(server.url)
                board.tell("the driver starts again, from its checkpoints; clicks have gone on coming")
                self._finish(db, driver)
                wrong = driver.wrong
            except DriverFailed as failed:
                board.tell(f"[red]{failed}[/]")
                wrong = None
            finally:
                self._is_over.set()
                if driver is not None:
                    driver.kill()
        if wrong is None:
            board.console.print(driver.complaint() if driver else "", markup=False)
            board.console.print("\n[bold red]The demo has not come to its end.[/] What Spark said last is above.")
            return 1
        return self._verdict(wrong)

    def _make_clicks(self) -> None:
        """A file every now and then, until all are there."""
        while self._files < FILES:
            if self._files < FILES * AHEAD[self._part]:
                write_clicks(self._folder / "clicks", self._files, self._per_file)
                self._files += 1
            if self._is_over.wait(self._seconds / FILES):
                return
        (self._folder / "complete").touch()

    def _start(self, url: str) -> Driver:
        driver = Driver(self._folder, url)
        self._board.spark = _state(driver)
        return driver

    def _look(self, db: kolk.Database, driver: Driver) -> Reading:
        """Read both tables, and show them."""
        made = self._files * self._per_file
        seen = read(db, self._board.now)
        self._torn += seen.views % self._per_file != 0
        self._board.show(seen, made)
        self._board.spark = _state(driver)
        return seen

    def _watch(self, db: kolk.Database, driver: Driver, until: Callable[[Reading], bool]) -> Reading:
        """Look every second, until something is so."""
        deadline = self._board.now + PATIENCE_SECONDS
        while True:
            seen = self._look(db, driver)
            if until(seen):
                return seen
            if not driver.is_alive and driver.stage != "killed":
                raise DriverFailed(f"the driver has ended by itself; it was {driver.stage}")
            if self._board.now > deadline:
                raise DriverFailed(f"{PATIENCE_SECONDS:.0f} s were not enough; the driver is {driver.stage}")
            time.sleep(max(1 - (self._board.now - seen.taken), 0))

    def _kill(self, db: kolk.Database, driver: Driver) -> None:
        """In the middle of a batch: when rows are staged, and not yet committed."""
        deadline = self._board.now + SECONDS_FOR_A_BATCH
        staged = 0
        while not staged and self._board.now < deadline:
            found = [each for each in db.transactions() if each.state in ("staging", "sealed")]
            staged = sum(each.rows for each in found if "web.pages" in each.tables)
            if self._board.now - self._board.readings[-1].taken >= 1:
                self._look(db, driver)
            time.sleep(0.005)
        driver.kill()
        self._part = "killed"
        rows = f", while {staged:,} rows are staged and not committed" if staged else ""
        self._board.tell(f"[bold red]kill -9[/] of the driver and its JVM{rows}")
        before = self._look(db, driver).views
        after = self._board.now + SECONDS_OF_SILENCE
        seen = self._watch(db, driver, lambda seen: seen.taken >= after)
        is_still = seen.views == before
        self._board.tell(
            f"the tables can be read as before: {seen.views:,} clicks, {'whole batches only' if is_still else 'MOVING'}"
        )

    def _finish(self, db: kolk.Database, driver: Driver) -> None:
        seen = self._watch(db, driver, lambda _: driver.stage == "running")
        self._board.tell(f"Spark is back, {self._files * self._per_file - seen.views:,} clicks behind")
        self._part = "back"
        self._watch(db, driver, lambda again: again.views > seen.views)
        self._board.tell("the batch that was killed is in the table, once")
        self._watch(db, driver, lambda _: driver.stage in ("comparing", "compared"))
        self._board.tell("all clicks are counted; Spark counts them again, in one batch, and compares")
        self._watch(db, driver, lambda _: driver.wrong is not None)
        self._board.spark = "[dim]done[/]"

    def _verdict(self, wrong: dict[str, int]) -> int:
        """Every claim, with its verdict."""
        console, last = self._board.console, self._board.readings[-1]
        claims = [
            (not wrong[name], f"{name}: all {rows} rows equal what Spark counts in one batch")
            for name, rows in (("web.pages", last.pages.num_rows), ("web.sections", last.sections.num_rows))
        ]
        claims.append((not self._torn, f"{len(self._board.readings)} scans on the way, and none saw half a batch"))
        for holds, claim in claims:
            console.print(f"  [green]✓[/] {claim}" if holds else f"  [red]✗ WRONG:[/] {claim}")
        if all(holds for holds, _ in claims):
            self._board.console.print(
                f"\n[bold green]{self._clicks:,} clicks, counted once each. All of it is right.[/]"
            )
            return 0
        return 1


def _state(driver: Driver) -> str:
    """The driver, as the board shows it."""
    if driver.stage == "killed":
        return "[bold red]killed[/]"
    if driver.stage != "running":
        return f"[yellow]{driver.stage}[/] [dim]process {driver.pid}[/]"
    batches = " and ".join(map(str, driver.batches))
    return f"[green]running[/] [dim]process {driver.pid}{f', batches {batches}' if batches else ''}[/]"


if __name__ == "__main__":
    sys.exit(main())
