"""How things are timed, and the figures that come out.

Machines are noisy, so nothing is compared across runs: ours and the floor alternate, and medians are compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is done: the full run, or a quick look."""

    keys: int = 1_000_000
    scan_keys: tuple[int, ...] = (1_000_000, 5_000_000)
    rounds: int = 5
    memory_rows: int = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the report. Rates are rows per second; the ratio is the floor's time over ours."""

    bench: str
    case: str
    rate: float
    floor_rate: float | None = None
    ratio: float | None = None
    target: float | None = None
    note: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the target, if there is one, is reached."""
        return self.target is None or (self.ratio is not None and self.ratio >= self.target)


def race(ours: Callable[[int], object], floor: Callable[[int], object], rounds: int, rows: int) -> dict[str, float]:
    """The rates and the ratio of both, run in turn; each is told the round, and handles so many rows in it."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for who in (0, 1) if turn % 2 == 0 else (1, 0):
            start = perf_counter()
            (ours, floor)[who](turn)
            times[who].append(perf_counter() - start)
    mine, least = median(times[0]), median(times[1])
    return {"rate": rows / mine, "floor_rate": rows / least, "ratio": least / mine}
