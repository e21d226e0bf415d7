"""The small durable tables: catalog, followers, leases, owners and commits.

A record is a key, bytes and a version; ``write`` changes several records at once or not at all, each on the
condition that its version is still the expected one. That is all that anybody may ask of it, so that several
machines can later be served by another store behind the same few calls. SQLite does the work here, with
``synchronous=FULL``: what ``write`` has done survives a power cut. What can be found out again may be written without
waiting for that; a power cut takes it back only together with all that was written after it.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kolk.errors import Busy, Closed, Corrupted, DiskFull, MetaConflict, Stopped

ABSENT = 0
"""The version of a record that does not exist."""

_TABLE = "CREATE TABLE IF NOT EXISTS record (key TEXT PRIMARY KEY, value BLOB, version INTEGER) WITHOUT ROWID"

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
        self._lock = threading.RLock()  # a signal handler may close the database in the middle of anything
        self._is_writing = False  # guarded by _lock
        with _typed_errors():
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.execute(_TABLE)
            except BaseException:
                self._db.close()
                raise

    def get(self, key: str) -> Record | None:
        """The record of this key."""
        with self._lock, _typed_errors():
            row = self._db.execute("SELECT key, value, version FROM record WHERE key = ?", (key,)).fetchone()
        return Record(*row) if row else None

    def list(self, prefix: str) -> list[Record]:
        """The records whose keys start with ``prefix``, by key."""
        with self._lock, _typed_errors():
            rows = self._db.execute(
                "SELECT key, value, version FROM record WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix + "\uffff"),
            ).fetchall()
        return [Record(*row) for row in rows]

    def replacement(self, key: str, value: bytes | None) -> MetaChange:
        """To set a record, or delete it, if nobody else does so before: it is as it is now."""
        record = self.get(key)
        return MetaChange(key, value, record.version if record else ABSENT)

    def write(self, changes: Sequence[MetaChange], *, syncs: bool = True) -> None:
        """Apply all changes, or none: durably, or, if it is not to sync, durably with the next write that does."""
        for change in changes:
            assert change.value is None or len(change.value) <= RECORD_BYTES_MAX, "callers limit their records"
        with self._lock, _typed_errors():
            if self._is_writing:
                # By this very thread, which a signal handler keeps from going on: the changes there are not ours.
                raise Busy("the call that was interrupted is writing the catalog; retry when that has returned")
            try:
                self._is_writing = True
                # In WAL mode NORMAL leaves the sync to the next commit that is FULL, or to the checkpoint.
                self._db.execute(f"PRAGMA synchronous={'FULL' if syncs else 'NORMAL'}")
                self._db.execute("BEGIN IMMEDIATE")
                for change in changes:
                    self._apply(change)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                self._is_writing = False

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


@contextmanager
def _typed_errors() -> Iterator[None]:
    """What SQLite says, in our words."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise Closed("the database is closed; call kolk.connect again") from error
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise DiskFull("the disk is full; nothing was changed, free some space and retry") from error
        raise Stopped(f"the catalog cannot be used ({error}); mend that and reopen the database") from error
    except sqlite3.DatabaseError as error:
        raise Corrupted(f"the catalog is damaged ({error}); restore meta.sqlite from a backup") from error
