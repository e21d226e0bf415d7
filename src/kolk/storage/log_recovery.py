"""How a log opens: what is intact, what is a torn tail, and what must be refused.

Sealed segments were synced before their successor existed, so they must be there whole; only their shape is
checked here (from the index file, else by header hops), so that opening takes time for the tail alone, and
their frames are verified when they are read. The last segment is verified frame by frame. Where its first
bad frame stands decides:

- below the watermark, or below what a later intact frame says was synced: those bytes were durable, perhaps
  acknowledged, and have changed since. ``Corrupted``; a flipped bit is refused, never skipped.
- otherwise it is the tail of writes that were never synced, so never acknowledged: it is cut off, together
  with the beginning of an atomic group that it leaves without its end.

One thing this cannot tell: rows that themselves contain log frames, in a torn frame whose header is lost,
may look like later frames. That errs towards refusing.
"""

import contextlib
import struct
from dataclasses import dataclass, replace

from kolk.codec.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    Glimpse,
    Verdict,
    declared_length,
    find_headers,
    glimpse,
    verify,
)
from kolk.errors import Corrupted, DiskFull, UnknownFormat
from kolk.runtime.disk import TEMPORARY_SUFFIX, Disk, Reader
from kolk.storage.index import SUMMARY_BYTES, SparseIndex, decode_summary
from kolk.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, Extent, Segment, parse_base
from kolk.storage.segment_reader import rebuild_index, refuse
from kolk.storage.trimmed import TRIMMED_BYTES, TRIMMED_NAME, Trimmed
from kolk.storage.watermark import WATERMARK_BYTES, WATERMARK_NAME, Watermark

_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Recovered:
    """A log as it was found, and the index of its last segment.

    The last segment's file may be longer than its ``size``: then the rest is torn, and must be cut off,
    durably, before anything is appended.
    """

    extent: Extent
    index: SparseIndex
    rows_bytes: int = 0
    """How much of the last segment is not behind its last row."""
    trimmed_ms: int | None = None
    """When the last frame was committed that was trimmed; None if nobody knows, or there was none."""


def recover(disk: Disk, folder: str) -> Recovered:
    """Find the log in ``folder``, else an empty one, and judge it; only index files are changed."""
    names = disk.list(folder)
    bases = sorted(base for name in names if (base := parse_base(name, LOG_SUFFIX)) is not None)
    watermark = _read_watermark(disk, folder, names)
    _check_watermark(folder, bases, watermark)
    if not bases:
        return Recovered(Extent((), Segment(base=0, end=0, size=0, last_timestamp_ms=0)), SparseIndex())
    sealed = tuple(_sealed_segment(disk, folder, base) for base in bases[:-1])
    for segment, following in zip(sealed, bases[1:], strict=True):
        if segment.end != following:
            raise Corrupted(
                f"{folder}: the log has a gap: {segment.log_name} ends at offset {segment.end}, and the next"
                f" segment starts at {following}; restore this bucket from a snapshot or a copy of the folder"
            )
    durable = {watermark.base: watermark.size} if watermark else {}
    for segment in sealed:
        _check_size(f"{folder}/{segment.log_name}", segment.size, durable.get(segment.base, 0))
    timestamp_ms = sealed[-1].last_timestamp_ms if sealed else 0
    last, index, rows_bytes = _last_segment(disk, folder, bases[-1], durable.get(bases[-1], 0), timestamp_ms)
    _remove_litter(disk, folder, names, bases)
    trimmed_ms = _read_trimmed(disk, folder, names, bases[0])
    if not last.size and trimmed_ms is not None:
        # Nothing else is left that says how far the times of this log have come, and they never go back.
        last = replace(last, last_timestamp_ms=max(last.last_timestamp_ms, trimmed_ms))
    return Recovered(Extent(sealed, last), index, rows_bytes, trimmed_ms)


