"""Several jobs on one wide table: each owns some of its columns, and takes back what it did not finish.

Orders and visits of customers come as two streams, and each job fills its own columns of ``crm.customers``. With
``exactly-once=undo`` rows can be seen as soon as they are written, not only when a batch is complete. So the job of the
orders fails here in the middle of a batch, when half of it is in the table: it is taken back, and the job is started
again. Another job that wants the same columns is refused, and is told whose they are. Ends with 1 if a row is not what
one run without accidents would have made of it.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import kolk
import kolk.spark

CUSTOMERS, ROWS = 200, 2_000
DDL = """
    CREATE TABLE crm.customers (
        id BIGINT PRIMARY KEY,
        orders BIGINT SUM, spent BIGINT SUM,
        visits BIGINT SUM, longest INT MAX
    ) DISTRIBUTED INTO 2 BUCKETS
"""
TABLE = "crm.customers"
COLUMNS = {"orders": ("orders", "spent"), "visits": ("visits", "longest")}
EVENTS = {"orders": "id bigint, orders bigint, spent bigint", "visits": "id bigint, visits bigint, longest int"}


def write_events(folder: Path, number: int) -> None:
    """A file of orders and a file of visits."""
    ids = [(number * 7 + place * 13) % CUSTOMERS for place in range(ROWS)]
    ones = [1] * ROWS
    cents = [100 + place % 900 for place in range(ROWS)]
    seconds = pa.array([(place * 31 + number) % 600 for place in range(ROWS)], pa.int32())
    for job, columns in (
        ("orders", {"id": ids, "orders": ones, "spent": cents}),
        ("visits", {"id": ids, "visits": ones, "longest": seconds}),
    ):
        (folder / job).mkdir(exist_ok=True)
        hidden = folder / job / f".{number}.parquet"
        pq.write_table(pa.table(columns), hidden)
        hidden.rename(folder / job / f"{number}.parquet")


def job(spark: SparkSession, url: str, folder: Path, name: str, owner: str, *, breaks: bool = False) -> StreamingQuery:
    """One job: its stream into its columns, in the name of its owner."""
    events = folder / name
    stream = spark.readStream.schema(EVENTS[name]).parquet(str(events))
    rows = kolk.spark.by_bucket(stream, TABLE, url=url)
    return (
        (with_a_fault(rows) if breaks else rows)
        .writeStream.format("kolk")
        .option("url", url)
        .option("table", TABLE)
        .option("columns", ",".join(COLUMNS[name]))
        .option("exactly-once", "undo")
        .option("owner", owner)
        .option("checkpointLocation", str(folder / f"checkpoint of {owner}"))
        .trigger(availableNow=True)
        .start()
    )


def with_a_fault(rows: DataFrame) -> DataFrame:
    """The same rows, but that one of the tasks does not survive its last one."""

    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1:
            raise RuntimeError("the disk of this worker is full, say")

    return rows.mapInArrow(broken, rows.schema)


def failure(query: StreamingQuery) -> str:
    """Why a query has failed; nothing if it has not."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return str(error)
    return ""


def expected(spark: SparkSession, folder: Path) -> dict[int, dict[str, int]]:
    """The same in one batch of Spark."""
    orders = spark.read.parquet(str(folder / "orders")).groupBy("id").agg(F.sum("orders"), F.sum("spent"))
    visits = spark.read.parquet(str(folder / "visits")).groupBy("id").agg(F.sum("visits"), F.max("longest"))
    names = ("id", *COLUMNS["orders"], *COLUMNS["visits"])
    return {row["id"]: row.asDict() for row in orders.join(visits, "id", "full").toDF(*names).collect()}


def run(db: kolk.Database, url: str, folder: Path) -> bool:
    """Two jobs, a fault and an intruder; whether every row is right, and the intruder was refused."""
    table = db.execute(DDL)
    assert isinstance(table, kolk.Table)
    spark = kolk.spark.session("wide-table", log_level="OFF")  # what fails here fails on purpose

    write_events(folder, 0)
    running = [job(spark, url, folder, name, f"{name}-job") for name in COLUMNS]
    for query in running:
        query.awaitTermination()
    print(f"  both jobs have run: {sum_of(table, 'orders'):,} orders, {sum_of(table, 'visits'):,} visits")

    write_events(folder, 1)
    visits = job(spark, url, folder, "visits", "visits-job")
    orders = job(spark, url, folder, "orders", "orders-job", breaks=True)
    is_broken = "disk of this worker" in failure(orders)
    visits.awaitTermination()
    undone = db.status()["owners"]["undone_rows"]
    print(f"  again: {sum_of(table, 'visits'):,} visits, but the job of the orders {'failed' if is_broken else 'RAN'}")
    print(f"  {undone} rows of it were taken back; readers see {sum_of(table, 'orders'):,} orders")

    job(spark, url, folder, "orders", "orders-job").awaitTermination()
    print(f"  started again: {sum_of(table, 'orders'):,} orders")

    told = failure(job(spark, url, folder, "orders", "intruder"))
    is_refused = "ColumnLockConflict" in told and "orders-job" in told
    print(f"  another job on the same columns was {'refused, and told who has them' if is_refused else 'NOT refused'}")
    rows = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    return is_broken and undone > 0 and is_refused and rows == expected(spark, folder)


def sum_of(table: kolk.Table, column: str) -> int:
    with table.scan(columns=[column]) as scan:
        return sum(value or 0 for value in scan.to_arrow()[column].to_pylist())


def main() -> int:
    """Run it; 0 if every row is right."""
    with tempfile.TemporaryDirectory(prefix="kolk-wide-") as name:
        print(f"two jobs fill the columns of {CUSTOMERS} customers")
        with kolk.start(Path(name) / "data") as server, kolk.connect(server.url) as db:
            is_right = run(db, server.url, Path(name))
    print("Every row is right." if is_right else "Some rows are NOT right.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
