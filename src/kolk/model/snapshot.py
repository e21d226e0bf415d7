"""Snapshots as values: durable, numbered copies of a bucket's rows, each standing for one offset of its log."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of a snapshot: two are the same if their digests are, whatever they are called."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What is known of a snapshot without opening it.

    ``offset`` is that of the first change that is not in it, ``rows`` how many rows it has, None if nobody counted them
    (the WAL image). ``new_bytes`` is how much was copied for it; the rest of its files it shares with earlier ones. One
    without files is of a bucket that never had anything.
    """

    id: int
    offset: int
    rows: int | None
    schema_id: int
    taken_ms: int
    files: tuple[SnapshotFile, ...] = ()
    new_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of all its files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """A snapshot, as its users see it. ``leases`` is how many leases keep it."""

    table: str
    bucket: str
    id: int
    offset: int
    rows: int | None
    schema_id: int
    taken: datetime
    size_bytes: int
    new_bytes: int
    leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCounts:
    """What became of snapshots since the database was opened, and how the last one went."""

    taken: int
    failed: int
    removed: int
    copied_bytes: int
    last_seconds: float | None
    oldest_age_seconds: float | None
    """How long ago the table was looked at whose turn was longest ago; one that had not changed counts too."""
    interval_seconds: float = 0.0
    """How often a table has its turn."""
    broken: int = 0
    """Those that are there and cannot be used, of the buckets that somebody has asked for."""
