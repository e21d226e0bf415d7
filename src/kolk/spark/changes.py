"""The changelog as a batch: a range of every bucket's log, with the change columns that Spark has names for.

A range is fixed when it is planned, which is when the frame is first used: the same frame shows the same changes
however often it is read, so that what was counted is what is written. The next part is a new ``load()`` that starts
where this one stopped. What the log no longer has is an error and never left out.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kolk.client.changelog import Changelog
from kolk.client.table import Table
from kolk.errors import InvalidArgument, OffsetOutOfRange
from kolk.model.partition import PARTITIONS, matching, partition_of
from kolk.model.predicate import Predicate
from kolk.model.table import check_partitions_only
from kolk.spark.forms import Form, formed
from kolk.spark.places import EARLIEST, LATEST, Moment, place_of


@dataclass(frozen=True, slots=True)
class Range:
    """Some of a bucket's log; ``stop`` is the first offset that is not read."""

    bucket: str
    start: int
    stop: int


def ranges_of(table: Table, where: Predicate | None, start: str | None, stop: str | None) -> list[Range]:
    """What is read of each bucket, those left out of which nothing is."""
    check_partitions_only(table.info, where)
    service, info = table.link.service, table.info
    bounds = {name: found for name, found in service.bounds(info.id).items() if name != PARTITIONS}
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
    found = [Range(bucket, starts[bucket], stops[bucket]) for bucket in bounds]
    return [each for each in found if each.start < each.stop]


def changes(table: Table, ranges: Sequence[Range], form: Form) -> Generator[pa.RecordBatch, None, None]:
    """The changes of some ranges in a form, in the version of the schema that the table handle speaks."""
    if not ranges:
        return
    log = Changelog(
        table.link,
        table.info,
        start={each.bucket: each.start for each in ranges},
        stop={each.bucket: each.stop for each in ranges},
        buckets=[each.bucket for each in ranges],
        schema=table.schema.id,
    )
    with log:
        for batch in log:
            yield formed(batch, form)


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
