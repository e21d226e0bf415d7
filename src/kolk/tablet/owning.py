"""What a bucket knows of owners: whose frames it has, of which epochs, and whether a put is let in.

For each owner: where its frames begin after the last time it was undone, the epochs since, and the last puts of its
newest fence, to tell a retry. It is written to the KV in the same batch as the rows, and rebuilt from frame tags when
the log is replayed. Which columns are whose is decided elsewhere; here it is obeyed.

A put is judged in this order: is its fence, and its ticket, the current one, and the lock alive; are the columns its
own; has this very put been made; is its epoch open. Whoever was fenced is told so, also of a put that once arrived: it
was taken back since. Within one fence nothing is taken back, so a put that arrived stands, and its retry is told so,
also if its epoch is over by now. (A newer ticket of a task takes back too, and older ones are turned away before.)

Record: name ``o`` + number (8 bytes); value a msgpack of ``OwnerView``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from kolk.errors import (
    BucketSplit,
    Busy,
    ColumnLockConflict,
    EpochClosed,
    EpochOutOfOrder,
    Fenced,
    InvalidArgument,
    InvalidRows,
    LockExpired,
    StaleTag,
    TooLarge,
)
from kolk.merge.prepared import Prepared
from kolk.model.ids import OwnerTag, UndoTag, WriteTag
from kolk.model.owner import EPOCH_MAX, Lock, Locks, OwnerRecord, UndoMode, ids_of, is_replayable, partition_of
from kolk.model.schema import Schema
from kolk.model.write import Action

RECORD = b"o"
_KEPT_PUTS = 5
_EPOCHS_MAX = 10_000
"""Epochs of one owner in one bucket that are not committed: the view names each, and is written with every put."""
TORN = -1
NO_VIEWS: Mapping[int, "OwnerView"] = MappingProxyType({})
Guard = Callable[[], Locks]
"""The locks of a bucket's table, as they are now."""


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """What a bucket has of one epoch: where it begins, and its last put; that is ``TORN`` if something of it was taken
    back, so that no commit finds the put that it names."""

    epoch: int
    first: int
    seq: int


class OwnerView(msgspec.Struct, frozen=True, array_like=True):
    """What a bucket has of one owner since it was last undone here, which was before ``since``."""

    since: int = 0
    fence: int = 0
    ticket: int = 0
    highest: int = -1
    epochs: tuple[Epoch, ...] = ()
    kept: tuple[tuple[int, int, int], ...] = ()
    """The newest puts of this fence and ticket, each with its epoch and the end that it was answered with."""
    sealed: bool = False
    """Whether the task of this ticket has said that it is through."""

    def end_of(self, tag: OwnerTag) -> int | None:
        """The end that a put was answered with; None for one not seen before, InvalidArgument for another one under
        its count, which must not be taken for its retry."""
        if (tag.fence, tag.ticket) != (self.fence, self.ticket):
            return None
        epoch, end = next(((epoch, end) for seq, epoch, end in self.kept if seq == tag.seq), (tag.epoch, None))
        if epoch != tag.epoch:
            raise InvalidArgument(f"put {tag.seq} of this owner was of epoch {epoch}; count on from one to the next")
        return end

    def check_fresh(self, tag: OwnerTag) -> None:
        """Raise StaleTag for a put so old that nobody knows any more whether it arrived."""
        is_full = (tag.fence, tag.ticket) == (self.fence, self.ticket) and len(self.kept) == _KEPT_PUTS
        if is_full and tag.seq < self.kept[0][0]:
            raise StaleTag(
                f"put {tag.seq} of this owner is older than its last {_KEPT_PUTS}, so whether it arrived is forgotten"
            )

    def after(self, tag: OwnerTag, base: int, end: int, committed: int) -> "OwnerView":
        """The view with one more put. Of epochs that are committed nothing is kept, nor of those of earlier fences:
        what was not committed of them was taken back, or never will be."""
        same = (tag.fence, tag.ticket) == (self.fence, self.ticket)
        known = [put for put in self.kept if put[0] != tag.seq] if same else []
        kept = tuple(sorted([*known, (tag.seq, tag.epoch, end)])[-_KEPT_PUTS:])
        own = self.epochs if tag.fence == self.fence else ()
        before = next((each for each in own if each.epoch == tag.epoch), None)
        epochs = [each for each in own if each.epoch != tag.epoch and each.epoch > committed]
        last = max(tag.seq, before.seq) if same and before is not None else tag.seq
        last = TORN if before is not None and before.seq == TORN else last
        epochs.append(Epoch(tag.epoch, base if before is None else before.first, last))
        highest = max(self.highest, tag.epoch) if tag.fence == self.fence else tag.epoch
        return OwnerView(
            self.since, tag.fence, tag.ticket, highest, tuple(epochs), kept, tag.sealed or (same and self.sealed)
        )

    def torn(self) -> "OwnerView":
        """The view while what is beyond the commit point is taken back: some of it is gone, and it is not told what."""
        epochs = tuple(msgspec.structs.replace(each, seq=TORN) for each in self.epochs)
        return msgspec.structs.replace(self, epochs=epochs, kept=(), sealed=False)

    def undone(self, end: int, fence: int) -> "OwnerView":
        """The view after everything beyond the commit point was taken back."""
        return OwnerView(since=end, fence=fence)

    def dirty_from(self, committed: int) -> int | None:
        """Where the first frame beyond the commit point is; None if there is none."""
        return min((each.first for each in self.epochs if each.epoch > committed), default=None)

    def has_room(self, epoch: int, committed: int) -> bool:
        """Whether an epoch is there already, or there may be one more."""
        known = [each.epoch for each in self.epochs if each.epoch > committed]
        return epoch in known or len(known) < _EPOCHS_MAX

    def last_of(self, fence: int, epoch: int) -> int | None:
        """The last put of an epoch under this fence."""
        if fence != self.fence:
            return None
        return next((each.seq for each in self.epochs if each.epoch == epoch), None)


