"""A streaming query at the server: where it begins, how far the next micro-batch goes, and what that batch reads.

It asks; the arithmetic is in ``offsets``. It lives in the one process in which Spark asks where the stream is, as long
as the query runs, and nothing of it is needed to go on after a crash but the position that Spark has kept.

Refused, loudly, is what would leave rows out: a log that was trimmed, a lease that is gone, a partition that was
dropped before it was read, a table that was made anew, other partitions than the query has chosen so far.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from kolk.client.changelog import offsets_since
from kolk.client.database import Database
from kolk.client.kept_scan import KeptPages
from kolk.client.where import predicate_of
from kolk.errors import InvalidArgument, LeaseLost, OffsetOutOfRange, PartitionDropped, PartitionNotFound
from kolk.model.partition import PARTITIONS, PartitionEvent, PartitionEventKind, partition_of, selected
from kolk.model.table import check_partitions_only
from kolk.spark.holding import PREFIX, Holding
from kolk.spark.limits import SAMPLE_ROWS, Limits
from kolk.spark.offsets import (
    Position,
    Slice,
    Unread,
    after_changes,
    after_event,
    after_rows,
    at_place,
    behind,
    numbers,
    other_where,
    scanned,
    slices,
)
from kolk.spark.options import Options, passes_over_dropped
from kolk.spark.places import EARLIEST, FULL, LATEST, Moment, Offsets, place_of
from kolk.spark.record import events_since
from kolk.spark.slices import ANEW, gone, log_lost, snapshot_pages

Bounds = Mapping[str, tuple[int, int]]
LEASE_TTL = "1h"
_WAITS_MAX = 30
T = TypeVar("T")


class Following:
    """One query's way through a table. Confined to one thread."""

    def __init__(self, options: Options, database: Database, names: Sequence[str], lanes: int) -> None:
        self.table = database.table(options.required("table"))
        self.passes_over_dropped = passes_over_dropped(options)
        self._names = tuple(names)
        self._start = place_of("start", options.text("start") or FULL, (FULL, EARLIEST, LATEST))
        self._follower = options.text("follower")
        self._where = predicate_of(options.text("where"), self.table.schema)
        check_partitions_only(self.table.info, self._where)
        self._lanes = lanes
        self._holding = Holding(database, self.table, options.seconds("lease-ttl", LEASE_TTL))
        self._target: dict[str, int] | None = None
        self._seen: dict[str, int] = {}
        self._others: dict[str, int] = {}
        self._behind = 0

    # --- where it begins

    def begin(self) -> Position:
        """Where a new query begins, as its options say."""
        name = self._follower or f"{PREFIX}{self.table.link.rng.token_hex(8)}"
        if self._start == FULL and not self.table.info.is_log:
            return self._leased(name)
        return self._positioned(name, self._starts())

    def _leased(self, follower: str) -> Position:
        bounds = self._bounds()
        if bounds.keys() == {PARTITIONS}:
            # There is no partition yet that could be leased, and one that is made from here on is read as it comes.
            return self._positioned(follower, {PARTITIONS: bounds[PARTITIONS][1]})
        lease = self._holding.leased()
        kept = lease.table(self.table.name)
        assert kept is not None, "it was asked for"
        log = self._selected(kept.start)
        found = self._positioned(follower, log)
        counts = {(each.bucket, each.id): each.rows for each in self.table.snapshots()}
        unread: dict[str, Unread] = {}
        for bucket, snapshot in kept.snapshots.items():
            if bucket in log:
                rows = counts.get((bucket, snapshot))
                each = Unread(snapshot=snapshot, rows=0 if rows is None else rows)
                unread[bucket] = each if rows is not None else self._counted(found, bucket, each)
        kept_rows = {name: each for name, each in unread.items() if each.left}
        leased_ms = round(lease.state.created.timestamp() * 1_000)
        return replace(found, lease=lease.id, leased_ms=leased_ms, unread=kept_rows)

    def _positioned(self, follower: str, log: Mapping[str, int]) -> Position:
        made: dict[str, int] = {}
        if self.table.info.is_partitioned:
            names = [partition_of(name) for name in log if name != PARTITIONS]
            made = numbers(names, log[PARTITIONS], self.table.partitions())
        return Position(table=self.table.info.id, follower=follower, log=log, made=made, where=self._chosen)

    def _starts(self) -> dict[str, int]:
        bounds, start = self._bounds(), self._start
        if isinstance(start, Offsets):
            return self._given(bounds, start.by_bucket)
        ends = {name: end for name, (_, end) in bounds.items()}
        if start == LATEST:
            return ends
        if not isinstance(start, Moment):
            return {name: first if name != PARTITIONS else end for name, (first, end) in bounds.items()}
        at = offsets_since(self.table.link.service, self.table.info, start.ms, bounds)
        firsts = {name: first for name, (first, _) in bounds.items()}
        places = {PARTITIONS: ends[PARTITIONS]} if PARTITIONS in ends else {}
        return {name: at.get(name, firsts[name]) for name in bounds if name != PARTITIONS} | places

    def _given(self, bounds: Bounds, given: Mapping[str, int]) -> dict[str, int]:
        """Offsets that somebody has kept, of a scan say; what they do not name begins where its log does."""
        place = given.get(PARTITIONS, bounds.get(PARTITIONS, (0, 0))[1])
        is_former = PARTITIONS in bounds and place != bounds[PARTITIONS][1]
        unknown = [name for name in given if name not in bounds]
        if unknown and not is_former:
            raise InvalidArgument(
                f"start names a bucket {unknown[0]!r}; the buckets are {', '.join(list(bounds)[:20])}"
            )
        known = {each.name for each in self.table.partitions() if each.id < place} if is_former else None
        firsts = {
            name: first
            for name, (first, _) in bounds.items()
            if name != PARTITIONS and (known is None or partition_of(name) in known)
        }
        log = self._selected({**firsts, **given} | ({PARTITIONS: place} if PARTITIONS in bounds else {}))
        if not is_former:
            _check_within(log, bounds)
        return log

    # --- how far the next batch goes

    def prepare(self) -> None:
        """Go no further than what there is now, and end there."""
        self._target = {name: end for name, (_, end) in self._bounds().items()}

    def first(self, limits: Limits) -> Position:
        """The end of the first batch, which says where it began. There is no follower yet: nobody comes back to one
        whose name Spark has not written down. A lease holds the log until then, or nobody does, and a log that was
        trimmed meanwhile is an error."""
        begun = self.begin()
        return replace(self._next(begun, limits), first=begun)

    def latest(self, position: Position, limits: Limits) -> Position:
        """The end of the batch that begins here, at a position that Spark has kept; the very same position if there is
        nothing to read."""
        self._check_same(position)
        position = self._held(position)
        found = self._next(position, limits)
        if found is position:
            self._holding.wait(position, self._unread_others(position))
            return position
        return replace(found, where=self._chosen)  # an older Kolk has not said it

    def _next(self, position: Position, limits: Limits) -> Position:
        if position.unread:
            self._behind = behind(position, {})
            return self._after_rows(position, limits)
        bounds = self._bounds()
        self._seen = {name: end for name, (_, end) in bounds.items()}
        ends = self._seen if self._target is None else self._aimed(self._seen, self._target)
        moved = self._after_events(position, self._seen.get(PARTITIONS, 0))
        _check_within({name: at for name, at in moved.log.items() if name in bounds}, bounds)
        self._behind = behind(moved, ends)
        found = after_changes(moved, ends, limits.in_rows(lambda: self._sample_changes(moved, ends)))
        is_same = found.log == position.log or (self._target is not None and not slices(position, found))
        return position if is_same else found

    def _after_rows(self, position: Position, limits: Limits) -> Position:
        limit = limits.in_rows(lambda: self._sample_rows(position))
        reached = {
            name: self._walked(position, name, position.unread[name], stop)
            for name, stop in scanned(position, limit, self._lanes).items()
        }
        return after_rows(position, reached)

    def _walked(self, position: Position, bucket: str, unread: Unread, stop: int) -> Unread:
        """The place after so many rows of a snapshot. They are counted by a column of their key."""
        if stop >= unread.rows:
            return replace(unread, done=unread.rows, token="")
        walked = list(self._keys(position, bucket, unread, stop))
        if unread.done + sum(rows for rows, _ in walked) < stop:
            return replace(unread, done=unread.rows, token="")  # it has no more: its last slice goes to its end
        return replace(unread, done=stop, token=walked[-1][1])

    def _counted(self, position: Position, bucket: str, unread: Unread) -> Unread:
        """How many rows a snapshot has, where nobody has counted them."""
        return replace(unread, rows=sum(rows for rows, _ in self._keys(position, bucket, unread, None)))

    def _keys(self, position: Position, bucket: str, unread: Unread, stop: int | None) -> Iterator[tuple[int, str]]:
        pages = self._pages(position, bucket, unread, stop, self.table.schema.primary_key[:1])
        try:
            while (page := pages.next()) is not None:
                if page.event is not None:
                    self._lose(page.event)
                    return
                yield 0 if page.batch is None else page.batch.num_rows, page.token
        finally:
            pages.close()

    def _pages(
        self, position: Position, bucket: str, unread: Unread, stop: int | None, names: Sequence[str]
    ) -> KeptPages:
        return snapshot_pages(
            self.table.link.service,
            self.table.info.id,
            self.table.schema.id,
            bucket,
            unread.snapshot,
            place=position.log.get(PARTITIONS),
            token=unread.token,
            stop=stop,
            names=names,
        )

    def _after_events(self, position: Position, place: int) -> Position:
        """What became of partitions since, in order: new ones are read from their beginning. One that was dropped takes
        its changes with it; that is an error, unless all of them were read."""
        if position.place == place:
            return position
        if position.place > place:
            raise log_lost(
                OffsetOutOfRange(f"the record of partitions ends at event {place}, and {position.place} is next")
            )
        try:
            for event in events_since(self.table, position.log, place, self._seen, self._where):
                self._lose(event)
                position = after_event(position, event, self.table.info.spec.buckets)
        except (OffsetOutOfRange, PartitionNotFound) as error:
            raise log_lost(OffsetOutOfRange(str(error))) from error
        return at_place(position, place)

    def _lose(self, event: PartitionEvent) -> None:
        """A partition is gone: what of it was not read cannot be read any more."""
        if event.kind is not PartitionEventKind.DROPPED or event.unread == 0 or self.passes_over_dropped:
            return
        raise self._dropped(event.partition, event.unread)

    def _dropped(self, partition: str, unread: int | None) -> PartitionDropped:
        how = "before all of its rows were read" if unread is None else f"with {unread:,} changes unread"
        return PartitionDropped(
            f"the partition {partition} of {self.table.name} was dropped {how}; to go on without them restart the"
            f" query with .option('dropped-partitions', 'ignore'), or {ANEW}",
            partition,
            unread,
        )

    def _aimed(self, ends: Mapping[str, int], target: Mapping[str, int]) -> dict[str, int]:
        return {name: min(end, target.get(name, 0)) for name, end in ends.items()}

    # --- what it reads

    def planned(self, start: Position | None, end: Position) -> list[Slice]:
        """What a batch reads. Also one of a query that was restarted, which nobody has asked for anything yet."""
        self._check_same(end)
        begin = end.first or start
        assert begin is not None, "Spark names where a batch begins"
        self._held(begin)
        return slices(start, end)

    def committed(self, position: Position) -> None:
        """Whatever is before a position is not needed any more."""
        self._check_same(position)
        self._holding.move(position, self._unread_others(position))

    def report(self) -> dict[str, object]:
        """How far there is to read, for whoever watches the query."""
        return {"log": dict(self._seen), "behind": self._behind}

    def close(self) -> None:
        """The query ends."""
        self._holding.close()

    # --- inside

    def _held(self, position: Position) -> Position:
        """Hold what is to be read from here on. A lease ends with the last partition of which it keeps something: then
        there are no rows left to be read, and the log is next."""
        try:
            self._holding.take(position)
            return position
        except LeaseLost:
            gone_with_it = self._unread_dropped(position)
            if not gone_with_it:
                raise
        if not self.passes_over_dropped:
            raise self._dropped(gone_with_it[0], None)
        left = replace(position, unread={})
        self._holding.take(left)
        return left

    def _unread_dropped(self, position: Position) -> list[str]:
        """The partitions whose rows are yet to be read, if every one of them is gone; one that was made anew is not the
        one of then."""
        if not self.table.info.is_partitioned:
            return []
        alive = {each.name: each.id for each in self.table.partitions()}
        names = list(dict.fromkeys(map(partition_of, position.unread)))
        return [] if any(name in alive and alive[name] == position.made.get(name) for name in names) else names

    def _unread_others(self, position: Position) -> dict[str, int]:
        """The ends of buckets that the query does not read, if they are those of this place: names may mean others at
        another one."""
        return self._others if self._seen.get(PARTITIONS, 0) == position.place else {}

    @property
    def _shown(self) -> tuple[str, ...]:
        return self._names or self.table.schema.primary_key[:1]

    def _check_same(self, position: Position) -> None:
        """Whether a position is of this table, and of the partitions that are asked for: those that were not are in no
        offsets, so nobody would ever come back to them."""
        if position.table != self.table.info.id:
            raise gone(self.table.name)
        if position.where is None or position.where == self._chosen:
            return
        if predicate_of(position.where or None, self.table.schema) != self._where:
            raise other_where(self.table.name, position.where, self._chosen)

    @property
    def _chosen(self) -> str:
        """What chooses the partitions, as it is kept in offsets."""
        return "" if self._where is None else self._where.text

    def _bounds(self) -> dict[str, tuple[int, int]]:
        bounds = self.table.link.service.bounds(self.table.info.id)
        chosen = self._selected(bounds)
        self._others = {name: end for name, (_, end) in bounds.items() if name not in chosen}
        return chosen

    def _selected(self, of_buckets: Mapping[str, T]) -> dict[str, T]:
        """What there is for buckets whose partitions the query reads, and for the record of partitions."""
        return selected(self.table.info.partition_columns, of_buckets, self._where)

    def _sample_rows(self, position: Position) -> pa.RecordBatch | None:
        """The first rows that are next."""
        bucket, unread = next(iter(position.unread.items()))
        pages = self._pages(position, bucket, unread, unread.done + SAMPLE_ROWS, self._shown)
        try:
            page = pages.next()
            return None if page is None else page.batch
        finally:
            pages.close()

    def _sample_changes(self, position: Position, ends: Mapping[str, int]) -> pa.RecordBatch | None:
        """The first changes that are next."""
        service, info = self.table.link.service, self.table.info
        for bucket, at in position.log.items():
            stop = min(ends.get(bucket, 0), at + SAMPLE_ROWS)
            if bucket != PARTITIONS and stop > at:
                pages = service.open_changes(info.id, {bucket: at}, {bucket: stop}, None, self.table.schema.id)
                try:
                    found = next(filter(None, (pages.next(1.0) for _ in range(_WAITS_MAX))), None)
                    return None if found is None or isinstance(found, PartitionEvent) else found[1].batch
                finally:
                    pages.close()
        return None


def _check_within(log: Mapping[str, int], bounds: Bounds) -> None:
    """Whether the log has what is to be read."""
    for name, at in log.items():
        first, end = bounds[name]
        if name == PARTITIONS:
            first, end = min(first, at), max(end, at)  # refused where its events are asked for
        if at < first:
            raise log_lost(OffsetOutOfRange(f"bucket {name!r} starts at offset {first} now, and {at} is next"))
        if at > end:
            raise log_lost(OffsetOutOfRange(f"bucket {name!r} ends at offset {end}, and {at} is next"))
