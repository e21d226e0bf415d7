"""Bytes that went wrong, and bytes that were made to: the same for all formats of states."""

import random
import struct
from collections.abc import Iterator

PER_SEED = 60


def mutations(data: bytes, seed: int) -> Iterator[bytes]:
    """Cut off, too long, with flipped bits, with other numbers in the header, with noise for a tail."""
    rng = random.Random(seed)
    for _ in range(PER_SEED):
        yield bytes(rng.choice(_KINDS)(bytearray(data), rng))


def _cut(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randint(0, len(data))]


def _longer(data: bytearray, rng: random.Random) -> bytearray:
    return data + rng.randbytes(rng.randint(1, 9))


def _flipped(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _header(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(min(40, len(data)))] = rng.randrange(256)
    return data


def _count(data: bytearray, rng: random.Random) -> bytearray:
    if len(data) >= 12:
        at = 4 * rng.randrange(min(len(data) // 4, 10))
        (value,) = struct.unpack_from("<I", data, at)
        struct.pack_into("<I", data, at, (value + rng.choice([-1, 1, 2, 100, 1 << 20, -(1 << 10)])) & 0xFFFFFFFF)
    return data


def _noise(data: bytearray, rng: random.Random) -> bytearray:
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(len(data) - at)


_KINDS = (_cut, _longer, _flipped, _header, _count, _noise)
