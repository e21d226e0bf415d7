"""``spark.readStream``: a table as a stream, its rows first, then every change of them.

Spark makes one reader in a process that lives as long as the query, and asks it where the stream is; others, in other
processes, read what that one has planned. They share nothing but the parts that are handed over, so a reader that is
pickled is its options and its schema alone.

The offsets that Spark keeps say everything that is needed to go on, and to read the last batch again to the row. What
Spark says late, that a batch is committed, lets go of what the query held, and nothing else.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kolk.spark.asking import check_columns
from kolk.spark.connections import database, table
from kolk.spark.following import Following
from kolk.spark.forms import Form, changes_schema, table_columns
from kolk.spark.limits import Limits
from kolk.spark.offsets import VERSION, Position, grouped
from kolk.spark.options import Options, check_read
from kolk.spark.slices import StreamPart, read_part
from kolk.spark.types import arrow_schema

_TASKS_PER_CORE = 2
_START = "start"
"""What the offsets of a query have that has not begun yet, and no others."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read of one table. Confined to one thread; what it does not share it makes when it is asked."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_read(options, is_stream=True)
        self._options = options
        self._schema = schema
        self._form = Form.of(options, schema)
        self._names = table_columns(schema, self._form)
        self._limits = Limits.of_options(options)
        self._tasks = options.number("parallelism") or _TASKS_PER_CORE * (os.cpu_count() or 1)
        self._opened: Following | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where the query begins. Spark asks again if its first batch is tried again, so nothing is decided here."""
        return {"version": VERSION, _START: self._options.text("start") or "full"}

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a batch reads, as the options say."""
        return self._limits.read_limit

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what there is now, and end."""
        self._following.prepare()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; the start itself if there is nothing to read."""
        limits = self._limits.under(limit)
        if _START in start:
            return self._following.first(limits).json()
        position = Position.of(start)
        end = self._following.latest(position, limits)
        return start if end is position else end.json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """How far there is to read, as of the last look."""
        return {"version": VERSION, **self._following.report()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What a batch reads, in parts of about the same size."""
        position = None if _START in start else Position.of(start)
        following = self._following
        sliced = following.planned(position, Position.of(end))
        handle = following.table
        return [
            StreamPart(tuple(group), handle.info.id, handle.schema.id, following.passes_over_dropped)
            for group in grouped(sliced, self._tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        if isinstance(partition, StreamPart):
            wanted = arrow_schema(self._schema)
            yield from read_part(table(self._options), partition, self._names, self._form, wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Batches up to here are done."""
        if _START not in end:
            self._following.committed(Position.of(end))

    def stop(self) -> None:
        """The query ends, and may be started again. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @property
    def _following(self) -> Following:
        """The query at the server, in the version of the table that there is when it is first asked for."""
        if self._opened is None:
            opened = Following(self._options, database(self._options), self._names, self._tasks)
            # What was altered since the frame was made is told here, as well as a schema that never was the table's.
            check_columns(self._schema, changes_schema(opened.table.schema, self._form, self._options.names("columns")))
            self._opened = opened
        return self._opened
