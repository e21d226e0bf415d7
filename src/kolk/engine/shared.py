"""One engine per folder and process.

A notebook cell that runs ``kolk.connect`` again must not fail on its own lock, so connections to one folder
share an engine; the last one to close closes it.
"""

import threading
from pathlib import Path

from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.errors import InvalidArgument
from kolk.runtime.folder import Folder


class SharedEngines:
    """The engines that this process has open, with the number of their users. Thread-safe: one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[Path, tuple[Engine, int]] = {}

    def attach(self, path: Path, config: EngineConfig | None) -> Engine:
        """The engine of this folder, opened if need be. Without a config an open one is taken as it is."""
        real = path.resolve()
        with self._lock:
            engine, users = self._users.get(real, (None, 0))
            if engine is not None and engine.is_ours:
                if config is not None and config != engine.config:
                    raise InvalidArgument(f"{real} is open in this process with other settings; close it first")
            else:
                # One that a fork left here belongs to the parent; its lock then refuses us, by name.
                engine, users = self._open(real, config or EngineConfig()), 0
            self._users[real] = (engine, users + 1)
            return engine

    def detach(self, engine: Engine) -> None:
        """One user fewer; the last one closes the engine."""
        with self._lock:
            for path, (known, users) in self._users.items():
                if known is engine:
                    if users > 1:
                        self._users[path] = (engine, users - 1)
                        return
                    del self._users[path]
                    break
            engine.close()

    @staticmethod
    def _open(path: Path, config: EngineConfig) -> Engine:
        folder = Folder(path)
        try:
            return Engine(folder, config)
        except BaseException:
            folder.close()
            raise


ENGINES = SharedEngines()
