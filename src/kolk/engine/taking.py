"""How snapshots are taken: when they are due or asked for, of a whole table at one moment.

Such a moment is a *cut*. The buckets that changed are checkpointed while all their locks are held, which is quick
because a checkpoint is links, and copied afterwards, while puts go on. A bucket that has not changed keeps the snapshot
that it has, which is of that moment too. If one has changed after all once the others are checkpointed, it is done
again with that one, and at last with all of them held. Which snapshots make the newest cut is written down, so that it
is known after a restart. Very many buckets are taken in groups, each of a moment of its own, and then there is no cut.
After a failure the cut that was there stays the newest, as long as its snapshots are there.

``checkpoints/`` has what is being copied; it means nothing after a crash.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path

from kolk.engine.catalog import Catalog
from kolk.engine.cut_records import CutRecords
from kolk.engine.gate import Gate
from kolk.engine.looking import NOBODY, Copied, Look, Onlooker
from kolk.engine.opening import BucketState, Opening
from kolk.engine.partitions import Partitions
from kolk.engine.snapshots import Snapshots
from kolk.engine.tablets import Tablets
from kolk.errors import Closed, Corrupted, InvalidArgument, KolkError, PartitionDropped, SnapshotNotFound, TableNotFound
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import TablePins, numbers_of
from kolk.model.snapshot import Snapshot, SnapshotCounts
from kolk.model.table import TableInfo
from kolk.runtime.clock import Clock
from kolk.runtime.disk import Disk
from kolk.storage.meta import Meta
from kolk.tablet.records import APPLIED, ROWS, applied_offset, row_count
from kolk.tablet.tablet import Tablet

CUT_BUCKETS_MAX = 256
"""So many buckets are taken at one moment, for which their puts wait."""
_TRIES = 5
_LOOKS_MAX = 3
"""How often a cut is begun anew because other buckets changed meanwhile, before all of them have to wait for it."""
_SPREAD = 0.618_034
"""So that the tables of a database are not all due at once."""
_numbers = count(1)
_log = logging.getLogger(__name__)


class Taking:
    """Takes snapshots. Thread-safe: of one table one at a time."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        opening: Opening,
        catalog: Catalog,
        partitions: Partitions,
        tablets: Tablets,
        snapshots: Snapshots,
        gate: Gate,
        meta: Meta,
        clock: Clock,
        interval_seconds: float,
    ) -> None:
        # Constant after construction.
        self._folder = folder
        self._disk = disk
        self._opening = opening
        self._catalog = catalog
        self._partitions = partitions
        self._tablets = tablets
        self._snapshots = snapshots
        self._gate = gate
        self._cuts = CutRecords(meta, catalog)
        self._clock = clock
        self._interval = interval_seconds
        self._since = clock.monotonic()
        self._lock = threading.RLock()
        # Guarded by _lock: who takes which table, when the tables are due, and what became of it so far.
        self._tables: dict[TableId, threading.RLock] = {}
        self._due: dict[TableId, float] = {}
        self._done: dict[TableId, float] = {}
        self._counts: Counter[str] = Counter()
        self._last_seconds: float | None = None
        disk.remove_tree(str(folder))
        disk.make_folder(str(folder))
        self._cuts.forget_dropped()

    def take(
        self, info: TableInfo, *, also_empty: bool = True, onlooker: Onlooker = NOBODY
    ) -> dict[BucketId, Snapshot]:
        """Copy every bucket that changed since its newest snapshot; the answer is the newest ones of all buckets.

        ``also_empty`` takes those that never had anything, too: whoever wants all to have one.
        """
        if info.is_log:
            raise InvalidArgument(f"{info.name} is a log table: its log is all there is, and is kept as it is")
        with self._taking(info.id):
            self._snapshots.check_open()
            begun = self._clock.monotonic()
            try:
                taken = self._taken_at_last(info, also_empty=also_empty, onlooker=onlooker)
            except BaseException:
                self._count(failed=1)
                raise
            now = self._clock.monotonic()
            with self._lock:
                self._done[info.id], self._last_seconds = begun, now - begun
            return taken

    def latest(self, info: TableInfo) -> TablePins:
        """Pin the newest snapshots of a table, those of one moment if there are such; what has none is taken first.
        Whoever asks lets them go."""
        for attempt in range(_TRIES):
            # What was pinned in vain goes in any case, and after the block within which partitions have to wait.
            with ExitStack() as lost, self._partitions.still_for(info):
                buckets = self._partitions.buckets(info)
                position = self._partitions.of(info).position if info.is_partitioned else None
                if attempt == _TRIES - 1:
                    # Partitions come faster than they are taken. Of a new one nothing is a snapshot, too: of its start.
                    self._take_empty(info, buckets)
                for wanted, is_cut in self._choices(info.id, buckets, is_first=attempt == 0):
                    pinned = self._snapshots.pin(wanted)
                    if len(pinned) == len(buckets):
                        return TablePins(pins=pinned, position=position, is_consistent=is_cut or len(buckets) <= 1)
                    lost.callback(self._snapshots.let_go, numbers_of(pinned))
            self.take(info)
        raise SnapshotNotFound(f"the snapshots of {info.name} come and go too quickly to be pinned; try again")

    def is_cut(self, table: TableId, pins: Mapping[BucketId, int]) -> bool:
        """Whether these snapshots are among the newest that are of one moment."""
        return len(pins) == 1 or pins.items() <= self._cuts.of(table).items()

    def round(self) -> None:
        """Take what is due. Whatever becomes of it, a table is due again after the interval."""
        for info in self._catalog.list():
            if not info.is_log and self._is_due(info.id):
                try:
                    self.take(info, also_empty=False)
                except (TableNotFound, PartitionDropped, Closed):
                    continue  # somebody was quicker, or the database is about to close
                except (KolkError, OSError) as error:
                    _log.warning("no snapshot of %s was taken: %s", info.name, error)
                finally:
                    self._reschedule(info.id)

    def forget(self, table: TableId) -> None:
        """What is written down of a dropped table."""
        with self._taking(table):  # whoever takes it now has been told to stop, and writes nothing down afterwards
            self._cuts.record(table, None)
        with self._lock:
            self._due.pop(table, None)
            self._done.pop(table, None)
            self._tables.pop(table, None)

    def close(self) -> None:
        """Wait for whoever takes snapshots; none can be published any more."""
        with self._lock:
            taking = list(self._tables.values())
        for lock in taking:
            with lock:
                pass

    def counts(self) -> SnapshotCounts:
        """What became of them so far."""
        with self._lock:
            done = min(self._done.values(), default=None)
        return SnapshotCounts(
            taken=self._counts["taken"],
            failed=self._counts["failed"],
            removed=self._snapshots.removed,
            copied_bytes=self._counts["copied"],
            last_seconds=self._last_seconds,
            oldest_age_seconds=None if done is None else self._clock.monotonic() - done,
            interval_seconds=self._interval,
            broken=self._snapshots.broken,
        )

    # --- inside

    def _taken_at_last(self, info: TableInfo, *, also_empty: bool, onlooker: Onlooker) -> dict[BucketId, Snapshot]:
        """Again, if a partition went meanwhile."""
        for _ in range(_TRIES):
            with suppress(PartitionDropped):
                return self._taken(info, also_empty=also_empty, onlooker=onlooker)
        return self._taken(info, also_empty=also_empty, onlooker=onlooker)

    def _taken(self, info: TableInfo, *, also_empty: bool, onlooker: Onlooker) -> dict[BucketId, Snapshot]:
        if onlooker.still is not None:
            return self._taken_still(info, onlooker.still(), also_empty=also_empty, onlooker=onlooker)
        for attempt in range(_LOOKS_MAX + 1):
            is_last = attempt == _LOOKS_MAX
            # A partition that goes under a look is none of those of the next one; under the last none can go.
            with suppress(PartitionDropped), ExitStack() as made:
                # Buckets may have to recover, for which no partition should have to wait, unless there is no end to it.
                with self._partitions.still_for(info, is_last):
                    buckets, changed = self._changed(info, onlooker)
                    if len(changed) > CUT_BUCKETS_MAX:
                        break
                    held = buckets if is_last and len(buckets) <= CUT_BUCKETS_MAX else changed
                    look = self._look(info, buckets, held, changed, made, onlooker)
                if look.is_cut or is_last:
                    return self._taken_at(info, buckets, look, also_empty=also_empty)
        return self._taken_in_groups(info, also_empty=also_empty, onlooker=onlooker)

    def _changed(self, info: TableInfo, onlooker: Onlooker) -> tuple[Sequence[BucketId], Sequence[BucketId]]:
        """All buckets of a table, and those that have something that their newest snapshots have not."""
        buckets = self._partitions.buckets(info)
        states = [self._tablets.state(info, bucket) for bucket in buckets]
        if onlooker.is_exact:
            for state in states:
                self._find_place(info, state)
        return buckets, [
            state.bucket for state in states if self._is_changed(state.bucket, state, onlooker) or onlooker.needs(state)
        ]

    def _find_place(self, info: TableInfo, state: BucketState) -> None:
        """Find out whether the newest snapshot of a bucket has all of its log, if nobody knows, as after a restart: it
        has, if it stands at the end and nothing follows there."""
        snapshots = self._snapshots.of(state.bucket)
        newest = snapshots.newest()
        id, offset = (0, 0) if newest is None else (newest.id, newest.offset)
        if state.end != offset or snapshots.has_all(state.segments[-1]) is not None:
            return
        if not offset and not any(segment.size for segment in state.segments):
            snapshots.note_place(id, state.segments[-1])  # nobody has ever written to it
            return
        with self._tablets.use_one(info, state.bucket) as tablet, tablet.held():
            if tablet.end == offset and not any(True for _ in tablet.log.frames(offset)):
                snapshots.note_place(id, tablet.log.segments[-1])

    def _taken_in_groups(self, info: TableInfo, *, also_empty: bool, onlooker: Onlooker) -> dict[BucketId, Snapshot]:
        buckets, changed = self._changed(info, onlooker)
        for group in groups_of(changed):
            with ExitStack() as made:
                self._publish(self._look(info, (), group, group, made, onlooker).copies)
        return self._taken_without_cut(info, buckets, changed, also_empty=also_empty)

    def _taken_still(
        self, info: TableInfo, still: AbstractContextManager[None], *, also_empty: bool, onlooker: Onlooker
    ) -> dict[BucketId, Snapshot]:
        """In groups, which are copied when all of them were looked at: somebody waits for the end of the look."""
        with ExitStack() as made:
            with still:
                buckets, changed = self._changed(info, onlooker)
                copies: list[Copied] = []
                for group in groups_of(changed):
                    with self._ready(info, group) as tablets:
                        copies += self._checkpoint(tablets, set(group), made, onlooker)
            self._publish(copies)
        return self._taken_without_cut(info, buckets, changed, also_empty=also_empty)

    def _taken_without_cut(
        self, info: TableInfo, buckets: Sequence[BucketId], changed: Sequence[BucketId], *, also_empty: bool
    ) -> dict[BucketId, Snapshot]:
        if also_empty:
            self._take_empty(info, sorted(set(buckets).difference(changed)))
        self._cuts.record(info.id, None)
        return self._newest(buckets)

    def _taken_at(
        self, info: TableInfo, buckets: Sequence[BucketId], look: Look, *, also_empty: bool
    ) -> dict[BucketId, Snapshot]:
        """Make snapshots of what was seen at one moment, and write down that they are of it."""
        ids = {bucket: id for bucket, id in look.others.items() if id is not None} | self._publish(look.copies)
        if also_empty:
            ids |= self._take_empty(info, [bucket for bucket, id in look.others.items() if id is None])
        self._cuts.record(info.id, ids if look.is_cut and len(ids) == len(buckets) else None)
        return self._newest(buckets)

    def _newest(self, buckets: Iterable[BucketId]) -> dict[BucketId, Snapshot]:
        found: dict[BucketId, Snapshot] = {}
        for bucket in buckets:
            with suppress(PartitionDropped):
                newest = self._snapshots.of(bucket).newest()
                if newest is not None:
                    found[bucket] = newest
        return found

    def _look(
        self,
        info: TableInfo,
        buckets: Sequence[BucketId],
        held: Sequence[BucketId],
        changed: Sequence[BucketId],
        made: ExitStack,
        onlooker: Onlooker,
    ) -> Look:
        """Checkpoint those that changed, which are held, or more. With all ``buckets`` of the table this is a cut if
        none of the others has changed once that is done: then each of them stood at its snapshot all the time. The
        checkpoints go with ``made``."""
        with self._ready(info, held) as tablets, self._partitions.still_for(info), self._gate.exclusive():
            copies = self._checkpoint(tablets, set(changed), made, onlooker)
            others = set(buckets).difference(held)
            is_cut = buckets == self._partitions.buckets(info) and not any(
                self._is_changed(bucket, self._tablets.known_state(bucket), onlooker) for bucket in others
            )
            copied = {each.bucket for each in copies}
            kept = {bucket: self._newest_id(bucket) for bucket in buckets if bucket not in copied}
            return Look(copies, kept, is_cut)

    @contextmanager
    def _ready(self, info: TableInfo, buckets: Sequence[BucketId]) -> Iterator[Sequence[Tablet]]:
        """The tablets of these buckets, such that checkpoints of them are quick."""
        with self._tablets.use(info, buckets) as tablets:
            for tablet in tablets:
                tablet.flush()
            self._snapshots.check_open()
            yield tablets

    def _checkpoint(
        self, tablets: Sequence[Tablet], changed: Set[BucketId], made: ExitStack, onlooker: Onlooker
    ) -> list[Copied]:
        """Checkpoints of one moment, of those that changed before it or since; they go with ``made``."""
        with ExitStack() as held:
            for tablet in tablets:
                held.enter_context(tablet.held())
            copies: list[Copied] = []
            now_ms = self._clock.now_ms()
            for tablet in tablets:
                state = BucketState.of(tablet)
                if tablet.bucket not in changed and not self._is_changed(tablet.bucket, state, onlooker):
                    continue
                # With the process in its name: one that closes may still clear its own up when another has opened.
                path = self._folder / f"{os.getpid()}-{next(_numbers)}"
                made.callback(self._clear, path)
                copies.append(Copied(tablet.bucket, path, tablet.checkpoint(path), now_ms, state.segments[-1]))
            onlooker.look(tablets)
            return copies

    def _publish(self, copies: Sequence[Copied]) -> dict[BucketId, int]:
        """Make snapshots of checkpoints; one that fails does not keep the others from it."""
        failure: Exception | None = None
        ids: dict[BucketId, int] = {}
        for each in copies:
            try:
                # First these and then the look whether they are wanted: who drops a bucket lets them refuse what comes.
                snapshots = self._snapshots.of(each.bucket)
                self._snapshots.check_alive(each.bucket)
                snapshot = snapshots.publish(self._facts(each), str(each.path))
                snapshots.note_place(snapshot.id, each.place)
            except PartitionDropped:
                continue  # nobody wants it any more
            except (KolkError, OSError) as error:
                failure = failure or error
                continue
            finally:
                self._clear(each.path)  # its links keep files that the bucket may want to be rid of
            ids[each.bucket] = snapshot.id
            self._count(taken=1, copied=snapshot.new_bytes)
        self._snapshots.note_due(each.bucket for each in copies)
        self._snapshots.reclaim(len(copies))
        if failure is not None:
            raise failure
        return ids

    def _facts(self, each: Copied) -> Snapshot:
        """What the checkpoint itself says that it is."""
        with closing(self._opening.read_only(each.path)) as kv:
            offset, rows = applied_offset(kv.records(APPLIED)), row_count(kv.records(ROWS))
        if offset != each.made.offset:
            raise Corrupted(
                f"a checkpoint of bucket {each.bucket.name} stands at {offset} and not at {each.made.offset}; the"
                " snapshot is not taken, reopen the database"
            )
        return Snapshot(id=0, offset=offset, rows=rows, schema_id=each.made.schema_id, taken_ms=each.taken_ms)

    def _take_empty(self, info: TableInfo, buckets: Sequence[BucketId]) -> dict[BucketId, int]:
        """Snapshots of buckets that had nothing at the moment of the look, whatever they have now."""
        ids: dict[BucketId, int] = {}
        facts = Snapshot(id=0, offset=0, rows=0, schema_id=info.schema.id, taken_ms=self._clock.now_ms())
        for bucket in buckets:
            with suppress(PartitionDropped):
                snapshots = self._snapshots.of(bucket)
                if snapshots.newest() is None:
                    self._snapshots.check_alive(bucket)
                    ids[bucket] = snapshots.publish(facts, "").id
                    self._count(taken=1)
        return ids

    def _is_changed(self, bucket: BucketId, state: BucketState | None, onlooker: Onlooker) -> bool:
        """Whether a bucket has rows that its newest snapshot has not, or, as its state is not known, may have; for an
        onlooker that is exact, anything."""
        snapshots = self._snapshots.of(bucket)
        newest = snapshots.newest()
        if state is None or state.end != (0 if newest is None else newest.offset):
            return True
        return onlooker.is_exact and not snapshots.has_all(state.segments[-1])

    def _newest_id(self, bucket: BucketId) -> int | None:
        newest = self._snapshots.of(bucket).newest()
        return None if newest is None else newest.id

    def _choices(
        self, table: TableId, buckets: Sequence[BucketId], *, is_first: bool
    ) -> Iterator[tuple[dict[BucketId, int], bool]]:
        """What may be pinned as the newest of a table, and whether that is of one moment; the best first. If some of
        one moment are gone, new ones are worth a try before others are taken for it."""
        cut = self._cuts.of(table)
        has_cut = cut.keys() >= set(buckets)  # more, if a partition went since
        if has_cut:
            yield {bucket: cut[bucket] for bucket in buckets}, True
        newest = self._newest(buckets)
        if len(newest) == len(buckets) and not (has_cut and is_first):
            yield {bucket: each.id for bucket, each in newest.items()}, False

    def _clear(self, path: Path) -> None:
        try:
            if self._disk.exists(str(path)):
                self._disk.remove_tree(str(path))
        except OSError as error:
            _log.warning("%s is left for the next start: %s", path, error)

    @contextmanager
    def _taking(self, table: TableId) -> Iterator[None]:
        with self._lock:
            lock = self._tables.setdefault(table, threading.RLock())
        with lock:
            yield

    def _is_due(self, table: TableId) -> bool:
        with self._lock:
            first = self._since + self._interval * (table * _SPREAD % 1.0)
            return self._clock.monotonic() >= self._due.setdefault(table, first)

    def _reschedule(self, table: TableId) -> None:
        with self._lock:
            self._due[table] = self._clock.monotonic() + self._interval

    def _count(self, **by: int) -> None:
        with self._lock:
            self._counts.update(by)


def groups_of(buckets: Sequence[BucketId]) -> list[Sequence[BucketId]]:
    """Buckets in groups, each of which is taken at one moment."""
    return [buckets[first : first + CUT_BUCKETS_MAX] for first in range(0, len(buckets), CUT_BUCKETS_MAX)]
