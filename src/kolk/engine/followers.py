"""The followers of all tables: who they are, how far they came, and who of them still holds the log.

Meta records: ``next-follower-epoch`` (as text) and ``follower/<table id>/<name>``. An epoch is never used twice, also
not after a follower was dropped and made anew, so a reader that was fenced stays fenced. Every change is persisted
before it counts: an opened follower holds the log before its reader knows its offsets, and a commit is durable before
it lets any of the log go. The records of a dropped table go after the table's own; what a crash leaves of them is
removed at the next start.

Trimming and followers exclude each other (``still``): between the look at who holds a log and the removal of its files
nobody may appear who needs them.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from kolk.codec.follower import EPOCH_KEY, PREFIX, decode_bookmark, encode_bookmark
from kolk.engine.opening import BucketState
from kolk.engine.partitions import Partitions
from kolk.errors import (
    FollowerNotFound,
    FollowerTaken,
    HolderLost,
    InvalidArgument,
    OffsetOutOfRange,
    TableNotFound,
    TooManyFollowers,
)
from kolk.model.durations import moment
from kolk.model.follower import FOLLOWERS_MAX, Bookmark, Follower, FollowerState, Session
from kolk.model.ids import BucketId, TableId
from kolk.model.names import check_name
from kolk.model.partition import PARTITIONS, Layout
from kolk.model.table import TableInfo
from kolk.runtime.clock import Clock
from kolk.storage.meta import ABSENT, Meta, MetaChange
from kolk.tablet.retention import bytes_from

Bounds = Mapping[str, tuple[int, int]]
"""The start and end offset of every bucket."""

_TOUCHES_PER_TTL = 20
"""A reader that has nothing new to commit says so every few seconds; this often it is written down."""


class Followers:
    """The followers of a database. Thread-safe: one lock, taken before those of partitions, of tablets and of meta."""

    def __init__(self, meta: Meta, clock: Clock, ttl_ms: int, partitions: Partitions, tables: set[TableId]) -> None:
        # Constant after construction.
        self.ttl_ms = ttl_ms
        self._meta = meta
        self._clock = clock
        self._partitions = partitions
        self._lock = threading.RLock()
        # Guarded by _lock.
        self._bookmarks: dict[TableId, dict[str, Bookmark]] = {}
        self._versions: dict[str, int] = {}
        self._dropped: set[TableId] = set()
        self._load(tables)

    def open(
        self,
        info: TableInfo,
        name: str,
        reader: int,
        starts: Mapping[str, int] | None,
        bounds: Callable[[], Bounds],
    ) -> Session:
        """Let a reader go on, or begin: whoever read in this name before is fenced. A retry is answered alike.

        Without ``starts`` a new follower begins where the log does. One that exists is told no other start.
        """
        check_name(name, "follower")
        with self._lock, self._partitions.still_for(info):  # offsets are known by name
            known = self._of(info).get(name)
            found = bounds()
            offsets = self._first_offsets(info, starts, found) if known is None else known.offsets
            if known is None:
                self._check_room(info)
            else:
                self._check_kept(info, name, known, found)
                _check_same_start(info, name, known, starts)
                if known.reader == reader:
                    return Session(epoch=known.epoch, offsets=dict(offsets))
            counter = self._meta.get(EPOCH_KEY)
            epoch = int(counter.value) if counter else 1
            opened = Bookmark(epoch=epoch, reader=reader, offsets=dict(offsets), used_ms=self._clock.now_ms())
            change = MetaChange(EPOCH_KEY, str(epoch + 1).encode(), counter.version if counter else ABSENT)
            self._write(info.id, name, opened, change)
            return Session(epoch=epoch, offsets=dict(offsets))

    def commit(
        self, info: TableInfo, name: str, epoch: int, offsets: Mapping[str, int], bounds: Callable[[], Bounds]
    ) -> None:
        """Move a follower forward; with no offsets, only say that it is in use."""
        with self._lock, self._partitions.still_for(info):  # as above
            known = self._of(info).get(name)
            if known is None:
                raise FollowerNotFound(f"the follower {name!r} of {info.name} was dropped; open it anew to begin again")
            if known.epoch != epoch:
                raise FollowerTaken(
                    f"a newer reader goes on as {name!r} on {info.name}, so this one may commit no more; stop one of"
                    " the two, or give each a name of its own"
                )
            found = bounds()
            self._check_recorded(info, name, known, found)
            buckets: Sequence[BucketId] = []
            position = offsets.get(PARTITIONS, known.position)
            if position >= known.position:  # else it was delayed on its way, and the buckets it names may be gone
                buckets = self._partitions.buckets_at(info, position)
                self._check_written(info, offsets, buckets, found)
            now_ms = self._clock.now_ms()
            moved = known.moved(offsets, buckets, now_ms)
            self._check_kept(info, name, moved, found)
            is_fresh = 0 <= now_ms - known.used_ms < self.ttl_ms // _TOUCHES_PER_TTL
            if moved.offsets != known.offsets or known.is_released or not is_fresh:
                self._write(info.id, name, moved)

    def drop(self, info: TableInfo, name: str) -> None:
        """Forget a follower."""
        with self._lock:
            names = self._of(info)
            if name not in names:
                known = ", ".join(sorted(names)[:20]) or "none"
                raise FollowerNotFound(f"{info.name} has no follower {str(name)[:200]!r}; its followers are: {known}")
            self._write(info.id, name, None)

    def drop_table(self, table: TableId) -> None:
        """Forget the followers of a dropped table."""
        with self._lock:
            self._dropped.add(table)
            for name in list(self._bookmarks.get(table, {})):
                self._write(table, name, None)

    def of(self, table: TableId) -> dict[str, Bookmark]:
        """The followers of a table as they are now."""
        with self._lock:
            return dict(self._bookmarks.get(table, {}))

    def release(self, table: TableId, name: str) -> None:
        """Let go of what a follower holds, because it is too much."""
        with self._lock:
            known = self._bookmarks.get(table, {}).get(name)
            if known is not None:
                self._write(table, name, replace(known, is_released=True))

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nobody opens, commits or drops within the block."""
        with self._lock:
            yield

    def _of(self, info: TableInfo) -> dict[str, Bookmark]:
        if info.id in self._dropped:
            raise TableNotFound(f"the table {str(info.name)!r} was dropped")
        return self._bookmarks.get(info.id, {})

    def _check_room(self, info: TableInfo) -> None:
        if len(self._of(info)) >= FOLLOWERS_MAX:
            raise TooManyFollowers(f"{info.name} has {FOLLOWERS_MAX} followers already; drop some first")

    def _check_kept(self, info: TableInfo, name: str, bookmark: Bookmark, bounds: Bounds) -> None:
        """Whether the log still has everything that the follower has not seen."""
        self._check_recorded(info, name, bookmark, bounds)
        how = _anew(info, name)
        for bucket in self._partitions.buckets(info):
            (start, end), offset = bounds[bucket.name], bookmark.offset_of(bucket)
            if offset < start:
                raise HolderLost(
                    f"the follower {name!r} of {info.name} is at offset {offset} of bucket {bucket.name!r},"
                    f" and the log starts at {start} now: it was idle for too long, or kept too much, or the"
                    f" table was truncated; {how}"
                )
            if offset > end:
                raise HolderLost(
                    f"the follower {name!r} of {info.name} has committed offset {offset} of bucket {bucket.name!r},"
                    f" whose log ends at {end}: the log has lost what was not synced; {how}"
                )

    def _check_recorded(self, info: TableInfo, name: str, bookmark: Bookmark, bounds: Bounds) -> None:
        """Whether the record of partitions still has everything that the follower has not seen."""
        if info.is_partitioned and bookmark.position < bounds[PARTITIONS][0]:
            raise HolderLost(
                f"the follower {name!r} of {info.name} is at event {bookmark.position} of the record of partitions,"
                f" which starts at {bounds[PARTITIONS][0]} now; {_anew(info, name)}"
            )

    def _check_written(
        self, info: TableInfo, offsets: Mapping[str, int], buckets: Sequence[BucketId], bounds: Bounds
    ) -> None:
        """Whether these offsets are of buckets that there are, or were, and not past the end of their logs."""
        known = {bucket.name: bucket for bucket in buckets}
        for name, offset in offsets.items():
            if name == PARTITIONS and info.is_partitioned:
                continue
            if name not in known:
                raise InvalidArgument(
                    f"there is no bucket {name[:200]!r}; the buckets are {', '.join(list(known)[:20])}"
                )
            end = bounds[name][1] if self._partitions.is_alive(known[name]) else offset
            if offset > end:
                raise OffsetOutOfRange(f"bucket {name!r} ends at {end}; {offset} is not written yet")

    def _first_offsets(self, info: TableInfo, starts: Mapping[str, int] | None, bounds: Bounds) -> dict[str, int]:
        """Where a new follower begins, in all buckets; without a word of partitions, in those that there are now."""
        starts = dict(starts or {})
        place = {PARTITIONS: starts.pop(PARTITIONS, bounds[PARTITIONS][1])} if info.is_partitioned else {}
        buckets = {bucket.name: bucket for bucket in self._partitions.buckets_at(info, place.get(PARTITIONS, 0))}
        unknown = [name for name in starts if name not in buckets]
        if unknown:
            raise InvalidArgument(
                f"start names a bucket {unknown[0][:200]!r}; the buckets are {', '.join(list(buckets)[:20])}"
            )
        offsets: dict[str, int] = {}
        for name, bucket in buckets.items():
            start, end = bounds[name] if self._partitions.is_alive(bucket) else (0, starts.get(name, 0))
            offsets[name] = starts.get(name, start)
            if not start <= offsets[name] <= end:
                raise OffsetOutOfRange(
                    f"bucket {name!r} of {info.name} has offsets {start} to {end}; {offsets[name]} is not among them"
                )
        return offsets | place

    def _write(self, table: TableId, name: str, bookmark: Bookmark | None, *others: MetaChange) -> None:
        """Persist a follower, then show it."""
        key = _key(table, name)
        value = None if bookmark is None else encode_bookmark(bookmark)
        try:
            self._meta.write([MetaChange(key, value, self._versions.get(key, ABSENT)), *others])
        finally:
            # Also if an interrupt came after the record was changed: what is shown is what is written.
            self._show(table, name)

    def _show(self, table: TableId, name: str) -> None:
        key = _key(table, name)
        record = self._meta.get(key)
        names = self._bookmarks.setdefault(table, {})
        if record is None:
            names.pop(name, None)
            self._versions.pop(key, None)
        else:
            names[name] = decode_bookmark(key, record.value)
            self._versions[key] = record.version

    def _load(self, tables: set[TableId]) -> None:
        for record in self._meta.list(PREFIX):
            table, name = _parse_key(record.key)
            if table not in tables:
                self._meta.write([MetaChange(record.key, None, record.version)])
                continue
            self._bookmarks.setdefault(table, {})[name] = decode_bookmark(record.key, record.value)
            self._versions[record.key] = record.version


