"""A query outlives a server that is away for longer than a call may take."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import types as st

import kolk
from kolk.config import EngineConfig, ServerConfig
from kolk.runtime.clock import SystemClock
from kolk.server.run import Server
from kolk.spark.options import Options
from kolk.spark.writing import stream_writer

TIMEOUT_SECONDS = 2.0
SHAPE = st.StructType([st.StructField("k", st.LongType())])


@pytest.fixture
def folder(tmp_path):
    with kolk.connect(tmp_path / "data") as db:
        db.create_table("t", kolk.Schema([kolk.Column("k", "bigint")], "k"))
    return tmp_path / "data"


def away(port, is_over):
    """Drop whoever calls, until one has come for longer than a single call would."""
    clock, first = SystemClock(), None
    with socket.create_server(("127.0.0.1", port), reuse_port=True) as listening:
        listening.settimeout(0.1)
        while not is_over.is_set():
            try:
                listening.accept()[0].close()
            except TimeoutError:
                continue
            first = first or clock.monotonic()
            if clock.monotonic() - first > 1.5 * TIMEOUT_SECONDS:
                return


def test_a_writer_that_is_made_to_commit_waits_for_the_server_as_long_as_the_commit(folder):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = Options.parse({"url": f"kolk://127.0.0.1:{port}", "table": "t", "timeout": str(TIMEOUT_SECONDS)})
    is_over = threading.Event()

    with ThreadPoolExecutor(2) as pool:
        gone = pool.submit(away, port, is_over)
        made = pool.submit(stream_writer, options, SHAPE, overwrite=False)
        made.add_done_callback(lambda _: is_over.set())
        gone.result()
        with Server.open(folder, ServerConfig(port=port, http_port=-1, drain_seconds=1), EngineConfig()):
            assert made.result()
