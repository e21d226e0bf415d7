"""Slices of logs, read exactly: all the changes that a slice names, of the very partition that it names, or an error.

Streams and batches plan slices at one time and read them at another, perhaps several times. In between a log may be
trimmed, its tail lost, a partition dropped or made anew. One that was made anew has a log of its own under the same
name; so whoever reads looks at its number before, and looks again at the end: whatever was handed out is worth nothing
if there is another one by then.

What to do about an error depends on who reads, so the texts here only say what has happened.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence

import pyarrow as pa

from kolk.client.table import Table
from kolk.errors import OffsetOutOfRange, PartitionDropped, PartitionNotFound
from kolk.model.partition import PartitionEvent, partition_of
from kolk.spark.offsets import LogSlice

_WAITS_MAX = 60
"""How often a task is told that there is nothing yet, about once a second, of a log that has what it waits for."""


def changes_of(
    table: Table, slices: Sequence[LogSlice], schema_id: int, *, passes_over_dropped: bool = False
) -> Generator[pa.RecordBatch, None, None]:
    """The changes of some slices, one slice after the other, in a version of the schema and with the change columns."""
    before = _alive(table, slices)
    for each in slices:
        try:
            if each.partition and before.get(partition_of(each.bucket)) != each.partition:
                raise dropped(each.bucket)
            yield from _changes(table, each, schema_id)
        except PartitionDropped:
            if not passes_over_dropped:
                raise
    _check_same(slices, before, _alive(table, slices))


def dropped(bucket: str) -> PartitionDropped:
    """The partition of a bucket is gone, or there is another one of its name."""
    name = partition_of(bucket)
    return PartitionDropped(f"the partition {name} was dropped while a query read it", name, None)


def _changes(table: Table, each: LogSlice, schema_id: int) -> Generator[pa.RecordBatch, None, None]:
    starts, stops = {each.bucket: each.start}, {each.bucket: each.stop}
    offset, waits = each.start, 0
    try:
        pages = table.link.service.open_changes(table.info.id, starts, stops, None, schema_id)
        try:
            while offset < each.stop:
                found = pages.next(1.0)
                if isinstance(found, PartitionEvent):
                    raise dropped(each.bucket)
                if found is None:
                    waits += 1
                    _check_end(table, each, waits)
                    continue
                offset, waits = found[1].next_offset, 0
                if found[1].batch is not None:
                    yield found[1].batch
        finally:
            pages.close()
    except PartitionNotFound as error:
        raise dropped(each.bucket) from error


def _check_end(table: Table, each: LogSlice, waits: int) -> None:
    """There is nothing to read just now. The log has had all of the slice before, so it is late, or lost."""
    bounds = table.link.service.bounds(table.info.id).get(each.bucket)
    if bounds is not None and bounds[1] < each.stop:
        raise OffsetOutOfRange(
            f"bucket {each.bucket!r} has had changes up to offset {each.stop}, and ends at {bounds[1]} now: its log has"
            " lost what was not synced"
        )
    if waits >= _WAITS_MAX:
        raise OffsetOutOfRange(f"bucket {each.bucket!r} does not hand out its changes up to offset {each.stop}")


def _alive(table: Table, slices: Iterable[LogSlice]) -> dict[str, int]:
    """The numbers of the partitions that there are, if the slices are of any."""
    if not any(each.partition for each in slices):
        return {}
    return {found.name: found.id for found in table.partitions()}


def _check_same(slices: Iterable[LogSlice], before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Refuse what was read if a partition was made anew meanwhile: some of it may be of the new one."""
    for each in slices:
        name = partition_of(each.bucket)
        if before.get(name) == each.partition != after.get(name, each.partition):
            raise dropped(each.bucket)
