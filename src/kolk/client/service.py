"""The small interface that a client needs of a database.

An engine in this process serves it, and so does a connection to a server. It speaks in model values and Arrow
batches; whoever serves it checks everything, and whoever calls it trusts nothing but its answers.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from kolk.model.backup import BackupState
from kolk.model.evolution import Operation
from kolk.model.follower import Follower, Session
from kolk.model.ids import OwnerTag, PlainTag, TableId
from kolk.model.lease import LeaseInfo
from kolk.model.lease_state import LeaseState
from kolk.model.names import TableName
from kolk.model.owner import Claim, OwnerInfo, OwnerRecord, Task
from kolk.model.page import ChangelogPage
from kolk.model.partition import Partition, PartitionEvent
from kolk.model.predicate import Predicate
from kolk.model.scan import Resumed, ScanInfo, ScanPage, ScanRequest
from kolk.model.schema import Schema
from kolk.model.snapshot import SnapshotInfo
from kolk.model.table import TableInfo, TableSpec
from kolk.model.transaction import CommitRequest, CommitResult, Seal, Staging, TransactionInfo
from kolk.model.write import Write


class ScanPages(Protocol):
    """An open scan, for one reader. ``estimate`` is about how many rows there are, if anybody knows; ``resumed`` is
    what had been read before the token that it was opened at; ``pins`` are the snapshots that it shows, by bucket, None
    for the living rows; ``is_consistent`` says that all buckets are of one moment; ``starts`` is where the logs began,
    of a log table that several readers have opened."""

    id: str
    offsets: dict[str, int]
    schema: pa.Schema
    estimate: int | None
    resumed: Resumed | None
    pins: dict[str, int] | None
    is_consistent: bool
    starts: dict[str, int]

    def next(self) -> ScanPage | None:
        """The next page; None at the end. A page without rows only says that the reading goes on."""
        ...

    def close(self) -> None:
        """Let the scan go. Idempotent."""
        ...


class ChangePages(Protocol):
    """A changelog that is being read."""

    def next(self, seconds: float) -> tuple[str, ChangelogPage] | PartitionEvent | None:
        """The next page and its bucket, or what became of a partition; None if there is nothing now, after waiting at
        most so long for more."""
        ...

    def close(self) -> None:
        """End the reading, also one that waits in another thread. Idempotent."""
        ...


class Service(Protocol):
    """A database, as the client sees it. Thread-safe."""

    @property
    def path(self) -> object:
        """Where it is, as text shows it: a folder, or the address of a server. Nobody is asked for it."""
        ...

    def begin_owner(self, table: TableId, claim: Claim) -> OwnerRecord:
        """Take columns of a table, and take back what was left uncommitted. Made again with the same token it has the
        same fence."""
        ...

    def put_owned(self, table: TableId, write: Write, tag: OwnerTag) -> dict[str, int]:
        """Write as an owner; the answer is the end offsets."""
        ...

    def commit_owner(
        self, table: TableId, number: int, fence: int, epoch: int, seqs: Mapping[str, int], state: bytes
    ) -> OwnerRecord:
        """Let an epoch, and those before it, stand; the answer is what is committed then, also if it was before."""
        ...

    def renew_owner(self, table: TableId, number: int, fence: int) -> float:
        """Let the time of a lock begin anew."""
        ...

    def rest_owner(self, table: TableId, number: int, fence: int) -> None:
        """Take back what is not committed, and let the columns go."""
        ...

    def release_owner(
        self, table: TableId, owner: str, fence: int | None = None, *, number: int | None = None, keep: bool = False
    ) -> bool:
        """Forget an owner: one's own, by its number and fence, or whoever's it is; ``keep`` what it has not committed,
        or take it back. Whether there was one."""
        ...

    def begin_task(self, table: TableId, number: int, fence: int, epoch: int, partition: int) -> Task:
        """One more attempt at a task of an owner's epoch; if it is through, what it left."""
        ...

    def seal_task(
        self,
        table: TableId,
        number: int,
        fence: int,
        partition: int,
        ticket: int,
        seqs: Mapping[str, int],
        message: bytes,
    ) -> None:
        """Let an attempt be what its task leaves: ``seqs`` are its last puts by bucket, ``message`` is for whoever
        tries again."""
        ...

    def commit_tasks(
        self,
        table: TableId,
        number: int,
        fence: int,
        epoch: int,
        tasks: Mapping[str, tuple[int, int]],
        state: bytes,
        *,
        unsealed: bool = False,
    ) -> None:
        """Let an epoch stand: what these tickets have written, and nothing else of it; ``unsealed`` also if whoever
        wrote it has not said that it is through, and only the caller knows."""
        ...

    def list_owners(self) -> list[OwnerInfo]:
        """The locks that there are."""
        ...

    def stage(self, staging: Staging, number: int, rows: pa.RecordBatch) -> None:
        """Keep rows for a commit. The batches of a handle are numbered from 0 on; a number that was staged before is
        answered, and its rows are kept once."""
        ...

    def keep_staged(self, staging: Staging) -> None:
        """Say that more is to come under a handle, whose time begins anew; StagingGone if it is not there any more."""
        ...

    def seal(self, staging: Staging, batches: int) -> Seal:
        """Make what was staged under a handle durable, so many batches; nothing is added to it afterwards."""
        ...

    def commit_transaction(self, request: CommitRequest) -> CommitResult:
        """Apply what was staged, unless this version, or a later one, was committed before. Made again with the same
        handles it answers the same."""
        ...

    def discard(self, handles: Sequence[str]) -> int:
        """Forget what was staged, unless a commit needs it; the answer is how many of these handles there were."""
        ...

    def list_transactions(self) -> list[TransactionInfo]:
        """What is staged, and what every application has committed last."""
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

    def drop_table(self, name: TableName, table: TableId | None = None) -> None:
        """Remove a table; with an id, only if the name still stands for it."""
        ...

    def alter_table(self, table: TableId, based_on: int, operations: Sequence[Operation]) -> TableInfo:
        """Make the next version of a table's schema of the version that the caller knows."""
        ...

    def set_options(self, table: TableId, options: Mapping[str, str]) -> TableInfo:
        """Set options of a living table."""
        ...

    def schema(self, table: TableId, schema_id: int) -> Schema:
        """A version of a table's schema."""
        ...

    def truncate(self, table: TableId) -> dict[str, int]:
        """Remove every row; the answer is the end offsets."""
        ...

    def partitions(self, table: TableId) -> list[Partition]:
        """A table's partitions, by name."""
        ...

    def add_partition(self, table: TableId, name: str, *, if_not_exists: bool = False) -> Partition:
        """Make a partition."""
        ...

    def drop_partition(self, table: TableId, name: str, number: int | None = None) -> None:
        """Remove a partition; with a number, only if the name still stands for it."""
        ...

    def put(self, table: TableId, write: Write, tag: PlainTag) -> dict[str, int]:
        """Apply a write once; the answer is the end offset of every bucket it touched."""
        ...

    def puts(self, table: TableId, writes: Iterable[tuple[Write, PlainTag]]) -> Generator[dict[str, int], None, None]:
        """Apply writes in order, several under way at once if that helps; the first that fails ends it. Closed early,
        it still applies all that it has taken."""
        ...

    def get(
        self, table: TableId, keys: pa.RecordBatch, names: Sequence[str] | None = None, schema_id: int = 0
    ) -> pa.RecordBatch:
        """The rows of these keys, in their order, without those that are not there. ``schema_id`` is the version of the
        schema that keys, names and rows are of, here and below; 0 is the current one."""
        ...

    def prefix(
        self, table: TableId, rows: pa.RecordBatch, names: Sequence[str] | None = None, schema_id: int = 0
    ) -> pa.RecordBatch:
        """The rows whose keys start with the values of this one row."""
        ...

    def open_scan(self, table: TableId, request: ScanRequest) -> ScanPages:
        """The table at one moment: all rows, or those that the request selects."""
        ...

    def join_scan(self, scan: str, token: str = "", buckets: Sequence[str] | None = None) -> ScanPages:
        """Read an open scan from its start, or from a token on."""
        ...

    def list_scans(self) -> list[ScanInfo]:
        """The scans that are open."""
        ...

    def close_scan(self, scan: str) -> bool:
        """End a scan, whoever reads it; whether there was one."""
        ...

    def take_snapshot(self, table: TableId) -> list[SnapshotInfo]:
        """Copy what changed of a table; the answer is the newest snapshot of every bucket."""
        ...

    def snapshots(self, table: TableId) -> list[SnapshotInfo]:
        """The snapshots of a table, by bucket and number."""
        ...

    def acquire_lease(
        self,
        id: str,
        holder: int,
        tables: Mapping[TableId, Mapping[str, int] | None],
        ttl_seconds: float,
        generation: int = 0,
    ) -> LeaseState:
        """Begin a lease on the newest snapshots of tables, or on some by bucket; or with its generation, let it keep
        more. ``holder`` is drawn at random, and the same in a retry."""
        ...

    def join_lease(self, id: str, holder: int, ttl_seconds: float | None = None) -> LeaseState:
        """Go on in the name of a lease; whoever held it before has lost it."""
        ...

    def renew_lease(self, id: str, generation: int, ttl_seconds: float | None = None) -> LeaseState:
        """Let the time of a lease begin anew; LeaseLost if it is gone."""
        ...

    def release_lease(self, id: str, generation: int, buckets: Mapping[str, Sequence[str] | None]) -> LeaseState | None:
        """Keep no longer what a lease keeps of some tables, by name, or of some of their buckets; None if the lease is
        gone, then or before."""
        ...

    def drop_lease(self, id: str, generation: int | None = None) -> bool:
        """End a lease, whoever's it is without a generation; whether there was one."""
        ...

    def lease(self, id: str) -> LeaseState:
        """A lease, with all that it keeps."""
        ...

    def leases(self) -> list[LeaseInfo]:
        """The leases, the oldest first."""
        ...

    def backup(self, target: str, nonce: str) -> BackupState:
        """Begin a backup, or go on with it for a moment: in a folder, or under a name where the server keeps them. The
        nonce is drawn at random, and the same in every call of one backup."""
        ...

    def cancel_backup(self, nonce: str) -> None:
        """Give a backup up. Idempotent."""
        ...

    def bounds(self, table: TableId) -> dict[str, tuple[int, int]]:
        """The start and end offset of every bucket and, of a partitioned table, of the record of partitions."""
        ...

    def offsets_at(self, table: TableId, timestamp_ms: int) -> dict[str, int]:
        """The first offset of every bucket committed at or after this time."""
        ...

    def offsets_since(self, table: TableId, timestamp_ms: int) -> dict[str, int | None]:
        """The same; None for a bucket whose log may not have all that was committed since."""
        ...

    def open_changes(
        self,
        table: TableId,
        starts: Mapping[str, int],
        stops: Mapping[str, int | None],
        where: Predicate | None = None,
        schema_id: int | None = None,
    ) -> ChangePages:
        """The changelog of the buckets in ``starts``, each up to its stop; new partitions, if the predicate selects
        them, are added. Without a version each page is in that which it was written with."""
        ...

    def open_follower(self, table: TableId, name: str, reader: int, starts: Mapping[str, int] | None) -> Session:
        """Begin to read in a follower's name, or go on. ``reader`` is drawn at random, and the same in a retry."""
        ...

    def commit_follower(self, table: TableId, name: str, epoch: int, offsets: Mapping[str, int]) -> None:
        """Persist how far a follower has come."""
        ...

    def drop_follower(self, table: TableId, name: str) -> None:
        """Forget a follower."""
        ...

    def followers(self) -> list[Follower]:
        """The followers of all tables, by table and name."""
        ...

    def status(self) -> dict[str, Any]:
        """How the database is, in plain values."""
        ...

    def describe(self, table: TableId) -> dict[str, object]:
        """A table and its buckets in plain values."""
        ...
