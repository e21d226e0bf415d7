"""Whether bytes are a bitmap in Roaring's portable format, found out without handing them to the library.

The library reads fast and trusts what it reads: unsorted values or runs that overlap make a bitmap that answers wrongly
for ever after. So every byte is looked at here first. A bitmap of 32 bits, all numbers little endian:

    cookie        u32   12346, then u32 containers; or 12347 | (containers - 1) << 16, then a bit for each: is it runs?
    header        (u16 key, u16 cardinality - 1) for each container, keys ascending
    offsets       u32 for each, from the first byte; not there if there are runs and fewer than 4 containers
    containers    runs: u16 count, (u16 start, u16 length - 1) each; up to 4,096 values: u16 each; else 8,192 bytes

One of 64 bits is a u64 count, and then for each a u32, the upper half of its values, ascending, and one of 32 bits.
Runs that touch are refused as well as those that overlap, and so are bitmaps of nothing within one of 64 bits: nobody
writes them, and equal sets would differ in their bytes. It decodes nothing but what it needs to be sure.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kolk.codec.buffers import Mask, Rows
from kolk.errors import InvalidRows
from kolk.model.nested import places_of

_PLAIN_COOKIE, _RUN_COOKIE = 12346, 12347
_OFFSETS_FROM = 4
_ARRAY_MAX = 4096
_BITSET_BYTES = 8192
_LARGEST = 0xFFFF
_ONE_ARRAY = struct.Struct("<IIHHI")  # a bitmap of one container without runs: what most small ones are
_UPPER = struct.Struct("<I")
_COUNT = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the containers of a bitmap of 32 bits are."""

    keys: Rows
    cards: Rows
    is_run: Mask
    sizes: Rows
    """In bytes."""
    starts: Rows
    """In 16-bit words from the first container."""
    words: NDArray[np.uint16]
    """All containers."""
    end: int


def check32(data: bytes) -> None:
    """Raise InvalidRows if this is not one bitmap of 32 bits, and all of it."""
    if _end(data, 0) != len(data):
        raise _corrupt("there are bytes behind it")


def check64(data: bytes) -> None:
    """Raise InvalidRows if this is not one bitmap of 64 bits, and all of it."""
    if len(data) < _COUNT.size:
        raise _corrupt("it is cut off")
    (count,) = _COUNT.unpack_from(data)
    at, last = _COUNT.size, -1
    for _ in range(min(count, len(data))):
        if at + _UPPER.size > len(data):
            raise _corrupt("it is cut off")
        (upper,) = _UPPER.unpack_from(data, at)
        if upper <= last:
            raise _corrupt("its parts are not in order")
        start, last = at + _UPPER.size, upper
        at = _end(data, start)
        if at - start == 8:
            raise _corrupt("a part of it is empty")
    if at != len(data) or count > len(data):
        raise _corrupt("its parts are not as many as it says")


