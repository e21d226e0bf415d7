"""spark_stream: a stream of events kept by key, by our sink, by Delta's MERGE, and by Spark's own state store.

The events are Parquet files that come two at a time, one for each core. What is timed: the whole backlog
(``availableNow``), in all its micro-batches; a small file that is moved into the folder of a running query, until a
reader sees it; the lookup of a key; and reading everything into Arrow. All must end with the same rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import kolk
from bench.measure import Figure, Scale
from bench.spark_contenders import EVENTS, JOBS, STATE_CONF, Contender, Delta, Drop, Job, Kolk, State
from bench.spark_setup import CORES, missing, spark_session

_QUICK = 200_000
_EVENTS_PER_KEY = 10
_BATCHES_PER_TURN = 2
_TURNS, _QUICK_TURNS = 5, 2
_DROPS_PER_TURN, _DROPPED = 2, 100
_LOOKUPS = 50
_POLL_SECONDS = 0.005
_PATIENCE_SECONDS = 120
_SCHEMA = "id bigint, seq bigint, amount bigint, city string"
_AHEAD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one contender took, in seconds: for all of the backlog, and at the median of each of the others."""

    backlog: float
    visible: float
    lookup: float
    read: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The backlog, and the small files that come after it. Frozen; files are written once and linked."""

    folder: Path
    backlog: Sequence[pa.Table]
    drops: Sequence[pa.Table]

    @staticmethod
    def make(folder: Path, count: int, turns: int) -> "Events":
        rng, keys = np.random.default_rng(1), count // _EVENTS_PER_KEY
        cities = pa.array([f"city-{number}" for number in range(1_000)])

        def some(start: int, rows: int) -> pa.Table:
            ids, amounts = rng.integers(0, keys, rows), rng.integers(1, 100, rows)
            towns = cities.take(pa.array(rng.integers(0, 1_000, rows)))
            return pa.table([pa.array(ids), pa.array(np.arange(start, start + rows)), pa.array(amounts), towns],
                            schema=EVENTS)  # fmt: skip

        files = turns * _BATCHES_PER_TURN * CORES
        size = count // files
        backlog = [some(place * size, size) for place in range(files)]
        drops = [some(count + place * _DROPPED, _DROPPED) for place in range(turns * _DROPS_PER_TURN)]
        folder.mkdir()
        for kind, tables in (("backlog", backlog), ("drop", drops)):
            for place, table in enumerate(tables):
                pq.write_table(table, folder / f"{kind}-{place:03}.parquet")
        return Events(folder=folder, backlog=backlog, drops=drops)

    @property
    def count(self) -> int:
        return sum(table.num_rows for table in self.backlog)

    @property
    def batches(self) -> int:
        return len(self.backlog) // CORES

    def everything(self) -> pa.Table:
        return pa.concat_tables([*self.backlog, *self.drops])

    def fill(self, inbox: Path, turn: int, turns: int) -> None:
        """One of so many shares of the backlog, into the folder that a query reads."""
        share = len(self.backlog) // turns
        for place in range(turn * share, (turn + 1) * share):
            name = f"backlog-{place:03}.parquet"
            (inbox / name).hardlink_to(self.folder / name)

    def drop(self, inbox: Path, place: int) -> Drop:
        name = f"drop-{place:03}.parquet"
        (inbox / name).hardlink_to(self.folder / name)
        last = self.drops[place].slice(_DROPPED - 1).to_pylist()[0]
        return Drop(key=last["id"], seq=last["seq"], batch=self.batches + place)


class Course:
    """One contender on its way: its folders, its stream, and what it has taken. Confined to one thread."""

    def __init__(self, spark: Any, contender: Contender, folder: Path, events: Events) -> None:
        self.contender = contender
        self._events, self._inbox, self._checkpoint = events, folder / "inbox", folder / "checkpoint"
        self._inbox.mkdir()
        source = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", CORES)
        self._stream = source.parquet(str(self._inbox))
        self._backlog, self._visible, self._lookups, self._reads = ([] for _ in range(4))
        self._dropped = 0

    def run(self, turn: int, turns: int) -> None:
        """A share of the backlog. What counts are its micro-batches, not how long a query takes to start."""
        self._events.fill(self._inbox, turn, turns)
        query = self._writer().trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        assert len(batches) == self._events.batches // turns, "a micro-batch was not reported"
        self._backlog.append(sum(progress.durationMs["triggerExecution"] for progress in batches) / 1_000)

    def drop(self) -> None:
        """A running query, and two small files; for the first it still has to get going, so that does not count."""
        query = self._writer().trigger(processingTime="0 seconds").start()
        try:
            self._wait(query)
            self._visible.append(self._wait(query))
            query.processAllAvailable()  # what a reader sees may not be in the checkpoint yet
        finally:
            query.stop()

    def look(self, turn: int) -> None:
        """Some lookups, and a read of everything."""
        ids = self._events.everything()["id"].to_numpy()
        count = 1 if isinstance(self.contender, State) else _LOOKUPS
        for key in np.random.default_rng(turn).choice(ids, count).tolist():
            self._lookups.append(_timed(lambda key=key: self.contender.look_up(key)))
        self._reads.append(_timed(self.contender.read))

    def taken(self, job: Job) -> Taken:
        """What it took; the rows must be right."""
        wanted = job.expected(self._events.everything())
        is_right = _sorted(self.contender.read(), wanted.column_names).equals(_sorted(wanted, wanted.column_names))
        assert is_right, f"the rows of {self.contender.name} are wrong"
        return Taken(
            backlog=sum(self._backlog),
            visible=median(self._visible),
            lookup=median(self._lookups),
            read=median(self._reads),
        )

    def _writer(self) -> Any:
        return self.contender.writer(self._stream).option("checkpointLocation", str(self._checkpoint))

    def _wait(self, query: Any) -> float:
        start = perf_counter()
        drop = self._events.drop(self._inbox, self._dropped)
        self._dropped += 1
        while not self.contender.has_seen(query, drop):
            assert query.isActive, query.exception()
            assert perf_counter() - start < _PATIENCE_SECONDS, f"{self.contender.name} does not see it"
            sleep(_POLL_SECONDS)
        return perf_counter() - start


def spark_stream(scale: Scale) -> Iterator[Figure]:
    """An upsert and an aggregate."""
    lacking = missing("spark_stream", "pyspark", "deltalake")
    if lacking is not None:
        yield lacking
        return
    turns = _QUICK_TURNS if scale.keys <= _QUICK else _TURNS
    with (
        TemporaryDirectory() as name,
        kolk.start(Path(name) / "data") as server,
        kolk.connect(server.url) as db,
        spark_session(STATE_CONF) as spark,
    ):
        folder = Path(name)
        warm = Events.make(folder / "warm", _QUICK // 100, 1)
        events = Events.make(folder / "events", scale.keys, turns)
        for job in JOBS:
            for what, turns_of in ((warm, 1), (events, turns)):
                place = folder / f"{what.folder.name}-{job.name}"
                contenders = _contenders(spark, db, server.url, job, place)
                taken = _taken(spark, contenders, what, job, turns_of)
            yield from _figures(job, taken, events.count)


def _contenders(spark: Any, db: kolk.Database, url: str, job: Job, folder: Path) -> dict[Path, Contender]:
    """Each with a folder of its own."""
    kolks, delta, state, undo = (folder / name for name in ("kolk", "delta", "state", "undo"))
    for place in (kolks, delta, state, undo):
        place.mkdir(parents=True)
    table = f"bench.{folder.name.replace('-', '_')}"
    return {
        kolks: Kolk(db, url, job, table),
        delta: Delta(delta / "table", job),
        state: State(spark, state / "checkpoint", job),
        undo: Kolk(db, url, job, f"{table}_undo", "undo"),
    }


def _taken(spark: Any, contenders: dict[Path, Contender], events: Events, job: Job, turns: int) -> dict[str, Taken]:
    """All of them in turn, forwards and backwards: what else the machine does must not fall on one of them."""
    courses = [Course(spark, contender, folder, events) for folder, contender in contenders.items()]
    steps: list[Callable[[Course, int], None]] = [
        lambda course, turn: course.run(turn, turns),
        lambda course, _: course.drop(),
        lambda course, turn: course.look(turn),
    ]
    for step in steps:
        for turn in range(turns):
            for course in courses if turn % 2 == 0 else reversed(courses):
                step(course, turn)
    return {course.contender.name: course.taken(job) for course in courses}


def _timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def _sorted(table: pa.Table, names: Sequence[str]) -> pa.Table:
    plain = pa.table([table[name].cast(pa.string() if name == "city" else pa.int64()) for name in names], names=names)
    return plain.sort_by("id").combine_chunks()


def _figures(job: Job, taken: dict[str, Taken], events: int) -> Iterator[Figure]:
    ours, undone = taken["Kolk"], taken["Kolk, undo"]
    for other in ("Delta", "state"):
        yield from _lines(job.name, ours, taken[other], other, events, _AHEAD)
    yield from list(_lines(f"{job.name}, undo", undone, taken["Delta"], "Delta", events, None))[:2]


def _lines(case: str, ours: Taken, theirs: Taken, other: str, events: int, target: float | None) -> Iterator[Figure]:
    keys = events // _EVENTS_PER_KEY
    for line, mine, its, rows in (
        (f"{events:,} events", ours.backlog, theirs.backlog, events),
        ("until visible", ours.visible, theirs.visible, 0),
        ("point lookup", ours.lookup, theirs.lookup, 1),
        (f"read of {keys:,} rows", ours.read, theirs.read, keys),
    ):
        note = f"floor: {other}; {mine * 1_000:,.1f} ms beside {its * 1_000:,.1f}"
        yield Figure(
            bench="spark_stream",
            case=f"{case}: {line}",
            rate=rows / mine,
            floor_rate=rows / its,
            ratio=its / mine,
            target=target,
            note=note,
        )
