"""A server's life as its clients see it: restarts, drains, deadlines, forks, children."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pyarrow as pa
import pytest

import kolk
from kolk.errors import (
    FolderInUse,
    InvalidArgument,
    TableExists,
    TimedOut,
    Unavailable,
    Unreachable,
    UsedAfterFork,
)
from kolk.testing.clock import ManualClock
from kolk.wire import messages as m
from kolk.wire.rows import encode_rows, encode_schema


@pytest.fixture
def port():
    """A port that was free a moment ago, so that a server can come back to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rows(*ids):
    return [{"id": number, "v": str(number)} for number in ids]


def test_a_put_waits_through_a_restart_and_is_applied_once(serve, connect, schema, port):
    server = serve(port=port)
    table = connect(server).create_table("t", schema, buckets=2)
    table.put(rows(0))
    server.close()
    done = []
    writer = threading.Thread(target=lambda: done.append(table.put(rows(1, 2, 3))))
    writer.start()

    serve(port=port)
    writer.join()

    assert done[0].tag.seq == 1
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [0, 1, 2, 3]
    assert sum(batch.num_rows for batch in table.changelog()) == 4


def test_after_a_restart_all_idle_streams_are_known_to_be_dead_at_once(serve, connect, schema, port):
    server = serve(port=port)
    db = connect(server)
    table = db.create_table("t", schema)
    spares = db._link.service._spares
    exchanges = [db._link.service._new_exchange() for _ in range(10)]
    for exchange in exchanges:
        exchange.call(_get_message(table), db._link.service._retry.deadline())
        spares.keep(exchange)
    server.close()
    serve(port=port)
    pauses = []
    db._link.service._retry._pause = pauses.append

    assert table.get_one(id=1) is None
    assert len(pauses) <= 2


def _get_message(table):
    keys = pa.record_batch({"id": [1]}, schema=pa.schema([table.schema.column("id").arrow]))
    return m.join(m.Get(table=table.info.id, schema=encode_schema(keys.schema)), encode_rows(keys))


def test_idle_streams_are_given_back_after_a_while(serve, connect, schema):
    server = serve()
    db = connect(server)
    table = db.create_table("t", schema)
    table.get_one(id=1)
    connection, clock = db._link.service, ManualClock()
    assert server._streams.open == 1

    connection._spares._clock = clock
    table.get_one(id=1)
    clock.advance(seconds=9)
    connection._spares.drop_idle()
    assert len(connection._spares._idle) == 1
    clock.advance(seconds=2)
    connection._spares.drop_idle()

    assert connection._spares._idle == []
    while server._streams.open:
        pass


def test_a_follower_goes_on_where_it_was_after_a_restart(serve, connect, schema, port):
    server = serve(port=port)
    table = connect(server).create_table("t", schema)
    table.put(rows(0))
    changes = iter(table.changelog(follow=True))
    seen = next(changes).column("id").to_pylist()
    server.close()

    serve(port=port)
    table.put(rows(1, 2))
    seen += next(changes).column("id").to_pylist()

    assert seen == [0, 1, 2]


def test_a_stream_of_puts_survives_a_restart_in_the_middle(serve, connect, schema, port):
    servers = [serve(port=port)]
    table = connect(servers[0]).create_table("t", schema)

    def batches():
        for number in range(12):
            if number == 6:
                servers[0].close()
                servers.append(serve(port=port))
            yield rows(number)

    results = list(table.put_stream(batches()))

    assert [result.offsets["0"] for result in results] == list(range(1, 13))
    assert table.scan().offsets == {"0": 12}


def test_a_put_that_nobody_answers_carries_its_tag_and_can_be_completed(serve, connect, schema, port, hurry):
    server = serve(port=port)
    db = connect(server)
    table = db.create_table("t", schema)
    server.close()
    hurry(db, 0.5)

    with pytest.raises(Unreachable, match="kolk serve") as caught:
        table.put(rows(1))

    hurry(db, 30)
    serve(port=port)
    assert table.put(rows(1), tag=caught.value.tag).offsets == {"0": 1}


def test_a_server_that_does_not_answer_runs_into_the_deadline(schema, tmp_path, hurry):
    with kolk.start(tmp_path / "data") as server:
        db = kolk.connect(server.url)
        table = db.create_table("t", schema)
        table.put(rows(1))
        hurry(db, 1)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for call in (
                lambda: table.put(rows(2)),
                lambda: list(table.put_stream([rows(2)])),
                lambda: table.get_one(id=1),
                lambda: db.tables(),
                lambda: table.scan(),
                lambda: list(table.changelog()),
            ):
                started = time.monotonic()
                with pytest.raises((TimedOut, Unreachable)):
                    call()
                assert time.monotonic() - started < 10
            changes = table._link.service.open_changes(table.info.id, {"0": 0}, {})
            with pytest.raises((TimedOut, Unreachable)):
                changes.next(1)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        db.close()


