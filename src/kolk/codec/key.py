"""The key codec: a row's primary key as bytes whose order is the order of the key.

RocksDB sorts by bytes, so an order-preserving key makes a scan come in key order and a prefix lookup a range:

    key = 0x01 | first key column | second key column | ...

0x01 says "a row"; 0x00 begins the bucket's own records, which therefore sort before every row. Columns are:

=======================================  ==============================================================
type                                     bytes
=======================================  ==============================================================
boolean                                  1: 0x00 or 0x01
tinyint … bigint, date, time, timestamp  big endian, as wide as Arrow keeps it, sign bit flipped
decimal(p <= 18)                         8: the unscaled value, like a bigint
decimal(p > 18)                          16: the unscaled value, big endian, sign bit flipped
binary(n)                                its n bytes
char, string, bytes: the last column     its bytes, nothing after them
char, string, bytes: any other column    its bytes with 0x00 written as 0x00 0xFF, and then 0x00 0x00
=======================================  ==============================================================

No column but the last can be a prefix of another value of itself, so the keys that share their first columns
are exactly the keys that start with those bytes. Strings sort by code point. The layout is in every database
ever written: ``tests/golden/keys.json`` holds it.

Everything is done per column; nothing here runs once per row in Python. The codec refuses nulls and keys over
``KEY_BYTES_MAX``; it trusts that values fit their types, which is checked where they come in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kolk.codec.buffers import (
    NOTHING,
    VARIABLE,
    Octets,
    Rows,
    binary_offsets,
    cut,
    fixed_values,
    gather,
    slot_type,
)
from kolk.errors import Corrupted, InvalidArgument, InvalidRows, TooLarge
from kolk.model.schema import Column, Schema
from kolk.model.types import Kind

ROW_PREFIX = b"\x01"
"""The first byte of every row's key."""

KEY_BYTES_MAX = 65_536
"""The longest encoded key. A longer text is better keyed by its hash."""

_BATCH_BYTES_MAX = 2**31 - 1  # what the int32 offsets of an Arrow binary array can address
_TERMINATOR = b"\x00\x00"
_ESCAPED_NUL = b"\x00\xff"
DECIMAL_DIGITS_IN_INT64 = 18
_SIGN_64 = np.uint64(1 << 63)


class KeyCodec:
    """Encodes and decodes the primary keys of one schema. Immutable, so thread-safe."""

    def __init__(self, schema: Schema) -> None:
        assert schema.primary_key, "a log table has no keys"
        self.schema = schema
        self._pieces = _layout(schema.key_columns, ends_in_key=True)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """One key per row of a batch that has at least the key columns, by name."""
        return _encode(self._pieces, batch)

    def encode_prefix(self, batch: pa.RecordBatch, columns: int) -> pa.BinaryArray:
        """The bytes that exactly the keys with these values in their first ``columns`` columns start with."""
        key = self.schema.key_columns
        if not 1 <= columns < len(key):
            raise InvalidArgument(f"a prefix of this key has 1 to {len(key) - 1} columns, not {columns}")
        return _encode(_layout(key[:columns], ends_in_key=False), batch)

    def encode_column(self, place: int, values: pa.Array) -> list[bytes]:
        """What each of these values takes in a key as its column at this place, a terminator included."""
        column, is_last = self.schema.key_columns[place], place == len(self.schema.key_columns) - 1
        keys = _encode(_layout((column,), ends_in_key=is_last), pa.record_batch([values], [column.name]))
        return [key.removeprefix(ROW_PREFIX) for key in keys.to_pylist()]

    def decode(self, keys: pa.BinaryArray) -> pa.RecordBatch:
        """The key columns of these keys, in key order."""
        columns = [column.arrow for column in self.schema.key_columns]
        return pa.RecordBatch.from_arrays(_decode(self._pieces, keys), schema=pa.schema(columns))

    @staticmethod
    def to_list(keys: pa.BinaryArray) -> list[bytes]:
        """The keys as RocksDB takes them."""
        # As fast as numpy's tolist of a void view, which works for keys of one width only (26 ns a key both).
        return keys.to_pylist()


