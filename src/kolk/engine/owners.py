"""Owners of columns: who holds them, and how what they leave behind is taken back.

``begin`` is the only way in, and it recovers: it gives the owner a new fence, makes sure that nobody with an older one
can write any more, takes back what was not committed, and only then answers. The steps, and what a crash after each
leaves:

1. check for conflicts; an expired owner of the same columns is evicted first    that owner at its commit point, or
                                                                                fenced, and still to be taken back
2. write the record with the new fence                                           nobody writes; begin again
3. publish the lock, and pass through every open bucket's lock once              the same
4. write that it is undoing, and undo every bucket, with the columns it had      some are undone; the next begin goes on
5. write the columns that are asked for, publish, answer                         begun

To evict is: write the next fence, and that it is being evicted; publish, pass through, undo, and write that it is. So
nobody with an old fence ever finds changes of its own half taken back, and nobody who comes back takes for committed
(``resume_epoch``) what is being taken back, however that was broken off.

The locks of a table are one value that is replaced whole (``kolk.engine.lock_table``). Buckets look at it under their
own lock, so passing through that lock once makes sure that what was judged by an older value is over.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import replace
from weakref import WeakValueDictionary

from kolk.codec.owner import NUMBER_KEY, PREFIX, decode_owner, encode_owner, owner_key
from kolk.config import EngineConfig
from kolk.engine.claims import check_known, check_room, check_table, is_as_judged, is_of, union_of
from kolk.engine.lock_table import LockTable
from kolk.engine.owned_buckets import OnProgress, OwnedBuckets
from kolk.errors import (
    EpochClosed,
    Fenced,
    KolkError,
    MetaBehindLog,
    OwnerRolledBack,
    TableNotFound,
)
from kolk.model.ids import BucketId, OwnerTag, TableId
from kolk.model.owner import (
    Claim,
    Lock,
    Locks,
    OwnerCounts,
    OwnerInfo,
    OwnerRecord,
    check_claim,
    check_epoch,
    check_state,
    closed_columns,
    ids_of,
    shown,
)
from kolk.model.table import TableInfo
from kolk.runtime.clock import WatchedClock
from kolk.storage.meta import Meta, MetaChange
from kolk.tablet.owning import OwnerView, check_unowned, conflict_of, current_lock

_LAPSE_SECONDS = 1.0
"""How long somebody waits to see whether columns are free, while something goes on in their owner's name."""
_log = logging.getLogger(__name__)


