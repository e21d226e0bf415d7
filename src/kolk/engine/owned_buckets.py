"""What owners have in the buckets of their tables, and how it is taken back there.

What is known of a bucket that was closed stays known, so of thousands of buckets only those are opened in which there
is something to do, and once after a start those that nobody has looked at.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from kolk.engine.owner_tally import OwnerTally
from kolk.engine.partitions import Partitions
from kolk.engine.tablets import Tablets
from kolk.errors import CommitMismatch, PartitionDropped
from kolk.merge.engine import Merger
from kolk.model.ids import BucketId, OwnerTag
from kolk.model.owner import OwnerRecord, UndoMode
from kolk.model.table import TableInfo
from kolk.model.write import empty_write
from kolk.runtime.clock import Clock
from kolk.tablet.owning import OwnerView

OnProgress = Callable[[int, int], object]
"""Told how many buckets are done, and how many there are."""


class OwnedBuckets:
    """Looks for owners in buckets. Thread-safe: what it touches has locks of its own."""

    def __init__(self, tablets: Tablets, partitions: Partitions, clock: Clock) -> None:
        self._tablets = tablets
        self._partitions = partitions
        self._clock = clock
        self.tally = OwnerTally()

    def pass_through(self, info: TableInfo) -> None:
        """Take every open bucket's lock once: what was judged by an older lock is over then."""
        for tablet in self._tablets.opened():
            if tablet.bucket.table == info.id:
                with tablet.held():
                    pass

    def look(self, info: TableInfo) -> None:
        """Open, once after a start, the buckets that nobody has looked at: one that the catalog does not know says
        so."""
        for bucket in self._partitions.buckets(info):
            with suppress(PartitionDropped):
                self.views(info, bucket)

    def views(self, info: TableInfo, bucket: BucketId) -> Mapping[int, OwnerView]:
        """What a bucket has of owners, by their numbers; PartitionDropped if it is gone."""
        views = self._tablets.state(info, bucket).owners
        if views is None:
            with self._tablets.use_one(info, bucket) as tablet:
                views = tablet.owners()
        return views

    def view(self, info: TableInfo, bucket: BucketId, number: int) -> OwnerView:
        """What a bucket has of an owner; PartitionDropped if it is gone."""
        return self.views(info, bucket).get(number, OwnerView())

    def dirty_from(self, info: TableInfo, bucket: BucketId, record: OwnerRecord) -> int | None:
        """From where on a bucket has changes beyond the commit point; None if it has none that would be taken back."""
        if record.undo is UndoMode.NONE:
            return None
        return self.view(info, bucket, record.number).dirty_from(record.committed)

    def dirty(self, info: TableInfo, record: OwnerRecord) -> Iterator[BucketId]:
        """The buckets that have."""
        for bucket in self._partitions.buckets(info):
            with suppress(PartitionDropped):
                if self.dirty_from(info, bucket, record) is not None:
                    yield bucket

    def is_dirty(self, info: TableInfo, record: OwnerRecord) -> bool:
        """Whether anything is not committed."""
        return next(self.dirty(info, record), None) is not None

    def dirt(self, info: TableInfo, record: OwnerRecord) -> bool | None:
        """Whether anything is not committed, as far as that is known without opening a bucket; None if it is not."""
        views = [self._tablets.known_owners(bucket) for bucket in self._partitions.buckets(info)]
        known = [each.get(record.number, OwnerView()) for each in views if each is not None]
        if record.undo is UndoMode.ALWAYS and any(view.dirty_from(record.committed) is not None for view in known):
            return True
        return False if len(known) == len(views) or record.undo is UndoMode.NONE else None

    def undo(self, info: TableInfo, record: OwnerRecord, on_progress: OnProgress | None = None) -> None:
        """Take back what is not committed, in every bucket; a partition that goes meanwhile needs it no more."""
        found = list(self.dirty(info, record))
        for done, bucket in enumerate(found):
            if on_progress is not None:
                on_progress(done, len(found))
            self.undo_one(info, bucket, record)
        if on_progress is not None:
            on_progress(len(found), len(found))

    def undo_one(self, info: TableInfo, bucket: BucketId, record: OwnerRecord) -> None:
        """The same in one bucket."""
        if record.undo is UndoMode.NONE:
            return
        with suppress(PartitionDropped), self._tablets.use_one(info, bucket) as tablet, tablet.held():
            started = self._clock.monotonic()
            rows = tablet.undo(record)
            self.tally.add(undone_rows=rows, undo_seconds=self._clock.monotonic() - started)

    def seal(self, info: TableInfo, tag: OwnerTag, seqs: Mapping[str, int]) -> None:
        """Write to each of these buckets that a task is through with it; CommitMismatch if its last put is not there.
        Again it changes nothing."""
        merger = self._tablets.merger(info)
        assert isinstance(merger, Merger), "a log table has no owners"
        nothing = merger.prepare(empty_write(merger.schema), is_correction=True)
        for bucket in [bucket for bucket in self._partitions.buckets(info) if bucket.name in seqs]:
            with suppress(PartitionDropped), self._tablets.use_one(info, bucket) as tablet:
                view, last = tablet.owners().get(tag.owner, OwnerView()), seqs[bucket.name]
                is_there = (view.ticket, view.last_of(tag.fence, tag.epoch)) == (tag.ticket, last)
                if not is_there:
                    raise CommitMismatch(f"put {last} of this task is not in bucket {bucket.name}; begin it again")
                if not view.sealed:
                    tablet.put(nothing, replace(tag, seq=last))

    def check_arrived(self, info: TableInfo, record: OwnerRecord, epoch: int, seqs: Mapping[str, int]) -> None:
        """Raise CommitMismatch unless the last put of an epoch is the one that is named, in every bucket that has any
        of it."""
        for bucket, view in self._views(info, record):
            found, wanted = view.last_of(record.fence, epoch), seqs.get(bucket.name)
            if found is not None and view.ticket:
                raise CommitMismatch(f"what bucket {bucket.name} has of epoch {epoch} is a task's: commit the tasks")
            if found != wanted:
                raise CommitMismatch(
                    f"the last put of epoch {epoch} in bucket {bucket.name} is {_number(found)}, and {_number(wanted)}"
                    " was to be committed: nothing was. Put what is missing again, or begin again"
                )

    def check_left(
        self,
        info: TableInfo,
        record: OwnerRecord,
        epoch: int,
        tasks: Mapping[str, tuple[int, int]],
        *,
        unsealed: bool = False,
    ) -> list[BucketId]:
        """Raise CommitMismatch unless what is in the buckets named is that of the tickets named, whole and, if it must
        be, sealed; the answer is which other buckets have something of the epoch."""
        others: list[BucketId] = []
        for bucket, view in self._views(info, record):
            found, wanted = view.last_of(record.fence, epoch), tasks.get(bucket.name)
            if wanted is None:
                others += [bucket] if found is not None else []
            elif (view.ticket, found) != tuple(wanted) or not (view.sealed or unsealed):
                raise CommitMismatch(
                    f"bucket {bucket.name} has put {_number(found)} of ticket {view.ticket}, and {wanted[1]} of ticket"
                    f" {wanted[0]}{'' if unsealed else ', sealed,'} was to be committed: nothing was. Begin again"
                )
        return others

    def _views(self, info: TableInfo, record: OwnerRecord) -> Iterator[tuple[BucketId, OwnerView]]:
        for bucket in self._partitions.buckets(info):
            with suppress(PartitionDropped):
                yield bucket, self.view(info, bucket, record.number)


def _number(seq: int | None) -> str:
    return "none" if seq is None else str(seq)
