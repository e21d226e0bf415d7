"""Clicks, counted as they come: Structured Streaming adds them up in one table, and keeps a second one by its changes.

The pipeline has two queries. The first puts every click into ``web.pages``, where each column says how it adds up: how
many, how long in all, the slowest, who (a bitmap of users), and where the last one came from. Spark keeps no state; the
table is the state. The second query follows the changelog of ``web.pages`` and keeps totals for each section: a page
that changes is taken out as it was and put in as it is.

Here the pipeline runs as a scheduler would run it: it takes what there is and ends, and later takes what is new. At the
end Spark counts all clicks once more, in one batch, and both tables must be equal to that, row by row; ends with 1 if
they are not. ``examples/demo.py`` runs the same pipeline all the time, and kills it.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import kolk
import kolk.spark
from kolk.functions import rb_to_array

TABLES = (
    """
    CREATE TABLE web.pages (
        page STRING PRIMARY KEY,
        section STRING LAST_VALUE,
        views BIGINT COUNT_ROWS,
        millis BIGINT SUM,
        slowest INT MAX,
        visitors BYTES RBM32(input = 'int'),
        seen TIMESTAMP_LTZ(6) MAX,
        came_from STRING MAX_BY(by = seen)
    ) DISTRIBUTED INTO 2 BUCKETS
    """,
    """
    CREATE TABLE web.sections (
        section STRING PRIMARY KEY,
        pages BIGINT COUNT_ROWS,
        views BIGINT SUM,
        millis BIGINT SUM
    ) DISTRIBUTED INTO 1 BUCKETS
    """,
)
CLICK = "at timestamp, page string, section string, user int, millis int, referrer string"
SECTIONS = ("news", "sport", "music", "food", "travel", "science", "games", "weather")
ARTICLES, USERS = 50, 40_000
REFERRERS = ("search", "mail", "front page", "a friend", "nowhere")
FIRST_CLICK_US = 1_795_000_000_000_000


def write_clicks(folder: Path, number: int, count: int) -> None:
    """One file of clicks. It is the same whenever it is made, and there all at once or not at all."""
    rng = np.random.default_rng(number)
    sections = rng.zipf(1.6, count) % len(SECTIONS)
    articles = rng.zipf(1.4, count) % ARTICLES
    clicks = pa.table(
        {
            "at": pa.array(FIRST_CLICK_US + (number * count + np.arange(count)) * 200, pa.timestamp("us", "UTC")),
            "page": [f"/{SECTIONS[s]}/{a + 1}" for s, a in zip(sections.tolist(), articles.tolist(), strict=True)],
            "section": [SECTIONS[s] for s in sections.tolist()],
            "user": pa.array(rng.zipf(1.2, count) % USERS, pa.int32()),
            "millis": pa.array(rng.gamma(2.0, 120.0, count) + 5, pa.float64()).cast(pa.int32(), safe=False),
            "referrer": [REFERRERS[n] for n in rng.integers(0, len(REFERRERS), count).tolist()],
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{number:05}.parquet"  # which Spark does not look at
    pq.write_table(clicks, hidden)
    hidden.rename(folder / f"{number:05}.parquet")


def count_clicks(spark: SparkSession, url: str, clicks: Path, files: int) -> DataStreamWriter:
    """The first query: every click into the table of pages, at most so many files in a batch."""
    stream = spark.readStream.schema(CLICK).option("maxFilesPerTrigger", files).parquet(str(clicks))
    rows = stream.select(
        "page",
        "section",
        "millis",
        F.col("millis").alias("slowest"),
        F.col("user").alias("visitors"),
        F.col("at").alias("seen"),
        F.col("referrer").alias("came_from"),
    )
    return rows.writeStream.format("kolk").option("url", url).option("table", "web.pages")


def follow_pages(spark: SparkSession, url: str) -> DataStreamWriter:
    """The second query: every change of the table of pages into the totals of its section."""
    changes = (
        spark.readStream.format("kolk")
        .option("url", url)
        .option("table", "web.pages")
        .option("columns", "section,views,millis")
        .option("changes", "cdc")
        .load()
        .select("section", "views", "millis", "_change_type")
    )
    return changes.writeStream.format("kolk").option("url", url).option("table", "web.sections")


def differences(spark: SparkSession, url: str, clicks: Path) -> dict[str, int]:
    """How many rows of each table are not what Spark makes of all clicks in one batch; both should be none."""
    batch = spark.read.schema(CLICK).parquet(str(clicks))
    pages = batch.groupBy("page").agg(
        F.max_by("section", "at").alias("section"),
        F.count("*").alias("views"),
        F.sum("millis").alias("millis"),
        F.max("millis").alias("slowest"),
        F.sort_array(F.collect_set("user")).alias("visitors"),
        F.max("at").alias("seen"),
        F.max_by("referrer", "at").alias("came_from"),
    )
    sections = batch.groupBy("section").agg(
        F.count_distinct("page").alias("pages"), F.count("*").alias("views"), F.sum("millis").alias("millis")
    )
    return {
        "web.pages": unequal(_rows(spark, url, "web.pages"), pages),
        "web.sections": unequal(_rows(spark, url, "web.sections"), sections),
    }


def unequal(found: pa.Table, expected: DataFrame) -> int:
    """How many rows are in one and not in the other."""
    wanted = expected.toArrow()
    found = found.select(wanted.column_names)
    if "visitors" in found.column_names:
        place = found.column_names.index("visitors")
        found = found.set_column(place, "visitors", rb_to_array(found["visitors"]))
    ours, theirs = ({row[wanted.column_names[0]]: row for row in each.to_pylist()} for each in (found, wanted))
    return sum(ours.get(key) != theirs.get(key) for key in {*ours, *theirs})


def _rows(spark: SparkSession, url: str, table: str) -> pa.Table:
    return spark.read.format("kolk").option("url", url).option("table", table).load().toArrow()


def run(spark: SparkSession, url: str, folder: Path) -> None:
    """Take what there is, and end: each query goes on where it was when it ended."""
    for name, query in (
        ("pages", count_clicks(spark, url, folder / "clicks", files=3)),
        ("sections", follow_pages(spark, url)),
    ):
        running = query.option("checkpointLocation", str(folder / name)).trigger(availableNow=True).start()
        running.awaitTermination()
        rows = sum(progress["numInputRows"] for progress in running.recentProgress)
        print(f"  {name}: {rows:,} rows")


def main() -> int:
    """Run it; 0 if both tables are right."""
    with tempfile.TemporaryDirectory(prefix="kolk-clickstream-") as name:
        folder = Path(name)
        with kolk.start(folder / "data") as server, kolk.connect(server.url) as db:
            for statement in TABLES:
                db.execute(statement)
            spark = kolk.spark.session("clickstream")
            for evening in range(2):
                print(f"evening {evening + 1}: 4 files of 5,000 clicks")
                for number in range(4 * evening, 4 * evening + 4):
                    write_clicks(folder / "clicks", number, 5_000)
                run(spark, server.url, folder)
            wrong = differences(spark, server.url, folder / "clicks")
    is_right = not any(wrong.values())
    print("Both tables are what Spark counts in one batch." if is_right else f"Rows that are NOT right: {wrong}")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
