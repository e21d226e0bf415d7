"""What must be true of owners in one bucket's log, whatever happened: judged frame by frame.

Of every owner fences grow along the log; since it was last taken back so do its tickets, and within a fence its epochs.
While it has changes that are not committed nobody else changes its columns. For now that is told by its record. For the
past it is told by the undo: when something was taken back, at least the newest epoch before it was not committed, from
its first frame on, and its columns were those that it changed. The store itself may remove rows at any time.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import combinations

from kolk.codec.frame import FrameHeader
from kolk.model.ids import BucketId, OwnerTag, SystemTag, UndoTag
from kolk.model.owner import NO_EPOCH, OwnerRecord, UndoMode
from kolk.model.schema import Schema
from kolk.tablet.commit_laws import ONE_BACKUP, RESTORE
from kolk.tablet.faults import Faults, Law, build_anew, place_of
from kolk.tablet.owning import OwnerView

TRAILS_MAX = 10_000
"""Of so many owners a log is followed at once; those whose last frame is longest ago are forgotten first."""
_LOOK = "what is taken back may have been somebody else's: look at these columns, and write them again"
_NOBODY = 0
_Change = tuple[int, int]
"""Whose it was, by number, and where."""


class _Trail:
    """What an owner has written since it was last taken back."""

    __slots__ = ("dirty", "epoch", "fence", "is_undoing", "own", "ticket", "top")

    def __init__(self, fence: int) -> None:
        self.fence = fence
        self.ticket = 0
        self.epoch = NO_EPOCH
        self.top = 0  # where its newest epoch begins, and what that changes
        self.own: set[int] = set()
        self.dirty: int | None = None  # where it begins what is not committed
        self.is_undoing = False


class OwnerLaws:
    """Looks at the frames of one log in order. Confined to one caller."""

    def __init__(
        self,
        table: str,
        bucket: BucketId,
        newest: int,
        records: Iterable[OwnerRecord],
        schema: Schema,
        faults: Faults,
    ) -> None:
        self._table = table
        self._bucket = bucket
        self._place = place_of(table, bucket)
        self._newest = newest
        self._records = {record.number: record for record in records}
        self._schema = schema
        self._faults = faults
        self._trails: OrderedDict[int, _Trail] = OrderedDict()
        # Of each column the last change, and the last one before it that was somebody else's.
        self._changes: dict[int, tuple[_Change, _Change | None]] = {}

    def take(self, header: FrameHeader, changed: Callable[[], Collection[int]]) -> None:
        """The next frame, and how to learn which columns it changes."""
        tag = header.tag
        if isinstance(tag, OwnerTag):
            self._check_known(tag, header)
            self._note_own(tag, header)
        elif isinstance(tag, UndoTag):
            self._check_known(tag, header)
            self._note_undo(tag, header)
        if header.rows and self._trails and not isinstance(tag, SystemTag):
            writer = tag.owner if isinstance(tag, OwnerTag | UndoTag) else _NOBODY
            self._note_changes(writer, changed(), header, is_own=isinstance(tag, OwnerTag))

    def finish(self, start: int, views: Mapping[int, OwnerView] | None) -> None:
        """That was all: the log begins at ``start``. ``views`` are what the KV knows of owners; None if there is no
        KV."""
        dirty: list[OwnerRecord] = []
        for record in self._records.values():
            trail = self._trails.get(record.number)
            seen = None if trail is None else trail.dirty
            known = seen if views is None else views.get(record.number, OwnerView()).dirty_from(record.committed)
            first = min((offset for offset in (seen, known) if offset is not None), default=None)
            if first is None or record.undo is UndoMode.NONE:
                continue
            if seen is not None and (known is None or known > seen):
                what = f"{record.name!r} has uncommitted changes from offset {seen:,} on, and the KV does not know"
                self._add(Law.ROWS, what, build_anew(self._bucket))
            if first < start:
                what = f"{record.name!r} is to be taken back from offset {first:,} on, and the log starts at {start:,}"
                keep = f"kolk lock release {self._table} {record.name} --keep"
                self._add(Law.UNDO, what, f"{keep} gives its columns free with what is in them")
            if not record.has_columns:
                what = f"{record.name!r} has let its columns go, and has uncommitted changes from offset {first:,} on"
                self._add(Law.UNCOMMITTED, what, self._look_and_release(record))
                continue
            dirty.append(record)
            self._check_alone(record.number, record.columns, first, repr(record.name), self._look_and_release(record))
        for one, other in combinations(dirty, 2):
            if other.columns is None or one.overlaps(other.columns):
                what = f"{one.name!r} and {other.name!r} both have uncommitted changes in the same columns"
                self._add(Law.UNCOMMITTED, what, self._look_and_release(other))

    # --- frame by frame

    def _check_known(self, tag: OwnerTag | UndoTag, header: FrameHeader) -> None:
        record = self._records.get(tag.owner)
        where = f"at offset {header.base_offset:,}"
        if tag.owner > self._newest:
            what = f"the log has owner {tag.owner} {where}, and the catalog has given {self._newest} numbers only"
            self._add(Law.CATALOG, what, ONE_BACKUP)
        elif record is not None and tag.fence > record.fence:
            what = (
                f"{record.name!r} wrote with fence {tag.fence} {where}, and the catalog has given {record.fence} only"
            )
            self._add(Law.CATALOG, what, ONE_BACKUP)

    def _note_own(self, tag: OwnerTag, header: FrameHeader) -> None:
        trail = self._trail(tag)
        who, where = self._name(tag.owner), f"at offset {header.base_offset:,}"
        if trail.is_undoing:
            self._out_of_order(f"{who} wrote {where} before what it left was taken back")
        if (tag.fence, tag.ticket) < (trail.fence, trail.ticket):
            after = f"after fence {trail.fence}, ticket {trail.ticket}"
            self._out_of_order(f"{who} wrote with fence {tag.fence}, ticket {tag.ticket} {where}, {after}")
        elif tag.fence == trail.fence and tag.epoch < trail.epoch:
            self._out_of_order(f"{who} wrote epoch {tag.epoch} {where}, after epoch {trail.epoch}")
        if tag.epoch != trail.epoch:
            trail.top, trail.own = header.base_offset, set()
        trail.fence, trail.ticket, trail.epoch, trail.is_undoing = tag.fence, tag.ticket, tag.epoch, False
        record = self._records.get(tag.owner)
        if record is not None and tag.epoch > record.committed and trail.dirty is None:
            trail.dirty = header.base_offset

    def _note_undo(self, tag: UndoTag, header: FrameHeader) -> None:
        trail = self._trail(tag)
        if tag.fence < trail.fence:
            what = f"{self._name(tag.owner)} was taken back with fence {tag.fence} at offset {header.base_offset:,}"
            self._out_of_order(f"{what}, after fence {trail.fence}")
        # By a new fence, which must come to its end; a task's older ticket is taken back by the fence itself.
        trail.is_undoing |= tag.fence > trail.fence
        trail.fence = max(tag.fence, trail.fence)
        if tag.done:
            self._check_alone(tag.owner, tuple(trail.own), trail.top, self._name(tag.owner), _LOOK)
            self._trails[tag.owner] = _Trail(trail.fence)

    def _note_changes(self, writer: int, columns: Collection[int], header: FrameHeader, *, is_own: bool) -> None:
        for column in columns:
            last, other = self._changes.get(column, (None, None))
            if last is not None and last[0] != writer:
                other = last
            self._changes[column] = ((writer, header.base_offset), other)
        if is_own:
            self._trails[writer].own.update(columns)

    # --- what is wrong

    def _check_alone(self, number: int, columns: Collection[int] | None, since: int, who: str, next_step: str) -> None:
        """Whether nobody else has changed these columns, or any, since an offset."""
        for column in self._changes if columns is None else columns:
            last, other = self._changes.get(column, (None, None))
            foreign = other if last is not None and last[0] == number else last
            if foreign is not None and foreign[1] >= since:
                name = self._schema.by_id[column].name if column in self._schema.by_id else str(column)
                writer = "somebody else" if foreign[0] == _NOBODY else self._name(foreign[0])
                what = f"{who} had changes from offset {since:,} on that were not committed"
                self._add(Law.UNCOMMITTED, f"{what}, and {writer} changed {name} at offset {foreign[1]:,}", next_step)

    def _look_and_release(self, record: OwnerRecord) -> str:
        return f"{_LOOK}; kolk lock release {self._table} {record.name} --keep leaves them as they are now"

    def _trail(self, tag: OwnerTag | UndoTag) -> _Trail:
        found = self._trails.setdefault(tag.owner, _Trail(0))
        self._trails.move_to_end(tag.owner)
        if len(self._trails) > TRAILS_MAX:
            self._trails.popitem(last=False)
        return found

    def _name(self, number: int) -> str:
        return repr(self._records[number].name) if number in self._records else f"owner {number}"

    def _out_of_order(self, what: str) -> None:
        self._add(Law.EPOCHS, what, RESTORE)

    def _add(self, law: Law, what: str, next_step: str) -> None:
        self._faults.add(law, f"{self._place}: {what}", next_step)
