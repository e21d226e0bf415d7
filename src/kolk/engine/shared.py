"""One engine per folder and process.

A notebook cell that runs ``kolk.connect`` again must not fail on its own lock, so connections to one folder
share an engine; the last one to close closes it. Each has threads here that let it tick, reap and take snapshots: an
engine that somebody builds for himself has none.
"""

import atexit
import logging
import os
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.errors import InvalidArgument, Stopped
from kolk.runtime.clock import SystemClock
from kolk.runtime.folder import Folder
from kolk.runtime.ticker import Ticker

TICK_SECONDS = 60.0
"""How often an engine looks for what is due."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """An engine, and one item for each of its users. A signal handler may close a connection in the middle of anything
    here, so they are counted in steps that it cannot divide."""

    engine: Engine
    users: list[None]


class SharedEngines:
    """The engines that this process has open, with the number of their users. Thread-safe: one lock.

    The garbage collector may end a forgotten connection anywhere, also under any lock, so ``orphan`` only notes it
    down; whoever comes next lets it go.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: dict[Path, _Open] = {}
        # Until they have ended: whoever is interrupted as he waits for that may close the engine again.
        self._tickers: dict[Engine, tuple[Ticker, ...]] = {}
        self._orphans: deque[Engine] = deque()

    def attach(self, path: Path, config: EngineConfig | None) -> Engine:
        """The engine of this folder, opened if need be. Without a config an open one is taken as it is."""
        real = _resolved(path)
        with self._lock:
            self._let_orphans_go()
            while True:
                known = self._open.get(real)
                if known is None:
                    known = self._open[real] = self._started(real, config or EngineConfig())
                elif config is not None and config != known.engine.config:
                    raise InvalidArgument(f"{real} is open in this process with other settings; close it first")
                elif not known.engine.is_in_place:
                    raise Stopped(f"{real} was removed or replaced under an open database; close that one first")
                known.users.append(None)
                if self._open.get(real) is known:  # else a signal handler has let its last user go
                    return known.engine

    def detach(self, engine: Engine) -> None:
        """One user fewer; the last one closes the engine."""
        with self._lock:
            self._let_orphans_go()  # first: if that is interrupted this one is still a user, and may be let go again
            self._release(engine)

    def orphan(self, engine: Engine) -> None:
        """A user is gone without a word. Takes no lock."""
        self._orphans.append(engine)

    def close_orphans(self) -> None:
        """Let go of what nobody closed, at the end of the process."""
        with self._lock:
            self._let_orphans_go()

    def _let_orphans_go(self) -> None:
        while self._orphans:
            try:
                self._release(self._orphans.popleft())
            except Exception:  # noqa: BLE001 - nobody else is there to be told
                _log.exception("a database that nobody closed did not close well")

    def _release(self, engine: Engine) -> None:
        for path, known in list(self._open.items()):
            if known.engine is engine:
                with suppress(IndexError):
                    known.users.pop()
                if known.users:
                    return
                self._open.pop(path, None)
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
        for known in self._open.values():
            known.engine.abandon()
        self._open = {}
        self._tickers = {}  # their threads have stayed with the parent
        self._orphans.clear()

    def _started(self, path: Path, config: EngineConfig) -> _Open:
        """An engine that nobody uses yet, with its threads."""
        engine, clock = _opened(path, config), SystemClock()
        self._tickers[engine] = (
            Ticker(engine.tick, seconds=TICK_SECONDS, clock=clock),
            Ticker(engine.reap, seconds=engine.reap_seconds, clock=clock, name="kolk-reaper"),
            Ticker(engine.take_due, seconds=engine.take_seconds, clock=clock, name="kolk-snapshots"),
        )
        for ticker in self._tickers[engine]:
            ticker.start()
        return _Open(engine, [])


def _opened(path: Path, config: EngineConfig) -> Engine:
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