def layout(data: bytes, at: int) -> Layout:
    """The containers of the bitmap that starts here. The header is sure, what is in the containers is not."""
    count, is_run, header = _header(data, at)
    has_offsets = data[at] == _PLAIN_COOKIE & 0xFF or count >= _OFFSETS_FROM
    first = header + 4 * count + (4 * count if has_offsets else 0)
    if first > len(data):
        raise _corrupt("it is cut off")
    pairs = np.frombuffer(data, "<u2", 2 * count, header).astype(np.int64)
    keys, cards = pairs[0::2], pairs[1::2] + 1
    if (np.diff(keys) <= 0).any():
        raise _corrupt("its keys are not in order")
    words = np.frombuffer(data, "<u2", (len(data) - first) // 2, first)
    sizes = np.where(cards <= _ARRAY_MAX, 2 * cards, _BITSET_BYTES)
    if has_offsets:
        offsets = np.frombuffer(data, "<u4", count, header + 4 * count).astype(np.int64) - (first - at)
        runs = np.flatnonzero(is_run)
        places = offsets[runs]
        if len(runs) and (places.min() < 0 or places.max() // 2 >= len(words) or (places % 2).any()):
            raise _corrupt("its offsets are wrong")
        sizes[runs] = 2 + 4 * words[places // 2].astype(np.int64)
        if not np.array_equal(np.cumsum(sizes) - sizes, offsets):
            raise _corrupt("its offsets are wrong")
    else:
        _measure_runs(sizes, is_run, words)
    end = first + int(sizes.sum())
    if end > len(data):
        raise _corrupt("it is cut off")
    starts = (np.cumsum(sizes) - sizes) // 2
    return Layout(keys, cards, is_run, sizes, starts, words[: (end - first) // 2], end)


def runs_of(found: Layout, which: Mask) -> tuple[Rows, Rows, Rows]:
    """The runs of some containers: the container of each, its first value and its last, without the key."""
    chosen = np.flatnonzero(which)
    counts = found.words[found.starts[chosen]].astype(np.int64)
    owners = np.repeat(chosen, counts)
    places = found.starts[owners] + 1 + 2 * places_of(counts)
    first = found.words[places].astype(np.int64)
    return owners, first, first + found.words[places + 1]


def _header(data: bytes, at: int) -> tuple[int, Mask, int]:
    """How many containers there are, which of them are runs, and where the header starts."""
    if at + 8 > len(data):
        raise _corrupt("it is cut off")
    cookie, count = struct.unpack_from("<II", data, at)
    if cookie == _PLAIN_COOKIE:
        if count > _LARGEST + 1 or at + 8 + 8 * count > len(data):
            raise _corrupt("it has fewer containers than it says")
        return count, np.zeros(count, np.bool_), at + 8
    if cookie & _LARGEST != _RUN_COOKIE:
        raise _corrupt("it does not begin as one does")
    count = (cookie >> 16) + 1
    header = at + 4 + (count + 7) // 8
    if header + 4 * count > len(data):
        raise _corrupt("it has fewer containers than it says")
    bits = np.unpackbits(np.frombuffer(data, np.uint8, header - at - 4, at + 4), bitorder="little")
    if bits[count:].any():
        raise _corrupt("it says of more containers than it has that they are runs")
    return count, bits[:count].astype(np.bool_), header


def _measure_runs(sizes: Rows, is_run: Mask, words: NDArray[np.uint16]) -> None:
    """Without offsets there are three containers at most: one after the other."""
    at = 0
    for place in range(len(sizes)):
        if is_run[place]:
            if at >= len(words):
                raise _corrupt("it is cut off")
            sizes[place] = 2 + 4 * int(words[at])
        at += int(sizes[place]) // 2


def _end(data: bytes, at: int) -> int:
    """Where the bitmap of 32 bits that starts here ends; InvalidRows if it is none."""
    if at + _ONE_ARRAY.size <= len(data):
        cookie, count, _, less, offset = _ONE_ARRAY.unpack_from(data, at)
        if cookie == _PLAIN_COOKIE and count == 1 and less < _ARRAY_MAX and offset == _ONE_ARRAY.size:
            return _end_of_array(data, at + _ONE_ARRAY.size, less + 1)
    found = layout(data, at)
    if len(found.keys):
        _check_arrays(found)
        _check_bitsets(found)
        _check_runs(found)
    return found.end


def _end_of_array(data: bytes, at: int, count: int) -> int:
    end = at + 2 * count
    if end > len(data):
        raise _corrupt("it is cut off")
    if count > 1:
        values = np.frombuffer(data, "<u2", count, at)
        if not (values[1:] > values[:-1]).all():
            raise _corrupt("its values are not in order")
    return end


def _check_arrays(found: Layout) -> None:
    is_array = ~found.is_run & (found.cards <= _ARRAY_MAX)
    words, counts = found.words, found.sizes // 2
    is_start = np.zeros(len(words), np.bool_)
    is_start[found.starts] = True
    is_checked = np.repeat(is_array, counts)[1:] & ~is_start[1:]
    if (is_checked & (words[1:] <= words[:-1])).any():
        raise _corrupt("its values are not in order")


def _check_bitsets(found: Layout) -> None:
    is_bitset = ~found.is_run & (found.cards > _ARRAY_MAX)
    if is_bitset.any():
        counts: NDArray[Any] = np.add.reduceat(np.bitwise_count(found.words), found.starts, dtype=np.int64)
        if (counts[is_bitset] != found.cards[is_bitset]).any():
            raise _corrupt("it has other values than it says")


def _check_runs(found: Layout) -> None:
    if not found.is_run.any():
        return
    owners, first, last = runs_of(found, found.is_run)
    counts = np.bincount(owners, last - first + 1, minlength=len(found.cards)).astype(np.int64)
    if (counts[found.is_run] != found.cards[found.is_run]).any():
        raise _corrupt("it has other values than it says")
    is_next = owners[1:] == owners[:-1]
    if (last > _LARGEST).any() or (is_next & (first[1:] <= last[:-1] + 1)).any():
        raise _corrupt("its runs are not in order")


def _corrupt(reason: str) -> InvalidRows:
    return InvalidRows(f"these bytes are not a bitmap in Roaring's portable format: {reason}")
