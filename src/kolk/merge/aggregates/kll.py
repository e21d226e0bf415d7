"""``kll``: ranks and quantiles of numbers, by a KLL sketch of doubles of DataSketches.

The state is its serialized form, all numbers little endian:

    0  u8   preamble ints: 2 empty or one value, 5 more      4  u16  k
    1  u8   1, or 2 with one value                           6  u8   8, the smallest level
    2  u8   15, the family                                   7  u8   0
    3  u8   flags: 1 empty, 2 lowest level sorted, 4 one value
    one value: f64; more: u64 n, u16 least k, u8 levels, u8 0, u32 where each level starts, f64 least, f64 greatest,
    and the values, level by level; one of level h stands for 2^h values, and all levels but the lowest are sorted

Every number of these is checked before the library reads them. NaN is no number and passed over. What a sketch drops
when it is full it draws by lot, so two of the same values differ in their bytes, and a union depends on its order
within the error that it promises; what adds nothing leaves the bytes as they are.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.errors import AggregateOverflow, InvalidRows
from kolk.merge.aggregates.sketches import LIBRARY, corrupt

COUNT_MAX = 2**60
_PREAMBLE = struct.Struct("<4BHBB")
_COUNTS = struct.Struct("<QHBB")
_LEVELS_AT = 20
_SMALLEST_LEVEL = 8
_LEVELS_MAX = 60
_EMPTY, _SORTED, _SINGLE = 1, 2, 4
_DEPTH_OF_ONE_STEP = 30


@dataclass(frozen=True, slots=True)
class Kll:
    """Sketches of this k. Larger ones are made smaller; smaller ones are refused, since they would spoil the state."""

    k: int

    def values(self, inputs: pa.Array) -> NDArray[np.float64]:
        """As doubles."""
        if len(inputs) and not pa.types.is_integer(inputs.type) and not pa.types.is_floating(inputs.type):
            raise InvalidRows(f"a kll sketch is made of numbers, not of values of {inputs.type}")
        return inputs.to_numpy(zero_copy_only=False).astype(np.float64)

    def build(self, values: Any) -> bytes:
        """The sketch of these."""
        sketch = LIBRARY.kll_doubles_sketch(self.k)
        numbers = np.asarray(values, np.float64)
        sketch.update(numbers[~np.isnan(numbers)])
        return sketch.serialize()

    def merged(self, states: Sequence[bytes]) -> bytes:
        """The sketch of all that they are sketches of."""
        filled = [state for state in states if not state[3] & _EMPTY]
        if len(filled) <= 1 and (filled or states)[0][4:6] == struct.pack("<H", self.k):
            return (filled or states)[0]
        if sum(map(_count, filled)) >= COUNT_MAX:
            raise AggregateOverflow(f"a kll sketch counts up to {COUNT_MAX:,} values; nothing was written")
        whole = LIBRARY.kll_doubles_sketch(self.k)
        for state in filled:
            whole.merge(LIBRARY.kll_doubles_sketch.deserialize(state))
        return whole.serialize()

    def check(self, state: bytes) -> None:
        """Look at every number."""
        least = _check(state)
        if least < self.k:
            raise corrupt("a kll", f"its k is {least}, the column's is {self.k}; make it with that or more")


def sketch_of(state: bytes) -> Any:
    """The library's sketch of bytes from anywhere, to ask it for ranks and quantiles."""
    _check(state)
    return LIBRARY.kll_doubles_sketch.deserialize(state)


def _count(state: bytes) -> int:
    return 1 if state[3] & _SINGLE else int.from_bytes(state[8:16], "little")


def _check(state: bytes) -> int:
    """The least k of all that went into it; InvalidRows if it is no sketch."""
    if len(state) < _PREAMBLE.size:
        raise _wrong("it is cut off")
    ints, version, family, flags, k, smallest, _ = _PREAMBLE.unpack_from(state)
    is_small = bool(flags & (_EMPTY | _SINGLE))
    known = (2, 2 if flags & _SINGLE else 1) if is_small else (5, 1)
    if (ints, version) != known or family != 15 or flags > 7 or flags & (_EMPTY | _SINGLE) == _EMPTY | _SINGLE:
        raise _wrong("it does not begin as one does")
    if k < 8 or smallest != _SMALLEST_LEVEL:
        raise _wrong(f"its k is {k}, and its smallest level {smallest}")
    if not is_small:
        return _check_levels(state, k, is_sorted=bool(flags & _SORTED))
    if len(state) != (_PREAMBLE.size if flags & _EMPTY else _PREAMBLE.size + 8):
        raise _wrong("it is of another length than it says")
    if flags & _SINGLE and np.isnan(np.frombuffer(state, "<f8", 1, _PREAMBLE.size))[0]:
        raise _wrong("it has a value that is no number")
    return k


def _check_levels(state: bytes, k: int, *, is_sorted: bool) -> int:
    if len(state) < _LEVELS_AT:
        raise _wrong("it is cut off")
    count, least_k, levels, _ = _COUNTS.unpack_from(state, _PREAMBLE.size)
    if not 8 <= least_k <= k or not 1 <= levels <= _LEVELS_MAX or not 1 < count < COUNT_MAX:
        raise _wrong(f"it says {count:,} values in {levels} levels, of k {k} and {least_k}")
    values_at = _LEVELS_AT + 4 * levels
    if len(state) < values_at + 16:
        raise _wrong("it is cut off")
    bounds = np.append(np.frombuffer(state, "<u4", levels, _LEVELS_AT).astype(np.int64), _capacity(k, levels))
    sizes = np.diff(bounds)
    if not sizes[-1]:
        raise _wrong("its highest level is empty")  # the library would make room for fewer levels than it has
    if (sizes < 0).any() or len(state) != values_at + 16 + 8 * int(sizes.sum()):
        raise _wrong("it is of another length than its levels")
    if sum(size << height for height, size in enumerate(sizes.tolist())) != count:
        raise _wrong("it has other values than it says")
    least, greatest, *_ = numbers = np.frombuffer(state, "<f8", -1, values_at)
    values = numbers[2:]
    if not (least <= greatest and (values >= least).all() and (values <= greatest).all()):
        raise _wrong("a value is not within its least and greatest")
    is_checked = np.ones(len(values), np.bool_)
    starts = (bounds - bounds[0])[:-1]
    is_checked[starts[starts < len(values)]] = False
    if not is_sorted:
        is_checked[: int(sizes[0])] = False
    if (is_checked[1:] & (values[1:] < values[:-1])).any():
        raise _wrong("a level is not sorted")
    return least_k


def _capacity(k: int, levels: int) -> int:
    """How many values a sketch of so many levels has room for: they end where its room does."""
    return sum(max(_SMALLEST_LEVEL, _level_capacity(k, depth)) for depth in range(levels))


def _level_capacity(k: int, depth: int) -> int:
    """k times two thirds for each step from the top, in the roundings of the format."""
    if depth > _DEPTH_OF_ONE_STEP:
        half = depth // 2
        return _level_capacity(_level_capacity(k, half), depth - half)
    return ((k << depth + 1) // 3**depth + 1) >> 1


def _wrong(reason: str) -> InvalidRows:
    return corrupt("a kll", reason)
