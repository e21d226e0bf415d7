"""A checksum of rows that does not depend on their order, nor on how they are cut into batches.

The hash of every row, added up. It tells whether two attempts of the same work gave the same rows; it is no signature,
and whoever wants to may find rows of the same sum.
"""

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.codec.bucketing import hash_bytes
from kolk.codec.buffers import binary_offsets, joined, octets_of
from kolk.codec.fields import Fields
from kolk.codec.key import KEY_BYTES_MAX
from kolk.model.schema import Column

_MASK = 2**63 - 1


def checksum_of(rows: pa.RecordBatch, columns: Sequence[Column]) -> int:
    """The checksum of rows with exactly these columns."""
    if not rows.num_rows:
        return 0
    fields = Fields(columns)
    values = joined(fields.parts(np.zeros(rows.num_rows, fields.head), rows.columns))
    return added(0, int(_hashes(values).sum(dtype=np.uint64)))


def added(one: int, other: int) -> int:
    """The checksum of the rows of both."""
    return (one + other) & _MASK


def _hashes(values: pa.BinaryArray) -> NDArray[np.uint64]:
    offsets = binary_offsets(values).astype(np.int64)
    lengths = np.diff(offsets)
    short = lengths <= KEY_BYTES_MAX
    data = octets_of(values)
    hashes = np.zeros(len(values), np.uint64)
    hashes[short] = hash_bytes(data, offsets[:-1][short], lengths[short])
    for place in np.flatnonzero(~short).tolist():  # few, and zlib is quick
        hashes[place] = zlib.crc32(data[offsets[place] : offsets[place + 1]].tobytes())
    return hashes