def load_index(disk: Disk, folder: str, segment: Segment) -> SparseIndex:
    """The index of a sealed segment: from its file, or made again. Writes nothing, for it serves readers, who may have
    looked at the log when this segment was still growing."""
    path = f"{folder}/{segment.index_name}"
    if disk.exists(path):
        index = SparseIndex.decode(disk.read(path, 0, disk.size(path)), segment)
        if index is not None:
            return index
    log_path = f"{folder}/{segment.log_name}"
    with disk.open_reader(log_path) as reader:
        found, index = rebuild_index(reader, log_path, segment.base)
    if not found.continues(segment):
        refuse(log_path, found.size, "the segment is not the one that was opened")
    return index


def write_index(disk: Disk, folder: str, segment: Segment, index: SparseIndex) -> None:
    """Write the index file of a sealed segment, if the disk lets us: without it a log only opens slower."""
    with contextlib.suppress(OSError, DiskFull):
        disk.replace(f"{folder}/{segment.index_name}", index.encode(segment))


def _read_watermark(disk: Disk, folder: str, names: list[str]) -> Watermark | None:
    if WATERMARK_NAME not in names:
        return None
    return Watermark.decode(disk.read(f"{folder}/{WATERMARK_NAME}", 0, WATERMARK_BYTES))


def _read_trimmed(disk: Disk, folder: str, names: list[str], start: int) -> int | None:
    """A crash may have come before all was trimmed; what was is not younger for that."""
    found = Trimmed.decode(disk.read(f"{folder}/{TRIMMED_NAME}", 0, TRIMMED_BYTES)) if TRIMMED_NAME in names else None
    return found.timestamp_ms if found is not None and found.end >= start else None


def _check_watermark(folder: str, bases: list[int], watermark: Watermark | None) -> None:
    """A segment that was synced is there, unless it was trimmed."""
    if watermark is None or watermark.base in bases or (bases and watermark.base < bases[0]):
        return
    raise Corrupted(
        f"{folder}: the log segment that starts at offset {watermark.base} was durable and is gone;"
        " restore this bucket from a snapshot or a copy of the folder"
    )


def _check_size(path: str, size: int, durable: int) -> None:
    if size < durable:
        refuse(path, size, f"the file ends here, but {durable} bytes of it were durable")


def _sealed_segment(disk: Disk, folder: str, base: int) -> Segment:
    """The shape of a sealed segment, from the summary in its index file or by header hops."""
    nominal = Segment(base=base, end=base, size=0, last_timestamp_ms=0)
    path, index_path = f"{folder}/{nominal.log_name}", f"{folder}/{nominal.index_name}"
    summary = decode_summary(disk.read(index_path, 0, SUMMARY_BYTES)) if disk.exists(index_path) else None
    if summary is not None and summary.base == base:
        size = disk.size(path)
        _check_size(path, size, summary.size)
        # A longer file is one that went on growing after a crash took its successor's name away.
        if size == summary.size:
            return summary
    with disk.open_reader(path) as reader:
        segment, index = rebuild_index(reader, path, base)
    write_index(disk, folder, segment, index)
    return segment


def _last_segment(
    disk: Disk, folder: str, base: int, durable: int, timestamp_ms: int
) -> tuple[Segment, SparseIndex, int]:
    """The last segment up to its last whole group, and how much of it is not behind its last row; ``Corrupted`` if
    something after that was durable."""
    empty = Segment(base=base, end=base, size=0, last_timestamp_ms=timestamp_ms)
    path = f"{folder}/{empty.log_name}"
    with disk.open_reader(path) as reader:
        size = reader.size
        _check_size(path, size, durable)
        window = _Window(reader, size)
        segment, index, rows_bytes, stopped_at = _walk(path, window, empty)
        if segment.size == size:
            return segment, index, rows_bytes
        if segment.size < durable:
            refuse(path, stopped_at, f"{window.verdict(stopped_at).value}, though {durable} bytes were durable")
        later = _later_durable_frame(window, stopped_at, segment)
    if later is not None:
        refuse(
            path,
            stopped_at,
            f"damaged, though the intact frame at byte {later} was written after it was durable",
        )
    return segment, index, rows_bytes


