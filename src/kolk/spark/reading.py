"""The batch read: a DataFrame of a table, of which every action sees one moment, and each action the newest.

Spark asks for partitions once and keeps them for as long as there is the DataFrame, or the view. So they name shares of
whatever there is to read ("the second of four") and no scan, no moment, and no bucket: a later action reads what was
written since, also in partitions of the table that were made since. What is read is fixed by the tasks. The first that
comes opens a scan for all of them, by a name that is new with every run (``kolk.spark.runs``); the others find it,
and so does a task that is tried again. If it is gone by then the task fails, for another moment would be wrong.

Nobody tells a source that a query is over. So the scan gives way: once everything was read it is kept only a while for
tasks that are tried again, and nobody else is ever refused for it (docs/decisions/0025).

Filters are not taken from Spark, on purpose: what its interface hands to one query stays behind for the next. They are
options.
"""

import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kolk.client.last_rows import last_of
from kolk.client.service import ScanPages
from kolk.client.table import Table
from kolk.errors import KolkError, OffsetOutOfRange, PartitionDropped, TableNotFound, UnknownOrExpiredScan
from kolk.model.partition import PARTITIONS, matching, partition_of
from kolk.model.scan import ScanRequest, ScanSource
from kolk.model.schema import CHANGE_COLUMN_NAMES
from kolk.runtime.rng import Rng
from kolk.spark import connections
from kolk.spark.asking import CHANGELOG, LEASE, SNAPSHOT, Asked
from kolk.spark.batches import regrouped
from kolk.spark.changes import changes, made_at, ranges_of, sliced
from kolk.spark.log_slices import changes_of
from kolk.spark.offsets import LogSlice
from kolk.spark.options import Options, passes_over_dropped
from kolk.spark.runs import nonce_of, this_run
from kolk.spark.types import arrow_schema

CUT_TTL = "10m"
CUT_LINGER = "2m"
_PER_CORE = 2
_SOURCES = {SNAPSHOT: ScanSource.SNAPSHOT, LEASE: ScanSource.LEASE}


@dataclass(frozen=True, slots=True)
class Share:
    """What one task reads of a table, in the version that it had when this was planned: the ``number``th of ``count``
    shares. Of a changelog, of which the plan fixes what is read, it is some ``ranges``."""

    number: int
    count: int
    plan: str
    table: int
    schema_id: int
    ranges: tuple[LogSlice, ...] | None = None


