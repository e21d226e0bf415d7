"""Tables by name in a session: as frames, as views of SQL, and row by row by key."""

import datetime

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import kolk
from kolk.errors import InvalidArgument
from kolk.spark import lookups
from kolk.spark.options import Options

PAGES = kolk.Schema(
    [kolk.Column("page", "string"), kolk.Column("pv", "bigint"), kolk.Column("tags", "array<string>")],
    primary_key=["page"],
)
WIDE = kolk.Schema(
    [kolk.Column("a", "int"), kolk.Column("b", "string"), kolk.Column("v", "double")], primary_key=["a", "b"]
)


@pytest.fixture
def pages(db, name):
    table = db.create_table(name, PAGES, buckets=2)
    table.put([{"page": f"/{n}", "pv": n, "tags": [str(n)]} for n in range(100)])
    return table


def test_a_table_is_a_frame(spark, server, pages):
    found = kolk.spark.table(spark, pages.name, url=server.url, columns=["pv"], where={"page": ["/1", "/2"]})

    assert sorted(row.pv for row in found.collect()) == [1, 2]
    assert kolk.spark.table(spark, pages.name, url=server.url, limit=3, cut_linger="5s").count() == 3
    with pytest.raises(InvalidArgument, match="list of names"):
        kolk.spark.table(spark, pages.name, url=server.url, columns="pv")
    with pytest.raises(InvalidArgument, match="did you mean 'columns'"):
        kolk.spark.table(spark, pages.name, url=server.url, colums="pv")


def test_attached_tables_are_views_that_sql_reads(spark, server, db, pages):
    views = kolk.spark.attach(spark, server.url, prefix="k_", tables=[pages.name])

    view = "k_" + pages.name.replace(".", "_")
    assert views == {pages.name: view}
    assert spark.sql(f"SELECT sum(pv) FROM {view} WHERE pv < 3").first()[0] == 3
    pages.put([{"page": "/0", "pv": 10, "tags": None}])
    assert spark.sql(f"SELECT a.pv, b.tags FROM {view} a JOIN {view} b USING (page) WHERE page = '/0'").first()[:] == (
        10,
        None,
    )


def test_attached_tables_are_views_that_sql_writes(spark, server, pages):
    view = kolk.spark.attach(spark, server.url, tables=[pages.name])[pages.name]

    spark.sql(f"INSERT INTO {view} VALUES ('/new', 7, array('x'))")
    spark.sql(f"INSERT INTO {view} SELECT page, pv + 1, tags FROM {view} WHERE page = '/new'")

    assert pages.get_one(page="/new") == {"page": "/new", "pv": 8, "tags": ["x"]}
    assert spark.sql(f"SELECT count(*) FROM {view}").first()[0] == 101


def test_two_tables_that_would_have_one_view_are_refused(spark, server, db, name):
    database, _, plain = name.partition(".")
    names = [f"{database}_{plain}.x", f"{database}.{plain}_x"]
    for each in names:
        db.create_table(each, PAGES)

    with pytest.raises(InvalidArgument, match="attach them apart"):
        kolk.spark.attach(spark, server.url, tables=names)
    with pytest.raises(InvalidArgument, match="there is no table"):
        kolk.spark.attach(spark, server.url, tables=["no.such"])


def test_a_row_by_its_key_in_sql(spark, server, db, pages):
    kolk.spark.lookup(spark, server.url)
    call = f"kolk_lookup('{pages.name}', "

    assert [tuple(row) for row in spark.sql(f"SELECT * FROM {call}'/7')").collect()] == [("/7", 7, ["7"])]
    assert spark.sql(f"SELECT * FROM {call}'/no')").collect() == []
    spark.createDataFrame([(f"/{n}",) for n in range(95, 105)], "page string").createOrReplaceTempView("asked")
    many = spark.sql(f"SELECT pv FROM {call}TABLE(SELECT page FROM asked))").collect()
    assert sorted(row.pv for row in many) == list(range(95, 100))
    with pytest.raises(Exception, match="give the key"):
        spark.sql(f"SELECT * FROM {call}'/7', 8)")


def test_a_lookup_cuts_no_nanoseconds_off(server, db, name):
    """Python's time of a day has none: what a row of Spark's cannot hold is an error, as it is in every other read."""
    table = db.create_table(name, kolk.Schema([kolk.Column("k", "int"), kolk.Column("at", "time(9)")], "k"))
    table.put(pa.table({"k": pa.array([1, 2], pa.int32()), "at": pa.array([1_000, 1_001], pa.time64("ns"))}))

    class Lookup(lookups.LookupRows):
        given = Options.parse({"url": server.url})

    assert list(Lookup().eval(name, 1)) == [(1, datetime.time(0, 0, 0, 1))]
    with pytest.raises(InvalidArgument, match="Python has no value"):
        list(Lookup().eval(name, 2))


def test_the_rows_of_a_frames_keys(spark, server, pages):
    visits = spark.createDataFrame([("/1", 1), ("/no", 2), ("/1", 3), (None, 4)], "url string, n int").coalesce(1)

    inner = kolk.spark.join_lookup(visits, pages.name, on={"url": "page"}, url=server.url)
    left = kolk.spark.join_lookup(visits, pages.name, on="url", how="left", columns=["pv"], url=server.url)

    assert [tuple(row) for row in inner.collect()] == [("/1", 1, 1, ["1"]), ("/1", 3, 1, ["1"])]
    assert [tuple(row) for row in left.collect()] == [("/1", 1, 1), ("/no", 2, None), ("/1", 3, 1), (None, 4, None)]
    for wrong in ({"on": "no"}, {"on": ["url", "n"]}, {"on": "url", "how": "outer"}):
        with pytest.raises(InvalidArgument):
            kolk.spark.join_lookup(visits, pages.name, url=server.url, **wrong)
    with pytest.raises(InvalidArgument, match="already"):
        kolk.spark.join_lookup(visits.withColumnRenamed("n", "pv"), pages.name, on="url", url=server.url)


def test_keys_of_several_columns_are_found_in_one_call(server, db, name):
    table = db.create_table(name, WIDE, buckets=2)
    table.put([{"a": n % 3, "b": str(n), "v": n / 2} for n in range(30)])
    options = Options.parse({"url": server.url, "table": name})
    batch = pa.RecordBatch.from_pydict({"x": pa.array([1, 2, 1], pa.int32()), "y": ["4", "4", "1"]})
    schema = t.StructType().add("x", t.IntegerType()).add("y", t.StringType()).add("v", t.DoubleType())

    found = list(
        lookups.joined([batch], options=options, keys={"a": "x", "b": "y"}, added=["v"], how="left", schema=schema)
    )

    assert pa.Table.from_batches(found).to_pylist() == [
        {"x": 1, "y": "4", "v": 2.0},
        {"x": 2, "y": "4", "v": None},
        {"x": 1, "y": "1", "v": 0.5},
    ]
