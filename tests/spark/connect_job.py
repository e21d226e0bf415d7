"""Everything of ``kolk.spark`` once, in a process that works with Spark Connect: ``python connect_job.py REMOTE URL
FOLDER``. It ends with 0 if all of it is right.

What is shipped to Spark is defined here, where it is pickled by value; ``kolk`` itself is installed over there.
"""

import json
import sys
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as st

import kolk
import kolk.spark
from kolk.errors import InvalidArgument

KEYS = 200


def batch_reads(spark, db, url):
    """A cut is that of one action, also of both sides of a join, and the next action sees what is new."""
    frame = spark.range(KEYS).selectExpr("id as k", "id as v")
    table = db.create_table("c.plain", kolk.spark.schema_for(frame, "k"), buckets=2)
    frame.write.format("kolk").option("url", url).option("table", "c.plain").mode("append").save()
    assert len(rows(table)) == KEYS

    found = kolk.spark.table(spark, "c.plain", url=url)
    assert type(found).__module__.startswith("pyspark.sql.connect")
    assert found.schema == st.StructType().add("k", st.LongType(), nullable=False).add("v", st.LongType())
    assert found.agg(F.sum("v")).first()[0] == sum(range(KEYS))
    other = kolk.spark.table(spark, "c.plain", url=url).withColumnRenamed("v", "w")
    joined = found.mapInArrow(raised(url), found.schema).join(other.repartition(3), "k").where("v = w and v = k")
    assert joined.count() == KEYS, "all tasks of both sides saw one moment, whatever was put by then"
    assert found.where("v > k").count() == KEYS, "the next action sees another"
    table.put([{"k": KEYS, "v": 1}])
    assert found.count() == KEYS + 1, "the plan is kept, the moment is not"

    frame.limit(3).write.format("kolk").option("url", url).option("table", "c.plain").mode("overwrite").save()
    assert found.count() == 3


def raised(url):
    """A step that lets a task put all values up, before it lets its rows go on."""

    def step(batches):
        import kolk

        for batch in batches:
            with kolk.connect(url) as there:
                there.table("c.plain").put([{"k": n, "v": n + 1} for n in range(KEYS)])
            yield batch

    return step


def names_in_sql(spark, db, url):
    """Views and lookups."""
    view = kolk.spark.attach(spark, url, tables=["c.plain"])["c.plain"]
    spark.sql(f"INSERT INTO {view} VALUES (7, 77)")
    assert spark.sql(f"SELECT v FROM {view} WHERE k = 7").first()[0] == 77
    kolk.spark.lookup(spark, url)
    assert [tuple(row) for row in spark.sql("SELECT * FROM kolk_lookup('c.plain', 7L)").collect()] == [(7, 77)]
    asked = spark.createDataFrame([(7,), (8,)], "id bigint")
    joined = kolk.spark.join_lookup(asked, "c.plain", on={"id": "k"}, how="left", url=url)
    assert sorted(map(tuple, joined.collect())) == [(7, 77), (8, None)]


def streams(spark, db, url, folder):
    """Rows into sums, and the changes of those into a copy; each goes on where it was."""
    ddl = "CREATE TABLE c.{} (k BIGINT PRIMARY KEY, v BIGINT{}) DISTRIBUTED INTO 2 BUCKETS"
    sums, copy = db.execute(ddl.format("sums", " SUM")), db.execute(ddl.format("copy", ""))
    for number in range(2):
        add(folder, number)
        stream = events(spark, folder).selectExpr("k", "v")
        finish(stream.writeStream.format("kolk").option("url", url).option("table", "c.sums"), folder / "sums")
        changes = spark.readStream.format("kolk").option("url", url).option("table", "c.sums")
        writer = changes.option("changes", "upserts").load().writeStream.format("kolk")
        finish(writer.option("url", url).option("table", "c.copy"), folder / "copy")
        assert rows(sums) == rows(copy) == {key: (number + 1) * key for key in range(3)}
    apps = [each.app for each in db.transactions() if each.tables == ("c.sums",)]
    query = json.loads((folder / "sums" / "metadata").read_text())["id"]
    assert apps == [f"spark-query-{query}"], "the identity of the stream is that of its checkpoint"


def every_mode(spark, db, url, folder):
    """Update mode by ``sink``, which is given a name; a batch that comes again is known by it."""
    totals = events(spark, folder).groupBy("k").agg(F.sum("v").alias("v"))
    with pytest.raises(InvalidArgument, match="app_id"):  # without a name it cannot be exact
        kolk.spark.sink(totals, "c.totals", url=url, output_mode="update")
    table = db.execute("CREATE TABLE c.totals (k BIGINT PRIMARY KEY, v BIGINT) DISTRIBUTED INTO 2 BUCKETS")
    named = {"url": url, "output_mode": "update", "app_id": "totals"}
    with pytest.raises(InvalidArgument, match="output_mode='complete'"):
        kolk.spark.sink(totals, "c.totals", **named).outputMode("complete")
    finish(kolk.spark.sink(totals, "c.totals", **named), folder / "totals")
    assert rows(table) == {key: 2 * key for key in range(3)}
    table.put([{"k": 2, "v": -1}])  # what a replay would put right, if it were applied
    for mark in ("0", ".0.crc"):  # as if Spark had died before it noted the batch
        (folder / "totals" / "commits" / mark).unlink(missing_ok=True)
    finish(kolk.spark.sink(totals, "c.totals", **named), folder / "totals")
    assert rows(table)[2] == -1

    with pytest.raises(StreamingQueryException, match="counted over and over"):  # running totals into a sum
        finish(kolk.spark.sink(totals, "c.sums", **{**named, "app_id": "wrong"}), folder / "wrong")


def by_owners(spark, db, url, folder):
    """``exactly-once=undo``: the rows of a bucket in one task, in the name of an owner."""
    table = db.execute("CREATE TABLE c.owned (k BIGINT PRIMARY KEY, v BIGINT SUM) DISTRIBUTED INTO 2 BUCKETS")
    stream = events(spark, folder).selectExpr("k", "v")
    writer = kolk.spark.by_bucket(stream, "c.owned", url=url).writeStream.format("kolk").option("url", url)
    writer = writer.option("table", "c.owned").option("exactly-once", "undo").option("owner", "job")
    finish(writer, folder / "owned")
    assert rows(table) == {key: 2 * key for key in range(3)}


def add(folder, number):
    """A file of events, each key once."""
    (folder / "events").mkdir(exist_ok=True)
    lines = "".join(json.dumps({"k": key, "v": key}) + "\n" for key in range(3))
    (folder / "made").write_text(lines)
    (folder / "made").rename(folder / "events" / f"{number}.json")


def events(spark, folder):
    return spark.readStream.schema("k bigint, v bigint").json(str(folder / "events"))


def finish(writer, checkpoint):
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def rows(table):
    return {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def main(remote, url, folder):
    started = time.monotonic()
    spark = SparkSession.builder.remote(remote).getOrCreate()
    assert kolk.spark.session() is spark, "the one that there is"
    with kolk.connect(url) as db:
        for step in (batch_reads, names_in_sql):
            step(spark, db, url)
            print(f"{step.__name__}: {time.monotonic() - started:.1f} s", flush=True)
        for step in (streams, every_mode, by_owners):
            step(spark, db, url, Path(folder))
            print(f"{step.__name__}: {time.monotonic() - started:.1f} s", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
