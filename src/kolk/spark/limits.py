"""How much a micro-batch may read: a number of rows, or of bytes, which is turned into one.

Rows are counted exactly. Bytes are an estimate: nobody knows how large rows are before they are read, so the first of
them are looked at, and the others are taken to be like them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from kolk.spark.options import Options

SAMPLE_ROWS = 1_000
Sample = Callable[[], pa.RecordBatch | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a batch reads; None is all there is."""

    rows: int | None = None
    size_bytes: int | None = None

    @staticmethod
    def of_options(options: Options) -> "Limits":
        """As the query was asked to read."""
        return Limits(options.number("maxRowsPerTrigger"), options.number("maxBytesPerTrigger"))

    @property
    def read_limit(self) -> ReadLimit:
        """As Spark names it, which knows one limit at a time."""
        if self.rows is not None:
            return ReadMaxRows(self.rows)
        return ReadAllAvailable() if self.size_bytes is None else ReadMaxBytes(self.size_bytes)

    def under(self, limit: ReadLimit) -> "Limits":
        """These, under what Spark asks for: all there is, if it says so, whatever the options are."""
        match limit:
            case ReadAllAvailable():
                return Limits()
            case ReadMaxRows(max_rows=rows):
                return Limits(_least(self.rows, rows), self.size_bytes)
            case ReadMaxBytes(max_bytes=size):
                return Limits(self.rows, _least(self.size_bytes, size))
            case _:
                return self

    def in_rows(self, sample: Sample) -> int | None:
        """The most rows of a batch whose first ones are like this sample; at least one, so that it goes on."""
        if self.size_bytes is None:
            return self.rows
        found = sample()
        if found is None or not found.num_rows:
            return self.rows
        fitting = max(self.size_bytes * found.num_rows // max(found.nbytes, 1), 1)
        return _least(self.rows, fitting)


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
