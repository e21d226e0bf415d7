"""Streaming reads in Spark itself: triggers, checkpoints, progress, and a copy of a table that outlives every kill."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

import kolk
from kolk import Column, Schema

PAGES = Schema([Column("id", "bigint", nullable=False), Column("v", "string")], primary_key=["id"])


@pytest.fixture
def pages(db, name):
    return db.create_table(name, PAGES, buckets=3)


@pytest.fixture
def stream(spark, server, name):
    """A streaming frame of this test's table."""

    def make(**options):
        return spark.readStream.format("kolk").option("url", server.url).option("table", name).options(**options).load()

    return make


def put(table, ids, text="x"):
    return table.put([{"id": each, "v": f"{text}{each}"} for each in ids])


def as_is(table):
    return {row["id"]: row for row in table.scan().to_arrow().to_pylist()}


def wait_until(is_so, seconds=60.0):
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, "it does not come"
        threading.Event().wait(0.05)


@contextmanager
def running(writer):
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


def test_a_copy_of_a_table_follows_it_through_the_sink_of_kolk(pages, stream, server, db, name, tmp_path):
    put(pages, range(1_000))
    copy = db.create_table(f"{name}copy", PAGES, buckets=2)

    def once():
        frame = stream(changes="upserts", maxRowsPerTrigger="300")
        sink = frame.writeStream.format("kolk").option("url", server.url).option("table", copy.name)
        sink = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        with running(sink) as query:
            query.awaitTermination(120)
            assert query.exception() is None
            return query.id, [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    first, sizes = once()
    assert sizes == [300, 300, 300, 100]
    assert as_is(copy) == as_is(pages)
    pages.delete([{"id": 5}, {"id": 6}])
    put(pages, range(10, 20), "y")
    again, sizes = once()

    assert (again, sum(sizes)) == (first, 12)
    assert as_is(copy) == as_is(pages)
    assert not [lease for lease in db.leases() if name in lease.tables]
    assert len([each for each in db.followers() if each.table == name]) == 1


def test_a_query_that_waits_makes_no_empty_batches_and_keeps_no_lease(spark, pages, stream, db, name, tmp_path):
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "500")
    put(pages, range(10))
    writer = stream(changes="cdc").writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with running(writer.trigger(processingTime="100 milliseconds")) as query:
        wait_until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 0)
        put(pages, [20])
        wait_until(lambda: query.lastProgress["batchId"] == 2)  # which waits for something to read
        (source,) = query.lastProgress["sources"]

        assert len(list((tmp_path / "offsets").glob("[0-9]*"))) == 2
        assert '"behind": 0' in source["latestOffset"]
        assert not [lease for lease in db.leases() if name in lease.tables]


def test_errors_of_a_stream_say_what_to_do(pages, stream, db, name, tmp_path):
    put(pages, range(10))
    pages.delete([{"id": 1}])
    writer = stream(start="earliest").writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with (
        running(writer.trigger(availableNow=True)) as query,
        pytest.raises(StreamingQueryException, match="'changes', 'upserts'"),
    ):
        query.awaitTermination(120)


DRIVER = """
import sys, threading
import kolk.spark
url, table, folder, stop_at, rows = sys.argv[1:]

def sink(frame, batch):
    frame.persist()
    frame.write.mode("overwrite").parquet(f"{folder}/out/{batch:06}")
    copy = frame.write.format("kolk").option("url", url).option("table", table + "copy")
    copy.option("txnAppId", table).option("txnVersion", batch).mode("append").save()
    frame.unpersist()
    if batch == int(stop_at):
        open(f"{folder}/reached-{batch}", "w").close()
        threading.Event().wait()

spark = kolk.spark.session("copy", cores=2, conf={"spark.driver.memory": "512m"})
frame = (
    spark.readStream.format("kolk").option("url", url).option("table", table).option("changes", "cdc")
    .option("maxRowsPerTrigger", rows).load()
)
query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", folder + "/checkpoint")
query = query.trigger(availableNow=True).start() if int(stop_at) < 0 else query.start()
query.awaitTermination()
"""


class Copy:
    """A driver in a process of its own, which writes each batch to a folder of its own, and to another table."""

    def __init__(self, folder, url, table):
        self.folder, self.url, self.table = folder, url, table

    def run(self, rows, stop_at=-1):
        """Run until all is read, or until a batch is written and not committed: then it is killed, and Java with it."""
        command = [sys.executable, "-c", DRIVER, self.url, self.table, str(self.folder), str(stop_at), str(rows)]
        with Path(self.folder, "log").open("ab") as log:
            driver = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
        reached = Path(self.folder, f"reached-{stop_at}")
        try:
            wait_until(lambda: reached.exists() or driver.poll() is not None, 300)
            assert driver.poll() is None if stop_at >= 0 else driver.returncode == 0, self.log
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(30)

    @property
    def log(self):
        return Path(self.folder, "log").read_text(errors="replace")[-4_000:]

    @property
    def batches(self):
        return sorted(Path(self.folder, "out").glob("[0-9]*"))

    def changes(self):
        return [row for batch in self.batches for row in pq.read_table(batch).to_pylist()]


def replayed(changes):
    """The table that these changes make, each of which must follow from those before."""
    found, at = {}, {}
    for row in changes:
        kind, id, values = row["_change_type"], row["id"], {"id": row["id"], "v": row["v"]}
        if kind == "insert":
            assert id not in found, f"{row} comes twice"
        else:
            assert id in found, f"something is missing before {row}"
        if kind in ("update_preimage", "delete"):
            assert found[id] == values, f"{row} does not follow from {found[id]}"
        if kind == "delete":
            del found[id]
        elif kind != "update_preimage":
            found[id] = values
        version = at.setdefault(row["_bucket"], -1)
        assert row["_commit_version"] >= version
        at[row["_bucket"]] = row["_commit_version"]
    return found


class Writer:
    """Somebody who writes to a table all the time, until told to stop."""

    def __init__(self, url, name):
        self._url, self._name = url, name
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def stop(self):
        self._stopped.set()
        self._thread.join()

    def _write(self):
        with kolk.connect(self._url) as db:
            table, turn = db.table(self._name), 0
            while not self._stopped.wait(0.2):
                turn += 1
                put(table, range(turn % 50, 1_200, 41), f"t{turn}-")
                table.delete([{"id": (turn * 13) % 900}])


@pytest.mark.timeout(1_000)
def test_a_full_read_that_is_killed_twice_misses_nothing_and_repeats_nothing(server, pages, db, name, tmp_path):
    """Once while it reads the snapshots, once while it reads the log, after the batch was written and before Spark
    knew; somebody writes all the time."""
    copied = db.create_table(f"{name}copy", PAGES, buckets=2)
    put(pages, range(900))
    copy = Copy(tmp_path, server.url, name)
    writer = Writer(server.url, name)
    try:
        copy.run(rows=300, stop_at=1)
        assert len([lease for lease in db.leases() if name in lease.tables]) == 1
        copy.run(rows=300, stop_at=4)
    finally:
        writer.stop()
    copy.run(rows=1_000_000)

    changes = copy.changes()
    assert replayed(changes) == as_is(copied) == as_is(pages)
    assert [pq.read_table(batch).num_rows for batch in copy.batches[:3]] == [300] * 3
    assert {row["_change_type"] for row in changes} == {"insert", "update_preimage", "update_postimage", "delete"}
    assert not [lease for lease in db.leases() if name in lease.tables]
    assert len([each for each in db.followers() if each.table == name]) == 1
