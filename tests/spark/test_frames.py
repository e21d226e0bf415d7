"""What a frame of Spark becomes, and what is refused before anything is written. None of this needs a session."""

import datetime
import pickle

import pyarrow as pa
import pytest
from pyspark.sql import types as st

import kolk
from kolk.errors import InvalidArgument, InvalidRows
from kolk.spark.frames import Preaggregation, checked, gathered
from kolk.spark.options import Options
from kolk.spark.schemas import schema_for
from kolk.spark.types import spark_schema

TOTALS = kolk.Schema(
    [
        kolk.Column("page", "string"),
        kolk.Column("pv", "bigint", agg="sum"),
        kolk.Column("n", "bigint", agg="count_rows"),
        kolk.Column("best", "decimal(10, 2)", agg="max"),
    ],
    primary_key=["page"],
)
PLAIN = kolk.Schema(
    [kolk.Column("id", "bigint"), kolk.Column("name", "string"), kolk.Column("size", "int", default=1)],
    primary_key=["id"],
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    with kolk.connect(tmp_path_factory.mktemp("frames")) as db:
        yield {
            "totals": db.create_table("t.totals", TOTALS).info,
            "plain": db.create_table("t.plain", PLAIN).info,
            "log": db.create_table("t.log", kolk.Schema([kolk.Column("id", "bigint")])).info,
            "first": db.create_table("t.first", PLAIN, merge_engine="first_row").info,
        }


NAMED = {
    "string": st.StringType(),
    "boolean": st.BooleanType(),
    "int": st.IntegerType(),
    "bigint": st.LongType(),
    "double": st.DoubleType(),
    "decimal(10,2)": st.DecimalType(10, 2),
    "decimal(5,1)": st.DecimalType(5, 1),
    "timestamp": st.TimestampType(),
    "array<int>": st.ArrayType(st.IntegerType()),
    "interval day": st.DayTimeIntervalType(0, 0),
}
"""Spark reads such names with a session only."""


def frame(text):
    pairs = [part.strip().split(" ", 1) for part in text.split(";")]
    return st.StructType([st.StructField(name, NAMED[type]) for name, type in pairs])


def test_all_that_does_not_fit_is_in_one_error_with_what_to_do(tables):
    with pytest.raises(InvalidRows) as error:
        checked(Options(), frame("paeg string; pv double; best string; zz int"), tables["totals"])

    told = str(error.value)
    assert "t.totals" in told
    assert "no column 'paeg' in the table; did you mean 'page'?" in told
    assert "no column 'zz' in the table; leave it out with .drop('zz')" in told
    assert "the key column 'page' is missing" in told
    assert "'pv' is DOUBLE, and the table takes bigint" in told
    assert "CAST(pv AS BIGINT)" in told
    assert "CAST(best AS DECIMAL(10,2))" in told
    assert "'n'" not in told, "a column that counts rows may be left out"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("id bigint", "the column 'name' is missing.*option\\('columns'"),
        ("id bigint; name string; NAME string", "the column 'name' twice"),
        ("id bigint; name interval day", "'name' is INTERVAL DAY.*CAST"),
        ("id bigint; name string; size bigint; _change_type double", "'_change_type' is DOUBLE; a change is insert"),
        ("id timestamp; name string", "'id' is TIMESTAMP.*CAST\\(id AS BIGINT\\)"),
        ("id bigint; name array<int>", "'name' is ARRAY<INT>"),
    ],
)
def test_each_kind_of_misfit_is_told(tables, given, message):
    with pytest.raises(InvalidRows, match=message):
        checked(Options(), frame(given), tables["plain"])


def test_a_column_of_changes_that_is_named_must_be_there(tables):
    with pytest.raises(InvalidRows, match="no column 'op' in it, which the option 'change-column' names"):
        checked(Options({"change-column": "op"}), frame("id bigint; name string"), tables["plain"])


def test_a_log_table_takes_no_changes(tables):
    with pytest.raises(InvalidRows, match="a log table keeps every one"):
        checked(Options(), frame("id bigint; _change_type string"), tables["log"])


def test_what_the_table_refuses_whatever_the_rows_is_refused_before_them(tables):
    options = Options({"columns": "name"})

    with pytest.raises(InvalidRows, match="partial writes are not supported by the first_row merge engine"):
        checked(options, frame("id bigint; name string"), tables["first"])


