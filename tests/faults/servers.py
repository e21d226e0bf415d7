"""A server in a process of its own that tests may kill and restart, on the same folder and the same port.

The next process is started ahead and waits for its settings, because importing takes longer than to be killed. What it
logs is kept, so that a test can tell that nothing failed inside which no client was told of.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kolk.config import EngineConfig, ServerConfig

PATIENCE_SECONDS = 120.0


class Server:
    """One folder, one port, many processes. A context manager: at the end none is left."""

    def __init__(self, folder: Path, engine: EngineConfig, **settings: Any) -> None:
        self._folder = folder
        self._engine = engine
        self._settings = {"port": 0, "http_port": -1, **settings}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        self._process: subprocess.Popen[bytes] | None = None
        self._next = self._launched()
        self.url = ""
        self.http_url: str | None = None

    def begin(self) -> None:
        """Let the next process serve, after one that is dead; it is not ready yet."""
        if self._process is not None:
            assert not self.is_alive, "one serves already"
            _close(self._process)
        self._process, self._next = self._next, self._launched()
        engine = {**asdict(self._engine), "durability": self._engine.durability.value}
        server = asdict(ServerConfig(**self._settings))
        settings = {"folder": str(self._folder), "server": server, "engine": engine, "path": []}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(settings).encode() + b"\n")
        self._process.stdin.flush()

    def start(self) -> str:
        """Let the next process serve, and wait until it does; the answer is its address, the same each time."""
        self.begin()
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        ready = json.loads(line or b"{}")
        assert ready.get("url"), f"the server does not start: {line!r} {self.log()}"
        self.url, self.http_url = ready["url"], ready["http_url"]
        self._settings["port"] = int(self.url.rpartition(":")[2])
        return self.url

    @property
    def pid(self) -> int:
        """The process that serves now."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def memory_bytes(self) -> int:
        """What it holds in memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill_after(self, seconds: float) -> None:
        """kill -9 after this time; it must not have ended by itself."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        assert self._end() == -signal.SIGKILL, f"the server ended before it was killed: {self.log()}"

    def stop(self) -> int:
        """SIGTERM, and wait; the answer is how it ended."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._end()

    def log(self) -> str:
        """What all processes have logged so far: warnings and errors."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def failures(self) -> list[str]:
        """The lines that tell of something that nobody foresaw."""
        signs = ("request.failed", "health.failed", "Traceback", "InternalError")
        return [line[:2_000] for line in self.log().splitlines() if any(sign in line for sign in signs)]

    def _launched(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "kolk.server.child"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)

    def _end(self) -> int:
        assert self._process is not None
        status = self._process.wait(PATIENCE_SECONDS)
        _close(self._process)
        self._process = None
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._log:
            for process in (self._process, self._next):
                if process is not None:
                    process.kill()
                    process.wait()
                    _close(process)


def _close(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