_NOTHING = OwnerView()


class Owning:
    """The owners of one bucket. Guarded by the tablet's lock; a look at ``views`` needs none."""

    def __init__(self, records: Mapping[bytes, bytes], guard: Guard) -> None:
        self._guard = guard
        # Replaced whole.
        self.views: Mapping[int, OwnerView] = {
            int.from_bytes(name[len(RECORD) :]): msgspec.msgpack.decode(value, type=OwnerView)
            for name, value in records.items()
        }

    def view(self, number: int) -> OwnerView:
        """What there is of an owner."""
        return self.views.get(number, _NOTHING)

    def admitted(self, tag: WriteTag, prepared: Prepared, views: Mapping[int, "OwnerView"], now: float) -> int | None:
        """Let a put in, or raise; a number is the end that it is answered with, since it is not to be done again (-1:
        the present one). ``views`` are those of puts before it in the same pass."""
        locks = self._guard()
        if isinstance(tag, OwnerTag):
            lock = current_lock(tag, locks, now)
            check_within(lock, prepared)
            return _judged(tag, lock, views.get(tag.owner) or self.view(tag.owner))
        if locks:
            self.check_free(prepared, now)
        return None

    def displaced(self, tag: WriteTag, now: float) -> OwnerRecord | None:
        """Whose frames are to be taken back before a put: those of an earlier attempt at the same task, whose ticket is
        older; None if there are none."""
        if not isinstance(tag, OwnerTag) or not tag.ticket:
            return None
        record, view = current_lock(tag, self._guard(), now).record, self.view(tag.owner)
        if view.fence != tag.fence or view.dirty_from(record.committed) is None:
            return None
        _check_alone(tag, record, view)
        is_over = view.ticket < tag.ticket and not view.sealed
        return record if is_over and record.undo is UndoMode.ALWAYS else None

    def check_free(self, prepared: Prepared, now: float) -> None:
        """Raise ColumnLockConflict if a write that is nobody's is about somebody's columns."""
        touched = ids_of(prepared.schema, prepared.write.columns)
        for lock in self._guard().values():
            if lock.record.overlaps(touched):
                raise conflict_of(lock, prepared.schema, "", now)

    def check_unowned(self, schema: Schema, now: float) -> None:
        """Raise ColumnLockConflict if anybody owns a column: for what removes whole rows."""
        check_unowned(self._guard(), schema, now)

    def floor(self, end: int) -> int:
        """From where on the log is needed to take back what is not committed; the end, if nothing is."""
        return min((offset for _, offset in self._dirty()), default=end)

    def is_dirty(self, column: int) -> bool:
        """Whether somebody has written a column and not committed it."""
        return any(record.overlaps([column]) for record, _ in self._dirty())

    def replayed(self, views: Mapping[int, OwnerView]) -> dict[bytes, bytes | None]:
        """Take in the owners of frames that are done again; the answer is what to write to the KV."""
        self.views = {**self.views, **views}
        return {_name(number): msgspec.msgpack.encode(view) for number, view in views.items()}

    def noted(self, views: Mapping[int, OwnerView]) -> dict[bytes, bytes | None]:
        """The same of one pass. Whoever has let its columns go is forgotten: it has nothing here to take back, and
        counts anew when it begins again."""
        if not views:
            return {}
        locks = self._guard()
        gone = [number for number in self.views if number not in locks and number not in views]
        records = self.replayed(views)
        self.views = {number: view for number, view in self.views.items() if number not in gone}
        return {**records, **{_name(number): None for number in gone}}

    def after(self, tag: WriteTag, base: int, end: int, views: Mapping[int, OwnerView]) -> dict[int, OwnerView]:
        """What a frame makes of its owner, if it has one."""
        if isinstance(tag, OwnerTag):
            lock = self._guard().get(tag.owner)
            # Whoever has no columns has left nothing to take back; only a replay finds frames of it.
            committed = EPOCH_MAX if lock is None else lock.record.committed
            return {tag.owner: (views.get(tag.owner) or self.view(tag.owner)).after(tag, base, end, committed)}
        if isinstance(tag, UndoTag):
            view = views.get(tag.owner) or self.view(tag.owner)
            return {tag.owner: view.undone(end, tag.fence) if tag.done else view.torn()}
        return {}

    def _dirty(self) -> Iterator[tuple[OwnerRecord, int]]:
        return dirt(self.views, (lock.record for lock in self._guard().values()))


