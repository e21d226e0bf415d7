"""The small interface that a client needs of a database.

An engine in this process serves it, and a connection to a server will. It speaks in model values and Arrow
batches; whoever serves it checks everything, and whoever calls it trusts nothing but its answers.
"""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from kolk.model.ids import PlainTag, TableId
from kolk.model.names import TableName
from kolk.model.page import ChangelogPage
from kolk.model.table import TableInfo, TableSpec
from kolk.model.write import Write


class ScanPages(Protocol):
    """An open scan."""

    offsets: dict[str, int]

    def next(self) -> pa.RecordBatch | None:
        """The next page; None at the end."""
        ...

    def close(self) -> None:
        """Let the scan go. Idempotent."""
        ...


class Wakeup(Protocol):
    """How to wait for more changes. Read ``count`` before looking, then wait with it."""

    @property
    def count(self) -> int:
        """Grows whenever something may have changed."""
        ...

    def wait(self, seen: int, seconds: float) -> None:
        """Until the count is no longer ``seen``, or for so long."""
        ...

    def notify(self) -> None:
        """Wake everybody who waits."""
        ...


class Service(Protocol):
    """A database, as the client sees it. Thread-safe."""

    @property
    def signal(self) -> Wakeup:
        """Wakes followers."""
        ...

    def create_table(self, spec: TableSpec, *, if_not_exists: bool = False) -> TableInfo:
        """Make a table."""
        ...

    def table(self, name: TableName) -> TableInfo:
        """The table of this name."""
        ...

    def tables(self) -> list[TableInfo]:
        """All tables, by name."""
        ...

    def drop_table(self, name: TableName) -> None:
        """Remove a table."""
        ...

    def truncate(self, table: TableId) -> dict[str, int]:
        """Remove every row; the answer is the end offsets."""
        ...

    def put(self, table: TableId, write: Write, tag: PlainTag) -> dict[str, int]:
        """Apply a write once; the answer is the end offset of every bucket it touched."""
        ...

    def get(self, table: TableId, keys: pa.RecordBatch, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows of these keys, in their order, without those that are not there."""
        ...

    def prefix(self, table: TableId, rows: pa.RecordBatch, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows whose keys start with the values of this one row."""
        ...

    def open_scan(self, table: TableId, names: Sequence[str] | None = None, limit: int | None = None) -> ScanPages:
        """The whole table at one moment."""
        ...

    def bounds(self, table: TableId) -> dict[str, tuple[int, int]]:
        """The start and end offset of every bucket."""
        ...

    def offsets_at(self, table: TableId, timestamp_ms: int) -> dict[str, int]:
        """The first offset of every bucket committed at or after this time."""
        ...

    def read_changes(self, table: TableId, bucket: str, offset: int, stop: int | None = None) -> ChangelogPage:
        """The next changes of a bucket."""
        ...

    def describe(self, table: TableId) -> dict[str, object]:
        """A table and its buckets in plain values."""
        ...