class Owners:
    """The owners of a database. Thread-safe: one lock for each table and one for each owner, which last as long as what
    is taken back takes, in this order, and before those of buckets."""

    def __init__(
        self,
        meta: Meta,
        locks: LockTable,
        buckets: OwnedBuckets,
        clock: WatchedClock,
        config: EngineConfig,
        newest: Callable[[TableId], TableInfo],
        tables: Sequence[TableInfo],
    ) -> None:
        self._meta = meta
        self.locks = locks
        self.buckets = buckets
        self._clock = clock
        self._config = config
        self._newest = newest
        self._making = threading.Lock()
        # Guarded by _making, as are the last number and whether it is too low. Each is there as long as anybody has it,
        # or waits for it: numbers come from clients.
        self._mutexes: WeakValueDictionary[tuple[TableId, int], threading.RLock] = WeakValueDictionary()
        # Each guarded by its owner's lock.
        self._records: dict[tuple[TableId, str], OwnerRecord] = {}
        self.tally = buckets.tally
        # Of the reaper, who is one at a time: when it last tried to take an owner back.
        self._tried: dict[int, float] = {}
        found = meta.get(NUMBER_KEY)
        self._number = 0 if found is None else int(found.value)
        self._behind: MetaBehindLog | None = None
        known = {info.id for info in tables}
        for found in meta.list(PREFIX):
            record = decode_owner(found.value)
            if record.table not in known:  # it was dropped, and a crash kept this from going too
                meta.write([MetaChange(found.key, None, found.version)])
                continue
            self._records[record.table, record.name] = record
            if record.evicted and record.is_undoing:
                locks.fence(record)  # nobody was given this fence, and nobody is: whoever comes next takes it back
            elif record.has_columns:
                # A restart gives one more time: nobody could renew while there was no server.
                locks.publish(record)

    def guard(self, table: TableId) -> Callable[[], Locks]:
        """What the buckets of a table look at."""
        return self.locks.guard(table)

    def begin(self, info: TableInfo, claim: Claim, on_progress: OnProgress | None = None) -> OwnerRecord:
        """Take columns, and take back what their owner, or this one before, has left uncommitted.

        Who brings the token of the run that writes now gets its fence.
        """
        check_claim(claim)
        with self._named(info.id, claim.owner) as known:
            info = self._newest(info.id)
            if known is not None and claim.attempt and self._is_same_run(known, claim.attempt):
                self.locks.renew(info.id, known.number, known.fence)
                return known
            check_table(info, claim)
            columns = None if claim.columns is None else closed_columns(info.schema, claim.columns)
            if known is not None and not claim.reset:
                check_known(known, claim)
            self.buckets.look(info)  # while what they have can still be told from what is given out here
            if known is None:  # of several tables at once a few too many may be let in
                check_room(list(self._records.values()), info, self._config)
            self._make_way(info, claim.owner, columns)
            if known is not None and claim.reset:
                self.release(info, claim.owner)
                known = None
            record = self._renumbered(known, claim) if known is not None else self._made(info, claim, columns)
            if known is not None and not known.has_columns:
                record = replace(record, columns=columns)  # there is nothing to take back with the old ones
            self._recover(info, record, columns, claim, on_progress)
            record = self._records[info.id, claim.owner]
            record = replace(record, columns=columns, attempt=claim.attempt, is_undoing=False)
            self.store(record)
            self.locks.publish(record)
            self.tally.add(begun=1)
            return record

    def commit(
        self, info: TableInfo, number: int, fence: int, epoch: int, seqs: Mapping[str, int], state: bytes
    ) -> OwnerRecord:
        """Let everything of an epoch, and of those before it, stand. ``seqs`` are the last puts of the epoch by bucket.

        A lock whose time has run out may still commit, if nobody has taken over. The answer is what is committed then.
        """
        with self._mutex(info.id, number):
            with self.committing(info, number, fence, epoch, state) as record:
                if record is not None:
                    self.buckets.check_arrived(info, record, epoch, seqs)
            return self.current(info.id, number, fence).record

    @contextmanager
    def committing(
        self, info: TableInfo, number: int, fence: int, epoch: int, state: bytes
    ) -> Iterator[OwnerRecord | None]:
        """Commit an epoch after what is done in the block, which is given None if it is committed already: by a writer
        before this one, or by this very call."""
        check_epoch(epoch)
        check_state(state)
        with self._mutex(info.id, number):
            lock = self.current(info.id, number, fence)
            record = lock.record
            if epoch < record.committed and fence == record.committed_fence:
                raise EpochClosed(f"{record.name!r} has committed {record.committed}, so {epoch} is long over")
            if epoch <= record.committed:  # its answer was lost, or it is a replay
                yield None
                return
            # What is looked at in the block must be what is committed: a put that comes late is not let in between.
            self.locks.replace(replace(lock, closing=epoch))
            try:
                self.buckets.pass_through(info)
                yield record
                record = replace(record, committed=epoch, committed_fence=fence, state=state)
                self.store(record)
            except BaseException:
                self.locks.replace(lock)
                raise
            self.locks.replace(replace(lock, record=record, tasks={}))
            self.tally.add(committed=1)

    def renew(self, table: TableId, number: int, fence: int) -> float:
        """Let the time of a lock begin anew; how long that is. It waits for nobody."""
        try:
            return self.locks.renew(table, number, fence)
        except Fenced as error:
            raise self.explained(table, number, error) from error

    def rest(self, info: TableInfo, number: int, fence: int) -> None:
        """Let the columns go, once what is uncommitted is taken back. What was committed is remembered. Idempotent."""
        with self._still(info.id), self._mutex(info.id, number):
            record = self._numbered(info.id, number)
            # Also if its time was up, and its columns were free: after a restart it would have them again.
            if record is not None and is_of(record, fence) and record.has_columns:
                self._withdrawn(info, record)

    def release(
        self, info: TableInfo, name: str, fence: int | None = None, *, number: int | None = None, keep: bool = False
    ) -> bool:
        """Forget an owner, once what is uncommitted is taken back, or, to keep it, without that; without a fence,
        whoever writes in its name, without a number, also one that took the name later. Whether there was one."""
        with self._named(info.id, name) as record:
            if record is None or (fence is not None and not is_of(record, fence)):
                return False
            if number is not None and record.number != number:
                return False
            if record.has_columns and not keep:
                self._withdrawn(info, record)
            elif record.has_columns:
                self.locks.withdraw(record)
                self.buckets.pass_through(info)
            self._forget(record)
            return True

    def evict(self, info: TableInfo, judged: OwnerRecord) -> bool:
        """Take an owner back to its commit point, and let its columns go; it is told when it comes back. Not if it has
        begun or committed since it was judged. Whether there was anything to take back."""
        with self._named(info.id, judged.name) as record:
            if record is None or not record.has_columns or not is_as_judged(record, judged):
                return False
            return self._evicted(info, record)

    def lapse(self, info: TableInfo) -> None:
        """Let columns go whose owner's time is up, if it has left nothing behind; for those who are not owners."""
        for number in [number for number, lock in self.locks.of(info.id).items() if self._is_over(lock)]:
            mutex, known = self._mutex(info.id, number), self.locks.of(info.id).get(number)
            if known is None or not mutex.acquire(timeout=0.0 if known.is_recovering else _LAPSE_SECONDS):
                continue  # what it left is being taken back
            try:
                lock = self.locks.of(info.id).get(number)
                if lock is not None and self._is_over(lock) and self._has_left_nothing(info, lock.record):
                    self.locks.withdraw(lock.record)
            finally:
                mutex.release()

    @contextmanager
    def unowned(self, info: TableInfo) -> Iterator[None]:
        """Within the block nobody has columns of the table; ColumnLockConflict if somebody does."""
        with self._still(info.id):
            self.lapse(info)
            check_unowned(self.locks.of(info.id), info.schema, self._clock.monotonic())
            yield

    def reap(self) -> None:
        """Take back what nobody came back for in a long time, and forget who has let go a very long time ago. What
        cannot be taken back is tried again after as long."""
        now = self._clock.monotonic()
        before = now - self._config.owner_abandon_seconds
        kept_ms = self._config.owner_retention_seconds * 1_000
        for record in list(self._records.values()):
            lock = self.locks.of(record.table).get(record.number)
            try:
                if lock is None or lock.expires > before:
                    self._tried.pop(record.number, None)
                    is_done = lock is None and not (record.evicted or record.is_undoing)
                    if is_done and self._clock.has_passed(kept_ms, record.used_ms):
                        self._forget_idle(record)
                elif self._tried.get(record.number, before) <= before:
                    self._tried[record.number] = now
                    self.evict(self._newest(record.table), record)
            except KolkError as error:
                _log.warning("%r has left its columns, and is not taken back: %s", record.name, error)

    def listed(self, infos: Sequence[TableInfo]) -> list[OwnerInfo]:
        """The locks of these tables, by table and owner."""
        now = self._clock.monotonic()
        return [
            shown(info, lock, now, is_dirty=self.buckets.dirt(info, lock.record))
            for info in infos
            for lock in sorted(self.locks.of(info.id).values(), key=lambda each: each.record.name)
        ]

    def totals(self) -> OwnerCounts:
        """How many locks there are, and what became of owners since the start. No bucket is opened for it."""
        locks, dirty = self.locks.all(), list[Lock]()
        for lock in locks:
            with suppress(TableNotFound):
                dirty += [lock] if self.buckets.dirt(self._newest(lock.record.table), lock.record) else []
        expired, abandoned = sum(map(self._is_over, locks)), sum(map(self._is_over, dirty))
        return replace(
            self.tally.counts,
            locks=len(locks),
            live=len(locks) - expired,
            dirty=len(dirty),
            abandoned=abandoned,
            remembered=len(self._records),
        )

    def drop_table(self, table: TableId) -> None:
        """Forget the owners of a table that is gone."""
        with self._still(table):
            for record in [record for record in list(self._records.values()) if record.table == table]:
                with self.alone(record):  # whoever commits under this lock is through, or finds none any more
                    self.locks.withdraw(record)
                    self._forget(record)

    # --- what buckets and copies are held to

    @property
    def number(self) -> int:
        """The last number that was given to an owner."""
        return self._number

    def of(self, table: TableId) -> list[OwnerRecord]:
        """What is kept of the owners of a table. What they have committed is in its buckets, for whoever holds them
        still."""
        return [record for record in list(self._records.values()) if record.table == table]

    @contextmanager
    def still(self, table: TableId) -> Iterator[None]:
        """Within the block no owner of a table comes, goes or commits. They go on writing."""
        with self._still(table), ExitStack() as held:
            for record in self.of(table):
                held.enter_context(self.alone(record))
            yield

    def check_log(self, bucket: BucketId, views: Mapping[int, OwnerView]) -> None:
        """Whether the catalog knows the owners that a bucket has. Once it does not, no number is given any more: one
        may be of an owner that nobody knows."""
        fences = {record.number: record.fence for record in self.of(bucket.table)}
        for number, view in views.items():
            if number > self._number or view.fence > fences.get(number, view.fence):
                behind = MetaBehindLog(
                    f"bucket {bucket.name} was written by owner {number} under fence {view.fence}, of which the catalog"
                    " does not know: the folder was put together of different backups; restore all of it from one"
                )
                with self._making:
                    self._behind = behind
                raise copy(behind)

    # --- for those who work on one owner's behalf

    def alone(self, record: OwnerRecord) -> threading.RLock:
        """Within its block nobody else changes this owner."""
        return self._mutex(record.table, record.number)

    def check_writer(self, table: TableId, tag: OwnerTag) -> None:
        """Raise what a put would be told in every bucket: before it makes a partition that is to have its rows."""
        current_lock(tag, self.locks.of(table), self._clock.monotonic())

    def current(self, table: TableId, number: int, fence: int) -> Lock:
        """The lock of a writer; Fenced, or what happened to it, if it is no longer."""
        try:
            return self.locks.current(table, number, fence)
        except Fenced as error:
            raise self.explained(table, number, error) from error

    def explained(self, table: TableId, number: int, error: Fenced) -> Fenced | OwnerRolledBack:
        """Why somebody is fenced: an owner that was evicted is told so."""
        record = self._numbered(table, number)
        if record is not None and record.is_set_back:
            how = "came out of a backup with" if record.is_restored else "was taken back to"
            return OwnerRolledBack(
                f"{record.name!r} {how} its last commit, epoch {record.committed}; begin again, and write again"
                " what came after"
            )
        return error

    def store(self, record: OwnerRecord) -> None:
        """Write the record of an owner, durably, with the time of it."""
        record = replace(record, used_ms=self._clock.now_ms())
        self._meta.write([self._meta.replacement(owner_key(record), encode_owner(record))])
        self._records[record.table, record.name] = record

    # --- inside

    def _still(self, table: TableId) -> threading.RLock:
        """Within its block nobody comes or goes, and no columns change hands."""
        return self._mutex(table, 0)

    @contextmanager
    def _named(self, table: TableId, name: str) -> Iterator[OwnerRecord | None]:
        """What is kept of an owner, who within the block is left alone by everybody."""
        with self._still(table), ExitStack() as held:
            known = self._records.get((table, name))
            if known is not None:
                held.enter_context(self.alone(known))
                known = self._records.get((table, name))
            yield known

    def _numbered(self, table: TableId, number: int) -> OwnerRecord | None:
        known = list(self._records.values())
        return next((record for record in known if (record.table, record.number) == (table, number)), None)

    def _mutex(self, table: TableId, number: int) -> threading.RLock:
        with self._making:
            return self._mutexes.setdefault((table, number), threading.RLock())

    def _forget(self, record: OwnerRecord) -> None:
        """Remove what is kept of an owner. Its lock is held; whoever waits for it finds nothing."""
        self._meta.write([self._meta.replacement(owner_key(record), None)])
        del self._records[record.table, record.name]

    def _forget_idle(self, judged: OwnerRecord) -> None:
        """Forget an owner, unless it has come back since it was judged. One that was evicted is not forgotten: it has
        yet to be told."""
        with self._named(judged.table, judged.name) as record:
            if record is not None and is_as_judged(record, judged):
                self._forget(record)

    def _is_over(self, lock: Lock) -> bool:
        return not lock.is_live(self._clock.monotonic())

    def _has_left_nothing(self, info: TableInfo, record: OwnerRecord) -> bool:
        """Whether an owner whose time is up has nothing uncommitted, nor a put that was let in before and is written
        only now. Of a bucket that does not serve nobody can tell."""
        try:
            if self.buckets.is_dirty(info, record):
                return False
            self.buckets.pass_through(info)
            return not self.buckets.is_dirty(info, record)
        except KolkError:
            return False

    def _is_same_run(self, known: OwnerRecord, attempt: str) -> bool:
        """Whether a token is that of the run that writes now; Fenced if it once was."""
        lock = self.locks.of(known.table).get(known.number)
        is_current = lock is not None and lock.record.fence == known.fence and not lock.is_recovering
        if attempt in known.past or (attempt == known.attempt and not is_current):
            raise Fenced(f"a newer run goes on in the name of {known.name!r}, or this one's time was up")
        return attempt == known.attempt

    def _make_way(self, info: TableInfo, name: str, columns: Sequence[int] | None) -> None:
        """Who is live keeps its columns; who is not is taken back to its commit point, and told so when it returns."""
        columns = ids_of(info.schema, None) if columns is None else columns
        others = [
            record
            for (table, other), record in list(self._records.items())
            if table == info.id and other != name and record.has_columns and record.overlaps(columns)
        ]
        now = self._clock.monotonic()
        for record in others:
            lock = self.locks.of(info.id).get(record.number)
            if lock is not None and lock.is_live(now):
                self.tally.add(conflicts=1)
                raise conflict_of(lock, info.schema, f" of {info.name}", now)
        for record in others:
            with self.alone(record):
                self._evicted(info, self._records[info.id, record.name])

    def _evicted(self, info: TableInfo, record: OwnerRecord) -> bool:
        is_dirty = self._withdrawn(info, record)
        if is_dirty:
            self.tally.add(evicted=1)
            _log.warning("%r of %s was taken back to its last commit, and evicted", record.name, info.name)
        return is_dirty

    def _withdrawn(self, info: TableInfo, record: OwnerRecord) -> bool:
        """Fence an owner, take back what is not committed, and let its columns go. Its own lock is held. Whether there
        was anything: then it is told so when it comes back and takes it for committed."""
        self.locks.fence(record)
        self.buckets.pass_through(info)
        is_set_back = record.is_undoing or self.buckets.is_dirty(info, record)
        if is_set_back and not record.evicted:  # else this was begun before, and broken off
            # Durably before anything is taken back: after a crash the old fence must not go on with what is left, nor
            # its owner come back and take it for whole.
            record = replace(record, fence=record.fence + 1, evicted=True, is_undoing=True)
            self.store(record)
            self.locks.fence(record)
        if is_set_back:
            self.buckets.undo(info, record)
        self.store(replace(record, is_resting=not is_set_back, is_undoing=False))
        self.locks.withdraw(record)
        return is_set_back

    def _renumbered(self, known: OwnerRecord, claim: Claim) -> OwnerRecord:
        """The record with the next fence. It has no token before what is left of earlier runs is taken back."""
        return replace(
            known,
            fence=known.fence + 1,
            ttl_seconds=claim.ttl_seconds,
            stream=claim.stream or known.stream,
            evicted=False,
            is_resting=False,
            attempt="",
            past=known.over,
            is_restored=False,
            is_undoing=known.is_undoing or known.is_set_back,
        )

    def _made(self, info: TableInfo, claim: Claim, columns: tuple[int, ...] | None) -> OwnerRecord:
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

    def _recover(
        self,
        info: TableInfo,
        record: OwnerRecord,
        columns: tuple[int, ...] | None,
        claim: Claim,
        on_progress: OnProgress | None,
    ) -> None:
        """Steps 2 to 4: fence the one before, and take back what it left."""
        self.store(record)
        # Nobody writes what it had, nor what it asks for.
        self.locks.publish(replace(record, columns=union_of(record.columns, columns)), is_recovering=True)
        self.buckets.pass_through(info)
        known = record
        if claim.resume_epoch is not None and claim.resume_epoch > record.committed:
            # The job has kept a commit that it did not come to tell of.
            record = replace(record, committed=claim.resume_epoch, committed_fence=record.fence - 1)
        if self.buckets.is_dirty(info, record):
            record = replace(record, is_undoing=True)
        if record != known:
            self.store(record)
        self.buckets.undo(info, record, on_progress)

    def _next_number(self) -> int:
        with self._making:
            if self._behind is not None:
                raise copy(self._behind)
            self._meta.write([self._meta.replacement(NUMBER_KEY, str(self._number + 1).encode())])
            self._number += 1
            return self._number
