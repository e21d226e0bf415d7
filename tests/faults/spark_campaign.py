"""One stream through many deaths: drivers that are killed and started again, a server that is, and what comes of it."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.faults.campaign import ROOT
from tests.faults.servers import Server
from tests.faults.spark_driver import Job, Query
from tests.faults.spark_faults import ABORT, COMMIT_POINTS, DURING, MAP_POINTS, SINK_POINTS, Fault, Faults

import kolk

LIFE_SECONDS_MAX = 900.0
TICK_SECONDS = 0.03
KEYS = 40
BUCKETS = 3
SCHEMA = kolk.Schema(
    [
        kolk.Column("k", "bigint"),
        kolk.Column("v", "bigint", agg="sum"),
        kolk.Column("top", "bigint", agg="max"),
        kolk.Column("seen", "string", agg="listagg"),
        kolk.Column("n", "bigint", agg="count_rows"),
    ],
    primary_key=["k"],
)
COPY = kolk.Schema([kolk.Column(column.name, str(column.type)) for column in SCHEMA.columns], primary_key=["k"])
"""The same, without what makes it an aggregation."""

_BEFORE, _AFTER = COMMIT_POINTS
TASK_FAULTS = [(point, act) for point in (*MAP_POINTS, *SINK_POINTS) for act in ("raise", "exit")]
COMMIT_FAULTS = [(point, act) for point in COMMIT_POINTS for act in ("raise", "exit")]
KILLS = [
    (_AFTER, "driver"),
    (DURING, "zombie"),
    (SINK_POINTS[1], "driver later"),
    (_BEFORE, "driver"),
    (SINK_POINTS[2], "zombie"),
    (MAP_POINTS[1], "driver"),
    (_BEFORE, "zombie"),
    (_AFTER, "driver later"),
    (SINK_POINTS[1], "driver"),
    (DURING, "driver"),
]
CHAIN_FAULTS = [(MAP_POINTS[1], "exit"), (SINK_POINTS[2], "raise"), (_AFTER, "raise"), (_BEFORE, "exit")]
SERVER_KILLS = [
    (SINK_POINTS[1], "server"),
    (DURING, "server"),
    (_BEFORE, "server later"),
    (_AFTER, "server"),
    (SINK_POINTS[2], "server"),
    (_BEFORE, "server"),
]


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything: for each query the faults of its tasks and commits; of drivers and servers in all."""

    files: int
    task_faults: int
    kills: int
    server_kills: int

    def batches(self, files_at_once: int) -> int:
        """So many a query of files has at least. When a driver is killed between the log of its source and that of its
        offsets, Spark makes one batch of two."""
        return self.files // files_at_once - self.kills


def planned(rng: random.Random, queries: list[Query], size: Size, batches: int) -> list[Fault]:
    """Faults over the batches that every query has at least, one after the other."""
    found: list[dict[str, Any]] = []
    exact = [query.name for query in queries if query.way != "naive" and not query.follows]

    def add(query: str, share: float, point: str, act: str, **more: Any) -> None:
        found.append({"query": query, "batch": int(share * batches), "point": point, "act": act, **more})

    for query in exact:
        for number, (point, act) in enumerate(_mixed(rng, size.task_faults)):
            add(query, number / size.task_faults, point, act)
            if (point, act) == (_AFTER, "raise") and number < len(TASK_FAULTS):
                add(query, number / size.task_faults, ABORT, "raise")
    for number, (point, act) in enumerate(islice(cycle(KILLS), size.kills)):
        share = number / (size.kills + 1)
        add(exact[number % len(exact)], share, point, act, driver=number, seconds=_wait(rng, point))
    for number, (point, act) in enumerate(islice(cycle(SERVER_KILLS), size.server_kills)):
        life = number * (size.kills + 1) // size.server_kills
        share = (life + 0.5) / (size.kills + 1)
        add(exact[number % len(exact)], share, point, act, driver=life, seconds=_wait(rng, point))
    for query in queries:
        if query.way == "naive":
            add(query.name, 0, SINK_POINTS[2], "raise")
            add(query.name, 0, SINK_POINTS[1], "exit")
        if query.follows:
            for number, (point, act) in enumerate(CHAIN_FAULTS):
                add(query.name, number / batches, point, act)
    return [Fault(number=number, **fault) for number, fault in enumerate(found)]


