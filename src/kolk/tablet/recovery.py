"""How a bucket comes back: open its log and its KV, and replay what the KV lacks.

The KV reopens at its last flush; its applied offset tells where that was. From there the log's frames are done
again, rows and write tags, each in the version of the schema that it was written with, until both stand at the same
offset. The time this takes is bounded by the tail, never
by the table. A KV that is gone or damaged is no loss while the log still starts at 0: it is built anew. That of a log
table has nothing but write tags; those that its log still knows are enough.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from kolk.codec.frame import FrameHeader
from kolk.errors import Corrupted
from kolk.merge.append import Appender
from kolk.merge.changes import KvWrites, change_schema, writes_of
from kolk.merge.engine import Merger
from kolk.model.ids import BucketId, PlainTag
from kolk.runtime.clock import Clock
from kolk.runtime.disk import Disk
from kolk.storage.kv import Kv
from kolk.storage.log import Log
from kolk.storage.segment_reader import Frame
from kolk.tablet.dedup import RECORD as WRITER_RECORD
from kolk.tablet.dedup import Dedup, Writer
from kolk.tablet.signal import Signal
from kolk.tablet.tablet import APPLIED, Tablet, applied_offset, applied_value

_REPLAY_BYTES = 8 * 2**20
_log = logging.getLogger(__name__)


def open_tablet(
    bucket: BucketId,
    folder: Path,
    merger: Merger | Appender,
    *,
    disk: Disk,
    open_log: Callable[[str], Log],
    open_kv: Callable[[Path], Kv],
    clock: Clock,
    signal: Signal,
) -> Tablet:
    """The tablet of a bucket's folder, which is made if it is not there."""
    disk.make_folder(str(folder))
    log = open_log(str(folder / "log"))
    kv: Kv | None = None
    try:
        kv, dedup = _open_kv(folder / "kv", log, merger, disk, open_kv)
        _replay(log, kv, merger, dedup)
        return Tablet(bucket, merger, log, kv, dedup, clock, signal)
    except BaseException:
        if kv is not None:
            kv.close()
        log.close()
        raise


def _open_kv(
    folder: Path, log: Log, merger: Merger | Appender, disk: Disk, open_kv: Callable[[Path], Kv]
) -> tuple[Kv, Dedup]:
    try:
        return _with_tags(open_kv(folder))
    except Corrupted:
        if log.start > 0 and isinstance(merger, Merger):
            raise
        _log.warning("the KV in %s is damaged; it is built anew from the log", folder)
        disk.remove_tree(str(folder))
        return _with_tags(open_kv(folder))


def _with_tags(kv: Kv) -> tuple[Kv, Dedup]:
    try:
        return kv, Dedup(kv.records(WRITER_RECORD))
    except BaseException:
        kv.close()
        raise


def _replay(log: Log, kv: Kv, merger: Merger | Appender, dedup: Dedup) -> None:
    applied = applied_offset(kv.records(APPLIED).get(APPLIED))
    if applied > log.end:
        raise Corrupted(
            f"the log ends at {log.end}, before offset {applied} that the KV already has: acknowledged frames are"
            " missing (was the folder written with durability 'process' and the machine lost power?)"
        )
    if applied < log.start and isinstance(merger, Merger):
        raise Corrupted(f"the KV stands at {applied}, but the log starts at {log.start}: the frames between are gone")
    for frames in _portions(log, max(applied, log.start)):
        writers: dict[int, Writer] = {}
        for frame in frames:
            _note(frame.header, writers, dedup)
        records = dedup.remember(writers, frames[-1].header.timestamp_ms)
        records[APPLIED] = applied_value(frames[-1].header.end_offset)
        kv.apply([_writes(frame, merger) for frame in frames], records)


def _portions(log: Log, offset: int) -> Iterator[Sequence[Frame]]:
    """The frames from ``offset`` on, in portions that fit one WriteBatch."""
    while frames := log.read(offset, limit_bytes=_REPLAY_BYTES):
        yield frames
        offset = frames[-1].header.end_offset
        if offset == log.end:
            return


def _writes(frame: Frame, merger: Merger | Appender) -> KvWrites:
    if isinstance(merger, Appender) or not frame.header.rows:
        return KvWrites()
    codec = merger.codec.of(frame.header.schema_id)
    rows = pa.ipc.read_record_batch(frame.body, change_schema(codec.schema))
    return writes_of(rows, merger.codec.keys_of(codec.schema), codec)


def _note(header: FrameHeader, writers: dict[int, Writer], dedup: Dedup) -> None:
    """Remember a frame's tag as its put did; a tag that the KV has already is as it was."""
    tag = header.tag
    if isinstance(tag, PlainTag):
        writer = writers.get(tag.writer) or dedup.writer(tag)
        if all(seq != tag.seq for seq, _ in writer.kept):
            writers[tag.writer] = writer.after(tag.seq, header.end_offset, header.timestamp_ms)
