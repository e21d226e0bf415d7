"""Processes that die at a step, and the database that they die in.

They are forked from a server that has imported every worker already, because importing takes longer than all the rest.
A switch that never kills counts instead: with it a test knows that no step is left out.
"""

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.servers import PATIENCE_SECONDS

from kolk.client.database import Database
from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.runtime.clock import Clock
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.faults import KillingDisk, KillingKv, KillingMeta, KillSwitch, Step
from kolk.testing.soundness import check_sound

FORKS = multiprocessing.get_context("forkserver")
_WORKERS = ("owner", "owner_server", "snapshot", "transaction", "transaction_server")
FORKS.set_forkserver_preload([f"tests.faults.{name}_worker" for name in _WORKERS])


class CountingSwitch(KillSwitch):
    """Kills nobody, and counts. Thread-safe as ``KillSwitch``."""

    def __init__(self) -> None:
        super().__init__()
        # Guarded by _lock.
        self._seen: Counter[Step] = Counter()

    def counted(self) -> Counter[Step]:
        """How often each step was reached since this was last asked."""
        with self._lock:
            seen, self._seen = self._seen, Counter()
            return seen

    def is_due(self, step: Step) -> bool:
        """See ``KillSwitch``: it never is."""
        with self._lock:
            self._seen[step] += 1
        return False


class AimedSwitch(KillSwitch):
    """A switch that can be aimed at another process, and then goes on by itself. Thread-safe as ``KillSwitch``."""

    _victim: int | None = None

    def aim(self, step: Step, occurrence: int, report: Path, victim: int | None) -> None:
        """Count a step from now on; None is this process."""
        assert victim is None or "HALF" not in step.name, "half of something is left only by who dies of it"
        self._victim = victim
        self.arm(step, occurrence, report=report)

    def kill(self) -> None:
        """See ``KillSwitch``."""
        if self._victim is None:
            super().kill()
        else:
            self.tell()
            os.kill(self._victim, signal.SIGKILL)


def opened(
    folder: Path, config: EngineConfig, switch: KillSwitch | None = None, clock: Clock | None = None
) -> tuple[Engine, Database]:
    """The database, with the switch wherever anything is written."""
    switch = switch or KillSwitch()
    engine = Engine(
        Folder(folder),
        config,
        clock=clock,
        disk=KillingDisk(switch),
        open_kv=lambda path, memory: KillingKv(path, memory, switch),
        open_meta=lambda path: KillingMeta(path, switch),
    )
    return engine, Database(engine, engine.close, Rng(), clock=clock)


def killed(folder: Path, step: Step, occurrence: int, die: Callable[..., None], *arguments: Any) -> None:
    """Let a process die at a step of ``die(folder, step, occurrence, report, *arguments)``; that it was there it has
    written down."""
    report = folder.parent / "report"
    report.unlink(missing_ok=True)
    process = FORKS.Process(target=die, args=(folder, step, occurrence, report, *arguments))
    process.start()
    try:
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == -signal.SIGKILL, f"it was done, and never was {step.value} {occurrence}"
    finally:
        process.kill()
        process.join()
    assert report.read_text() == f"{step.value}\n"
    check_sound(folder)
