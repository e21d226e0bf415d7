"""One bucket's log: its ordered frames on disk, the source of truth.

It exists to keep one promise: what ``sync`` has returned for is there after any crash, byte for byte, in
order and without a gap, or the log refuses to open or to read. It knows frames, not rows: bodies are opaque
to it. It has no thread and no lock, never retries a sync, never repairs by guessing, and does not decide
what may be trimmed. The folder holds::

    00000000000000000000.log     frames one after the other (codec/frame); the name is the first offset
    00000000000000000000.index   the sparse index of a sealed segment (storage/index); a cache
    00000000000000004711.log     the last segment, the only one that grows
    synced                       the watermark (storage/watermark); a hint that makes recovery strict
    trimmed                      the time of the last frame that was trimmed (storage/trimmed), if any was

Offsets count rows. Frames without rows are written like all others, but take no offset. Very many of them get a
segment of their own, and one that has no others is thinned now and then, since it can neither be rolled nor trimmed.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from kolk.codec.frame import FrameHeader, encode_frame, padded
from kolk.config import Durability
from kolk.errors import Closed, Corrupted, DiskFull, KolkError, OffsetOutOfRange, Stopped, Unavailable
from kolk.model.change import Offset
from kolk.model.ids import WriteTag
from kolk.runtime.disk import AppendFile, Chunk, Disk
from kolk.storage.log_reader import READ_BYTES, LogReader, Wanted
from kolk.storage.log_recovery import Recovered, recover, write_index
from kolk.storage.segment import Extent, Segment
from kolk.storage.segment_reader import Frame
from kolk.storage.trimmed import TRIMMED_NAME, Trimmed
from kolk.storage.watermark import WATERMARK_NAME, Watermark

SEGMENT_BYTES = 128 * 1024 * 1024
ROWLESS_BYTES = 2**20
"""So much without rows is not left behind the last row, and is thinned from this size on: some ten thousand puts, which
take whoever opens the log, or reads from there, a moment."""
Needed = Callable[[Iterable[Frame]], Sequence[Frame]]
"""Chooses among frames without rows."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFrame:
    """A frame to append; the log adds what it alone knows: its offset, and what is durable before it.

    ``more`` says that the next frame belongs to the same atomic group; a group may go over several appends.
    """

    tag: WriteTag
    schema_id: int
    rows: int
    body: Chunk | None
    timestamp_ms: int
    more: bool = False
    information: bytes = b""


