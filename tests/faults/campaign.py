"""One folder through many deaths: start a worker, let it die, reopen, compare, go on.

The next worker is started while the last one's work is looked at, because importing takes as long as checking.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.faults.puts import create_tables
from tests.faults.witness import Account, Findings, Witness, scanned
from tests.faults.worker import SMALL_FILES, Job

import kolk

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120
IS_FULL = os.environ.get("KOLK_FULL") == "1"

_CHECKING = replace(SMALL_FILES, durability="process")
"""The parent only looks, so it need not sync."""


class Worker:
    """A process of ``tests.faults.worker``. A context manager: at the end it is dead, whatever happened."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def begin(self, job: Job) -> None:
        """Let it work."""
        assert self._process.stdin is not None
        self._process.stdin.write(job.to_line())
        self._process.stdin.flush()

    def wait_for_acks(self, count: int) -> None:
        """Until so many puts are acknowledged."""
        while count > 0:
            got = self._read(count)
            assert got, f"the worker acknowledges nothing more: {self._said()}"
            count -= len(got)

    def kill_within(self, seconds: float) -> None:
        """Send it SIGKILL after this time; it must not have ended by itself."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        assert self.wait() == -signal.SIGKILL, "the worker ended before it was killed"

    def wait(self) -> int:
        """Until it is dead; the answer is how it died."""
        while self._read(2**16):
            pass
        status = self._process.wait(PATIENCE_SECONDS)
        assert not self._said(), self._said()
        return status

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL was its end."""
        return self._process.returncode == -signal.SIGKILL

    def _read(self, count: int) -> bytes:
        """The next acknowledgements; none when the process is dead."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        ready, _, _ = select.select([handle], [], [], PATIENCE_SECONDS)
        assert ready, f"the worker hangs: {self._said()}"
        return os.read(handle, count)

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._errors, self._process:
            self._process.kill()


class Campaign:
    """A folder, the account of what was acknowledged in it, and the next worker, ready to begin."""

    def __init__(self, folder: Path, account: Path, *, durability: str = "machine") -> None:
        self.folder = folder
        self.account = Account(account)
        self.witness = Witness(self.account)
        self.deaths = 0
        self.findings = Findings()
        self._durability = durability
        self._next = Worker()

    def job(self, **changes: Any) -> Job:
        """Go on in the folder, from what is acknowledged."""
        return Job(
            folder=str(self.folder),
            account=str(self.account.path),
            acked=list(self.account.acked),
            durability=self._durability,
            **changes,
        )

    @contextmanager
    def worker(self, job: Job) -> Iterator[Worker]:
        """A worker at this job; the one after it is started when it is dead."""
        try:
            with self._next as worker:
                worker.begin(job)
                yield worker
            self.deaths += worker.was_killed
        finally:
            self._next = Worker()

    def die_at_random(self, rng: random.Random) -> None:
        """Kill a worker from outside: one in six while it still opens the folder, the others at work."""
        starting = rng.random() < 1 / 6
        with self.worker(self.job()) as worker:
            worker.wait_for_acks(0 if starting else rng.randint(1, 200))
            worker.kill_within(rng.uniform(0, 0.4 if starting else 0.03))

    def die_at(self, step: str, occurrence: int, report: Path, **changes: Any) -> str:
        """Let a worker kill itself at a step; the answer is the step that it says it reached."""
        report.unlink(missing_ok=True)
        with self.worker(self.job(step=step, occurrence=occurrence, report=str(report), **changes)) as worker:
            status = worker.wait()
        return report.read_text().strip() if status == -signal.SIGKILL else f"none, it ended with {status}"

    def check(self) -> Findings:
        """Reopen and compare; every third time reopen once more, which must change nothing."""
        with kolk.connect(self.folder, config=_CHECKING) as db:
            tables = create_tables(db)
            found = self.witness.check(tables)
            first = _state(tables)
        if self.deaths % 3 == 0:
            with kolk.connect(self.folder, config=_CHECKING) as db:
                if _state(create_tables(db)) != first:
                    found.wrong.append("reopened again, the tables are not the same")
        self.findings.lost += found.lost
        self.findings.duplicated += found.duplicated
        self.findings.wrong += found.wrong
        return found

    def check_from_the_start(self) -> Findings:
        """Compare everything there ever was, and not only what is new."""
        witness = Witness(Account(self.account.path))
        with kolk.connect(self.folder, config=_CHECKING) as db:
            found = witness.check(create_tables(db))
        if witness.rows != self.witness.rows:
            found.wrong.append("the whole changelog does not lead where its parts did")
        return found

    def finish(self) -> int:
        """Let a last worker do its puts undisturbed and close the database; the answer is how it ended."""
        with self.worker(self.job(puts=20)) as worker:
            return worker.wait()

    def close(self) -> None:
        """Let the worker that waits go."""
        with self._next:
            pass


def write_figures(fault: str, **figures: Any) -> None:
    """Append a line for the reliability report, if somebody collects them."""
    path = os.environ.get("KOLK_FIGURES")
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps({"fault": fault, **figures}) + "\n")


def campaign_figures(campaign: Campaign) -> dict[str, int]:
    """What a campaign amounts to, for ``write_figures``."""
    return {
        "times": campaign.deaths,
        "puts": campaign.account.puts,
        "rows": campaign.account.rows,
        "lost": len(campaign.findings.lost),
        "duplicated": len(campaign.findings.duplicated),
        "wrong": len(campaign.findings.wrong),
    }


def _state(tables: dict[str, kolk.Table]) -> list[Any]:
    return [[table.describe()["offsets"] for table in tables.values()], scanned(tables["faults.rows"])]
