"""A copy of a log segment of which every frame was verified: damage is found when a backup is made, not when one is
needed."""

from collections.abc import Generator

from kolk.runtime.disk import Disk
from kolk.storage.copying import copying
from kolk.storage.index import Place
from kolk.storage.log_reader import READ_BYTES
from kolk.storage.segment import Segment
from kolk.storage.segment_reader import read_frames, rebuild_index, refuse


def copying_segment(disk: Disk, source: str, target: str, segment: Segment) -> Generator[int, None, tuple[int, str]]:
    """Copy the file of a segment, as long as it was when this was known of it; see ``copying``. The file may have grown
    since. Corrupted if a frame is not what was written."""
    size, digest = yield from copying(disk, source, target, segment.size)
    if size != segment.size:
        refuse(source, size, f"the file ends here, and the segment at {segment.size}")
    with disk.open_reader(target) as reader:
        found, index = rebuild_index(reader, source, segment.base)
        if found.end != segment.end:
            refuse(source, size, f"the segment ends at offset {found.end}, not {segment.end}")
        for _ in read_frames(reader, source, found, index, Place(segment.base, 0), READ_BYTES):
            pass  # each is verified on its way
    return size, digest
