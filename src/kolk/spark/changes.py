"""The changelog as a batch: a range of every bucket's log, with the change columns that Spark has names for.

A range is fixed when it is planned, which is when the frame is first used: the same frame shows the same changes
however often it is read, so that what was counted is what is written. The next part is a new ``load()`` that starts
where this one stopped. What the log no longer has is an error and never left out, also if it went after the range was
fixed: a range says which partition it is of, not only which name that has.
"""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kolk.client.changelog import offsets_since
from kolk.client.table import Table
from kolk.errors import InvalidArgument, OffsetOutOfRange, PartitionDropped
from kolk.model.partition import PARTITIONS, PartitionEventKind, after, partition_of, selected
from kolk.model.predicate import Predicate
from kolk.model.table import check_partitions_only
from kolk.spark.forms import Form, formed
from kolk.spark.log_slices import changes_of, dropped
from kolk.spark.offsets import LogSlice, numbers
from kolk.spark.places import EARLIEST, LATEST, Moment, Offsets, Place, place_of
from kolk.spark.record import events_since

_WHOLE = "read the whole table, and the changelog from there on"


@dataclass(frozen=True, slots=True)
class _Logs:
    """The logs of a table that are asked for, as they are now; ``place`` is the end of its record of partitions."""

    table: Table
    where: Predicate | None
    lows: Mapping[str, int]
    highs: Mapping[str, int]
    place: int


def ranges_of(
    table: Table, where: Predicate | None, start: str | None, stop: str | None, *, passes_over_dropped: bool = False
) -> list[LogSlice]:
    """What is read of each bucket, those left out of which nothing is. Offsets with a place in the record of partitions
    are of the partitions that there were then; those of any that is gone since with something to read are an error."""
    check_partitions_only(table.info, where)
    logs = _logs(table, where)
    first, last = _asked(logs, "start", start or EARLIEST), _asked(logs, "stop", stop or LATEST)
    until = _place(logs, last)
    if _is_of_a_place(logs, first) and _place(logs, first) > until:
        return []  # it begins after its end
    made = made_at(table, logs.highs, until)
    there = [bucket for bucket in logs.highs if not table.info.is_partitioned or partition_of(bucket) in made]
    stops = {bucket: logs.highs[bucket] for bucket in there} | _offsets(logs, last, there, is_start=False)
    starts = {bucket: logs.lows[bucket] for bucket in there}
    if isinstance(first, Offsets) and _is_of_a_place(logs, first):
        starts |= _since(logs, first.by_bucket, until, passes_over_dropped=passes_over_dropped)
    else:
        starts |= _offsets(logs, first, there, is_start=True)
    for bucket in there:
        _check(bucket, starts[bucket], logs.lows[bucket], logs.highs[bucket])
        _check(bucket, stops[bucket], 0, logs.highs[bucket])
    # Only offsets name what is gone. Whoever reads from a time on may want all of it; from the earliest on, none.
    wanted = starts if first in (EARLIEST, LATEST) else {**dict.fromkeys(stops, 0), **starts}
    for bucket, offset in wanted.items():
        if bucket not in there and stops.get(bucket, offset + 1) > offset and not passes_over_dropped:
            raise _dropped_unread(table, partition_of(bucket), None)
    return sliced({bucket: (starts[bucket], stops[bucket]) for bucket in there}, made)


def made_at(table: Table, buckets: Iterable[str], place: int) -> dict[str, int]:
    """The numbers of the partitions that these buckets were of at a place in their record, without those that are gone
    since."""
    if not table.info.is_partitioned:
        return {}
    return numbers((partition_of(bucket) for bucket in buckets), place, table.partitions())


def sliced(ranges: Mapping[str, tuple[int, int]], made: Mapping[str, int]) -> list[LogSlice]:
    """Ranges of buckets, those without changes left out, as slices of partitions with these numbers."""
    found: list[LogSlice] = []
    for bucket, (start, stop) in ranges.items():
        partition = partition_of(bucket)
        if start < stop and partition and partition not in made:
            raise dropped(bucket)
        if start < stop:
            found.append(LogSlice(bucket=bucket, partition=made.get(partition, 0), start=start, stop=stop))
    return found


def changes(
    table: Table, ranges: Sequence[LogSlice], form: Form, *, passes_over_dropped: bool = False
) -> Generator[pa.RecordBatch, None, None]:
    """The changes of some ranges in a form, in the version of the schema that the table handle speaks."""
    try:
        for batch in changes_of(table, ranges, table.schema.id, passes_over_dropped=passes_over_dropped):
            yield formed(batch, form)
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(
            f"changes that this frame is to show are gone ({error}): the log was trimmed, or the table truncated, since"
            f" its range was fixed. Nothing is left out: {_WHOLE}"
        ) from error
    except PartitionDropped as error:
        raise PartitionDropped(
            f"{error}: a frame shows the changes of one range, however often it is read, and those of this partition"
            " are gone; load() it again to read the range as the table has it now, or pass over what cannot be read"
            " with .option('dropped-partitions', 'ignore')",
            error.partition,
            error.unread,
        ) from error


