"""put: upserts of 1k, 10k and 100k rows, each durable before it is answered."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.floor import encoded, loaded
from bench.measure import Figure, Scale, race
from bench.workload import Workload

# Rows a put, puts a round, target. At 1k the fixed cost of a put shows, so it has no target.
_CASES = ((1_000, 50, None), (10_000, 10, 0.7), (100_000, 2, 0.7))


def put(scale: Scale) -> Iterator[Figure]:
    """One figure for each size of put."""
    workload = Workload(scale.keys)
    with loaded(workload) as (folder, table, floor):
        for rows, puts, target in _CASES:
            before = _log_bytes(folder)
            table.put(workload.updates(rows))
            frame = bytes(_log_bytes(folder) - before)
            batches = [[workload.updates(rows) for _ in range(puts)] for _ in range(scale.rounds)]
            prepared = [[encoded(batch) for batch in turn] for turn in batches]
            ours, bare = partial(_put_all, table.put, batches), partial(_put_all, partial(floor.put, frame), prepared)
            rates = race(ours, bare, scale.rounds, rows * puts)
            case, note = f"{rows:,} rows a put", f"frame of {len(frame):,} B"
            yield Figure(bench="put", case=case, target=target, note=note, **rates)


def _put_all(work: Callable[[Any], object], batches: Sequence[Sequence[Any]], turn: int) -> None:
    for batch in batches[turn]:
        work(batch)


def _log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.log"))
