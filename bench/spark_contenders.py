"""Three ways to keep the rows of a stream by key, and two jobs to do so: what ``spark_stream`` compares.

*Kolk* is our sink, given the events as they are. *Delta* is a MERGE in ``foreachBatch``, of what Spark has made of the
events of each key, with the batch's id in the commit, so that a batch that comes again is not merged again. *state* is
Spark's own aggregation in its RocksDB state store, read by Spark's reader of states, with a sink that drops everything.

Every one of them answers with the same columns, ``id`` first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

import kolk

EVENTS = pa.schema([("id", pa.int64()), ("seq", pa.int64()), ("amount", pa.int64()), ("city", pa.string())])
_BUCKETS = 4
STATE_CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is kept of the events of a key, said in the words of each contender."""

    name: str
    schema: kolk.Schema
    options: Mapping[str, str]
    events: tuple[str, ...]
    """What our sink is given of an event, in SQL."""
    reduced: Callable[[Any], Any]
    """A frame of events, aggregated by key by Spark."""
    matched: Mapping[str, str]
    """What a MERGE sets where there is a row; ``t`` is the table and ``s`` what comes."""
    if_matched: str | None
    states: tuple[str, ...]
    """The columns of the result, of the state store's ``key`` and ``value``."""
    expected: Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A small file that a running query finds: an event to look for in it, and the micro-batch that it becomes."""

    key: int
    seq: int
    batch: int


class Contender(Protocol):
    """One table that a stream goes to."""

    name: str

    def writer(self, stream: Any) -> Any:
        """A writer of the stream, to be triggered and started."""
        ...

    def look_up(self, key: int) -> dict[str, Any] | None:
        """The newest row of a key."""
        ...

    def has_seen(self, query: Any, drop: Drop) -> bool:
        """Whether a reader can see an event."""
        ...

    def read(self) -> pa.Table:
        """All rows."""
        ...


class Kolk:
    """Our sink, by transactions or by what can be taken back."""

    def __init__(self, db: kolk.Database, url: str, job: Job, table: str, exactly_once: str = "transaction") -> None:
        self.name = "Kolk" if exactly_once == "transaction" else f"Kolk, {exactly_once}"
        self._url, self._job, self._exactly_once = url, job, exactly_once
        self._table = db.create_table(table, job.schema, buckets=_BUCKETS, options=job.options)

    def writer(self, stream: Any) -> Any:
        """Undo wants the rows of a bucket in one task."""
        from kolk.spark import by_bucket

        events, table = stream.selectExpr(*self._job.events), str(self._table.name)
        if self._exactly_once == "undo":
            events = by_bucket(events, table, url=self._url)
        writer = events.writeStream.format("kolk").options(url=self._url, table=table)
        return writer.option("exactly-once", self._exactly_once)

    def look_up(self, key: int) -> dict[str, Any] | None:
        return self._table.get_one(id=key)

    def has_seen(self, query: Any, drop: Drop) -> bool:
        row = self.look_up(drop.key)
        return row is not None and row["seq"] == drop.seq

    def read(self) -> pa.Table:
        return self._table.scan().to_arrow()


class Delta:
    """MERGE of each micro-batch, in the process of the driver."""

    name = "Delta"

    def __init__(self, folder: Path, job: Job) -> None:
        from deltalake import DeltaTable

        self._job = job
        self._table = DeltaTable.create(str(folder), job.schema.arrow)
        self._merged = DeltaTable(str(folder))

    def writer(self, stream: Any) -> Any:
        return stream.writeStream.foreachBatch(self._merge)

    def look_up(self, key: int) -> dict[str, Any] | None:
        self._table.update_incremental()
        found = self._table.to_pyarrow_dataset().to_table(filter=pc.field("id") == key)
        return found.to_pylist()[0] if found.num_rows else None

    def has_seen(self, query: Any, drop: Drop) -> bool:
        row = self.look_up(drop.key)
        return row is not None and row["seq"] == drop.seq

    def read(self) -> pa.Table:
        self._table.update_incremental()
        return self._table.to_pyarrow_table()

    def _merge(self, batch: Any, number: int) -> None:
        from deltalake import CommitProperties, Transaction

        committed = self._merged.transaction_version("bench")
        if committed is not None and committed >= number:
            return
        merge = self._merged.merge(
            self._job.reduced(batch).toArrow(),
            "t.id = s.id",
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(app_transactions=[Transaction("bench", number)]),
        )
        merge = merge.when_matched_update(dict(self._job.matched), predicate=self._job.if_matched)
        merge.when_not_matched_insert_all().execute()


class State:
    """An aggregation of Spark; its rows are in its checkpoint, and Spark reads them."""

    name = "state"

    def __init__(self, spark: Any, checkpoint: Path, job: Job) -> None:
        self._spark, self._checkpoint, self._job = spark, checkpoint, job

    def writer(self, stream: Any) -> Any:
        return self._job.reduced(stream).writeStream.outputMode("update").format("noop")

    def look_up(self, key: int) -> dict[str, Any] | None:
        found = self._states().where(f"id = {key}").toArrow()
        return found.to_pylist()[0] if found.num_rows else None

    def has_seen(self, query: Any, drop: Drop) -> bool:
        """By the query's own word: its batch is committed. Looking at the states takes longer."""
        progress = query.lastProgress
        return progress is not None and progress.numInputRows > 0 and progress.batchId >= drop.batch

    def read(self) -> pa.Table:
        return self._states().toArrow()

    def _states(self) -> Any:
        return self._spark.read.format("statestore").load(str(self._checkpoint)).selectExpr(*self._job.states)


