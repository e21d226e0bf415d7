"""Health and metrics over HTTP, for those who watch: probes, Prometheus, people with curl.

It is apart from the port of the clients, so that it answers when that one is full, and it is small on purpose: one GET
per connection, five seconds for a request to arrive, 16 KiB of it at most, and so many connections at once. When there
are more, the one that has been silent the longest makes room: so connections that send nothing, slowly or garbage hold
nobody up. It refuses to change anything: there is nothing here but GET and HEAD.

``/live`` and ``/ready`` tell nothing worth hiding and need no token, because probes have none. ``/status`` and
``/metrics`` name tables: with an ``authenticate`` they want ``Authorization: Bearer <token>``. A token must not travel
in the clear, so give ``tls`` as well wherever others can listen.
"""

import contextlib
import errno
import io
import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.client import HTTPException, LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from kolk.errors import Unavailable
from kolk.runtime.clock import Clock, SystemClock
from kolk.runtime.threads import start_thread
from kolk.server.metrics import CONTENT_TYPE

CONNECTIONS_MAX = 32
REQUEST_SECONDS = 5.0
REQUEST_BYTES_MAX = 16 * 1024

_LOG = logging.getLogger(__name__)
_SYSTEM_CLOCK = SystemClock()
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_BEARER = "bearer "
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 0.1
_POLL_SECONDS = 0.1
"""How long a close may go unnoticed."""
_INDEX = b"""Kolk server
/live     whether the process answers
/ready    whether it takes requests; 503 with the reasons if not
/status   version, durability, tables, scans, snapshots, leases, disk
/metrics  for Prometheus
"""

Reply = tuple[HTTPStatus, str, bytes]
"""What a path answers: status, content type, body."""


def _log_failure(error: Exception) -> None:
    _LOG.error("health.failed", exc_info=error)


class Health:
    """The HTTP server of one Kolk server. Listens from construction, answers from ``start`` to ``close``.

    The callables are called from several threads at once. A context manager.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ready: Callable[[], list[str]],
        status: Callable[[], dict[str, Any]],
        metrics: Callable[[], bytes],
        authenticate: Callable[[str | None], bool] | None = None,
        tls: ssl.SSLContext | None = None,
        on_failure: Callable[[Exception], None] = _log_failure,
        clock: Clock = _SYSTEM_CLOCK,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._on_failure = on_failure
        self._ready = ready
        self._status = status
        self._metrics = metrics
        self._authenticate = authenticate
        self._paths: dict[str, Callable[[], Reply]] = {
            "/": lambda: (HTTPStatus.OK, _TEXT, _INDEX),
            "/live": lambda: _json(HTTPStatus.OK, {"live": True}),
            "/ready": self._readiness,
            "/status": lambda: _json(HTTPStatus.OK, self._status()),
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE, self._metrics()),
        }
        try:
            self._server = _Server((host, port), self._reply, tls, clock, request_seconds)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {host} port {port} for health and metrics ({error.strerror or error});"
                " give another http port with --http-port or http_port=: 0 takes a free one, and -1 none"
            ) from error
        self.port: int = self._server.server_address[1]
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._wait_for_end: Callable[[], None] | None = None
        self._is_closed = False

    def start(self) -> None:
        """Answer from now on."""
        with self._lock:
            assert self._wait_for_end is None, "it is started once"
            assert not self._is_closed, "it was closed"
            self._wait_for_end = start_thread(partial(self._server.serve_forever, _POLL_SECONDS), "kolk-health").join

    def close(self) -> None:
        """Stop listening and end the connections that are open. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._wait_for_end is not None:
                self._server.shutdown()
                self._wait_for_end()
            self._server.server_close()
            self._server.connections.end_all()

    def __enter__(self) -> "Health":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _reply(self, path: str, token: str | None) -> Reply:
        try:
            return self._found(path, token)
        except Exception as error:  # noqa: BLE001 - a probe must get an answer whatever failed
            self._on_failure(error)
            return _json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": type(error).__name__})

    def _found(self, path: str, token: str | None) -> Reply:
        answer = self._paths.get(path)
        if answer is None:
            return _json(HTTPStatus.NOT_FOUND, {"error": "no such path", "paths": list(self._paths)})
        if path in ("/status", "/metrics") and self._authenticate is not None and not self._authenticate(token):
            return _json(HTTPStatus.UNAUTHORIZED, {"error": "this needs the header Authorization: Bearer <token>"})
        return answer()

    def _readiness(self) -> Reply:
        reasons = self._ready()
        if reasons:
            return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reasons": reasons})
        return _json(HTTPStatus.OK, {"ready": True})