def test_close_ends_the_calls_that_wait(schema, tmp_path):
    with kolk.start(tmp_path / "data") as server:
        db = kolk.connect(server.url, timeout=60)
        table = db.create_table("t", schema)
        caught, begun = [], threading.Event()

        def put():
            begun.set()
            try:
                table.put(rows(1))
            except Unreachable as error:  # and not Closed: the server may have it
                caught.append(error)

        os.kill(server.pid, signal.SIGSTOP)
        try:
            writer = threading.Thread(target=put)
            writer.start()
            begun.wait()
            while not db._link.service._deadlines._calls:
                pass
            db.close()
            writer.join(30)
            assert not writer.is_alive()
        finally:
            os.kill(server.pid, signal.SIGCONT)

    assert [error.tag is not None for error in caught] == [True]


def test_a_drain_lets_a_running_scan_end(serve, connect, schema):
    server = serve(drain_seconds=30)
    table = connect(server).create_table("t", schema)
    for start in range(0, 200_000, 50_000):
        table.put(rows(*range(start, start + 50_000)))
    scan = iter(table.scan())
    seen = next(scan).num_rows + next(scan).num_rows  # the first came with the open, the second by the stream
    closing = threading.Thread(target=server.close)
    closing.start()

    seen += sum(batch.num_rows for batch in scan)
    closing.join()

    assert seen == 200_000


def test_sigterm_ends_a_server_cleanly_and_quickly(schema, tmp_path):
    server = kolk.start(tmp_path / "data")
    db = kolk.connect(server.url)
    table = db.create_table("t", schema)
    table.put(rows(1))
    server.close()  # while the client keeps its idle exchange
    assert server._process.returncode == 0
    server.close()

    db.close()
    with kolk.connect(tmp_path / "data") as embedded:
        assert embedded.table("t").get_one(id=1) == {"id": 1, "v": "1"}


def test_a_server_ends_when_the_process_that_started_it_is_killed(tmp_path):
    program = "import kolk, os, sys; print(kolk.start(sys.argv[1]).pid, flush=True); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    pid = int(done.stdout)

    # It lets the folder go when it ends; a zombie that nobody here collects has done so too.
    with open(tmp_path / "data" / "LOCK") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert pid > 0


def test_kill_loses_nothing_that_was_acknowledged(schema, tmp_path):
    server = kolk.start(tmp_path / "data")
    with kolk.connect(server.url) as db:
        db.create_table("t", schema).put(rows(1))
    server.kill()

    with kolk.start(tmp_path / "data") as again, kolk.connect(again.url) as db:
        assert db.table("t").get_one(id=1) == {"id": 1, "v": "1"}


def test_a_folder_that_is_served_says_by_whom_and_where(tmp_path):
    with kolk.start(tmp_path / "data") as server:
        with pytest.raises(FolderInUse, match=f"process {server.pid}.*connect to {server.url}"):
            kolk.connect(tmp_path / "data")
        with pytest.raises(FolderInUse, match="connect to kolk://"):
            kolk.start(tmp_path / "data")


def test_what_keeps_a_server_from_starting_is_told(tmp_path, port):
    with pytest.raises(InvalidArgument, match="needs TLS"):
        kolk.start(tmp_path / "data", server=kolk.ServerConfig(host="0.0.0.0", port=0))
    with pytest.raises(InvalidArgument, match="path of a folder"):
        kolk.start("kolk://127.0.0.1:1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(Unavailable, match="cannot listen"):
            kolk.start(tmp_path / "data", server=kolk.ServerConfig(port=port, http_port=-1))


def test_the_port_of_the_clients_is_told_of_first_if_both_are_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as clients, socket.create_server(("127.0.0.1", 0)) as health:
        port, http_port = clients.getsockname()[1], health.getsockname()[1]

        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port} "):
            kolk.start(tmp_path / "data", server=kolk.ServerConfig(port=port, http_port=http_port))
        with pytest.raises(Unavailable, match=f"port {http_port} for health .*: 0 takes a free one, and -1 none"):
            kolk.start(tmp_path / "data", server=kolk.ServerConfig(port=0, http_port=http_port))


