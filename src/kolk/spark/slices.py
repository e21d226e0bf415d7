"""What a task of a streaming read does: it reads its slices, one after the other, and hands them to Spark.

A slice says by itself which rows it has, so a task that is tried again reads the same.

Refused is what is not there any more: a log that was trimmed, a snapshot whose lease is gone, a partition that was
dropped in the middle, unless the query is told to pass over those.
"""

from collections.abc import Iterator, Sequence
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
    SnapshotNotFound,
    TableNotFound,
    UnknownOrExpiredScan,
)
from kolk.model.ids import TableId
from kolk.model.scan import ScanRequest, ScanSource
from kolk.model.schema import CHANGE_COLUMN_NAMES
from kolk.spark.batches import regrouped
from kolk.spark.forms import Form, as_insertions, formed
from kolk.spark.log_slices import changes_of
from kolk.spark.offsets import LogSlice, Slice, SnapshotSlice

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
    yield from regrouped(_read(table, part, names, form), wanted)


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


def _read(table: Table, part: StreamPart, names: Sequence[str], form: Form) -> Iterator[pa.RecordBatch]:
    for each in part.slices:
        try:
            if isinstance(each, SnapshotSlice):
                yield from _rows(table, part, each, names, form)
        except PartitionDropped:
            if not part.passes_over_dropped:
                raise
    logs = [each for each in part.slices if isinstance(each, LogSlice)]
    try:
        for batch in changes_of(table, logs, part.schema_id, passes_over_dropped=part.passes_over_dropped):
            kept = [name for name in batch.schema.names if name in CHANGE_COLUMN_NAMES or name in names]
            yield formed(batch.select(kept), form)
    except OffsetOutOfRange as error:
        raise log_lost(error) from error
    except PartitionDropped as error:
        raise PartitionDropped(
            f"{error}; .option('dropped-partitions', 'ignore') passes over what cannot be read any more, or {ANEW}",
            error.partition,
            error.unread,
        ) from error


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
