"""Health over HTTP: what each path answers, who may ask, and that bad connections hold up no good ones."""

import contextlib
import json
import logging
import resource
import socket
import ssl
import threading
from http.client import HTTPConnection, HTTPSConnection

import pytest
import trustme

from kolk.errors import Closed, Unavailable
from kolk.server.health import CONNECTIONS_MAX, REQUEST_BYTES_MAX, Health

PATIENCE = 60  # for what should take no time at all: only a failure waits so long


class Server:
    """A Health whose answers a test can change, and requests to it."""

    def __init__(self, **options):
        self.reasons: list[str] = []
        self.state: dict = {"version": "1.2.3", "tables": 3}
        self.figures = b"kolk_calls_total 7\n"
        settings = {
            "ready": lambda: self.reasons,
            "status": lambda: self.state,
            "metrics": lambda: self.figures,
        }
        self.health = Health("127.0.0.1", 0, **(settings | options))

    def ask(self, path, method="GET", headers=None):
        with contextlib.closing(HTTPConnection("127.0.0.1", self.health.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def raw(self, data=b""):
        connection = socket.create_connection(("127.0.0.1", self.health.port), timeout=PATIENCE)
        connection.sendall(data)
        return connection


@contextlib.contextmanager
def serving(**options):
    server = Server(**options)
    with server.health:
        yield server


@pytest.fixture
def server():
    with serving() as server:
        yield server


def read_to_end(connection) -> bytes:
    """Everything until the other side ends the connection, in whatever way."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65_536):
            data += piece
    return data


# The paths.


def test_a_process_that_answers_is_live(server):
    status, headers, body = server.ask("/live")

    assert (status, json.loads(body)) == (200, {"live": True})
    assert headers["Content-Type"] == "application/json"
    assert headers["Server"] == "kolk"
    assert headers["Cache-Control"] == "no-store"


def test_a_server_is_ready_when_there_is_no_reason_against_it(server):
    assert server.ask("/ready")[0] == 200

    server.reasons = ["the disk is full", "draining"]
    status, _, body = server.ask("/ready")

    assert (status, json.loads(body)) == (503, {"ready": False, "reasons": ["the disk is full", "draining"]})


def test_the_status_is_what_the_server_says(server):
    status, _, body = server.ask("/status")

    assert (status, json.loads(body)) == (200, server.state)


def test_the_metrics_are_in_the_format_of_prometheus(server):
    status, headers, body = server.ask("/metrics?name=kolk")

    assert (status, body) == (200, server.figures)
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_the_index_names_the_paths(server):
    status, headers, body = server.ask("/")

    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert all(path in body for path in (b"/live", b"/ready", b"/status", b"/metrics"))


@pytest.mark.parametrize("path", ["/nothing", "/live/", "/../etc/passwd", "/%2e%2e", "//live/x", "http://h/live"])
def test_another_path_is_not_found_and_not_repeated(server, path):
    status, headers, body = server.ask(path)

    assert status == 404
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body)["error"] == "no such path"


@pytest.mark.parametrize("path", ["/", "/live", "/ready", "/status", "/metrics", "/nothing"])
def test_a_head_has_the_headers_of_a_get_and_no_body(server, path):
    got, asked = server.ask(path), server.ask(path, "HEAD")

    assert asked[0] == got[0]
    assert asked[1]["Content-Length"] == str(len(got[2]))
    assert asked[2] == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "BREW"])
def test_nothing_but_get_and_head_is_allowed(server, method):
    status, headers, body = server.ask("/live", method)

    assert status == 405
    assert headers["Allow"] == "GET, HEAD"
    assert method.encode() not in body


def test_a_failure_of_the_server_is_an_answer_too(caplog):
    def fail():
        raise Closed("the planted path of it")

    with serving(status=fail) as server, caplog.at_level(logging.ERROR, "kolk.server.health"):
        status, _, body = server.ask("/status")
        assert server.ask("/live")[0] == 200

    assert (status, json.loads(body)) == (500, {"error": "Closed"})
    assert [record.getMessage() for record in caplog.records] == ["health.failed"]


def test_a_failure_goes_where_it_was_asked_to():
    failures = []

    def fail():
        raise Closed("closed")

    with serving(ready=fail, on_failure=failures.append) as server:
        assert server.ask("/ready")[0] == 500

    assert [type(failure) for failure in failures] == [Closed]


# Tokens.


@pytest.mark.parametrize("path", ["/status", "/metrics"])
def test_with_tokens_what_names_tables_needs_one(path):
    with serving(authenticate=lambda token: token == "good") as server:
        refused = [{}, {"Authorization": "Bearer bad"}, {"Authorization": "good"}, {"Authorization": "Basic good"}]
        for headers in refused:
            status, answered, body = server.ask(path, headers=headers)
            assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
            assert b"kolk_calls" not in body
            assert b"1.2.3" not in body

        assert server.ask(path, headers={"Authorization": "Bearer good"})[0] == 200
        assert server.ask(path, headers={"authorization": "bearer  good "})[0] == 200


@pytest.mark.parametrize("path", ["/", "/live", "/ready"])
def test_probes_need_no_token(path):
    with serving(authenticate=lambda token: False) as server:
        assert server.ask(path)[0] == 200


# Bad connections.


def test_connections_that_send_nothing_or_half_a_request_hold_nobody_up(server):
    halves = [b"", b"GET", b"GET /live HTTP/1.1\r\n", b"GET /live HTTP/1.1\r\nHost: x\r\nX-Slow: "]
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(server.raw(halves[n % 4])) for n in range(4 * CONNECTIONS_MAX)]

        for _ in range(10):
            assert server.ask("/live")[0] == 200
        # The oldest made room; the others are still being waited for.
        assert read_to_end(slow[0]) == b""


def test_a_request_must_arrive_in_time_however_busily_it_drips():
    with serving(request_seconds=0.2) as server, server.raw(b"GET /live HTTP/1.1\r\nX-Slow: ") as connection:
        connection.settimeout(0.01)
        ended = False
        while not ended:
            try:
                connection.sendall(b"a")
                ended = connection.recv(100) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True


def test_a_connection_that_never_speaks_is_ended():
    with serving(request_seconds=0.1) as server, server.raw() as connection:
        assert read_to_end(connection) == b""


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    b"\0" * 1_000,
    b"\xff" * 1_000 + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /live HTTP/9.9\r\n\r\n",
    b"GET /live NONSENSE/1.1\r\n\r\n",
    b"GET  /live  HTTP/1.1 more\r\n\r\n",
    b"GET /live HTTP/1.1\r\nno colon here\r\n\r\n",
    b"GET /live HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n",
    b"\r\n" * 100,
    b"SSH-2.0-OpenSSH_9.9\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_answered_with_an_error_or_nothing_and_does_no_harm(server, garbage):
    with server.raw(garbage) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = read_to_end(connection)

    assert answer == b"" or answer.split()[1] in (b"400", b"405", b"431", b"505") or b'"live": true' in answer
    assert server.ask("/live")[0] == 200


@pytest.mark.parametrize("head", [b"GET /", b"GET /live HTTP/1.1\r\nX: ", b"GET /live HTTP/1.1\r\nX: y\r\nX: y\r\nX: "])
def test_a_request_has_a_limit_of_bytes(server, head):
    with server.raw() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head + b"a" * (4 * REQUEST_BYTES_MAX))
        answer = read_to_end(connection)

    assert answer == b"" or answer.split()[1] == b"431"
    assert server.ask("/live")[0] == 200


def test_a_client_that_goes_away_in_the_middle_does_no_harm(server):
    server.figures = b"x" * 10_000_000
    for _ in range(2 * CONNECTIONS_MAX):
        server.raw(b"GET /metrics HTTP/1.1\r\n\r\n").close()

    assert len(server.ask("/metrics")[2]) == 10_000_000


def test_answers_in_the_making_are_not_broken_off_and_have_a_limit_too():
    asked, release = threading.Semaphore(0), threading.Event()

    def slow_status():
        asked.release()
        release.wait(PATIENCE)
        return {"done": True}

    with serving(status=slow_status) as server, contextlib.ExitStack() as stack:
        request = b"GET /status HTTP/1.1\r\n\r\n"
        waiting = [stack.enter_context(server.raw(request)) for _ in range(CONNECTIONS_MAX)]
        for _ in waiting:
            assert asked.acquire(timeout=PATIENCE)

        refused = stack.enter_context(server.raw(b"GET /live HTTP/1.1\r\n\r\n"))
        assert read_to_end(refused) == b""

        release.set()
        assert all(b'{"done": true}' in read_to_end(connection) for connection in waiting)
        assert server.ask("/live")[0] == 200


def test_no_connection_leaves_a_thread_or_a_handle_behind():
    with serving() as server:
        for number in range(200):
            server.raw(GARBAGE[number % len(GARBAGE)]).close()
        assert server.ask("/live")[0] == 200
    threads = [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]
    for thread in threads:
        thread.join(PATIENCE)

    assert not [thread for thread in threads if thread.is_alive()]
    assert not server.health._server.connections._open


def test_running_out_of_handles_is_outlived():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving() as server, contextlib.ExitStack() as stack:
        waiting = stack.enter_context(socket.socket())
        waiting.settimeout(PATIENCE)
        probe = socket.socket()
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe.fileno(), limits[1]))
        probe.close()
        try:
            with contextlib.suppress(OSError):
                while True:
                    stack.enter_context(socket.socket())
            waiting.connect(("127.0.0.1", server.health.port))
            waiting.sendall(b"GET /live HTTP/1.1\r\n\r\n")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

        assert b'"live": true' in read_to_end(waiting)


# Starting and stopping.


def test_closing_ends_open_connections_and_frees_the_port(server):
    with server.raw(b"GET") as connection:
        assert server.ask("/live")[0] == 200

        server.health.close()
        server.health.close()

        assert read_to_end(connection) == b""
        with pytest.raises(ConnectionError):
            server.raw()


def test_a_server_that_was_never_started_can_be_closed():
    server = Server()

    server.health.close()

    with pytest.raises(ConnectionError):
        server.raw()


def test_a_port_that_is_taken_is_named_with_what_to_do(server):
    with pytest.raises(Unavailable, match=rf"port {server.health.port} .* give another http port"):
        Health("127.0.0.1", server.health.port, ready=list, status=dict, metrics=bytes)


def test_it_listens_on_an_ipv6_address_too():
    try:
        health = Health("::1", 0, ready=list, status=dict, metrics=bytes)
    except Unavailable:
        pytest.skip("this machine has no IPv6")
    with health, contextlib.closing(HTTPConnection("::1", health.port, timeout=PATIENCE)) as connection:
        connection.request("GET", "/live")
        assert connection.getresponse().read() == b'{"live": true}\n'


# TLS.


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def contexts(authority):
    serving_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(serving_context)
    asking = ssl.create_default_context()
    authority.configure_trust(asking)
    return serving_context, asking


def test_with_tls_the_answers_are_encrypted(contexts):
    with serving(tls=contexts[0]) as server:
        connection = HTTPSConnection("127.0.0.1", server.health.port, timeout=PATIENCE, context=contexts[1])
        with contextlib.closing(connection):
            connection.request("GET", "/status")
            assert json.loads(connection.getresponse().read()) == server.state


def test_with_tls_connections_that_do_not_shake_hands_hold_nobody_up(contexts):
    with serving(tls=contexts[0]) as server, contextlib.ExitStack() as stack:
        for number in range(2 * CONNECTIONS_MAX):
            stack.enter_context(server.raw(b"GET /live HTTP/1.1\r\n\r\n" if number % 2 else b""))

        connection = HTTPSConnection("127.0.0.1", server.health.port, timeout=PATIENCE, context=contexts[1])
        with contextlib.closing(connection):
            connection.request("GET", "/live")
            assert connection.getresponse().status == 200
