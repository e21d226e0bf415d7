"""A changelog: every change of a table from some offsets on, bucket by bucket in order.

Without ``follow`` it ends where the log ended when it was opened; with ``follow`` it waits for more. The order
within a bucket is the order of the log; between buckets there is none. In a follower's name it goes on where that
follower has committed, and the log is kept for it from there.
"""

import datetime
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

import pyarrow as pa

from kolk.client.handle import newest
from kolk.client.link import Link
from kolk.client.offsets import check_buckets, whole_numbers
from kolk.client.progress import Progress, Unremembered
from kolk.client.service import ChangePages, Service
from kolk.errors import Closed, InvalidArgument, KolkError, OffsetOutOfRange, PartitionDropped
from kolk.model.durations import Duration, seconds_of
from kolk.model.names import check_name
from kolk.model.page import ChangelogPage
from kolk.model.partition import (
    PARTITIONS,
    Partition,
    PartitionEvent,
    PartitionEventKind,
    after,
    bucket_names,
    partition_of,
    selected,
)
from kolk.model.predicate import Predicate
from kolk.model.schema import Schema
from kolk.model.table import TableInfo, check_partitions_only

OnPartition = Callable[[PartitionEvent], object]
HandOut = Callable[[], None]
"""Counts a batch as handed out, or what is raised instead of one as told."""
Start = Mapping[str, int] | str | datetime.datetime | None
_PATIENCE_SECONDS = 1.0
"""How long a follower waits at most before it looks whether it was closed."""
COMMIT_INTERVAL_SECONDS = 5.0


def ignored(event: PartitionEvent) -> None:
    """An ``OnPartition`` for whoever sees in the rows what became of a partition."""


def at_once(hand_out: HandOut) -> None:
    """For a reader that has each batch as soon as it is taken."""
    hand_out()


