"""The calls about snapshots, leases and backups that an engine serves; each goes to who does it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from kolk.engine.backup import Backups
from kolk.engine.keeping import Keeping
from kolk.engine.scans import LOCAL
from kolk.model.backup import BackupState
from kolk.model.ids import TableId
from kolk.model.lease import LeaseInfo
from kolk.model.lease_state import LeaseState
from kolk.model.snapshot import SnapshotInfo
from kolk.model.table import TableInfo


class KeepingCalls(ABC):
    """A part of ``Engine``."""

    keeping: Keeping
    backups: Backups

    @abstractmethod
    def table_by_id(self, table: TableId) -> TableInfo:
        """The table of this id."""

    @abstractmethod
    def check_usable(self) -> None:
        """Whether anything can be asked of the engine."""

    def take_snapshot(self, table: TableId) -> list[SnapshotInfo]:
        """Copy what changed of a table, as of one moment; the answer is the newest snapshot of every bucket."""
        return self.keeping.take(self.table_by_id(table))

    def snapshots(self, table: TableId) -> list[SnapshotInfo]:
        """The snapshots of a table."""
        return self.keeping.snapshots(self.table_by_id(table))

    def acquire_lease(
        self,
        id: str,
        holder: int,
        tables: Mapping[TableId, Mapping[str, int] | None],
        ttl_seconds: float,
        generation: int = 0,
    ) -> LeaseState:
        """Begin a lease, or with its generation, let it keep more."""
        wanted = [(self.table_by_id(table), snapshots) for table, snapshots in tables.items()]
        return self.keeping.acquire(id, holder, wanted, ttl_seconds, LOCAL, generation)

    def join_lease(self, id: str, holder: int, ttl_seconds: float | None = None) -> LeaseState:
        """Go on in the name of a lease."""
        self.check_usable()
        return self.keeping.join(id, holder, LOCAL, ttl_seconds)

    def renew_lease(self, id: str, generation: int, ttl_seconds: float | None = None) -> LeaseState:
        """Let the time of a lease begin anew."""
        self.check_usable()
        return self.keeping.renew(id, generation, LOCAL, ttl_seconds)

    def release_lease(self, id: str, generation: int, buckets: Mapping[str, Sequence[str] | None]) -> LeaseState | None:
        """Keep no longer what a lease keeps of some tables, or of some of their buckets."""
        self.check_usable()
        return self.keeping.release(id, generation, LOCAL, buckets)

    def drop_lease(self, id: str, generation: int | None = None) -> bool:
        """End a lease, whoever's it is without a generation; whether there was one."""
        self.check_usable()
        return self.keeping.drop(id, generation)

    def lease(self, id: str) -> LeaseState:
        """A lease, with all that it keeps."""
        self.check_usable()
        return self.keeping.lease(id)

    def leases(self) -> list[LeaseInfo]:
        """The leases, the oldest first."""
        self.check_usable()
        return self.keeping.leases()

    def backup(self, target: str, nonce: str) -> BackupState:
        """Begin a backup in a folder, or go on with it for a moment."""
        self.check_usable()
        return self.backups.advance(Path(target), nonce, LOCAL)

    def cancel_backup(self, nonce: str) -> None:
        """Give a backup up."""
        self.check_usable()
        self.backups.cancel(nonce)
