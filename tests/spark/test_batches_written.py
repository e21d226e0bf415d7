"""Frames into tables: ``df.write.format("kolk")`` and SQL's INSERT, one transaction each."""

import datetime
from decimal import Decimal

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql import types as st
from tests.spark.writes import left_of, summed

import kolk
import kolk.spark

SUMS = kolk.Schema([kolk.Column("k", "bigint"), kolk.Column("v", "bigint", agg="sum")], primary_key=["k"])
WIDE = kolk.Schema(
    [kolk.Column("k", "bigint"), kolk.Column("a", "string"), kolk.Column("b", "string")], primary_key=["k"]
)


@pytest.fixture
def save(server, name):
    def make(df, mode="append", **options):
        df.write.format("kolk").option("url", server.url).option("table", name).options(**options).mode(mode).save()

    return make


def wide(table):
    return {row["k"]: (row["a"], row["b"]) for row in table.scan().to_arrow().to_pylist()}


def test_appending_adds_and_overwriting_replaces_and_an_empty_frame_leaves_nothing(spark, db, name, save):
    table = db.create_table(name, SUMS, buckets=3)
    frame = spark.range(100, numPartitions=3).select((F.col("id") % 10).alias("k"), F.col("id").alias("v"))
    once = {key: sum(range(key, 100, 10)) for key in range(10)}

    save(frame)
    save(frame)
    assert summed(table) == {key: 2 * value for key, value in once.items()}

    save(frame, mode="overwrite")
    assert summed(table) == once

    save(frame.limit(0), mode="overwrite")
    assert summed(table) == {}
    assert left_of(db, table) == []


def test_the_save_mode_that_spark_has_by_itself_is_refused_by_spark(spark, db, name, save):
    db.create_table(name, SUMS)

    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        save(spark.range(1).select(F.col("id").alias("k"), F.col("id").alias("v")), mode="error")


def test_a_frame_that_does_not_fit_writes_nothing_and_says_all_that_is_wrong(spark, db, name, save):
    table = db.create_table(name, SUMS)
    frame = spark.range(10).select(F.col("id").alias("k"), F.col("id").cast("double").alias("v"), F.lit(1).alias("z"))

    with pytest.raises(AnalysisException) as error:
        save(frame)

    assert "CAST(v AS BIGINT)" in str(error.value)
    assert "no column 'z'" in str(error.value)
    assert summed(table) == {}
    assert [each for each in db.transactions() if each.tables == (name,)] == []


def test_rows_that_the_table_refuses_leave_it_as_it_was(spark, db, name, save):
    table = db.create_table(name, SUMS)
    frame = spark.createDataFrame([(1, 1), (None, 2)], "k bigint, v bigint")

    with pytest.raises(Exception, match="the column 'k' is NOT NULL, but 1 of its values are null"):
        save(frame)

    assert summed(table) == {}
    assert left_of(db, table) == []


def test_changes_are_put_and_deleted_and_named_columns_alone_are_touched(spark, db, name, save):
    table = db.create_table(name, WIDE, buckets=2)
    save(spark.createDataFrame([(1, "a", "b"), (2, "a", "b"), (3, "a", "b")], "k int, a string, b string"))
    changes = spark.createDataFrame(
        [(1, "x", "y", "update_preimage"), (1, "new", "y", "update_postimage"), (2, None, None, "delete")],
        "K bigint, A string, b string, _change_type string",
    )

    save(changes.withColumn("_commit_version", F.lit(7)).coalesce(1))
    assert wide(table) == {1: ("new", "y"), 3: ("a", "b")}

    save(spark.createDataFrame([(3, "z"), (4, "z")], "k bigint, b string"), columns="b")
    assert wide(table) == {1: ("new", "y"), 3: ("a", "z"), 4: (None, "z")}

    gone = spark.createDataFrame([(1, True), (4, False)], "k bigint, gone boolean").withColumn("b", F.lit("w"))
    save(gone.withColumn("a", F.lit("w")), **{"change-column": "gone"})
    assert wide(table) == {3: ("a", "z"), 4: ("w", "w")}


def test_retractions_and_values_that_stand_in_an_aggregation_table(spark, db, name, save):
    table = db.create_table(name, SUMS)
    save(spark.createDataFrame([(1, 10), (2, 20)], "k bigint, v bigint"))

    save(spark.createDataFrame([(1, 3, "-D"), (2, 1, "+I")], "k bigint, v bigint, _change_type string"))
    assert summed(table) == {1: 7, 2: 21}

    save(spark.createDataFrame([(1, 100)], "k bigint, v bigint"), **{"merge-mode": "overwrite"})
    assert summed(table) == {1: 100, 2: 21}


def test_sql_inserts_and_replaces_through_a_view(spark, db, name, server):
    table = db.create_table(name, SUMS)
    view = name.replace(".", "_")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} USING kolk OPTIONS (url '{server.url}', table '{name}')")

    spark.sql(f"INSERT INTO {view} VALUES (1, 10), (2, 20)")
    spark.sql(f"INSERT INTO {view} (v, k) SELECT 5, 1")
    assert summed(table) == {1: 15, 2: 20}

    spark.sql(f"INSERT OVERWRITE {view} SELECT 3 AS k, 4 AS v")
    assert summed(table) == {3: 4}


def test_every_type_of_spark_comes_through(spark, db, name, save):
    shape = st.StructType.fromDDL(
        "a bigint, b boolean, c tinyint, d smallint, e int, f float, g double, h decimal(20,5), i string, j binary,"
        " k date, l timestamp, m timestamp_ntz, n array<int>, o map<string,double>, p struct<x:int,y:array<string>>,"
        " q time(6)"
    )
    moment = datetime.datetime(2026, 11, 15, 1, 2, 3, 456789)  # noqa: DTZ001 - it has no zone
    values = (
        True, -1, 2, -3, 0.5, 1e300, Decimal("12345.67890"), "é\u0000z", b"\x00\xff", datetime.date(1969, 12, 31),
        moment.replace(tzinfo=datetime.UTC), moment, [1, None], {"a": 1.5, "b": None},
        {"x": 1, "y": ["p", None]}, datetime.time(23, 59, 59, 999999),
    )  # fmt: skip
    frame = spark.createDataFrame([(1, *values), (2, *[None] * len(values))], shape)
    table = db.create_table(name, kolk.spark.schema_for(frame, primary_key=["a"]))

    save(frame)

    found = [tuple(row.values()) for row in table.get([1, 2]).to_pylist(maps_as_pydicts="strict")]
    assert found == [(1, *values), (2, *[None] * len(values))]


@pytest.mark.long
def test_a_frame_of_a_thousand_partitions_is_one_transaction(spark, db, name, save):
    table = db.create_table(name, SUMS, buckets=2)

    save(spark.range(0, 3_000, numPartitions=1_000).select((F.col("id") % 3).alias("k"), F.lit(1).alias("v")))

    assert summed(table) == {0: 1_000, 1: 1_000, 2: 1_000}
    assert left_of(db, table) == []
