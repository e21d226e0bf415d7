"""One engine per folder and process.

A notebook cell that runs ``kolk.connect`` again must not fail on its own lock, so connections to one folder
share an engine; the last one to close closes it.
"""

import os
import threading
from pathlib import Path

from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.errors import InvalidArgument, Stopped
from kolk.runtime.folder import Folder


class SharedEngines:
    """The engines that this process has open, with the number of their users.

    Thread-safe: one lock. It is re-entrant, because the garbage collector may end a forgotten connection anywhere.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users: dict[Path, tuple[Engine, int]] = {}

    def attach(self, path: Path, config: EngineConfig | None) -> Engine:
        """The engine of this folder, opened if need be. Without a config an open one is taken as it is."""
        real = path.resolve()
        with self._lock:
            engine, users = self._users.get(real, (None, 0))
            if engine is None:
                engine = self._open(real, config or EngineConfig())
            elif config is not None and config != engine.config:
                raise InvalidArgument(f"{real} is open in this process with other settings; close it first")
            self._users[real] = (engine, users + 1)
            return engine

    def detach(self, engine: Engine) -> None:
        """One user fewer; the last one closes the engine."""
        with self._lock:
            path = next((path for path, (known, _) in self._users.items() if known is engine), None)
            if path is not None and self._users[path][1] > 1:
                self._users[path] = (engine, self._users[path][1] - 1)
                return
            if path is not None:
                del self._users[path]
            engine.close()

    def forget(self) -> None:
        """In a forked child: the engines are the parent's, and so may be the lock."""
        self._lock = threading.RLock()
        for engine, _ in self._users.values():
            engine.abandon()
        self._users = {}

    @staticmethod
    def _open(path: Path, config: EngineConfig) -> Engine:
        try:
            folder = Folder(path)
        except OSError as error:
            raise Stopped(f"the folder {path} cannot be opened: {error}") from error
        try:
            return Engine(folder, config)
        except BaseException:
            folder.close()
            raise


ENGINES = SharedEngines()
os.register_at_fork(after_in_child=ENGINES.forget)
