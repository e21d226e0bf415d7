"""Letting old log go: the round that the engine makes every minute.

A table's options say how old and how large its logs may get; live followers keep what they have not seen, and of a
table with a primary key snapshots and leases keep what comes after them, and owners what they have not committed. What
followers, leases and owners keep beyond the options, and beyond what recovery needs, is bounded for the database as a
whole: above the limit whoever keeps the most is released, until it fits; an owner is taken back to its commit first.
One that cannot be released or taken back keeps its log until the next round, and nobody else is released in its place,
which would free nothing. Tables that keep everything are not looked at.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kolk.engine.catalog import Catalog
from kolk.engine.followers import Followers
from kolk.engine.keeping import Keeping
from kolk.engine.opening import BucketState
from kolk.engine.owners import Owners
from kolk.engine.partitions import Partitions
from kolk.engine.sessions import ScanSessions
from kolk.engine.tablets import Tablets
from kolk.errors import Closed, KolkError, PartitionDropped, TableNotFound
from kolk.model.follower import FollowerState
from kolk.model.ids import BucketId, TableId
from kolk.model.table import TableInfo
from kolk.runtime.clock import Clock
from kolk.storage.segment import Segment
from kolk.tablet.retention import Holder, HolderKind, bytes_from, outlived

_log = logging.getLogger(__name__)

_Who = tuple[HolderKind, TableId | None, str]
"""A follower of a table, an owner of its columns, or a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """A table, all its buckets as they are, and for some of them the offset below which the log has had its time."""

    info: TableInfo
    buckets: Sequence[BucketState]
    below: Mapping[BucketId, int]