class Reader(DataSourceReader):
    """A batch read of the columns that ``schema`` names. It holds nothing that happens: Spark pickles it as it is."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The shares. Everything that can be wrong with the options is found here, before a task starts."""
        return [InputPartition(share) for share in planned(self._options, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one share; what is open is closed when the reader stops, wherever it does."""
        share = partition.value
        assert isinstance(share, Share), "as partitions() made it"
        return read(self._options, self._schema, share, this_run(share.plan))


def planned(options: Options, schema: StructType) -> list[Share]:
    """The shares of a read."""
    table = connections.table(options)
    asked = Asked.of(options, table.info)
    asked.check(schema)
    first = Share(0, 1, f"{Rng().id128():032x}", table.info.id, table.schema.id)
    if asked.kind == CHANGELOG:
        ranges = ranges_of(
            table,
            asked.where,
            options.text("start"),
            options.text("stop"),
            passes_over_dropped=passes_over_dropped(options),
        )
        count = _count(options, len(ranges))
        return [
            replace(first, number=number, count=count, ranges=tuple(ranges[number::count])) for number in range(count)
        ]
    _request(table, options, schema, asked, "")
    # So many rows in all: no task knows how many the others have, so one of them has them all.
    count = 1 if asked.limit is not None else _count(options, _buckets(table))
    return [replace(first, number=number, count=count) for number in range(count)]


def read(options: Options, schema: StructType, share: Share, run: str) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a share, as the run of this name sees them."""
    table = _as_planned(connections.table(options), share)
    asked = Asked.of(options, table.info)
    if share.ranges is not None:
        pages = changes(table, share.ranges, asked.form, passes_over_dropped=passes_over_dropped(options))
    elif table.info.is_log:
        pages = _logged(table, asked, _request(table, options, schema, asked, run), share)
    else:
        pages = _scanned(table, _request(table, options, schema, asked, run), share)
    try:
        yield from regrouped(pages, arrow_schema(schema))
    except UnknownOrExpiredScan as lost:
        raise UnknownOrExpiredScan(
            f"the moment that this query reads of {table.name} is gone ({lost}). Run the action again: it will read"
            " another moment. If its tasks wait long for their turn, .option('cut-ttl', '1h') keeps it for longer, and"
            " .option('cut-linger', '1h') also after all of it was read once",
            lost.reason,
        ) from lost
    finally:
        pages.close()


def _scanned(table: Table, request: ScanRequest, share: Share) -> Generator[pa.RecordBatch, None, None]:
    """A share of the rows by key."""
    cut = table.link.service.open_scan(table.info.id, request)
    buckets = _own(cut.offsets, share)
    if cut.id and buckets:
        with table.join_scan(cut.id, buckets=buckets) as scan:
            yield from scan


def _logged(table: Table, asked: Asked, request: ScanRequest, share: Share) -> Generator[pa.RecordBatch, None, None]:
    """A share of a log table: what lies between the starts and the ends of its buckets that all tasks agree on. Nobody
    keeps it for them, so what is gone when it is read takes the moment with it."""
    cut = table.link.service.open_scan(table.info.id, replace(request, limit=None, names=None, where=None))
    try:
        ranges = _ranges(table, asked, cut)
        slices = sliced(ranges, made_at(table, ranges, cut.offsets.get(PARTITIONS, 0)))
        if asked.limit is not None:
            found = list(changes_of(table, slices, table.schema.id))
            yield from last_of(found, table.schema.arrow_of(request.names), asked.limit).to_batches()
            return
        for batch in changes_of(table, slices[share.number :: share.count], table.schema.id):
            rows = batch.drop_columns(list(CHANGE_COLUMN_NAMES))
            yield rows if asked.where is None else rows.filter(pa.array(asked.where.mask(rows)))
    except OffsetOutOfRange as lost:
        raise OffsetOutOfRange(_log_gone(table, lost)) from lost
    except PartitionDropped as lost:
        raise PartitionDropped(_log_gone(table, lost), lost.partition, lost.unread) from lost


def _ranges(table: Table, asked: Asked, cut: ScanPages) -> dict[str, tuple[int, int]]:
    """What a log table had at the moment of a cut, of the partitions that are asked for; with a limit, what can be
    among the last rows."""
    partitions = list(dict.fromkeys(partition_of(bucket) for bucket in cut.offsets if bucket != PARTITIONS))
    if table.info.is_partitioned:
        partitions = matching(table.info.partition_columns, partitions, asked.where)
    found: dict[str, tuple[int, int]] = {}
    for bucket, stop in cut.offsets.items():
        start = max(cut.starts.get(bucket, 0), 0 if asked.limit is None else stop - asked.limit)
        if bucket != PARTITIONS and partition_of(bucket) in partitions and start < stop:
            found[bucket] = (start, stop)
    return found


def _log_gone(table: Table, lost: KolkError) -> str:
    return (
        f"the moment that this query reads of {table.name} is gone ({lost}). Run the action again: it will read another"
        " moment. A log table keeps nothing for its readers; if its rows go by their age while queries run, let"
        " 'table.log.ttl' be longer"
    )


def _request(table: Table, options: Options, schema: StructType, asked: Asked, run: str) -> ScanRequest:
    """What the server is asked for, by all tasks of a run alike."""
    source = _SOURCES.get(asked.kind, ScanSource.LIVE)
    where = None if asked.where is None else asked.where.text
    names = tuple(schema.names)
    said = (str(table.info.name), table.info.id, table.schema.id, names, where, asked.limit, asked.kind, asked.lease)
    return ScanRequest(
        names=names,
        limit=asked.limit,
        where=asked.where,
        schema_id=table.schema.id,
        nonce=nonce_of(run, *said),
        is_shared=True,
        ttl_seconds=options.seconds("cut-ttl", CUT_TTL),
        linger_seconds=options.seconds("cut-linger", CUT_LINGER),
        source=source,
        lease=asked.lease,
    )


def _as_planned(table: Table, share: Share) -> Table:
    """The table in the version that was planned, whatever was altered since."""
    info = table.info
    if info.id != share.table:
        raise TableNotFound(f"{table.name} was dropped since this frame was made, and there is another one; load it")
    if info.schema.id == share.schema_id:
        return table
    schema = table.link.service.schema(info.id, share.schema_id)
    return Table(table.link, replace(info, spec=replace(info.spec, schema=schema)))


def _own(offsets: dict[str, int], share: Share) -> list[str]:
    """The buckets of a share: every so manieth."""
    return [bucket for bucket in offsets if bucket != PARTITIONS][share.number :: share.count]


def _buckets(table: Table) -> int:
    """How many buckets there are now; of a table without any partition, how many its first one will have."""
    parts = len(table.partitions()) if table.info.is_partitioned else 1
    return table.info.spec.buckets * max(parts, 1)


def _count(options: Options, most: int) -> int:
    """How many tasks: each costs Spark about 0.1 s, so a few for each core, and no more than there is to do."""
    wanted = options.number("parallelism") or _PER_CORE * (os.cpu_count() or 1)
    return max(min(wanted, most), 1)
