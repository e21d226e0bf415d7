"""Followers: named readers of a table's changelog that the store remembers.

A follower has a committed offset per bucket. It goes on there, and until it expires the log from there on is kept for
it. Its readers are numbered: the newest one alone may commit, so that offsets never go back.
"""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

FOLLOWERS_MAX = 100
"""Followers of one table. Each is a record that is written again with every commit."""


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

    def moved(self, offsets: Mapping[str, int], now_ms: int) -> "Bookmark":
        """After a commit. Only ever forward: one that was delayed on its way must not undo a later one."""
        further = {bucket: max(offset, self.offsets[bucket]) for bucket, offset in offsets.items()}
        return replace(self, offsets={**self.offsets, **further}, used_ms=now_ms, is_released=False)

    def trimmed(self, starts: Mapping[str, int]) -> Iterator[str]:
        """The buckets whose logs start after this position."""
        return (bucket for bucket, offset in self.offsets.items() if offset < starts.get(bucket, 0))

    def state(self, starts: Mapping[str, int], now_ms: int, ttl_ms: int) -> FollowerState:
        """Whether it holds the log."""
        if any(True for _ in self.trimmed(starts)):
            return FollowerState.LOST
        if self.is_released:
            return FollowerState.RELEASED
        return FollowerState.EXPIRED if now_ms >= self.used_ms + ttl_ms else FollowerState.LIVE


def moment(ms: int) -> datetime.datetime:
    """A wall clock's milliseconds as people see them."""
    return datetime.datetime.fromtimestamp(ms / 1_000, datetime.UTC)
