"""A checksum of rows that does not depend on their order, nor on how they are cut into batches.

The hash of every row, added up. That of a row is the sum of its words, each folded and multiplied by a key of its
place, mixed in the end: a few passes over all words at once. It tells whether two attempts of the same work gave the
same rows; it is no signature, and whoever wants to may find rows of the same sum.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.codec.buffers import binary_of, binary_offsets, joined, octets_of
from kolk.codec.fields import Fields
from kolk.model.schema import Column

Words = NDArray[np.uint64]

_MASK = 2**63 - 1
_WORD_BYTES = 8
_ROWS = 16_384
"""So many rows at a time stay in the processor's cache."""
_PRIME_1, _PRIME_2, _PRIME_3 = map(np.uint64, (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


def checksum_of(rows: pa.RecordBatch, columns: Sequence[Column]) -> int:
    """The checksum of rows with exactly these columns."""
    total = 0
    for hashes in _pieces(rows, columns):
        total = added(total, int(hashes.sum(dtype=np.uint64)))
    return total


def row_hashes(rows: pa.RecordBatch, columns: Sequence[Column]) -> Words:
    """The hash of each row, for those who compare it at once and keep it nowhere: it may change."""
    return np.concatenate([np.zeros(0, np.uint64), *_pieces(rows, columns)])


def added(one: int, other: int) -> int:
    """The checksum of the rows of both."""
    return (one + other) & _MASK


def _pieces(rows: pa.RecordBatch, columns: Sequence[Column]) -> Iterator[Words]:
    """The hashes of rows, some of them at a time."""
    fields = Fields(columns)
    for start in range(0, rows.num_rows, _ROWS):
        piece = rows.slice(start, _ROWS)
        yield hashes_of(fields.parts(np.zeros(piece.num_rows, fields.head), piece.columns))


def hashes_of(parts: Sequence[pa.BinaryArray]) -> Words:
    """The hash of each row, given its parts. Zeros at the end do not count, unless the parts say how long they are."""
    lengths = sum(np.diff(binary_offsets(part)).astype(np.int64) for part in parts)
    filling = np.append(0, np.cumsum(-lengths % _WORD_BYTES))
    values = joined([*parts, binary_of(bytes(filling[-1]), filling)])
    starts = binary_offsets(values) // _WORD_BYTES
    counts = np.diff(starts)
    words = octets_of(values)[: starts[-1] * _WORD_BYTES].view("<u8")
    places = np.arange(len(words)) - np.repeat(starts[:-1], counts)
    keys = _mixed(np.arange(1, counts.max() + 1, dtype=np.uint64) * _PRIME_1) | np.uint64(1)
    # The highest bit of a word alone would be the same under every key, so that two of them cancelled each other.
    folded = words ^ (words >> np.uint64(32))
    return _mixed(np.add.reduceat(folded * keys[places], starts[:-1]))


def _mixed(words: Words) -> Words:
    """Every bit depends on every other."""
    words = (words ^ (words >> np.uint64(33))) * _PRIME_2
    words = (words ^ (words >> np.uint64(29))) * _PRIME_3
    return words ^ (words >> np.uint64(32))
