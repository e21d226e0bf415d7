"""The locks of all tables, as their buckets see them: one value for each table, replaced whole.

Whoever replaces it holds a lock for a moment only, so that an owner can renew while another one's changes are being
taken back, however long that lasts.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from kolk.errors import Fenced, LockExpired
from kolk.model.ids import TableId
from kolk.model.owner import Lock, Locks, OwnerRecord
from kolk.runtime.clock import Clock

_NOBODY: Locks = {}


class LockTable:
    """Who has which columns. Thread-safe: one lock, held for a moment, under which nothing else is taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        # Replaced under _mutex, read by anyone.
        self._locks: dict[TableId, Locks] = {}

    def guard(self, table: TableId) -> Callable[[], Locks]:
        """What the buckets of a table look at."""
        return lambda: self._locks.get(table, _NOBODY)

    def of(self, table: TableId) -> Locks:
        """The locks of a table, by the numbers of their owners."""
        return self._locks.get(table, _NOBODY)

    def all(self) -> list[Lock]:
        """Those of all tables."""
        return [lock for locks in list(self._locks.values()) for lock in locks.values()]

    def current(self, table: TableId, number: int, fence: int) -> Lock:
        """The lock of a writer; Fenced if there is a newer one, or none any more."""
        lock = self.of(table).get(number)
        if lock is None or lock.record.fence != fence or lock.is_recovering:
            raise Fenced("a newer writer goes on in this owner's name, or it was released")
        return lock

    def publish(self, record: OwnerRecord, *, is_recovering: bool = False) -> None:
        """Let the buckets see a lock whose time begins now."""
        expires = self._clock.monotonic() + record.ttl_seconds
        with self._mutex:
            self._put(Lock(record, expires, is_recovering))

    def fence(self, record: OwnerRecord) -> None:
        """Let nobody write under a lock any more; its time goes on as it was."""
        with self._mutex:
            known = self.of(record.table).get(record.number)
            expires = self._clock.monotonic() if known is None else known.expires
            self._put(Lock(record, expires, is_recovering=True))

    def replace(self, lock: Lock) -> None:
        """Let the buckets see what became of a lock; its time is what it is."""
        with self._mutex:
            known = self.of(lock.record.table).get(lock.record.number)
            self._put(lock if known is None else replace(lock, expires=known.expires))

    def renew(self, table: TableId, number: int, fence: int) -> float:
        """Let the time of a lock begin anew; how long that is."""
        with self._mutex:
            lock, now = self.current(table, number, fence), self._clock.monotonic()
            if not lock.is_live(now):
                raise LockExpired(f"the lock of {lock.record.name!r} was not renewed in time; begin again")
            self._put(replace(lock, expires=now + lock.record.ttl_seconds))
            return lock.record.ttl_seconds

    def withdraw(self, record: OwnerRecord) -> None:
        """Let its columns be free."""
        with self._mutex:
            left = {number: lock for number, lock in self.of(record.table).items() if number != record.number}
            if left:
                self._locks[record.table] = left
            else:
                self._locks.pop(record.table, None)

    def drop_table(self, table: TableId) -> None:
        """Forget the locks of a table."""
        with self._mutex, suppress(KeyError):
            del self._locks[table]

    def _put(self, lock: Lock) -> None:
        table = lock.record.table
        self._locks[table] = {**self.of(table), lock.record.number: lock}
