"""Owners of columns: who holds them, and how what they leave behind is taken back.

``begin`` is the only way in, and it recovers: it gives the owner a new fence, makes sure that nobody with an older one
can write any more, takes back what was not committed, and only then answers. The steps, and what a crash after each
leaves:

1. check for conflicts; an expired owner of the same columns is undone first     that owner at its commit point
2. write the record with the new fence                                           nobody writes; begin again
3. publish the lock, and pass through every open bucket's lock once              the same
4. undo every bucket, with the columns that the record had                       some are undone; the next begin goes on
5. write the columns that are asked for, publish, answer                         begun

The locks of a table are one value that is replaced whole. Buckets look at it under their own lock, so passing through
that lock once makes sure that what was judged by an older value is over.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from kolk.codec.owner import NUMBER_KEY, PREFIX, decode_owner, encode_owner, owner_key
from kolk.engine.partitions import Partitions
from kolk.engine.tablets import Tablets
from kolk.errors import (
    ColumnLockConflict,
    CommitMismatch,
    Fenced,
    InvalidArgument,
    LockExpired,
    NotFound,
    OwnerRolledBack,
    PartitionDropped,
    StreamChanged,
)
from kolk.model.ids import TableId
from kolk.model.options import ChangelogImage
from kolk.model.owner import (
    NO_EPOCH,
    STATE_BYTES_MAX,
    Claim,
    Lock,
    Locks,
    OwnerInfo,
    OwnerRecord,
    UndoMode,
    check_owner,
    closed_columns,
    conflicting,
)
from kolk.model.table import TableInfo
from kolk.runtime.clock import Clock
from kolk.storage.meta import Meta, MetaChange

_NOBODY: Locks = {}
OnProgress = Callable[[int, int], object]


class Owners:
    """The owners of a database. Thread-safe: one lock for each table, taken before those of its buckets."""

    def __init__(self, meta: Meta, tablets: Tablets, partitions: Partitions, clock: Clock) -> None:
        self._meta = meta
        self._tablets = tablets
        self._partitions = partitions
        self._clock = clock
        self._making = threading.Lock()
        # Guarded by _making.
        self._mutexes: defaultdict[TableId, threading.RLock] = defaultdict(threading.RLock)
        # Replaced whole under the table's lock, read by anyone.
        self._locks: dict[TableId, Locks] = {}
        # Guarded by the table's lock.
        self._records: dict[tuple[TableId, str], OwnerRecord] = {}
        self.counts = {"undone_rows": 0, "conflicts": 0}
        now = clock.monotonic()
        for found in meta.list(PREFIX):
            record = decode_owner(found.value)
            self._records[record.table, record.name] = record
            if not record.evicted and not record.is_resting:
                # A restart gives one more time: nobody could renew while there was no server.
                self._publish(Lock(record, now + record.ttl_seconds))

    def guard(self, table: TableId) -> Callable[[], Locks]:
        """What the buckets of a table look at."""
        return lambda: self._locks.get(table, _NOBODY)

    def begin(self, info: TableInfo, claim: Claim) -> OwnerRecord:
        """Take columns, and take back what their owner, or this one before, has left uncommitted."""
        check_owner(claim.owner)
        _check_table(info, claim)
        columns = None if claim.columns is None else closed_columns(info.schema, claim.columns)
        with self._still(info.id):
            self._make_way(info, claim.owner, columns)
            known = self._records.get((info.id, claim.owner))
            was_evicted = known is not None and known.evicted
            record = self._renumbered(info, claim, columns)
            self._store(record)
            wider = replace(record, columns=_union(record.columns, columns))
            self._publish(Lock(wider, self._clock.monotonic() + claim.ttl_seconds, is_recovering=True))
            self._pass_through(info)
            record = self._resumed(record, claim.resume_epoch, was_evicted=was_evicted)
            self._undo(info, record)
            record = replace(record, columns=columns)
            self._store(record)
            self._publish(Lock(record, self._clock.monotonic() + claim.ttl_seconds))
            return record

    def commit(
        self, info: TableInfo, number: int, fence: int, epoch: int, seqs: Mapping[str, int], state: bytes
    ) -> None:
        """Let everything of an epoch, and of those before it, stand. ``seqs`` are the last puts of the epoch by bucket.

        A lock whose time has run out may still commit, if nobody has taken over.
        """
        if len(state) > STATE_BYTES_MAX:
            raise InvalidArgument(f"the state of an owner has at most {STATE_BYTES_MAX:,} bytes, not {len(state):,}")
        with self._still(info.id):
            lock = self._current(info.id, number, fence)
            record = lock.record
            if epoch < record.committed:
                raise OwnerRolledBack(f"{record.name!r} has committed {record.committed}, so {epoch} is long over")
            if epoch == record.committed:
                return
            self._check_arrived(info, record, epoch, seqs)
            record = replace(record, committed=epoch, committed_fence=fence, state=state)
            self._store(record)
            self._publish(replace(lock, record=record))

    def renew(self, table: TableId, number: int, fence: int) -> float:
        """Let the time of a lock begin anew; how long that is."""
        with self._still(table):
            lock = self._current(table, number, fence)
            if not lock.is_live(self._clock.monotonic()):
                raise LockExpired(f"the lock of {lock.record.name!r} was not renewed in time; begin again")
            self._publish(replace(lock, expires=self._clock.monotonic() + lock.record.ttl_seconds))
            return lock.record.ttl_seconds

    def rest(self, info: TableInfo, number: int, fence: int) -> None:
        """Let the columns go, once what is uncommitted is taken back. What was committed is remembered. Idempotent."""
        with self._still(info.id):
            lock = self._locks.get(info.id, _NOBODY).get(number)
            if lock is None or lock.record.fence != fence:
                return
            self._undo(info, lock.record)
            self._store(replace(lock.record, is_resting=True))
            self._unpublish(lock.record)

    def release(self, info: TableInfo, name: str, fence: int | None = None) -> bool:
        """Forget an owner, once what is uncommitted is taken back; without a fence, whoever writes in its name. Whether
        there was one."""
        with self._still(info.id):
            record = self._records.get((info.id, name))
            if record is None or (fence is not None and record.fence != fence):
                return False
            record = replace(record, fence=record.fence + 1)
            self._store(record)
            self._publish(Lock(record, self._clock.monotonic() + record.ttl_seconds, is_recovering=True))
            self._pass_through(info)
            self._undo(info, record)
            self._unpublish(record)
            self._meta.write([self._meta.replacement(owner_key(record), None)])
            del self._records[info.id, name]
            return True

    def lapse(self, info: TableInfo) -> None:
        """Let columns go whose owner's time is up, if it has left nothing behind; for those who are not owners."""
        now = self._clock.monotonic()
        locks = self._locks.get(info.id, _NOBODY)
        if all(lock.is_live(now) for lock in locks.values()):
            return
        with self._still(info.id):
            for lock in list(self._locks.get(info.id, _NOBODY).values()):
                if not lock.is_live(now) and not lock.is_recovering and not self._is_dirty(info, lock.record):
                    self._unpublish(lock.record)

    def record(self, table: TableId, name: str) -> OwnerRecord | None:
        """What is kept of an owner."""
        return self._records.get((table, name))

    def listed(self, infos: Sequence[TableInfo]) -> list[OwnerInfo]:
        """The locks of these tables, by table and owner."""
        now = self._clock.monotonic()
        found: list[OwnerInfo] = []
        for info in infos:
            for lock in sorted(self._locks.get(info.id, _NOBODY).values(), key=lambda each: each.record.name):
                record = lock.record
                names = None if record.columns is None else [
                    info.schema.by_id[id].name for id in record.columns if id in info.schema.by_id
                ]  # fmt: skip
                found.append(
                    OwnerInfo(
                        table=str(info.name),
                        owner=record.name,
                        columns=None if names is None else tuple(names),
                        fence=record.fence,
                        epoch=None if record.committed == NO_EPOCH else record.committed,
                        is_live=lock.is_live(now),
                        seconds_left=max(lock.expires - now, 0.0),
                        undo=record.undo.value,
                    )
                )
        return found

    def drop_table(self, table: TableId) -> None:
        """Forget the owners of a table that is gone."""
        with self._still(table):
            gone = [record for (owned, _), record in self._records.items() if owned == table]
            self._locks.pop(table, None)
            for record in gone:
                self._meta.write([self._meta.replacement(owner_key(record), None)])
                del self._records[record.table, record.name]

    # --- inside

    @contextmanager
    def _still(self, table: TableId) -> Iterator[None]:
        with self._making:
            mutex = self._mutexes[table]
        with mutex:
            yield

    def _make_way(self, info: TableInfo, name: str, columns: Sequence[int] | None) -> None:
        """Who is live keeps its columns; who is not is taken back to its commit point, and told so when it returns."""
        now = self._clock.monotonic()
        others = conflicting(self._locks.get(info.id, _NOBODY).values(), columns, name)
        for lock in others:
            if lock.is_live(now):
                self.counts["conflicts"] += 1
                raise _conflict(info, lock, now)
        for lock in others:
            record = replace(lock.record, fence=lock.record.fence + 1, evicted=True)
            self._publish(replace(lock, record=record, is_recovering=True))
            self._pass_through(info)
            self._undo(info, record)
            self._store(record)
            self._unpublish(record)

    def _renumbered(self, info: TableInfo, claim: Claim, columns: tuple[int, ...] | None) -> OwnerRecord:
        """The record with the next fence; a new one for a new owner."""
        known = self._records.get((info.id, claim.owner))
        if known is not None and not claim.reset:
            if claim.stream and known.stream and claim.stream != known.stream:
                raise StreamChanged(
                    f"{claim.owner!r} is the stream {known.stream!r}, not {claim.stream!r}: its epochs would be taken"
                    " for those of the other. Take another owner, or begin with reset=True"
                )
            if known.undo is not claim.undo:
                raise InvalidArgument(f"undo of {claim.owner!r} is {known.undo.value!r}, which is decided once")
            return replace(
                known,
                fence=known.fence + 1,
                ttl_seconds=claim.ttl_seconds,
                stream=claim.stream or known.stream,
                evicted=False,
                is_resting=False,
            )
        if known is not None:
            self.release(info, claim.owner)
        return OwnerRecord(
            table=info.id,
            name=claim.owner,
            number=self._next_number(),
            columns=columns,
            fence=1,
            ttl_seconds=claim.ttl_seconds,
            stream=claim.stream,
            undo=claim.undo,
        )

    def _resumed(self, record: OwnerRecord, epoch: int | None, *, was_evicted: bool) -> OwnerRecord:
        """The commit point of somebody who keeps one elsewhere as well."""
        if epoch is None or epoch == record.committed:
            return record
        if epoch < record.committed or was_evicted:
            raise OwnerRolledBack(
                f"{record.name!r} resumes at epoch {epoch}, but {record.committed} is what is committed here: a later"
                " one cannot be taken back, and what was evicted cannot be brought back"
            )
        record = replace(record, committed=epoch, committed_fence=record.fence - 1)
        self._store(record)
        return record

    def _undo(self, info: TableInfo, record: OwnerRecord) -> None:
        if record.undo is UndoMode.NONE:
            return
        for bucket in self._partitions.buckets(info):
            with suppress(PartitionDropped), self._tablets.use_one(info, bucket) as tablet, tablet.held():
                self.counts["undone_rows"] += tablet.undo(record)

    def _is_dirty(self, info: TableInfo, record: OwnerRecord) -> bool:
        if record.undo is UndoMode.NONE:
            return False
        for bucket in self._partitions.buckets(info):
            with suppress(PartitionDropped), self._tablets.use_one(info, bucket) as tablet:
                if tablet.owner(record.number).dirty_from(record.committed) is not None:
                    return True
        return False

    def _check_arrived(self, info: TableInfo, record: OwnerRecord, epoch: int, seqs: Mapping[str, int]) -> None:
        """Whether the last put of an epoch is the one that is named, in every bucket that has any of it."""
        for bucket in self._partitions.buckets(info):
            with suppress(NotFound), self._tablets.use_one(info, bucket) as tablet:
                found = [each.seq for each in tablet.owner(record.number).epochs if each.epoch == epoch]
                wanted = seqs.get(bucket.name)
                if (found[0] if found else None) != wanted:
                    raise CommitMismatch(
                        f"the last put of epoch {epoch} in bucket {bucket.name} is {found[0] if found else 'none'}, and"
                        f" {wanted if wanted is not None else 'none'} was to be committed: nothing was. Put what is"
                        " missing again, or begin again"
                    )

    def _current(self, table: TableId, number: int, fence: int) -> Lock:
        lock = self._locks.get(table, _NOBODY).get(number)
        if lock is None or lock.record.fence != fence:
            raise Fenced("a newer writer goes on in this owner's name, or it was released")
        return lock

    def _pass_through(self, info: TableInfo) -> None:
        for tablet in self._tablets.opened():
            if tablet.bucket.table == info.id:
                with tablet.held():
                    pass

    def _publish(self, lock: Lock) -> None:
        table = lock.record.table
        self._locks[table] = {**self._locks.get(table, _NOBODY), lock.record.number: lock}

    def _unpublish(self, record: OwnerRecord) -> None:
        table = record.table
        left = {number: lock for number, lock in self._locks.get(table, _NOBODY).items() if number != record.number}
        if left:
            self._locks[table] = left
        else:
            self._locks.pop(table, None)

    def _store(self, record: OwnerRecord) -> None:
        self._meta.write([self._meta.replacement(owner_key(record), encode_owner(record))])
        self._records[record.table, record.name] = record

    def _next_number(self) -> int:
        found = self._meta.get(NUMBER_KEY)
        number = 1 if found is None else int(found.value) + 1
        self._meta.write([MetaChange(NUMBER_KEY, str(number).encode(), 0 if found is None else found.version)])
        return number


