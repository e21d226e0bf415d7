"""How frames are read out of a log: over its segments, through their indexes.

A reader is given the log's extent at one moment and looks at nothing beyond it, so it needs no lock while
the log grows. It opens a segment's file for each read and lets it go afterwards: there is no shared
descriptor that trimming could close, and a thousand buckets hold no thousand files open for readers.
"""

import contextlib
from collections.abc import Callable, Generator

from kolk.codec.frame import FrameHeader
from kolk.model.change import Offset
from kolk.runtime.disk import Disk
from kolk.storage.index import SparseIndex
from kolk.storage.log_recovery import load_index
from kolk.storage.segment import Extent, Segment
from kolk.storage.segment_reader import Frame, read_frames, seek

READ_BYTES = 4 * 1024 * 1024
"""The most that is asked of the disk at once, unless one frame is longer."""

Wanted = Callable[[FrameHeader], bool]
"""Which frames without rows a reader wants."""

_READ_BYTES_MIN = 16 * 1024
_INDEXES_MAX = 4
"""How many sealed segments' indexes stay in memory: one has up to 800 KB, and readers are sequential."""


class LogReader:
    """Reads one log. Thread-safe; a segment file that is gone is a ``FileNotFoundError``."""

    def __init__(self, disk: Disk, folder: str, last: Segment, index: SparseIndex) -> None:
        # Constant after construction.
        self._disk = disk
        self._folder = folder
        # Changed one item at a time; readers that race here at worst load an index twice.
        self._growing = last.base
        self._indexes = {last.base: index}

    def read(
        self, extent: Extent, offset: int, limit_bytes: int, until: int | None, also: Wanted | None = None
    ) -> list[Frame]:
        """See ``Log.read``."""
        frames: list[Frame] = []
        if until is not None and offset >= until:
            return frames
        taken = 0
        with contextlib.closing(self.frames(extent, offset, limit_bytes)) as found:
            for frame in found:
                header = frame.header
                if header.rows or (also is not None and also(header)):
                    frames.append(frame)
                    taken += header.length
                # Do not even look at what follows: beyond ``until`` frames may be taken back while we read.
                if until is not None and header.end_offset >= until:
                    break
                if taken >= limit_bytes and header.rows:
                    break
        return frames

    def frames(self, extent: Extent, offset: int, limit_bytes: int = READ_BYTES) -> Generator[Frame, None, None]:
        """Every frame that contains or follows ``offset``; about ``limit_bytes`` are in memory at a time."""
        chunk_bytes = min(max(limit_bytes, _READ_BYTES_MIN), READ_BYTES)
        for segment in extent.from_offset(offset):
            if not segment.size:
                continue
            path, index = self._path(segment), self.index(segment)
            with self._disk.open_reader(path) as reader:
                place = seek(reader, path, segment, index, offset)
                yield from read_frames(reader, path, segment, index, place, chunk_bytes)

    def offset_at(self, extent: Extent, timestamp_ms: int, until: int | None) -> Offset:
        """See ``Log.offset_at``."""
        end = extent.end if until is None else min(until, extent.end)
        for segment in extent.segments:
            # Nothing of a segment that starts at the end is published: it may be taken back while we look.
            if segment.base >= end:
                break
            if segment.last_timestamp_ms < timestamp_ms:
                continue
            path, index = self._path(segment), self.index(segment)
            place = index.before_timestamp(timestamp_ms)
            if place.offset >= end:
                break
            with self._disk.open_reader(path) as reader:
                for frame in read_frames(reader, path, segment, index, place, _READ_BYTES_MIN):
                    header = frame.header
                    if header.timestamp_ms >= timestamp_ms:
                        return header.base_offset
                    if header.end_offset >= end:
                        break
        return Offset(end)

    def index(self, segment: Segment) -> SparseIndex:
        """The index of a segment: the growing one, or one of a few that are remembered, or loaded."""
        index = self._indexes.get(segment.base)
        if index is None:
            index = self._indexes[segment.base] = load_index(self._disk, self._folder, segment)
            self._forget_others()
        return index

    def grow(self, segment: Segment) -> None:
        """Start the index of a new last segment; the one before stays a while, like any other."""
        self._indexes[segment.base] = SparseIndex()
        self._growing = segment.base
        self._forget_others()

    def cut(self, segment: Segment) -> None:
        """The last segment is shorter again; who reads it now keeps the index that he has."""
        self._indexes[segment.base] = self.index(segment).before(segment.size)

    def forget(self, segment: Segment) -> None:
        """A segment is deleted."""
        self._indexes.pop(segment.base, None)

    def _forget_others(self) -> None:
        spare = [base for base in list(self._indexes) if base != self._growing]
        for base in spare[:-_INDEXES_MAX]:
            self._indexes.pop(base, None)

    def _path(self, segment: Segment) -> str:
        return f"{self._folder}/{segment.log_name}"
