"""Streams into tables as an owner of columns: rows are seen while a batch runs, and whatever fails, they count once."""

import os
import signal
import subprocess
import sys

import pytest
from tests.spark.owned import WIDE, Clicks, check, held, open_gate, rows_of, until

import kolk
import kolk.spark

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.fixture
def clicks(spark, tmp_path):
    return Clicks(spark, tmp_path / "clicks")


@pytest.fixture
def written(server, name, tmp_path):
    """A query that writes to the test's table as an owner, started."""
    queries = []

    def start(df, checkpoint="checkpoint", step=None, co_located=True, **options):
        if co_located:
            df = kolk.spark.by_bucket(df, name, url=server.url)
        if step is not None:
            df = step(df)
        given = {"url": server.url, "table": name, "exactly-once": "undo", **options}
        given["checkpointLocation"] = str(tmp_path / checkpoint)
        query = df.writeStream.format("kolk").options(**given).trigger(availableNow=True).start()
        queries.append(query)
        return query

    yield start
    for query in queries:
        query.stop()


def outcome(query):
    """The exception that ends a query, or None."""
    try:
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001 - what Spark raises is what is asked for
        return str(error)
    return None


def test_rows_are_seen_while_the_batch_runs_and_taken_back_when_it_fails(db, name, clicks, written, tmp_path):
    table = db.create_table(name, WIDE, buckets=2)
    clicks.add(100)
    assert outcome(written(clicks.stream())) is None
    before = clicks.expected()
    clicks.add(100)
    gate = tmp_path / "gate"

    query = written(clicks.stream(), step=held(gate))
    until(lambda: rows_of(table) != before)
    assert query.isActive
    assert [lock.is_dirty for lock in db.locks() if lock.table == name] == [True]
    open_gate(gate, "fail")

    assert "told to fail" in outcome(query)
    check(table, before)
    assert outcome(written(clicks.stream())) is None
    check(table, clicks.expected())


def test_tasks_that_fail_at_any_point_count_once(db, name, clicks, written):
    table = db.create_table(name, WIDE, buckets=2)
    for _ in range(4):
        clicks.add(100)

    def fail(batches):
        import os

        from pyspark import TaskContext

        task = TaskContext.get()
        batch, attempt = int(task.getLocalProperty("streaming.sql.batchId")), task.attemptNumber()
        if attempt == 0 and batch == 0:
            raise RuntimeError("before the first row")
        for rows in batches:
            yield rows.slice(0, 1)
            if attempt == 0 and batch == 1:
                raise RuntimeError("in the middle")
            yield rows.slice(1)
        if attempt < 2 and batch == 2:
            os._exit(1)
        if attempt == 0 and batch == 3 and task.partitionId() == 1:
            raise RuntimeError("after the last row")

    assert outcome(written(clicks.stream(), step=lambda df: df.mapInArrow(fail, df.schema))) is None

    check(table, clicks.expected())


def test_a_task_whose_input_was_cut_off_is_not_taken_for_the_whole(spark, db, name, server, tmp_path):
    """Spark ends a sink's input as if it were complete when what comes before it fails; the rows so far are written."""
    table = db.create_table(name, WIDE, buckets=1)
    rows = 400_000
    marks = str(tmp_path)

    def fail(batches):
        import os

        from pyspark import TaskContext

        seen = 0
        for batch in batches:
            seen += batch.num_rows
            yield batch
            if seen > 300_000 and TaskContext.get().attemptNumber() == 0:
                open(os.path.join(marks, "failed"), "w").close()
                raise RuntimeError("late")

    frame = spark.range(rows, numPartitions=1).selectExpr("id % 10 as k", "id as v").coalesce(1)
    given = {"url": server.url, "table": name, "exactly-once": "undo", "owner": "job", "columns": "v"}
    writer = frame.mapInArrow(fail, frame.schema).write.format("kolk").options(**given, preaggregate="false")
    writer.option("txnVersion", "0").mode("append").save()

    assert (tmp_path / "failed").exists()
    check(table, {key: {"v": sum(range(key, rows, 10))} for key in range(10)})


def test_queries_on_other_columns_run_side_by_side_and_one_on_the_same_is_refused(db, name, clicks, written, tmp_path):
    table = db.create_table(name, WIDE, buckets=2)
    clicks.add(100)
    sums, tops = clicks.stream().select("k", "v"), clicks.stream().select("k", "top", "last")
    gate = tmp_path / "gate"

    first = written(sums, "first", held(gate), owner="sums", columns="v")
    until(lambda: any("v" in row for row in rows_of(table).values()))
    second = outcome(written(tops, "second", owner="tops", columns="top,last"))
    refused = outcome(written(sums, "third", owner="others", columns="v"))
    assert first.isActive
    open_gate(gate)

    assert second is None
    assert "'others' cannot write: 'sums' owns the columns v" in refused
    assert outcome(first) is None
    expected = clicks.expected()
    check(table, {key: {name: row[name] for name in ("v", "top", "last")} for key, row in expected.items()})


