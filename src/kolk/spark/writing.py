"""Batch and streaming writes: the frame is checked against the table, and the option ``exactly-once`` chooses the way.

``transaction``, the default, stages what the tasks have and applies it when all of them are through: ``kolk.spark
.staging``. ``undo`` writes it at once, as an owner of columns, and takes back what does not come to a commit:
``kolk.spark.owning``. Both are given a ``Frame``; nothing is written here.
"""

from typing import TYPE_CHECKING

from kolk.spark.connections import table, until_answered
from kolk.spark.frames import checked
from kolk.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

_WAYS = ("transaction", "undo")


def batch_writer(options: Options, schema: "StructType", *, overwrite: bool) -> "DataSourceArrowWriter":
    """The writer of ``df.write``; with ``overwrite`` the rows take the place of all that are there."""
    frame = checked(options, schema, table(options).info)
    if options.choice("exactly-once", _WAYS) == "undo":
        from kolk.spark.owning import OwnedWriter

        return OwnedWriter(options, frame, overwrite=overwrite)
    from kolk.spark.staging import StagedWriter

    return StagedWriter(options, frame, overwrite=overwrite)


def stream_writer(options: Options, schema: "StructType", *, overwrite: bool) -> "DataSourceStreamArrowWriter":
    """The writer of ``df.writeStream``, made anew for every batch, and once more to commit it: so whoever makes it is
    as patient with the server as a commit is. ``overwrite`` is the output mode complete."""
    frame = checked(options, schema, until_answered(options, lambda: table(options).info))
    if options.choice("exactly-once", _WAYS) == "undo":
        from kolk.spark.owning import OwnedStreamWriter

        return OwnedStreamWriter(options, frame, overwrite=overwrite)
    from kolk.spark.staging import StagedStreamWriter

    return StagedStreamWriter(options, frame, overwrite=overwrite)
