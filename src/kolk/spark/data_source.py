"""What Spark finds under the name ``kolk``: it reads the options, and hands out readers and writers.

Spark makes one of these, in a process of its own, wherever it needs one; it holds nothing but options, so that it may
be pickled, and connects when it is asked something that only the server knows. Modules are imported when they are
needed: Spark looks at this one whenever anybody names a source.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from kolk.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType


class KolkSource(DataSource):
    """``spark.read.format("kolk")``, ``readStream``, ``write`` and ``writeStream``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = Options.parse(options)

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "kolk"

    def schema(self) -> "StructType":
        """The columns of the table, or those that the options choose."""
        from kolk.spark.asking import schema_of
        from kolk.spark.connections import table

        return schema_of(self.options, table(self.options).info)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """A batch read."""
        from kolk.spark.reading import Reader

        return Reader(self.options, schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        """A streaming read."""
        from kolk.spark.streaming import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceArrowWriter":
        """A batch write."""
        from kolk.spark.writing import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamArrowWriter":
        """A streaming write."""
        from kolk.spark.writing import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)