def dirt(views: Mapping[int, OwnerView], records: Iterable[OwnerRecord]) -> Iterator[tuple[OwnerRecord, int]]:
    """Those of whom a bucket has frames that would be taken back, and from where on."""
    for record in records:
        start = views.get(record.number, _NOTHING).dirty_from(record.committed)
        if start is not None and record.undo is UndoMode.ALWAYS:
            yield record, start


def _name(number: int) -> bytes:
    return RECORD + number.to_bytes(8)


def current_lock(tag: OwnerTag, locks: Locks, now: float) -> Lock:
    """The lock of a put, if it is its newest writer's, and its time is not up."""
    lock = locks.get(tag.owner)
    if lock is None or lock.record.fence != tag.fence or lock.is_recovering:
        raise Fenced("a newer writer goes on in this owner's name, or it was released; nothing was written")
    if not lock.is_live(now):
        raise LockExpired(f"the lock of {lock.record.name!r} was not renewed in time; begin again")
    task = lock.tasks.get(partition_of(tag.ticket)) if tag.ticket else None
    if task is not None and (task.ticket != tag.ticket or task.epoch != tag.epoch):
        raise Fenced("a newer attempt at this task goes on, or at a later epoch; nothing was written")
    return lock


def _judged(tag: OwnerTag, lock: Lock, view: OwnerView) -> int | None:
    """What its epoch says of a put. One that this very writer has made before is answered as it was: it stands."""
    record, known = lock.record, view.end_of(tag)
    if known is not None and (view.sealed or not tag.sealed):
        return known
    if tag.epoch <= record.committed:
        if tag.fence > record.committed_fence:
            return -1  # a replay of what is committed: acknowledged, and not done again
        raise EpochClosed(f"epoch {tag.epoch} of {record.name!r} is committed; nothing is added to it")
    if tag.epoch <= lock.closing:
        raise Busy(f"epoch {lock.closing} of {record.name!r} is being committed; retry, to hear whether it is")
    if view.fence == tag.fence and view.dirty_from(record.committed) is not None:
        _check_alone(tag, record, view)
    if view.fence == tag.fence and tag.epoch < view.highest:
        raise EpochOutOfOrder(
            f"epoch {view.highest} of {record.name!r} has begun in this bucket, so nothing is added to {tag.epoch}"
        )
    if view.fence == tag.fence and tag.epoch == view.highest:
        if tag.ticket < view.ticket:
            raise Fenced("a newer attempt at this task has written to this bucket; nothing was written")
        if view.sealed:
            raise EpochClosed("the task that writes to this bucket has said that it is through")
        is_over = tag.ticket > view.ticket and view.last_of(tag.fence, tag.epoch) is not None
        if is_over and record.undo is UndoMode.ALWAYS:
            raise Busy("an earlier attempt at this task is under way in this bucket; retry")
    view.check_fresh(tag)
    if view.fence == tag.fence and len(view.epochs) >= _EPOCHS_MAX and not view.has_room(tag.epoch, record.committed):
        raise TooLarge(f"{record.name!r} has {_EPOCHS_MAX:,} epochs in a bucket that are not committed; commit first")
    return None