def sort_order(keys: pa.BinaryArray) -> Rows:
    """The rows in the order of their keys; equal keys stay in their order."""
    order = _order_by_words(keys) if len(keys) >= _WORDS_PAY_ROWS else None
    return pc.array_sort_indices(keys).to_numpy().view(np.int64) if order is None else order


def group_starts(sorted_keys: pa.BinaryArray) -> Rows:
    """Where a new key starts in a sorted array."""
    is_new = np.ones(len(sorted_keys), np.bool_)
    if len(sorted_keys) > 1:
        differs = pc.not_equal(sorted_keys.slice(1), sorted_keys.slice(0, len(sorted_keys) - 1))
        is_new[1:] = differs.to_numpy(zero_copy_only=False)
    return np.flatnonzero(is_new)


# --- layout


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of the key: a constant head, fixed-width columns, then at most one of variable width."""

    head: int
    fixed: tuple[Column, ...]
    variable: Column | None
    is_escaped: bool
    record: "np.dtype[Any]"  # of the head and the fixed-width columns

    @staticmethod
    def of(head: bytes, fixed: tuple[Column, ...], variable: Column | None, *, is_escaped: bool) -> "_Piece":
        fields = [(f"c{place}", _field_type(column)) for place, column in enumerate(fixed)]
        record = np.dtype([("head", f">u{len(head)}"), *fields])
        return _Piece(int.from_bytes(head, "big"), fixed, variable, is_escaped, record)


def _layout(columns: tuple[Column, ...], *, ends_in_key: bool) -> tuple[_Piece, ...]:
    """Cut the key after each variable-width column, whose terminator becomes the head of the next piece."""
    pieces: list[_Piece] = []
    head, fixed = ROW_PREFIX, ()
    for column in columns:
        if column.type.kind in VARIABLE:
            is_last = ends_in_key and column is columns[-1]
            pieces.append(_Piece.of(head, fixed, column, is_escaped=not is_last))
            head, fixed = _TERMINATOR, ()
        else:
            fixed = (*fixed, column)
    if fixed or not ends_in_key:
        pieces.append(_Piece.of(head, fixed, None, is_escaped=False))
    return tuple(pieces)


def _field_type(column: Column) -> str:
    if column.type.kind is Kind.DECIMAL:
        return ">u8" if _is_narrow(column) else "V16"
    return slot_type(column.type).replace("<i", ">u")


def _is_narrow(column: Column) -> bool:
    return column.type.arguments[0] <= DECIMAL_DIGITS_IN_INT64


# --- encoding


def _encode(pieces: tuple[_Piece, ...], batch: pa.RecordBatch) -> pa.BinaryArray:
    parts: list[pa.BinaryArray] = []
    for piece in pieces:
        parts.append(_fixed_part(piece, batch))
        if piece.variable is not None:
            part = _key_column(batch, piece.variable).view(pa.binary())  # a cast would copy
            parts.append(_escape(part) if piece.is_escaped else part)
    _check_batch_bytes(sum(int(offsets[-1] - offsets[0]) for offsets in map(binary_offsets, parts)))
    keys = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, NOTHING)
    longest = int(np.diff(binary_offsets(keys)).max(initial=0))
    if longest > KEY_BYTES_MAX:
        raise TooLarge(f"a key of {longest:,} bytes is over the {KEY_BYTES_MAX:,} allowed; use a hash of it")
    return keys


def _check_batch_bytes(size: int) -> None:
    if size > _BATCH_BYTES_MAX:
        raise TooLarge(f"a batch has {size:,} bytes of keys, over {_BATCH_BYTES_MAX:,}; send fewer rows")


def _key_column(batch: pa.RecordBatch, column: Column) -> pa.Array:
    array = batch.column(column.name)
    assert array.type == column.type.arrow, f"{column.name} is {array.type}, not {column.type.arrow}"
    if array.null_count:
        counts = f"{array.null_count} of {len(array)} rows"
        raise InvalidRows(f"{column.name!r} is in the primary key and cannot be null, as it is in {counts}")
    return array


def _fixed_part(piece: _Piece, batch: pa.RecordBatch) -> pa.BinaryArray:
    record, rows = piece.record, batch.num_rows
    _check_batch_bytes(rows * record.itemsize)
    records = np.empty(rows, record)
    records["head"] = piece.head
    for place, column in enumerate(piece.fixed):
        records[f"c{place}"] = _ordered(column, _key_column(batch, column))
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(record.itemsize)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(records)])


def _ordered(column: Column, array: pa.Array) -> NDArray[Any]:
    """The values as unsigned numbers, or opaque bytes, that compare as the column does."""
    values = fixed_values(array, np.dtype(slot_type(column.type)))
    match column.type.kind:
        case Kind.BOOLEAN | Kind.BINARY:
            return values
        case Kind.DECIMAL:
            halves = values.view("<u8").reshape(-1, 2)
            if _is_narrow(column):
                return halves[:, 0] ^ _SIGN_64
            big_endian = np.empty(halves.shape, ">u8")
            big_endian[:, 0], big_endian[:, 1] = halves[:, 1] ^ _SIGN_64, halves[:, 0]
            return big_endian.view("V16")[:, 0]
        case _:
            return _flip_sign(values.view(f"u{values.itemsize}"))


def _flip_sign(values: NDArray[Any]) -> NDArray[Any]:
    return values ^ values.dtype.type(1 << (8 * values.itemsize - 1))


def _escape(array: pa.BinaryArray) -> pa.BinaryArray:
    offsets = binary_offsets(array)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    if data.min(initial=1) > 0:  # as for nearly every text, and found out 80 times as fast
        return array
    _check_batch_bytes(2 * data.size - int(np.count_nonzero(data)))
    return pc.replace_substring(array, b"\x00", _ESCAPED_NUL)


# --- decoding


def _decode(pieces: tuple[_Piece, ...], keys: pa.BinaryArray) -> list[pa.Array]:
    offsets = binary_offsets(keys)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)[: offsets[-1]]
    positions, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    arrays: list[pa.Array] = []
    for piece in pieces:
        record = piece.record
        _check(bool((positions + record.itemsize <= ends).all()))
        records = gather(data, positions, f"V{record.itemsize}").view(record)
        _check(bool((records["head"] == piece.head).all()))
        arrays += [_restored(column, records[f"c{place}"]) for place, column in enumerate(piece.fixed)]
        positions = positions + record.itemsize
        if piece.variable is not None:
            stops = _terminators(data, positions, ends) if piece.is_escaped else ends
            arrays.append(_texts(piece.variable, piece.is_escaped, data, positions, stops))
            positions = stops
    _check(bool((positions == ends).all()))
    return arrays


def _check(is_sound: bool) -> None:
    if not is_sound:
        raise Corrupted("a stored key is not laid out as its table's primary key; restore the bucket")


def _terminators(data: Octets, positions: Rows, ends: Rows) -> Rows:
    """Where the first terminator at or after each position stands; no escaped text has two NULs in a row."""
    found = np.append(np.flatnonzero((data[:-1] | data[1:]) == 0), data.size)
    stops = found[np.searchsorted(found, positions)]
    _check(bool((stops + len(_TERMINATOR) <= ends).all()))
    return stops


def _texts(column: Column, is_escaped: bool, data: Octets, starts: Rows, stops: Rows) -> pa.Array:
    texts = cut(data, starts, stops)
    if is_escaped:
        texts = pc.replace_substring(texts, _ESCAPED_NUL, b"\x00")
    try:
        return texts.cast(column.type.arrow)
    except pa.ArrowInvalid:
        raise Corrupted("a stored key holds text that is not UTF-8; restore the bucket") from None


def _restored(column: Column, values: NDArray[Any]) -> pa.Array:
    arrow, rows = column.type.arrow, len(values)
    match column.type.kind:
        case Kind.BOOLEAN:
            return pa.array(values != 0)
        case Kind.BINARY:
            data = np.ascontiguousarray(values)
        case Kind.DECIMAL:
            data = np.empty((rows, 2), np.uint64)
            if _is_narrow(column):
                data[:, 0] = values ^ _SIGN_64
                data[:, 1] = data[:, 0].view(np.int64) >> 63
            else:
                halves = np.ascontiguousarray(values).view(">u8").reshape(-1, 2)
                data[:, 0], data[:, 1] = halves[:, 1], halves[:, 0] ^ _SIGN_64
        case _:
            data = _flip_sign(values.astype(f"u{values.itemsize}"))
    return pa.Array.from_buffers(arrow, rows, [None, pa.py_buffer(data)])


# --- sorting
#
# numpy sorts 64-bit words with SIMD (16 ns a row), five times as fast as it sorts them stably and ten times
# as fast as Arrow sorts binary. So keys are sorted by the first 8 bytes that they do not all share, ties by
# the next 8, and so on. What is tied to the end is equal, and is put back into its order by row number.

_WORDS_PAY_ROWS = 2_000
_WORD_ROUNDS_MAX = 4
_COMMON_BYTES_MAX = 256
_TOP_BYTES = np.array([0, *((2**64 - 1) ^ ((1 << (64 - 8 * kept)) - 1) for kept in range(1, 9))], np.uint64)


class _Words:
    """The bytes of keys, eight at a time, as numbers that compare alike; a key is continued with zeros."""

    def __init__(self, keys: pa.BinaryArray) -> None:
        offsets = binary_offsets(keys).astype(np.int64)
        size = int(offsets[-1] - offsets[0])
        self._data = np.zeros(size + 8, np.uint8)  # so that the last word may be read past the last key
        self._data[:size] = np.frombuffer(keys.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        self._starts = offsets[:-1] - offsets[0]
        self.lengths = np.diff(offsets)
        self.shortest, self.longest = int(self.lengths.min()), int(self.lengths.max())

    def at(self, depth: int, rows: Rows | None = None) -> NDArray[np.uint64]:
        """The word at this byte of each key, or of these rows' keys."""
        if rows is None and self.shortest == self.longest:
            strided = np.ndarray(self._starts.shape, ">u8", self._data, min(depth, self.longest), (self.longest,))
            words = strided.astype(np.uint64)
        else:
            starts = self._starts if rows is None else self._starts[rows]
            words = gather(self._data, np.minimum(starts + depth, self._data.size - 8), "<u8").byteswap()
        if depth + 8 > self.shortest:
            lengths = self.lengths if rows is None else self.lengths[rows]
            words &= _TOP_BYTES[np.clip(lengths - depth, 0, 8)]
        return words

    def ranks(self, depth: int, rows: Rows) -> Rows:
        """The words of these rows, numbered from 1 in their order."""
        words = self.at(depth, rows)
        order = np.argsort(words)
        ranks = np.empty_like(order)
        ranks[order] = np.cumsum(_is_new(words[order]))
        return ranks


