"""A Spark driver that streams files into Kolk tables until all of them are there, with faults wherever a plan has some.

    python -m tests.faults.spark_driver JOB

Runs in a process of its own, with a JVM of its own, so that it can be killed with it. A query that fails is started
again, and cuts its rows anew, so that a batch that comes again has other partitions and another order.
"""

import json
import random
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.faults.spark_faults import Faults
from tests.faults.spark_sinks import ROWS_AT_ONCE, FaultySource, NaiveSource, faulty

import kolk.spark

SHAPE = "k bigint, v bigint, top bigint, seen string"
STARTS_MAX = 100
POLL_SECONDS = 0.05
REASONS_MAX, TEXT_MAX = 12, 3_000
OFTEN = "1 second"
CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_AT_ONCE),
    "spark.driver.memory": "700m",
    # A life is short: what compiles for long runs costs more than it gives.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@dataclass(frozen=True, slots=True)
class Query:
    """A query: what it writes to, and how. ``way`` is transaction, undo or naive. It reads files, or ``follows`` the
    table of another query."""

    name: str
    table: str
    way: str
    checkpoint: str
    at_once: int
    """The files of a batch, or the rows of one that follows."""
    follows: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """All that a driver needs to know."""

    url: str
    source: str
    faults: str
    seed: int
    queries: list[Query] = field(default_factory=list)

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of_text(text: str) -> "Job":
        given = json.loads(text)
        return Job(**{**given, "queries": [Query(**query) for query in given["queries"]]})


class Queries:
    """The queries of a driver: each is started until it has read all there is. Confined to one thread."""

    def __init__(self, spark: SparkSession, job: Job) -> None:
        self._spark = spark
        self._job = job
        self._rng = random.Random(job.seed)
        self._faults = Faults(Path(job.faults))
        self._starts = 0
        self._pause = threading.Event()

    def run(self) -> None:
        """All of them. One that follows does so while the others run, and goes to the end when they are through."""
        firsts = [query for query in self._job.queries if not query.follows]
        lasts = [query for query in self._job.queries if query.follows]
        following = {query: self._started(query, is_endless=True) for query in lasts}
        self._to_the_end(firsts, following)
        for query, handle in following.items():
            handle.stop()
            self._faults.note(what="stop", query=query.name)
        self._to_the_end(lasts, {})

    def _to_the_end(self, queries: list[Query], beside: dict[Query, StreamingQuery]) -> None:
        running = {query: self._started(query) for query in queries}
        while running:
            for query, handle in [*running.items(), *beside.items()]:
                if handle.isActive:
                    continue
                if handle.exception() is None:
                    del running[query]
                    self._faults.note(what="end", query=query.name)
                    continue
                self._faults.note(what="failure", query=query.name, text=_reason(handle))
                if query in running:
                    running[query] = self._started(query)
                else:
                    beside[query] = self._started(query, is_endless=True)
            self._pause.wait(POLL_SECONDS)

    def _started(self, query: Query, *, is_endless: bool = False) -> StreamingQuery:
        """A query, cut and sent in some other way than the last time."""
        self._starts += 1
        assert self._starts < STARTS_MAX, "the queries fail again and again"
        source = self._source(query)
        frame = source.mapInArrow(faulty(query.name, self._job.faults), source.schema)
        options: dict[str, Any] = {"url": self._job.url, "table": query.table, "checkpointLocation": query.checkpoint}
        options |= {"query": query.name, "faults": self._job.faults}
        if query.way != "naive":
            options["exactly-once"] = query.way
            options["txn.on-different"] = "fail"  # a source gives the same rows each time
        if query.way != "naive" and not query.follows:
            options["preaggregate"] = self._rng.choice(["auto", "true", "false"])
        writer = frame.writeStream.format("naive" if query.way == "naive" else "kolk-faulty").options(**options)
        return (writer.trigger(processingTime=OFTEN) if is_endless else writer.trigger(availableNow=True)).start()

    def _source(self, query: Query) -> DataFrame:
        if query.follows:
            # Not cut anew: of a key the last change stands, so they stay in their order.
            table = next(each.table for each in self._job.queries if each.name == query.follows)
            options = {"url": self._job.url, "table": table, "changes": "upserts", "maxRowsPerTrigger": query.at_once}
            return self._spark.readStream.format("kolk").options(**options).load()
        files = self._spark.readStream.schema(SHAPE).option("maxFilesPerTrigger", query.at_once)
        frame = files.parquet(self._job.source)
        if query.way == "undo":
            return kolk.spark.by_bucket(frame, query.table, url=self._job.url)
        return frame.repartition(self._rng.randint(2, 4))


def _reason(handle: StreamingQuery) -> str:
    """Why a query failed, as far down as the JVM tells it: what is on top says no more than that it did."""
    error, found = handle._jsq.exception().get(), []
    while error is not None and len(found) < REASONS_MAX:
        found += [error.toString(), *(each.toString() for each in error.getSuppressed())]
        error = error.getCause()
    lines = [line.strip() for text in found for line in text.splitlines()]
    told = [line[:300] for line in lines if any(sign in line for sign in ("Error", "Exception", "fault ", "worker"))]
    return " | ".join(dict.fromkeys(told))[:TEXT_MAX]


def run(job: Job) -> None:
    """A session, and all queries in it."""
    spark = kolk.spark.session("chaos", cores=2, conf=CONF, log_level="OFF")
    spark.dataSource.register(FaultySource)
    spark.dataSource.register(NaiveSource)
    Faults(Path(job.faults)).note(what="session")
    Queries(spark, job).run()
    spark.stop()


if __name__ == "__main__":
    run(Job.of_text(Path(sys.argv[1]).read_text()))
