"""Letting old log go: the round that the engine makes every minute.

A table's options say how old and how large its logs may get; live followers keep what they have not seen, and of a
table with a primary key snapshots and leases keep what comes after them. What followers keep beyond the options is
bounded for the database as a whole: above the limit whoever keeps the most is released, until it fits. Tables that keep
everything are not looked at.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kolk.engine.catalog import Catalog
from kolk.engine.followers import Followers
from kolk.engine.keeping import Keeping
from kolk.engine.opening import BucketState
from kolk.engine.partitions import Partitions
from kolk.engine.sessions import ScanSessions
from kolk.engine.tablets import Tablets
from kolk.errors import Closed, KolkError, PartitionDropped, TableNotFound
from kolk.model.follower import FollowerState
from kolk.model.ids import BucketId, TableId
from kolk.model.table import TableInfo
from kolk.runtime.clock import Clock
from kolk.tablet.retention import Holder, HolderKind, bytes_from, outlived

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """A table, all its buckets as they are, and for some of them the offset below which the log has had its time."""

    info: TableInfo
    buckets: Sequence[BucketState]
    below: Mapping[BucketId, int]


class Retention:
    """Trims logs. Thread-safe: it has no state, and what it touches has locks of its own."""

    def __init__(
        self,
        catalog: Catalog,
        partitions: Partitions,
        tablets: Tablets,
        followers: Followers,
        scans: ScanSessions,
        keeping: Keeping,
        clock: Clock,
        pinned_bytes_max: int,
    ) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._tablets = tablets
        self._followers = followers
        self._scans = scans
        self._keeping = keeping
        self._clock = clock
        self._pinned_bytes_max = pinned_bytes_max

    def round(self) -> None:
        """Trim whatever may go. A table that cannot be trimmed is told of in the log, and does not stop the others."""
        due = [each for info in self._catalog.list() if (each := self._due(info)) is not None]
        self._release_largest(due)
        for each in due:
            self._trim(each)

    def _due(self, info: TableInfo) -> _Due | None:
        """What age and size want to go, also of buckets that were not used yet, for they age too."""
        ttl_ms, bytes_max = info.spec.options.log_ttl_ms, info.spec.options.log_bytes_max
        if ttl_ms is None and bytes_max is None:
            return None
        now_ms = self._clock.now_ms()
        try:
            buckets = self._tablets.states(info, self._partitions.buckets(info))
        except KolkError as error:
            return _tell(info, error)
        below = {
            each.bucket: outlived(each.segments, now_ms=now_ms, ttl_ms=ttl_ms, bytes_max=bytes_max) for each in buckets
        }
        below = {each.bucket: below[each.bucket] for each in buckets if below[each.bucket] > each.start}
        return _Due(info=info, buckets=buckets, below=below) if below else None

    def _trim(self, due: _Due) -> None:
        with self._followers.still():
            holders = self._holders(due)
            for bucket, below in due.below.items():
                try:
                    with self._tablets.use_one(due.info, bucket) as tablet:
                        followers = [holder for _, holder in holders[bucket]]
                        tablet.trim(
                            below, [*followers, *self._scans.holders(bucket), *self._kept_for(due.info, bucket)]
                        )
                except KolkError as error:
                    _tell(due.info, error)

    def _kept_for(self, info: TableInfo, bucket: BucketId) -> list[Holder]:
        """The snapshots and leases that hold a bucket's log; a log table has none."""
        return [] if info.is_log else self._keeping.holders(bucket)

    def _holders(self, due: _Due) -> dict[BucketId, list[tuple[str, Holder]]]:
        """Who holds the log of each bucket of a table, by name."""
        now_ms, ttl_ms = self._clock.now_ms(), self._followers.ttl_ms
        starts = {each.bucket: each.start for each in due.buckets}
        held: dict[BucketId, list[tuple[str, Holder]]] = {bucket: [] for bucket in starts}
        for name, bookmark in self._followers.of(due.info.id).items():
            if bookmark.state(starts, self._partitions.of(due.info).start, now_ms, ttl_ms) is not FollowerState.LIVE:
                continue
            owner, expires_ms = f"{due.info.name}/{name}", bookmark.used_ms + ttl_ms
            for bucket in starts:
                offset = bookmark.offset_of(bucket)
                holder = Holder(kind=HolderKind.FOLLOWER, owner=owner, offset=offset, expires_ms=expires_ms)
                held[bucket].append((name, holder))
        return held

    def _release_largest(self, due: Sequence[_Due]) -> None:
        """Release followers until those that are left keep no more than they may, all of them together."""
        with self._followers.still():
            while True:
                kept, kept_in_all = self._kept(due)
                if kept_in_all <= self._pinned_bytes_max:
                    return
                table, name = largest = max(kept, key=lambda follower: kept[follower])
                _log.warning(
                    "the follower %r of table %d keeps %d bytes of log beyond their time, and all together may keep"
                    " %d: it is released",
                    name,
                    table,
                    kept[largest],
                    self._pinned_bytes_max,
                )
                self._followers.release(table, name)

    def _kept(self, due: Sequence[_Due]) -> tuple[dict[tuple[TableId, str], int], int]:
        """The bytes that each follower keeps beyond their time, and how much log that is in all."""
        kept: dict[tuple[TableId, str], int] = {}
        kept_in_all = 0
        for each in due:
            holders = self._holders(each)
            for state in each.buckets:
                below = each.below.get(state.bucket, 0)
                sizes = [
                    (name, bytes_from(state.segments, holder.offset, below=below))
                    for name, holder in holders[state.bucket]
                ]
                kept_in_all += max((size for _, size in sizes), default=0)
                for name, size in sizes:
                    kept[each.info.id, name] = kept.get((each.info.id, name), 0) + size
        return kept, kept_in_all


def _tell(info: TableInfo, error: KolkError) -> None:
    """A table that was dropped, or a database that was closed meanwhile, is no news."""
    if not isinstance(error, Closed | TableNotFound | PartitionDropped):
        _log.warning("the log of %s is not trimmed: %s", info.name, error)