def described(
    info: TableInfo,
    name: str,
    bookmark: Bookmark,
    buckets: Sequence[BucketState],
    layout: Layout,
    now_ms: int,
    ttl_ms: int,
) -> Follower:
    """A follower as people see it."""
    state = bookmark.state({each.bucket: each.start for each in buckets}, layout.start, now_ms, ttl_ms)
    pinned_bytes = sum(bytes_from(each.segments, bookmark.offset_of(each.bucket)) for each in buckets)
    return Follower(
        table=str(info.name),
        name=name,
        offsets=dict(bookmark.offsets),
        lag=sum(max(each.end - bookmark.offset_of(each.bucket), 0) for each in buckets),
        pinned_bytes=pinned_bytes if state is FollowerState.LIVE else 0,
        last_use=moment(bookmark.used_ms),
        expires=moment(bookmark.used_ms + ttl_ms),
        state=state,
    )


def _check_same_start(info: TableInfo, name: str, bookmark: Bookmark, starts: Mapping[str, int] | None) -> None:
    """A start that says where the follower is anyway does no harm, and comes with the retry of a first use."""
    if starts is None or all(bookmark.offsets.get(bucket) == offset for bucket, offset in starts.items()):
        return
    raise InvalidArgument(
        f"{info.name} has a follower {name!r} already, which goes on where it was: leave start out, or drop it first"
        f" with db.drop_follower({str(info.name)!r}, {name!r})"
    )


def _anew(info: TableInfo, name: str) -> str:
    return f"drop it with db.drop_follower({str(info.name)!r}, {name!r}) and choose where to start anew"


def _key(table: TableId, name: str) -> str:
    return f"{PREFIX}{table:012}/{name}"


def _parse_key(key: str) -> tuple[TableId, str]:
    table, _, name = key.removeprefix(PREFIX).partition("/")
    return TableId(int(table)), name
