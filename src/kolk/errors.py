"""Every error Kolk raises, as one small tree.

    KolkError
    ├── InvalidInput            the caller must change something; retrying is useless
    │   ├── InvalidSchema         a type, column, key or option of a table does not make sense
    │   │   └── UnknownAggregate    there is no aggregate function of this name, here
    │   ├── InvalidName           a table, column or partition name breaks the naming rule
    │   ├── InvalidRows           rows do not fit the table: type, null, length, unknown column
    │   ├── TooLarge              a row, key or batch is over its limit
    │   ├── InvalidStatement      DDL text that cannot be read
    │   ├── InvalidArgument       any other argument of a call
    │   ├── DeletesDisabled       the table refuses deletes
    │   ├── AggregateOverflow     an aggregate does not fit the type of its column
    │   └── MixedVersions         a transaction's version is new to some of its tables, and old to others
    ├── NotFound
    │   ├── TableNotFound
    │   ├── OffsetOutOfRange      the log no longer (or not yet) has this position
    │   ├── FollowerNotFound      there is no follower of this name
    │   ├── HolderLost            what a follower had kept for itself was let go
    │   ├── PartitionNotFound     the table has no such partition
    │   ├── PartitionDropped      a partition went while it was read or written; the others go on
    │   ├── UnknownOrExpiredScan  the scan is gone: not read for too long, closed, revoked, or never there
    │   ├── SnapshotNotFound      there is no such snapshot, or no more
    │   ├── LeaseLost             the lease is gone: not renewed, dropped, taken over, or never there
    │   └── StagingGone           rows that were staged for a transaction are not there (any more)
    ├── AlreadyExists
    │   ├── TableExists
    │   ├── PartitionExists
    │   ├── LeaseExists           there is a lease of this id, which somebody else holds
    │   ├── DifferentRows         a version was committed before, with other rows
    │   └── OldVersion            a later version was committed before
    ├── Unavailable             nothing is wrong with the request; the state of the world is
    │   ├── FolderInUse           another process has the data folder open
    │   ├── DiskFull              nothing was applied; free some space and retry
    │   ├── TooManyTables         the database has as many tables as it may
    │   ├── TooManyFollowers      the table has as many followers as it may
    │   ├── TooManyPartitions     the table has as many partitions as it may
    │   ├── TooManyScans          as many scans are open as may be; wait and retry
    │   ├── TooManyLeases         there are as many leases as may be
    │   ├── TooManyStagings       as much is staged for transactions as may be
    │   ├── TooManyOwners         as many owners of columns are remembered as may be
    │   ├── FollowerTaken         a newer reader goes on in this follower's name
    │   ├── Stopped               the bucket stopped after a disk failure; reopen the database
    │   │   └── OutcomeUnknown      it stopped while this very put was under way
    │   ├── Closed                the database or scan is closed
    │   ├── UsedAfterFork         a forked child used its parent's database
    │   ├── Busy                  the server has as much to do as it may; wait and retry
    │   ├── Unreachable           no server answers at this address, or it went away in the middle
    │   └── TimedOut              the call did not end within its deadline
    ├── AccessDenied
    │   ├── Unauthenticated       no token, or one that is unknown, expired or revoked
    │   └── PermissionDenied      the token does not allow this
    ├── OwnershipError          a column lock does not allow it
    │   ├── ColumnLockConflict    somebody else owns a column, or has left it in the middle of something
    │   ├── Fenced                a newer writer goes on in this owner's name
    │   ├── LockExpired           the lock was not renewed in time; begin again
    │   ├── EpochClosed           the epoch was committed already, or a later one was begun
    │   │   └── EpochOutOfOrder     a later one was begun in this bucket, and neither is committed
    │   ├── StreamChanged         another stream writes under this owner's name
    │   ├── CommitMismatch        what is to be committed is not what arrived
    │   ├── OwnerRolledBack       what the owner takes for committed was taken back, or was never there
    │   │   └── CommitPointGone     more is committed than the owner knows of, and cannot be taken back
    │   ├── UndoImpossible        what is needed to take changes back is not there any more
    │   └── BucketSplit           two tasks of one epoch write to one bucket
    ├── PartialPut              some buckets of a put are durable, others failed
    ├── StaleTag                a retried put is too old to be told from a new one
    ├── InternalError           something inside failed that should not; please report it
    ├── MetaConflict            a catalog record was changed by somebody else meanwhile
    ├── SchemaChanged           the table was altered, and this handle is too old for what it asks
    └── Corrupted               bytes on disk are not what was written
        ├── UnknownFormat         the folder was written by a newer Kolk
        └── MetaBehindLog         a log knows a commit or an owner that the catalog does not: of different backups

Each class carries a stable ``code`` (it crosses the wire) and ``retriable``: whether the same call,
made again, can succeed without anyone changing it. A message says what happened and what to do next. This
module decides nothing and imports nothing, so that every layer may raise from it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar


class KolkError(Exception):
    """The root. Catch it to catch everything that Kolk raises on purpose.

    ``tag``, if there is one, is that of the put that failed: put again with the same data and ``tag=error.tag``, it is
    applied once, whatever became of it.
    """

    code: ClassVar[int] = 1
    retriable: bool = False
    tag: object = None


class InvalidInput(KolkError, ValueError):
    """The request itself is wrong. Nothing was applied."""

    code = 10


class InvalidSchema(InvalidInput):
    """A schema or a table option does not make sense."""

    code = 11


class UnknownAggregate(InvalidSchema):
    """There is no aggregate function of this name and version here. Register one of your own wherever it is used."""

    code = 18


class InvalidName(InvalidInput):
    """A name breaks the naming rule."""

    code = 12


class InvalidRows(InvalidInput):
    """The rows do not fit the table."""

    code = 13


class TooLarge(InvalidInput):
    """A row, key or batch is over its limit. Send less at once."""

    code = 14


class InvalidStatement(InvalidInput):
    """A DDL statement cannot be read."""

    code = 15


class InvalidArgument(InvalidInput):
    """An argument of a call is wrong."""

    code = 16


class DeletesDisabled(InvalidInput):
    """The table's ``table.delete.behavior`` is ``disable``."""

    code = 17