def _check_alone(tag: OwnerTag, record: OwnerRecord, view: OwnerView) -> None:
    """Raise BucketSplit if what a bucket has of an epoch is another task's than a put, or that of no task."""
    if bool(view.ticket) == bool(tag.ticket) and partition_of(view.ticket) == partition_of(tag.ticket):
        return
    who = " and ".join(f"task {partition_of(ticket)}" if ticket else "no task" for ticket in (view.ticket, tag.ticket))
    raise BucketSplit(
        f"rows of {who} of {record.name!r} are for one bucket, so that neither could be taken back alone; send the rows"
        " of a bucket to one task"
    )


def check_unowned(locks: Locks, schema: Schema, now: float) -> None:
    """Raise ColumnLockConflict if somebody keeps rows from being removed; one whose columns were dropped does not."""
    for lock in locks.values():
        if lock.record.overlaps(ids_of(schema, None)):
            raise ColumnLockConflict(
                f"{lock.record.name!r} owns columns of this table, so its rows are not removed; wait until it is"
                " released, or release it with `kolk lock release`",
                lock.record.name,
                seconds_left=lock.expires - now,
            )


def conflict_of(lock: Lock, schema: Schema, where: str, now: float) -> ColumnLockConflict:
    """Say whose the columns are."""
    names = lock.record.names(schema)
    left = lock.expires - now
    until = f"for {left:.0f} s more" if left > 0 else "and has left them with changes that are not committed"
    what = "all columns" if names is None else f"the columns {', '.join(names)}"
    return ColumnLockConflict(
        f"{lock.record.name!r} owns {what}{where} {until}; take other columns, or wait, or release it with"
        " `kolk lock release`",
        lock.record.name,
        names,
        left,
    )


def check_within(lock: Lock, prepared: Prepared) -> None:
    """Raise InvalidRows if a write of an owner goes beyond its columns, or beyond what a replay may repeat."""
    record, write = lock.record, prepared.write
    touched = ids_of(prepared.schema, write.columns)
    if record.undo is UndoMode.NONE:
        _check_replayable(record, prepared, touched)
    if record.columns is None:
        return
    outside = [prepared.schema.by_id[id].name for id in touched if id not in record.columns]
    if outside:
        whole = ", and the rows are whole ones; name its columns" if write.columns is None else ""
        raise InvalidRows(f"{record.name!r} does not own {', '.join(outside)}{whole}")


def _check_replayable(record: OwnerRecord, prepared: Prepared, touched: Sequence[int]) -> None:
    """Raise InvalidRows if a write that is never taken back could not be repeated either."""
    if prepared.write.action is not Action.UPSERT:
        raise InvalidRows(f"{record.name!r} has undo='none', so it takes nothing away: a replay could not tell")
    for column in (prepared.schema.by_id[id] for id in touched):
        if not is_replayable(column):  # it came after its owner, who has all columns
            raise InvalidRows(f"{record.name!r} has undo='none', and a replay changes {column.name!r}; leave it out")
