"""Frames out of a segment file: found through the sparse index, verified one by one.

What a reader gets from here matches its checksum and stands where the order of offsets wants it; anything
else is ``Corrupted``, with file and position, and is never skipped. Whether a damaged frame at the end of a
log is merely torn is not judged here but in ``log_recovery``, once, when the log opens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from kolk.codec.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    FrameHeader,
    Glimpse,
    Verdict,
    decode_header,
    glimpse,
    verify,
)
from kolk.errors import Corrupted, UnknownFormat
from kolk.runtime.disk import Reader
from kolk.storage.index import INDEX_INTERVAL_BYTES, Place, SparseIndex
from kolk.storage.segment import Segment

_HOP_BYTES = 64 * 1024
"""One read's worth of headers while hopping: many small frames, or one header and a bit of its body."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A verified frame: its header, and its body without padding, which shares the memory of the read."""

    header: FrameHeader
    body: pa.Buffer


def seek(reader: Reader, path: str, segment: Segment, index: SparseIndex, offset: int) -> Place:
    """The first frame that contains ``offset`` or follows it, frames without rows included.

    The headers on the way are not verified: one that misleads leads to a place that ``read_frames`` refuses.
    """
    entry = index.before_offset(offset)
    base, position = entry.offset, entry.position
    # Any frame that starts further on has an entry of its own, with a base that is not below the offset.
    window = memoryview(reader.pread(position, INDEX_INTERVAL_BYTES + HEADER_BYTES))
    at = 0
    while position + at < segment.size and at + HEADER_BYTES <= len(window):
        seen = _glimpse(reader, path, position + at, window[at:])
        if base >= offset or base + seen.rows > offset:
            return Place(base, position + at)
        at += seen.length
        base += seen.rows
    if base < offset:
        refuse(path, position, f"offset {offset} is not where the frames before it lead")
    return Place(base, position + at)


def read_frames(
    reader: Reader, path: str, segment: Segment, index: SparseIndex, place: Place, chunk_bytes: int
) -> Iterator[Frame]:
    """Every frame from ``place`` on, read in chunks that end where a frame does."""
    position, offset = place.position, place.offset
    while position < segment.size:
        stop = index.boundary(position, chunk_bytes, segment.size)
        chunk = reader.pread(position, stop - position)
        view = memoryview(chunk)
        at = 0
        while position + at < stop:
            verdict = verify(view, at)
            if verdict is not Verdict.INTACT:
                refuse(path, position + at, verdict.value)
            header = _decode(path, position + at, view[at:])
            if header.base_offset != offset:
                refuse(path, position + at, f"its base offset is {header.base_offset}, not {offset}")
            yield Frame(header, chunk.slice(at + header.header_length, header.body_length))
            at += header.length
            offset += header.rows
        position = stop
    if offset != segment.end:
        refuse(path, position, f"the segment ends at offset {offset}, not {segment.end}")


def rebuild_index(reader: Reader, path: str, base: int) -> tuple[Segment, SparseIndex]:
    """Make a sealed segment's index and summary again by hopping over its headers; bodies are not read."""
    index = SparseIndex()
    size = reader.size
    position, offset, timestamp_ms, more = 0, base, 0, False
    window, start = memoryview(b""), 0
    while position < size:
        if position - start + HEADER_BYTES > len(window):
            window, start = memoryview(reader.pread(position, _HOP_BYTES)), position
        seen = _glimpse(reader, path, position, window[position - start :])
        if seen.base_offset != offset or seen.timestamp_ms < timestamp_ms:
            refuse(path, position, f"offset {seen.base_offset} or its time does not follow offset {offset}")
        index.add(offset, seen.timestamp_ms, position)
        position += seen.length
        offset += seen.rows
        timestamp_ms, more = seen.timestamp_ms, seen.more
    if position != size or more:
        refuse(path, size, "the file ends in the middle of a frame or of an atomic group")
    return Segment(base=base, end=offset, size=size, last_timestamp_ms=timestamp_ms), index


def refuse(path: str, position: int, why: str) -> NoReturn:
    """Raise ``Corrupted`` for the frame at ``position``."""
    raise Corrupted(
        f"{path}: the log frame at byte {position} is not what was written: {why};"
        " nothing was changed; restore this bucket from a snapshot or a copy of the folder"
    )


def _glimpse(reader: Reader, path: str, position: int, view: memoryview) -> Glimpse:
    """The header at ``position``, of which ``view`` holds the bytes; its frame is not verified."""
    if len(view) < HEADER_BYTES:
        refuse(path, position, Verdict.SHORT.value)
    try:
        return glimpse(view, 0)
    except UnknownFormat as error:
        # A flipped bit in the format byte must not send anyone off to upgrade: ask the checksum.
        whole = memoryview(reader.pread(position, min(FRAME_BYTES_MAX, reader.size - position)))
        if verify(whole, 0) is Verdict.INTACT:
            raise UnknownFormat(f"{path}, byte {position}: {error}") from None
        refuse(path, position, str(error))
    except Corrupted as error:
        refuse(path, position, str(error))


def _decode(path: str, position: int, view: memoryview) -> FrameHeader:
    """The header of a frame whose checksum has been verified."""
    try:
        return decode_header(view)
    except UnknownFormat as error:
        raise UnknownFormat(f"{path}, byte {position}: {error}") from None
    except Corrupted as error:
        refuse(path, position, str(error))
