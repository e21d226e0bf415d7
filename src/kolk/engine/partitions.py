"""The partitions of all tables: which there are, and the record of how they came and went.

Meta records: ``next-partition/<table id>`` (the number of the table's next event, as text),
``partition/<table id>/<number>`` and ``partition-event/<table id>/<number>``. A partition and the event that tells of
it are one atomic write, so the record never lies; what a crash leaves of a dropped one's files is found by its number
at the next start. Of a table's events the newest are kept; a reader that stayed away for longer is told so.

A table that has no partitions is one whose buckets are all there is: whoever asks this module for buckets need not
know the difference.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from kolk.codec.partition import decode_event, decode_partition, encode_event, encode_partition
from kolk.errors import (
    InvalidArgument,
    InvalidRows,
    OffsetOutOfRange,
    PartitionDropped,
    PartitionNotFound,
    TooManyPartitions,
)
from kolk.model.auto_partition import AUTO_PARTITION_RETENTION
from kolk.model.ids import BucketId, TableId
from kolk.model.partition import Layout, Partition, PartitionEventKind, RecordedEvent, matching, values_of
from kolk.model.predicate import Predicate
from kolk.model.table import TableInfo, TableSpec
from kolk.runtime.clock import Clock
from kolk.storage.meta import ABSENT, RECORD_BYTES_MAX, Meta, MetaChange

EVENTS_MAX = 10_000
"""Events of one table that are kept."""
LOOKS_MAX = 3
"""How often a look at all buckets of a table is begun anew because partitions came or went, before these have to wait
for it."""
_BUCKETS_MAX = 16_384
"""Buckets of one table, in all its partitions: whoever follows it has an offset for each."""
_NAMES_BYTES_MAX = RECORD_BYTES_MAX - 10_000
"""What the offsets of all these buckets may take as text, for a follower keeps them in one record."""
_OFFSET_BYTES_MAX = 30
"""The number of a bucket, its offset, and what stands between, as text."""
_NEXT = "next-partition/"
_PARTITION = "partition/"
_EVENT = "partition-event/"
_NO_PARTITIONS = Layout({})


class Partitions:
    """The partitions of a database. Thread-safe: one lock, taken before a tablet's and before meta's. Those who only
    look take none."""

    def __init__(
        self, meta: Meta, clock: Clock, most: int, tables: Iterable[TableInfo], check_table: Callable[[TableId], object]
    ) -> None:
        # Constant after construction.
        self.most = most
        self._meta = meta
        self._clock = clock
        self._check_table = check_table
        self._lock = threading.RLock()
        # Written under _lock, read by anyone: each value is replaced whole.
        self._layouts: dict[TableId, Layout] = {}
        self._load({info.id for info in tables})

    def of(self, info: TableInfo) -> Layout:
        """A table's partitions as they are now."""
        return self._layouts.get(info.id, _NO_PARTITIONS)

    def named(self, info: TableInfo, name: str) -> Partition:
        """The partition of this name."""
        layout = self.of(info)
        try:
            return layout.partitions[name]
        except KeyError:
            known = ", ".join(list(layout.partitions)[:20]) or "none yet"
            raise PartitionNotFound(f"{info.name} has no partition {name}; its partitions are: {known}") from None

    def buckets(self, info: TableInfo, where: Predicate | None = None) -> tuple[BucketId, ...]:
        """Every bucket of a table that can have rows which a predicate selects, in lock order."""
        if not info.is_partitioned:
            return info.bucket_ids
        found = self.of(info).partitions
        chosen = [found[name] for name in matching(info.partition_columns, list(found), where)]
        chosen.sort(key=lambda partition: partition.id)
        return tuple(bucket for partition in chosen for bucket in info.buckets_of(partition))

    def bucket(self, info: TableInfo, name: str) -> BucketId:
        """The bucket of this public name."""
        partition_name, _, number = name.rpartition("/")
        # The length comes first: int itself raises on thousands of digits.
        place = int(number) if len(number) < 9 and number.isascii() and number.isdigit() else -1
        if not 0 <= place < info.spec.buckets or number != str(place) or info.is_partitioned != bool(partition_name):
            example = f"{'/'.join(f'{column}=...' for column in info.spec.partition_by)}/" * info.is_partitioned
            raise InvalidArgument(
                f"there is no bucket {name[:100]!r}; they are named {example}0 to {example}{info.spec.buckets - 1}"
            )
        return info.bucket_id(place, self.named(info, partition_name) if partition_name else None)

    def buckets_at(self, info: TableInfo, position: int, where: Predicate | None = None) -> Sequence[BucketId]:
        """The buckets that a table had at a place in the record of its partitions, of those that a predicate selects;
        OffsetOutOfRange if the record does not have the place."""
        if not info.is_partitioned:
            return info.bucket_ids
        layout = self.of(info)
        if not layout.start <= position <= layout.position:
            raise OffsetOutOfRange(
                f"the record of the partitions of {info.name} has events {layout.start} to {layout.position};"
                f" {position} is not among them; scan the table and go on from the scan's offsets"
            )
        known = layout.at(position)
        chosen = matching(info.partition_columns, list(known), where)
        return [bucket for name in chosen for bucket in info.buckets_of(known[name])]

    def is_alive(self, bucket: BucketId) -> bool:
        """Whether this very bucket exists, and not only one of its name."""
        found = self._layouts.get(bucket.table, _NO_PARTITIONS).partitions.get(bucket.partition_name)
        return not bucket.partition_name or (found is not None and found.id == bucket.partition)

    def check_alive(self, bucket: BucketId) -> None:
        """Raise PartitionDropped if it does not."""
        if not self.is_alive(bucket):
            raise gone(bucket)

    def create(self, info: TableInfo, names: Sequence[str]) -> Layout:
        """Make those of these partitions that there are not."""
        with self._lock:
            self._check_table(info.id)
            layout = self.of(info)
            missing = [name for name in dict.fromkeys(names) if name not in layout.partitions]
            if missing:
                self.check_room(info.spec, missing, list(layout.partitions))
            now_ms = self._clock.now_ms()
            for name in missing:
                _check_time(info, name, now_ms)
            events = [
                RecordedEvent(
                    number=number,
                    kind=PartitionEventKind.CREATED,
                    partition=Partition(id=number, name=name, created_ms=now_ms),
                    timestamp_ms=now_ms,
                )
                for number, name in enumerate(missing, layout.position)
            ]
            return self._record(info, layout, events) if events else layout

    def remove(self, info: TableInfo, partition: Partition, ends: Sequence[int | None]) -> None:
        """Remove a partition; ``ends`` is where the logs of its buckets ended."""
        with self._lock:
            layout = self.of(info)
            event = RecordedEvent(
                number=layout.position,
                kind=PartitionEventKind.DROPPED,
                partition=partition,
                timestamp_ms=self._clock.now_ms(),
                ends=tuple(ends),
            )
            self._record(info, layout, [event])

    def forget(self, table: TableId) -> None:
        """Remove what is recorded of a dropped table."""
        with self._lock:
            self._layouts.pop(table, None)
            prefixes = (f"{_NEXT}{table:012}", f"{_PARTITION}{table:012}/", f"{_EVENT}{table:012}/")
            records = [record for prefix in prefixes for record in self._meta.list(prefix)]
            self._meta.write([MetaChange(record.key, None, record.version) for record in records])

    @contextmanager
    def still(self) -> Iterator[None]:
        """No partition comes or goes within the block."""
        with self._lock:
            yield

    def still_for(self, info: TableInfo, is_wanted: bool = True) -> AbstractContextManager[None]:
        """The same for who looks at this table alone: nobody waits for one that has no partitions."""
        return self.still() if is_wanted and info.is_partitioned else nullcontext()

    def check_room(self, spec: TableSpec, missing: Sequence[str], present: Sequence[str] = ()) -> None:
        """Whether a table that has some partitions, none if it is yet to be made, may have these besides."""
        most = min(self.most, _BUCKETS_MAX // spec.buckets)
        if len(present) + len(missing) > most:
            raise TooManyPartitions(
                f"{spec.name} has {len(present):,} partitions of at most {most:,}, and {missing[0]} is not among them;"
                " drop some first, or partition by something coarser"
            )
        text_bytes = sum(len(name) + _OFFSET_BYTES_MAX for name in (*present, *missing))
        if text_bytes * spec.buckets > _NAMES_BYTES_MAX:
            raise TooManyPartitions(
                f"the names of the buckets of {spec.name} would be too long for one record of offsets; drop some"
                " partitions first, or use shorter values or fewer buckets"
            )

    def _record(self, info: TableInfo, layout: Layout, events: Sequence[RecordedEvent]) -> Layout:
        """Persist events and what they did, then show it."""
        partitions = dict(layout.partitions)
        changes = [self._meta.replacement(f"{_NEXT}{info.id:012}", str(layout.position + len(events)).encode())]
        for event in events:
            changes.append(MetaChange(_key(_EVENT, info.id, event.number), encode_event(event), ABSENT))
            key = _key(_PARTITION, info.id, event.partition.id)
            if event.kind is PartitionEventKind.CREATED:
                partitions[event.partition.name] = event.partition
                changes.append(MetaChange(key, encode_partition(event.partition), ABSENT))
            else:
                del partitions[event.partition.name]
                changes.append(self._meta.replacement(key, None))
        recorded = (*layout.events, *events)
        changes += [
            self._meta.replacement(_key(_EVENT, info.id, event.number), None) for event in recorded[:-EVENTS_MAX]
        ]
        try:
            self._meta.write(changes)
            self._layouts[info.id] = Layout(partitions, recorded[-EVENTS_MAX:], layout.position + len(events))
        except BaseException:
            # An interrupt may have come after the records were changed: what is shown is what is written.
            self._show(info.id)
            raise
        return self._layouts[info.id]

    def _show(self, table: TableId) -> None:
        counter = self._meta.get(f"{_NEXT}{table:012}")
        partitions = [
            decode_partition(record.key, _number(record.key), record.value)
            for record in self._meta.list(f"{_PARTITION}{table:012}/")
        ]
        events = [
            decode_event(record.key, _number(record.key), record.value)
            for record in self._meta.list(f"{_EVENT}{table:012}/")
        ]
        position = int(counter.value) if counter else 1
        self._layouts[table] = Layout({each.name: each for each in partitions}, tuple(events), position)

    def _load(self, tables: set[TableId]) -> None:
        """Show what is recorded; records of dropped tables are what a crash left of them."""
        for record in self._meta.list(_NEXT):
            table = TableId(int(record.key.removeprefix(_NEXT)))
            if table in tables:
                self._show(table)
            else:
                self.forget(table)


def gone(bucket: BucketId) -> PartitionDropped:
    """What whoever uses a bucket of a dropped partition is told."""
    name = bucket.partition_name
    return PartitionDropped(f"the partition {name} was dropped; a new put makes it anew", name)


def _check_time(info: TableInfo, name: str, now_ms: int) -> None:
    """Whether a table that is cut by time may have this partition now."""
    auto = info.spec.options.auto_partition
    if auto is None:
        return
    value = values_of(name)[auto.key]
    auto.check(value)
    expires_ms = auto.expires_ms(value)
    if expires_ms is not None and expires_ms <= now_ms:
        raise InvalidRows(
            f"the partition {name} of {info.name} is past its time: the table keeps {auto.retention} past"
            f" {auto.unit.value}s ({AUTO_PARTITION_RETENTION}); leave such rows out, or create a table that keeps more"
        )


def _key(prefix: str, table: TableId, number: int) -> str:
    return f"{prefix}{table:012}/{number:012}"


def _number(key: str) -> int:
    return int(key.rpartition("/")[2])
