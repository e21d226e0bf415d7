"""A bucket's log, read as a changelog.

Frames become batches with the change columns that readers know, in front of the table's own: ``_change_type``
(+I -U +U -D), ``_log_offset``, ``_commit_timestamp`` and ``_bucket``. Small frames are read together. Nothing past the
published end is ever shown, and frames without rows are passed over. A page is of one version of the table's schema:
the one that its frames were written with, or one that is asked for, to which they are then translated.
"""

from collections.abc import Sequence
from itertools import groupby, takewhile

import numpy as np
import pyarrow as pa

from kolk.errors import Corrupted, OffsetOutOfRange
from kolk.merge.changes import change_schema
from kolk.model.change import SYMBOLS
from kolk.model.page import ChangelogPage, changelog_schema
from kolk.model.schema import Schema
from kolk.model.translation import translated
from kolk.model.versions import Versions
from kolk.storage.segment_reader import Frame
from kolk.tablet.tablet import Tablet

PAGE_BYTES = 4 * 2**20
_SYMBOLS = pa.array(SYMBOLS)


def read_changelog(tablet: Tablet, offset: int, stop: int | None = None, schema: Schema | None = None) -> ChangelogPage:
    """The next changes from ``offset`` on, below ``stop`` and the published end.

    They are shown in this version of the schema; without one, in that of the first of them, as far as it goes.
    """
    end = tablet.end
    if offset > end:
        # Nothing yet would be a lie: what is written up to there was never shown to this reader.
        raise OffsetOutOfRange(f"bucket {tablet.bucket.name!r} ends at offset {end}; {offset} is not written yet")
    until = end if stop is None else min(stop, end)
    if offset >= until:
        return ChangelogPage(None, offset)
    frames = tablet.read_log(offset, until, PAGE_BYTES)
    # Asked for after the frames were read, so that it knows their versions.
    versions = tablet.merger.versions
    if schema is None:
        schema = _version(versions, frames[0])
        frames = list(takewhile(lambda frame: frame.header.schema_id == schema.id, frames))
    first, last = frames[0].header.base_offset, frames[-1].header.end_offset
    batch = _batch(frames, tablet.bucket.name, versions, schema)
    start, end = max(offset, first), min(last, until)
    return ChangelogPage(batch.slice(start - first, end - start), end, schema.id)


def _version(versions: Versions, frame: Frame) -> Schema:
    found = versions.find(frame.header.schema_id)
    if found is None:
        raise Corrupted(
            f"a log frame names version {frame.header.schema_id} of the schema, which the table never had; restore the"
            " folder from a backup"
        )
    return found


def _rows(frames: Sequence[Frame], versions: Versions, schema: Schema) -> pa.RecordBatch:
    """The rows of frames of one version, behind their operations, in another version."""
    written = _version(versions, frames[0])
    stored = change_schema(written)
    rows = pa.concat_batches([pa.ipc.read_record_batch(frame.body, stored) for frame in frames])
    if written.id == schema.id:
        return rows
    table = pa.RecordBatch.from_arrays(rows.columns[1:], schema=written.arrow)
    shown = translated(table, written, schema.columns)
    return pa.RecordBatch.from_arrays([rows.column(0), *shown.columns], schema=change_schema(schema))


def _batch(frames: Sequence[Frame], bucket: str, versions: Versions, schema: Schema) -> pa.RecordBatch:
    alike = (list(group) for _, group in groupby(frames, key=lambda frame: frame.header.schema_id))
    parts = [_rows(group, versions, schema) for group in alike]
    rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
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
