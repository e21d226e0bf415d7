"""The tablet: one bucket's log and KV, kept in step under one lock.

The log is the truth and the KV a cache of it. A put goes through these steps; a crash after each leaves:

1. prepare (no lock): keys encoded and sorted              nothing
2. check, deduplicate, read old rows, merge                nothing
3. append the frames to the log                            a torn or unacknowledged tail: cut, or replayed whole
4. sync the log                                            durable frames: replayed at the next open
5. apply to RocksDB, with the applied offset, in one batch  the same; the KV may lose it again, replay brings it back
6. publish the end, answer

Concurrent puts are coalesced: whoever gets the lock serves everybody who waits, in order, in one *pass*. A pass
shares one read of old rows, one append, one sync and one apply. Each put keeps its own frame and its own tag,
sees the puts before it, and fails alone. When the disk fails a tablet stops rather than guess: a failed sync is
never retried, and only recovery decides what is in the log.

A tablet knows neither names nor sessions. It revokes its own views when it closes.
"""

import struct
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from weakref import WeakSet

import pyarrow as pa

from kolk.codec.row import stored_values
from kolk.errors import Closed, DiskFull, KolkError, OutcomeUnknown, Stopped, TooLarge
from kolk.merge.append import Appender
from kolk.merge.changes import Changes, KvWrites, deleted
from kolk.merge.engine import Merger, Prepared
from kolk.model.ids import BucketId, PlainTag, SystemTag, SystemWork, WriteTag
from kolk.model.write import Write
from kolk.runtime.clock import Clock
from kolk.storage.kv import Kv
from kolk.storage.log import Log, PendingFrame
from kolk.storage.segment_reader import Frame
from kolk.storage.view import View
from kolk.tablet.dedup import Dedup, Writer
from kolk.tablet.signal import Signal

APPLIED = b"applied"
_APPLIED_VALUE = struct.Struct("<q")
_PASS_PUTS_MAX = 1_024
_TRUNCATE_PAGE_ROWS = 16_384


class _Pending:
    """A put that waits for its pass. Guarded by the tablet's lock once it is queued."""

    __slots__ = ("done", "end", "error", "prepared", "tag")

    def __init__(self, prepared: Prepared, tag: PlainTag) -> None:
        self.prepared = prepared
        self.tag = tag
        self.end = 0
        self.error: BaseException | None = None
        self.done = False


