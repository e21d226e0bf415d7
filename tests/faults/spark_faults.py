"""Faults of Spark from a plan: each strikes once, whoever comes by first, and writes into a ledger that it did.

A fault waits at a point of a query, in a task or in the sink, from some batch on. Whoever reaches the point takes it,
in whatever process, by creating a file that only one can create; the line in the ledger is written before it strikes,
so that it is there whatever dies. What only another process can do, a kill at some later moment, is left to the one
that reads the ledger.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MAP_POINTS = ("before the first row", "between two rows", "after the last row")
"""In a function of the query, before its sink."""
SINK_POINTS = ("before the write", "in the middle of the write", "after the write")
"""In a task of the sink. After the write all is staged or written, and the message is lost."""
COMMIT_POINTS = ("before the commit", "after the commit")
"""On the driver. After the commit the server has done it, and Spark has not heard of it."""
DURING = "during the commit"
ABORT = "in the abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens where. ``act``: ``raise``; ``exit``, which ends the process there; ``driver``, which kills it with
    its JVM, and ends there too; ``zombie``, the same, but the process goes on; ``server``, which kills that; and
    ``driver later``, ``server later``, for somebody who reads the ledger and lets ``seconds`` pass. It waits from a
    batch on, and from a driver on: the first is number 0."""

    number: int
    query: str
    batch: int
    point: str
    act: str
    driver: int = 0
    seconds: float = 0.0


class Faults:
    """The plan of a folder, and its ledger. Holds nothing but the folder, so that it may be pickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def planned(folder: Path, faults: list[Fault]) -> "Faults":
        """A new plan."""
        (folder / "taken").mkdir(parents=True)
        (folder / "plan").write_text(json.dumps([asdict(fault) for fault in faults]))
        return Faults(folder)

    def plan(self) -> list[Fault]:
        """All faults that there are to be."""
        return [Fault(**fault) for fault in json.loads((self.folder / "plan").read_text())]

    def struck(self) -> list[Fault]:
        """Those that were, in their order."""
        plan = {fault.number: fault for fault in self.plan()}
        return [plan[line["number"]] for line in self._lines() if "number" in line]

    def noted(self, what: str) -> list[dict[str, Any]]:
        """What else somebody wrote down."""
        return [line for line in self._lines() if line.get("what") == what]

    def note(self, **line: Any) -> None:
        """Write a line into the ledger. One call to the system, so lines of several processes do not mix."""
        handle = os.open(self.folder / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, json.dumps({**line, "pid": os.getpid()}).encode() + b"\n")
        finally:
            os.close(handle)

    def tell(self, name: str, number: int) -> None:
        """Say whom a fault is to kill, the ``server`` or the ``driver``, which is a group of processes with its JVM;
        and which ``life`` this is, of the drivers."""
        (self.folder / f"{name}.new").write_text(str(number))
        (self.folder / f"{name}.new").replace(self.folder / name)

    def reach(self, query: str, batch: int | None, *points: str) -> None:
        """Here one of these points is reached: if a fault waits there, it strikes."""
        fault = self._take(query, batch, points)
        if fault is not None:
            self._strike(fault)

    def during(self, query: str, batch: int, action: Callable[[], None]) -> None:
        """Do something; a fault that waits for that strikes in the middle of it, or just after it was quicker."""
        fault = self._take(query, batch, (DURING,))
        if fault is None:
            action()
            return
        timer = threading.Timer(fault.seconds, self._strike, [fault])
        timer.start()
        try:
            action()
        finally:
            timer.join()  # before anything else happens to this process

    def _take(self, query: str, batch: int | None, points: tuple[str, ...]) -> Fault | None:
        if batch is None:
            return None
        taken, life = set(os.listdir(self.folder / "taken")), self._told("life")
        for fault in self.plan():
            is_here = fault.query == query and fault.point in points and fault.batch <= batch and fault.driver <= life
            if is_here and str(fault.number) not in taken and self._is_mine(fault, batch):
                return fault
        return None

    def _is_mine(self, fault: Fault, batch: int) -> bool:
        try:
            os.close(os.open(self.folder / "taken" / str(fault.number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        self.note(number=fault.number, batch=batch, fault=f"{fault.act} {fault.point}, {fault.query}")
        return True

    def _strike(self, fault: Fault) -> None:
        if fault.act == "raise":
            raise RuntimeError(f"fault {fault.number}")
        if fault.act in ("driver", "zombie"):
            os.killpg(self._told("driver"), signal.SIGKILL)
        if fault.act in ("driver", "exit"):
            os._exit(1)
        if fault.act == "server":
            with suppress(ProcessLookupError):
                os.kill(self._told("server"), signal.SIGKILL)

    def _told(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def _lines(self) -> Iterator[dict[str, Any]]:
        path = self.folder / "ledger"
        for line in path.read_bytes().splitlines() if path.exists() else []:
            yield json.loads(line)