class Retention:
    """Trims logs. Thread-safe: what it remembers is replaced whole, and what it touches has locks of its own."""

    def __init__(
        self,
        catalog: Catalog,
        partitions: Partitions,
        tablets: Tablets,
        followers: Followers,
        scans: ScanSessions,
        keeping: Keeping,
        owners: Owners,
        clock: Clock,
        pinned_bytes_max: int,
    ) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._tablets = tablets
        self._followers = followers
        self._scans = scans
        self._keeping = keeping
        self._owners = owners
        self._clock = clock
        self._pinned_bytes_max = pinned_bytes_max
        # Since when, on the clock that does not jump, segments are known as they are whose times are still to come.
        self._ahead: Mapping[tuple[BucketId, Segment], float] = {}

    def round(self) -> None:
        """Trim whatever may go. A table that cannot be trimmed is told of in the log, and does not stop the others."""
        ahead: dict[tuple[BucketId, Segment], float] = {}
        due = [each for info in self._catalog.list() if (each := self._due(info, ahead)) is not None]
        self._ahead = ahead
        self._release_largest(due)
        for each in due:
            self._trim(each)

    def _due(self, info: TableInfo, ahead: dict[tuple[BucketId, Segment], float]) -> _Due | None:
        """What age and size want to go, also of buckets that were not used yet, for they age too; of a table with a
        primary key only what recovery does not need. What is ``ahead`` of its time is noted."""
        ttl_ms, bytes_max = info.spec.options.log_ttl_ms, info.spec.options.log_bytes_max
        if ttl_ms is None and bytes_max is None:
            return None
        now_ms, now = self._clock.now_ms(), self._clock.monotonic()
        below: dict[BucketId, int] = {}
        try:
            buckets = self._tablets.states(info, self._partitions.buckets(info))
            for each in buckets:
                found = [(each.bucket, segment) for segment in each.segments if segment.last_timestamp_ms > now_ms]
                ahead |= {one: self._ahead.get(one, now) for one in found}
                known_ms = {segment: round((now - ahead[bucket, segment]) * 1_000) for bucket, segment in found}
                most = outlived(each.segments, now_ms=now_ms, ttl_ms=ttl_ms, bytes_max=bytes_max, known_ms=known_ms)
                below[each.bucket] = most if info.is_log else min(most, self._keeping.floor(each.bucket))
        except (KolkError, OSError) as error:
            return _tell(info, error)
        below = {each.bucket: below[each.bucket] for each in buckets if below[each.bucket] > each.start}
        return _Due(info=info, buckets=buckets, below=below) if below else None

    def _trim(self, due: _Due) -> None:
        with self._followers.still():
            followers = self._followers_of(due)
            for bucket, below in due.below.items():
                try:
                    # Whoever takes a lease, or opens a scan, after these were asked finds a snapshot for it that is
                    # among them, or a newer one.
                    kept = [] if due.info.is_log else self._keeping.holders(bucket)
                    held = [holder for _, holder in followers[bucket]]
                    with self._tablets.use_one(due.info, bucket) as tablet:
                        tablet.trim(below, [*kept, *held, *self._scans.holders(bucket)])
                except (KolkError, OSError) as error:
                    _tell(due.info, error)

    def _followers_of(self, due: _Due) -> dict[BucketId, list[tuple[_Who, Holder]]]:
        """Which followers hold the log of each bucket of a table."""
        now_ms, ttl_ms = self._clock.now_ms(), self._followers.ttl_ms
        starts = {each.bucket: each.start for each in due.buckets}
        held: dict[BucketId, list[tuple[_Who, Holder]]] = {bucket: [] for bucket in starts}
        for name, bookmark in self._followers.of(due.info.id).items():
            if bookmark.state(starts, self._partitions.of(due.info).start, now_ms, ttl_ms) is not FollowerState.LIVE:
                continue
            owner, expires_ms = f"{due.info.name}/{name}", bookmark.used_ms + ttl_ms
            for bucket in starts:
                offset = bookmark.offset_of(bucket)
                holder = Holder(kind=HolderKind.FOLLOWER, owner=owner, offset=offset, expires_ms=expires_ms)
                held[bucket].append(((HolderKind.FOLLOWER, due.info.id, name), holder))
        return held

    def _owners_of(self, due: _Due) -> dict[BucketId, list[tuple[_Who, int]]]:
        """Which owners hold the log of each bucket of a table, and from where on."""
        held: dict[BucketId, list[tuple[_Who, int]]] = {}
        for lock in self._owners.locks.of(due.info.id).values():
            who = (HolderKind.COMMIT_POINT, due.info.id, lock.record.name)
            for state in due.buckets:
                with suppress(KolkError):  # a bucket that does not serve is not trimmed either
                    start = self._owners.buckets.dirty_from(due.info, state.bucket, lock.record)
                    held.setdefault(state.bucket, []).extend([] if start is None else [(who, start)])
        return held

    def _release_largest(self, due: Sequence[_Due]) -> None:
        """Release followers, owners and leases until those that are left keep no more than they may together."""
        spared: set[_Who] = set()
        while True:
            judged = {
                (each.info.id, lock.record.name): lock.record
                for each in due
                for lock in self._owners.locks.of(each.info.id).values()
            }
            with self._followers.still():
                kept, kept_in_all = self._kept(due, spared)
                if kept_in_all <= self._pinned_bytes_max:
                    return
                kind, table, name = largest = max(kept, key=lambda who: kept[who])
                _log.warning(
                    "the %s %r keeps %d bytes of log beyond their time, and all together may keep %d: it is released",
                    kind.value,
                    name,
                    kept[largest],
                    self._pinned_bytes_max,
                )
                spared.add(largest)  # whether it can be released or not, its turn is over
                with _telling(name, "released"):
                    if table is None:
                        self._keeping.drop(name)
                    elif kind is HolderKind.FOLLOWER:
                        self._followers.release(table, name)
            if kind is HolderKind.COMMIT_POINT and table is not None:
                # Never without taking its changes back, which may take long: nobody else waits for that.
                with _telling(name, "taken back"):
                    if (table, name) in judged:
                        self._owners.evict(self._catalog.by_id(table), judged[table, name])

    def _kept(self, due: Sequence[_Due], spared: Set[_Who]) -> tuple[dict[_Who, int], int]:
        """The bytes that each follower, owner and lease keeps beyond their time, but for those that are spared, and how
        much log that is in all."""
        kept: dict[_Who, int] = {}
        kept_in_all = 0
        for each in due:
            followers, owners = self._followers_of(each), self._owners_of(each)
            for state in each.buckets:
                below = each.below.get(state.bucket, 0)
                offsets = [(who, holder.offset) for who, holder in followers[state.bucket]]
                offsets += owners.get(state.bucket, [])
                offsets += [((HolderKind.LEASE, None, id), at) for id, at in self._keeping.leased(state.bucket).items()]
                sizes = [
                    (who, bytes_from(state.segments, offset, below=below))
                    for who, offset in offsets
                    if who not in spared
                ]
                kept_in_all += max((size for _, size in sizes), default=0)
                for who, size in sizes:
                    kept[who] = kept.get(who, 0) + size
        return kept, kept_in_all


@contextmanager
def _telling(name: str, what: str) -> Iterator[None]:
    """Nobody who keeps his log keeps others from being trimmed, which is what makes room on a full disk."""
    try:
        yield
    except (KolkError, OSError) as error:
        _log.warning("%r keeps its log, for it cannot be %s: %s", name, what, error)


def _tell(info: TableInfo, error: KolkError | OSError) -> None:
    """A table that was dropped, or a database that was closed meanwhile, is no news."""
    if not isinstance(error, Closed | TableNotFound | PartitionDropped):
        _log.warning("the log of %s is not trimmed: %s", info.name, error)
