"""One engine per folder and process.

A notebook cell that runs ``kolk.connect`` again must not fail on its own lock, so connections to one folder
share an engine; the last one to close closes it. Each has threads here that let it tick, reap and take snapshots: an
engine that somebody builds for himself has none.
"""

import atexit
import os
import threading
from collections import deque
from pathlib import Path

from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.errors import InvalidArgument, Stopped
from kolk.runtime.clock import SystemClock
from kolk.runtime.folder import Folder
from kolk.runtime.ticker import Ticker

TICK_SECONDS = 60.0
"""How often an engine looks for what is due."""


class SharedEngines:
    """The engines that this process has open, with the number of their users. Thread-safe: one lock.

    The garbage collector may end a forgotten connection anywhere, also under any lock, so ``orphan`` only notes it
    down; whoever comes next lets it go.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users: dict[Path, tuple[Engine, int]] = {}
        # Until they have ended: whoever is interrupted as he waits for that may close the engine again.
        self._tickers: dict[Engine, tuple[Ticker, ...]] = {}
        self._orphans: deque[Engine] = deque()

    def attach(self, path: Path, config: EngineConfig | None) -> Engine:
        """The engine of this folder, opened if need be. Without a config an open one is taken as it is."""
        real = _resolved(path)
        with self._lock:
            self._let_orphans_go()
            engine, users = self._users.get(real, (None, 0))
            if engine is None:
                engine = self._open(real, config or EngineConfig())
                clock = SystemClock()
                self._tickers[engine] = (
                    Ticker(engine.tick, seconds=TICK_SECONDS, clock=clock),
                    Ticker(engine.reap, seconds=engine.reap_seconds, clock=clock, name="kolk-reaper"),
                    Ticker(engine.take_due, seconds=engine.take_seconds, clock=clock, name="kolk-snapshots"),
                )
                for ticker in self._tickers[engine]:
                    ticker.start()
            elif config is not None and config != engine.config:
                raise InvalidArgument(f"{real} is open in this process with other settings; close it first")
            elif not engine.is_in_place:
                raise Stopped(f"{real} was removed or replaced under an open database; close that one first")
            self._users[real] = (engine, users + 1)
            return engine

    def detach(self, engine: Engine) -> None:
        """One user fewer; the last one closes the engine."""
        with self._lock:
            self._release(engine)
            self._let_orphans_go()

    def orphan(self, engine: Engine) -> None:
        """A user is gone without a word. Takes no lock."""
        self._orphans.append(engine)

    def close_orphans(self) -> None:
        """Let go of what nobody closed, at the end of the process."""
        with self._lock:
            self._let_orphans_go()

    def _let_orphans_go(self) -> None:
        while self._orphans:
            self._release(self._orphans.popleft())

    def _release(self, engine: Engine) -> None:
        path = next((path for path, (known, _) in list(self._users.items()) if known is engine), None)
        if path is not None and self._users[path][1] > 1:
            self._users[path] = (engine, self._users[path][1] - 1)
            return
        if path is not None:
            del self._users[path]
        tickers = self._tickers.get(engine, ())
        for ticker in tickers:
            ticker.stop()
        try:
            if tickers:
                engine.stop_taking()
            for ticker in tickers:
                ticker.close()  # and wait for it: a round should not meet an engine that closes
        finally:
            engine.close()
        self._tickers.pop(engine, None)

    def forget(self) -> None:
        """In a forked child: the engines are the parent's, and so may be the lock."""
        self._lock = threading.RLock()
        for engine, _ in self._users.values():
            engine.abandon()
        self._users = {}
        self._tickers = {}  # their threads have stayed with the parent
        self._orphans.clear()

    @staticmethod
    def _open(path: Path, config: EngineConfig) -> Engine:
        try:
            folder = Folder(path)
            try:
                return Engine(folder, config)
            except BaseException:
                folder.close()
                raise
        except OSError as error:
            raise Stopped(f"the folder {path} cannot be opened: {error}") from error


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidArgument(f"{path!r} is not a path: {error}") from error


ENGINES = SharedEngines()
os.register_at_fork(after_in_child=ENGINES.forget)
atexit.register(ENGINES.close_orphans)
