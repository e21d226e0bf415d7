"""One Spark session and one server for all tests of a worker; a table of its own for each test.

The session tries tasks again, as a cluster does. What Spark's own processes are to import must be importable there:
functions that are shipped to them are defined within the test, not beside it.
"""

import itertools

import pytest

import kolk
import kolk.spark

_numbers = itertools.count()


def pytest_collection_modifyitems(items):
    """All of Spark in one worker: a second JVM would cost more than it saves."""
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
            )


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": "1g",
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
