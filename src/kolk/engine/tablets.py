"""The tablets of a database: opened when first asked for, closed when there are too many, and all together at the end.

Folders are ``tables/<table id>/<partition id>/<bucket>``: numbers only, never a name that came from outside.

A table of many partitions has thousands of buckets, of which a few are in use. So whoever uses one says so for as long
as it does (``use``), and of those that nobody uses the ones that were used longest ago are closed, once there are more
than there may be. What is known of a closed bucket is kept as its *state*, which stays true until it is opened again:
nobody opens a bucket to learn where its log ends.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kolk.engine.opening import BucketState, Opening
from kolk.engine.partitions import gone
from kolk.engine.sweeping import sweep
from kolk.errors import Closed, InvalidArgument, KolkError, NotFound, PartitionDropped, Stopped, TableNotFound
from kolk.merge.append import Appender
from kolk.merge.engine import Merger
from kolk.model.ids import BucketId, TableId
from kolk.model.partition import Layout
from kolk.model.table import TableInfo
from kolk.model.versions import Versions
from kolk.runtime.clock import Clock
from kolk.runtime.disk import Disk
from kolk.tablet.owning import OwnerView
from kolk.tablet.recovery import Copies
from kolk.tablet.tablet import Tablet

_log = logging.getLogger(__name__)
_WARM = 64
"""So many buckets stay open however long nobody used them: opening one costs more than a lookup should."""


class _Open:
    """An open bucket, how many use it now, and when one last began to."""

    __slots__ = ("tablet", "used", "uses")

    def __init__(self, tablet: Tablet, used: float) -> None:
        self.tablet = tablet
        self.uses = 0
        self.used = used

    @property
    def is_idle(self) -> bool:
        # One that has stopped stays, so that everybody is told why.
        return not self.uses and not self.tablet.is_viewed and self.tablet.refusal is None


class Tablets:
    """Buckets that are open. Thread-safe: one lock for opening and closing; an open bucket is found without it."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        opening: Opening,
        versions_of: Callable[[TableInfo], Versions],
        check_alive: Callable[[BucketId], None],
        clock: Clock,
        open_max: int,
        copies_of: Callable[[BucketId], Copies],
        settle: Callable[[Tablet], None],
    ) -> None:
        self.open_max = open_max
        self._folder = folder
        self._disk = disk
        self._opening = opening
        self._versions_of = versions_of
        self._check_alive = check_alive
        self._clock = clock
        self._copies_of = copies_of
        self._settle = settle
        self._lock = threading.RLock()
        self._mutex = threading.RLock()  # a signal handler may close the database in the middle of anything
        # Changed under _lock and _mutex; read under either. The counts within are guarded by _mutex, which is only held
        # for a moment.
        self._entries: dict[BucketId, _Open] = {}
        # Written under _making, which is held for a moment; read by anyone. A table's merger only gets newer.
        self._making = threading.Lock()
        self._mergers: dict[TableId, Merger | Appender] = {}
        # Guarded by _lock.
        self._resting: dict[BucketId, BucketState] = {}
        self._closed = False

    @contextmanager
    def use(self, info: TableInfo, buckets: Iterable[BucketId]) -> Iterator[list[Tablet]]:
        """The tablets of these buckets, recovered if need be, which are not closed within the block to save memory.

        None of them is at an older version of the table than the caller.
        """
        taken: list[_Open] = []
        try:
            for bucket in buckets:
                taken.append(self._take(info, bucket))  # noqa: PERF401 - each counts, also if a later one fails
            yield [entry.tablet for entry in taken]
        finally:
            with self._mutex:
                for entry in taken:
                    entry.uses -= 1

    @contextmanager
    def use_one(self, info: TableInfo, bucket: BucketId) -> Iterator[Tablet]:
        """See ``use``."""
        entry = self._take(info, bucket)
        try:
            yield entry.tablet
        finally:
            with self._mutex:
                entry.uses -= 1

    def state(self, info: TableInfo, bucket: BucketId) -> BucketState:
        """What is known of a bucket. Of one that was not opened since the start its log is looked at, and no more."""
        with self._mutex:
            entry = self._entries.get(bucket)
            resting = None if entry is not None else self._resting.get(bucket)
        if resting is not None:
            return resting
        if entry is not None and not entry.tablet.wants_recovery:
            return BucketState.of(entry.tablet)
        if entry is None:
            with self._lock:
                self._check_open(bucket)
                if bucket not in self._entries and bucket not in self._resting:
                    with _typed(info, bucket):
                        state = self._opening.state(bucket, self._path(bucket))
                    with self._mutex:
                        self._resting[bucket] = state
                    return state
        with self.use_one(info, bucket) as tablet:
            return BucketState.of(tablet)

    def states(self, info: TableInfo, buckets: Iterable[BucketId]) -> list[BucketState]:
        """What is known of these buckets, without those whose partitions go meanwhile."""
        states: list[BucketState] = []
        for bucket in buckets:
            with suppress(PartitionDropped):
                states.append(self.state(info, bucket))
        return states

    def known_state(self, bucket: BucketId) -> BucketState | None:
        """What is known of a bucket at once; takes no lock that anybody holds for long."""
        with self._mutex:
            entry = self._entries.get(bucket)
            resting = self._resting.get(bucket)
        return resting if entry is None else BucketState.of(entry.tablet)

    def known_owners(self, bucket: BucketId) -> Mapping[int, OwnerView] | None:
        """What a bucket has of each owner, if that is known at once; takes no lock that anybody holds for long."""
        with self._mutex:
            entry, resting = self._entries.get(bucket), self._resting.get(bucket)
        return entry.tablet.known_owners if entry is not None else None if resting is None else resting.owners

    def log_folder(self, bucket: BucketId) -> Path:
        """Where the files of a bucket's log are."""
        return self._path(bucket) / "log"

    def opened(self) -> list[Tablet]:
        """Those that are open now."""
        with self._mutex:
            return [entry.tablet for entry in list(self._entries.values())]

    def are_viewed(self, buckets: Iterable[BucketId]) -> bool:
        """Whether somebody scans one of these now."""
        with self._mutex:
            entries = [self._entries.get(bucket) for bucket in buckets]
        return any(entry is not None and entry.tablet.is_viewed for entry in entries)

    def merger(self, info: TableInfo) -> Merger | Appender:
        """The table's merger: of the version that the caller knows, or a newer one."""
        merger = self._mergers.get(info.id)
        if merger is None or merger.schema.id < info.schema.id:
            with self._making:
                merger = self._mergers.get(info.id)
                if merger is None or merger.schema.id < info.schema.id:
                    merger = self._mergers[info.id] = self._made(info)
        return merger

    def keyed_merger(self, info: TableInfo) -> Merger:
        """The merger of a table that has rows by key; InvalidArgument if it has none."""
        merger = self.merger(info)
        if not isinstance(merger, Merger):
            raise InvalidArgument(f"{info.name} is a log table, without rows by key; read it with table.changelog()")
        return merger

    def switch(self, info: TableInfo) -> None:
        """Let every open bucket of a table that was altered go on in its new version."""
        merger = self.merger(info)
        # Those that are being opened now are waited for; those that open later begin with it.
        with self._lock:
            tablets = [entry.tablet for bucket, entry in list(self._entries.items()) if bucket.table == info.id]
        for tablet in tablets:
            tablet.switch(merger)

    def drop(self, info: TableInfo) -> None:
        """Close a dropped table's buckets and remove their files."""
        with self._lock:
            self._mergers.pop(info.id, None)
            self._drop(lambda bucket: bucket.table == info.id, _gone(info), self._folder / str(info.id))

    def drop_partition(self, bucket: BucketId) -> None:
        """Close the buckets of a dropped partition, of which this is one, and remove their files."""
        with self._lock:
            self._drop(
                lambda other: (other.table, other.partition) == (bucket.table, bucket.partition),
                gone(bucket),
                self._path(bucket).parent,
            )

    def sweep(self, known: Mapping[TableId, Layout | None], next_table: int) -> None:
        """Remove the files of what was dropped: a crash came between a drop and its clean-up."""
        sweep(self._disk, self._folder, known, next_table)

    def rest(self, idle_seconds: float) -> None:
        """Close buckets that nobody has used for so long, but for a few that stay warm; those that are too many, as a
        scan of very many leaves behind; and those of a drop that was interrupted."""
        before = self._clock.monotonic() - idle_seconds
        with self._lock:
            for bucket in list(self._entries):
                try:
                    self._check_alive(bucket)
                except NotFound as reason:
                    self._close(bucket, reason)
        while True:
            # One at a time, so that nobody who needs a bucket waits for more than one to close.
            with self._lock:
                idle, count = self._idle(), len(self._entries)
                is_old = bool(idle) and count > _WARM and self._entries[idle[0]].used < before
                if not idle or not (is_old or count > self.open_max) or not self._rest(idle[0]):
                    return

    def close(self) -> None:
        """Close every tablet. Idempotent; one that fails to close does not keep the others open."""
        with self._lock:
            self._closed = True
            errors: list[BaseException] = []
            for bucket in list(self._entries):
                try:
                    self._close(bucket)
                except BaseException as error:  # noqa: BLE001 - raised below, once every tablet had its chance
                    errors.append(error)
            if errors:
                raise errors[0]

    def abandon(self) -> None:
        """See ``Engine.abandon``. Takes no lock: whoever held it at the fork is not here to let it go."""
        for entry in list(self._entries.values()):
            entry.tablet.abandon()

    # --- inside

    def _take(self, info: TableInfo, bucket: BucketId) -> _Open:
        entry = self._counted(info, bucket)
        merger = self.merger(info)
        if entry.tablet.merger.schema.id < merger.schema.id:
            # There was an alter that has not come to this bucket yet, and the caller may know of it.
            try:
                entry.tablet.switch(merger)
            except BaseException:
                with self._mutex:
                    entry.uses -= 1
                raise
        return entry

    def _counted(self, info: TableInfo, bucket: BucketId) -> _Open:
        with self._mutex:
            entry = self._entries.get(bucket)
            if entry is not None and not entry.tablet.wants_recovery:
                return self._count(entry)
        with self._lock:
            self._check_open(bucket)
            entry = self._entries.get(bucket)
            if entry is not None and entry.tablet.wants_recovery:
                self._close(bucket, entry.tablet.refusal)
                entry = None
            if entry is None:
                self._make_room()
                entry = _Open(self._opened(info, bucket), self._clock.monotonic())
            with self._mutex:
                self._entries[bucket] = entry
                self._resting.pop(bucket, None)
                self._count(entry)
            if self._closed:  # by a signal handler, before there was this one to close
                self._close(bucket)
            return entry

    def _check_open(self, bucket: BucketId) -> None:
        if self._closed:
            raise Closed("the database is closed")
        # Whoever asks may have looked it up before a drop; opening the bucket would bring its folder back.
        self._check_alive(bucket)

    def _count(self, entry: _Open) -> _Open:
        entry.uses += 1
        entry.used = self._clock.monotonic()
        return entry

    def _make_room(self) -> None:
        """Close who was used longest ago, until one more may be opened; those in use stay, however many they are."""
        for bucket in self._idle()[: max(len(self._entries) + 1 - self.open_max, 0)]:
            self._rest(bucket)

    def _idle(self) -> list[BucketId]:
        """The buckets that nobody uses now, those first that were used longest ago."""
        with self._mutex:
            idle = [(entry.used, bucket) for bucket, entry in list(self._entries.items()) if entry.is_idle]
        return [bucket for _, bucket in sorted(idle)]

    def _rest(self, bucket: BucketId) -> bool:
        """Close a bucket that nobody uses, and keep its state; False if somebody came meanwhile."""
        with self._mutex:
            entry = self._entries.get(bucket)
            if entry is None or not entry.is_idle or self._entries.pop(bucket, None) is None:
                return False
        state = BucketState.of(entry.tablet)
        entry.tablet.close()
        with self._mutex:
            self._resting[bucket] = state
        return True

    def _close(self, bucket: BucketId, reason: KolkError | None = None) -> None:
        """Close a bucket, unless a signal handler was quicker."""
        with self._mutex:
            entry = self._entries.pop(bucket, None)
        if entry is not None:
            entry.tablet.close(reason)

    def _drop(self, is_meant: Callable[[BucketId], bool], reason: KolkError, folder: Path) -> None:
        for bucket in filter(is_meant, list(self._entries)):
            self._close(bucket, reason)
        with self._mutex:
            self._resting = {bucket: state for bucket, state in self._resting.items() if not is_meant(bucket)}
        try:
            self._disk.remove_tree(str(folder))
        except OSError as error:
            _log.warning("files of what was dropped are left in %s for the next start: %s", folder, error)

    def _made(self, info: TableInfo) -> Merger | Appender:
        earlier = [schema for schema in self._versions_of(info) if schema.id < info.schema.id]
        return Appender(info.schema, earlier) if info.is_log else Merger(info.schema, info.spec.options, earlier)

    def _opened(self, info: TableInfo, bucket: BucketId) -> Tablet:
        with _typed(info, bucket):
            tablet = self._opening.tablet(bucket, self._path(bucket), self.merger(info), self._copies_of(bucket))
        try:
            self._settle(tablet)
        except BaseException:
            tablet.close()
            raise
        return tablet

    def _path(self, bucket: BucketId) -> Path:
        return self._folder / bucket.folder


@contextmanager
def _typed(info: TableInfo, bucket: BucketId) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Stopped(f"bucket {bucket.name} of {info.name} cannot be opened: {error}") from error


def _gone(info: TableInfo) -> TableNotFound:
    return TableNotFound(f"the table {str(info.name)!r} was dropped")
