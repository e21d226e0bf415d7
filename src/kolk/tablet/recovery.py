"""How a bucket comes back: open its log and its KV, and replay what the KV lacks.

The KV reopens at its last flush; its applied offset tells where that was. From there the log's frames are done
again, rows and write tags, each in the version of the schema that it was written with, until both stand at the same
offset. The time this takes is bounded by the tail, never by the table.

A KV that is gone, damaged, or older than the log begins is no loss: the newest snapshot that is whole takes its place,
one before it if that is damaged, and while the log still starts at 0 it is built anew from there. If none of that can
be, nothing is served. The KV of a log table has nothing but write tags; those that its log still knows are enough.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from kolk.codec.frame import FrameHeader
from kolk.errors import Corrupted
from kolk.merge.append import Appender
from kolk.merge.changes import KvWrites, change_schema, writes_of
from kolk.merge.engine import Merger
from kolk.model.ids import BucketId, PlainTag, TransactionTag
from kolk.model.snapshot import Snapshot
from kolk.runtime.clock import WatchedClock
from kolk.runtime.disk import Disk
from kolk.storage.kv import DAMAGED, Kv
from kolk.storage.log import Log
from kolk.storage.segment_reader import Frame
from kolk.tablet.dedup import RECORD as WRITER_RECORD
from kolk.tablet.dedup import Dedup, Writer
from kolk.tablet.owning import RECORD as OWNER_RECORD
from kolk.tablet.owning import Guard, OwnerView, Owning
from kolk.tablet.records import (
    APPLIED,
    CSN,
    ROWS,
    applied_offset,
    counted,
    is_counted,
    last_csn,
    row_count,
    state_records,
)
from kolk.tablet.signal import Signal
from kolk.tablet.tablet import Tablet

_REPLAY_BYTES = 8 * 2**20
_REPLAY_FRAMES = 16_384
_log = logging.getLogger(__name__)


class Copies(Protocol):
    """The snapshots of a bucket, as far as recovery needs them."""

    def newest_first(self) -> Sequence[Snapshot]:
        """Those that are not known to be damaged."""
        ...

    def check(self, snapshot: Snapshot) -> None:
        """Read all of one; Corrupted if it is damaged, which is then known."""
        ...

    def restore(self, snapshot: Snapshot, folder: str) -> None:
        """Copy one into an existing folder; Corrupted if it is damaged, which is then known."""
        ...


class NoCopies:
    """Of a bucket that has no snapshots."""

    def newest_first(self) -> Sequence[Snapshot]:
        """See ``Copies``."""
        return ()

    def check(self, snapshot: Snapshot) -> None:
        """See ``Copies``."""
        raise AssertionError("there is none")

    def restore(self, snapshot: Snapshot, folder: str) -> None:
        """See ``Copies``."""
        raise AssertionError("there is none")


def open_tablet(
    bucket: BucketId,
    folder: Path,
    merger: Merger | Appender,
    *,
    disk: Disk,
    open_log: Callable[[str], Log],
    open_kv: Callable[[Path], Kv],
    clock: WatchedClock,
    signal: Signal,
    copies: Copies | None = None,
    guard: Guard = dict,
) -> Tablet:
    """The tablet of a bucket's folder, which is made if it is not there."""
    disk.make_folder(str(folder))
    log = open_log(str(folder / "log"))
    kv: Kv | None = None
    try:
        kv = _open_kv(folder / "kv", log, merger, disk, open_kv, copies or NoCopies())
        dedup = Dedup(kv.records(WRITER_RECORD), clock)
        owning = Owning(kv.records(OWNER_RECORD), guard)
        rows, csn = _replay(log, kv, merger, dedup, owning, clock.now_ms())
        return Tablet(bucket, merger, log, kv, dedup, clock, signal, rows, csn, owning)
    except BaseException:
        if kv is not None:
            kv.close()
        log.close()
        raise


