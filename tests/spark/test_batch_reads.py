"""A batch read shows one moment in every action, and the newest in the next, whatever is written meanwhile."""

import os
import time

import pytest
from pyspark.sql import functions as F

import kolk

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "bigint")], primary_key=["id"])


def rows(count: int, v: int = 0) -> list[dict]:
    return [{"id": n, "v": v} for n in range(count)]


def made(db, name: str, count: int = 1_000, buckets: int = 4):
    table = db.create_table(name, SCHEMA, buckets=buckets)
    if count:
        table.put(rows(count))
    return table


def scans_of(db, name: str) -> list:
    return [scan for scan in db.scans() if scan.table == name]


def wait_until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"


def test_each_action_sees_the_newest_rows_and_leaves_nothing_open(db, source, name):
    table = made(db, name)
    frame = source(table=name, **{"cut-linger": "1s"}).load()

    first = frame.count(), frame.agg(F.sum("v")).first()[0]
    table.put([*rows(500, v=2), {"id": 5_000, "v": 1}])
    second = frame.count(), frame.agg(F.sum("v")).first()[0]

    assert (first, second) == ((1_000, 0), (1_001, 1_001))
    wait_until(lambda: not scans_of(db, name))


def test_a_view_sees_the_newest_rows(spark, db, source, name):
    table = made(db, name, 3)
    source(table=name).load().createOrReplaceTempView("newest")
    assert spark.sql("SELECT count(*) FROM newest").first()[0] == 3

    table.put(rows(7))

    assert spark.sql("SELECT count(*) FROM newest WHERE v = 0").first()[0] == 7


def test_tasks_of_one_action_see_one_moment_while_somebody_writes(spark, server, db, name):
    """Every put gives all rows the same value. Each task puts before it lets its rows go on, so that no two tasks could
    agree on a value unless they read of one moment; and both sides of the join have it."""
    table = made(db, name, 200, buckets=4)
    url = server.url

    def written_between(batches):
        import kolk

        for batch in batches:
            with kolk.connect(url) as there:
                again = there.table(name)
                again.put([{"id": n, "v": again.get_one(id=0)["v"] + 1} for n in range(200)])
            yield batch

    def load():
        return spark.read.format("kolk").options(url=url, table=name, parallelism="4").load()

    one, other = load(), load()  # two plans, with the same options
    joined = (
        one.mapInArrow(written_between, "id bigint, v bigint")
        .join(other.withColumnRenamed("v", "w").repartition(3), "id")
        .select("v", "w")
        .collect()
    )

    assert len(joined) == 200
    assert {(row.v, row.w) for row in joined} == {(0, 0)}
    assert table.get_one(id=0)["v"] >= 2
    with table.scan() as now:  # tasks that put at the same time may leave different values in different buckets
        assert {(row.id, row.v) for row in one.collect()} == {
            (row["id"], row["v"]) for row in now.to_arrow().to_pylist()
        }


def test_a_task_that_is_tried_again_reads_the_same_rows(server, db, source, name, tmp_path):
    table = made(db, name, 100, buckets=2)
    url, seen = server.url, tmp_path / "seen"

    def failing_once(batches):
        import kolk

        yield from batches
        if not seen.exists():
            seen.touch()
            with kolk.connect(url) as there:
                there.table(name).put([{"id": n, "v": 9} for n in range(300)])
            raise RuntimeError("once")

    found = source(table=name, parallelism=1).load().mapInArrow(failing_once, "id bigint, v bigint").collect()

    assert seen.exists()
    assert sorted((row.id, row.v) for row in found) == [(n, 0) for n in range(100)]
    assert table.get_one(id=299) == {"id": 299, "v": 9}


def test_a_moment_that_is_gone_is_an_error_that_says_what_to_do(server, db, source, name, tmp_path):
    made(db, name, 100, buckets=2)
    url, seen = server.url, tmp_path / "seen"

    def ending_it(batches):
        import kolk

        yield from batches
        if not seen.exists():
            seen.touch()
            with kolk.connect(url) as there:
                for scan in there.scans():
                    if scan.table == name:
                        there.close_scan(scan.id)
            raise RuntimeError("once")

    frame = source(table=name, parallelism=1).load().mapInArrow(ending_it, "id bigint, v bigint")
    with pytest.raises(Exception, match="Run the action again") as error:
        frame.collect()

    assert "UnknownOrExpiredScan" in str(error.value)
    assert frame.count() == 100


def test_columns_where_and_limit_are_done_by_the_server(db, source, name):
    table = made(db, name, 1_000, buckets=3)
    table.put([{"id": n, "v": n % 10} for n in range(1_000)])

    chosen = source(table=name, columns="v", where="v >= 8 AND id < 500").load()
    few = source(table=name, limit=7).load()
    one = source(table=name, where="id = 77").load()

    assert chosen.columns == ["v"]
    assert sorted(row.v for row in chosen.collect()) == sorted(n % 10 for n in range(500) if n % 10 >= 8)
    assert few.count() == 7
    assert one.collect() == [(77, 7)]


