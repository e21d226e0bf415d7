"""What the tests of snapshots and leases share: how a copy is followed to the present, and what is kept of a table."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.spec.replica import Key, Replica, Row, by_key
from tests.spec.scanned import rows as rows_of

import kolk


def numbers(table: kolk.Table) -> dict[str, list[int]]:
    """The snapshots that there are, by bucket."""
    found: dict[str, list[int]] = {}
    for each in table.snapshots():
        found.setdefault(each.bucket, []).append(each.id)
    return found


def churn(table: kolk.Table, *, times: int = 20) -> Iterator[int]:
    """Rows of ``tests.spec.scanned`` come, change and go, and with each time there is a snapshot more."""
    for turn in range(times):
        table.put(rows_of(range(turn, 60, 7), n=turn + 1))
        table.delete([turn, 59 - turn])
        table.put(rows_of([1_000 + turn]))
        table.take_snapshot()
        yield turn


def read_slowly(scan: kolk.Scan, meanwhile: Iterator[object]) -> list[Row]:
    """All rows of a scan, while something happens after every page."""
    found: list[Row] = []
    for batch in scan:
        found += batch.to_pylist()
        next(meanwhile, None)
    return found


def follow(table: kolk.Table, rows: Sequence[Row], offsets: Mapping[str, int]) -> dict[Key, Row]:
    """The rows that the changelog from these offsets makes of some; every change must fit."""
    replica = Replica(table.schema.primary_key)
    columns = table.info.spec.partition_by
    for row in rows:
        partition = "/".join(f"{name}={row[name]}" for name in columns)
        replica.insert(row, f"{partition}/0" if columns else "0", "of the copy")
    replica.go_on(offsets)
    with table.changelog(start=offsets, on_partition=replica.on_partition) as log:
        for batch in log:
            replica.apply(batch)
    assert replica.wrong == []
    return replica.rows


def present(table: kolk.Table) -> dict[Key, Row]:
    """The rows as they are now."""
    with table.scan() as scan:
        return by_key(table, scan.to_arrow())


def same_rows(found: Sequence[Row], expected: Sequence[Row]) -> bool:
    """Whether these are the same rows, each as often."""
    return Counter(map(_frozen, found)) == Counter(map(_frozen, expected))


def _frozen(row: Row) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(row.items()))


def pass_time(small: Any, seconds: float) -> None:
    """Let time go by, and the server notice."""
    small.clock.advance(seconds=seconds)
    small.engine.reap()
