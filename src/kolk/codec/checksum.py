"""A checksum of rows that does not depend on their order, nor on how they are cut into batches.

The hash of every row, added up. It tells whether two attempts of the same work gave the same rows; it is no signature,
and whoever wants to may find rows of the same sum.
"""

import zlib
from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.codec.bucketing import hash_bytes
from kolk.codec.buffers import binary_offsets, joined, octets_of
from kolk.codec.fields import Fields
from kolk.codec.key import KEY_BYTES_MAX
from kolk.model.schema import Column

_MASK = 2**63 - 1
_SHORT_BYTES = 512


def checksum_of(rows: pa.RecordBatch, columns: Sequence[Column]) -> int:
    """The checksum of rows with exactly these columns."""
    return added(0, int(_hashes(rows, columns, KEY_BYTES_MAX, zlib.crc32).sum(dtype=np.uint64)))


def row_hashes(rows: pa.RecordBatch, columns: Sequence[Column]) -> NDArray[np.uint64]:
    """The hash of each row, for those who compare it at once and keep it nowhere: it may change. It is quicker for long
    rows than the one above, and as good for them as for short ones."""
    return _hashes(rows, columns, _SHORT_BYTES, _digest)


def added(one: int, other: int) -> int:
    """The checksum of the rows of both."""
    return (one + other) & _MASK


def _hashes(
    rows: pa.RecordBatch, columns: Sequence[Column], short: int, hash_long: Callable[[bytes], int]
) -> NDArray[np.uint64]:
    if not rows.num_rows:
        return np.zeros(0, np.uint64)
    fields = Fields(columns)
    values = joined(fields.parts(np.zeros(rows.num_rows, fields.head), rows.columns))
    offsets = binary_offsets(values).astype(np.int64)
    lengths = np.diff(offsets)
    are_short = lengths <= short
    data = octets_of(values)
    hashes = np.zeros(len(values), np.uint64)
    hashes[are_short] = hash_bytes(data, offsets[:-1][are_short], lengths[are_short])
    for place in np.flatnonzero(~are_short).tolist():  # few, or long
        hashes[place] = hash_long(data[offsets[place] : offsets[place + 1]].tobytes())
    return hashes


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest())
