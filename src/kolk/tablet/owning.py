"""What a bucket knows of owners: whose frames it has, of which epochs, and whether a put is let in.

For each owner: where its frames begin after the last time it was undone, the epochs since, and the last puts of its
newest fence, to tell a retry. It is written to the KV in the same batch as the rows, and rebuilt from frame tags when
the log is replayed. Which columns are whose is decided elsewhere; here it is obeyed.

Record: name ``o`` + number (8 bytes); value a msgpack of ``OwnerView``.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from kolk.errors import ColumnLockConflict, EpochClosed, Fenced, InvalidRows, LockExpired, StaleTag
from kolk.merge.prepared import Prepared
from kolk.model.ids import OwnerTag, UndoTag, WriteTag
from kolk.model.owner import Lock, Locks
from kolk.model.write import Action

RECORD = b"o"
_KEPT_PUTS = 5
NO_VIEWS: Mapping[int, "OwnerView"] = MappingProxyType({})
Guard = Callable[[], Locks]
"""The locks of a bucket's table, as they are now."""


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """What a bucket has of one epoch: where it begins, and its last put."""

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
    kept: tuple[tuple[int, int], ...] = ()
    """The newest puts of this fence, each with the end that it was answered with."""

    def end_of(self, fence: int, seq: int) -> int | None:
        """The end that a put was answered with; None for one not seen before."""
        if fence != self.fence:
            return None
        for known, end in self.kept:
            if known == seq:
                return end
        if self.kept and seq < self.kept[0][0]:
            raise StaleTag(
                f"put {seq} of this owner is older than its last {_KEPT_PUTS}, so whether it arrived is forgotten"
            )
        return None

    def after(self, tag: OwnerTag, base: int, end: int) -> "OwnerView":
        """The view with one more put."""
        same = tag.fence == self.fence
        kept = (*(self.kept if same else ()), (tag.seq, end))[-_KEPT_PUTS:]
        epochs = [each for each in self.epochs if each.epoch != tag.epoch]
        before = next((each for each in self.epochs if each.epoch == tag.epoch), None)
        epochs.append(Epoch(tag.epoch, base if before is None else before.first, tag.seq))
        highest = max(self.highest, tag.epoch) if same else tag.epoch
        return OwnerView(self.since, tag.fence, tag.ticket, highest, tuple(epochs), kept)

    def undone(self, end: int, fence: int) -> "OwnerView":
        """The view after everything beyond the commit point was taken back."""
        return OwnerView(since=end, fence=fence)

    def dirty_from(self, committed: int) -> int | None:
        """Where the first frame beyond the commit point is; None if there is none."""
        return min((each.first for each in self.epochs if each.epoch > committed), default=None)


