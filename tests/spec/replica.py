"""What a reader makes of a table: rows by key, kept with no more than what it is handed, and with every doubt noted.

A change must follow from what the replica has, and the offsets of a log from each other: so a hole, a repetition or a
change of the wrong moment shows where it happens, and not only when the rows differ in the end.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

import kolk
from kolk.model.partition import PARTITIONS, PartitionEvent, partition_of

Row = dict[str, Any]
Key = tuple[Any, ...]


class Replica:
    """The rows so far, and what was wrong with how they came. Confined to one thread."""

    def __init__(self, key: Sequence[str]) -> None:
        self.rows: dict[Key, Row] = {}
        self.wrong: list[str] = []
        self._key = tuple(key)
        self._buckets: dict[Key, str] = {}
        self._next: dict[str, int] = {}
        self._later: set[str] = set()

    def load(self, table: kolk.Table, **how: Any) -> kolk.Scan:
        """Begin with a scan of the table."""
        with table.scan(**how) as scan:
            for page in scan.pages():
                assert page.batch is not None
                buckets = [bucket for bucket, count in page.runs for _ in range(count)]
                for row, bucket in zip(page.batch.to_pylist(), buckets, strict=True):
                    self.insert(row, bucket, "of the scan")
            return scan

    def go_on(self, offsets: Mapping[str, int], *, or_later: bool = False) -> None:
        """From here on every change is expected, from these offsets on, or from some later ones."""
        self._next = {bucket: offset for bucket, offset in offsets.items() if bucket != PARTITIONS}
        self._later = set(self._next) if or_later else set()

    def apply(self, batch: pa.RecordBatch, *, is_log: bool = True) -> None:
        """Take over changes: of a log, where none may be missing, or of what else a bootstrap hands out."""
        for change in batch.to_pylist():
            bucket, offset, kind = change["_bucket"], change["_log_offset"], change["_change_type"]
            row = {name: value for name, value in change.items() if not name.startswith("_")}
            if is_log:
                expected = self._next.get(bucket, 0)
                if offset != expected and not (offset > expected and bucket in self._later):
                    self.wrong.append(f"bucket {bucket} goes on at {offset}, not at {expected}")
                self._next[bucket] = offset + 1
                self._later.discard(bucket)
            what = f"{kind} at {bucket}:{offset}"
            if kind in ("+I", "+U"):
                self.insert(row, bucket, what)
            else:
                self._remove(row, what)

    def on_partition(self, event: PartitionEvent) -> None:
        """A partition came or went; with it go its rows."""
        mine = [key for key, bucket in self._buckets.items() if partition_of(bucket) == event.partition]
        for key in mine if event.kind == "dropped" else []:
            del self.rows[key], self._buckets[key]
        self._next = {name: at for name, at in self._next.items() if partition_of(name) != event.partition}

    def insert(self, row: Row, bucket: str, what: str) -> None:
        """Take over a row that is new."""
        key = self._key_of(row)
        if key in self.rows:
            self.wrong.append(f"{what}: {key} is there already")
        self.rows[key], self._buckets[key] = row, bucket

    def _remove(self, row: Row, what: str) -> None:
        key = self._key_of(row)
        if self.rows.pop(key, None) != row:
            self.wrong.append(f"{what}: {key} was not as it says")
        self._buckets.pop(key, None)

    def _key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self._key)


class Moments:
    """How a table was, at each moment that was noted. Whoever writes notes it after every change."""

    def __init__(self, table: kolk.Table) -> None:
        self._table = table
        self._noted: list[tuple[dict[str, int], dict[Key, Row]]] = []

    def note(self, rows: Mapping[Key, Row]) -> None:
        """These are the rows of the table now."""
        self._noted.append((self._table.scan(limit=0).offsets, dict(rows)))

    def at(self, offsets: Mapping[str, int]) -> dict[Key, Row]:
        """The rows at these offsets, which may be of some buckets only."""
        found = [rows for moment, rows in self._noted if offsets.items() <= moment.items()]
        assert found, "the table was never at these offsets"
        return found[-1]


def by_key(table: kolk.Table, rows: pa.Table | Iterable[Row]) -> dict[Key, Row]:
    """Rows by key; each key once."""
    listed = rows.to_pylist() if isinstance(rows, pa.Table) else list(rows)
    found = {tuple(row[name] for name in table.schema.primary_key): row for row in listed}
    assert len(found) == len(listed), "a key comes twice"
    return found


def replayed(table: kolk.Table, stop: Mapping[str, int] | None = None) -> dict[Key, Row]:
    """The rows that the changelog leads to from its start: now, or at some offsets. Dropped partitions left nothing."""
    replica = Replica(table.schema.primary_key)
    start = {PARTITIONS: 1} if table.info.is_partitioned else None
    with table.changelog(start=start, stop=stop, on_partition=replica.on_partition) as log:
        for batch in log:
            replica.apply(batch)
    assert replica.wrong == []
    return replica.rows