def test_health_tells_ready_and_why_not(serve):
    share = [0.5]
    server = serve(http_port=0, disk_used=lambda: share[0])

    def ask(path):
        try:
            with urllib.request.urlopen(f"{server.http_url}/{path}") as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    assert ask("live")[0] == 200
    assert ask("ready")[0] == 200
    share[0], server._disk._seen = 0.99, (float("-inf"), 0.0)
    status, body = ask("ready")
    assert status == 503
    assert "99% full" in body["reasons"][0]
    assert ask("live")[0] == 200
    assert ask("status")[1]["durability"] == "process"


def test_a_connection_made_before_a_fork_is_refused_in_the_child(tmp_path):
    program = """
import os, sys, kolk
from kolk.errors import UsedAfterFork
db = kolk.connect(sys.argv[1])
pid = os.fork()
if pid == 0:
    try:
        db.tables()
    except UsedAfterFork:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert db.tables() == []
"""
    with kolk.start(tmp_path / "data") as server:
        subprocess.run([sys.executable, "-c", program, server.url], check=True, timeout=60)
    assert UsedAfterFork.retriable is False


def test_a_stream_of_the_parent_is_refused_and_left_alone_in_a_child(serve, connect, schema):
    """As in a forked child; a real fork with open streams hangs within gRPC itself, more often than not."""
    table = connect(serve()).create_table("t", schema)
    table.put(rows(*range(100_000)))
    scan = table.join_scan(table.scan(shared=True, nonce="n").id)
    first = next(iter(scan)).num_rows
    exchange = scan._pages._stream._exchange

    exchange._pid = -1
    with pytest.raises(UsedAfterFork):
        scan._pages.next()
    scan._pages.close()
    exchange._pid = os.getpid()

    assert 0 < first < 100_000
    assert exchange.read(10).data.num_rows > 0


def test_a_lost_answer_to_create_or_drop_is_not_an_error_the_second_time(serve, connect, schema):
    """The first attempt is served but its answer lost, as far as the client can tell."""
    db = connect(serve())
    connection = db._link.service
    client, lost = connection._client, [True]

    class LosesOneAnswer:
        def do_action(self, *arguments):
            answer = list(client.do_action(*arguments))
            request = arguments[0].body.to_pybytes()
            if lost[0] and (b"create" in request or b"drop" in request):
                lost[0] = False
                raise ConnectionError("lost")
            return answer

        def __getattr__(self, name):
            return getattr(client, name)

    connection._client = LosesOneAnswer()
    table = db.create_table("t", schema, buckets=3)
    assert table.info.spec.buckets == 3
    with pytest.raises(TableExists):
        db.create_table("t", schema, buckets=3)
    lost[0] = True
    db.drop_table("t")
    assert db.tables() == []
    connection._client = client


@pytest.mark.parametrize(
    "wrong",
    [
        {"config": {"durability": "process"}},
        {"server": {"port": 0}},
        {"load": 5},
        {"load": [5]},
    ],
)
def test_settings_that_make_no_sense_start_nothing(tmp_path, wrong, capfd):
    with pytest.raises(InvalidArgument):
        kolk.start(tmp_path / "data", **wrong)

    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "data").exists()


def test_settings_take_paths_in_every_form(tmp_path):
    config = kolk.ServerConfig(port=0, http_port=-1, backup_folder=tmp_path / "backups")
    with kolk.start(tmp_path / "data", server=config) as server, kolk.connect(server.url) as db:
        db.create_table("t", kolk.Schema([kolk.Column("k", "int")], "k")).put({"k": 1})
        db.backup("one")

    assert (tmp_path / "backups" / "one").is_dir()
    for wrong in ({"backup_folder": 5}, {"tls_cert": b"PEM", "tls_key": b"PEM"}, {"host": None}, {"host": ""}):
        with pytest.raises(InvalidArgument):
            kolk.ServerConfig(**wrong)


@pytest.mark.parametrize("url", ["kolk://my host:9123", "kolk://h\u00f6st:9123", "kolk://a/b", "kolk://:9123"])
def test_an_address_that_cannot_be_is_refused(url):
    with pytest.raises(InvalidArgument, match="an address is"):
        kolk.connect(url)


def test_certificates_are_files():
    with pytest.raises(InvalidArgument, match="path of a file"):
        kolk.connect("kolk://127.0.0.1:1", tls_ca=b"-----BEGIN CERTIFICATE-----")