def _check_table(info: TableInfo, claim: Claim) -> None:
    if info.is_log:
        raise InvalidArgument(f"{info.name} is a log table; it has no columns to own")
    if info.spec.options.changelog_image is not ChangelogImage.FULL:
        raise InvalidArgument(
            f"{info.name} has table.changelog.image=wal, so nobody knows what an update replaced; owners need full"
        )
    if claim.undo is UndoMode.NONE:
        names = [column.name for column in info.schema.value_columns] if claim.columns is None else claim.columns
        for name in names:
            function = info.schema.column(name).function
            if function is None or not (function.is_idempotent and function.is_commutative):
                raise InvalidArgument(
                    f"undo='none' is for columns that a replay does not change (max, min, bool_*, bitmaps), not for"
                    f" {name!r}; leave it out"
                )


def _union(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if one is None or other is None else tuple(sorted({*one, *other}))


def _conflict(info: TableInfo, lock: Lock, now: float) -> ColumnLockConflict:
    ids = lock.record.columns
    names = None if ids is None else [info.schema.by_id[id].name for id in ids if id in info.schema.by_id]
    what = "all columns" if names is None else f"the columns {', '.join(names)}"
    left = lock.expires - now
    return ColumnLockConflict(
        f"{lock.record.name!r} owns {what} of {info.name} for {left:.0f} s more; take other columns, wait, or release"
        " it with `kolk lock release`",
        lock.record.name,
        names,
        left,
    )