def _order_by_words(keys: pa.BinaryArray) -> Rows | None:
    """The stable order, or None when the keys are alike for so long that Arrow's own sort is faster."""
    words = _Words(keys)
    depth = _first_difference(words)
    first = words.at(depth)
    order = np.argsort(first)
    is_new = _is_new(first[order])
    depths = range(depth + 8, words.longest, 8)
    for next_depth in depths[:_WORD_ROUNDS_MAX]:
        _break_ties(order, is_new, partial(words.ranks, next_depth))
    if len(depths) > _WORD_ROUNDS_MAX and not is_new.all():
        return None
    if words.shortest < words.longest:
        # Continued with zeros, a key that ends equals one that goes on with NULs: the shorter is the smaller.
        _break_ties(order, is_new, words.lengths.__getitem__)
    _break_ties(order, is_new, lambda rows: rows)
    return order


def _first_difference(words: _Words) -> int:
    """The first byte at which the keys differ, as far as is worth looking."""
    for depth in range(0, min(words.shortest, _COMMON_BYTES_MAX), 8):
        word = words.at(depth)
        differing = int(np.bitwise_or.reduce(word ^ word[0]))
        if differing:
            return depth + (64 - differing.bit_length()) // 8
    return min(words.shortest, _COMMON_BYTES_MAX)


def _is_new(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each of these sorted values differs from the one before."""
    is_new = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return is_new


def _break_ties(order: Rows, is_new: NDArray[np.bool_], ranks_of: Callable[[Rows], Rows]) -> None:
    """Sort the rows that are still tied by a rank below 2^31, in place."""
    tied = np.flatnonzero(~(is_new & np.append(is_new[1:], True)))
    if not tied.size:
        return
    rows = order[tied]
    ranks = ranks_of(rows)
    places = np.cumsum(is_new)[tied] * (ranks.max() + 1) + ranks
    by_place = np.argsort(places)
    order[tied] = rows[by_place]
    is_new[tied] = _is_new(places[by_place])
