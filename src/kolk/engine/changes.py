"""Reading a table's changelog bucket by bucket, and waiting for more.

The order within a bucket is the order of the log; between buckets there is none, and they take turns, so that a busy
one cannot starve the others. What happens to partitions comes in the order of their record: that one was made before
any of its changes, that one is gone after the last of its changes that this reader is given.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kolk.errors import OffsetOutOfRange, PartitionDropped, PartitionNotFound
from kolk.model.ids import BucketId
from kolk.model.page import ChangelogPage
from kolk.model.partition import (
    PARTITIONS,
    Layout,
    Partition,
    PartitionEvent,
    PartitionEventKind,
    RecordedEvent,
)
from kolk.model.table import TableInfo
from kolk.tablet.signal import Signal

ReadChanges = Callable[[BucketId, int, int | None], ChangelogPage]
"""The next changes of a bucket, from an offset on, below a stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFeed:
    """What a reader needs to know of a table's partitions: how they are now, from which event on it reads and up to
    which (None: for ever), and which buckets a new one has for it, if it wants to know of new ones at all."""

    layout: Callable[[], Layout]
    position: int
    stop: int | None
    buckets: Callable[[Partition], Iterable[BucketId]] | None


class TableChanges:
    """A position in every chosen bucket. Confined to one reader at a time; ``close`` may come from anywhere."""

    def __init__(
        self,
        read: ReadChanges,
        signal: Signal,
        starts: Mapping[BucketId, int],
        stops: Mapping[str, int | None],
        feed: PartitionFeed | None = None,
    ) -> None:
        self._read = read
        self._signal = signal
        self._offsets = dict(starts)
        self._stops = dict(stops)
        self._turns = deque(starts)
        self._feed = feed
        self._position = self._told = feed.position if feed is not None else 0
        self._closed = False

    @property
    def is_finished(self) -> bool:
        """Whether every bucket has come to its stop."""
        return not self._expects_partitions and all(self._is_done(bucket) for bucket in self._offsets)

    def next(self, seconds: float) -> tuple[str, ChangelogPage] | PartitionEvent | None:
        """The next page and its bucket, or what became of a partition; None if there is nothing now, after waiting at
        most so long for more. A page of no changes that is named as the record of partitions moves the reader's place
        there, past events of partitions that it did not choose."""
        # Read before looking, so that what is published after the look ends the wait.
        seen = self._signal.count
        event = self._next_event()
        has_moved, self._told = self._position > self._told, self._position
        if event is not None:
            return event
        if has_moved and self._feed is not None and self._feed.buckets is not None:
            return PARTITIONS, ChangelogPage(None, self._position)
        waits = self._expects_partitions
        for _ in range(len(self._turns)):
            if self._closed:
                return None
            bucket = self._turns[0]
            self._turns.rotate(-1)
            if self._is_done(bucket):
                continue
            waits = True
            offset = self._offsets[bucket]
            try:
                page = self._read(bucket, offset, self._stops.get(bucket.name))
            except PartitionDropped:
                return None  # the event says the rest
            if page.next_offset > offset:
                self._offsets[bucket] = page.next_offset
                return bucket.name, page
        if waits and not self._closed:
            self._signal.wait(seen, seconds)
        return None

    def close(self) -> None:
        """End the reading, also one that waits in another thread. Idempotent."""
        self._closed = True
        self._signal.notify()

    def _is_done(self, bucket: BucketId) -> bool:
        stop = self._stops.get(bucket.name)
        return stop is not None and self._offsets[bucket] >= stop

    @property
    def _expects_partitions(self) -> bool:
        feed = self._feed
        return feed is not None and feed.buckets is not None and (feed.stop is None or self._position < feed.stop)

    def _next_event(self) -> PartitionEvent | None:
        """The next event that concerns this reader."""
        feed = self._feed
        if feed is None:
            return None
        layout = feed.layout()
        if self._position < layout.start:
            raise OffsetOutOfRange(
                f"what became of partitions is known from event {layout.start} on, and this reader is at"
                f" {self._position}; scan the table and go on from the scan's offsets"
            )
        coming = layout.since(self._position)
        until = self._told_until(feed.stop, coming)
        for event in coming:
            if until is not None and event.number >= until:
                return None
            self._position = event.number + 1
            is_due = feed.stop is None or event.number < feed.stop
            told = self._dropped(event) if event.kind is PartitionEventKind.DROPPED else self._created(event, is_due)
            if told is not None:
                return told
        return None

    def _told_until(self, stop: int | None, coming: Sequence[RecordedEvent]) -> int | None:
        """Up to which event this reader is told of them. Past its stop it must know why a bucket that it waits for will
        not come, and is told first of what came before that."""
        if stop is None or not coming:
            return stop
        mine = {bucket.partition for bucket in self._offsets}
        drops = (event for event in coming if event.kind is PartitionEventKind.DROPPED and event.partition.id in mine)
        return max([stop, *(event.number + 1 for event in drops)])

    def _created(self, event: RecordedEvent, is_due: bool) -> PartitionEvent | None:
        if self._feed is None or self._feed.buckets is None:
            return None
        buckets = list(self._feed.buckets(event.partition))
        if is_due:  # else it is only told in its place; its rows are past the stop
            self._offsets.update(dict.fromkeys(buckets, 0))
            self._turns.extend(buckets)
        return self._event(event, 0) if buckets else None

    def _dropped(self, event: RecordedEvent) -> PartitionEvent | None:
        buckets = [bucket for bucket in self._offsets if bucket.partition == event.partition.id]
        if not buckets:
            return None
        unread: int | None = 0
        for bucket in buckets:
            offset, end = self._offsets.pop(bucket), event.ends[bucket.bucket]
            unread = None if end is None or unread is None else unread + max(end - offset, 0)
        self._turns = deque(self._offsets)
        return self._event(event, unread)

    def _event(self, event: RecordedEvent, unread: int | None) -> PartitionEvent:
        return PartitionEvent(
            kind=event.kind,
            partition=event.partition.name,
            position=event.number + 1,
            timestamp_ms=event.timestamp_ms,
            unread=unread,
        )


def starts_at(
    info: TableInfo, known: Iterable[BucketId], starts: Mapping[str, int], stop: int | None
) -> dict[BucketId, int]:
    """Where to start in a partitioned table: ``known`` are its buckets at the reader's place in the record of
    partitions; what came after ``stop`` is left out.

    Whoever keeps track of partitions reads them all, each from its beginning unless told otherwise.
    """
    buckets = {bucket.name: bucket for bucket in known}
    unknown = [name for name in starts if name not in buckets and name != PARTITIONS]
    if unknown:
        raise PartitionNotFound(
            f"the offsets name a bucket {unknown[0][:200]!r} of {info.name}, and there was none of that name at their"
            " place in the record of partitions; scan the table and go on from the scan's offsets"
        )
    read = [buckets[name] for name in (buckets if PARTITIONS in starts else starts)]
    return {bucket: starts.get(bucket.name, 0) for bucket in read if stop is None or bucket.partition < stop}