def _logs(table: Table, where: Predicate | None) -> _Logs:
    bounds = selected(table.info.partition_columns, table.link.service.bounds(table.info.id), where)
    place = bounds.pop(PARTITIONS, (0, 0))[1]
    lows = {bucket: low for bucket, (low, _) in bounds.items()}
    highs = {bucket: high for bucket, (_, high) in bounds.items()}
    return _Logs(table, where, lows, highs, place)


def _asked(logs: _Logs, option: str, text: str) -> Place:
    """What an option says, of the buckets that are asked for."""
    found = place_of(option, text, (EARLIEST, LATEST))
    if not isinstance(found, Offsets):
        return found
    asked = Offsets(selected(logs.table.info.partition_columns, found.by_bucket, logs.where))
    place = _place(logs, asked)
    if place > logs.place:
        raise OffsetOutOfRange(f"the record of partitions ends at event {logs.place}; {place} is not written yet")
    known = {*logs.highs, PARTITIONS} if logs.table.info.is_partitioned else set(logs.highs)
    unknown = next((bucket for bucket in asked.by_bucket if bucket not in known), None)
    if unknown is not None and place == logs.place:
        raise InvalidArgument(f"{option} names a bucket {unknown!r} that {logs.table.name} does not have")
    return asked


def _is_of_a_place(logs: _Logs, asked: Place) -> bool:
    return isinstance(asked, Offsets) and logs.table.info.is_partitioned and PARTITIONS in asked.by_bucket


def _place(logs: _Logs, asked: Place) -> int:
    """The place in the record of partitions that is meant: the present one, unless offsets say another."""
    if isinstance(asked, Offsets) and _is_of_a_place(logs, asked):
        return asked.by_bucket[PARTITIONS]
    return logs.place


def _offsets(logs: _Logs, asked: Place, there: Collection[str], *, is_start: bool) -> dict[str, int]:
    """The offsets that are meant, of buckets that there are; those that somebody has kept may be of others too."""
    if isinstance(asked, Offsets):
        named = {bucket: offset for bucket, offset in asked.by_bucket.items() if bucket != PARTITIONS}
        return named if _is_of_a_place(logs, asked) else {name: at for name, at in named.items() if name in there}
    if isinstance(asked, Moment):
        service, info = logs.table.link.service, logs.table.info
        found = offsets_since(service, info, asked.ms, there) if is_start else service.offsets_at(info.id, asked.ms)
        # The logs have grown since their ends were asked for, and a time to come is where they end now.
        return {name: min(at, logs.highs[name]) for name, at in found.items() if name in there}
    ends = logs.lows if asked == EARLIEST else logs.highs
    return {bucket: ends[bucket] for bucket in there}


def _since(logs: _Logs, given: Mapping[str, int], until: int, *, passes_over_dropped: bool) -> dict[str, int]:
    """Where to go on after offsets that were kept at an earlier place in the record of partitions: those made since are
    read from their beginning, and those dropped since must have been read to their end."""
    log = dict(given)
    if log[PARTITIONS] < until:
        for event in events_since(logs.table, given, until, logs.highs, logs.where):
            if event.kind is PartitionEventKind.CREATED:
                log |= {f"{event.partition}/{bucket}": 0 for bucket in range(logs.table.info.spec.buckets)}
            elif event.unread != 0 and not passes_over_dropped:
                raise _dropped_unread(logs.table, event.partition, event.unread)
            log = after(event, log)
    return {bucket: offset for bucket, offset in log.items() if bucket != PARTITIONS}


def _dropped_unread(table: Table, partition: str, unread: int | None) -> PartitionDropped:
    how = "with changes that this read asks for" if unread is None else f"with {unread:,} changes unread"
    return PartitionDropped(
        f"the partition {partition} of {table.name} was dropped {how}; .option('dropped-partitions', 'ignore') reads"
        f" what is left, or {_WHOLE}",
        partition,
        unread,
    )


def _check(bucket: str, offset: int, low: int, high: int) -> None:
    if offset < low:
        raise OffsetOutOfRange(f"bucket {bucket!r} starts at offset {low}; {offset} was trimmed: {_WHOLE}")
    if offset > high:
        raise OffsetOutOfRange(f"bucket {bucket!r} ends at offset {high}; {offset} is not written yet")
