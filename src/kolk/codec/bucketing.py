"""Which bucket a row belongs to: Spark's ``pmod(xxhash64(columns...), buckets)``, computed without Spark.

The equality is the point. Spark can repartition a DataFrame by a table's buckets natively, and a task then
talks to one bucket; so this module never "improves" the hash. ``tests/golden/spark_xxhash64.json`` holds it,
written by Spark itself. The hash is XXH64; the first column's seed is 42, and each column's hash is the seed
of the next. A null leaves the hash as it is. What is hashed:

======================================  =============================================================
type                                    bytes
======================================  =============================================================
boolean, tinyint, smallint, int, date   the value as 4 bytes, little endian
bigint                                  8 bytes, little endian
timestamp(p), timestamp_ltz(p): p <= 6  microseconds since 1970 as a bigint
time(p)                                 nanoseconds since midnight as a bigint
decimal(p <= 18)                        the unscaled value as a bigint
decimal(p > 18)                         the unscaled value in as few bytes as hold it, big endian
char, string, binary, bytes             the bytes themselves; a char is not padded
======================================  =============================================================

Refused: float and double (NaN and -0.0 have no one identity), nested types, and timestamps finer than a microsecond
(Spark has them only as a preview, where each hashes as two numbers). A timestamp in seconds that is beyond what
Spark can hold wraps: no Spark can disagree about it. A value is as long as a key may be, at most.

Everything is done for many rows at once. Texts of different lengths walk the algorithm together: each step
takes the rows that are long enough for it. A pass for each length would be up to 1.6 times as fast where there
are few lengths, and 12 times as slow where 10,000 rows have 200 of them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.codec.buffers import (
    TEXTS,
    Octets,
    Rows,
    binary_offsets,
    fixed_values,
    gather,
    null_mask,
    slot_type,
)
from kolk.codec.key import DECIMAL_DIGITS_IN_INT64, KEY_BYTES_MAX
from kolk.errors import TooLarge
from kolk.model.schema import Column
from kolk.model.types import Kind

Hashes = NDArray[np.uint64]

_SEED = np.uint64(42)
_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)
_LANE_SEEDS = np.array([0x60EA27EEADC0B5D6, _PRIME_2, 0, 0x61C8864E7A143579], np.uint64)  # 1 + 2, 2, 0, -1
_STRIPE_BYTES = 32
_BLOCK_ROWS = 16_384  # the arrays of one block stay in the processor's second-level cache: twice as fast
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
# A magnitude from the i-th limit on needs i + 2 bytes, since one bit is the sign's.
_LOW_LIMITS = np.array([1 << (8 * width - 1) for width in range(1, 9)], np.uint64)
_HIGH_LIMITS = np.array([1 << (8 * width - 1) for width in range(1, 8)], np.uint64)


def bucket_of(batch: pa.RecordBatch, columns: tuple[Column, ...], buckets: int) -> NDArray[np.int32]:
    """The bucket of each row, by these columns of the batch."""
    rows = batch.num_rows
    bucket_of_rows = np.zeros(rows, np.int32)
    if buckets == 1:
        return bucket_of_rows
    for start in range(0, rows, _BLOCK_ROWS):
        hashes = hash_rows(batch.slice(start, _BLOCK_ROWS), columns)
        # The remainder of a floor division, as pmod has it; numpy is slower at taking %.
        bucket_of_rows[start : start + _BLOCK_ROWS] = hashes - buckets * (hashes // buckets)
    return bucket_of_rows


def hash_rows(batch: pa.RecordBatch, columns: tuple[Column, ...]) -> Rows:
    """Spark's ``xxhash64`` of these columns, for each row."""
    hashes = np.full(batch.num_rows, _SEED)
    for column in columns:
        array = batch.column(column.name)
        assert array.type == column.type.arrow, f"{column.name} is {array.type}, not {column.type.arrow}"
        missing = null_mask(array)
        hashed = _hash_column(column, array, missing, hashes)
        hashes = hashed if missing is None else np.where(missing, hashes, hashed)
    return hashes.view(np.int64)


def _hash_column(column: Column, array: pa.Array, missing: NDArray[np.bool_] | None, seeds: Hashes) -> Hashes:
    """The next hash of each row; what stands at nulls means nothing."""
    kind = column.type.kind
    assert not column.type.is_nested, f"{column.type.shown} is refused as a bucket key when a table is made"
    if kind in TEXTS:
        offsets = binary_offsets(array).astype(np.int64)
        data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
        lengths = np.diff(offsets)
        return _hash_bytes(data, offsets[:-1], lengths if missing is None else np.where(missing, 0, lengths), seeds)
    values = fixed_values(array, np.dtype(slot_type(column.type)))
    match kind:
        case Kind.BOOLEAN | Kind.TINYINT | Kind.SMALLINT | Kind.INT | Kind.DATE:
            return _hash_int(values, seeds)
        case Kind.BIGINT:
            return _hash_long(values, seeds)
        case Kind.TIMESTAMP | Kind.TIMESTAMP_LTZ if column.type.unit in _MICROSECONDS:
            return _hash_long(values * _MICROSECONDS[column.type.unit], seeds)
        case Kind.TIME:
            return _hash_long(values.astype(np.int64) * _NANOSECONDS[column.type.unit], seeds)
        case Kind.DECIMAL:
            halves = values.view("<u8").reshape(-1, 2)
            is_narrow = column.type.arguments[0] <= DECIMAL_DIGITS_IN_INT64
            return _hash_long(halves[:, 0], seeds) if is_narrow else _hash_bytes(*_minimal_bytes(halves), seeds)
        case Kind.BINARY:
            width = values.itemsize
            return _hash_bytes(values.view(np.uint8), *_equal_stretches(len(values), width), seeds)
        case _:
            raise AssertionError(f"{column.type} is refused as a bucket key when a table is made")


