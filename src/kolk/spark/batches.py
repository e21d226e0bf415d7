"""Batches as Spark likes them: some ten thousand rows each, of the types that it wants, and never too many bytes.

What a task has in memory is bounded: the pages of one batch, the batch that is made of them, and what the transport has
under way, which is a page or two. So there is one size that says it all, ``BATCH_BYTES``.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from kolk.spark.types import shown

BATCH_ROWS = 65_536
BATCH_BYTES = 8 * 2**20
_BYTES_MAX = 16 * 2**20
_ROWS_MAX = 131_072


def regrouped(pages: Iterable[pa.RecordBatch], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of a good size, as Spark wants them."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for page in pages:
        if not page.num_rows:
            continue
        batch = shown(page, wanted)
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from _split(_joined(waiting))
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in halves of halves, until none is too large; a row that is too large by itself stays whole."""
    if batch.num_rows <= 1 or (batch.num_rows <= _ROWS_MAX and batch.nbytes <= _BYTES_MAX):
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _split(batch.slice(0, middle))
    yield from _split(batch.slice(middle))
