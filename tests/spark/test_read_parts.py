"""The parts of a batch read, without Spark: names of runs, sizes of batches, what options mean, and shares."""

import json
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

import kolk
from kolk.errors import InvalidArgument, OffsetOutOfRange, TableNotFound, UnknownOrExpiredScan
from kolk.spark import batches, reading
from kolk.spark.asking import Asked
from kolk.spark.options import Options
from kolk.spark.runs import nonce_of, run_of
from kolk.spark.types import arrow_schema

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], primary_key=["id"])
UUID = "3403787b-10d7-43b9-9075-8923ba38a5ab"
TAGS = f"spark-session-{UUID}-execution-root-id-7,spark-session-{UUID},mine"


def run(stage=0, plan="p", **properties):
    names = {"execution": "spark.sql.execution.id", "tags": "spark.job.tags", "app": "spark.app.id"}
    return run_of({names[key]: value for key, value in properties.items()}.get, stage, plan)


def test_all_tasks_and_plans_of_one_execution_are_one_run():
    assert run(stage=1, plan="p", execution="7", tags=TAGS) == run(stage=2, plan="q", execution="7", tags=TAGS)


def test_the_order_of_the_tags_of_a_job_does_not_matter():
    tags = [TAGS, TAGS.replace("3403", "3402"), "mine"]

    assert run(execution="7", tags=",".join(tags)) == run(execution="7", tags=",".join(reversed(tags)))


@pytest.mark.parametrize(
    "other",
    [
        {"execution": "8", "tags": TAGS},
        {"execution": "7", "tags": TAGS.replace("3403", "3404")},
        {"execution": "7", "app": "local-1"},
        {"tags": TAGS},
        {},
    ],
)
def test_another_execution_or_session_is_another_run(other):
    assert run(**other) != run(execution="7", tags=TAGS)


def test_without_an_execution_a_run_is_a_stage_of_a_plan():
    assert run(stage=1) == run(stage=1)
    assert len({run(stage=1), run(stage=2), run(stage=1, plan="q"), run(stage=1, execution="3")}) == 3


def test_a_nonce_is_short_and_of_what_is_read():
    assert nonce_of("r", "t", ("a",)) == nonce_of("r", "t", ("a",)) != nonce_of("r", "t", ("a", "b"))
    assert len(nonce_of("r" * 10_000)) < 100


@given(st.lists(st.integers(0, 300_000), max_size=6))
def test_batches_have_a_good_size_and_the_same_rows(sizes):
    schema = pa.schema([("n", pa.int64())])
    whole = pa.array(range(sum(sizes)), pa.int64())
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    pages = [pa.RecordBatch.from_arrays([whole.slice(a, n)], schema=schema) for a, n in zip(starts, sizes, strict=True)]

    found = list(batches.regrouped(pages, schema))

    assert pa.Table.from_batches(found, schema)["n"].combine_chunks().equals(pa.chunked_array([whole]).combine_chunks())
    assert all(0 < batch.num_rows <= 131_072 for batch in found)
    assert all(batch.num_rows >= 32_768 for batch in found[:-1])


def test_wide_rows_make_batches_of_a_few_megabytes():
    schema = pa.schema([("v", pa.string())])
    pages = [pa.RecordBatch.from_arrays([pa.array(["x" * 1_000] * 1_000)], schema=schema)] * 60
    huge = pa.RecordBatch.from_arrays([pa.array(["x" * 10_000] * 4_000)], schema=schema)

    found = list(batches.regrouped([*pages, huge], schema))

    assert sum(batch.num_rows for batch in found) == 64_000
    assert max(batch.nbytes for batch in found) <= 16 * 2**20
    assert len(found) < 15


# --- what options mean


def asked(schema=SCHEMA, **options):
    from kolk.model.table import TableInfo, TableSpec

    spec = TableSpec.make("t", schema)
    return Asked.of(Options.parse(options), TableInfo(id=1, spec=spec, created_ms=0))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"source": "lately"}, "'source' is one of live"),
        ({"source": "lease:"}, "lease:ID"),
        ({"columns": "id,no"}, "no column 'no'"),
        ({"columns": ","}, "names no column"),
        ({"where": "no = 1"}, "no"),
        ({"limit": "0"}, "whole number"),
        ({"start": "earliest"}, "with .option"),
        ({"source": "changelog", "limit": "3"}, "no limit"),
        ({"maxRowsPerTrigger": "3"}, "for a readStream alone"),
    ],
)
def test_what_is_said_wrongly_is_told(options, text):
    with pytest.raises(InvalidArgument, match=text):
        asked(**options)


def test_a_log_table_has_no_snapshots():
    with pytest.raises(InvalidArgument, match="log table"):
        asked(kolk.Schema([kolk.Column("id", "bigint")]), source="snapshot")


@pytest.mark.parametrize("options", [{"limit": "3", "where": "v = 1"}, {"limit": "1000001"}])
def test_last_rows_that_a_log_table_cannot_show_are_refused_before_a_task_starts(options):
    log = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "bigint")])

    with pytest.raises(InvalidArgument, match=r"leave it out|partition"):
        asked(log, **options)


def test_a_changelog_has_its_own_columns_unless_some_are_chosen():
    own = ["_change_type", "_commit_version", "_commit_timestamp", "_bucket"]

    assert asked(source="changelog").schema.names == ["id", "v", *own]
    assert asked(source="changelog", columns="v").schema.names == ["v", *own]
    assert asked(source="changelog", columns="_bucket,v").schema.names == ["_bucket", "v"]
    assert asked(source="changelog", columns="_bucket").schema.names == ["_bucket"]


NESTED = "array<row<x int not null, y map<string, int not null>> not null>"