def _equal_stretches(rows: int, width: int) -> tuple[Rows, Rows]:
    return np.arange(rows) * width, np.full(rows, width)


def _minimal_bytes(halves: Hashes) -> tuple[Octets, Rows, Rows]:
    """128-bit numbers as Java's ``BigInteger.toByteArray`` has them: the bytes, their starts and lengths."""
    signs = (halves[:, 1].view(np.int64) >> 63).view(np.uint64)
    low, high = halves[:, 0] ^ signs, halves[:, 1] ^ signs
    in_low = np.searchsorted(_LOW_LIMITS, low, side="right")
    in_high = np.searchsorted(_HIGH_LIMITS, high, side="right") + 8
    lengths = np.where(high > 0, in_high, in_low) + 1
    big_endian = halves[:, ::-1].astype(">u8").view(np.uint8).reshape(-1)
    return big_endian, np.arange(len(halves)) * 16 + 16 - lengths, lengths


# --- XXH64, each function a step of it over all rows at once


def _hash_int(values: NDArray[Any], seeds: Hashes) -> Hashes:
    words = values.astype(np.int32).view(np.uint32).astype(np.uint64)
    return _finish(_mix_half(seeds + (_PRIME_5 + np.uint64(4)), words))


def _hash_long(values: NDArray[Any], seeds: Hashes) -> Hashes:
    return _finish(_mix_word(seeds + (_PRIME_5 + np.uint64(8)), values.view(np.uint64)))


def _hash_bytes(data: Octets, starts: Rows, lengths: Rows, seeds: Hashes) -> Hashes:
    """The hash of ``data[start : start + length]`` for each row."""
    longest = int(lengths.max(initial=0))
    if longest > KEY_BYTES_MAX:
        raise TooLarge(f"a bucket key value of {longest:,} bytes is over the limit of {KEY_BYTES_MAX:,}")
    hashes = seeds + _PRIME_5
    if longest >= _STRIPE_BYTES:
        long = np.flatnonzero(lengths >= _STRIPE_BYTES)
        hashes[long] = _hash_stripes(data, starts[long], lengths[long] // _STRIPE_BYTES, seeds[long])
    hashes += lengths.view(np.uint64)
    rest = lengths % _STRIPE_BYTES
    words = starts + (lengths - rest)
    for done in (0, 8, 16):
        _mix_into(hashes, rest >= done + 8, data, words + done, "<u8", _mix_word)
    _mix_into(hashes, lengths & 4 != 0, data, starts + (lengths & ~7), "<u4", _mix_half)
    last = starts + (lengths & ~3)
    for done in (0, 1, 2):
        _mix_into(hashes, lengths & 3 > done, data, last + done, "u1", _mix_byte)
    return _finish(hashes)


def _mix_into(
    hashes: Hashes,
    is_due: NDArray[np.bool_],
    data: Octets,
    positions: Rows,
    dtype: str,
    mix: Callable[[Hashes, Hashes], Hashes],
) -> None:
    """Mix the number at its position into the hash of each row that is due, in place."""
    if is_due.any():
        rows = slice(None) if is_due.all() else np.flatnonzero(is_due)
        hashes[rows] = mix(hashes[rows], gather(data, positions[rows], dtype).astype(np.uint64))


def _hash_stripes(data: Octets, starts: Rows, stripes: Rows, seeds: Hashes) -> Hashes:
    """What the first ``stripes`` times 32 bytes of each row come to; the longest rows are in all rounds."""
    order = np.argsort(-stripes)
    lanes = seeds[order] + _LANE_SEEDS[:, np.newaxis]
    positions = starts[order] + np.arange(0, _STRIPE_BYTES, 8)[:, np.newaxis]
    live_rows = np.searchsorted(-stripes[order], -np.arange(stripes.max()))
    for stripe, live in enumerate(live_rows.tolist()):
        words = gather(data, positions[:, :live] + stripe * _STRIPE_BYTES, "<u8")
        lanes[:, :live] = _round(lanes[:, :live], words)
    merged = sum(_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        merged = (merged ^ _round(np.uint64(0), lane)) * _PRIME_1 + _PRIME_4
    hashes = np.empty_like(seeds)
    hashes[order] = merged
    return hashes


def _round(lane: Hashes | np.uint64, words: Hashes) -> Hashes:
    return _rotate(lane + words * _PRIME_2, 31) * _PRIME_1


def _mix_word(hashes: Hashes, words: Hashes) -> Hashes:
    return _rotate(hashes ^ _round(np.uint64(0), words), 27) * _PRIME_1 + _PRIME_4


def _mix_half(hashes: Hashes, halves: Hashes) -> Hashes:
    return _rotate(hashes ^ (halves * _PRIME_1), 23) * _PRIME_2 + _PRIME_3


def _mix_byte(hashes: Hashes, single: Hashes) -> Hashes:
    return _rotate(hashes ^ (single * _PRIME_5), 11) * _PRIME_1


def _finish(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _PRIME_2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _PRIME_3
    return hashes ^ (hashes >> np.uint64(32))


def _rotate(values: Hashes, by: int) -> Hashes:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))
