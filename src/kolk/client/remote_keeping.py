"""Snapshots, leases and backups of a server: the part of ``Connection`` that is about them.

Every call can be made again when its answer was lost: a lease knows its holder, a release that was done is done, one
that is gone when it is dropped again was dropped by us, and a backup is known by its nonce.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kolk.client.retry import Deadline
from kolk.errors import KolkError
from kolk.model.backup import BackupState
from kolk.model.ids import TableId
from kolk.model.lease import LeaseInfo
from kolk.model.lease_state import LeaseState
from kolk.model.snapshot import SnapshotInfo
from kolk.wire import keeping as k
from kolk.wire import messages as m

_TAKE_SECONDS = 600.0
"""Copying a large table takes its time."""


class RemoteKeeping:
    """See ``Service``. Thread-safe."""

    def _act(self, action: m.Action, deadline: Deadline | None = None, lost: list[KolkError] | None = None) -> Any:
        raise NotImplementedError

    def _deadline(self, seconds: float) -> Deadline:
        raise NotImplementedError

    def take_snapshot(self, table: TableId) -> list[SnapshotInfo]:
        """See ``Service``."""
        found = self._act(k.TakeSnapshot(table=table), self._deadline(_TAKE_SECONDS))
        return m.as_record(found, list[SnapshotInfo])

    def snapshots(self, table: TableId) -> list[SnapshotInfo]:
        """See ``Service``."""
        return m.as_record(self._act(k.ListSnapshots(table=table)), list[SnapshotInfo])

    def acquire_lease(
        self,
        id: str,
        holder: int,
        tables: Mapping[TableId, Mapping[str, int] | None],
        ttl_seconds: float,
        generation: int = 0,
    ) -> LeaseState:
        """See ``Service``. What has no snapshot is copied first, which takes its time."""
        wanted = [k.LeaseTable(table, None if each is None else dict(each)) for table, each in tables.items()]
        call = k.AcquireLease(
            lease=id, holder=holder.to_bytes(16), ttl_seconds=ttl_seconds, tables=wanted, generation=generation
        )
        return m.as_record(self._act(call, self._deadline(_TAKE_SECONDS)), LeaseState)

    def join_lease(self, id: str, holder: int, ttl_seconds: float | None = None) -> LeaseState:
        """See ``Service``."""
        call = k.JoinLease(lease=id, holder=holder.to_bytes(16), ttl_seconds=ttl_seconds)
        return m.as_record(self._act(call), LeaseState)

    def renew_lease(self, id: str, generation: int, ttl_seconds: float | None = None) -> LeaseState:
        """See ``Service``."""
        return m.as_record(
            self._act(k.RenewLease(lease=id, generation=generation, ttl_seconds=ttl_seconds)), LeaseState
        )

    def release_lease(self, id: str, generation: int, buckets: Mapping[str, Sequence[str] | None]) -> LeaseState | None:
        """See ``Service``."""
        named = {table: None if names is None else list(names) for table, names in buckets.items()}
        found = self._act(k.ReleaseLease(lease=id, generation=generation, buckets=named))
        return None if found is None else m.as_record(found, LeaseState)

    def drop_lease(self, id: str, generation: int | None = None) -> bool:
        """See ``Service``. If an answer was lost, one that is not there has been dropped by us."""
        lost: list[KolkError] = []
        return self._act(k.DropLease(lease=id, generation=generation), lost=lost) or bool(lost)

    def lease(self, id: str) -> LeaseState:
        """See ``Service``."""
        return m.as_record(self._act(k.GetLease(lease=id)), LeaseState)

    def leases(self) -> list[LeaseInfo]:
        """See ``Service``."""
        return m.as_record(self._act(k.ListLeases()), list[LeaseInfo])

    def backup(self, target: str, nonce: str) -> BackupState:
        """See ``Service``. A step is short, but for the first, which takes snapshots."""
        return m.as_record(self._act(k.Backup(name=target, nonce=nonce), self._deadline(_TAKE_SECONDS)), BackupState)

    def cancel_backup(self, nonce: str) -> None:
        """See ``Service``."""
        self._act(k.CancelBackup(nonce=nonce))
