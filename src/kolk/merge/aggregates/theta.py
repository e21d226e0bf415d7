"""``theta``: how many distinct values there are, by a theta sketch of DataSketches, which sets can be computed with.

The state is its compact ordered form, serial version 3, all numbers little endian:

    0  u8   preamble longs: 1 empty or one hash, 2 all hashes, 3 some of them      5  u8   flags: 4 empty, 8 compact,
    1  u8   3                                                                              16 ordered
    2  u8   3, the family                                                          6  u16  hash of the seed
    3  u16  0
    then (longs >= 2) u32 count, u32 0, (longs = 3) u64 theta, and the hashes: u64, ascending, above 0 and below theta

A state of 2^lg_k is the so many smallest hashes of all that was put in, and theta, the next one: by that alone union is
associative, and equal contents are equal bytes. It is computed here; the library hashes and estimates. Other forms of
the format, the compressed and the updatable one and those of old versions, are refused: let the writer compact them.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.errors import InvalidRows
from kolk.merge.aggregates.sketches import LIBRARY, SEED_HASH, corrupt, hashable, put_all

_PREAMBLE = struct.Struct("<6BH")
_LONG = 8
_EMPTY, _BIG_ENDIAN, _FLAGS = 4, 1, 2 | 8 | 16
_ALL = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Hashes:
    """What a sketch holds: all hashes below theta, in order."""

    hashes: NDArray[np.uint64]
    theta: int = _ALL

    def below(self, theta: int) -> NDArray[np.uint64]:
        """Those below a theta that is not greater."""
        return self.hashes if theta == self.theta else self.hashes[: np.searchsorted(self.hashes, np.uint64(theta))]


@dataclass(frozen=True, slots=True)
class Theta:
    """Sketches of up to 2^lg_k hashes. Larger ones are made smaller; what came from smaller ones stays less exact."""

    lg_k: int

    def values(self, inputs: pa.Array) -> list[Any]:
        """As they are hashed."""
        return hashable(inputs)

    def build(self, values: Any) -> bytes:
        """The sketch of these."""
        sketch = LIBRARY.update_theta_sketch(self.lg_k)
        put_all(sketch, values)
        return self.merged([sketch.compact().serialize()])

    def merged(self, states: Sequence[bytes]) -> bytes:
        """The sketch of all that they are sketches of."""
        found = union([read(state) for state in states])
        k = 1 << self.lg_k
        if len(found.hashes) > k:
            found = Hashes(found.hashes[:k], int(found.hashes[k]))
        return write(found)

    def check(self, state: bytes) -> None:
        """Read it to the last byte."""
        read(state)


def union(sketches: Sequence[Hashes]) -> Hashes:
    """All hashes below the least theta."""
    theta = min(sketch.theta for sketch in sketches)
    if len(sketches) == 1:
        return sketches[0]
    return Hashes(np.unique(np.concatenate([sketch.below(theta) for sketch in sketches])), theta)


def intersection(one: Hashes, other: Hashes) -> Hashes:
    """The hashes below both thetas that both have."""
    theta = min(one.theta, other.theta)
    return Hashes(np.intersect1d(one.below(theta), other.below(theta), assume_unique=True), theta)


def difference(one: Hashes, other: Hashes) -> Hashes:
    """The hashes below both thetas that only the first has."""
    theta = min(one.theta, other.theta)
    return Hashes(np.setdiff1d(one.below(theta), other.below(theta), assume_unique=True), theta)


def sketch_of(state: bytes) -> Any:
    """The library's sketch of bytes from anywhere, to ask it for its estimate."""
    return LIBRARY.compact_theta_sketch.deserialize(write(read(state)))


def write(found: Hashes) -> bytes:
    """The bytes of these hashes."""
    count, is_exact = len(found.hashes), found.theta == _ALL
    longs = 3 if not is_exact else 1 if count <= 1 else 2
    flags = _FLAGS if count or not is_exact else _FLAGS | _EMPTY
    head = _PREAMBLE.pack(longs, 3, 3, 0, 0, flags, SEED_HASH)
    if longs > 1:
        head += struct.pack("<II", count, 0)
    if longs == 3:
        head += struct.pack("<Q", found.theta)
    return head + found.hashes.astype("<u8").tobytes()


def read(state: bytes) -> Hashes:
    """What bytes from anywhere hold; InvalidRows if they are no sketch."""
    if len(state) < _PREAMBLE.size or len(state) % _LONG:
        raise _wrong("it is cut off")
    longs, version, family, _, _, flags, seed_hash = _PREAMBLE.unpack_from(state)
    if family != 3 or version != 3 or flags & _BIG_ENDIAN or not 1 <= longs <= 3:
        raise _wrong("it does not begin as a compact one of serial version 3 does")
    if seed_hash != SEED_HASH and not flags & _EMPTY:
        raise _wrong("it was made with another seed than DataSketches' own")
    if len(state) < _LONG * longs:
        raise _wrong("it is cut off")
    words = np.frombuffer(state, "<u8")
    if flags & _EMPTY:
        if len(words) != longs:
            raise _wrong("it says that it is empty")
        return Hashes(np.zeros(0, np.uint64))
    count = 1 if longs == 1 else int.from_bytes(state[8:12], "little")
    theta = int(words[2]) if longs == 3 else _ALL
    hashes = words[longs:]
    if len(hashes) != count:
        raise _wrong("it is of another length than it says")
    hashes = np.sort(hashes).astype(np.uint64)
    if not 0 < theta <= _ALL or (count and not 0 < int(hashes[0]) <= int(hashes[-1]) < theta):
        raise _wrong("a hash is not below its theta")
    if (hashes[1:] == hashes[:-1]).any():
        raise _wrong("a hash stands there twice")
    return Hashes(hashes, theta)


def _wrong(reason: str) -> InvalidRows:
    return corrupt("a theta", reason)
