"""What the chaos of Spark is made with: the sink that users have, with faults around it; a function with faults; and a
control, a sink that puts its rows where Spark hands them over, which is what one would write by hand.

In a module that Spark's own processes import, beside ``kolk.spark`` and not within it: nothing there knows of faults.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from tests.faults.spark_faults import ABORT, COMMIT_POINTS, MAP_POINTS, SINK_POINTS, Faults

import kolk
from kolk.spark import frames
from kolk.spark.data_source import KolkSource
from kolk.spark.identity import Place

ROWS_AT_ONCE = 64
"""Of a task: so little that it has several batches from Spark, and several requests to the server."""


class FaultySource(KolkSource):
    """The format ``kolk-faulty``: that of users, with faults around its writers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._query, self._faults = options["query"], options["faults"]
        super().__init__({name: value for name, value in options.items() if name not in ("query", "faults")})

    @classmethod
    def name(cls) -> str:
        return "kolk-faulty"

    def streamWriter(self, schema, overwrite):
        return FaultyWriter(super().streamWriter(schema, overwrite), self._query, Faults(Path(self._faults)))


class FaultyWriter(DataSourceStreamArrowWriter):
    """A writer of the sink, called as Spark calls it."""

    def __init__(self, inner: DataSourceStreamArrowWriter, query: str, faults: Faults) -> None:
        self._inner = inner
        self._query = query
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        frames._GATHERED_ROWS = ROWS_AT_ONCE
        before, within, after = SINK_POINTS
        batch = Place.here().batch
        self._faults.reach(self._query, batch, before)
        message = self._inner.write(_interrupted(self._faults, self._query, batch, iterator, within))
        self._faults.reach(self._query, batch, after)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        before, after = COMMIT_POINTS
        self._faults.reach(self._query, batchId, before)
        self._faults.during(self._query, batchId, lambda: self._inner.commit(messages, batchId))
        self._faults.note(what="commit", query=self._query, batch=batchId)
        self._faults.reach(self._query, batchId, after)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._faults.note(what="abort", query=self._query, batch=batchId)
        self._faults.reach(self._query, batchId, ABORT)
        self._inner.abort(messages, batchId)


class NaiveSource(DataSource):
    """The format ``naive``: the control."""

    @classmethod
    def name(cls) -> str:
        return "naive"

    def streamWriter(self, schema, overwrite):
        options = {name: self.options[name] for name in ("url", "table")}
        return FaultyWriter(NaiveWriter(options), self.options["query"], Faults(Path(self.options["faults"])))


class NaiveWriter(DataSourceStreamArrowWriter):
    """Puts what it is given when it is given it, and has nothing to commit."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with kolk.connect(self._options["url"]) as db:
            table = db.table(self._options["table"])
            for batch in iterator:
                table.put(batch)
        return WriterCommitMessage()

    def commit(self, messages, batchId) -> None:
        pass

    def abort(self, messages, batchId) -> None:
        pass


def _interrupted(
    faults: Faults, query: str, batch: int | None, batches: Iterator[pa.RecordBatch], point: str
) -> Iterator[pa.RecordBatch]:
    """The same rows; a fault may come when half of the first ones are through, or at the end if there are none."""
    is_through = False
    for rows in batches:
        half = rows.num_rows // 2
        if half and not is_through:
            yield rows.slice(0, half)
            is_through = True
            faults.reach(query, batch, point)
            rows = rows.slice(half)
        yield rows
    if not is_through:
        faults.reach(query, batch, point)


def faulty(query: str, folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function of the query that changes nothing."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        faults, batch = Faults(Path(folder)), Place.here().batch
        before, within, after = MAP_POINTS
        faults.reach(query, batch, before)
        yield from _interrupted(faults, query, batch, batches, within)
        faults.reach(query, batch, after)

    return each
