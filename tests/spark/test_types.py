"""Column types as Spark has them, and batches in its very types: laws that need no session."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis.strategies import data
from pyspark.sql import types as st

from kolk import Column, Schema
from kolk.codec.row import RowCodec
from kolk.errors import InvalidArgument, InvalidRows
from kolk.model.conversion import converted
from kolk.model.types import DataType, Kind
from kolk.spark.types import arrow_schema, shown, spark_schema, spark_type
from kolk.testing.strategies import batches, schemas

ALL = [
    ("boolean", st.BooleanType()),
    ("tinyint", st.ByteType()),
    ("smallint", st.ShortType()),
    ("int", st.IntegerType()),
    ("bigint", st.LongType()),
    ("float", st.FloatType()),
    ("double", st.DoubleType()),
    ("decimal(38, 10)", st.DecimalType(38, 10)),
    ("char(3)", st.StringType()),
    ("string", st.StringType()),
    ("binary(4)", st.BinaryType()),
    ("bytes", st.BinaryType()),
    ("date", st.DateType()),
    ("time(3)", st.TimeType(3)),
    ("time(9)", st.TimeType(6)),
    ("timestamp(3)", st.TimestampNTZType()),
    ("timestamp_ltz(6)", st.TimestampType()),
    ("array<int not null>", st.ArrayType(st.IntegerType(), containsNull=False)),
    ("map<string, double>", st.MapType(st.StringType(), st.DoubleType(), valueContainsNull=True)),
    ("row<a int, b array<date>>", st.StructType().add("a", st.IntegerType()).add("b", st.ArrayType(st.DateType()))),
]


@pytest.mark.parametrize(("text", "expected"), ALL)
def test_every_column_type_has_one_in_spark(text, expected):
    assert spark_type(DataType.parse(text)) == expected


def test_no_kind_of_column_is_forgotten():
    assert {DataType.parse(text).kind for text, _ in ALL} == set(Kind)


def test_keys_and_not_null_columns_are_never_null_in_spark_either():
    schema = Schema([Column("k", "int"), Column("v", "int"), Column("w", "int", nullable=False)], primary_key=["k"])

    assert [field.nullable for field in spark_schema(schema)] == [False, True, False]


def test_columns_come_in_the_order_in_which_they_are_chosen():
    schema = Schema([Column("k", "int"), Column("v", "string")], primary_key=["k"])

    assert spark_schema(schema, ("v", "k")).names == ["v", "k"]
    with pytest.raises(InvalidArgument, match="no column 'x'; the columns are k, v"):
        spark_schema(schema, ("x",))


def test_a_nanosecond_that_spark_cannot_hold_is_an_error_that_names_the_column():
    rows = pa.record_batch({"at": pa.array([1], pa.timestamp("ns"))})
    wanted = arrow_schema(st.StructType().add("at", st.TimestampNTZType()))

    with pytest.raises(InvalidRows, match=r"column 'at'.*columns"):
        shown(rows, wanted)


@pytest.mark.parametrize(
    ("text", "value"),
    [("time(9)", 1), ("array<time(9)>", [1]), ("map<time(9), int>", [(1, 2)]), ("row<a time(9)>", {"a": 1})],
)
def test_nanoseconds_of_a_time_that_spark_cannot_hold_are_an_error_too(text, value):
    schema = Schema([Column("at", text)])
    rows = pa.record_batch([pa.array([value], schema.column("at").type.arrow)], names=["at"])
    wanted = arrow_schema(spark_schema(schema))

    with pytest.raises(InvalidRows, match="column 'at'"):
        shown(rows, wanted)


def test_whole_microseconds_are_shown():
    rows = pa.record_batch({"at": pa.array([3_000], pa.timestamp("ns")), "on": pa.array([5_000], pa.time64("ns"))})
    wanted = arrow_schema(st.StructType().add("at", st.TimestampNTZType()).add("on", st.TimeType(6)))

    found = shown(rows, wanted)

    assert found.schema.equals(wanted)
    assert found.column("at").to_pylist() == [datetime.datetime(1970, 1, 1, 0, 0, 0, 3)]  # noqa: DTZ001 - it has no zone
    assert found.column("on").to_pylist() == [datetime.time(0, 0, 0, 5)]


@given(data())
def test_what_spark_is_shown_comes_back_as_it_was(drawn):
    schema = drawn.draw(schemas())
    rows = drawn.draw(batches(schema))
    wanted = arrow_schema(spark_schema(schema))

    try:
        found = shown(rows, wanted)
    except InvalidRows:
        assert any(_is_fine(column.type) for column in schema.columns)
        return

    assert found.schema.equals(wanted)
    found.validate(full=True)
    back = [converted(found.column(column.name), column.type, column.name) for column in schema.columns]
    codec = RowCodec(schema)  # as it is stored, for Arrow takes no NaN for another
    assert codec.encode(pa.record_batch(back, schema=schema.arrow)).equals(codec.encode(rows))


def _is_fine(type: DataType) -> bool:
    """Whether it may hold nanoseconds."""
    is_temporal = type.kind in (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)
    return (is_temporal and type.arguments[0] > 6) or any(_is_fine(each.type) for each in type.fields)