class Changelog:
    """Iterate for ``pa.RecordBatch`` pages with the change columns. A context manager.

    Each batch is of one version of the table's schema, ``schema``; see ``Table.changelog``.

    ``offsets`` is where each bucket will go on: kept and given as ``start`` later, nothing is missed and nothing
    comes twice. Confined to one reader at a time; ``close`` may come from another thread and ends the iteration.

    With a ``follower`` the offsets are kept by the store. A batch counts as handled when the next one is asked for;
    what is handled is committed every ``commit_interval``, when the iteration ends and when it is closed. A ``with``
    block that ends without an exception has handled the batch in hand too. ``commit()`` commits all that was handed
    out, at once.

    Of a partitioned table ``offsets`` also holds the reader's place in the record of partitions, and partitions that
    are made later are read too. Whoever gave ``on_partition`` is told of every partition that comes and goes, in order
    with the changes. Without it a partition that is dropped before it was read to its end raises PartitionDropped,
    once: iterate again to go on with the others.
    """

    def __init__(
        self,
        link: Link,
        info: TableInfo,
        *,
        start: Start = None,
        stop: Mapping[str, int] | None = None,
        follow: bool = False,
        buckets: Sequence[str] | None = None,
        where: Predicate | None = None,
        schema: str | int | None = None,
        follower: str | None = None,
        commit_interval: Duration | None = COMMIT_INTERVAL_SECONDS,
        on_partition: OnPartition | None = None,
    ) -> None:
        service = link.service
        self._link = link
        self._info = info
        self._where = where
        self._on_partition = on_partition
        self._closed = False
        self._pages: ChangePages | None = None
        self._progress: Progress | Unremembered = Unremembered()
        self._shown_as = _shown_as(schema, service, info)
        self._last_schema_id = self._shown_as or info.schema.id
        follower = None if follower is None else check_name(follower, "follower")
        interval = _interval(follower, buckets, where, commit_interval)
        check_partitions_only(info, where)
        bounds = selected(info.partition_columns, service.bounds(info.id), where)
        chosen = _chosen(buckets, bounds)
        for what, given in (("start", start), ("stop", stop)):
            check_buckets(given, what)
        start = selected(info.partition_columns, start, where) if isinstance(start, Mapping) else start
        starts = _starts(start, chosen, bounds, service, info)
        stop = selected(info.partition_columns, stop, where) if isinstance(stop, Mapping) else stop
        if buckets is not None and PARTITIONS in {**starts, **(stop or {})}:
            there = service.partitions(info.id)
            starts, stop = _without_former(starts, there), _without_former(stop or {}, there)
        self._stops = _stops(stop, follow, chosen, bounds)
        if follower is not None:
            given = None if start is None else _offsets(starts, chosen, bounds)
            session = service.open_follower(info.id, follower, link.rng.id128(), given)
            self._progress = Progress(link, info.id, follower, session, interval)
            self.offsets = session.offsets
            if self.offsets.get(PARTITIONS, 0) > bounds.get(PARTITIONS, (0, 0))[1]:
                # Partitions came or went since the look at the bounds: what is to be read up to is not there any more.
                bounds = service.bounds(info.id)
                self._stops = _stops(stop, follow, list(bounds), bounds)
            self._stops = _reachable(self._stops, self.offsets)
            return
        self.offsets = _offsets(starts, chosen, bounds)
        if PARTITIONS in self.offsets:
            _check_place(self.offsets[PARTITIONS], bounds[PARTITIONS])
        self._stops = _reachable(self._stops, self.offsets)
        if self.offsets.get(PARTITIONS) == bounds.get(PARTITIONS, (0, None))[1]:
            for bucket, offset in self.offsets.items():
                _check_start(bucket, offset, bounds[bucket])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, taken: Callable[[HandOut], object] = at_once) -> Iterator[pa.RecordBatch]:
        """The same for a reader that is given a batch later than it is taken, or not at all: ``taken`` gets, before
        each batch, what to call when it is handed out. Until then nothing counts it."""
        if self._closed:
            raise Closed("this changelog is closed")
        pages = self._link.service.open_changes(self._info.id, self.offsets, self._stops, self._where, self._shown_as)
        self._pages = pages
        try:
            self._progress.handle_all()
            while not (self._closed or self._is_finished()):
                self._link.service  # noqa: B018 - raises Closed if the connection was closed meanwhile
                self._progress.commit_if_due()
                found = self._next(pages)
                if found is None:
                    continue
                if isinstance(found, PartitionEvent):
                    self._tell(found, taken)
                    continue
                bucket, page = found
                if page.batch is None:
                    self._hand_out(bucket, page)
                else:
                    taken(partial(self._hand_out, bucket, page))
                    yield page.batch
                self._progress.handle(bucket, page.next_offset)
        except GeneratorExit:
            raise
        except PartitionDropped:
            if self._on_partition is not None:
                self._progress.take_back()
            raise
        except BaseException:
            # An interrupt may have come after a batch was counted and before it was given.
            self._progress.take_back()
            raise
        finally:
            pages.close()
        self._finish(in_hand=False)

    @property
    def schema(self) -> Schema:
        """The version of the table's schema that the last batch is in; all its changes are of one."""
        return self._link.service.schema(self._info.id, self._last_schema_id)

    def commit(self) -> None:
        """Commit everything that was handed out so far, the batch in hand included: it will not come again."""
        self._progress.commit()

    def close(self) -> None:
        """End the iteration, also one that waits in another thread, and commit what is handled. Idempotent.

        The batch in hand is not committed: another thread may be in the middle of it.
        """
        self._close(in_hand=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self._close(in_hand=True)
            return
        # What went wrong in the block is the news. A commit that fails too costs nothing: the changes come again.
        with suppress(KolkError):
            self._close(in_hand=False)

    def __repr__(self) -> str:
        places = _few(f"{bucket}: {offset}" for bucket, offset in self.offsets.items())
        return f"<kolk.Changelog of {self._info.name} at {{{places}}}{', closed' if self._closed else ''}>"

    def _close(self, *, in_hand: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pages is not None:
            self._pages.close()
        self._finish(in_hand=in_hand)

    def _finish(self, *, in_hand: bool) -> None:
        with suppress(Closed):  # the connection was closed first: what was not committed comes again
            self._progress.finish(in_hand=in_hand)

    def _hand_out(self, bucket: str, page: ChangelogPage) -> None:
        # Just before the reader has the batch: one that keeps the offsets after it keeps the right ones.
        self.offsets[bucket] = page.next_offset
        self._progress.hand_out(bucket, page.next_offset)
        if page.batch is not None:
            self._last_schema_id = page.schema_id

    def _tell(self, event: PartitionEvent, taken: Callable[[HandOut], object]) -> None:
        """Go on as the event says, and let the reader know. If it fails to take note, it is told again."""
        if self._on_partition is None and event.unread != 0:
            taken(partial(self._hand_out_event, event))
            raise event.error
        before = self.offsets, self._stops
        self._hand_out_event(event)
        if self._on_partition is not None:
            try:
                self._on_partition(event)
            except BaseException:
                self.offsets, self._stops = before
                raise
        self._progress.handle_event(event)

    def _hand_out_event(self, event: PartitionEvent) -> None:
        self.offsets = after(event, self.offsets)
        until = self._stops.get(PARTITIONS)
        if event.kind is PartitionEventKind.DROPPED and (until is None or event.position > until):
            # Else the stops are those of a new partition of the same name, which is yet to come.
            self._stops = {name: stop for name, stop in self._stops.items() if partition_of(name) != event.partition}
        self._progress.hand_out_event(event)

    def _next(self, pages: ChangePages) -> tuple[str, ChangelogPage] | PartitionEvent | None:
        try:
            return pages.next(_PATIENCE_SECONDS)
        except OffsetOutOfRange as error:
            raise self._progress.lost(error) from error

    def _is_finished(self) -> bool:
        return all(stop is not None and self.offsets.get(name, 0) >= stop for name, stop in self._stops.items())


def _shown_as(schema: str | int | None, service: Service, info: TableInfo) -> int | None:
    """The version to show all changes in; None for the one that each was written with."""
    if schema is None or isinstance(schema, int):
        return schema
    if schema != "latest":
        raise InvalidArgument(f"schema is 'latest', or left out to see changes as they were written, not {schema!r}")
    return newest(service, info).schema.id


def _interval(
    follower: str | None, buckets: Sequence[str] | None, where: Predicate | None, given: Duration | None
) -> float | None:
    """The seconds between commits; None if they are left to the caller."""
    if follower is None:
        if given != COMMIT_INTERVAL_SECONDS:
            raise InvalidArgument("commit_interval goes with follower; without a name there is nothing to commit")
        return None
    if buckets is not None or where is not None:
        raise InvalidArgument(
            "a follower follows the whole table; leave buckets and where out, or keep offsets without a name"
        )
    return None if given is None else seconds_of(given, "commit_interval")


def _chosen(buckets: Sequence[str] | None, bounds: Mapping[str, object]) -> list[str]:
    if buckets is None:
        return list(bounds)
    chosen = bucket_names(buckets)
    names = [bucket for bucket in bounds if bucket != PARTITIONS]
    unknown = [bucket for bucket in chosen if bucket not in names]
    if unknown:
        raise InvalidArgument(f"there is no bucket {unknown[0]!r}; the buckets are {_few(names)}")
    return list(chosen)


def _starts(
    start: Start, chosen: Sequence[str], bounds: Mapping[str, tuple[int, int]], service: Service, info: TableInfo
) -> dict[str, int]:
    if start is None or (isinstance(start, str) and start == "earliest"):
        return {}
    if isinstance(start, str) and start == "latest":
        return {bucket: end for bucket, (_, end) in bounds.items()}
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise InvalidArgument("start needs a time zone: datetime(..., tzinfo=datetime.UTC)")
        return offsets_since(service, info, int(start.timestamp() * 1000), chosen)
    if not isinstance(start, Mapping):
        raise InvalidArgument(f"start is 'earliest', 'latest', a datetime or offsets by bucket, not {start!r}")
    unknown = [bucket for bucket in start if bucket not in bounds]
    # A place in the record of partitions, if there is one, says by itself which buckets are meant.
    if unknown and not (PARTITIONS in start and PARTITIONS in bounds):
        raise InvalidArgument(f"start names a bucket {unknown[0]!r}; the buckets are {_few(bounds)}")
    return whole_numbers(start, "start")


def offsets_since(service: Service, info: TableInfo, timestamp_ms: int, buckets: Container[str]) -> dict[str, int]:
    """The first offsets of some buckets that were committed at a time or later. Refused if the log may have lost any of
    what was committed since: whoever asks for all changes since a time is not given a part of them."""
    found = {name: at for name, at in service.offsets_since(info.id, timestamp_ms).items() if name in buckets}
    lacking = next((bucket for bucket, offset in found.items() if offset is None), None)
    if lacking is not None:
        raise OffsetOutOfRange(
            f"the log of bucket {lacking!r} was trimmed, and may have lost changes that were committed at the time of"
            " 'start' or later. Start at 'earliest' to have what is left, at a later time, or with the whole table:"
            " scan it, and go on from the scan's offsets"
        )
    return {bucket: offset for bucket, offset in found.items() if offset is not None}


def _without_former(starts: Mapping[str, int], partitions: Iterable[Partition]) -> dict[str, int]:
    """The starts of those partitions that there were already at their place in the record of partitions: one that was
    made later, of the same name, is another one."""
    if PARTITIONS not in starts:
        return dict(starts)
    known = {each.name for each in partitions if each.id < starts[PARTITIONS]}
    return {bucket: start for bucket, start in starts.items() if partition_of(bucket) in known}


def _offsets(starts: Mapping[str, int], chosen: Sequence[str], bounds: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Where to start in each chosen bucket; what is not said is where the log starts.

    A place in the record of partitions says by itself which buckets are meant, and some of them may be gone. Without
    one it is the present place: the partitions of former times left nothing to read.
    """
    if PARTITIONS in chosen and starts.get(PARTITIONS, bounds[PARTITIONS][1]) != bounds[PARTITIONS][1]:
        return dict(starts)
    places = {PARTITIONS: bounds[PARTITIONS][1]} if PARTITIONS in chosen else {}
    return {bucket: starts.get(bucket, bounds[bucket][0]) for bucket in chosen} | places


def _stops(
    stop: Mapping[str, int] | None, follow: bool, chosen: Sequence[str], bounds: Mapping[str, tuple[int, int]]
) -> dict[str, int | None]:
    """Where each bucket ends: where it is told to, but not past its present end unless it follows."""
    if stop is not None and not isinstance(stop, Mapping):
        raise InvalidArgument(f"stop is offsets by bucket, not {stop!r}")
    given = whole_numbers(stop or {}, "stop")
    if PARTITIONS in chosen and given.get(PARTITIONS, bounds[PARTITIONS][1]) < bounds[PARTITIONS][1]:
        # Of former times, as those of a scan: the buckets are those that there were then.
        return dict(given)
    unknown = [bucket for bucket in given if bucket not in bounds]
    if unknown:
        raise InvalidArgument(f"stop names a bucket {unknown[0]!r}; the buckets are {_few(bounds)}")
    if follow:
        places = {PARTITIONS: bounds[PARTITIONS][1]} if given and PARTITIONS in chosen else {}
        return {bucket: given.get(bucket) for bucket in chosen} | places
    return {bucket: min(given.get(bucket, bounds[bucket][1]), bounds[bucket][1]) for bucket in chosen}


def _reachable(stops: Mapping[str, int | None], offsets: Mapping[str, int]) -> dict[str, int | None]:
    """The stops without those of partitions that went before the reader's own place, if it is past its stop."""
    until = stops.get(PARTITIONS)
    if until is None or offsets.get(PARTITIONS, 0) <= until:
        return dict(stops)
    return {name: stop for name, stop in stops.items() if name in offsets}


def _few(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:20])


def _check_place(place: int, bounds: tuple[int, int]) -> None:
    start, end = bounds
    if not start <= place <= end:
        raise OffsetOutOfRange(
            f"the record of partitions has events {start} to {end}; {place} is not among them. Scan the table and go on"
            " from the scan's offsets"
        )


def _check_start(bucket: str, offset: int, bounds: tuple[int, int]) -> None:
    start, end = bounds
    if offset < start:
        raise OffsetOutOfRange(
            f"bucket {bucket!r} starts at offset {start}; {offset} was trimmed. Scan the table and go on from the"
            " scan's offsets"
        )
    if offset > end:
        raise OffsetOutOfRange(f"bucket {bucket!r} ends at offset {end}; {offset} is not written yet")
