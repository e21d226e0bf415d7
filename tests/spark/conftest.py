"""One Spark session and one server for all tests of a worker; a table of its own for each test.

The session tries tasks again, as a cluster does. What Spark's own processes are to import must be importable there:
functions that are shipped to them are defined within the test, not beside it.
"""

import itertools
import json
import pickle
import socket

import pyarrow as pa
import pytest
from tests.spark.pages import PAGES

import kolk
import kolk.spark
from kolk.spark.data_source import KolkSource

_numbers = itertools.count()


def pytest_collection_modifyitems(items):
    """What Spark and its libraries leave behind, and say, is none of ours."""
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
            )


@pytest.fixture(scope="session")
def remote():
    """Where the session also serves Spark Connect, to other processes: one has either kind of Spark."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"sc://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory, remote):
    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": "1g",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": remote.rpartition(":")[2],
        "spark.sql.session.timeZone": "Asia/Kolkata",  # so that nothing leans on UTC
    }
    session = kolk.spark.session("kolk-tests", cores=2, conf=conf)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with kolk.start(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def db(server):
    with kolk.connect(server.url) as database:
        yield database


@pytest.fixture
def name():
    """A table that nobody else has."""
    return f"t.t{next(_numbers)}"


@pytest.fixture
def source(spark, server):
    """A reader of this server: ``source.option("table", name).load()``."""

    def make(**options):
        return spark.read.format("kolk").option("url", server.url).options(**options)

    return make


# --- streaming queries without Spark


class Query:
    """One query: the calls that Spark makes, in its order, so that every step can be looked at and repeated. The end of
    a batch is written down before it is read, a restart begins with a new reader and reads the last batch again unless
    it was committed, and a reader for tasks is one that was pickled.

    ``ends`` are the offsets in its checkpoint, as text; ``rows`` what the sink has, by batch."""

    def __init__(self, url, table, **options):
        self.options = {"url": url, "table": table, **options}
        self.ends = []
        self.committed = 0
        self.rows = {}
        self.reader = None
        self.start()

    def start(self, schema=None):
        """Begin, or begin again after a crash: nothing is known but the checkpoint."""
        source = KolkSource(self.options)
        self.schema = schema or source.schema()
        self.reader = source.streamReader(self.schema)
        self.for_tasks = pickle.loads(pickle.dumps(KolkSource(self.options).streamReader(self.schema)))
        if len(self.ends) > self.committed:
            self.run(len(self.ends) - 1)

    def stop(self):
        self.reader.stop()

    def trigger(self, limit=None):
        """One turn; whether there was a batch."""
        start = self.at(len(self.ends) - 1)
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit or self.reader.getDefaultReadLimit()))
        if end == start:
            return False
        self.ends.append(end)
        if len(self.ends) > 1:
            self.reader.commit(json.loads(self.ends[-2]))
        self.run(len(self.ends) - 1)
        return True

    def at(self, batch):
        return self.ends[batch] if batch >= 0 else json.dumps(self.reader.initialOffset())

    def parts(self, batch):
        return self.reader.partitions(json.loads(self.at(batch - 1)), json.loads(self.ends[batch]))

    def run(self, batch):
        self.rows[batch] = self.read(batch)
        self.committed = batch + 1

    def read(self, batch):
        found = [each for part in self.parts(batch) for each in self.for_tasks.read(pickle.loads(pickle.dumps(part)))]
        return pa.Table.from_batches(found).to_pylist() if found else []

    def drain(self, limit=None, most=1_000):
        """Turns until there is nothing to read; how many batches there were."""
        for turns in range(most):
            if not self.trigger(limit):
                return turns
        raise AssertionError("it does not end")

    def everything(self):
        return [row for batch in sorted(self.rows) for row in self.rows[batch]]

    def table(self, key="id"):
        """The table that its changes make, each of which must follow from those before."""
        return _replayed(self.everything(), key)


@pytest.fixture
def query(server, name):
    """A query of this test's table; stopped at its end."""
    made = []

    def make(**options):
        made.append(Query(**{"url": server.url, "table": name, **options}))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def _replayed(rows, key):
    found = {}
    for row in rows:
        kind = row["_change_type"]
        values = {name: value for name, value in row.items() if not name.startswith("_")}
        if kind == "insert":
            assert row[key] not in found, f"{row} is inserted twice"
        elif kind in ("update_preimage", "delete"):
            assert found.get(row[key]) == values, f"{row} does not follow from {found.get(row[key])}"
        else:
            assert row[key] in found
        if kind == "delete":
            del found[row[key]]
        elif kind != "update_preimage":
            found[row[key]] = values
    return found


@pytest.fixture
def pages(db, name):
    """A small table by key, empty, in three buckets."""
    return db.create_table(name, PAGES, buckets=3)
