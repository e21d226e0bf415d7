"""Connections that are slow, silent, garbage or gone: a server serves beside them, and stops in spite of them."""

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.faults.attacker import Attacker, Ticks, end
from tests.faults.campaign import ROOT, write_figures
from tests.faults.servers import PATIENCE_SECONDS, Server
from tests.faults.targets import MIB, unharmed
from tests.faults.worker import SMALL_FILES

import kolk
from kolk.errors import Busy, TooManyScans
from kolk.wire import messages as m

SILENT, DRIPPING, IDLE, GARBAGE, UNREAD, KILLED = 50, 20, 20, 200, 20, 3
CURSORS, NONCES = 300, 500
LIMIT = SMALL_FILES.scans_per_bucket_max
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(193))
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGE_ROWS = 40_000
SCAN_SECONDS = 3.0
FAULT = "bad connections to a server"
LOADER = """
import sys, kolk
table = kolk.connect(sys.argv[1]).table("loaded")
rows = [{"id": number, "text": "x" * 1_000} for number in range(2_000)]
for result in table.put_stream(rows for _ in range(10**6)):
    print(end=".", flush=True)
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    config = replace(SMALL_FILES, scan_ttl_seconds=SCAN_SECONDS, scan_shared_ttl_seconds=SCAN_SECONDS)
    with Server(tmp_path_factory.mktemp("connections") / "data", config, http_port=0) as server:
        server.start()
        yield server


@pytest.fixture(scope="module")
def large(serving):
    """The id of a table that no socket's buffers hold."""
    columns = [kolk.Column("id", "int", nullable=False), kolk.Column("text", "string")]
    with kolk.connect(serving.url) as db:
        table = db.create_table("large", kolk.Schema(columns, ["id"]), buckets=2)
        table.put(pa.table({"id": pa.array(range(LARGE_ROWS), pa.int32()), "text": ["x" * 1_000] * LARGE_ROWS}))
        return table.info.id


def port_of(url: str | None) -> int:
    assert url is not None
    return int(url.rpartition(":")[2])


@contextmanager
def connections(port: int, count: int):
    with ExitStack() as opened:
        yield [
            opened.enter_context(closing(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)))
            for _ in range(count)
        ]


def drip(targets: list[socket.socket], data: bytes) -> None:
    """Send a byte at a time to each, until the other side has had enough of them all."""
    open_ones = set(targets)
    for place in range(len(data)):
        for target in list(open_ones):
            try:
                target.send(data[place : place + 1])
            except OSError:
                open_ones.discard(target)


def is_live(server: Server) -> bool:
    with urllib.request.urlopen(f"{server.http_url}/live", timeout=PATIENCE_SECONDS) as answer:
        return answer.status == 200


def test_connections_that_send_nothing_or_a_byte_at_a_time_hold_nobody_up(server):
    with unharmed(server), connections(port_of(server.url), SILENT), connections(port_of(server.url), DRIPPING) as slow:
        drip(slow, PREFACE + bytes(200))

    write_figures(FAULT, times=SILENT + DRIPPING, wrong=0)


def test_silent_and_slow_connections_to_the_health_port_hold_nobody_up(server):
    port = port_of(server.http_url)
    with unharmed(server), connections(port, SILENT), connections(port, DRIPPING) as slow:
        drip(slow, HTTP[:-1])

        assert is_live(server)

    write_figures(FAULT, times=SILENT + DRIPPING, wrong=0)


@pytest.mark.parametrize("which", ["url", "http_url"])
def test_garbage_connections_do_no_harm(server, which):
    rng = random.Random(1)
    kinds = (HTTP, CLIENT_HELLO, PREFACE, PREFACE + rng.randbytes(500), b"\0" * 1_000)
    with unharmed(server):
        for place in range(GARBAGE):
            with connections(port_of(getattr(server, which)), 1) as (one,):
                data = kinds[place % 6] if place % 6 < 5 else rng.randbytes(rng.randrange(2_000))
                one.sendall(data)
                if place % 2:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closes with a reset

        assert is_live(server)

    write_figures(FAULT, times=GARBAGE, wrong=0)


def test_exchanges_on_which_nothing_is_sent_hold_nobody_up(server):
    with unharmed(server) as attacker:
        idle = [attacker.idle_exchange() for _ in range(IDLE)]
        with kolk.connect(server.url) as db:
            assert Ticks(PATIENCE_SECONDS).until(lambda: db.status()["streams"] >= IDLE)
        for exchange in idle:
            end(*exchange)

    write_figures(FAULT, times=IDLE, wrong=0)


def test_scans_that_nobody_reads_take_a_bounded_amount_of_memory(server, large):
    with unharmed(server) as attacker, ExitStack() as opened:
        # Each on a connection of its own, with a window of its own.
        attackers = [opened.enter_context(Attacker(server.url)) for _ in range(UNREAD)]
        scan = m.encode(m.ReadScan(scan=attacker.open_scan(shared_scan(large)).scan))
        readers = [each.open_stream(scan) for each in attackers]
        with kolk.connect(server.url) as db:
            assert Ticks(PATIENCE_SECONDS).until(lambda: db.status()["streams"] >= UNREAD)
        assert attacker.stream(scan) is None
        with kolk.connect(server.url) as db:
            assert Ticks(PATIENCE_SECONDS).until(lambda: db.status()["scans"]["open"] == 0), "it is not given up"
        for reader in readers:
            reader.cancel()

    write_figures(FAULT, times=UNREAD, wrong=0)


def shared_scan(table: int) -> m.OpenScan:
    return m.OpenScan(table=table, page_bytes=1, shared=True)


