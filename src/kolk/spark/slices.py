"""What a task of a streaming read does: it reads its slices, one after the other, and hands them to Spark.

A slice says by itself which rows it has, so a task that is tried again reads the same. A partition that was made anew
has a log of its own under the same name; so a task looks before it reads, and looks again at its end: whatever it was
handed is worth nothing if there is another one by then.

Refused is what is not there any more: a log that was trimmed, a snapshot whose lease is gone, a partition that was
dropped in the middle, unless the query is told to pass over those.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kolk.client.kept_scan import KeptPages
from kolk.client.service import Service
from kolk.client.table import Table
from kolk.errors import (
    KolkError,
    LeaseLost,
    OffsetOutOfRange,
    PartitionDropped,
    PartitionNotFound,
    SnapshotNotFound,
    TableNotFound,
    UnknownOrExpiredScan,
)
from kolk.model.ids import TableId
from kolk.model.partition import PartitionEvent, partition_of
from kolk.model.scan import ScanRequest, ScanSource
from kolk.model.schema import CHANGE_COLUMN_NAMES
from kolk.spark.batches import regrouped
from kolk.spark.forms import Form, as_insertions, formed
from kolk.spark.offsets import LogSlice, Slice, SnapshotSlice

_WAITS_MAX = 60
"""How often a task is told that there is nothing yet, about once a second, of a log that had it before."""
ANEW = "start the query with a new checkpoint and .option('start', 'full') to begin again with all rows"


@dataclass(frozen=True, slots=True)
class StreamPart(InputPartition):
    """The slices of one task, and the version of the table that they are shown in."""

    slices: tuple[Slice, ...]
    table: int
    schema_id: int
    passes_over_dropped: bool = False


def read_part(
    table: Table, part: StreamPart, names: Sequence[str], form: Form, wanted: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, as Spark wants them."""
    if table.info.id != part.table:
        raise gone(table.name)
    alive = _alive(table, part)
    batches = (batch for each in part.slices for batch in _read(table, part, each, alive, names, form))
    yield from regrouped(batches, wanted)
    _check_same(part, alive, _alive(table, part))


def gone(name: str) -> TableNotFound:
    """The table of a checkpoint was dropped, and there is another one of its name."""
    return TableNotFound(
        f"the table {name} is not the one that this query has read: it was dropped and made anew; {ANEW}"
    )


def snapshot_pages(
    service: Service,
    table: TableId,
    schema_id: int,
    bucket: str,
    snapshot: int,
    *,
    place: int | None,
    token: str,
    stop: int | None,
    names: Sequence[str],
) -> KeptPages:
    """The rows of a bucket's snapshot from a token on, up to so many from its beginning. They are in the order of their
    keys, whoever asks."""
    request = ScanRequest(
        names=tuple(names) or None,
        limit=stop,
        schema_id=schema_id,
        buckets=(bucket,),
        resume=token,
        source=ScanSource.SNAPSHOT,
        pins=((bucket, snapshot),),
        position=place,
    )
    try:
        return KeptPages(service, table, request)
    except (SnapshotNotFound, LeaseLost) as error:
        raise snapshot_lost(bucket, error) from error


def snapshot_lost(what: str, error: KolkError) -> LeaseLost:
    """The rows that a query begins with are not kept any more."""
    return LeaseLost(
        f"the snapshot that this query was in the middle of reading is gone ({what}: {error}): its lease has expired,"
        f" because the query was down for longer than 'lease-ttl', or was dropped; {ANEW}",
        error.reason if isinstance(error, LeaseLost) else "expired",
    )


def log_lost(error: OffsetOutOfRange) -> OffsetOutOfRange:
    """The changes that a query needs are not there."""
    return OffsetOutOfRange(
        f"changes that this query has yet to read are gone ({error}): it was down for longer than its follower is kept,"
        f" or the follower was dropped, or the table was truncated. Nothing is skipped: {ANEW}"
    )


def _read(
    table: Table, part: StreamPart, each: Slice, alive: Mapping[str, int], names: Sequence[str], form: Form
) -> Iterator[pa.RecordBatch]:
    try:
        if isinstance(each, SnapshotSlice):
            yield from _rows(table, part, each, names, form)
        elif not each.partition or alive.get(partition_of(each.bucket)) == each.partition:
            yield from _changes(table, part, each, names, form)
        else:
            raise _dropped(each.bucket)
    except PartitionDropped:
        if not part.passes_over_dropped:
            raise


def _rows(
    table: Table, part: StreamPart, each: SnapshotSlice, names: Sequence[str], form: Form
) -> Iterator[pa.RecordBatch]:
    pages = snapshot_pages(
        table.link.service,
        table.info.id,
        part.schema_id,
        each.bucket,
        each.snapshot,
        place=each.place,
        token=each.token,
        stop=each.stop,
        names=names,
    )
    try:
        while (page := pages.next()) is not None:
            if page.event is not None:
                raise page.event.error
            if page.batch is not None and page.batch.num_rows:
                yield as_insertions(page.batch, form, each.bucket, each.offset - 1, each.leased_ms)
    except (SnapshotNotFound, UnknownOrExpiredScan) as error:
        raise snapshot_lost(each.bucket, error) from error
    finally:
        pages.close()


def _changes(
    table: Table, part: StreamPart, each: LogSlice, names: Sequence[str], form: Form
) -> Iterator[pa.RecordBatch]:
    starts, stops = {each.bucket: each.start}, {each.bucket: each.stop}
    pages = table.link.service.open_changes(table.info.id, starts, stops, None, part.schema_id)
    offset, waits = each.start, 0
    try:
        while offset < each.stop:
            found = pages.next(1.0)
            if isinstance(found, PartitionEvent):
                raise _dropped(each.bucket)
            if found is None:
                waits += 1
                _check_waits(each, offset, waits)
                continue
            offset, waits = found[1].next_offset, 0
            batch = found[1].batch
            if batch is not None:
                kept = [name for name in batch.schema.names if name in CHANGE_COLUMN_NAMES or name in names]
                yield formed(batch.select(kept), form)
    except OffsetOutOfRange as error:
        raise log_lost(error) from error
    except PartitionNotFound as error:
        raise _dropped(each.bucket) from error
    finally:
        pages.close()


def _alive(table: Table, part: StreamPart) -> dict[str, int]:
    """The numbers of the partitions that there are, if the slices are of any."""
    if not any(isinstance(each, LogSlice) and each.partition for each in part.slices):
        return {}
    return {found.name: found.id for found in table.partitions()}


def _check_same(part: StreamPart, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Refuse what was read if a partition was made anew meanwhile: some of it may be of the new one."""
    for each in part.slices:
        name = partition_of(each.bucket)
        if isinstance(each, LogSlice) and before.get(name) == each.partition != after.get(name, each.partition):
            raise _dropped(each.bucket)


def _dropped(bucket: str) -> PartitionDropped:
    name = partition_of(bucket)
    return PartitionDropped(
        f"the partition {name} was dropped while a query read it; .option('dropped-partitions', 'ignore') passes over"
        f" what cannot be read any more, or {ANEW}",
        name,
        None,
    )


def _check_waits(each: LogSlice, offset: int, waits: int) -> None:
    if waits >= _WAITS_MAX:
        raise OffsetOutOfRange(
            f"bucket {each.bucket!r} has had changes up to offset {each.stop}, and ends at {offset} now: its log has"
            f" lost what was not synced; {ANEW}"
        )
