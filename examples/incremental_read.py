"""A report every hour, from what has changed since the last one: incremental batch reads of a changelog.

Orders are made, changed and cancelled. Each run of the report reads the changelog from where the run before it ended,
adds up the difference for each city, and keeps the offsets at which the next one starts, in a file. No run reads the
table. The last step asks by time instead, for whoever has kept no offsets. Ends with 1 if all reports together are not
what the table says.
"""

import json
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import kolk
import kolk.spark

ORDERS, HOURS = 3_000, 3
CITIES = ("Delft", "Gouda", "Leiden")
DDL = "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, city STRING, cents BIGINT) DISTRIBUTED INTO 2 BUCKETS"


def business(table: kolk.Table, hour: int) -> None:
    """What happens in an hour: new orders; some of before cost more, and some are cancelled."""
    ids = range(hour * ORDERS, (hour + 1) * ORDERS)
    cities, cents = [CITIES[id % 3] for id in ids], [id % 997 for id in ids]
    table.put(pa.table({"id": ids, "city": cities, "cents": cents}))
    if hour:
        dearer = range(0, hour * ORDERS, 10)
        table.put(pa.table({"id": dearer, "cents": [2_000 + hour] * len(dearer)}), columns=["cents"])
        table.delete(pa.table({"id": range(5 + hour, hour * ORDERS, 50)}))


def changes(spark: SparkSession, url: str, start: str) -> DataFrame:
    """Everything from a place on. Where it ends is decided once, so that the frame may be used twice."""
    reader = spark.read.format("kolk").option("url", url).option("table", "shop.orders")
    return reader.option("source", "changelog").option("start", start).load()


def report(spark: SparkSession, url: str, folder: Path) -> tuple[dict[str, int], int]:
    """The difference that the changes since the last run make, for each city, and how many changes there were."""
    place = folder / "place.json"
    known: dict[str, int] = json.loads(place.read_text()) if place.exists() else {}
    found = changes(spark, url, json.dumps(known) if known else "earliest")

    is_added = F.col("_change_type").isin("insert", "update_postimage")
    difference = F.sum(F.when(is_added, F.col("cents")).otherwise(-F.col("cents")))
    cities = {row["city"]: row["cents"] for row in found.groupBy("city").agg(difference.alias("cents")).collect()}
    ends = found.groupBy("_bucket").agg(F.max("_commit_version").alias("last"), F.count("*").alias("changes")).collect()

    # With the report in the same file, or in the same transaction, a run that fails is simply run again.
    place.write_text(json.dumps(known | {row["_bucket"]: row["last"] + 1 for row in ends}))
    return cities, sum(row["changes"] for row in ends)


def run(db: kolk.Database, url: str, folder: Path) -> bool:
    """Some hours of business, each with its report; whether they add up."""
    table = db.execute(DDL)
    assert isinstance(table, kolk.Table)
    spark = kolk.spark.session("incremental-read")
    totals = dict.fromkeys(CITIES, 0)
    for hour in range(HOURS):
        business(table, hour)
        cities, count = report(spark, url, folder)
        print(f"  hour {hour + 1}: {count:,} changes; {', '.join(f'{city} {cities[city]:+,}' for city in CITIES)}")
        totals = {city: totals[city] + cities[city] for city in CITIES}

    now = spark.read.format("kolk").option("url", url).option("table", "shop.orders").load()
    wanted = {row["city"]: row["cents"] for row in now.groupBy("city").agg(F.sum("cents").alias("cents")).collect()}
    print(f"  all reports together: {totals}")

    *_, last = table.changelog()
    moment = last["_commit_timestamp"][-1].as_py().isoformat()
    recent = changes(spark, url, moment).count()
    print(f"  and from {moment} on there were {recent:,} changes")
    return totals == wanted and recent > 0


def main() -> int:
    """Run it; 0 if the reports are right."""
    with tempfile.TemporaryDirectory(prefix="kolk-incremental-") as name:
        print(f"{HOURS} hours of orders, and a report for each")
        with kolk.start(Path(name) / "data") as server, kolk.connect(server.url) as db:
            is_right = run(db, server.url, Path(name))
    print("The reports add up to the table." if is_right else "The reports do NOT add up to the table.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
