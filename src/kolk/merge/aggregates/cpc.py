"""``cpc``: how many distinct values there are, by a CPC sketch of DataSketches, the smallest for its error.

The state is its serialized form without HIP, all numbers little endian:

    0  u8   preamble ints             4  u8   first column of interest
    1  u8   1                         5  u8   flags: 2 compressed, 4 HIP, 8 a table, 16 a window
    2  u8   16, the family            6  u16  hash of the seed
    3  u8   lg_k                      8  u32  coupons, if there are any; and then what the flags say:
    (table and window: u32 entries of the table, HIP) (table: u32 words) (window: u32 words) (HIP: two f64, if they
    did not stand there yet), the words of the window, the words of the table

The words are entropy coded, and the library that decodes them trusts them: it reads on where they end, and writes
where a row of theirs says. So nothing reaches it before three things are done here:

- the numbers are held against each other and against the length, so that nothing large is made of little,
- behind the words there stand more, of ones, as many as the numbers can make it read,
- a table is first shown to it beside a window of ones and with few coupons: then, and only then, it checks the rows
  and columns of what it decodes.

What was read is then written again: it is a sketch if the same bytes come back, and as many coupons as it says.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kolk.errors import InvalidRows
from kolk.merge.aggregates.sketches import LIBRARY, SEED_HASH, corrupt, hashable, put_all

_PREAMBLE = struct.Struct("<6BH")
_COMPRESSED, _HIP, _TABLE, _WINDOW = 2, 4, 8, 16
_CODE_BITS = 12
_HIP_BYTES = 16
_ENTRIES_PER_ROW, _ENTRIES_OF_FEW_ROWS = 2, 64
_CHUNKS = 4


@dataclass(frozen=True, slots=True)
class Cpc:
    """Sketches of 2^lg_k rows. Others are refused: coarser ones would coarsen the state, finer ones help nobody."""

    lg_k: int

    def values(self, inputs: pa.Array) -> list[Any]:
        """As they are hashed."""
        return hashable(inputs)

    def build(self, values: Any) -> bytes:
        """The sketch of these."""
        sketch = LIBRARY.cpc_sketch(self.lg_k)
        put_all(sketch, values)
        return _united(self.lg_k, [sketch])

    def merged(self, states: Sequence[bytes]) -> bytes:
        """The sketch of all that they are sketches of."""
        union = LIBRARY.cpc_union(self.lg_k)
        entries, most = 0, _ENTRIES_PER_ROW << self.lg_k
        for state in states:
            parts = _read(state)
            if parts is not None:
                entries += parts.entries
            if entries > _CHUNKS * most:
                # Tables of what nobody hashed could grow, together, until the library searches them for hours.
                done = _read(union.get_result().serialize())
                entries = most if done is None else done.entries
            union.update(LIBRARY.cpc_sketch.deserialize(state))
        made = union.get_result().serialize()
        _read(made)
        return made

    def check(self, state: bytes) -> None:
        """Have it decoded with care."""
        sketch_of(state)
        if state[3] != self.lg_k:
            raise corrupt("a cpc", f"its lg_k is {state[3]}, the column's is {self.lg_k}; make it with that")


@dataclass(frozen=True, slots=True)
class _Parts:
    """The numbers and the words of a sketch that is not empty."""

    lg_k: int
    first_column: int
    coupons: int
    entries: int
    hip: bytes
    window: bytes
    table: bytes

    def written(self) -> bytes:
        """As the format has it."""
        has_both = bool(self.table and self.window)
        flags = _COMPRESSED | bool(self.hip) * _HIP | bool(self.table) * _TABLE | bool(self.window) * _WINDOW
        fields = struct.pack("<I", self.coupons)
        if has_both:
            fields += struct.pack("<I", self.entries) + self.hip
        if self.table:
            fields += struct.pack("<I", len(self.table) // 4)
        if self.window:
            fields += struct.pack("<I", len(self.window) // 4)
        if not has_both:
            fields += self.hip
        head = _PREAMBLE.pack(2 + len(fields) // 4, 1, 16, self.lg_k, self.first_column, flags, SEED_HASH)
        return head + fields + self.window + self.table

    def padded(self) -> "_Parts":
        """The same with more words behind its words, of ones, than the library can come to read."""
        bits = self.entries * (_CODE_BITS + 1 + _base_bits(self.lg_k, self.entries))
        table = self.table + b"\xff" * (4 * (bits // 32 + 3)) if self.table else b""
        window = self.window + b"\xff" * (4 * ((_CODE_BITS << self.lg_k) // 32 + 2)) if self.window else b""
        return _Parts(self.lg_k, self.first_column, self.coupons, self.entries, self.hip, window, table)

    def with_window(self) -> "_Parts":
        """The same table beside a window of ones, with as many coupons as call for one."""
        window = b"\xff" * (4 * ((_CODE_BITS << self.lg_k) // 32 + 2))
        return _Parts(self.lg_k, 0, 1 << self.lg_k, self.entries, b"", window, self.table)


def sketch_of(state: bytes) -> Any:
    """The library's sketch of bytes from anywhere; InvalidRows if they are none."""
    parts = _read(state)
    if parts is None:
        return LIBRARY.cpc_sketch.deserialize(state)
    try:
        if parts.table:
            LIBRARY.cpc_sketch.deserialize(parts.padded().with_window().written())
        sketch = LIBRARY.cpc_sketch.deserialize(parts.padded().written())
        is_same = sketch.serialize() == state
        found = _read(_united(parts.lg_k, [sketch])) if is_same else None
    except (ValueError, RuntimeError, IndexError, MemoryError):
        raise _wrong("its words cannot be decoded") from None
    if found is None or found.coupons != parts.coupons:
        raise _wrong("its words are not those of a sketch of so many coupons")
    return sketch


