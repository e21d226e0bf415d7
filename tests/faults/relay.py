"""A wire between clients and a server that a test may cut, or make lose what the server says."""

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from tests.faults.attacker import Ticks
from tests.faults.servers import PATIENCE_SECONDS

_CHUNK = 65_536


class Relay:
    """Listens on a port of its own and passes bytes on, both ways, as they are. A context manager.

    Each connection has a thread of its own; ``cut`` and ``mute`` come from others.
    """

    def __init__(self, url: str) -> None:
        scheme, _, address = url.partition("://")
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self._lock = threading.Lock()
        # Guarded by _lock: each end of a connection, and the other end.
        self._peers: dict[socket.socket, socket.socket] = {}
        self._is_mute = False
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """End every connection; new ones are passed on again."""
        with self._lock:
            ends, self._peers, self._is_mute = list(self._peers), {}, False
            self.cuts += 1
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mute(self) -> None:
        """From now on lose what the server says, until the next cut."""
        with self._lock:
            self._is_mute = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _start(self, work, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, 5)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._peers |= {client: server, server: client}
            self._start(self._pass_on, client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, selectors.DefaultSelector() as ready, suppress(OSError):
            for end in (client, server):
                ready.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    end = client if key.fileobj is client else server
                    data = end.recv(_CHUNK)
                    if not data or end not in self._peers:
                        return
                    if not (self._is_mute and end is server):
                        self._peers[end].sendall(data)


@contextmanager
def lost_answer(relay: Relay, is_done: Callable[[], bool]) -> Iterator[None]:
    """What the server answers within the block is lost once: the wire is cut when the server has done it."""
    done: list[bool] = []

    def cut() -> None:
        done.append(Ticks(PATIENCE_SECONDS, 0.01).until(is_done))
        relay.cut()

    relay.mute()
    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        yield
    finally:
        cutter.join()
    assert done == [True]
