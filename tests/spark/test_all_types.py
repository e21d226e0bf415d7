"""Every type of column in a frame of Spark, with nulls, extremes, and one within the other."""

import datetime
import decimal
import math

import pyarrow as pa
import pytest

import kolk

UTC = datetime.UTC
Day, Moment = datetime.date, datetime.datetime
VALUES = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [math.nan, -math.inf],
    "double": [math.nan, 5e-324],
    "decimal(38, 10)": [decimal.Decimal("-9999999999999999999999999999.9999999999"), decimal.Decimal("0E-10")],
    "decimal(38, 0)": [decimal.Decimal(10**38 - 1), decimal.Decimal(-1)],
    "decimal(5, 5)": [decimal.Decimal("0.99999"), decimal.Decimal("-0.00001")],
    "char(3)": ["abc", "üñ "],
    "string": ["", "a\0b\U0001f30a"],
    "binary(4)": [b"\0\0\0\0", b"\xff\xfe\xfd\xfc"],
    "bytes": [b"", b"\0\xff"],
    "date": [Day(1, 1, 1), Day(9999, 12, 31)],
    "time(6)": [datetime.time(0, 0), datetime.time(23, 59, 59, 999_999)],
    "time(0)": [datetime.time(0, 0), datetime.time(23, 59, 59)],
    "timestamp(6)": [Moment(1, 1, 1), Moment(9999, 12, 31, 23, 59, 59, 999_999)],
    "timestamp(3)": [Moment(1969, 12, 31, 23, 59, 59, 999_000), Moment(2026, 3, 29, 2, 30)],
    "timestamp_ltz(6)": [Moment(1900, 1, 1, tzinfo=UTC), Moment(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC)],
    "timestamp_ltz(0)": [Moment(1969, 12, 31, 23, 59, 59, tzinfo=UTC), Moment(2026, 3, 29, 1, 30, tzinfo=UTC)],
    "array<int>": [[], [1, None]],
    "array<array<string not null>>": [[[]], [["", "x"], None]],
    "map<string, double>": [[], [("a", None), ("", 1.5)]],
    "map<int, array<decimal(38, 2)>>": [[(1, [decimal.Decimal("1.10"), None])], [(2, None)]],
    "row<a int, b row<c timestamp_ltz(6), d bytes>>": [
        {"a": None, "b": None},
        {"a": 1, "b": {"c": Moment(1969, 7, 20, 20, 17, 40, tzinfo=UTC), "d": b""}},
    ],
}


@pytest.fixture
def table(db, name):
    columns = [kolk.Column(f"c{place}", type) for place, type in enumerate(VALUES)]
    made = db.create_table(name, kolk.Schema([kolk.Column("id", "int"), *columns], primary_key=["id"]), buckets=2)
    rows = [[*each, None] for each in VALUES.values()]
    arrays = [pa.array(each, made.schema.column(f"c{place}").type.arrow) for place, each in enumerate(rows)]
    made.put(pa.table([pa.array([0, 1, 2], pa.int32()), *arrays], names=made.schema.names))
    return made


def plain(found: pa.Table) -> list[str]:
    """Rows by id, as text: a NaN is a NaN, and a moment has no zone of its own."""
    for place, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            moments = found[field.name].cast(pa.timestamp("us", "UTC"))
            found = found.set_column(place, field.name, moments)
    return [str(row) for row in found.sort_by("id").to_pylist()]


def test_every_type_is_read_as_it_was_put(source, table):
    """In a session whose zone is not UTC; a time within a row is in that zone."""
    frame = source(table=table.name).load()
    found, own = frame.toArrow(), table.scan().to_arrow()

    for place, type in enumerate(VALUES):
        name = f"c{place}"
        if type.startswith("row"):
            continue
        assert plain(found.select(["id", name])) == plain(own.select(["id", name])), type
    nested = f"c{len(VALUES) - 1}"
    moments = frame.selectExpr("id", f"{nested}.b.c AS m", f"{nested}.b.d AS d").toArrow().sort_by("id")
    assert moments["m"].cast(pa.timestamp("us", "UTC")).to_pylist() == [
        None,
        Moment(1969, 7, 20, 20, 17, 40, tzinfo=UTC),
        None,
    ]
    assert moments["d"].to_pylist() == [None, b"", None]


def test_every_type_is_written_as_it_was_read(source, server, db, table, name):
    copy = db.create_table(f"{name}copy", table.schema, buckets=3)

    frame = source(table=table.name).load()
    frame.write.format("kolk").option("url", server.url).option("table", copy.name).mode("append").save()

    assert plain(copy.scan().to_arrow()) == plain(table.scan().to_arrow())


@pytest.mark.parametrize("made", ["INTERVAL '1' DAY", "INTERVAL '1' YEAR", "parse_json('{}')"])
def test_what_kolk_has_no_column_for_is_a_clear_error(spark, server, table, made):
    frame = spark.sql(f"SELECT 1 AS id, {made} AS c0")

    with pytest.raises(Exception, match="c0") as error:
        frame.write.format("kolk").option("url", server.url).option("table", table.name).mode("append").save()
    assert "kolk" in str(error.value).lower() or "INVALID" in str(error.value)
