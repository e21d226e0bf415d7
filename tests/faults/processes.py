"""A server and a client, each in a process of its own that can be killed at a step of what one asks of the other."""

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.faults.killing import FORKS, AimedSwitch
from tests.faults.servers import PATIENCE_SECONDS

import kolk
from kolk.engine.database import Engine
from kolk.server.run import Server


class Process:
    """A process that is told what to do through a pipe. A context manager: at the end it is dead."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        self.pipe, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=target, args=(*arguments, theirs))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def said(self) -> Any:
        """What it says next."""
        assert self.pipe.poll(PATIENCE_SECONDS), "it says nothing"
        return self.pipe.recv()

    def ask(self, what: Any) -> Any:
        """Tell it something; the answer is what it says then."""
        self.pipe.send(what)
        return self.said()

    def end(self) -> int | None:
        """Wait until it is dead; how it died."""
        self._process.join(PATIENCE_SECONDS)
        return self._process.exitcode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


class Serving(Process):
    """A server of a folder, which ``serve(folder, port, pipe)`` is; the next one is at the same address."""

    def __init__(self, serve: Callable[[Path, int, Connection], None], folder: Path, url: str = "") -> None:
        super().__init__(serve, folder, int(url.rpartition(":")[2] or 0))
        self.url = self.said()


def serve_aimed(engine: Engine, switch: AimedSwitch, port: int, pipe: Connection) -> None:
    """Serve until the pipe is closed. What comes through it is for the switch."""
    with Server(engine, kolk.ServerConfig(port=port, http_port=-1, drain_seconds=1), engine.close) as server:
        pipe.send(server.url)
        while (aim := pipe.recv()) is not None:
            switch.aim(*aim)
            pipe.send("aimed")
