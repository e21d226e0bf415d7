"""``rbm32`` and ``rbm64``: sets of integers as Roaring bitmaps, and their union.

The state is Roaring's portable format, which its libraries for C, C++, Java, Go, Rust and Python read; of 64 bits the
portable one too. Fluss keeps ``rbm64`` in a format of Java's alone (that of ``Roaring64Bitmap``); it is not read here,
and refused as no bitmap. A state is canonical: equal sets are equal bytes, in whatever order they came about. Each
container is in its smallest form, and of two equally small ones it is an array, not runs: the library alone would leave
it as it happened to become.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

from kolk.codec.buffers import fixed_values
from kolk.errors import InvalidRows
from kolk.merge.aggregates import roaring
from kolk.model.nested import places_of

_RUN_COOKIE = b"\x3b\x30"


@dataclass(frozen=True, slots=True)
class Bitmaps32:
    """Sets of the integers from 0 to 2^32 - 1."""

    def values(self, inputs: pa.Array) -> NDArray[np.uint32]:
        """As numbers of 32 bits; one that is none is refused."""
        return _within(inputs, 0xFFFFFFFF).astype(np.uint32)

    def build(self, values: Any) -> bytes:
        """The bitmap of these."""
        return self.canonical(BitMap(values))

    def merged(self, states: Sequence[bytes]) -> bytes:
        """The union."""
        bitmaps = [BitMap.deserialize(state) for state in states]
        return self.canonical(BitMap.union(*bitmaps) if len(bitmaps) > 1 else bitmaps[0])

    def check(self, state: bytes) -> None:
        """Look at every byte."""
        roaring.check32(state)

    def read(self, state: bytes) -> BitMap:
        """The bitmap of bytes from anywhere."""
        self.check(state)
        return BitMap.deserialize(state)

    def canonical(self, bitmap: BitMap) -> bytes:
        """The bytes of this set. The bitmap is changed in its form, not in what it holds."""
        bitmap.run_optimize()
        data = bitmap.serialize()
        if _RUN_COOKIE not in data:
            return data
        tied = _tied(data, 0)[0]
        if not len(tied):
            return data
        plain = BitMap(tied.astype(np.uint32))
        bitmap -= plain
        bitmap |= plain
        return bitmap.serialize()


@dataclass(frozen=True, slots=True)
class Bitmaps64:
    """Sets of the integers from 0 to 2^64 - 1; a bigint gives those up to 2^63 - 1."""

    def values(self, inputs: pa.Array) -> NDArray[np.uint64]:
        """As numbers of 64 bits; a negative one is refused."""
        return _within(inputs, 2**64 - 1).astype(np.uint64)

    def build(self, values: Any) -> bytes:
        """The bitmap of these."""
        return self.canonical(BitMap64(values))

    def merged(self, states: Sequence[bytes]) -> bytes:
        """The union."""
        bitmaps = [BitMap64.deserialize(state) for state in states]
        return self.canonical(BitMap64.union(*bitmaps) if len(bitmaps) > 1 else bitmaps[0])

    def check(self, state: bytes) -> None:
        """Look at every byte."""
        roaring.check64(state)

    def read(self, state: bytes) -> BitMap64:
        """The bitmap of bytes from anywhere."""
        self.check(state)
        return BitMap64.deserialize(state)

    def canonical(self, bitmap: BitMap64) -> bytes:
        """The bytes of this set. The bitmap is changed in its form, not in what it holds."""
        bitmap.run_optimize()
        data = bitmap.serialize()
        if _RUN_COOKIE not in data:
            return data
        found: list[NDArray[np.uint64]] = []
        at = 8
        while at < len(data):
            upper = int.from_bytes(data[at : at + 4], "little")
            tied, at = _tied(data, at + 4)
            if len(tied):
                found.append(tied.astype(np.uint64) | np.uint64(upper << 32))
        if not found:
            return data
        plain = BitMap64(np.concatenate(found))
        bitmap -= plain
        bitmap |= plain
        return bitmap.serialize()


def _within(inputs: pa.Array, most: int) -> NDArray[Any]:
    if not len(inputs):
        return np.zeros(0, np.int64)
    if not pa.types.is_integer(inputs.type):
        raise InvalidRows(f"a bitmap holds integers, not values of {inputs.type}")
    least, largest = pc.min(inputs).as_py(), pc.max(inputs).as_py()
    if least < 0 or largest > most:
        wrong = least if least < 0 else largest
        raise InvalidRows(f"a bitmap holds integers from 0 to {most:,}, not {wrong:,}")
    return fixed_values(inputs, np.dtype(inputs.type.to_pandas_dtype()))


def _tied(data: bytes, at: int) -> tuple[NDArray[np.int64], int]:
    """The values of the containers of runs that would be as small as arrays, and where the bitmap ends."""
    found = roaring.layout(data, at)
    is_tied = found.is_run & (found.sizes == 2 * found.cards)
    if not is_tied.any():
        return np.zeros(0, np.int64), found.end
    owners, first, last = roaring.runs_of(found, is_tied)
    lengths = last - first + 1
    return np.repeat(found.keys[owners] << 16 | first, lengths) + places_of(lengths), found.end
