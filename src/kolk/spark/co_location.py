"""Rows of one bucket in one task: what ``exactly-once=undo`` demands, and Spark does not do by itself.

Kolk's buckets are by Spark's own hash, so that Spark computes them natively, on the values that the table will have: a
column of another width is brought to the table's type first, or its hash is another one. In a partitioned table the
buckets of one number go together, whatever their partition.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kolk.errors import InvalidArgument
from kolk.model.table import TableInfo
from kolk.spark.connections import table as opened
from kolk.spark.options import Options
from kolk.spark.types import spark_type


def by_bucket(df: DataFrame, table: str, *, url: str | None = None, **options: str) -> DataFrame:
    """The same rows, those of each bucket of a table in one task: the last step before they are written to it::

        kolk.spark.by_bucket(df, "web.pages", url=url).writeStream.format("kolk").option("exactly-once", "undo")...

    There are as many tasks then as the table has buckets. ``url`` and other options of the connection (``token``,
    ``tls_ca``) are those of the write; without a url it is that of ``KOLK_URL``.
    """
    given = {"table": table, **({} if url is None else {"url": url}), **options}
    return gathered_by_bucket(df, opened(Options.parse(given)).info)


def gathered_by_bucket(df: DataFrame, info: TableInfo) -> DataFrame:
    """The same for a table that is known already."""
    return df.repartitionById(info.spec.buckets, bucket_column(info))


def bucket_column(info: TableInfo) -> Column:
    """The number of the bucket that a row of the table belongs to, as Spark computes it."""
    if info.is_log:
        raise InvalidArgument(f"{info.name} is a log table: its rows may go to any bucket, from any task")
    keys = [
        F.col(f"`{name.replace('`', '``')}`").cast(spark_type(info.schema.column(name).type))
        for name in info.spec.bucket_key
    ]
    return F.pmod(F.xxhash64(*keys), F.lit(info.spec.buckets).cast("bigint")).cast("int")