def test_scans_that_nobody_closes_are_refused_beyond_their_limit_and_come_back(server, large):
    asked = m.join(m.OpenScan(table=large, page_bytes=1)).to_pybytes()
    with unharmed(server) as attacker:
        answers = [attacker.call(asked) for _ in range(UNREAD)]
        assert Counter(type(answer) for answer in answers) == {type(None): LIMIT, TooManyScans: UNREAD - LIMIT}

        assert Ticks(PATIENCE_SECONDS).until(lambda: attacker.call(asked) is None)

    write_figures(FAULT, times=UNREAD, wrong=0)


def test_readers_of_one_scan_beyond_number_take_a_bounded_amount_of_memory(server, large):
    """Each names a cursor of its own and all the buckets, many times over."""
    with unharmed(server, growth_bytes_max=64 * MIB) as attacker:
        scan = attacker.open_scan(shared_scan(large)).scan
        for number in range(CURSORS):
            page = m.NextPage(scan=scan, cursor=str(number), seq=0, page_bytes=1, buckets=["0", "1"] * 5_000)
            assert attacker.call(m.join(page).to_pybytes()) is None

    write_figures(FAULT, times=CURSORS, wrong=0)


def test_nonces_beyond_number_take_a_bounded_amount_of_memory(server, large):
    with unharmed(server, growth_bytes_max=64 * MIB) as attacker:
        for number in range(NONCES):
            asked = m.OpenScan(
                table=large, page_bytes=1, limit=0, nonce=str(number), buckets=["0", "1"] * 5_000, names=["id", "text"]
            )
            assert attacker.call(m.join(asked).to_pybytes()) is None

    write_figures(FAULT, times=NONCES, wrong=0)


def test_a_client_that_is_killed_in_the_middle_of_its_puts_leaves_nothing_behind(server):
    columns = [kolk.Column("id", "int", nullable=False), kolk.Column("text", "string")]
    with kolk.connect(server.url) as db:
        db.create_table("loaded", kolk.Schema(columns, ["id"]))
    with unharmed(server):
        for _ in range(KILLED):
            command = [sys.executable, "-c", LOADER, server.url]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as client:
                assert client.stdout is not None
                assert client.stdout.read(3) == b"..."
                client.kill()
            assert client.returncode == -signal.SIGKILL

    write_figures(FAULT, times=KILLED, wrong=0)


def test_streams_beyond_the_limit_are_busy_and_come_back(tmp_path):
    with Server(tmp_path / "data", SMALL_FILES, http_port=0, streams_max=8) as server:
        with Attacker(server.start()) as attacker:
            idle = [attacker.idle_exchange() for _ in range(8)]
            assert Ticks(PATIENCE_SECONDS).until(lambda: streams_of(server) == 8)
            assert isinstance(attacker.act(m.encode(m.Status())), Busy)

            for exchange in idle:
                end(*exchange)

            assert Ticks(PATIENCE_SECONDS).until(lambda: streams_of(server) == 0)
            assert attacker.act(m.encode(m.Status())) is None
        assert server.failures() == []


def streams_of(server: Server) -> int:
    """How many streams there are, asked where asking takes none."""
    with urllib.request.urlopen(f"{server.http_url}/status", timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)["streams"]


def test_a_server_stops_when_it_is_told_to_whatever_its_clients_do(tmp_path):
    columns = [kolk.Column("id", "int", nullable=False), kolk.Column("text", "string")]
    with Server(tmp_path / "data", SMALL_FILES, http_port=0, drain_seconds=1.0) as server, ExitStack() as opened:
        attacker = opened.enter_context(Attacker(server.start()))
        with kolk.connect(server.url) as db:
            table = db.create_table("large", kolk.Schema(columns, ["id"]))
            table.put(pa.table({"id": pa.array(range(LARGE_ROWS), pa.int32()), "text": ["x" * 1_000] * LARGE_ROWS}))
        opened.enter_context(connections(port_of(server.url), SILENT))
        opened.enter_context(connections(port_of(server.http_url), DRIPPING))
        idle = [attacker.idle_exchange() for _ in range(IDLE)]
        scan = attacker.open_scan(shared_scan(table.info.id)).scan
        unread = attacker.open_stream(m.encode(m.ReadScan(scan=scan)))
        following = attacker.open_stream(m.encode(m.Follow(table=table.info.id, starts={"0": 0}, stops={})))
        with kolk.connect(server.url) as db:
            assert Ticks(PATIENCE_SECONDS).until(lambda: db.status()["streams"] >= IDLE)

        assert server.stop() == 0

        for stream in (unread, following):
            stream.cancel()
        for exchange in idle:
            end(*exchange)
        assert server.failures() == []
        with kolk.connect(tmp_path / "data", config=SMALL_FILES) as db:
            assert db.table("large").scan().to_arrow().num_rows == LARGE_ROWS


def test_puts_of_many_clients_at_once_are_served_or_busy_and_never_fail(server):
    """More bytes at once than the server takes on: whoever does not fit waits, and is served in the end."""
    columns = [kolk.Column("id", "int", nullable=False), kolk.Column("text", "string")]
    rows = pa.table({"id": pa.array(range(10_000), pa.int32()), "text": ["x" * 1_000] * 10_000})
    failures: list[BaseException] = []

    def load(number: int) -> None:
        try:
            with kolk.connect(server.url) as db:
                table = db.create_table(f"at_once.t{number}", kolk.Schema(columns, ["id"]), if_not_exists=True)
                for _ in range(3):
                    table.put(rows)
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    with unharmed(server, growth_bytes_max=1_024 * MIB):
        threads = [threading.Thread(target=load, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in threads)

    assert failures == []
    with kolk.connect(server.url) as db:
        for number in range(12):
            assert db.table(f"at_once.t{number}").scan(columns=["id"]).to_arrow().num_rows == 10_000