class _Connections:
    """Which connections are open, and which of them still owe their request. Thread-safe: one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock. In the order in which they came; True once the request is there and is being answered.
        self._open: dict[socket.socket, bool] = {}

    def admit(self, connection: socket.socket) -> bool:
        """Let one more in, at the cost of the one that has owed its request the longest; False if none does."""
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                silent = next((each for each, answering in self._open.items() if not answering), None)
                if silent is None:
                    return False
                del self._open[silent]
                _end(silent)
            self._open[connection] = False
            return True

    def answer(self, connection: socket.socket) -> bool:
        """The request is there, so from now on it is our work that takes time; False if it had to make room."""
        with self._lock:
            if connection not in self._open:
                return False
            self._open[connection] = True
            return True

    def leave(self, connection: socket.socket) -> None:
        """It has ended."""
        with self._lock:
            self._open.pop(connection, None)

    def end_all(self) -> None:
        """End them, whatever they are at."""
        with self._lock:
            for connection in self._open:
                _end(connection)
            self._open.clear()


class _Server(ThreadingHTTPServer):
    """Accepts connections and gives each its thread, within the limits."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        reply: Callable[[str, str | None], Reply],
        tls: ssl.SSLContext | None,
        clock: Clock,
        request_seconds: float,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.connections = _Connections()
        self.reply = reply
        self.clock = clock
        self.request_seconds = request_seconds
        self._tls = tls
        self._pause = threading.Event()
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        """Without asking the network for the name of this machine, which can take long."""
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept one. Its handshake is its own thread's work: here it would hold up all others."""
        try:
            connection, address = super().get_request()
        except OSError as error:
            # The connection stays in the queue, and asking for it again at once would only heat the processor.
            if error.errno in _EXHAUSTED:
                self._pause.wait(_PAUSE_SECONDS)
            raise
        if self._tls is None:
            return connection, address
        try:
            return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address
        except OSError:
            connection.close()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for it, if it is let in."""
        if self.connections.admit(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """The last thing that happens to a connection."""
        self.connections.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What a connection did wrong is not worth a line: anybody can do it, as often as they like."""


class _Request(BaseHTTPRequestHandler):
    """One request of one connection; HTTP/1.0, so there is no second one."""

    default_request_version = "HTTP/1.0"  # of what is no HTTP at all: else it is answered without a status

    def setup(self) -> None:
        """Read through a limit of bytes and time; the handshake, if there is one, counts."""
        assert isinstance(self.server, _Server), "nobody else serves these"
        self._owner = self.server
        limited = _Limited(self.request, self._owner.clock, self._owner.request_seconds)
        self.request.settimeout(self._owner.request_seconds)
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(limited)

    def handle(self) -> None:
        """Answer once. A connection that breaks, or is broken off by us, is nobody's problem but its own."""
        with contextlib.suppress(OSError, HTTPException):
            self.handle_one_request()

    def finish(self) -> None:
        """The socket itself is closed by the server."""
        with contextlib.suppress(OSError):
            super().finish()

    def do_GET(self) -> None:
        """Look up the path and answer."""
        if not self._owner.connections.answer(self.connection):
            return
        self.connection.settimeout(self._owner.request_seconds)
        self._send(*self._owner.reply(self.path.partition("?")[0], _token(self.headers.get("Authorization"))))

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server finds wrong, as JSON and without a word of the request."""
        # Every method but ours is "not implemented" to http.server; that they are not allowed is what is true.
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._send(*_json(status, {"error": status.phrase.lower()}))

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Who we are; with which Python is nobody's business."""
        return "kolk"

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every second; they are not events."""


class _Limited(io.RawIOBase):
    """Reads a socket up to so many bytes and so many seconds in all, however they are dealt out."""

    def __init__(self, connection: socket.socket, clock: Clock, seconds: float) -> None:
        self._connection = connection
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._bytes_left = REQUEST_BYTES_MAX

    def readable(self) -> bool:
        """See ``io.RawIOBase``."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """See ``io.RawIOBase``."""
        seconds_left = self._deadline - self._clock.monotonic()
        if seconds_left <= 0:
            raise TimeoutError("the request took too long")
        if self._bytes_left <= 0:
            raise LineTooLong("request")
        self._connection.settimeout(seconds_left)
        count = self._connection.recv_into(buffer, min(len(buffer), self._bytes_left))
        if count == 0:
            raise ConnectionError("the request ended in the middle")
        self._bytes_left -= count
        return count


def _token(header: str | None) -> str | None:
    """The token in an ``Authorization`` header."""
    if header is None or not header.lower().startswith(_BEARER):
        return None
    return header[len(_BEARER) :].strip()


def _json(status: HTTPStatus, content: Mapping[str, Any]) -> Reply:
    return status, _JSON, json.dumps(content, default=str).encode() + b"\n"


def _end(connection: socket.socket) -> None:
    """Wake the thread that reads from it. Past TLS, whose own way to end would wait for the other side."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