def _united(lg_k: int, sketches: Sequence[Any]) -> bytes:
    """Always as a union makes it, so that what a state is depends on nothing but what was put in."""
    union = LIBRARY.cpc_union(lg_k)
    for sketch in sketches:
        union.update(sketch)
    return union.get_result().serialize()


def _read(state: bytes) -> _Parts | None:
    """The parts of a sketch, None if it is empty; InvalidRows if they do not go together."""
    if len(state) < _PREAMBLE.size or len(state) % 4:
        raise _wrong("it is cut off")
    ints, version, family, lg_k, first_column, flags, seed_hash = _PREAMBLE.unpack_from(state)
    if version != 1 or family != 16 or flags & ~(_HIP | _TABLE | _WINDOW) != _COMPRESSED or first_column > 63:
        raise _wrong("it does not begin as one does")
    if seed_hash != SEED_HASH:
        raise _wrong("it was made with another seed than DataSketches' own")
    if not 4 <= lg_k <= 26:
        raise _wrong(f"its lg_k is {lg_k}")
    has_hip, has_table, has_window = (bool(flags & flag) for flag in (_HIP, _TABLE, _WINDOW))
    if not has_table and not has_window:
        if len(state) != _PREAMBLE.size or ints != 2 or first_column:
            raise _wrong("it says that it is empty")
        return None
    has_both = has_table and has_window
    if ints != 3 + 4 * has_hip + has_table + has_both + has_window or len(state) < 4 * ints:
        raise _wrong("it is cut off")
    fields = list(struct.unpack_from(f"<{ints - 2}I", state, _PREAMBLE.size))
    hip_at = _PREAMBLE.size + 8 if has_both else 4 * ints - _HIP_BYTES
    coupons = fields.pop(0)
    entries = fields.pop(0) if has_both else coupons if has_table else 0
    if has_both and has_hip:
        del fields[:4]
    table_words = fields.pop(0) if has_table else 0
    window_words = fields.pop(0) if has_window else 0
    if len(state) != 4 * (ints + table_words + window_words):
        raise _wrong("it is of another length than it says")
    table_at = 4 * (ints + window_words)
    parts = _Parts(
        lg_k=lg_k,
        first_column=first_column,
        coupons=coupons,
        entries=entries,
        hip=state[hip_at : hip_at + _HIP_BYTES] if has_hip else b"",
        window=state[4 * ints : table_at],
        table=state[table_at:],
    )
    _check_numbers(parts, has_table=has_table, has_window=has_window)
    return parts


def _check_numbers(parts: _Parts, *, has_table: bool, has_window: bool) -> None:
    """Whether so many coupons are kept in this way, and the words are enough for what they are said to be."""
    k = 1 << parts.lg_k
    if has_window is not (2 * parts.coupons >= k) or bool(parts.window) is not has_window:
        raise _wrong("so many coupons are not kept so")
    if bool(parts.table) is not has_table or bool(parts.entries) is not has_table:
        raise _wrong("it has no table, and says that it has one")
    if not 0 < parts.coupons <= 64 * k or 8 * parts.coupons - 19 * k >= 57 * 8 * k:
        raise _wrong("it has more coupons than there can be")
    # A byte of the window takes one bit at least, an entry of the table two and its base bits.
    if 8 * len(parts.window) < k * has_window:
        raise _wrong("its window is too short")
    if 8 * len(parts.table) < parts.entries * (2 + _base_bits(parts.lg_k, parts.entries)):
        raise _wrong("its table is too short")
    # What was hashed surprises in one row of ten or so.
    if parts.entries > _ENTRIES_PER_ROW * k + _ENTRIES_OF_FEW_ROWS:
        raise _wrong("its table is too long")


def _base_bits(lg_k: int, entries: int) -> int:
    """How many bits of the distance between two rows are written as they are."""
    return max(((1 << lg_k) // entries).bit_length() - 1, 0) if entries else 0


def _wrong(reason: str) -> InvalidRows:
    return corrupt("a cpc", reason)