class AggregateOverflow(InvalidInput):
    """A sum or product does not fit its column; nothing of the put was applied."""

    code = 19


class MixedVersions(InvalidInput):
    """A transaction over several tables has a version that is new to some of them and old to others."""

    code = 34


class NotFound(KolkError, LookupError):
    """What was named does not exist."""

    code = 20


class TableNotFound(NotFound):
    """There is no such table."""

    code = 21


class OffsetOutOfRange(NotFound):
    """The log does not hold this offset: it was trimmed, or never written."""

    code = 22


class FollowerNotFound(NotFound):
    """The table has no follower of this name, or it was dropped meanwhile."""

    code = 23


class HolderLost(NotFound):
    """The log that a follower had yet to read is gone: it was not used for too long, it kept too much, or the table
    was truncated. Drop the follower, make good what was missed, and start it anew."""

    code = 24


class PartitionNotFound(NotFound):
    """The table has no such partition, and none is made for this call."""

    code = 25


class PartitionDropped(NotFound):
    """A partition was dropped, or expired, while it was being read or written.

    For whoever reads, this ends the one partition only: iterate on, and the others follow. ``partition`` is its name;
    ``unread`` is how many of its changes were not handed out, None if nobody knows.
    """

    code = 26

    def __init__(self, message: str, partition: str = "", unread: int | None = None) -> None:
        super().__init__(message)
        self.partition = partition
        self.unread = unread

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """So that it crosses process borders whole."""
        return PartitionDropped, (str(self), self.partition, self.unread)


