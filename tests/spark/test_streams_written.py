"""Streams into tables, by transactions: exactly once, whatever fails, and however often Spark runs a batch."""

import shutil

import pytest
from pyspark.sql import functions as F
from tests.spark.writes import Files, left_of, register_faulty, run, spread, summed

import kolk
import kolk.spark

SUMS = kolk.Schema(
    [kolk.Column("k", "bigint"), kolk.Column("v", "bigint", agg="sum"), kolk.Column("n", "bigint", agg="count_rows")],
    primary_key=["k"],
)
TOTALS = kolk.Schema([kolk.Column("k", "bigint"), kolk.Column("v", "bigint")], primary_key=["k"])


@pytest.fixture
def files(spark, tmp_path):
    return Files(spark, tmp_path / "files")


@pytest.fixture
def written(server, name):
    """A stream writer to the test's table."""

    def make(df, format="kolk", **options):
        return df.writeStream.format(format).option("url", server.url).option("table", name).options(**options)

    return make


def test_tasks_that_fail_before_and_after_their_seal_count_once(spark, db, name, files, written, tmp_path):
    table = db.create_table(name, SUMS, buckets=2)
    for _ in range(4):
        files.add(*[(place % 3, place) for place in range(30)])
    faults = {
        0: ("before the seal", "raise"),
        1: ("before the seal", "exit"),
        2: ("after the seal", "raise"),
        3: ("after the seal", "exit"),
    }
    marks = tmp_path / "marks"
    marks.mkdir()
    register_faulty(spark, faults, marks)

    assert run(written(spread(files.stream(), 2), "kolk-faulty"), tmp_path / "checkpoint") is None

    assert {each.name for each in marks.iterdir()} == {"0", "1", "2", "3"}, "all faults happened"
    assert summed(table) == {key: 4 * sum(range(key, 30, 3)) for key in range(3)}
    assert left_of(db, table) == []


def test_commits_that_fail_before_and_after_they_are_made_count_once(spark, db, name, files, written, tmp_path):
    table = db.create_table(name, SUMS, buckets=2)
    register_faulty(spark, {0: ("after the commit", "raise"), 1: ("before the commit", "raise")}, tmp_path)
    files.add(*[(place % 3, place) for place in range(30)])
    files.add((0, 1), (5, 5))

    failures = []
    for parts in (2, 3, 1):  # another cut, and another order, each time it comes
        how = {"txn.on-different": "fail"}
        failures.append(run(written(spread(files.stream(), parts), "kolk-faulty", **how), tmp_path / "checkpoint"))

    assert ["a fault" in str(failure) for failure in failures] == [True, True, False]
    assert failures[2] is None
    assert summed(table) == {0: sum(range(0, 30, 3)) + 1, 1: sum(range(1, 30, 3)), 2: sum(range(2, 30, 3)), 5: 5}
    assert left_of(db, table) == []


def test_an_old_checkpoint_that_was_restored_is_noticed(db, name, files, written, tmp_path):
    table = db.create_table(name, SUMS)
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    files.add((1, 1))
    assert run(written(files.stream()), checkpoint) is None
    shutil.copytree(checkpoint, backup)
    files.add((1, 10))
    files.add((1, 100))
    assert run(written(files.stream()), checkpoint) is None
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)

    failure = run(written(files.stream()), checkpoint)

    assert "a checkpoint was lost, or an old one restored" in str(failure)
    assert summed(table) == {1: 111}
    assert run(written(files.stream(), **{"txn.on-old": "drop"}), checkpoint) is None
    assert summed(table) == {1: 111}
    assert left_of(db, table) == []


def test_complete_mode_replaces_and_does_not_add_up(db, name, files, written, tmp_path):
    table = db.create_table(name, SUMS, buckets=2)
    files.add((1, 1), (2, 2))
    files.add((1, 10), (3, 3))
    totals = files.stream().groupBy("k").agg(F.sum("v").alias("v"))

    assert run(written(totals).outputMode("complete"), tmp_path / "checkpoint") is None

    assert summed(table) == {1: 11, 2: 2, 3: 3}


