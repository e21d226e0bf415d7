"""What the tests of writes share: files as a stream of batches, and a sink whose tasks and commits fail as told."""

import json

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F


class Files:
    """A folder of files as a stream, one file for each batch; each is a list of rows (k, v)."""

    def __init__(self, spark, folder):
        self._spark = spark
        self._folder = folder
        self._count = 0
        folder.mkdir()

    def add(self, *pairs):
        lines = [json.dumps({"k": key, "v": value}) for key, value in pairs]
        made = self._folder.parent / f"{self._folder.name}-{self._count:03}"
        made.write_text("\n".join(lines) + "\n")
        made.rename(self._folder / f"{self._count:03}.json")
        self._count += 1

    def stream(self):
        reader = self._spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", 1)
        return reader.json(str(self._folder))


def run(writer, checkpoint):
    """Run a query over all that there is; the exception that ends it, or None."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return error
    return None


def summed(table):
    return {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def left_of(db, table):
    """What is staged of a table and not committed."""
    return [each for each in db.transactions() if each.tables == (table.name,) and each.state != "done"]


def register_faulty(spark, faults, marks):
    """Make the format ``kolk-faulty``, which fails once in every batch that ``faults`` names, by place and manner; the
    folder ``marks`` then has a file of the batch's number."""
    folder = str(marks)

    def strike(batch, place):
        import os

        found, manner = faults.get(batch, ("", ""))
        mark = os.path.join(folder, str(batch))
        if found == place and not os.path.exists(mark):
            open(mark, "w").close()
            if manner == "exit":
                os._exit(1)
            raise RuntimeError("a fault")

    spark.dataSource.register(_faulty_source(strike))


def _faulty_source(strike):
    """Everything that Spark's processes need is made here, since they cannot import the tests."""
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    from kolk.spark.data_source import KolkSource

    class FaultyWriter(DataSourceStreamArrowWriter):
        def __init__(self, inner):
            self.inner = inner

        def write(self, iterator):
            from pyspark import TaskContext

            batch = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
            is_first = TaskContext.get().partitionId() == 0

            def cut():
                yield from iterator
                if is_first:
                    strike(batch, "before the seal")

            message = self.inner.write(cut())
            if is_first:
                strike(batch, "after the seal")
            return message

        def commit(self, messages, batchId):
            strike(batchId, "before the commit")
            self.inner.commit(messages, batchId)
            strike(batchId, "after the commit")

        def abort(self, messages, batchId):
            self.inner.abort(messages, batchId)

    class Faulty(KolkSource):
        @classmethod
        def name(cls):
            return "kolk-faulty"

        def streamWriter(self, schema, overwrite):
            return FaultyWriter(KolkSource.streamWriter(self, schema, overwrite))

    return Faulty


def spread(df, parts):
    """The same rows in so many partitions, by chance."""
    return df.repartition(parts, F.rand())
