"""A server in a child process: for notebooks, for Spark on one machine, and for tests.

The parent writes the settings to the child's input and keeps it open: when it closes, or the parent dies however it
dies, the child stops. The child writes one line to its output when it listens, or why it does not.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import msgspec

from kolk.config import EngineConfig, ServerConfig
from kolk.errors import InternalError, KolkError, Unavailable
from kolk.runtime.threads import start_thread
from kolk.wire.status import decode_error, encode_error

_STOP_SECONDS = 5.0
"""Beyond the time that the server itself takes to drain."""


class _Settings(msgspec.Struct, frozen=True):
    folder: str
    server: dict[str, Any]
    engine: dict[str, Any]
    path: list[str] = []


class _Ready(msgspec.Struct, frozen=True):
    url: str = ""
    http_url: str | None = None
    error: bytes | None = None


class ServerProcess:
    """A server that runs as long as this process, or until ``close``. A context manager."""

    def __init__(self, folder: Path, server: ServerConfig, engine: EngineConfig) -> None:
        self._folder = folder
        self._drain_seconds = server.drain_seconds
        # What is to be loaded is found there as it would be here.
        path = [os.path.abspath(each) for each in sys.path] if server.load else []
        given = {**asdict(engine), "durability": engine.durability.value}
        settings = msgspec.json.encode(_Settings(str(folder), asdict(server), given, path)) + b"\n"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kolk.server.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # why, is asked below
                self._process.stdin.write(settings)
                self._process.stdin.flush()
            line = self._process.stdout.readline()
            if not line:
                raise Unavailable(f"the server ended at once, with code {self._process.wait()}; its output says why")
            ready = msgspec.json.decode(line, type=_Ready)
            if ready.error is not None:
                raise decode_error(ready.error)
        except BaseException:
            self.kill()
            raise
        self.url = ready.url
        """What to give to ``kolk.connect``."""
        self.http_url = ready.http_url
        """Where health and metrics are."""

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    def close(self) -> None:
        """Let the server finish what it does, and stop it. Idempotent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(self._drain_seconds + _STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

    def kill(self) -> None:
        """End it in the middle of what it does (kill -9): acknowledged puts survive."""
        self._process.kill()
        self._reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        code = self._process.poll()
        end = f"pid {self.pid}" if code is None else f"ended with code {code}"
        return f"<kolk.ServerProcess {self.url} of {self._folder}, {end}>"

    def _reap(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a child that is gone
                    pipe.close()


def main() -> None:
    """The child's side."""
    from kolk.server.events import log_to
    from kolk.server.run import Server, serve_until

    log_to(sys.stderr, logging.getLogger("kolk"), logging.WARNING)
    settings = msgspec.json.decode(_line(), type=_Settings)
    sys.path += [each for each in settings.path if each not in sys.path]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # Ctrl-C at a terminal reaches parent and child alike; it is the parent's to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait_for_parent() -> None:
        # Not through sys.stdin, whose lock this thread would hold when the interpreter ends.
        while os.read(0, 1):
            pass
        stop.set()

    def tell(server: Server) -> None:
        _say(_Ready(url=server.url, http_url=server.http_url))
        start_thread(wait_for_parent, "kolk-parent")

    try:
        serve_until(
            Path(settings.folder), ServerConfig(**settings.server), EngineConfig(**settings.engine), tell, stop=stop
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent is told
        told = error if isinstance(error, KolkError) else InternalError(f"the server cannot start: {error!r}")
        _say(_Ready(error=encode_error(told)))
        os._exit(1)


def _line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def _say(ready: _Ready) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
