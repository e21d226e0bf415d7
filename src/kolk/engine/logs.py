"""The logs of a table's buckets, read together: where they start and end, where they were at a time, and what follows.

A table with partitions has a record of those beside its logs, which is read in step with them. Whoever reads a bucket
that rests, at its end, does not wake it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count

from kolk.engine.changes import PartitionFeed, TableChanges, starts_at
from kolk.engine.partitions import LOOKS_MAX, Partitions
from kolk.engine.tablets import Tablets
from kolk.errors import PartitionDropped
from kolk.model.ids import BucketId, TableId
from kolk.model.page import ChangelogPage
from kolk.model.partition import PARTITIONS, Partition, matching
from kolk.model.predicate import Predicate
from kolk.model.schema import Schema
from kolk.model.table import TableInfo, check_partitions_only
from kolk.tablet.changelog import read_changelog
from kolk.tablet.signal import Signal


class Logs:
    """Reads logs. Thread-safe: it has no state, and what it touches has locks of its own."""

    def __init__(self, partitions: Partitions, tablets: Tablets, info_of: Callable[[TableId], TableInfo]) -> None:
        self._partitions = partitions
        self._tablets = tablets
        self._info_of = info_of

    def bounds(self, info: TableInfo) -> dict[str, tuple[int, int]]:
        """The start and end offset of every bucket, and of the record of partitions if there is one."""
        for attempt in count(1):
            with self._partitions.still_for(info, attempt > LOOKS_MAX), suppress(PartitionDropped):
                layout = self._partitions.of(info)
                states = [self._tablets.state(info, bucket) for bucket in self._partitions.buckets(info)]
                self._info_of(info.id)  # a dropped table has no partitions, and is not empty
                if self._partitions.of(info) is layout:
                    record = {PARTITIONS: (layout.start, layout.position)} if info.is_partitioned else {}
                    return {state.bucket.name: (state.start, state.end) for state in states} | record
        raise AssertionError("the last attempt succeeds")

    def offsets_at(self, info: TableInfo, timestamp_ms: int) -> dict[str, int]:
        """The first offset of every bucket that was committed at or after this time."""
        offsets: dict[str, int] = {}
        for bucket in self._partitions.buckets(info):
            with suppress(PartitionDropped), self._tablets.use_one(info, bucket) as tablet:
                offsets[bucket.name] = tablet.offset_at(timestamp_ms)
        return offsets

    def offsets_since(self, info: TableInfo, timestamp_ms: int) -> dict[str, int | None]:
        """The same; None for a bucket whose log may not have all that was committed since."""
        offsets: dict[str, int | None] = {}
        for bucket in self._partitions.buckets(info):
            with suppress(PartitionDropped), self._tablets.use_one(info, bucket) as tablet:
                offset = tablet.offset_at(timestamp_ms)
                offsets[bucket.name] = None if tablet.may_lack(timestamp_ms) else offset
        return offsets

    def open(
        self,
        info: TableInfo,
        schema: Schema | None,
        starts: Mapping[str, int],
        stops: Mapping[str, int | None],
        where: Predicate | None,
        signal: Signal,
    ) -> TableChanges:
        """The changelog from these offsets on, of the partitions that a predicate selects; in one version of the
        schema, or each page as it was written."""
        check_partitions_only(info, where)
        read = partial(self._read, info.id, schema)
        if not info.is_partitioned:
            buckets = {self._partitions.bucket(info, name): start for name, start in starts.items()}
            return TableChanges(read, signal, buckets, stops)
        position, stop = starts.get(PARTITIONS, self._partitions.of(info).position), stops.get(PARTITIONS)
        feed = PartitionFeed(
            layout=partial(self._partitions.of, info),
            position=position,
            stop=stop,
            buckets=partial(_buckets_of_new, info, where) if PARTITIONS in starts else None,
        )
        chosen = starts_at(info, self._partitions.buckets_at(info, position, where), starts, stop)
        return TableChanges(read, signal, chosen, stops, feed)

    def _read(
        self, table: TableId, schema: Schema | None, bucket: BucketId, offset: int, stop: int | None
    ) -> ChangelogPage:
        """The next changes of a bucket, in a version of the schema, or in the one that they were written with."""
        info = self._info_of(table)
        if self._tablets.state(info, bucket).end == offset:
            return ChangelogPage(None, offset)
        with self._tablets.use_one(info, bucket) as tablet:
            return read_changelog(tablet, offset, stop, schema)


def _buckets_of_new(info: TableInfo, where: Predicate | None, partition: Partition) -> tuple[BucketId, ...]:
    return info.buckets_of(partition) if matching(info.partition_columns, [partition.name], where) else ()
