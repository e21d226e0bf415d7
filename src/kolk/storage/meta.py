"""The small durable tables: catalog today, leases, owners and transactions later.

A record is a key, bytes and a version; ``write`` changes several records at once or not at all, each on the
condition that its version is still the expected one. That is all that anybody may ask of it, so that several
machines can later be served by another store behind the same few calls. SQLite does the work here, with
``synchronous=FULL``: what ``write`` has done survives a power cut.
"""

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kolk.errors import Corrupted, DiskFull, MetaConflict, Stopped

ABSENT = 0
"""The version of a record that does not exist."""

RECORD_BYTES_MAX = 900_000
"""Records stay below what ZooKeeper takes, so that a database can move there."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class MetaChange:
    """Set a record (or delete it: value None) if it is at the expected version."""

    key: str
    value: bytes | None
    expected: int


class Meta:
    """Durable records with compare-and-set. Thread-safe: one lock, the last in the lock order."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS record (key TEXT PRIMARY KEY, value BLOB, version INTEGER) WITHOUT ROWID"
            )
        except sqlite3.DatabaseError as error:
            raise Corrupted(f"the catalog {path.name} cannot be read ({error}); restore it from a backup") from error

    def get(self, key: str) -> Record | None:
        """The record of this key."""
        with self._lock:
            row = self._db.execute("SELECT key, value, version FROM record WHERE key = ?", (key,)).fetchone()
        return Record(*row) if row else None

    def list(self, prefix: str) -> list[Record]:
        """The records whose keys start with ``prefix``, by key."""
        with self._lock:
            rows = self._db.execute(
                "SELECT key, value, version FROM record WHERE substr(key, 1, ?) = ? ORDER BY key",
                (len(prefix), prefix),
            ).fetchall()
        return [Record(*row) for row in rows]

    def write(self, changes: Sequence[MetaChange]) -> None:
        """Apply all changes durably, or none."""
        for change in changes:
            assert change.value is None or len(change.value) <= RECORD_BYTES_MAX, "callers limit their records"
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for change in changes:
                    self._apply(change)
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
                    raise DiskFull("the disk is full; nothing was changed, free some space and retry") from error
                if isinstance(error, sqlite3.Error):
                    raise Stopped(f"the catalog cannot be written ({error}); reopen the database") from error
                raise

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._db.close()

    def _apply(self, change: MetaChange) -> None:
        if change.value is None:
            sql = "DELETE FROM record WHERE key = ? AND version = ?"
            done = self._db.execute(sql, (change.key, change.expected))
        elif change.expected == ABSENT:
            sql = "INSERT INTO record VALUES (?, ?, 1) ON CONFLICT DO NOTHING"
            done = self._db.execute(sql, (change.key, change.value))
        else:
            sql = "UPDATE record SET value = ?, version = version + 1 WHERE key = ? AND version = ?"
            done = self._db.execute(sql, (change.value, change.key, change.expected))
        if done.rowcount != 1:
            raise MetaConflict(f"the record {change.key!r} was changed by somebody else; read it again")