def _mixed(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """So many faults of tasks and commits, each kind about as often as the others."""
    commits = list(islice(cycle(COMMIT_FAULTS), count // 3))
    tasks = list(islice(cycle(rng.sample(TASK_FAULTS, len(TASK_FAULTS))), count - len(commits)))
    mixed = tasks + commits
    return iter(rng.sample(mixed, len(mixed)))


def _wait(rng: random.Random, point: str) -> float:
    return rng.uniform(0, 0.05 if point == DURING else 1.0)


def write_source(folder: Path, rng: random.Random, files: int) -> None:
    """Files of random size; a row is known by its text, so that a lost one and a doubled one have a name."""
    folder.mkdir()
    for file in range(files):
        count = rng.randint(100, 400)
        table = pa.table(
            {
                "k": pa.array([rng.randrange(KEYS) for _ in range(count)], pa.int64()),
                "v": pa.array([_maybe(rng, rng.randint(-1_000, 1_000)) for _ in range(count)], pa.int64()),
                "top": pa.array([_maybe(rng, rng.randint(-(10**9), 10**9)) for _ in range(count)], pa.int64()),
                "seen": pa.array([f"{file}.{row}" for row in range(count)], pa.string()),
            }
        )
        pq.write_table(table, folder / f"{file:04}.parquet")


def _maybe(rng: random.Random, value: int) -> int | None:
    return value if rng.random() < 0.97 else None


@dataclass(slots=True)
class Answer:
    """What a batch job would make of a key."""

    n: int = 0
    v: int | None = None
    top: int | None = None
    seen: list[str] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        self.n += 1
        self.seen.append(row["seen"])
        if row["v"] is not None:
            self.v = (self.v or 0) + row["v"]
        if row["top"] is not None:
            self.top = row["top"] if self.top is None else max(self.top, row["top"])


def batch_answer(folder: Path) -> dict[int, dict[str, Any]]:
    """The state that the tables must have, by plain Python over the files; texts in the order of their names."""
    found: dict[int, Answer] = {}
    for row in pq.read_table(folder).to_pylist():
        found.setdefault(row["k"], Answer()).add(row)
    return {
        key: {"k": key, "v": one.v, "top": one.top, "seen": sorted(one.seen), "n": one.n} for key, one in found.items()
    }


def without_order(rows: dict[Any, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Rows of a table for comparison: the order of a list is that of its tasks, which nobody promises."""
    return {row["k"]: {**row, "seen": sorted(row["seen"].split(","))} for row in rows.values()}


def misses(rows: dict[int, dict[str, Any]], expected: dict[int, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The rows of the source that are not in a table, and those that are in it more than once."""
    there = Counter(name for row in rows.values() for name in row["seen"])
    wanted = Counter(name for row in expected.values() for name in row["seen"])
    return sorted((wanted - there).elements()), sorted((there - wanted).elements())


EXPLAINED = ("fault ", "Python worker exited unexpectedly", "Python worker failed to connect back")


def unexplained(faults: Faults) -> list[str]:
    """Failures of queries that no fault explains: what they say is of something else."""
    texts = [line["text"] for line in faults.noted("failure")]
    return [text for text in texts if not any(sign in text for sign in EXPLAINED)]


class Campaign:
    """Drivers, one after the other, until one of them comes to its end by itself."""

    def __init__(self, folder: Path, server: Server, queries: list[Query], faults: Faults) -> None:
        self.faults = faults
        self.deaths = 0
        self.restarts = 0
        self._folder = folder
        self._server = server
        self._queries = queries
        self._drivers: list[int] = []
        self._later: list[tuple[float, Fault]] = []
        self._read = 0

    def run(self, seed: int, lives_max: int) -> None:
        """All lives. The last one must end well."""
        self.faults.tell("server", self._server.pid)
        for life in range(lives_max):
            status = self._live(life, seed + life)
            if status == 0:
                return
            assert status == -signal.SIGKILL, f"driver {life} ended with {status}: {self.said(life)}"
            self.deaths += 1
        raise AssertionError(f"after {lives_max} drivers there is still something to do: {self.said(lives_max - 1)}")

    def said(self, life: int) -> str:
        """The end of what a driver printed, and of the ledger."""
        ledger = (self.faults.folder / "ledger").read_text().splitlines()[-30:]
        return "\n".join([(self._folder / f"driver-{life}.log").read_text(errors="replace")[-4_000:], *ledger])

    def left_behind(self) -> list[int]:
        """The processes of drivers that are not there any more."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) in self._drivers and state != "Z":
                found.append(int(stat.parent.name))
        return found

    def _live(self, life: int, seed: int) -> int:
        job = Job(self._server.url, str(self._folder / "source"), str(self.faults.folder), seed, self._queries)
        path = self._folder / f"job-{life}"
        path.write_text(job.to_text())
        self.faults.tell("life", life)
        with (self._folder / f"driver-{life}.log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.spark_driver", str(path)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._drivers.append(driver.pid)
            self.faults.tell("driver", driver.pid)
            try:
                return self._watched(driver)
            finally:
                _kill_group(driver.pid)
                driver.wait()

    def _watched(self, driver: "subprocess.Popen[bytes]") -> int:
        deadline = time.monotonic() + LIFE_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                return driver.wait(TICK_SECONDS)
            except subprocess.TimeoutExpired:  # it runs
                self._do_what_is_due(driver.pid)
            if not self._server.is_alive:
                self._server.start()
                self.faults.tell("server", self._server.pid)
                self.restarts += 1
        raise AssertionError(f"a driver does not come to an end: {self.said(len(self._drivers) - 1)}")

    def _do_what_is_due(self, driver: int) -> None:
        struck = self.faults.struck()
        now = time.monotonic()
        self._later += [(now + fault.seconds, fault) for fault in struck[self._read :] if fault.act.endswith("later")]
        self._read = len(struck)
        for due, fault in list(self._later):
            if due <= now:
                self._later.remove((due, fault))
                if fault.act == "driver later":
                    _kill_group(driver)
                elif self._server.is_alive:
                    os.kill(self._server.pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
