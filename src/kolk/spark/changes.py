"""The changelog as a batch: a range of every bucket's log, with the change columns that Spark has names for.

A range is fixed when it is planned, which is when the frame is first used: the same frame shows the same changes
however often it is read, so that what was counted is what is written. The next part is a new ``load()`` that starts
where this one stopped. What the log no longer has is an error and never left out.
"""

import datetime
import json
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

EARLIEST, LATEST = "earliest", "latest"
_LIKE = '{"0": 17}'


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
    if text.lower() == EARLIEST:
        return lows
    if text.lower() == LATEST:
        return highs
    if text.lstrip().startswith("{"):
        return _offsets(table, text, option, lows)
    moment = _moment(text, option)
    found = table.link.service.offsets_at(table.info.id, int(moment.timestamp() * 1_000))
    return {bucket: offset for bucket, offset in found.items() if bucket in lows}


def _offsets(table: Table, text: str, option: str, lows: Mapping[str, int]) -> dict[str, int]:
    """Offsets by bucket. Those of a partition that was made after them are of another one, which had its name."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"the option {option!r} is not JSON: {error}; offsets are such as {_LIKE}") from None
    if not all(type(offset) is int and offset >= 0 for offset in given.values()):
        raise InvalidArgument(f"the option {option!r} maps buckets to whole numbers, such as {_LIKE}")
    position = given.pop(PARTITIONS, None)
    if position is not None:
        known = {each.name for each in table.partitions() if each.id < position}
        given = {bucket: offset for bucket, offset in given.items() if partition_of(bucket) in known}
    known = {name for name in table.link.service.bounds(table.info.id) if name != PARTITIONS}
    unknown = next((bucket for bucket in given if bucket not in known), None)
    if unknown is not None:
        raise InvalidArgument(f"the option {option!r} names a bucket {unknown!r} that {table.name} does not have")
    return {bucket: offset for bucket, offset in given.items() if bucket in lows}


def _moment(text: str, option: str) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(
            f"the option {option!r} is earliest, latest, a time such as 2026-11-15T08:00:00Z, or offsets such as"
            f" {_LIKE}, not {text[:60]!r}"
        ) from None
    if found.tzinfo is None:
        raise InvalidArgument(f"the time in the option {option!r} needs a zone: {text.strip()}Z, or +05:30 at its end")
    return found


def _check(bucket: str, offset: int, low: int, high: int) -> None:
    if offset < low:
        raise OffsetOutOfRange(
            f"bucket {bucket!r} starts at offset {low}; {offset} was trimmed. Read the whole table, and the changelog"
            " from there on"
        )
    if offset > high:
        raise OffsetOutOfRange(f"bucket {bucket!r} ends at offset {high}; {offset} is not written yet")
