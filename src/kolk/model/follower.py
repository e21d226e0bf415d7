"""Followers: named readers of a table's changelog that the store remembers.

A follower has a committed offset per bucket. It goes on there, and until it expires the log from there on is kept for
it. Its readers are numbered: the newest one alone may commit, so that offsets never go back.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from kolk.model.ids import NO_PARTITION, BucketId
from kolk.model.partition import PARTITIONS

FOLLOWERS_MAX = 100
"""Followers of one table. Each is a record that is written again with every commit."""
NO_READER = 0
"""Readers draw 128 bits; nobody draws this."""


class FollowerState(StrEnum):
    """Whether a follower holds the log."""

    LIVE = "live"
    """It does."""
    EXPIRED = "expired"
    """It was not used for too long, and does not; what it needs is still there, and its next use revives it."""
    RELEASED = "released"
    """It kept more than the database may keep for followers, and does not; else as expired."""
    LOST = "lost"
    """Some of what it needs is gone; its next use raises HolderLost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A follower as ``db.followers()`` shows it. ``offsets`` are its committed ones, by bucket.

    ``lag`` counts the changes between them and the end of the log. ``pinned_bytes`` is the size of the log at and
    above them, by whole log files; 0 if it holds nothing.
    """

    table: str
    name: str
    offsets: dict[str, int]
    lag: int
    pinned_bytes: int
    last_use: datetime.datetime
    expires: datetime.datetime
    state: FollowerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a reader of a follower is given: its number, and where to go on."""

    epoch: int
    offsets: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """A follower as the store keeps it. ``reader`` is whoever opened it last, under the number ``epoch``."""

    epoch: int
    reader: int
    offsets: Mapping[str, int]
    used_ms: int
    is_released: bool = False

    @property
    def position(self) -> int:
        """Its place in the record of partitions; 0 if the table has none."""
        return self.offsets.get(PARTITIONS, 0)

    def offset_of(self, bucket: BucketId) -> int:
        """Where it is in a bucket; at the beginning of one whose partition it has not heard of yet."""
        is_new = bucket.partition >= self.position and bucket.partition != NO_PARTITION
        return 0 if is_new else self.offsets.get(bucket.name, 0)

    def moved(self, offsets: Mapping[str, int], buckets: Iterable[BucketId], now_ms: int) -> "Bookmark":
        """After a commit; ``buckets`` are those that there were at its place in the record of partitions.

        Only ever forward: a commit that was delayed on its way must not undo a later one.
        """
        used = replace(self, used_ms=now_ms, is_released=False)
        position = offsets.get(PARTITIONS, self.position)
        if position < self.position:
            return used
        further = {bucket.name: max(offsets.get(bucket.name, 0), self.offset_of(bucket)) for bucket in buckets}
        return replace(used, offsets=further | ({PARTITIONS: position} if position else {}))

    def restored(self, skipped: int) -> "Bookmark":
        """As it comes out of a backup: nobody reads in its name, however often it was opened since then, and nobody's
        opening is taken for the retry of one from before."""
        return replace(self, epoch=self.epoch + skipped, reader=NO_READER)

    def trimmed(self, starts: Mapping[BucketId, int]) -> Iterator[BucketId]:
        """The buckets whose logs start after this position."""
        return (bucket for bucket, start in starts.items() if self.offset_of(bucket) < start)

    def state(self, starts: Mapping[BucketId, int], record_start: int, now_ms: int, ttl_ms: int) -> FollowerState:
        """Whether it holds the log. ``record_start`` is where the record of partitions starts, if there is one."""
        if 0 < self.position < record_start or any(True for _ in self.trimmed(starts)):
            return FollowerState.LOST
        if self.is_released:
            return FollowerState.RELEASED
        return FollowerState.EXPIRED if now_ms >= self.used_ms + ttl_ms else FollowerState.LIVE