class Log:
    """A bucket's log. Guarded by the tablet's lock, but for ``read``, ``offset_at``, ``may_lack`` and the properties.

    Those may run beside everything except ``close``: they see the log as it was when they were called. What
    lies beyond the published end may be taken back meanwhile, so they must be given that end as ``until``.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        durability: Durability,
        segment_bytes: int,
        leader_epoch: int,
        *,
        found: Recovered,
        file: AppendFile,
    ) -> None:
        """Take over a log that has been recovered: use ``open``."""
        # Constant after construction.
        self._disk = disk
        self._folder = folder
        self._syncs = durability is Durability.MACHINE
        self._segment_bytes = segment_bytes
        self.leader_epoch = leader_epoch
        self._reader = LogReader(disk, folder, found.extent.last, found.index)
        # Replaced under the tablet's lock, read without it.
        self._extent = found.extent
        self._trimmed_ms = found.trimmed_ms
        # Guarded by the tablet's lock: how much of the last segment is not behind its last row.
        self._rows_bytes = found.rows_bytes
        # Guarded by the tablet's lock. The last segment up to its last whole group, and up to what is known
        # to be durable: that counts by whole groups too, because a crash or a rollback cuts off the rest.
        self._whole = found.extent.last
        self._durable = Segment(base=self._whole.base, end=self._whole.base, size=0, last_timestamp_ms=0)
        self._file = file
        self._unsettled = False
        self._failure: str | None = None
        self._closed = False

    @staticmethod
    def open(
        disk: Disk,
        folder: str,
        durability: Durability = Durability.MACHINE,
        segment_bytes: int = SEGMENT_BYTES,
        leader_epoch: int = 0,
    ) -> "Log":
        """Open the log in ``folder``, which is made if it is missing; ``log_recovery`` says what is refused.

        Afterwards all that it holds is durable, if it syncs at all. Without that, frames that a killed
        process had written but not synced would be served, and a retry of their put answered as done, before
        they are safe.
        """
        disk.make_folder(folder)
        found = recover(disk, folder)
        file = disk.open_append(f"{folder}/{found.extent.last.log_name}")
        log = Log(disk, folder, durability, segment_bytes, leader_epoch, found=found, file=file)
        try:
            log._secure()
        except BaseException:
            file.close()
            raise
        return log

    @property
    def start(self) -> Offset:
        """The first offset that has not been trimmed."""
        return Offset(self._extent.start)

    @property
    def end(self) -> Offset:
        """The offset after the last appended row, durable or not."""
        return Offset(self._extent.end)

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments as they are at one moment, in order."""
        return self._extent.segments

    @property
    def bytes(self) -> int:
        """The size of all segments."""
        return sum(segment.size for segment in self._extent.segments)

    def bytes_between(self, start: int, end: int) -> int:
        """About how many bytes the frames of these offsets take: whole segments, but for the last one's share."""
        found = 0
        for segment in self._extent.segments:
            rows = max(segment.end - segment.base, 1)
            found += segment.size * max(min(end, segment.end) - max(start, segment.base), 0) // rows
        return found

    def append(self, frames: Sequence[PendingFrame]) -> list[FrameHeader]:
        """Append frames in one write; they are durable after ``sync``. Offsets move only if all are written.

        Steps: roll if the last segment is full and no group is open; write; publish. A crash after the write
        leaves all of the frames, a prefix, or a torn one: recovery keeps the prefix, whole groups only. A
        write that fails is taken back, durably, before the error is raised: ``DiskFull`` leaves the log as it
        was, anything else stops it.
        """
        self._check_serving()
        self._settle()
        if self._is_full and self._whole is self._extent.last:
            self._roll()
        headers = self._headers(frames)
        pieces: list[Chunk] = []
        for frame, header in zip(frames, headers, strict=True):
            pieces += encode_frame(header, frame.body)
        # Set before and cleared after, so that an interrupt (Ctrl-C in a notebook) anywhere in between is
        # noticed by the next call: bytes that nobody was told of must not be followed by others.
        self._unsettled = True
        try:
            with self._stopping("a write failed"):
                self._file.write(pieces)
        except (DiskFull, Stopped):
            self._settle()
            raise
        self._publish(headers)
        self._unsettled = False
        return headers

    def sync(self) -> None:
        """Make everything appended durable; returns only then. With durability ``process`` it does nothing.

        A sync that fails stops the log for good and is never retried: the system may have dropped the bytes
        and report success the next time. For the same reason what was not durable is cut off, as well as it
        can be, so that a reopened log does not read it from memory and take it for safe.
        """
        self._check_serving()
        self._settle()
        if self._syncs and self._durable is not self._extent.last:
            self._sync_file()

    def mark(self) -> Segment:
        """Where the log ends now, between two groups, for ``rollback``."""
        self._check_serving()
        self._settle()
        assert self._whole is self._extent.last, "there is no mark within a group"
        return self._extent.last

    def rollback(self, mark: Segment) -> None:
        """Take back, durably, the frames of the unfinished group since ``mark``."""
        self._check_serving()
        last = self._extent.last
        if last.base != mark.base:
            assert last.base == mark.end, "a group is in one segment"
            mark = Segment(base=mark.end, end=mark.end, size=0, last_timestamp_ms=mark.last_timestamp_ms)
        assert mark.size >= self._durable.size, "what is durable is not taken back"
        self._cut_back(mark)

    def read(
        self, offset: int, *, limit_bytes: int = READ_BYTES, until: int | None = None, also: Wanted | None = None
    ) -> list[Frame]:
        """Verified frames with rows that contain or follow ``offset``, in order, and those few without that are
        ``also`` wanted: of the others there may be any number between two rows.

        With ``until``, the published end, it returns those that start before it. Once ``limit_bytes`` are
        reached it stops after a frame with rows, so that the next read, from the last frame's end offset,
        neither misses nor repeats a frame.
        """

        def look(extent: Extent) -> list[Frame]:
            self._check_position(offset, extent)
            return self._reader.read(extent, offset, limit_bytes, until, also)

        return self._looked(look)

    def frames(self, offset: int) -> Iterator[Frame]:
        """Every verified frame that contains or follows ``offset``, a few megabytes in memory at a time, up to the
        very end. For whoever is alone with the log, as recovery is."""
        self._check_position(offset, self._extent)
        try:
            yield from self._reader.frames(self._extent, offset)
        except OSError as error:
            raise self._unreadable(error) from error

    def offset_at(self, timestamp_ms: int, *, until: int | None = None) -> Offset:
        """The first offset committed at ``timestamp_ms`` or later, else the end (``until`` if given)."""
        return self._looked(lambda extent: self._reader.offset_at(extent, timestamp_ms, until))

    def may_lack(self, timestamp_ms: int) -> bool:
        """Whether something that was committed at ``timestamp_ms`` or later may have been trimmed.

        That is known, but for a log that an older Kolk has trimmed, or that was restored. Of those the first frame
        tells, if it is older than that: times never go back.
        """
        if not self.start:
            return False
        if self._trimmed_ms is not None:
            return self._trimmed_ms >= timestamp_ms
        return self.offset_at(timestamp_ms) <= self.start

    def before_rowless(self, below: int) -> int:
        """The offset below which a log may be trimmed if whatever stands at ``below`` is to stay, frames without rows
        too: the last of those may be in a segment that ends there."""
        for segment in self._extent.sealed:
            if segment.end == below and self._rowless_at(Extent((), segment), below):
                return segment.base
        return below

    def trim(self, below: int) -> None:
        """Delete the sealed segments all of whose offsets are below ``below``; the last segment always stays.

        First it is written down when the last of them was committed. They go one by one from the oldest, each
        durably before the next, so that a crash leaves no gap: fewer of them are gone then. A reader that is in
        the middle of one finishes it.
        """
        self._check_serving()
        self._note_trimmed([segment for segment in self._extent.sealed if segment.end <= below])
        while self._extent.sealed and self._extent.sealed[0].end <= below:
            oldest = self._extent.sealed[0]
            self._extent = Extent(self._extent.sealed[1:], self._extent.last)
            self._reader.forget(oldest)
            with self._stopping("a segment could not be deleted"):
                self._disk.remove(f"{self._folder}/{oldest.log_name}")
                self._disk.sync_folder(self._folder)
                # After its segment: an index without one is litter, which the next open removes.
                self._disk.remove(f"{self._folder}/{oldest.index_name}")

    def _note_trimmed(self, segments: Sequence[Segment]) -> None:
        """Keep the time of what is about to go, if the disk lets us: trimming is what makes room on a full one."""
        if segments:
            last = segments[-1]
            self._trimmed_ms = last.last_timestamp_ms
            with contextlib.suppress(OSError, DiskFull):
                self._disk.replace(f"{self._folder}/{TRIMMED_NAME}", Trimmed(last.end, self._trimmed_ms).encode())

    def clear(self, needed: Needed = list) -> None:
        """Forget every row: the start becomes the end, durably; offsets go on from there. Of the frames without rows
        that stand at the end those stay that are needed: rows that are kept elsewhere may be as new as that, and lack
        them.

        Steps: roll, copy them, trim. A crash in between leaves more of the log than is wanted, never a gap. What is
        there twice then is replayed twice, which is as good as once.
        """
        self._check_serving()
        self._settle()
        assert self._whole is self._extent.last, "no log is cleared within a group"
        kept = needed(self._rowless_at(self._extent, self._extent.end))
        if self._whole.has_rows:
            self._roll()
        if kept and self._extent.sealed:
            self._replace_last(kept)
        self.trim(self._extent.end)

    def _rowless_at(self, extent: Extent, end: int) -> Sequence[Frame]:
        """The frames without rows at the end of an extent."""
        try:
            return list(self._reader.frames(extent, end, ROWLESS_BYTES))
        except OSError as error:
            raise self._unreadable(error) from error

    @property
    def _is_full(self) -> bool:
        """Whether the last segment is long enough; one without rows cannot be sealed, however long it is."""
        rowless = self._whole.size - self._rows_bytes
        return self._whole.has_rows and (self._whole.size >= self._segment_bytes or rowless >= ROWLESS_BYTES)

    @property
    def rowless_bytes(self) -> int:
        """The size of the last segment, if none of its frames has rows; it is then what readers never look into."""
        last = self._extent.last
        return 0 if last.has_rows else last.size

    def thin(self, needed: Needed) -> None:
        """Keep only those frames of a last segment without rows that are needed: it can neither be rolled nor trimmed.

        Steps: lower the watermark, durably; replace the file whole; open it. A crash after the first leaves
        all frames, and a watermark that says less than it might; after the second, those that are kept. The
        file is not cut: a backup that has it under another name is to have all of it. ``DiskFull`` leaves the
        log as it was.
        """
        self._check_serving()
        self._settle()
        last = self._extent.last
        assert self._whole is last, "no group is open"
        assert not last.has_rows, "rows are trimmed"
        try:
            kept = needed(self._reader.frames(Extent((), last), last.base))
        except OSError as error:
            raise self._unreadable(error) from error
        self._replace_last(kept)

    def _replace_last(self, kept: Sequence[Frame]) -> None:
        """Make frames without rows all that is in the last segment, as ``thin`` says. They may be older than what was
        sealed, but times never go back."""
        last, sealed = self._extent.last, self._extent.sealed
        since_ms = sealed[-1].last_timestamp_ms if sealed else 0
        headers = [
            replace(frame.header, synced=0, timestamp_ms=max(frame.header.timestamp_ms, since_ms)) for frame in kept
        ]
        pieces = (encode_frame(header, frame.body) for header, frame in zip(headers, kept, strict=True))
        data = b"".join(map(memoryview, chain.from_iterable(pieces)))
        path = f"{self._folder}/{last.log_name}"
        # What holds before the file is replaced and after it; it may be longer then.
        durable = min(len(data), self._durable.size if self._durable.base == last.base else 0)
        with self._stopping("a segment could not be replaced"):
            self._disk.replace(f"{self._folder}/{WATERMARK_NAME}", Watermark(last.base, durable).encode())
            self._disk.replace(path, data)
            # Set before and cleared after: whatever comes in between, nobody may append to the file that was replaced.
            self._failure = f"the log {self._folder} stopped: a segment was replaced; reopen the database to recover"
            file = self._disk.open_append(path)
        self._file.close()
        self._file = file
        self._reader.grow(last)
        self._whole = Segment(base=last.base, end=last.base, size=0, last_timestamp_ms=last.last_timestamp_ms)
        self._extent = Extent(self._extent.sealed, self._whole)
        self._publish(headers)
        self._mark_durable()
        self._failure = None

    def close(self) -> None:
        """Let the files go. What was not synced may be lost, as it may always. Idempotent."""
        self._closed = True
        self._file.close()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _secure(self) -> None:
        """Cut off a torn tail and make the rest durable. After a crash in between it is all done again."""
        torn = self._file.size > self._whole.size
        with self._stopping("the log could not be made durable"):
            if torn:
                self._file.truncate(self._whole.size)
            # A cut must be durable before anything is written after it, whatever the durability.
            if torn or self._syncs:
                self._file.sync()
            if self._syncs:
                self._disk.sync_folder(self._folder)
        self._mark_durable()

    def _roll(self) -> None:
        """Seal the last segment and start the next.

        Steps: sync the old file, whatever the durability, because recovery takes sealed segments for whole;
        write its index; make the new file, its name durable; publish. A crash in between leaves an empty new
        segment or none.
        """
        full = self._extent.last
        self._sync_file()
        write_index(self._disk, self._folder, full, self._reader.index(full))
        fresh = Segment(base=full.end, end=full.end, size=0, last_timestamp_ms=full.last_timestamp_ms)
        file = self._create(fresh)
        self._reader.grow(fresh)
        self._extent = Extent((*self._extent.sealed, full), fresh)
        self._whole = fresh
        self._rows_bytes = 0
        self._file.close()
        self._file = file
        self._mark_durable()

    def _create(self, segment: Segment) -> AppendFile:
        """Make the file of a new segment; its name is durable before anything is written to it."""
        file = self._disk.open_append(f"{self._folder}/{segment.log_name}")
        try:
            with self._stopping("a sync of the folder failed"):
                self._disk.sync_folder(self._folder)
        except BaseException:
            file.close()
            raise
        return file

    def _headers(self, frames: Sequence[PendingFrame]) -> list[FrameHeader]:
        """Give each frame its place: offsets follow each other, and times never go back."""
        headers: list[FrameHeader] = []
        offset, timestamp_ms = self._extent.end, self._extent.last.last_timestamp_ms
        for frame in frames:
            timestamp_ms = max(timestamp_ms, frame.timestamp_ms)
            header = FrameHeader(
                tag=frame.tag,
                more=frame.more,
                rows=frame.rows,
                base_offset=Offset(offset),
                timestamp_ms=timestamp_ms,
                schema_id=frame.schema_id,
                leader_epoch=self.leader_epoch,
                synced=self._durable.size,
                body_length=0 if frame.body is None else len(frame.body),
                information=padded(frame.information),
            )
            headers.append(header)
            offset = header.end_offset
        return headers

    def _publish(self, headers: Sequence[FrameHeader]) -> None:
        """Show written frames to readers, all at once."""
        last, whole = self._extent.last, self._whole
        index = self._reader.index(last)
        for header in headers:
            index.add(header.base_offset, header.timestamp_ms, last.size)
            end, size, timestamp_ms = header.end_offset, last.size + header.length, header.timestamp_ms
            last = Segment(base=last.base, end=end, size=size, last_timestamp_ms=timestamp_ms)
            whole = whole if header.more else last
            self._rows_bytes = size if header.rows else self._rows_bytes
        # In this order, because an interrupt in between must not leave a group that looks unfinished for ever.
        self._whole = whole
        self._extent = Extent(self._extent.sealed, last)

    def _settle(self) -> None:
        """Take back what a failed or interrupted append may have left after the published frames."""
        if self._unsettled:
            self._cut_back(self._extent.last)

    def _cut_back(self, last: Segment) -> None:
        """Make ``last`` the last segment again; durably, for the caller is told that nothing was written."""
        self._unsettled = True
        self._extent = Extent(self._extent.sealed, last)
        if last.size <= self._whole.size:
            self._whole = last
        self._rows_bytes = min(self._rows_bytes, last.size)
        self._reader.cut(last)
        with self._stopping("a failed write could not be taken back"):
            self._file.truncate(last.size)
        if self._syncs:
            self._sync_file()
        self._unsettled = False

    def _sync_file(self) -> None:
        try:
            with self._stopping("a sync failed"):
                self._file.sync()
        except Stopped:
            if self._syncs:
                self._extent = Extent(self._extent.sealed, self._durable)
                with contextlib.suppress(OSError):
                    self._file.truncate(self._durable.size)
            raise
        self._mark_durable()

    def _mark_durable(self) -> None:
        """Remember what a sync has made durable: here and, as a hint, on disk."""
        if not self._syncs:
            return
        self._durable = self._whole
        watermark = Watermark(self._durable.base, self._durable.size)
        # The sync has succeeded; a hint that cannot be written must not make it look failed.
        with contextlib.suppress(OSError, DiskFull):
            self._disk.overwrite(f"{self._folder}/{WATERMARK_NAME}", watermark.encode())

    @contextlib.contextmanager
    def _stopping(self, what: str) -> Iterator[None]:
        """Stop the log for good if the disk fails here: what is on it is in doubt until recovery looks."""
        try:
            yield
        except OSError as error:
            self._failure = f"the log {self._folder} stopped: {what} ({error}); reopen the database to recover"
            raise Stopped(self._failure) from error

    def _check_serving(self) -> None:
        if self._closed:
            raise Closed(f"the log {self._folder} is closed")
        if self._failure is not None:
            raise Stopped(self._failure)

    def _looked(self, look: Callable[[Extent], T]) -> T:
        """What is found in the log as it is now; once more, if a segment was trimmed under the look."""
        while True:
            extent = self._extent
            try:
                return look(extent)
            except OSError as error:
                # A segment that vanished under the look has been trimmed meanwhile, or else should be there.
                if not isinstance(error, FileNotFoundError) or self._extent.start == extent.start:
                    raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> KolkError:
        """What a reader is told. The log goes on: what is on disk is not in doubt."""
        if isinstance(error, FileNotFoundError):
            return Corrupted(f"a log segment is gone: {error.filename}; restore it from a copy")
        return Unavailable(f"the log {self._folder} cannot be read: {error}; check the disk, then retry")

    def _check_position(self, offset: int, extent: Extent) -> None:
        if offset < extent.start:
            raise OffsetOutOfRange(f"offset {offset} has been trimmed; the log starts at {extent.start}")
        if offset > extent.end:
            raise OffsetOutOfRange(f"offset {offset} was never written; the log ends at {extent.end}")
