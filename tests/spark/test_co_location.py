"""Rows of one bucket in one task: Spark's bucket of a row is Kolk's, for every type that a bucket key may have."""

import os
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import kolk
import kolk.spark
from kolk.codec.bucketing import bucket_of
from kolk.errors import InvalidArgument
from kolk.model.conversion import converted
from kolk.model.ids import TableId
from kolk.model.table import TableInfo, TableSpec
from kolk.spark.co_location import bucket_column, gathered_by_bucket

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
ROWS = 5_000 if os.environ.get("KOLK_FULL") == "1" else 300
DAY_US = 86_400_000_000
CASES = [
    ("boolean", pa.bool_()),
    ("tinyint", pa.int8()),
    ("tinyint", pa.int64()),
    ("smallint", pa.int8()),
    ("int", pa.int16()),
    ("int", pa.int32()),
    ("bigint", pa.int32()),
    ("bigint", pa.int64()),
    ("date", pa.date32()),
    ("timestamp(0)", pa.timestamp("us")),
    ("timestamp(3)", pa.timestamp("us")),
    ("timestamp(6)", pa.timestamp("us")),
    ("timestamp_ltz(0)", pa.timestamp("us", "UTC")),
    ("timestamp_ltz(3)", pa.timestamp("us", "UTC")),
    ("timestamp_ltz(6)", pa.timestamp("us", "UTC")),
    ("time(0)", pa.time64("ns")),
    ("time(3)", pa.time64("ns")),
    ("time(6)", pa.time64("ns")),
    ("decimal(5, 2)", pa.decimal128(5, 2)),
    ("decimal(10, 2)", pa.int32()),
    ("decimal(18, 4)", pa.decimal128(10, 4)),
    ("decimal(19, 0)", pa.int64()),
    ("decimal(38, 10)", pa.decimal128(30, 5)),
    ("char(40)", pa.string()),
    ("string", pa.string()),
    ("binary(4)", pa.binary()),
    ("bytes", pa.binary()),
]
"""Types of a table, and types of a frame that are written to it."""


def values_of(table_type, frame_type, rng):
    """Values that both types hold."""
    digits = int(table_type[-2]) if "time" in table_type else 0
    many = range(ROWS)
    if pa.types.is_boolean(frame_type):
        return pa.array([rng.random() < 0.5 for _ in many])
    if pa.types.is_integer(frame_type):
        narrow = {"tinyint": 8, "smallint": 16, "int": 32, "decimal(10, 2)": 27}
        top = 2 ** (min(frame_type.bit_width, narrow.get(table_type, 64)) - 1)
        return pa.array([-top, -1, 0, top - 1, *(rng.randrange(-top, top) for _ in many[4:])], frame_type)
    if pa.types.is_date(frame_type):
        return pa.array([rng.randrange(-20_000, 40_000) for _ in many], frame_type)
    if pa.types.is_timestamp(frame_type):
        step, most = 10 ** (6 - digits), 50_000 * DAY_US
        return pa.array([rng.randrange(-most, most) // step * step for _ in many], frame_type)
    if pa.types.is_time(frame_type):
        step = 10 ** (9 - digits)
        return pa.array([rng.randrange(DAY_US * 1_000) // step * step for _ in many], frame_type)
    if pa.types.is_decimal(frame_type):
        top = 10**frame_type.precision
        return pa.array([Decimal(rng.randrange(1 - top, top)).scaleb(-frame_type.scale) for _ in many], frame_type)
    texts = ["".join(rng.choices("aäλ𝄞 z", k=rng.randrange(9))) for _ in many]
    if pa.types.is_string(frame_type):
        return pa.array(texts, frame_type)
    return pa.array([rng.randbytes(4 if table_type == "binary(4)" else len(text)) for text in texts], frame_type)


def info_of(schema, **options):
    return TableInfo(id=TableId(1), spec=TableSpec.make("t.t", schema, **options), created_ms=0)


@pytest.fixture
def times(spark):
    """Spark knows times of day when it is asked to."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


def test_spark_s_bucket_of_a_row_is_kolk_s(spark, times):
    seed = int(os.environ.get("KOLK_SEED", "0"))
    rng = random.Random(seed)
    names = [f"c{place}" for place in range(len(CASES))]
    frame = pa.table({name: values_of(*case, rng) for name, case in zip(names, CASES, strict=True)})
    columns = [kolk.Column(name, case[0], False) for name, case in zip(names, CASES, strict=True)]
    infos = [
        info_of(kolk.Schema([column, kolk.Column("v", "int")], primary_key=[column.name]), buckets=rng.randrange(1, 50))
        for column in columns
    ]
    several = rng.sample(columns, 5)
    infos.append(info_of(kolk.Schema(several, primary_key=[column.name for column in several]), buckets=17))

    df = spark.createDataFrame(frame)
    found = df.select(*[bucket_column(info).alias(f"b{place}") for place, info in enumerate(infos)]).toArrow()

    for place, info in enumerate(infos):
        keys = info.schema.key_columns
        arrays = [converted(frame.column(key.name).combine_chunks(), key.type, key.name) for key in keys]
        batch = pa.RecordBatch.from_arrays(arrays, names=[key.name for key in keys])
        expected = bucket_of(batch, keys, info.spec.buckets).tolist()
        assert found.column(place).to_pylist() == expected, f"{info.schema} with the seed {seed}"


def test_all_rows_of_a_bucket_are_in_one_task_also_of_several_partitions(spark, db, name, server):
    schema = kolk.Schema(
        [kolk.Column("day", "string"), kolk.Column("Key", "bigint"), kolk.Column("v", "int")],
        primary_key=["day", "Key"],
    )
    table = db.create_table(name, schema, buckets=5, partition_by=["day"])
    df = spark.range(2_000, numPartitions=3).selectExpr("string(id % 3) as day", "int(id) as key", "1 as v")

    found = kolk.spark.by_bucket(df, name, url=server.url).withColumn("task", F.spark_partition_id())

    placed = found.select("day", "task", bucket_column(table.info).alias("bucket")).distinct().toArrow().to_pylist()
    assert len(placed) == 3 * 5
    assert all(row["task"] == row["bucket"] for row in placed)


def test_a_log_table_has_no_bucket_for_a_row(spark):
    info = info_of(kolk.Schema([kolk.Column("v", "int")]))

    with pytest.raises(InvalidArgument, match="log table"):
        gathered_by_bucket(spark.range(1), info)
