"""A scan of a log table: its last rows. It has no rows by key to pin, and its changelog holds all of it already."""

from collections import deque
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kolk.client.changelog import Changelog, ignored
from kolk.client.link import Link
from kolk.errors import InvalidArgument
from kolk.model.partition import PARTITIONS
from kolk.model.scan import Resumed, ScanPage, ScanRequest
from kolk.model.schema import CHANGE_COLUMN_NAMES
from kolk.model.table import TableInfo

ROWS_MAX = 1_000_000
_COMMIT_TIMESTAMP = CHANGE_COLUMN_NAMES[2]


class LastRows:
    """See ``ScanPages``: all pages are there already. Confined to one reader."""

    def __init__(self, offsets: Mapping[str, int], rows: pa.Table) -> None:
        self.id = ""
        self.offsets = dict(offsets)
        self.schema = rows.schema
        self.estimate: int | None = rows.num_rows
        self.resumed: Resumed | None = None
        self.pins: dict[str, int] | None = None
        self.is_consistent = True
        self.starts: dict[str, int] = {}
        # One, unless it would be more than Arrow holds in one array.
        self._left = deque(rows.combine_chunks().to_batches())

    def next(self) -> ScanPage | None:
        """See ``ScanPages``."""
        if not self._left:
            return None
        batch = self._left.popleft()
        return ScanPage(batch, (), "", is_last=not self._left)

    def close(self) -> None:
        """See ``ScanPages``; nothing is held."""


def last_rows(link: Link, info: TableInfo, request: ScanRequest) -> LastRows:
    """The last rows of a log table, or of some buckets, by the time of their commit; within a bucket in its order."""
    if request.limit is None or request.limit > ROWS_MAX:
        raise InvalidArgument(
            f"{info.name} is a log table, and a scan of it shows its last rows: give limit= up to {ROWS_MAX:,}, or read"
            " it with table.changelog()"
        )
    bounds = link.service.bounds(info.id)
    ends = {name: end for name, (_, end) in bounds.items()}
    starts = {name: max(start, end - request.limit) for name, (start, end) in bounds.items() if name != PARTITIONS}
    places = {PARTITIONS: ends[PARTITIONS]} if PARTITIONS in ends else {}
    log = Changelog(
        link,
        info,
        start=starts | places,
        stop=ends,
        buckets=request.buckets,
        where=request.where,
        schema=info.schema.id,
        on_partition=ignored,
    )
    with log:
        batches = list(log)
    return LastRows(ends, last_of(batches, info.schema.arrow_of(request.names), request.limit))


def last_of(changes: Sequence[pa.RecordBatch], shown: pa.Schema, limit: int) -> pa.Table:
    """The last of some changes, by the time of their commit, as rows with these columns."""
    if not changes:
        return pa.Table.from_batches([], shown)
    rows = pa.Table.from_batches(changes)
    order = pc.sort_indices(rows[_COMMIT_TIMESTAMP])[-limit:] if limit else pa.array([], pa.int64())
    return rows.take(order).select(shown.names).cast(shown)
