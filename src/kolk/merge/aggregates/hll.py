"""``hll``: how many distinct values there are, by a HyperLogLog sketch of DataSketches.

The state is its compact form for registers of 8 bits (HLL_8, Spark's too); bytes that come in may be of any of its
forms. All numbers are little endian:

    0  u8   preamble ints: 2 a list, 3 a set, 10 registers     5  u8   flags: 4 empty, 8 compact, 16 out of order
    1  u8   1                                                  6  u8   a list's count; the least register of HLL_4
    2  u8   7, the family                                      7  u8   0 list, 1 set, 2 registers; + 4 x (0 HLL_4,
    3  u8   lg_k                                                       1 HLL_6, 2 HLL_8)
    4  u8   lg of the slots of a set, or of HLL_4's exceptions
    a list: coupons from 8 on; a set: u32 count, then coupons; a coupon is u32, a register's value << 26 | its address
    registers: f64 HIP, f64 and f64 sums of 2^-register (below 32, the others), u32 zeros, u32 exceptions, and then they

Two are united here, without the library: coupons as a set, registers by the greater value. So a state depends on
nothing but what was put in: coupons are in order, the number of them decides the form, and registers are marked as out
of order, for which DataSketches does not look at HIP. The library hashes and estimates.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.errors import InvalidRows
from kolk.merge.aggregates.sketches import LIBRARY, corrupt, hashable, put_all

Registers = NDArray[np.uint8]

_LIST, _SET, _REGISTERS = 0, 1, 2
_HLL_4, _HLL_6, _HLL_8 = 0, 1, 2
_EMPTY, _COMPACT, _OUT_OF_ORDER = 4, 8, 16
_PREAMBLE_INTS = {_LIST: 2, _SET: 3, _REGISTERS: 10}
_PREAMBLE = struct.Struct("<8B")
_SUMS = struct.Struct("<dddII")
_DATA = 40
_ADDRESS_BITS = 26
_ADDRESS = (1 << _ADDRESS_BITS) - 1
_VALUE_MAX = 63
_LIST_SLOTS, _LG_SET_MIN = 8, 5
_LG_K_OF_SETS = 8
_EXCEPTION = 15


@dataclass(frozen=True, slots=True)
class Hll:
    """Sketches of 2^lg_k registers. Finer ones are made coarser, coarser ones refused: they would coarsen the state."""

    lg_k: int

    def values(self, inputs: pa.Array) -> list[Any]:
        """As they are hashed."""
        return hashable(inputs)

    def build(self, values: Any) -> bytes:
        """The sketch of these."""
        sketch = LIBRARY.hll_sketch(self.lg_k, LIBRARY.HLL_8)
        put_all(sketch, values)
        return self.merged([sketch.serialize_compact()])

    def merged(self, states: Sequence[bytes]) -> bytes:
        """The sketch of all that they are sketches of."""
        coupons: set[int] = set()
        registers: Registers | None = None
        for state in states:
            found = _read(state)
            if isinstance(found, set):
                coupons |= found
            else:
                folded = found.reshape(-1, 1 << self.lg_k).max(axis=0)
                registers = folded if registers is None else np.maximum(registers, folded)
        if registers is None and (lg_slots := self._lg_slots(len(coupons))) is not None:
            return self._coupons(sorted(coupons), lg_slots)
        return self._registers(registers, coupons)

    def check(self, state: bytes) -> None:
        """Read it to the last byte."""
        _read(state)
        if state[3] < self.lg_k:
            raise corrupt("an hll", f"its lg_k is {state[3]}, the column's is {self.lg_k}; make it with that or more")

    def _lg_slots(self, count: int) -> int | None:
        """The lg of the slots of a list or set of so many coupons; None if they are kept as registers."""
        if count < _LIST_SLOTS:
            return _LIST_SLOTS.bit_length() - 1
        lg_slots = max(_LG_SET_MIN, (-(-4 * count // 3) - 1).bit_length())  # three quarters of them at most are taken
        return lg_slots if self.lg_k >= _LG_K_OF_SETS and lg_slots <= self.lg_k - 3 else None

    def _coupons(self, coupons: list[int], lg_slots: int) -> bytes:
        count, packed = len(coupons), struct.pack(f"<{len(coupons)}I", *coupons)
        if count < _LIST_SLOTS:
            flags = _COMPACT if count else _COMPACT | _EMPTY
            return _PREAMBLE.pack(2, 1, 7, self.lg_k, lg_slots, flags, count, _LIST | _HLL_8 << 2) + packed
        head = _PREAMBLE.pack(3, 1, 7, self.lg_k, lg_slots, _COMPACT, 0, _SET | _HLL_8 << 2)
        return head + count.to_bytes(4, "little") + packed

    def _registers(self, registers: Registers | None, coupons: set[int]) -> bytes:
        found = np.zeros(1 << self.lg_k, np.uint8) if registers is None else registers.copy()
        if coupons:
            given = np.fromiter(coupons, np.int64, len(coupons))
            slots = given & _ADDRESS & (len(found) - 1)
            np.maximum.at(found, slots, (given >> _ADDRESS_BITS).astype(np.uint8))
        counts = np.bincount(found, minlength=_VALUE_MAX + 1)
        shares = np.ldexp(counts.astype(np.float64), -np.arange(_VALUE_MAX + 1))
        flags = _COMPACT | _OUT_OF_ORDER
        head = _PREAMBLE.pack(10, 1, 7, self.lg_k, 0, flags, 0, _REGISTERS | _HLL_8 << 2)
        sums = _SUMS.pack(0.0, float(shares[:32].sum()), float(shares[32:].sum()), int(counts[0]), 0)
        return head + sums + found.tobytes()


def sketch_of(state: bytes) -> Any:
    """The library's sketch of bytes from anywhere, to ask it for its estimate."""
    _read(state)
    return LIBRARY.hll_sketch.deserialize(Hll(state[3]).merged([state]))