def _walk(path: str, window: "_Window", segment: Segment) -> tuple[Segment, SparseIndex, int, int]:
    """Follow intact frames: the segment up to the last whole group, its index, where its rows end, and where the frames
    stopped."""
    index = SparseIndex()
    rows_bytes = 0
    position, offset, timestamp_ms = 0, segment.base, segment.last_timestamp_ms
    while position < window.size and window.verdict(position) is Verdict.INTACT:
        seen = _glimpse_intact(path, position, window)
        if seen.base_offset != offset or seen.timestamp_ms < timestamp_ms:
            refuse(path, position, f"offset {seen.base_offset} or its time does not follow offset {offset}")
        index.add(offset, seen.timestamp_ms, position)
        position += seen.length
        offset += seen.rows
        timestamp_ms = seen.timestamp_ms
        rows_bytes = position if seen.rows else rows_bytes
        if not seen.more:
            segment = Segment(base=segment.base, end=offset, size=position, last_timestamp_ms=timestamp_ms)
    return segment, index.before(segment.size), min(rows_bytes, segment.size), position


def _glimpse_intact(path: str, position: int, window: "_Window") -> Glimpse:
    """A header under a right checksum: what it cannot say is not a torn write, and is never cut off."""
    try:
        return glimpse(window.view(position), 0)
    except UnknownFormat as error:
        raise UnknownFormat(f"{path}, byte {position}: {error}") from None
    except Corrupted as error:
        refuse(path, position, str(error))


def _later_durable_frame(window: "_Window", damaged: int, segment: Segment) -> int | None:
    """Where an intact frame after the damage says that more than the good part of the segment was durable."""
    start = damaged + _damaged_length(window, damaged)
    while start + HEADER_BYTES <= window.size:
        chunk = window.reader.pread(start, _CHUNK_BYTES + HEADER_BYTES)
        for at in find_headers(chunk):
            position = start + at
            if _was_written_after(window, position, segment) and window.verdict(position) is Verdict.INTACT:
                return position
        start += _CHUNK_BYTES
    return None


def _damaged_length(window: "_Window", damaged: int) -> int:
    """How far the next frame may be: the damaged one's length, if its header is still in one piece."""
    try:
        return glimpse(window.view(damaged), 0).length
    except (Corrupted, struct.error):
        return ALIGNMENT


def _was_written_after(window: "_Window", position: int, segment: Segment) -> bool:
    """Whether the header says that more than the good part of the segment was durable before it."""
    try:
        seen = glimpse(window.view(position), 0)
    except Corrupted:
        return False
    return segment.size < seen.synced <= position and seen.base_offset >= segment.end


def _remove_litter(disk: Disk, folder: str, names: list[str], bases: list[int]) -> None:
    """Remove what crashes left behind: half-written files, and indexes of segments that are gone."""
    for name in names:
        base = parse_base(name, INDEX_SUFFIX)
        if name.endswith(TEMPORARY_SUFFIX) or (base is not None and base not in bases):
            disk.remove(f"{folder}/{name}")


class _Window:
    """The bytes of one segment file, a few megabytes at a time. Confined to one recovery."""

    def __init__(self, reader: Reader, size: int) -> None:
        self.reader = reader
        self.size = size
        self._view = memoryview(b"")
        self._start = 0

    def verdict(self, position: int) -> Verdict:
        """Judge the frame at ``position``."""
        view = self.view(position)
        length = declared_length(view, 0) if len(view) >= ALIGNMENT else 0
        if length > len(view) and position + length <= self.size:
            self._load(position, length)
            view = self._view
        return verify(view, 0)

    def view(self, position: int) -> memoryview:
        """The bytes from ``position`` on: at least a header, except where the file ends."""
        if not self._start <= position <= self._start + len(self._view) - HEADER_BYTES:
            self._load(position, HEADER_BYTES)
        return self._view[position - self._start :]

    def _load(self, position: int, length: int) -> None:
        self._view = memoryview(self.reader.pread(position, max(length, _CHUNK_BYTES)))
        self._start = position
