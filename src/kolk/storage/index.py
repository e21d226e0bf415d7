"""The sparse index of a segment: where to start looking for an offset or a time.

It is a cache of the segment's own headers, rebuilt by hopping over them whenever its file is missing, damaged
or of another size than the segment; so nothing here raises for what it finds on disk. It has an entry for a
segment's first frame and for every frame that starts 4 KiB or more after the last entry: who starts at an
entry passes over less than 4 KiB of frames before the one he wants. The file is written once, when the
segment is sealed; little endian::

    0   u32     crc32 of the bytes [8, 56): the summary, which is all that opening a log reads
    4   u32     crc32 of the entries
    8   u64     format = 1
    16  i64     size of the segment, bytes
    24  i64     base offset of the segment
    32  i64     end offset
    40  i64     commit timestamp of its last frame, ms
    48  i64     entries, n
    56  n x i64 base offsets of the indexed frames
        n x i64 their commit timestamps, ms
        n x i64 their positions in the segment
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from kolk.storage.segment import Segment

INDEX_INTERVAL_BYTES = 4_096
SUMMARY_BYTES = 56

_CRCS = struct.Struct("<II")
_SUMMARY = struct.Struct("<Q5q")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a frame starts, or a segment ends: the offset and the position in the file."""

    offset: int
    position: int


class SparseIndex:
    """The entries of one segment. It only ever grows, at its end, so that a lookup may run beside ``add``."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._timestamps = array("q")
        self._positions = array("q")

    def add(self, offset: int, timestamp_ms: int, position: int) -> None:
        """Tell of the next frame; it becomes an entry if the last one is far enough behind."""
        if self._positions and position - self._positions[-1] < INDEX_INTERVAL_BYTES:
            return
        self._offsets.append(offset)
        self._timestamps.append(timestamp_ms)
        # Last, because lookups count the positions: an entry exists when it is complete.
        self._positions.append(position)

    def before(self, position: int) -> "SparseIndex":
        """Another index with the entries before ``position``. This one stays as it is for those who look into it."""
        count = bisect_left(self._positions, position)
        index = SparseIndex()
        index._offsets, index._timestamps = self._offsets[:count], self._timestamps[:count]
        index._positions = self._positions[:count]
        return index

    def before_offset(self, offset: int) -> Place:
        """The last entry whose base offset is less than ``offset``, else the first.

        Less, not equal: frames without rows share the base of the frame that follows them.
        """
        return self._entry(bisect_left(self._offsets, offset, hi=len(self._positions)) - 1)

    def before_timestamp(self, timestamp_ms: int) -> Place:
        """The last entry older than ``timestamp_ms``, else the first."""
        return self._entry(bisect_left(self._timestamps, timestamp_ms, hi=len(self._positions)) - 1)

    def boundary(self, position: int, length: int, size: int) -> int:
        """Where to stop a read that starts at the frame at ``position``: the start of a frame, or ``size``.

        It lies at most ``length`` further on, unless one frame is longer than that: then soon after its end.
        """
        if position + length >= size:
            return size
        count = len(self._positions)
        at = bisect_right(self._positions, position + length, hi=count) - 1
        if at < 0 or self._positions[at] <= position:
            at += 1
        return min(self._positions[at], size) if at < count else size

    def _entry(self, at: int) -> Place:
        return Place(self._offsets[max(at, 0)], self._positions[max(at, 0)])

    def encode(self, segment: Segment) -> bytes:
        """The index file of ``segment``."""
        columns = (self._offsets, self._timestamps, self._positions)
        entries = b"".join(np.array(column, dtype="<i8").tobytes() for column in columns)
        summary = _SUMMARY.pack(
            _FORMAT, segment.size, segment.base, segment.end, segment.last_timestamp_ms, len(self._positions)
        )
        return _CRCS.pack(crc32(summary), crc32(entries)) + summary + entries

    @staticmethod
    def decode(data: bytes, segment: Segment) -> "SparseIndex | None":
        """The entries of an index file, if it is whole and speaks of ``segment``, or of what it has grown to since."""
        summary = decode_summary(data)
        if summary is None or not summary.continues(segment):
            return None
        entries = data[SUMMARY_BYTES:]
        if crc32(entries) != _CRCS.unpack_from(data)[1]:
            return None
        index = SparseIndex()
        columns = np.frombuffer(entries, dtype="<i8").astype(np.int64).reshape(3, -1)
        for column, values in zip((index._offsets, index._timestamps, index._positions), columns, strict=True):
            column.frombytes(values.tobytes())
        return index


def decode_summary(data: bytes) -> Segment | None:
    """The segment that an index file speaks of, read from its first bytes; None if they are not good."""
    if len(data) < SUMMARY_BYTES or crc32(data[_CRCS.size : SUMMARY_BYTES]) != _CRCS.unpack_from(data)[0]:
        return None
    format_, size, base, end, last_timestamp_ms, _ = _SUMMARY.unpack_from(data, _CRCS.size)
    if format_ != _FORMAT:
        return None
    return Segment(base=base, end=end, size=size, last_timestamp_ms=last_timestamp_ms)