def _read(state: bytes) -> set[int] | Registers:
    """The coupons of a sketch, or its registers; InvalidRows if it is none."""
    if len(state) < _PREAMBLE.size:
        raise _wrong("it is cut off")
    ints, version, family, lg_k, lg_slots, flags, count, modes = _PREAMBLE.unpack_from(state)
    mode, form = modes & 3, modes >> 2
    if version != 1 or family != 7 or mode > _REGISTERS or form > _HLL_8 or ints != _PREAMBLE_INTS[mode]:
        raise _wrong("it does not begin as one does")
    if not 4 <= lg_k <= 21:
        raise _wrong(f"its lg_k is {lg_k}")
    if mode == _REGISTERS:
        return _read_registers(state, lg_k, form, count, is_compact=bool(flags & _COMPACT))
    if mode == _LIST:
        slots = count if flags & _COMPACT else _LIST_SLOTS
        return set() if flags & _EMPTY and not count else _read_coupons(state, 8, count, slots)
    if len(state) < 12:
        raise _wrong("it is cut off")
    count = int.from_bytes(state[8:12], "little")
    return _read_coupons(state, 12, count, count if flags & _COMPACT else 1 << min(lg_slots, lg_k))


def _read_coupons(state: bytes, at: int, count: int, slots: int) -> set[int]:
    if len(state) != at + 4 * slots:
        raise _wrong("it is of another length than it says")
    found = set(struct.unpack_from(f"<{slots}I", state, at))
    found.discard(0)
    if len(found) != count:
        raise _wrong("it has other coupons than it says")
    if found and min(found) <= _ADDRESS:
        raise _wrong("it has a coupon of no value")
    return found


def _read_registers(state: bytes, lg_k: int, form: int, least: int, *, is_compact: bool) -> Registers:
    k = 1 << lg_k
    size = {_HLL_4: k // 2, _HLL_6: (k * 3 >> 2) + 1, _HLL_8: k}[form]
    if len(state) < _DATA + size:
        raise _wrong("it is cut off")
    *_, exceptions = _SUMS.unpack_from(state, 8)
    # HLL_4 has a list of exceptions behind it, and in its updatable form room for more of them.
    slots, rest = divmod(len(state) - _DATA - size, 4)
    is_exact = slots == exceptions if is_compact else slots <= k
    if rest or (not is_exact if form == _HLL_4 else slots):
        raise _wrong("it is of another length than it says")
    data = np.frombuffer(state, np.uint8, size, _DATA)
    if form == _HLL_4:
        return _of_4_bits(data, np.frombuffer(state, "<u4", slots, _DATA + size), exceptions, least)
    if form == _HLL_6:
        bits = np.unpackbits(data, bitorder="little")[: 6 * k].reshape(k, 6)
        return np.packbits(bits, axis=1, bitorder="little").ravel()
    if int(data.max()) > _VALUE_MAX:
        raise _wrong("it has a register over 63")
    return data


def _of_4_bits(data: Registers, slots: NDArray[np.uint32], exceptions: int, least: int) -> Registers:
    """Registers as what they are above the least; those that are 15 or more above it are listed."""
    found = np.empty(2 * len(data), np.int64)
    found[0::2], found[1::2] = data & 15, data >> 4
    listed = slots[slots != 0].astype(np.int64)
    places, values = listed & _ADDRESS & (len(found) - 1), listed >> _ADDRESS_BITS
    if len(listed) != exceptions or not np.array_equal(np.sort(places), np.flatnonzero(found == _EXCEPTION)):
        raise _wrong("its exceptions are not those that it lists")
    found += least
    found[places] = values
    if int(found.max()) > _VALUE_MAX:
        raise _wrong("it has a register over 63")
    return found.astype(np.uint8)


def _wrong(reason: str) -> InvalidRows:
    return corrupt("an hll", reason)