def test_a_schema_of_the_reader_is_a_projection(spark, server, db, name):
    made(db, name, 3, buckets=1)
    reader = spark.read.format("kolk").options(url=server.url, table=name)

    assert sorted(reader.schema("v bigint, id bigint").load().collect()) == [(0, 0), (0, 1), (0, 2)]
    with pytest.raises(Exception, match="'v' is bigint, not int"):
        reader.schema("v int").load().collect()
    with pytest.raises(Exception, match="no column 'w'"):
        reader.schema("w int").load().collect()


def test_an_early_end_closes_what_is_open(db, source, name):
    made(db, name, 0, buckets=1).put(rows(300_000))

    frame = source(table=name, **{"cut-ttl": "2s"}).load()
    assert frame.count() == 300_000
    idle = db.status()["streams"]

    assert len(frame.take(3)) == 3

    wait_until(lambda: db.status()["streams"] <= idle)
    wait_until(lambda: not scans_of(db, name))


def test_empty_and_partitioned_tables(db, source, name):
    """Partitions that are made later are seen by a frame that was planned before."""
    columns = [kolk.Column("day", "string"), kolk.Column("id", "bigint")]
    table = db.create_table(
        name, kolk.Schema(columns, primary_key=["day", "id"]), buckets=2, partition_by=["day"], bucket_key=["id"]
    )
    frame = source(table=name).load()
    one = source(table=name, where="day = 'b'").load()
    assert frame.collect() == []

    table.put([{"day": day, "id": n} for day in "abc" for n in range(10)])

    assert frame.count() == 30
    assert one.count() == 10


def test_snapshots_and_leases(db, source, name):
    table = made(db, name, 10, buckets=2)
    table.take_snapshot()
    with table.lease(ttl="1m") as lease:
        table.put(rows(20))
        table.take_snapshot()
        table.put(rows(30))

        assert source(table=name, source="snapshot").load().count() == 20
        assert source(table=name, source=f"lease:{lease.id}").load().count() == 10
        assert source(table=name).load().count() == 30


def test_log_tables(db, source, name):
    schema = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")])
    table = db.create_table(name, schema, buckets=3)
    frame = source(table=name).load()
    assert frame.count() == 0

    table.put([{"id": n, "v": str(n)} for n in range(100)])
    table.put([{"id": 100, "v": "last"}])

    assert sorted(row.id for row in frame.collect()) == list(range(101))
    assert [tuple(row) for row in source(table=name, limit=1).load().collect()] == [(100, "last")]
    assert source(table=name, where="id < 10", columns="v").load().count() == 10


def test_a_changelog_is_read_range_by_range(spark, db, source, name):
    table = db.create_table(name, SCHEMA, buckets=2)
    table.put(rows(4))
    first = source(table=name, source="changelog").load()
    assert first.columns == ["id", "v", "_change_type", "_commit_version", "_commit_timestamp", "_bucket"]
    counted = first.count()
    ends = {name: end for name, (_, end) in table.link.service.bounds(table.info.id).items()}
    table.put([{"id": 0, "v": 5}])
    table.delete([{"id": 1}])

    again = first.count()
    text = str(ends).replace("'", '"')
    more = source(table=name, source="changelog", start=text, columns="id,v,_change_type").load().collect()

    assert (counted, again) == (4, 4), "a range stays what it was"
    assert sorted(map(tuple, more)) == [
        (0, 0, "update_preimage"),
        (0, 5, "update_postimage"),
        (1, 0, "delete"),
    ]


def test_many_buckets_are_read_by_few_tasks(db, source, name):
    table = db.create_table(name, SCHEMA, buckets=1_000 if os.environ.get("KOLK_FULL") else 60)
    table.put(rows(5_000))
    frame = source(table=name, parallelism=3).load()

    assert frame.rdd.getNumPartitions() == 3
    assert frame.agg(F.count("*"), F.sum("id")).first()[:] == (5_000, sum(range(5_000)))
    assert frame.rdd.map(lambda row: row.id).sum() == sum(range(5_000)), "outside of Spark SQL too"


def test_a_table_that_is_altered_or_made_anew(db, source, name):
    """A frame goes on in the version that it was planned with, and never with another table."""
    table = made(db, name, 3, buckets=1)
    frame = source(table=name).load()
    assert frame.count() == 3

    table.add_column("more", "string")
    table.rename_column("v", "w")
    assert sorted(map(tuple, frame.collect())) == [(0, 0), (1, 0), (2, 0)]

    db.drop_table(name)
    made(db, name, 1)
    with pytest.raises(Exception, match="dropped since this frame was made"):
        frame.collect()