def test_update_mode_goes_through_the_sink_and_a_batch_that_comes_again_changes_nothing(
    db, name, server, files, tmp_path
):
    table = db.create_table(name, TOTALS, buckets=2)
    checkpoint = tmp_path / "checkpoint"
    files.add((1, 1), (2, 2))
    files.add((1, 10), (3, 3))
    totals = files.stream().groupBy("k").agg(F.sum("v").alias("v"))
    sink = kolk.spark.sink(totals, name, url=server.url, output_mode="update")
    assert run(sink, checkpoint) is None
    table.put([{"k": 2, "v": -1}])  # what a replay would put right, if it were applied
    for mark in ("1", ".1.crc"):  # as if the driver had died before it noted the batch
        (checkpoint / "commits" / mark).unlink(missing_ok=True)

    assert run(kolk.spark.sink(totals, name, url=server.url, output_mode="update"), checkpoint) is None

    assert summed(table) == {1: 11, 2: -1, 3: 3}
    found = [each for each in db.transactions() if each.tables == (name,)]
    assert [(each.app.startswith("spark-query-"), each.version, each.state) for each in found] == [(True, 1, "done")]


def test_running_totals_are_not_added_up_unless_somebody_says_so(db, name, server, files):
    db.create_table(name, SUMS)
    totals = files.stream().groupBy("k").agg(F.sum("v").alias("v"))

    with pytest.raises(kolk.errors.InvalidArgument, match=r"running totals.*merge_mode='overwrite'"):
        kolk.spark.sink(totals, name, url=server.url, output_mode="update")
    kolk.spark.sink(totals, name, url=server.url, output_mode="update", merge_mode="accumulate", columns=["v"])
    with pytest.raises(kolk.errors.InvalidArgument, match="output_mode='update'"):
        kolk.spark.sink(totals, name, url=server.url).outputMode("update")
    with pytest.raises(kolk.errors.InvalidRows, match="no column 'w'"):
        kolk.spark.sink(totals.withColumn("w", F.lit(1)), name, url=server.url)
    with pytest.raises(kolk.errors.InvalidArgument, match="output_mode is one of"):
        kolk.spark.sink(totals, name, url=server.url, output_mode="overwrite")
    with pytest.raises(kolk.errors.InvalidArgument, match="made by the sink"):
        kolk.spark.sink(totals, name, url=server.url, txnVersion="3")


def test_one_batch_goes_to_several_tables(db, name, server, files, tmp_path):
    sums, latest = db.create_table(name, SUMS), db.create_table(f"{name}_latest", TOTALS)
    files.add((1, 1), (1, 2), (2, 3))
    shapes = {name: lambda batch: batch, f"{name}_latest": lambda batch: batch.groupBy("k").agg(F.max("v").alias("v"))}

    assert run(kolk.spark.sink(files.stream(), shapes, url=server.url), tmp_path / "checkpoint") is None

    assert (summed(sums), summed(latest)) == ({1: 3, 2: 3}, {1: 2, 2: 3})


def test_what_is_read_of_one_table_is_written_to_another_as_it_is(spark, db, name, server, written, tmp_path):
    table, source = db.create_table(name, TOTALS, buckets=2), db.create_table(f"{name}_source", TOTALS, buckets=3)
    source.put([{"k": key, "v": key} for key in range(20)])
    reader = spark.readStream.format("kolk").option("url", server.url).option("table", source.name)
    changes = reader.option("changes", "cdc").load()
    assert run(written(changes), tmp_path / "checkpoint") is None
    assert summed(table) == summed(source)
    source.put([{"k": key, "v": -key} for key in range(5, 25)])
    source.delete([0, 7, 24])

    assert run(written(changes), tmp_path / "checkpoint") is None

    assert summed(table) == summed(source)
    assert len(summed(table)) == 22


def test_a_query_goes_on_when_its_server_is_killed_and_started_again(spark, files, tmp_path):
    config = kolk.ServerConfig(port=0, http_port=-1)
    first = kolk.start(tmp_path / "data", server=config)
    url = first.url
    with kolk.connect(url) as db:
        db.create_table("t.t", SUMS, buckets=2)
    for place in range(6):
        files.add(*[(key, place) for key in range(10)])
    writer = files.stream().writeStream.format("kolk").option("url", url).option("table", "t.t")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="0 seconds").start()
    try:
        with kolk.connect(url) as db:
            next(iter(db.table("t.t").changelog(follow=True)))  # the first batch is there
        first.kill()
        again = kolk.ServerConfig(port=int(url.rsplit(":", 1)[1]), http_port=-1)
        with kolk.start(tmp_path / "data", server=again) as second, kolk.connect(second.url) as db:
            query.processAllAvailable()
            query.stop()
            table = db.table("t.t")

            assert summed(table) == {key: sum(range(6)) for key in range(10)}
            assert left_of(db, table) == []
    finally:
        query.stop()
        first.close()
