"""The messages about snapshots, leases and backups. They are answered with values of the model: ``SnapshotInfo``,
``LeaseState``, ``LeaseInfo`` and ``BackupState``."""

from typing import Annotated

import msgspec

from kolk.wire.message import BucketNames, Message, Number, Table

LeaseId = Annotated[str, msgspec.Meta(max_length=128)]
Holder = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
"""Drawn at random by who asks for a lease, and the same when he asks again."""
Snapshots = Annotated[dict[str, Number], msgspec.Meta(max_length=20_000)]
"""Snapshots by bucket."""


class TakeSnapshot(Message, frozen=True, tag="take_snapshot"):
    """Copy what changed of a table."""

    table: Table


class ListSnapshots(Message, frozen=True, tag="snapshots"):
    """The snapshots of a table."""

    table: Table


class LeaseTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to lease of a table: the newest snapshots, or some by bucket."""

    table: Table
    snapshots: Snapshots | None = None


class AcquireLease(Message, frozen=True, tag="acquire_lease"):
    """Begin a lease, or with its generation, let it keep more."""

    lease: LeaseId
    holder: Holder
    ttl_seconds: float
    tables: Annotated[list[LeaseTable], msgspec.Meta(max_length=10_000)]
    generation: Number = 0


class JoinLease(Message, frozen=True, tag="join_lease"):
    """Go on in the name of a lease."""

    lease: LeaseId
    holder: Holder
    ttl_seconds: float | None = None


class RenewLease(Message, frozen=True, tag="renew_lease"):
    """Let the time of a lease begin anew."""

    lease: LeaseId
    generation: Number
    ttl_seconds: float | None = None


class ReleaseLease(Message, frozen=True, tag="release_lease"):
    """Keep no longer what a lease keeps of some tables, by name, or of some of their buckets."""

    lease: LeaseId
    generation: Number
    buckets: Annotated[dict[str, BucketNames | None], msgspec.Meta(max_length=10_000)]


class DropLease(Message, frozen=True, tag="drop_lease"):
    """End a lease of the caller; without a generation, and of an operator, anybody's."""

    lease: LeaseId
    generation: Number | None = None


class GetLease(Message, frozen=True, tag="lease"):
    """A lease, with all that it keeps."""

    lease: LeaseId


class ListLeases(Message, frozen=True, tag="leases"):
    """The leases of tables that the caller may see."""


class Backup(Message, frozen=True, tag="backup"):
    """Begin a backup under a name, or go on with it for a moment. Answered with ``BackupState``."""

    name: Annotated[str, msgspec.Meta(max_length=200)]
    nonce: Annotated[str, msgspec.Meta(max_length=200)]


class CancelBackup(Message, frozen=True, tag="cancel_backup"):
    """Give a backup up."""

    nonce: Annotated[str, msgspec.Meta(max_length=200)]


AboutSnapshots = TakeSnapshot | ListSnapshots
AboutLeases = AcquireLease | JoinLease | RenewLease | ReleaseLease | DropLease | GetLease | ListLeases
AboutBackups = Backup | CancelBackup
AboutKeeping = AboutSnapshots | AboutLeases | AboutBackups
