"""A full copy, then every change: keep a second table alike with Spark, and stop in the middle of it.

The query starts with ``start=full``: all rows of a snapshot, which a lease keeps for as long as it takes, then the
changelog from exactly there. It is stopped when some of the rows have been copied, and the table changes meanwhile:
rows that are copied already, rows that are not, rows that go, rows that are new. The same query is started again, and
knows where it was. Ends with 1 if the copy is not the table, then or after more changes.
"""

import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import kolk
import kolk.spark

ROWS, ROWS_A_BATCH = 20_000, 6_000
DDL = "CREATE TABLE {} (id BIGINT PRIMARY KEY, name STRING, city STRING) DISTRIBUTED INTO 2 BUCKETS"


def copying(spark: SparkSession, url: str, folder: Path) -> DataStreamWriter:
    """The query. Changes come as rows and a word for each, which is what the sink wants."""
    changes = (
        spark.readStream.format("kolk")
        .option("url", url)
        .option("table", "crm.customers")
        .option("start", "full")
        .option("changes", "upserts")
        .option("maxRowsPerTrigger", ROWS_A_BATCH)
        .load()
    )
    return (
        changes.writeStream.format("kolk")
        .option("url", url)
        .option("table", "crm.copy")
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


def customers(ids: range, city: str) -> pa.Table:
    return pa.table({"id": ids, "name": [f"customer {id}" for id in ids], "city": [city] * len(ids)})


def change(table: kolk.Table, city: str) -> None:
    """Some move, some go, some are new, all over the table."""
    table.put(customers(range(0, ROWS, 20), city))
    table.delete(pa.table({"id": range(7, ROWS, 100)}))
    new = table.scan(columns=["id"]).to_arrow().num_rows + ROWS
    table.put(customers(range(new, new + 500), city))


def stop_in_the_middle(spark: SparkSession, url: str, folder: Path, copy: kolk.Table) -> None:
    """Start, and stop when some of the rows are there."""
    query = copying(spark, url, folder).start()
    try:
        while not rows_of(copy):
            if query.exception() is not None:
                query.processAllAvailable()  # which raises it
            time.sleep(0.05)
    finally:
        query.stop()


def catch_up(spark: SparkSession, url: str, folder: Path) -> None:
    """Take all that there is now."""
    copying(spark, url, folder).trigger(availableNow=True).start().awaitTermination()


def rows_of(table: kolk.Table) -> dict[int, tuple[str, str]]:
    with table.scan() as scan:
        return {row["id"]: (row["name"], row["city"]) for row in scan.to_arrow().to_pylist()}


def run(db: kolk.Database, url: str, folder: Path) -> bool:
    """Copy, stop, change, go on; whether the copy is the table."""
    table, copy = (db.execute(DDL.format(name)) for name in ("crm.customers", "crm.copy"))
    assert isinstance(table, kolk.Table)
    assert isinstance(copy, kolk.Table)
    table.put(customers(range(ROWS), "Delft"))
    spark = kolk.spark.session("cdc-bootstrap")

    stop_in_the_middle(spark, url, folder, copy)
    print(f"  stopped with {len(rows_of(copy)):,} of {ROWS:,} rows copied; a lease keeps the rest: {len(db.leases())}")
    change(table, "Gouda")
    catch_up(spark, url, folder)
    print(f"  gone on: {len(rows_of(copy)):,} rows, as many as the table has: {len(rows_of(table)):,}")
    is_right = rows_of(copy) == rows_of(table)

    change(table, "Leiden")
    catch_up(spark, url, folder)
    print(f"  after more changes: {len(rows_of(copy)):,} rows; leases left: {len(db.leases())}")
    return is_right and rows_of(copy) == rows_of(table)


def main() -> int:
    """Run it; 0 if the copy is right."""
    with tempfile.TemporaryDirectory(prefix="kolk-bootstrap-") as name:
        print("a full copy of a table, then every change")
        with kolk.start(Path(name) / "data") as server, kolk.connect(server.url) as db:
            is_right = run(db, server.url, Path(name))
    print("The copy is the table." if is_right else "The copy is NOT the table.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
