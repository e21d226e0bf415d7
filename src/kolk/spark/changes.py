"""The changelog as a batch: a range of every bucket's log, with the change columns that Spark has names for.

A range is fixed when it is planned, which is when the frame is first used: the same frame shows the same changes
however often it is read, so that what was counted is what is written. The next part is a new ``load()`` that starts
where this one stopped. What the log no longer has is an error and never left out, also if it went after the range was
fixed: a range says which partition it is of, not only which name that has.
"""

from collections.abc import Generator, Mapping, Sequence

import pyarrow as pa

from kolk.client.table import Table
from kolk.errors import InvalidArgument, OffsetOutOfRange, PartitionDropped
from kolk.model.partition import PARTITIONS, matching, partition_of
from kolk.model.predicate import Predicate
from kolk.model.table import check_partitions_only
from kolk.spark.forms import Form, formed
from kolk.spark.log_slices import changes_of, dropped
from kolk.spark.offsets import LogSlice, numbers
from kolk.spark.places import EARLIEST, LATEST, Moment, place_of


def ranges_of(table: Table, where: Predicate | None, start: str | None, stop: str | None) -> list[LogSlice]:
    """What is read of each bucket, those left out of which nothing is."""
    check_partitions_only(table.info, where)
    service, info = table.link.service, table.info
    all_bounds = service.bounds(info.id)
    bounds = {name: found for name, found in all_bounds.items() if name != PARTITIONS}
    if where is not None:
        names = list(dict.fromkeys(partition_of(bucket) for bucket in bounds))
        wanted = set(matching(info.partition_columns, names, where))
        bounds = {bucket: found for bucket, found in bounds.items() if partition_of(bucket) in wanted}
    lows = {bucket: low for bucket, (low, _) in bounds.items()}
    highs = {bucket: high for bucket, (_, high) in bounds.items()}
    starts = lows | _places(table, start or EARLIEST, "start", lows, highs)
    stops = highs | _places(table, stop or LATEST, "stop", lows, highs)
    for bucket in bounds:
        _check(bucket, starts[bucket], lows[bucket], highs[bucket])
        _check(bucket, stops[bucket], 0, highs[bucket])
    wanted = {bucket: (starts[bucket], stops[bucket]) for bucket in bounds if starts[bucket] < stops[bucket]}
    return sliced(table, wanted, all_bounds.get(PARTITIONS, (0, 0))[1])


def sliced(table: Table, ranges: Mapping[str, tuple[int, int]], place: int) -> list[LogSlice]:
    """Ranges of buckets as slices of the partitions that had these names at a place in their record."""
    made: dict[str, int] = {}
    if table.info.is_partitioned:
        made = numbers((partition_of(bucket) for bucket in ranges), place, table.partitions())
    found: list[LogSlice] = []
    for bucket, (start, stop) in ranges.items():
        partition = partition_of(bucket)
        if partition and partition not in made:
            raise dropped(bucket)
        found.append(LogSlice(bucket=bucket, partition=made.get(partition, 0), start=start, stop=stop))
    return found


def changes(table: Table, ranges: Sequence[LogSlice], form: Form) -> Generator[pa.RecordBatch, None, None]:
    """The changes of some ranges in a form, in the version of the schema that the table handle speaks."""
    try:
        for batch in changes_of(table, ranges, table.schema.id):
            yield formed(batch, form)
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(
            f"changes that this frame is to show are gone ({error}): the log was trimmed, or the table truncated, since"
            " its range was fixed. Nothing is left out: read the whole table, and the changelog from there on"
        ) from error
    except PartitionDropped as error:
        raise PartitionDropped(
            f"{error}: a frame shows the changes of one range, however often it is read, and those of this partition"
            " are gone; load() it again to read the range as the table has it now",
            error.partition,
            error.unread,
        ) from error


def _places(table: Table, text: str, option: str, lows: dict[str, int], highs: dict[str, int]) -> dict[str, int]:
    place = place_of(option, text, (EARLIEST, LATEST))
    if isinstance(place, str):
        return lows if place == EARLIEST else highs
    if isinstance(place, Moment):
        found = table.link.service.offsets_at(table.info.id, place.ms)
    else:
        found = _known(table, place.by_bucket, option)
    return {bucket: offset for bucket, offset in found.items() if bucket in lows}


def _known(table: Table, given: Mapping[str, int], option: str) -> dict[str, int]:
    """Offsets of buckets that there are. Those of a partition that was made after them are of another one, which had
    its name."""
    found = {bucket: offset for bucket, offset in given.items() if bucket != PARTITIONS}
    if PARTITIONS in given:
        known = {each.name for each in table.partitions() if each.id < given[PARTITIONS]}
        found = {bucket: offset for bucket, offset in found.items() if partition_of(bucket) in known}
    known = {name for name in table.link.service.bounds(table.info.id) if name != PARTITIONS}
    unknown = next((bucket for bucket in found if bucket not in known), None)
    if unknown is not None:
        raise InvalidArgument(f"{option} names a bucket {unknown!r} that {table.name} does not have")
    return found


def _check(bucket: str, offset: int, low: int, high: int) -> None:
    if offset < low:
        raise OffsetOutOfRange(
            f"bucket {bucket!r} starts at offset {low}; {offset} was trimmed. Read the whole table, and the changelog"
            " from there on"
        )
    if offset > high:
        raise OffsetOutOfRange(f"bucket {bucket!r} ends at offset {high}; {offset} is not written yet")
