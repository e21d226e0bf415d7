"""What the tests of writes as an owner share: clicks as a stream of files, faults, gates, and what must come out; and a
job whose runs, tasks and commits are called by hand, without Spark."""

import json
import os
import pickle
import threading
import time

import pyarrow as pa
from pyspark.sql import types as st

import kolk
from kolk.spark.frames import checked
from kolk.spark.identity import Place
from kolk.spark.options import Options
from kolk.spark.owning import OwnedStreamWriter, abandon, commit, written

WIDE = kolk.Schema(
    [
        kolk.Column("k", "bigint"),
        kolk.Column("v", "bigint", agg="sum"),
        kolk.Column("n", "bigint", agg="count"),
        kolk.Column("top", "bigint", agg="max"),
        kolk.Column("last", "string", agg="last_value"),
        kolk.Column("said", "string", agg="listagg"),
    ],
    primary_key=["k"],
)
SECONDS = 240


class Clicks:
    """A folder of files as a stream, one file and so one order for each batch; and what they come to."""

    def __init__(self, spark, folder):
        self._spark = spark
        self.folder = folder
        self._rows = []
        self._count = 0
        folder.mkdir()

    def add(self, rows, keys=7):
        """One more file of so many rows."""
        first = len(self._rows)
        made = [{"k": place % keys, "v": place, "word": f"w{place}"} for place in range(first, first + rows)]
        self._rows += made
        path = self.folder.parent / f"{self._count:03}.part"
        path.write_text("\n".join(map(json.dumps, made)) + "\n")
        os.utime(path, (1_000_000 + self._count, 1_000_000 + self._count))  # Spark takes files by their times
        path.rename(self.folder / f"{self._count:03}.json")
        self._count += 1

    def stream(self):
        reader = self._spark.readStream.schema("k bigint, v bigint, word string").option("maxFilesPerTrigger", 1)
        frame = reader.json(str(self.folder))
        return frame.selectExpr("k", "v", "v as n", "v as top", "word as last", "word as said")

    def expected(self):
        """The table after each file was written once."""
        found = {}
        for row in self._rows:
            one = found.setdefault(row["k"], {"v": 0, "n": 0, "top": 0, "last": "", "said": []})
            one["v"] += row["v"]
            one["n"] += 1
            one["top"] = max(one["top"], row["v"])
            one["last"] = row["word"]
            one["said"].append(row["word"])
        return {key: {**one, "said": ",".join(one["said"])} for key, one in found.items()}


def rows_of(table):
    """All rows, by key, without what is null."""
    found = {row.pop("k"): row for row in table.scan().to_arrow().to_pylist()}
    return {key: {name: value for name, value in row.items() if value is not None} for key, row in found.items()}


def replayed(table):
    """The same, by the changelog, each of whose changes must follow from those before it."""
    found = {}
    for batch in table.changelog():
        for row in batch.to_pylist():
            values = {name: value for name, value in row.items() if not name.startswith("_") and value is not None}
            key = values.pop("k")
            match row["_change_type"]:
                case "+I":
                    assert key not in found
                    found[key] = values
                case "-U" | "-D":
                    assert found.pop(key) == values
                case "+U":
                    assert key not in found
                    found[key] = values
    return found


def check(table, expected):
    """The rows are these, and so are those that the changelog makes."""
    for found in (rows_of(table), replayed(table)):
        odd = {key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)}
        assert not odd, [(key, found.get(key), expected.get(key)) for key in sorted(odd)[:2]]


def until(condition, is_alive=lambda: True):
    """Wait for what another process does, as long as there is one."""
    ends = time.monotonic() + SECONDS
    while not condition():
        assert is_alive(), "whoever is waited for has ended"
        assert time.monotonic() < ends, "it does not come"
        threading.Event().wait(0.05)


def held(gate):
    """A step of a query that lets its second task wait for a file, which says ``go`` or ``fail``."""
    path = str(gate)

    def wait(batches):
        import os
        import pathlib
        import threading

        from pyspark import TaskContext

        if TaskContext.get().partitionId() == 1:
            while not os.path.exists(path):
                threading.Event().wait(0.05)
            if pathlib.Path(path).read_text() == "fail":
                raise RuntimeError("told to fail")
        yield from batches

    return lambda frame: frame.mapInArrow(wait, frame.schema)


def open_gate(gate, word="go"):
    part = gate.with_suffix(".part")
    part.write_text(word)
    os.replace(part, gate)


# --- by hand

SUMS = kolk.Schema(
    [
        kolk.Column("k", "bigint"),
        kolk.Column("v", "bigint", agg="sum"),
        kolk.Column("n", "bigint", agg="count_rows"),
        kolk.Column("top", "bigint", agg="max"),
    ],
    primary_key=["k"],
)
FRAME = st.StructType([st.StructField("k", st.LongType()), st.StructField("v", st.LongType())])
BATCH = pa.record_batch({"k": [1, 2, 2], "v": [1, 2, 3]})
SUMMED = {1: 1, 2: 5}


class Job:
    """A query on a table, whose batches are run by hand."""

    def __init__(self, server, db, name, frame=FRAME, **options):
        self.table = db.table(name)
        given = {"url": server.url, "table": name, "owner": "job", "columns": "v,n", "exactly-once": "undo", **options}
        self.options = Options.parse({key: value for key, value in given.items() if value is not None})
        self.frame = checked(self.options, frame, self.table.info)

    def run(self):
        """Spark plans a batch: the tasks get what it makes, as bytes."""
        writer = OwnedStreamWriter(self.options, self.frame, overwrite=False)
        return pickle.loads(pickle.dumps(writer))._run

    def task(self, run, batch=0, partition=0, *batches, query="q"):
        return written(self.options, self.frame, run, Place(partition, query, batch), batches)

    def commit(self, *messages):
        commit(self.options, messages)

    def abort(self, *messages):
        abandon(self.options, messages)

    def rows(self):
        return {row["k"]: row["v"] for row in self.table.scan().to_arrow().to_pylist() if row["v"] is not None}