def _newest(events: Any) -> Any:
    return events.groupBy("id").agg(_f().max(_f().struct("seq", "amount", "city")).alias("last")).select("id", "last.*")


def _totals(events: Any) -> Any:
    sql = _f()
    return events.groupBy("id").agg(
        sql.sum("amount").alias("amount"), sql.count("*").alias("events"), sql.max("seq").alias("seq")
    )


def _f() -> Any:
    from pyspark.sql import functions

    return functions


def _expected_newest(events: pa.Table) -> pa.Table:
    return events.sort_by("seq").group_by("id", use_threads=False).aggregate(
        [(name, "last") for name in ("seq", "amount", "city")]
    ).rename_columns(EVENTS.names)  # fmt: skip


def _expected_totals(events: pa.Table) -> pa.Table:
    found = events.group_by("id").aggregate([("amount", "sum"), ([], "count_all"), ("seq", "max")])
    return found.rename_columns(["id", "amount", "events", "seq"])


UPSERT = Job(
    name="upsert",
    schema=kolk.Schema.from_arrow(EVENTS, primary_key="id"),
    options={"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "seq"},
    events=("id", "seq", "amount", "city"),
    reduced=_newest,
    matched={name: f"s.{name}" for name in ("seq", "amount", "city")},
    if_matched="s.seq > t.seq",
    states=("key.id", "value.max.*"),
    expected=_expected_newest,
)
AGGREGATE = Job(
    name="aggregate",
    schema=kolk.Schema(
        [
            kolk.Column("id", "bigint"),
            kolk.Column("amount", "bigint", agg="sum"),
            kolk.Column("events", "bigint", agg="count_rows"),
            kolk.Column("seq", "bigint", agg="max"),
        ],
        primary_key="id",
    ),
    options={},
    events=("id", "amount", "seq"),
    reduced=_totals,
    matched={"amount": "t.amount + s.amount", "events": "t.events + s.events", "seq": "greatest(t.seq, s.seq)"},
    if_matched=None,
    states=("key.id", "value.sum AS amount", "value.count AS events", "value.max AS seq"),
    expected=_expected_totals,
)
JOBS = (UPSERT, AGGREGATE)