class Owning:
    """The owners of one bucket. Guarded by the tablet's lock."""

    def __init__(self, records: Mapping[bytes, bytes], guard: Guard) -> None:
        self._guard = guard
        self._views = {
            int.from_bytes(name[len(RECORD) :]): msgspec.msgpack.decode(value, type=OwnerView)
            for name, value in records.items()
        }

    def view(self, number: int) -> OwnerView:
        """What there is of an owner."""
        return self._views.get(number, OwnerView())

    def admitted(self, tag: WriteTag, prepared: Prepared, views: Mapping[int, "OwnerView"], now: float) -> int | None:
        """Let a put in, or raise; a number is the end that it is answered with, since it is not to be done again (-1:
        the present one). ``views`` are those of puts before it in the same pass."""
        locks = self._guard()
        if isinstance(tag, OwnerTag):
            view = views.get(tag.owner) or self.view(tag.owner)
            return self._owned(tag, prepared, locks.get(tag.owner), view, now)
        if locks:
            self.check_free(prepared, now)
        return None

    def check_free(self, prepared: Prepared, now: float) -> None:
        """Raise ColumnLockConflict if a write that is nobody's is about somebody's columns."""
        touched = _columns(prepared)
        for lock in self._guard().values():
            if lock.record.overlaps(touched) and touched != ():
                raise conflict(lock, prepared, now)

    def check_unowned(self, now: float) -> None:
        """Raise ColumnLockConflict if there is any owner: for what removes whole rows."""
        for lock in self._guard().values():
            raise ColumnLockConflict(
                f"{lock.record.name!r} owns columns of this table, so its rows are not removed; wait until it is"
                " released, or release it with `kolk lock release`",
                lock.record.name,
                seconds_left=lock.expires - now,
            )

    def floor(self, end: int) -> int:
        """From where on the log is needed to take back what is not committed; the end, if nothing is."""
        found = [self.view(number).dirty_from(lock.record.committed) for number, lock in self._guard().items()]
        return min((offset for offset in found if offset is not None), default=end)

    def is_dirty(self, column: int) -> bool:
        """Whether somebody has written a column and not committed it."""
        return any(
            lock.record.overlaps([column]) and self.view(number).dirty_from(lock.record.committed) is not None
            for number, lock in self._guard().items()
        )

    def noted(self, views: Mapping[int, OwnerView]) -> dict[bytes, bytes | None]:
        """Take in the owners of one pass; the answer is what to write to the KV."""
        self._views |= views
        return {RECORD + number.to_bytes(8): msgspec.msgpack.encode(view) for number, view in views.items()}

    def after(self, tag: WriteTag, base: int, end: int, views: Mapping[int, OwnerView]) -> dict[int, OwnerView]:
        """What a frame makes of its owner, if it has one."""
        if isinstance(tag, OwnerTag):
            return {tag.owner: (views.get(tag.owner) or self.view(tag.owner)).after(tag, base, end)}
        if isinstance(tag, UndoTag) and tag.done:
            return {tag.owner: self.view(tag.owner).undone(end, tag.fence)}
        return {}

    def _owned(self, tag: OwnerTag, prepared: Prepared, lock: Lock | None, view: OwnerView, now: float) -> int | None:
        if lock is None or lock.record.fence != tag.fence or lock.is_recovering:
            raise Fenced("a newer writer goes on in this owner's name, or it was released; nothing was written")
        if not lock.is_live(now):
            raise LockExpired(f"the lock of {lock.record.name!r} was not renewed in time; begin again")
        _check_within(lock, prepared)
        record = lock.record
        if tag.epoch <= record.committed:
            if tag.fence > record.committed_fence:
                return -1  # a replay of what is committed: acknowledged, and not done again
            raise EpochClosed(f"epoch {tag.epoch} of {record.name!r} is committed; nothing is added to it")
        known = view.end_of(tag.fence, tag.seq)
        if known is not None:
            return known
        if view.fence == tag.fence and tag.epoch < view.highest:
            raise EpochClosed(
                f"epoch {view.highest} of {record.name!r} has begun in this bucket, so nothing is added to {tag.epoch}"
            )
        return None


def conflict(lock: Lock, prepared: Prepared, now: float) -> ColumnLockConflict:
    """Say whose the columns are."""
    ids = lock.record.columns
    names = None if ids is None else [prepared.schema.by_id[id].name for id in ids if id in prepared.schema.by_id]
    left = lock.expires - now
    until = f"for {left:.0f} s more" if left > 0 else "and has left them with changes that are not committed"
    what = "all columns" if names is None else f"the columns {', '.join(names)}"
    return ColumnLockConflict(
        f"{lock.record.name!r} owns {what} {until}; write other columns, or wait, or release it with"
        " `kolk lock release`",
        lock.record.name,
        names,
        left,
    )


def _columns(prepared: Prepared) -> tuple[int, ...] | None:
    """The ids of the columns that a write changes; None for whole rows."""
    write = prepared.write
    if write.columns is None:
        return None
    return tuple(prepared.schema.column(name).id for name in write.columns)


def _check_within(lock: Lock, prepared: Prepared) -> None:
    own, touched = lock.record.columns, _columns(prepared)
    if own is None:
        return
    if touched is None:
        what = "a delete of whole rows" if prepared.write.action is Action.DELETE else "a put of whole rows"
        raise InvalidRows(f"{lock.record.name!r} owns some columns only, so {what} is not its own; name its columns")
    outside = [prepared.schema.by_id[id].name for id in touched if id not in own]
    if outside:
        raise InvalidRows(f"{lock.record.name!r} does not own {', '.join(outside)}")