class Tablet:
    """One bucket. Thread-safe: ``put``, ``pin_view`` and ``truncate`` take the lock; reads of rows and log do not."""

    def __init__(
        self,
        bucket: BucketId,
        merger: Merger | Appender,
        log: Log,
        kv: Kv,
        dedup: Dedup,
        clock: Clock,
        signal: Signal,
    ) -> None:
        # Constant after construction.
        self.bucket = bucket
        self.merger = merger
        self.log = log
        self._kv = kv
        self._clock = clock
        self._signal = signal
        self._lock = threading.RLock()
        self._queue: deque[_Pending] = deque()
        # Guarded by _lock.
        self._dedup = dedup
        self._views: WeakSet[View] = WeakSet()
        self._refusal: KolkError | None = None
        self._closed = False
        self._wants_recovery = False
        # Written under _lock, read by anyone: one reference, replaced whole.
        self._published = log.end

    @property
    def end(self) -> int:
        """The published end: everything below is durable, applied and visible."""
        return self._published

    @property
    def wants_recovery(self) -> bool:
        """Whether it stopped for a reason that recovery, without anybody's help, may mend."""
        return self._wants_recovery

    def prepare(self, write: Write) -> Prepared:
        """Step 1, which needs no lock and applies nothing: all that can be wrong with the rows is found here."""
        return self.merger.prepare(write)

    def put(self, prepared: Prepared, tag: PlainTag) -> int:
        """Apply a write once and for all; the answer is the end offset after it. See the module for the steps."""
        pending = _Pending(prepared, tag)
        self._queue.append(pending)
        with self._lock:
            while not pending.done:
                self._pass([self._queue.popleft() for _ in range(min(len(self._queue), _PASS_PUTS_MAX))])
        if pending.error is not None:
            raise pending.error
        return pending.end

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The stored values under these keys."""
        self._check_serving()
        return self._kv.get(keys)

    def between(self, start: bytes, end: bytes | None) -> list[bytes]:
        """The stored values of a range of keys, in key order."""
        self._check_serving()
        return self._kv.between(start, end)

    def read_log(self, offset: int, until: int, limit_bytes: int) -> Sequence[Frame]:
        """Frames from ``offset`` up to ``until``, which is at most the published end."""
        self._check_serving()
        return self.log.read(offset, limit_bytes=limit_bytes, until=until)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, so that several tablets can be pinned at one moment. Take them in bucket order."""
        with self._lock:
            yield

    def pin_view(self) -> View:
        """The rows as they are now, with the offset they stand for: serving check, pin and offset in one step."""
        assert isinstance(self.merger, Merger), "a log table has no rows to pin"
        with self._lock:
            self._check_serving()
            view = View(self._kv.pin(), self._published, self.merger.codec)
            self._views.add(view)
            return view

    def truncate(self) -> int:
        """Remove every row, visibly: a -D for each, as one atomic group of frames. A log table's log is dropped."""
        with self._lock:
            self._check_serving()
            if isinstance(self.merger, Appender):
                with self._stopping_on_failure():
                    self.log.clear()
                return self._published
            mark = self.log.mark()
            try:
                for frame in self._truncation():
                    self.log.append([frame])
            except BaseException:
                with self._stopping_on_failure():
                    self.log.rollback(mark)
                raise
            self._finish([], {}, clear=True)
            return self._published

    def close(self, reason: KolkError | None = None) -> None:
        """Stop serving, revoke the views, flush and let go of the files. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            healthy = self._refusal is None
            self._refuse(reason or Closed("the database is closed"))
            if healthy:
                with suppress(KolkError):
                    # Only to spare the next open a replay: on a full disk there is nothing to lose but time.
                    self._kv.flush()
            self._kv.close()
            self.log.close()

    def _pass(self, batch: Sequence[_Pending]) -> None:
        """Serve these puts; every one of them is done afterwards, whatever happens."""
        try:
            self._check_serving()
            self._serve(batch)
        except BaseException as error:
            for pending in batch:
                pending.error = pending.error or error
            if not isinstance(error, Exception):
                raise
        finally:
            for pending in batch:
                pending.done = True

    def _serve(self, batch: Sequence[_Pending]) -> None:
        now_ms = self._clock.now_ms()
        stored = _Stored(self._kv, [pending.prepared for pending in batch])
        writers: dict[int, Writer] = {}
        frames: list[PendingFrame] = []
        writes: list[KvWrites] = []
        end = self.log.end
        for pending in batch:
            tag = pending.tag
            try:
                writer = writers.get(tag.writer) or self._dedup.writer(tag)
                seen = writer.end_of(tag.seq)
                if seen is not None:
                    pending.end = seen
                    continue
                changes = self.merger.merge(pending.prepared, stored.olds(pending.prepared))
                frames.append(self._frame(tag, changes, now_ms))
            except Exception as error:  # noqa: BLE001 - a put that cannot be merged fails alone; its caller raises this
                pending.error = error
                continue
            stored.overlay(changes.writes)
            writes.append(changes.writes)
            pending.end = end = end + changes.count
            writers[tag.writer] = writer.after(tag.seq, end, now_ms)
        if frames:
            self._commit(frames, writes, writers)

    def _commit(self, frames: list[PendingFrame], writes: list[KvWrites], writers: Mapping[int, Writer]) -> None:
        """Append, sync, apply, publish. Only a full disk at the append leaves the tablet serving."""
        with self._stopping_on_failure(but=(DiskFull, TooLarge)):
            self.log.append(frames)
        self._finish(writes, writers)

    def _finish(self, writes: list[KvWrites], writers: Mapping[int, Writer], *, clear: bool = False) -> None:
        """Sync what was appended, apply it, publish it."""
        with self._stopping_on_failure():
            self.log.sync()
            records = self._dedup.remember(writers, self._clock.now_ms())
            self._kv.apply(writes, {**records, APPLIED: applied_value(self.log.end)}, clear=clear)
        self._published = self.log.end
        self._signal.notify()

    def _frame(self, tag: WriteTag, changes: Changes, now_ms: int | None = None, *, more: bool = False) -> PendingFrame:
        return PendingFrame(
            tag=tag,
            schema_id=self.merger.schema.id,
            rows=changes.count,
            body=None if changes.rows is None else changes.rows.serialize(),
            timestamp_ms=self._clock.now_ms() if now_ms is None else now_ms,
            more=more,
        )

    def _truncation(self) -> Iterator[PendingFrame]:
        """A -D for every row, page by page; a frame without rows ends the group."""
        tag = SystemTag(SystemWork.TRUNCATE)
        view = self.pin_view()
        try:
            while (rows := view.next(_TRUNCATE_PAGE_ROWS)) is not None:
                yield self._frame(tag, deleted(rows), more=True)
        finally:
            view.close()
        yield self._frame(tag, Changes())

    @contextmanager
    def _stopping_on_failure(self, but: tuple[type[KolkError], ...] = ()) -> Iterator[None]:
        """After any other failure nobody knows what is on disk: refuse everything until recovery has looked."""
        try:
            yield
        except but:
            raise
        except BaseException as error:
            # RocksDB found its disk full after the log had the frames: recovery applies them once there is space.
            self._wants_recovery = isinstance(error, DiskFull)
            what = "free some space, then retry" if self._wants_recovery else "close and reopen the database"
            self._refuse(Stopped(f"bucket {self.bucket.name} stopped: {error}; {what}"))
            if not isinstance(error, Exception):
                raise
            unknown = OutcomeUnknown(f"bucket {self.bucket.name} stopped under this put: {error}; {what}")
            unknown.retriable = self._wants_recovery
            raise unknown from error

    def _refuse(self, reason: KolkError) -> None:
        self._refusal = reason
        for view in list(self._views):
            view.revoke(str(reason))
        self._signal.notify()

    def _check_serving(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))


class _Stored:
    """What is stored under the keys of a pass: read once, then kept up to date as its puts are merged."""

    def __init__(self, kv: Kv, puts: Sequence[Prepared]) -> None:
        self._single: list[bytes | None] | None = None
        self._current: dict[bytes, bytes | None] = {}
        seeing = [put for put in puts if not put.blind]
        if len(puts) == 1 and seeing:
            self._single = kv.get(list(seeing[0].keys))
        elif seeing:
            keys = sorted(set[bytes]().union(*(put.keys for put in seeing)))
            self._current = dict(zip(keys, kv.get(keys), strict=True))

    def olds(self, put: Prepared) -> pa.BinaryArray:
        """What is stored under each of the put's keys, null for nothing."""
        if put.blind:
            return pa.array([], pa.binary())
        return stored_values(self._single if self._single is not None else [self._current[key] for key in put.keys])

    def overlay(self, writes: KvWrites) -> None:
        """Let the later puts of the pass see this one."""
        if self._single is None:
            self._current.update(zip(writes.keys, writes.values, strict=True))
            self._current.update(zip(writes.deletes, repeat(None)))


def applied_value(offset: int) -> bytes:
    """The record that says up to where the KV has the log."""
    return _APPLIED_VALUE.pack(offset)


def applied_offset(value: bytes | None) -> int:
    """The offset such a record holds; 0 for a KV that has none."""
    return 0 if value is None else int(_APPLIED_VALUE.unpack(value)[0])