class UnknownOrExpiredScan(NotFound):
    """The scan is gone, so it cannot be read on. Scan again, or scan with ``resume="log"``, which goes on by itself.

    ``reason`` says why: ``ttl`` (nobody read it for too long), ``closed``, ``revoked`` (a bucket was closed, dropped or
    stopped) or ``unknown`` (there never was such a scan, it is long gone, or the server was restarted).
    """

    code = 27

    def __init__(self, message: str, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """So that it crosses process borders whole."""
        return UnknownOrExpiredScan, (str(self), self.reason)


class SnapshotNotFound(NotFound):
    """The table has no such snapshot: it was never taken, or newer ones have taken its place and no lease kept it."""

    code = 28


class LeaseLost(NotFound):
    """The lease is gone, and what it kept may be too. Take a new one, and read from its start.

    ``reason`` says why: ``expired`` (not renewed in time), ``dropped``, ``taken`` (somebody else goes on in its name)
    or ``unknown`` (there never was such a lease, or it is long gone).
    """

    code = 29

    def __init__(self, message: str, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """So that it crosses process borders whole."""
        return LeaseLost, (str(self), self.reason)


class StagingGone(NotFound):
    """What was staged is not there: never sealed, expired, discarded, or of another transaction. Stage it again."""

    code = 35


class AlreadyExists(KolkError):
    """What was to be created exists."""

    code = 30


class TableExists(AlreadyExists):
    """There is a table of this name."""

    code = 31


class PartitionExists(AlreadyExists):
    """The table has this partition."""

    code = 32


class LeaseExists(AlreadyExists):
    """There is a lease of this id, held by somebody else: two that share one would let go of each other's snapshots."""

    code = 33


class DifferentRows(AlreadyExists):
    """This version of an application was committed before, with other rows, which stand; these were dropped. Let the
    job give the same rows for the same version."""

    code = 37


class OldVersion(AlreadyExists):
    """A later version of an application was committed before, so nothing was applied. Look for a checkpoint that was
    lost or restored."""

    code = 38


class Unavailable(KolkError):
    """The request is fine, but it cannot be served now."""

    code = 40


class FolderInUse(Unavailable):
    """Another process has the data folder open."""

    code, retriable = 41, True


class DiskFull(Unavailable):
    """The disk is full. Nothing was applied; free some space and retry."""

    code, retriable = 42, True


class Stopped(Unavailable):
    """A bucket met a disk failure and stopped, so that it cannot lie. Reopen the database to recover it."""

    code = 43


class OutcomeUnknown(Stopped):
    """The bucket stopped while this put was under way, so whether it is in the log is decided by recovery. Reopen the
    database and put it again with the same tag."""

    code = 47


class TooManyTables(Unavailable):
    """The database has as many tables as it may. Drop some first."""

    code = 46


class TooManyFollowers(Unavailable):
    """The table has as many followers as it may. Drop some first."""

    code = 55


class TooManyPartitions(Unavailable):
    """The table has as many partitions as it may. Drop some first, or cut it less finely."""

    code = 57


class TooManyScans(Unavailable):
    """As many scans are open as may be: of one bucket, or in all. Close some, or retry in ``retry_after`` seconds, when
    the first may be given up. ``cap`` names the setting."""

    code, retriable = 58, True

    def __init__(self, message: str, cap: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.cap = cap
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """So that it crosses process borders whole."""
        return TooManyScans, (str(self), self.cap, self.retry_after)


class TooManyLeases(Unavailable):
    """There are as many leases as may be. Drop some first."""

    code = 59


class TooManyStagings(Unavailable):
    """As much is staged for transactions as may be; commit or discard some of it."""

    code, retriable = 36, True


class TooManyOwners(Unavailable):
    """As many owners of columns are remembered as may be, of one table or in all. Let a job keep its name from run to
    run, and release the owners that are over."""

    code = 39


class FollowerTaken(Unavailable):
    """A newer reader has opened this follower, so that this one may commit no more. Stop it, or give it another
    name."""

    code = 56


class Closed(Unavailable):
    """The object was closed."""

    code = 44


class UsedAfterFork(Unavailable):
    """A forked child used the database of its parent. Call ``kolk.connect`` in the child."""

    code = 45


class Busy(Unavailable):
    """The server has as much to do as it may, or is about to stop. Nothing was applied; wait and retry."""

    code, retriable = 48, True


class Unreachable(Unavailable):
    """No server answers, or it went away in the middle of a call. A put may have been applied or not: see ``tag``."""

    code, retriable = 49, True


class TimedOut(Unavailable):
    """The call did not end within its deadline. A put may have been applied, or may still be: see ``tag``."""

    code, retriable = 54, True


class AccessDenied(KolkError):
    """The caller may not do this."""

    code = 70


class Unauthenticated(AccessDenied):
    """There is no token with the call, or it is unknown, expired or revoked."""

    code = 71


class PermissionDenied(AccessDenied):
    """The token is good, but it does not allow this operation on this table, which a server writes into its log."""

    code = 72
    table: str = ""


class OwnershipError(KolkError):
    """A column lock does not allow it."""

    code = 80


class ColumnLockConflict(OwnershipError):
    """Somebody else owns one of the columns, or has left it with changes that are not committed.

    ``owner`` is who, ``columns`` are theirs (None: all), and ``seconds_left`` is how long the lock still lasts.
    """

    code, retriable = 81, True

    def __init__(
        self,
        message: str = "",
        owner: str | None = None,
        columns: Sequence[str] | None = None,
        seconds_left: float | None = None,
    ) -> None:
        super().__init__(message)
        self.owner = owner
        self.columns = columns
        self.seconds_left = seconds_left


class Fenced(OwnershipError):
    """A newer writer goes on in this owner's name; nothing of this one is written any more."""

    code = 82


class LockExpired(OwnershipError):
    """The lock was not renewed in time; begin again."""

    code = 83


class EpochClosed(OwnershipError):
    """The epoch was committed already, or a later one was begun in this bucket."""

    code = 84


class EpochOutOfOrder(EpochClosed):
    """A later epoch was begun in this bucket: what is added to an earlier one would be taken back along with it. Put
    all of an epoch before the next one begins."""

    code = 90


class StreamChanged(OwnershipError):
    """Another stream writes under this owner's name: its epochs would be taken for those of the first."""

    code = 85


class CommitMismatch(OwnershipError):
    """What is to be committed is not what has arrived: a put failed, or is still under way."""

    code = 86


class OwnerRolledBack(OwnershipError):
    """What the owner takes for written was taken back in somebody else's favour, came after the backup that the
    database was restored from, or never was."""

    code = 87


class CommitPointGone(OwnerRolledBack):
    """The owner would go on before what is committed, which cannot be taken back: an older checkpoint was restored, or
    somebody else went on in its name."""

    code = 91


class UndoImpossible(OwnershipError):
    """What is needed to take changes back is not there any more."""

    code = 88


class BucketSplit(OwnershipError):
    """Two tasks of one epoch write to one bucket, so that neither of them could be done again alone."""

    code = 89


class PartialPut(KolkError):
    """A put over several buckets failed part way; retry it with ``tag=error.tag`` to complete it.

    ``acknowledged`` maps the buckets that are durable to their end offsets, ``failed`` the others to their
    errors. The retry writes nothing twice. It is worth making when every failure is retriable.
    """

    code = 50

    def __init__(self, acknowledged: Mapping[str, int], failed: Mapping[str, KolkError], tag: object) -> None:
        first = next(iter(failed.values()))
        super().__init__(
            f"{len(acknowledged)} of {len(acknowledged) + len(failed)} buckets are durable, the others failed"
            f" ({first}); to complete the put, call it again with the same data and tag=error.tag"
        )
        self.acknowledged = dict(acknowledged)
        self.failed = dict(failed)
        self.tag = tag
        self.retriable = all(error.retriable for error in failed.values())

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """So that it crosses process borders whole."""
        return PartialPut, (self.acknowledged, self.failed, self.tag)


class StaleTag(KolkError):
    """A retried put is older than the writes the bucket remembers of its writer, so nobody can tell any
    more whether it was applied. Read the rows back before writing them again."""

    code = 51


class InternalError(KolkError):
    """Something inside failed that should not have, such as running out of memory. The cause is attached."""

    code = 2


class MetaConflict(KolkError):
    """A catalog record is no longer what it was when it was read. Read it again and retry."""

    code, retriable = 52, True


class SchemaChanged(KolkError):
    """The table was altered since this handle was opened, and what it asks for cannot be done in the schema that it
    knows: an alter that was made for an older version, or a value that does not fit. Call ``table.refresh()``."""

    code = 53


class Corrupted(KolkError):
    """Bytes on disk are not what was written. Nothing was skipped or repaired by guessing."""

    code = 60


class UnknownFormat(Corrupted):
    """The folder was written by a newer version of Kolk. Upgrade Kolk, or open another folder."""

    code = 61


class MetaBehindLog(Corrupted):
    """A bucket's log knows of a commit, or of an owner, that the catalog does not: the folder was put together of
    different backups."""

    code = 62
