"""How partitions come and go: by hand, and for tables that are cut by time, by the clock.

A drop by hand waits for nobody. Whoever is reading the partition is told so, goes on with the others, and knows how
much it did not get: the record of the drop holds where the logs ended, which nothing can move any more because the
buckets are retired in the same moment. Expiry waits while somebody scans the partition, leases it, or follows the table
and has not read it to its end, but not for longer than the table's grace, counted from its end or from the opening of
the database.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack

from kolk.engine.catalog import Catalog
from kolk.engine.followers import Followers
from kolk.engine.keeping import Keeping
from kolk.engine.partitions import Partitions, gone
from kolk.engine.tablets import Tablets
from kolk.errors import Closed, KolkError, PartitionDropped, PartitionExists, PartitionNotFound, TableNotFound
from kolk.model.follower import FollowerState
from kolk.model.ids import BucketId, TableId
from kolk.model.partition import Partition
from kolk.model.table import TableInfo, TableSpec
from kolk.runtime.clock import Clock
from kolk.tablet.tablet import Tablet

_log = logging.getLogger(__name__)


class PartitionLives:
    """Makes and removes partitions. Thread-safe: it has no state, and what it touches has locks of its own."""

    def __init__(
        self,
        catalog: Catalog,
        partitions: Partitions,
        tablets: Tablets,
        followers: Followers,
        keeping: Keeping,
        clock: Clock,
        notify: Callable[[TableId], None],
    ) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._tablets = tablets
        self._followers = followers
        self._keeping = keeping
        self._clock = clock
        self._notify = notify
        self._since_ms = clock.now_ms()

    def add(self, info: TableInfo, name: str, *, if_not_exists: bool) -> Partition:
        """Make a partition."""
        with self._partitions.still():
            if name in self._partitions.of(info).partitions and not if_not_exists:
                raise PartitionExists(f"{info.name} has the partition {name} already")
            made = self._partitions.create(info, [name]).partitions[name]
        self._notify(info.id)
        return made

    def drop(self, info: TableInfo, partition: Partition) -> None:
        """Remove a partition, whoever reads it."""
        buckets = info.buckets_of(partition)
        with ExitStack() as held:
            # Buckets are opened before anybody has to wait: to know where their logs end they may have to recover.
            tablets = [self._opened(info, bucket, held) for bucket in buckets]
            held.enter_context(self._partitions.still())
            if self._partitions.named(info, partition.name) != partition:
                raise PartitionNotFound(f"the partition {partition.name} was dropped, and made anew, by somebody else")
            for tablet in filter(None, tablets):
                held.enter_context(tablet.held())
            try:
                self._partitions.remove(info, partition, [tablet and tablet.end for tablet in tablets])
            finally:
                # Also if an interrupt came once it was removed: nothing may be acknowledged any more.
                if self._partitions.of(info).partitions.get(partition.name) != partition:
                    for tablet in filter(None, tablets):
                        tablet.retire(gone(tablet.bucket))
        self._tablets.drop_partition(buckets[0])
        self._keeping.drop_partition(buckets[0])
        self._notify(info.id)

    def wanted(self, spec: TableSpec) -> list[str]:
        """The partitions that a table should have ready now."""
        auto = spec.options.auto_partition
        return [] if auto is None else [f"{auto.key}={value}" for value in auto.wanted(self._clock.now_ms())]

    def prepare(self, info: TableInfo) -> None:
        """Make the partitions that should be ready now."""
        wanted = self.wanted(info.spec)
        if not set(wanted) <= self._partitions.of(info).partitions.keys():
            self._partitions.create(info, wanted)
            self._notify(info.id)

    def round(self) -> None:
        """Make what should be ready and remove what is past its time. A table that fails does not stop the others."""
        for info in self._catalog.list():
            try:
                # First what is past its time: a table that is full has no room for what should be ready.
                for partition in self._expired(info):
                    self.drop(info, partition)
                    _log.info("the partition %s of %s has expired", partition.name, info.name)
                self.prepare(info)
            except (TableNotFound, PartitionNotFound, PartitionDropped, Closed):
                continue  # somebody was quicker, or the database is about to close
            except KolkError as error:
                _log.warning("the partitions of %s are not brought up to date: %s", info.name, error)

    def _expired(self, info: TableInfo) -> list[Partition]:
        """The partitions that are past their time and are no longer waited for."""
        auto, now_ms = info.spec.options.auto_partition, self._clock.now_ms()
        if auto is None:
            return []
        found: list[Partition] = []
        for partition in self._partitions.of(info).partitions.values():
            expires_ms = auto.expires_ms(partition.values[auto.key])
            if expires_ms is not None and expires_ms <= now_ms:
                # While the database was closed nobody could read: the grace is what readers have of its being open.
                until_ms = max(expires_ms, self._since_ms) + auto.grace_ms
                is_waited_for = now_ms < until_ms and self._is_read(info, partition, now_ms)
                found += [] if is_waited_for else [partition]
        return found

    def _is_read(self, info: TableInfo, partition: Partition, now_ms: int) -> bool:
        """Whether somebody scans a partition, leases a snapshot of it, or follows the table and has not come to the
        partition's end."""
        buckets = info.buckets_of(partition)
        if self._tablets.are_viewed(buckets) or self._keeping.is_leased(buckets):
            return True
        bookmarks = self._followers.of(info.id).values()
        states = [self._tablets.state(info, bucket) for bucket in buckets] if bookmarks else []
        starts, ttl_ms = {state.bucket: state.start for state in states}, self._followers.ttl_ms
        return any(
            bookmark.state(starts, self._partitions.of(info).start, now_ms, ttl_ms) is FollowerState.LIVE
            and any(bookmark.offset_of(state.bucket) < state.end for state in states)
            for bookmark in bookmarks
        )

    def _opened(self, info: TableInfo, bucket: BucketId, held: ExitStack) -> Tablet | None:
        """The tablet of a bucket; None if it cannot be opened, which must not keep anybody from dropping it."""
        try:
            return held.enter_context(self._tablets.use_one(info, bucket))
        except (TableNotFound, Closed):
            raise
        except KolkError as error:
            _log.warning("bucket %s of %s is dropped without being opened: %s", bucket.name, info.name, error)
            return None
