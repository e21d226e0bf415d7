"""A table's spec: arguments and options said together, checked together."""

import pytest

from kolk.errors import InvalidName, InvalidSchema
from kolk.model.ids import NO_PARTITION, BucketId, TableId
from kolk.model.names import TableName
from kolk.model.options import MergeEngine, TableOptions
from kolk.model.schema import Column, Schema
from kolk.model.table import BUCKETS_MAX, TableInfo, TableSpec

COLUMNS = [
    Column("user", "string"),
    Column("day", "date"),
    Column("x", "double"),
    Column("a", "int"),
    Column("b", "int"),
]
KEYED = Schema(COLUMNS, primary_key=["user", "day"])
LOG = Schema(COLUMNS)


def refusal(**arguments: object) -> str:
    """What the user is told."""
    with pytest.raises(InvalidSchema) as caught:
        TableSpec.make("t", **({"schema": KEYED} | arguments))
    return str(caught.value)


def test_a_plain_table_has_one_bucket_by_its_primary_key():
    spec = TableSpec.make("web.visits", KEYED)

    assert spec == TableSpec(
        name=TableName("web", "visits"),
        schema=KEYED,
        buckets=1,
        bucket_key=("user", "day"),
        options=TableOptions(),
    )


def test_a_log_table_has_no_bucket_key_unless_it_is_given_one():
    assert TableSpec.make("t", LOG).bucket_key == ()
    assert TableSpec.make("t", LOG, bucket_key=["user"]).bucket_key == ("user",)


def test_arguments_and_options_say_the_same_thing():
    by_arguments = TableSpec.make("t", KEYED, buckets=4, bucket_key=["user"], merge_engine="first_row")
    by_options = TableSpec.make(
        "t", KEYED, options={"bucket.num": "4", "bucket.key": " user ", "table.merge-engine": "first_row"}
    )

    assert by_arguments == by_options


def test_a_bucket_key_of_one_column_may_be_given_as_text():
    assert TableSpec.make("t", KEYED, bucket_key="day").bucket_key == ("day",)


def test_the_same_thing_may_be_given_twice_alike():
    spec = TableSpec.make(
        "t",
        KEYED,
        buckets=4,
        bucket_key=["user", "day"],
        merge_engine="first_row",
        options={"bucket.num": "4", "bucket.key": "user, day", "table.merge-engine": "FIRST_ROW"},
    )

    assert (spec.buckets, spec.bucket_key) == (4, ("user", "day"))
    assert spec.options.merge_engine is MergeEngine.FIRST_ROW


@pytest.mark.parametrize(
    ("arguments", "option", "message"),
    [
        ({"buckets": 4}, {"bucket.num": "8"}, "bucket.num is given twice and differently: '8' and '4'"),
        (
            {"bucket_key": ["user"]},
            {"bucket.key": "day"},
            "bucket.key is given twice and differently: 'day' and 'user'",
        ),
        (
            {"merge_engine": "versioned"},
            {"table.merge-engine": "first_row"},
            "table.merge-engine is given twice and differently: 'first_row' and 'versioned'",
        ),
    ],
)
def test_the_same_thing_given_twice_differently_is_refused_with_both(arguments, option, message):
    assert refusal(**arguments, options=option) == message


def test_bucket_keys_are_compared_by_their_exact_names():
    message = refusal(schema=LOG, bucket_key=["a"], options={"bucket.key": "A"})

    assert message == "bucket.key is given twice and differently: 'A' and 'a'"


@pytest.mark.parametrize("type", ["timestamp(7)", "timestamp_ltz(9)"])
def test_a_time_finer_than_spark_knows_cannot_choose_among_several_buckets(type):
    schema = Schema([Column("at", type)], primary_key=["at"])

    assert TableSpec.make("t", schema, buckets=1).bucket_key == ("at",)
    with pytest.raises(InvalidSchema, match="Spark hashes otherwise"):
        TableSpec.make("t", schema, buckets=2)


def test_a_bucket_key_outside_the_primary_key_is_refused_with_the_choice():
    message = refusal(bucket_key=["x"])

    assert message == "bucket.key: 'x' is not a primary key column; choose among user, day"


def test_an_unknown_bucket_key_of_a_log_table_is_refused_with_the_choice():
    message = refusal(schema=LOG, bucket_key=["nope"])

    assert message == "bucket.key: 'nope' is not a column; choose among user, day, x, a, b"


def test_a_float_bucket_key_is_refused():
    assert refusal(schema=LOG, bucket_key="x") == "bucket.key: 'x' is a double; use a type with exact equality"


def test_a_bucket_key_that_names_a_column_twice_is_refused():
    assert refusal(bucket_key=["user", "user"]) == "bucket.key names a column twice: 'user,user'"


@pytest.mark.parametrize("text", [",", "user,", "user;day"])
def test_a_bucket_key_that_cannot_be_read_is_refused(text):
    assert "is not a primary key column" in refusal(options={"bucket.key": text})


@pytest.mark.parametrize("buckets", [0, -1, BUCKETS_MAX + 1, True, 1.5, "x", "", "４", "1_000", "9" * 5000])
def test_a_bucket_count_out_of_range_is_refused_with_the_range(buckets):
    message = refusal(buckets=buckets)

    assert message == f"bucket.num is a number from 1 to 4096, not {str(buckets)[:40]!r}"


@pytest.mark.parametrize("buckets", [1, BUCKETS_MAX])
def test_the_edges_of_the_bucket_count_are_inside_it(buckets):
    assert TableSpec.make("t", KEYED, buckets=buckets).buckets == buckets


def test_a_merge_engine_on_a_log_table_is_refused():
    message = refusal(schema=LOG, merge_engine="first_row")

    assert message == "table.merge-engine is only for tables with a primary key; this one has none"


def test_a_misspelt_option_is_refused_with_the_nearest_one():
    message = refusal(options={"buckets.num": "4"})

    assert message == "unknown table option 'buckets.num'; did you mean 'bucket.num'?"


@pytest.mark.parametrize("name", ["../x", "a.b.c", "", "__t", "web.", "t\0", "-t"])
def test_a_hostile_table_name_is_refused(name):
    with pytest.raises(InvalidName):
        TableSpec.make(name, KEYED)


def test_a_table_knows_its_buckets_in_lock_order():
    spec = TableSpec.make("t", KEYED, buckets=3)

    info = TableInfo(id=TableId(7), spec=spec, created_ms=0)

    assert info.bucket_ids == tuple(BucketId(TableId(7), NO_PARTITION, bucket) for bucket in range(3))
    assert list(info.bucket_ids) == sorted(info.bucket_ids)
    assert [bucket.name for bucket in info.bucket_ids] == ["0", "1", "2"]


@pytest.mark.parametrize(("schema", "is_log"), [(KEYED, False), (LOG, True)])
def test_a_table_without_a_primary_key_is_a_log_table(schema, is_log):
    info = TableInfo(id=TableId(1), spec=TableSpec.make("web.t", schema), created_ms=0)

    assert info.is_log is is_log
    assert (info.name, info.schema) == (TableName("web", "t"), schema)