def test_rows_of_a_bucket_in_two_tasks_are_refused_with_the_way_out(db, name, clicks, written):
    table = db.create_table(name, WIDE, buckets=1)
    clicks.add(100)

    told = outcome(written(clicks.stream().repartition(2), co_located=False))

    assert "BucketSplit" in told
    assert "kolk.spark.by_bucket" in told
    assert outcome(written(clicks.stream())) is None
    check(table, clicks.expected())


def test_batches_and_partitions_without_rows_are_no_trouble(db, name, clicks, written):
    table = db.create_table(name, WIDE, buckets=5)
    clicks.add(1, keys=1)
    clicks.add(3, keys=1)

    assert outcome(written(clicks.stream().where("v <> 0"))) is None

    check(table, {0: {"v": 6, "n": 3, "top": 3, "last": "w3", "said": "w1,w2,w3"}})
    assert [lock.epoch for lock in db.locks() if lock.table == name] == [1]


def test_update_mode_and_the_sink_write_as_an_owner(spark, db, name, clicks, server, tmp_path):
    table = db.create_table(name, WIDE, buckets=3)
    for _ in range(2):
        clicks.add(50)
        totals = clicks.stream().groupBy("k").agg({"v": "sum", "top": "max"})
        totals = totals.selectExpr("k", "`sum(v)` as v", "`max(top)` as top")
        sink = kolk.spark.sink(
            totals, name, output_mode="update", url=server.url, exactly_once="undo", columns="v,top",
            owner="totals", merge_mode="overwrite",
        )  # fmt: skip
        query = sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert outcome(query) is None

    check(table, {key: {"v": row["v"], "top": row["top"]} for key, row in clicks.expected().items()})
    assert [(lock.owner, lock.epoch) for lock in db.locks() if lock.table == name] == [("totals", 1)]


def test_a_sink_that_wrote_elsewhere_meanwhile_does_not_go_on_as_if_nothing_were_missing(
    db, name, clicks, server, tmp_path
):
    table = db.create_table(name, WIDE, buckets=2)
    db.create_table(f"{name}_b", WIDE, buckets=2)
    told = []
    for target in (name, f"{name}_b", name):
        clicks.add(50)
        sink = kolk.spark.sink(clicks.stream(), target, url=server.url, exactly_once="undo", owner="job")
        query = sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        told.append(outcome(query))

    assert told[:2] == [None, None]
    assert "OwnerRolledBack" in told[2]
    assert "at batch 2, and 0 is the last" in told[2]
    assert sum(row["n"] for row in rows_of(table).values()) == 50


def test_a_query_is_one_owner_by_its_checkpoint_however_that_is_spelled(db, name, clicks, server, tmp_path):
    table = db.create_table(name, WIDE, buckets=2)
    whole = str(tmp_path / "c")
    for spelled in (os.path.relpath(whole), whole, f"file://{whole}/"):
        clicks.add(50)
        writer = kolk.spark.by_bucket(clicks.stream(), name, url=server.url).writeStream.format("kolk")
        writer = writer.option("url", server.url).option("table", name).option("exactly-once", "undo")
        assert outcome(writer.option("checkpointLocation", spelled).trigger(availableNow=True).start()) is None

    check(table, clicks.expected())
    assert [(lock.owner, lock.epoch) for lock in db.locks() if lock.table == name] == [(f"spark {whole}", 2)]


def test_a_large_write_that_comes_again_is_passed_over_and_one_of_other_columns_is_told(spark, db, name, server):
    table = db.create_table(name, WIDE, buckets=1)
    rows = 2_000_000
    frame = spark.range(rows, numPartitions=1).selectExpr("id % 10 as k", "id as v", "id as top")
    given = {"url": server.url, "table": name, "exactly-once": "undo", "owner": "job", "txnVersion": "0"}
    for _ in range(2):
        writer = frame.select("k", "v").write.format("kolk").options(**given, columns="v")
        writer.option("txn.on-different", "fail").mode("append").save()

    with pytest.raises(Exception, match="an owner of its own"):
        frame.select("k", "top").write.format("kolk").options(**given, columns="top").mode("append").save()

    check(table, {key: {"v": sum(range(key, rows, 10))} for key in range(10)})


DRIVER = """
import sys
import kolk.spark
from tests.spark.owned import Clicks, held
from pathlib import Path
url, table, folder = sys.argv[1:]
spark = kolk.spark.session("to-be-killed", cores=2)
clicks = Clicks.__new__(Clicks)
clicks._spark, clicks.folder = spark, Path(folder) / "clicks"
df = held(Path(folder) / "gate")(kolk.spark.by_bucket(clicks.stream(), table, url=url))
writer = df.writeStream.format("kolk").option("url", url).option("table", table).option("exactly-once", "undo")
writer.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_in_the_middle_of_a_batch_leaves_nothing_that_counts(
    db, name, clicks, written, server, tmp_path
):
    table = db.create_table(name, WIDE, buckets=2)
    clicks.add(100)
    assert outcome(written(clicks.stream())) is None
    before = clicks.expected()
    clicks.add(100)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, server.url, name, str(tmp_path)], start_new_session=True, cwd=os.getcwd()
    )
    try:
        until(lambda: rows_of(table) != before, lambda: driver.poll() is None)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert rows_of(table) != before
    clicks.add(50)

    assert outcome(written(clicks.stream())) is None
    check(table, clicks.expected())