def _open_kv(
    folder: Path, log: Log, merger: Merger | Appender, disk: Disk, open_kv: Callable[[Path], Kv], copies: Copies
) -> Kv:
    """The bucket's own KV if it will do, else a snapshot's, else an empty one to be filled from the log."""
    is_log = isinstance(merger, Appender)
    found = () if is_log else copies.newest_first()
    usable = [snapshot for snapshot in found if snapshot.files and snapshot.offset >= log.start]
    needs_copy = log.start > 0 and not is_log
    try:
        if not usable or disk.exists(str(folder)):
            return _own_kv(folder, log, open_kv, is_log=is_log)
    except Corrupted as error:
        if needs_copy and not usable:
            raise _lost(folder, log, error) from error
        _log.warning("the KV in %s cannot be used, and is built anew: %s", folder, error)
    for snapshot in usable:
        try:
            if disk.exists(str(folder)):
                copies.check(snapshot)  # before what there is of the KV goes: if no snapshot is whole it stays
            disk.remove_tree(str(folder))
            disk.make_folder(str(folder))
            # It cannot be opened before it is whole: a crash in between leaves a damaged one.
            disk.replace(str(folder / DAMAGED), b"")
            copies.restore(snapshot, str(folder))
            disk.remove(str(folder / DAMAGED))
            disk.sync_folder(str(folder))
            kv = _own_kv(folder, log, open_kv, is_log=is_log)
        except Corrupted as error:
            _log.warning("snapshot %d for %s cannot be used: %s", snapshot.id, folder, error)
            continue
        _log.info("the KV in %s is that of snapshot %d, at offset %d", folder, snapshot.id, snapshot.offset)
        return kv
    if needs_copy:
        raise _lost(folder, log, "it is damaged or gone")
    disk.remove_tree(str(folder))
    return open_kv(folder)


def _lost(folder: Path, log: Log, why: object) -> Corrupted:
    """What whoever opens a bucket is told of which not everything is there any more, anywhere."""
    return Corrupted(
        f"the KV in {folder} cannot be used ({why}), no snapshot can take its place, and the log starts at {log.start}:"
        " nothing is served; restore the folder from a backup"
    )


def _own_kv(folder: Path, log: Log, open_kv: Callable[[Path], Kv], *, is_log: bool) -> Kv:
    """The KV in this folder; Corrupted if it is damaged, or of no use."""
    kv = open_kv(folder)
    try:
        kv.records(WRITER_RECORD)
        applied = applied_offset(kv.records(APPLIED))
        if applied < log.start and not is_log:
            raise Corrupted(f"it stands at {applied}, but the log starts at {log.start}: the frames between are gone")
        return kv
    except BaseException:
        kv.close()
        raise


def _replay(
    log: Log, kv: Kv, merger: Merger | Appender, dedup: Dedup, owning: Owning, now_ms: int
) -> tuple[int | None, int]:
    """Do again what the KV lacks; the answer is how many rows there are then, and the last transaction's number."""
    applied = applied_offset(kv.records(APPLIED))
    if applied > log.end:
        raise Corrupted(
            f"the log ends at {log.end}, before offset {applied} that the KV already has: acknowledged frames are"
            " missing (was the folder written with durability 'process' and the machine lost power?)"
        )
    rows = _counted(kv, applied) if is_counted(merger) else None
    csn = last_csn(kv.records(CSN))
    for frames in _portions(log, max(applied, log.start)):
        writers: dict[int, Writer] = {}
        views: dict[int, OwnerView] = {}
        for frame in frames:
            header = frame.header
            _note(header, writers, dedup)
            views |= owning.after(header.tag, header.base_offset, header.end_offset, views)
            csn = max(csn, frame.header.tag.csn) if isinstance(frame.header.tag, TransactionTag) else csn
        # Writers were as idle then as this tells; after a clock that was ahead a log goes on with times to come.
        then_ms = min(frames[-1].header.timestamp_ms, now_ms)
        records = dedup.remember(writers, then_ms) | owning.replayed(views)
        writes = [_writes(frame, merger) for frame in frames]
        rows = counted(rows, writes)
        kv.apply(writes, {**records, **state_records(frames[-1].header.end_offset, rows, csn)})
    return rows, csn


def _counted(kv: Kv, applied: int) -> int:
    """How many rows a KV has. One that was written before they were counted is gone through, once."""
    rows = row_count(kv.records(ROWS)) if applied else 0
    if rows is None:
        rows = kv.count()
        kv.apply([], state_records(applied, rows))
    return rows


def _portions(log: Log, offset: int) -> Iterator[Sequence[Frame]]:
    """The frames from ``offset`` on, in portions that fit one WriteBatch.

    A portion may end between two frames without rows, at one offset. A replay that is broken off there does the first
    of them again, as it does with all those that stand at the offset that the KV has.
    """
    portion: list[Frame] = []
    size = 0
    for frame in log.frames(offset):
        portion.append(frame)
        size += frame.header.length
        if size >= _REPLAY_BYTES or len(portion) >= _REPLAY_FRAMES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


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