def test_names_are_matched_whatever_their_case_and_what_a_changelog_adds_is_passed_over(tables):
    found = checked(
        Options(),
        frame("NAME string; ID int; _change_type string; _commit_version bigint; _commit_timestamp timestamp"),
        tables["plain"],
    )
    found = pickle.loads(pickle.dumps(found))
    rows = pa.record_batch(
        {
            "NAME": ["a", "b", "c", "d"],
            "ID": pa.array([1, 2, 3, 4], pa.int32()),
            "_change_type": ["insert", "update_preimage", "+U", "delete"],
            "_commit_version": [1, 2, 3, 4],
            "_commit_timestamp": [datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)] * 4,
        }
    )

    write = found.write(rows)

    assert write.rows.to_pydict() == {
        "id": [1, 2, 3, 4],
        "name": ["a", "b", "c", "d"],
        "size": [1, 1, 1, 1],
        "_change_type": [0, 1, 2, 3],
    }


def test_a_flag_says_which_rows_are_deleted(tables):
    found = checked(Options({"change-column": "gone"}), frame("id bigint; name string; gone boolean"), tables["plain"])

    write = found.write(pa.record_batch({"id": [1, 2, 3], "name": ["a"] * 3, "gone": [True, False, None]}))

    assert write.rows.column("_change_type").to_pylist() == [3, 0, 0]


def test_columns_that_are_named_are_the_only_ones_written(tables):
    found = checked(Options({"columns": "pv"}), frame("page string; pv int; best decimal(5,1)"), tables["totals"])

    write = found.write(pa.record_batch({"page": ["a"], "pv": pa.array([1], pa.int32()), "best": [None]}))

    assert (write.columns, write.rows.schema.names) == (("pv",), ["page", "pv"])


def test_states_are_made_of_rows_that_only_come_unless_told_otherwise(tables):
    rows = frame("page string; pv bigint; best decimal(10,2)")
    changes = frame("page string; pv bigint; best decimal(10,2); _change_type string")

    assert checked(Options(), rows, tables["totals"]).preaggregation is Preaggregation.AUTO
    assert checked(Options(), changes, tables["totals"]).preaggregation is Preaggregation.NEVER
    assert checked(Options(), frame("id bigint; name string"), tables["plain"]).preaggregation is Preaggregation.NEVER
    with pytest.raises(InvalidArgument, match="preaggregate"):
        checked(Options({"preaggregate": "true"}), changes, tables["totals"])


def test_small_batches_are_gathered_and_empty_ones_left_out():
    batches = [pa.record_batch({"id": list(range(size))}) for size in (0, 3, 0, 40_000, 30_000, 5, 100_000, 0)]

    found = list(gathered(batches))

    assert [each.num_rows for each in found] == [40_003, 30_005, 100_000]
    assert list(gathered([])) == []


TYPES = st.StructType(
    [
        st.StructField(f"c{place}", type)
        for place, type in enumerate(
            [
                st.LongType(),
                st.BooleanType(),
                st.ByteType(),
                st.ShortType(),
                st.IntegerType(),
                st.FloatType(),
                st.DoubleType(),
                st.DecimalType(20, 5),
                st.StringType(),
                st.BinaryType(),
                st.DateType(),
                st.TimestampType(),
                st.TimestampNTZType(),
                st.TimeType(3),
                st.ArrayType(st.IntegerType(), containsNull=False),
                st.MapType(st.StringType(), st.DoubleType()),
                st.StructType(
                    [st.StructField("x", st.IntegerType(), nullable=False), st.StructField("y", st.StringType())]
                ),
            ]
        )
    ]
)


def test_a_schema_for_a_frame_reads_as_the_frame_again():
    schema = schema_for(TYPES, primary_key=["c0"])

    assert schema.primary_key == ("c0",)
    assert [(field.name, field.dataType) for field in spark_schema(schema)] == [
        (field.name, field.dataType) for field in TYPES
    ]


def test_a_schema_for_a_frame_has_functions_and_no_column_of_changes():
    given = frame("page string; pv bigint; _change_type string; _commit_version bigint")

    schema = schema_for(given, "page", agg={"pv": "sum"})

    assert schema.names == ("page", "pv")
    assert schema.aggregates
    with pytest.raises(kolk.errors.InvalidSchema, match="agg names 'pw'"):
        schema_for(given, "page", agg={"pw": "sum"})
    with pytest.raises(kolk.errors.InvalidSchema, match="no column holds what 'x' is, interval day"):
        schema_for(frame("x interval day"))
