"""A bucket's log, read as a changelog.

Frames become batches with the change columns that readers know, in front of the table's own: ``_change_type``
(+I -U +U -D), ``_log_offset``, ``_commit_timestamp`` and ``_bucket``. Small frames are read together. Nothing past the
published end is ever shown, and frames without rows are passed over.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kolk.errors import OffsetOutOfRange
from kolk.merge.changes import change_schema
from kolk.model.change import SYMBOLS
from kolk.model.page import ChangelogPage
from kolk.model.schema import CHANGE_COLUMN_NAMES, Schema
from kolk.storage.segment_reader import Frame
from kolk.tablet.tablet import Tablet

_TYPES = (pa.string(), pa.int64(), pa.timestamp("ms", "UTC"), pa.string())
CHANGE_COLUMNS = tuple(
    pa.field(name, type, nullable=False) for name, type in zip(CHANGE_COLUMN_NAMES, _TYPES, strict=True)
)
PAGE_BYTES = 4 * 2**20
_SYMBOLS = pa.array(SYMBOLS)


def changelog_schema(schema: Schema) -> pa.Schema:
    """The schema of a table's changelog."""
    return pa.schema([*CHANGE_COLUMNS, *schema.arrow])


def read_changelog(tablet: Tablet, offset: int, stop: int | None = None) -> ChangelogPage:
    """The next changes from ``offset`` on, below ``stop`` and the published end."""
    end = tablet.end
    if offset > end:
        # Nothing yet would be a lie: what is written up to there was never shown to this reader.
        raise OffsetOutOfRange(f"bucket {tablet.bucket.name!r} ends at offset {end}; {offset} is not written yet")
    until = end if stop is None else min(stop, end)
    if offset >= until:
        return ChangelogPage(None, offset)
    frames = [frame for frame in tablet.read_log(offset, until, PAGE_BYTES) if frame.header.rows]
    first, last = frames[0].header.base_offset, frames[-1].header.end_offset
    batch = _batch(frames, tablet.bucket.name, tablet.merger.schema)
    start, end = max(offset, first), min(last, until)
    return ChangelogPage(batch.slice(start - first, end - start), end)


def _batch(frames: Sequence[Frame], bucket: str, schema: Schema) -> pa.RecordBatch:
    stored = change_schema(schema)
    rows = pa.concat_batches([pa.ipc.read_record_batch(frame.body, stored) for frame in frames])
    counts = [frame.header.rows for frame in frames]
    stamps = np.repeat(np.array([frame.header.timestamp_ms for frame in frames], "i8"), counts)
    offsets = np.arange(frames[0].header.base_offset, frames[-1].header.end_offset)
    arrays = [
        _SYMBOLS.take(rows.column(0)),
        pa.array(offsets, pa.int64()),
        pa.array(stamps, pa.timestamp("ms", "UTC")),
        pa.repeat(bucket, rows.num_rows),
        *rows.columns[1:],
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=changelog_schema(schema))
