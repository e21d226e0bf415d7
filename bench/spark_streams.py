"""spark_stream: a stream of events kept by key, by our sink, by Delta's MERGE, and by Spark's own state store.

The events are Parquet files that come two at a time, one for each core. What is timed: the whole backlog
(``availableNow``), from ``start`` to the end; a small file that is moved into the folder of a running query, until a
reader sees it; the lookup of a key; and reading everything into Arrow. All must end with the same rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
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
_BATCHES, _QUICK_BATCHES = 10, 4
_DROPS, _DROPPED = 5, 100
_LOOKUPS, _SLOW_LOOKUPS = 200, 3
_READS = 5
_POLL_SECONDS = 0.005
_PATIENCE_SECONDS = 120
_SCHEMA = "id bigint, seq bigint, amount bigint, city string"
_AHEAD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one contender took, in seconds."""

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
    def make(folder: Path, count: int, batches: int) -> "Events":
        rng, keys = np.random.default_rng(1), count // _EVENTS_PER_KEY
        cities = pa.array([f"city-{number}" for number in range(1_000)])

        def some(start: int, rows: int) -> pa.Table:
            ids, amounts = rng.integers(0, keys, rows), rng.integers(1, 100, rows)
            towns = cities.take(pa.array(rng.integers(0, 1_000, rows)))
            return pa.table([pa.array(ids), pa.array(np.arange(start, start + rows)), pa.array(amounts), towns],
                            schema=EVENTS)  # fmt: skip

        size = count // (batches * CORES)
        backlog = [some(place * size, size) for place in range(batches * CORES)]
        drops = [some(count + place * _DROPPED, _DROPPED) for place in range(_DROPS + 1)]
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

    def fill(self, inbox: Path) -> None:
        """The backlog, in a folder of one query."""
        inbox.mkdir(parents=True)
        for path in self.folder.glob("backlog-*"):
            (inbox / path.name).hardlink_to(path)

    def drop(self, inbox: Path, place: int) -> Drop:
        name = f"drop-{place:03}.parquet"
        (inbox / name).hardlink_to(self.folder / name)
        last = self.drops[place].slice(_DROPPED - 1).to_pylist()[0]
        return Drop(key=last["id"], seq=last["seq"], batch=self.batches + place)


def spark_stream(scale: Scale) -> Iterator[Figure]:
    """An upsert and an aggregate."""
    lacking = missing("spark_stream", "pyspark", "deltalake")
    if lacking is not None:
        yield lacking
        return
    is_quick = scale.keys <= _QUICK
    with (
        TemporaryDirectory() as name,
        kolk.start(Path(name) / "data") as server,
        kolk.connect(server.url) as db,
        spark_session(STATE_CONF) as spark,
    ):
        folder = Path(name)
        events = Events.make(folder / "events", scale.keys, _QUICK_BATCHES if is_quick else _BATCHES)
        warm = Events.make(folder / "warm", _QUICK // 100, 1)
        for job in JOBS:
            for contender, place in _contenders(spark, db, server.url, job, folder / "warm-up" / job.name):
                _take(spark, contender, place, warm, job)
            taken = {
                contender.name: _take(spark, contender, place, events, job)
                for contender, place in _contenders(spark, db, server.url, job, folder / "run" / job.name)
            }
            yield from _figures(job, taken, events.count)


def _contenders(spark: Any, db: kolk.Database, url: str, job: Job, folder: Path) -> Iterator[tuple[Contender, Path]]:
    """Each with a folder of its own, which is gone before the next one comes."""
    table = f"bench.{folder.parent.name.replace('-', '_')}_{job.name}"
    for name, make in (
        ("kolk", lambda _: Kolk(db, url, job, table)),
        ("delta", lambda place: Delta(place / "table", job)),
        ("state", lambda place: State(spark, place / "checkpoint", job)),
        ("undo", lambda _: Kolk(db, url, job, f"{table}_undo", "undo")),
    ):
        place = folder / name
        place.mkdir(parents=True)
        yield make(place), place
        rmtree(place)


def _take(spark: Any, contender: Contender, folder: Path, events: Events, job: Job) -> Taken:
    """Run the whole course, and check what is there at its end."""
    inbox = folder / "inbox"
    events.fill(inbox)
    stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", CORES).parquet(str(inbox))

    def writer() -> Any:
        return contender.writer(stream).option("checkpointLocation", str(folder / "checkpoint"))

    start = perf_counter()
    writer().trigger(availableNow=True).start().awaitTermination()
    backlog = perf_counter() - start
    visible = _visible(contender, writer().trigger(processingTime="0 seconds").start(), events, inbox)
    few = isinstance(contender, State)
    keys = np.random.default_rng(2).choice(events.everything()["id"].to_numpy(), _SLOW_LOOKUPS if few else _LOOKUPS)
    lookup = _median(contender.look_up, keys.tolist())
    read = _median(lambda _: contender.read(), range(_SLOW_LOOKUPS if few else _READS))
    wanted, found = job.expected(events.everything()), contender.read()
    assert _sorted(found, wanted.column_names).equals(_sorted(wanted, wanted.column_names)), (
        f"{contender.name} is wrong"
    )
    return Taken(backlog=backlog, visible=visible, lookup=lookup, read=read)


def _visible(contender: Contender, query: Any, events: Events, inbox: Path) -> float:
    """The median of some drops; the first, which also waits for the query to start, does not count."""
    samples: list[float] = []
    try:
        for place in range(len(events.drops)):
            start = perf_counter()
            drop = events.drop(inbox, place)
            while not contender.has_seen(query, drop):
                assert query.isActive, query.exception()
                assert perf_counter() - start < _PATIENCE_SECONDS, f"{contender.name} does not see it"
                sleep(_POLL_SECONDS)
            samples.append(perf_counter() - start)
        # What a reader sees may not be in the checkpoint yet.
        query.processAllAvailable()
    finally:
        with suppress(Exception):
            query.stop()
    return median(samples[1:])


def _median(work: Callable[[Any], object], asked: Sequence[Any]) -> float:
    samples: list[float] = []
    for each in asked:
        start = perf_counter()
        work(each)
        samples.append(perf_counter() - start)
    return median(samples)


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