def nested(*fields, nulls=True):
    item = t.StructType([t.StructField(name, type_, nulls) for name, type_ in fields])
    return t.StructField("n", t.ArrayType(item, nulls), nulls)


def test_a_frame_may_allow_nulls_where_there_are_none_and_not_the_reverse():
    given = asked(kolk.Schema([kolk.Column("id", "int"), kolk.Column("n", NESTED)], primary_key=["id"]))
    x, y = ("x", t.IntegerType()), ("y", t.MapType(t.StringType(), t.IntegerType()))
    id = t.StructField("id", t.IntegerType())

    given.check(given.schema)
    given.check(t.StructType([nested(x, y), id]))
    for wrong in (
        [nested(y, x)],
        [nested(x, y, nulls=False)],
        [t.StructField("n", t.StringType())],
        [t.StructField("id", t.LongType())],
        [id, id],
    ):
        with pytest.raises(InvalidArgument):
            given.check(t.StructType(wrong))


# --- shares


@pytest.fixture
def table(db, name):
    made = db.create_table(name, SCHEMA, buckets=5)
    made.put([{"id": n, "v": str(n)} for n in range(1_000)])
    return made


@pytest.fixture
def options(server, name):
    def make(**more):
        return Options.parse({"url": server.url, "table": name, **more})

    return make


def schema_of(options, table):
    return Asked.of(options, table.info).schema


def shares(options, table):
    schema = schema_of(options, table)
    return schema, reading.planned(options, schema)


def rows(options, schema, share, run):
    found = list(reading.read(options, schema, share, run))
    return pa.Table.from_batches(found, arrow_schema(schema)).to_pylist()


def test_shares_together_are_the_table_and_of_one_moment(table, options):
    given = options(parallelism="3")
    schema, found = shares(given, table)
    parts = []
    for share in found:
        parts.append(rows(given, schema, share, "one"))
        table.put([{"id": n, "v": "later"} for n in range(2_000)])

    assert len(found) == 3
    assert all(parts)
    assert sorted(row["id"] for part in parts for row in part) == list(range(1_000))
    assert "later" not in {row["v"] for part in parts for row in part}
    assert rows(given, schema, found[0], "one") == parts[0], "however often it is tried"
    assert {row["v"] for row in rows(given, schema, found[0], "two")} == {"later"}


def test_a_limit_is_of_all_rows_together(table, options):
    schema, found = shares(options(limit="7", parallelism="4"), table)

    assert len(found) == 1
    assert len(rows(options(limit="7", parallelism="4"), schema, found[0], "one")) == 7


def test_a_reader_that_stops_early_leaves_nothing_under_way(db, table, options):
    schema, found = shares(options(parallelism="1"), table)
    reader = reading.read(options(parallelism="1"), schema, found[0], "one")
    next(reader)
    reader.close()

    assert list(reader) == []
    assert len([scan for scan in db.scans() if scan.table == table.name]) == 1


def test_a_moment_that_an_operator_ended_is_told(db, table, options):
    schema, found = shares(options(parallelism="2"), table)
    rows(options(), schema, found[0], "one")
    for scan in db.scans():
        if scan.table == table.name:
            db.close_scan(scan.id)

    with pytest.raises(UnknownOrExpiredScan, match="Run the action again") as error:
        rows(options(), schema, found[1], "one")
    assert error.value.reason == "closed"
    assert rows(options(), schema, found[1], "two")


def test_a_table_made_anew_is_not_the_one_that_was_planned(db, table, options, name):
    schema, found = shares(options(), table)
    db.drop_table(name)
    db.create_table(name, SCHEMA)

    with pytest.raises(TableNotFound, match="load it"):
        rows(options(), schema, found[0], "one")


def test_the_ranges_of_a_changelog(db, table, options):
    end = {bucket: high for bucket, (_, high) in table.link.service.bounds(table.info.id).items()}
    table.put([{"id": 1, "v": "new"}])

    def read_all(**more):
        given = options(source="changelog", **more)
        schema, found = shares(given, table)
        return [row for share in found for row in rows(given, schema, share, "one")]

    first, then = read_all(stop=json.dumps(end)), read_all(start=json.dumps(end))

    assert len(first) == 1_000
    assert [(row["id"], row["v"], row["_change_type"]) for row in then] == [
        (1, "1", "update_preimage"),
        (1, "new", "update_postimage"),
    ]
    assert then[0]["_commit_version"] == end[then[0]["_bucket"]]
    moment = then[0]["_commit_timestamp"].isoformat()
    assert read_all(start=moment) == then
    assert len(read_all(stop=moment)) == 1_000
    assert read_all(start="latest") == []
    for wrong, error in (
        ({"start": '{"0": 99999}'}, OffsetOutOfRange),
        ({"start": '{"77": 0}'}, InvalidArgument),
        ({"start": '{"0": "x"}'}, InvalidArgument),
        ({"start": "{"}, InvalidArgument),
        ({"start": "yesterday"}, InvalidArgument),
        ({"stop": "2026-11-15T00:00:00"}, InvalidArgument),
        ({"where": "id = 1"}, InvalidArgument),
    ):
        with pytest.raises(error):
            read_all(**wrong)


HIDING = """
import sys
sys.modules["rocksdict"] = None
import kolk, kolk.spark, pyarrow as pa
from kolk.spark.asking import Asked
from kolk.spark.connections import table
from kolk.spark.data_source import KolkSource
source = KolkSource({"url": sys.argv[1], "table": sys.argv[2]})
reader = source.reader(schema=source.schema())
print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))
assert all(hasattr(kolk.spark, name) for name in ("attach", "table", "lookup", "join_lookup", "session"))
"""


def test_it_works_where_rocksdict_is_not_installed(server, table):
    done = subprocess.run(
        [sys.executable, "-c", HIDING, server.url, table.name], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1000"
