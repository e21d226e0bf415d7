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

When the table is altered a tablet gets a merger of the new version between two passes. A put that was prepared for the
old one is prepared again in its pass, so no frame is ever older than the merger of its moment.

A tablet knows neither names nor sessions. It revokes its own views when it closes.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from weakref import WeakSet

from kolk.codec.key import ROW_PREFIX
from kolk.errors import Closed, DiskFull, InvalidArgument, KolkError, Stopped
from kolk.merge.append import Appender
from kolk.merge.changes import Changes, KvWrites, deleted
from kolk.merge.engine import Merger
from kolk.merge.prepared import Prepared
from kolk.model.ids import BucketId, OwnerTag, PlainTag, SystemTag, SystemWork, UndoTag, WriteTag
from kolk.model.owner import OwnerRecord
from kolk.runtime.clock import Clock
from kolk.storage.kv import ROWS_END, Kv
from kolk.storage.log import Log, PendingFrame
from kolk.storage.log_reader import Wanted
from kolk.storage.segment_reader import Frame
from kolk.storage.view import View
from kolk.tablet.dedup import Dedup, Writer
from kolk.tablet.expiry import Walk, look, unchanged
from kolk.tablet.merged import Framed, Merged, fitting, framed, grouped
from kolk.tablet.owning import NO_VIEWS, OwnerView, Owning
from kolk.tablet.pending import Checkpointed, NothingDone, Pending, interrupted, stopped_by, told_apart
from kolk.tablet.readers import Readers, values_between, values_of
from kolk.tablet.records import counted, state_records
from kolk.tablet.retention import Holder, log_floor
from kolk.tablet.signal import Signal
from kolk.tablet.stored import Stored
from kolk.tablet.thinning import Thinning, needed
from kolk.tablet.undoing import corrections

_PASS_PUTS_MAX = 1_024
_TRUNCATE_PAGE_ROWS, _TRUNCATE_PAGE_BYTES = 16_384, 16 * 2**20


class Tablet:
    """One bucket. Thread-safe: whatever writes or pins takes the lock; reads of rows and log only count themselves."""

    def __init__(
        self,
        bucket: BucketId,
        merger: Merger | Appender,
        log: Log,
        kv: Kv,
        dedup: Dedup,
        clock: Clock,
        signal: Signal,
        rows: int | None = None,
        csn: int = 0,
        owning: Owning | None = None,
    ) -> None:
        # Constant after construction.
        self.bucket = bucket
        self.log = log
        self._kv = kv
        self._clock = clock
        self._signal = signal
        self._lock = threading.RLock()
        # Appended to without the lock; every use of it is one step for the interpreter, so it needs none.
        self._queue: list[Pending] = []
        self._readers = Readers(self._check_serving)
        # Guarded by _lock.
        self._thinning = Thinning(log)
        self._dedup = dedup
        self._owning = owning or Owning({}, dict)
        self._csn = csn
        self._views: WeakSet[View] = WeakSet()
        self._refusal: KolkError | None = None
        self._closed = False
        self._wants_recovery = False
        # Written under _lock, read by anyone: one reference each, replaced whole.
        self._merger = merger
        self._published = log.end
        self._rows = rows

    @property
    def merger(self) -> Merger | Appender:
        """The merger of the newest version. Rows and frames that were read before it was asked for are none newer."""
        return self._merger

    @property
    def end(self) -> int:
        """The published end: everything below is durable, applied and visible."""
        return self._published

    @property
    def wants_recovery(self) -> bool:
        """Whether it stopped for a reason that recovery, without anybody's help, may mend."""
        return self._wants_recovery

    @property
    def refusal(self) -> KolkError | None:
        """Why it does not serve; None while it does."""
        return self._refusal

    @property
    def is_viewed(self) -> bool:
        """Whether somebody has the rows of some moment pinned."""
        while True:
            try:
                return any(view.is_open for view in self._views)
            except RuntimeError:  # one was pinned in the middle of the look
                continue

    def switch(self, merger: Merger | Appender) -> None:
        """Merge by a newer version of the table from now on: every frame written after this is of it, or newer."""
        with self._lock:
            if merger.schema.id > self._merger.schema.id:
                self._merger = merger

    def put(self, prepared: Prepared, tag: PlainTag | OwnerTag) -> int:
        """Apply a write once and for all; the answer is the end offset after it. See the module for the steps."""
        pending = Pending(prepared, tag)
        try:
            self._queue.append(pending)
            with self._lock:
                while not pending.done:
                    self._pass()
        except BaseException:
            # Interrupted: nobody may apply it later on behalf of a caller who has long gone.
            with suppress(ValueError):
                self._queue.remove(pending)
            raise
        if pending.error is not None:
            raise pending.error
        return pending.end

    def get(self, keys: list[bytes], taken: int = 0) -> list[bytes | None]:
        """The stored values under these keys; TooLarge, before much is read, if they are too large together, and with
        what was ``taken`` from other buckets."""
        with self._readers.reading():
            return values_of(self._kv, keys, taken=taken)

    def between(self, start: bytes, end: bytes) -> list[bytes]:
        """The stored values of a range of keys, in key order."""
        with self._readers.reading():
            return values_between(self._kv, start, end)

    def read_log(self, offset: int, until: int, limit_bytes: int, also: Wanted | None = None) -> Sequence[Frame]:
        """Frames with rows, or ``also`` wanted, from ``offset`` up to ``until``, which is at most the published end."""
        with self._readers.reading():
            return self.log.read(offset, limit_bytes=limit_bytes, until=until, also=also)

    def offset_at(self, timestamp_ms: int) -> int:
        """The first published offset that was committed at or after this time."""
        with self._readers.reading():
            return self.log.offset_at(timestamp_ms, until=self._published)

    def may_lack(self, timestamp_ms: int) -> bool:
        """Whether changes that were committed at or after this time may have been trimmed."""
        with self._readers.reading():
            return self.log.may_lack(timestamp_ms)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, so that several tablets can be pinned at one moment. Take them in bucket order."""
        with self._lock:
            yield

    def pin_view(self, start: bytes = ROW_PREFIX, end: bytes = ROWS_END) -> View:
        """The rows as they are now, those of a range of keys, with the offset they stand for: serving check, pin and
        offset in one step."""
        with self._lock:
            assert isinstance(self._merger, Merger), "a log table has no rows to pin"
            self._check_serving()
            view = View(self._kv.pin(start, end), self._published, self._merger.codec, self.log.leader_epoch)
            self._views.add(view)
            return view

    def truncate(self) -> int:
        """Remove every row, visibly: a -D for each, as one atomic group of frames. A log table's log is dropped."""
        with self._lock:
            self._check_writable()
            self._owning.check_unowned(self._merger.schema, self._clock.monotonic())
            if isinstance(self._merger, Appender):
                self._let_go(partial(self.log.clear, needed))
                return self._published
            with self._stopping_on_failure():
                mark = self.log.mark()
                try:
                    for frame in self._truncation():
                        self.log.append([frame])
                except Exception as error:
                    self.log.rollback(mark)
                    raise NothingDone(error) from error
                self._finish([], {}, clear=True)
            return self._published

    def expire(self, column: int, before_ms: int, after: bytes, rows: int) -> Walk:
        """Remove those of the next ``rows`` rows after a key (empty: from the start on) whose time, in the column of
        this id, is ``before_ms`` or earlier: a -D with the whole row for each, in one frame.

        Puts wait only while that frame is written. A crash leaves the rows, or a frame that replay applies. See
        ``kolk.tablet.expiry``. Nothing goes while an owner may still take back what the column says.
        """
        view = self.pin_view(after + b"\0" if after else ROW_PREFIX)
        try:
            looked = look(view, column, before_ms, rows)
        finally:
            view.close()
        if not looked.keys:
            return looked.walk(removed=0)
        with self._lock:
            self._check_writable()
            assert isinstance(self._merger, Merger), "a log table has no rows to expire"
            keys, values = unchanged(looked, self._kv.get(looked.keys))
            if keys and not self._owning.is_dirty(column):
                changes = deleted(self._merger.codec.decode(values), keys)
                frame = self._frame(SystemTag(SystemWork.TTL), changes, self._clock.now_ms())
                self._commit([frame], [changes.writes], {})
            else:
                keys = []
        return looked.walk(removed=len(keys))

    @property
    def last_timestamp_ms(self) -> int:
        """When the last frame was committed."""
        return self.log.segments[-1].last_timestamp_ms

    def suspend(self, why: str) -> None:
        """Serve nobody until recovery has looked: what is in the log is not all that was decided."""
        with self._lock:
            self._wants_recovery = True
            stopped = Stopped(f"bucket {self.bucket.name} stopped: {why}; retry")
            stopped.retriable = True
            self._refuse(stopped)

    @property
    def csn(self) -> int:
        """The number of the last transaction that is in the log."""
        return self._csn

    def merged(self, shares: Sequence[Prepared], *, truncates: bool = False, is_decided: bool = False) -> Merged:
        """The shares of a transaction merged one after the other, and nothing written. Hold the lock until
        ``commit``: what was merged is only true as long as nobody else writes. Of one that is decided, whose the
        columns are was looked at before that. What cannot be written is told here."""
        self._check_writable()
        if truncates and isinstance(self._merger, Appender):
            raise InvalidArgument("a log table cannot be truncated in a transaction: what was appended stays")
        current, now = [self._renewed(share) for share in shares], self._clock.monotonic()
        if truncates and not is_decided:
            self._owning.check_unowned(self._merger.schema, now)
        for share in [] if is_decided else current:
            self._owning.check_free(share, now)
        stored = Stored(self._kv, current, is_empty=truncates)
        writes: list[KvWrites] = []
        frames: list[Framed] = []
        for share in current:
            found = self._merger.merge(share, stored.olds(share))
            stored.overlay(found.writes)
            writes.append(found.writes)
            frames.append(framed(found))
        return Merged(writes, frames, truncates)

    @property
    def known_owners(self) -> Mapping[int, OwnerView] | None:
        """What there is of each owner's frames, by its number; None if only recovery can tell."""
        return self._owning.views if self._refusal is None else None

    def owners(self) -> Mapping[int, OwnerView]:
        """The same; an error if only recovery can tell."""
        self._check_serving()
        return self._owning.views

    def waits_for_owner(self, column: int) -> bool:
        """Whether rows are not judged by this column now, because its owner may take its values back."""
        return self._owning.is_dirty(column)

    def undo(self, record: OwnerRecord) -> int:
        """Take back what an owner has written beyond its commit point, as ``kolk.merge.undo`` says; how many rows that
        were. Hold the lock.

        A crash leaves some of it restored and no mark at the end, so it is done again from the same place: what is
        restored already changes nothing.
        """
        self._check_writable()
        assert isinstance(self._merger, Merger), "a log table has no owners"
        start, undone = self._owning.view(record.number).dirty_from(record.committed), 0
        if start is None:
            return 0
        tag = UndoTag(record.number, record.fence, done=False)
        found = corrections(self.bucket, self.log, self._kv, self._merger, record, start, self._published)
        for changes, keys in found:
            if changes.count:
                views = self._owning.after(tag, self._published, self._published + changes.count, {})
                self._commit([self._frame(tag, changes, self._clock.now_ms())], [changes.writes], {}, views)
            undone += keys
        tag = UndoTag(record.number, record.fence, done=True)
        views = self._owning.after(tag, self._published, self._published, {})
        self._commit([self._frame(tag, Changes(), self._clock.now_ms())], [], {}, views)
        return undone

    def append(self, merged: Merged, csn: int, timestamp_ms: int) -> None:
        """Write what was merged as one group of frames, for ``commit``. Hold the lock, from the merge on.

        The transaction is decided, so nothing here may be refused: what fails stops the tablet, and recovery does it.
        """
        with self._stopping_on_failure():
            for frame in self._group(merged, csn, timestamp_ms):
                self.log.append([frame])

    def commit(self, merged: Merged, csn: int) -> int:
        """Sync what was appended, apply it and publish it; the answer is the end after it. The same holds."""
        with self._stopping_on_failure():
            self._finish(merged.writes, {}, clear=merged.truncates, csn=csn)
        return self._published

    def trim(self, below: int, holders: Sequence[Holder]) -> None:
        """Let the log below an offset go, as far as nobody holds it: whole segments, or all of a log table's."""
        with self._lock:
            self._check_writable()
            is_log_table, now_ms = isinstance(self._merger, Appender), self._clock.now_ms()
            floor = log_floor(is_log_table=is_log_table, end=self._published, holders=holders, now_ms=now_ms)
            below = min(below, floor, self._owning.floor(self._published))
            if below == floor < self.log.end and not is_log_table:
                below = self.log.before_rowless(below)  # a snapshot of this offset may be older than those
            oldest = self.log.segments[0]
            if not oldest.has_rows or oldest.end > below:
                return
            self._let_go(partial(self.log.clear, needed) if below == self.log.end else partial(self.log.trim, below))

    def estimate(self) -> int:
        """About how many rows there are, or exactly, if they are counted."""
        rows = self._rows
        if rows is not None:
            return rows
        with self._readers.reading():
            return self._kv.estimate()

    def flush(self) -> None:
        """Write the rows in memory out, beside the puts: a checkpoint right after it is quick."""
        with self._readers.reading():
            self._kv.flush()

    def checkpoint(self, path: Path) -> Checkpointed:
        """Make a folder with the rows and records as they are now, and say what they are."""
        with self._lock:
            self._check_writable()
            self._kv.checkpoint(path)
            return Checkpointed(self._published, self._merger.schema.id)

    def fence(self, leader_epoch: int) -> None:
        """There is a leader of this epoch: one of an older epoch serves nobody any more, and its views are revoked."""
        with self._lock:
            if leader_epoch > self.log.leader_epoch and self._refusal is None:
                own = self.log.leader_epoch
                self._refuse(Stopped(f"bucket {self.bucket.name} is led at epoch {leader_epoch}, and no more at {own}"))

    def retire(self, reason: KolkError) -> None:
        """Serve nobody any more, because the bucket is about to be removed; views are revoked. Hold the lock."""
        self._refuse(reason)

    def close(self, reason: KolkError | None = None) -> None:
        """Stop serving, revoke the views, wait for readers, let go of the files. Idempotent.

        With a ``reason`` the bucket is going to be removed, so nothing is flushed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            healthy = self._refusal is None
            self._refuse(reason or Closed("the database is closed"))
            try:
                self._readers.wait()
                if healthy and reason is None:
                    with suppress(KolkError):
                        # Only to spare the next open a replay: on a full disk there is nothing to lose but time.
                        self._kv.flush()
            finally:
                try:
                    self._kv.close()
                finally:
                    self.log.close()

    def abandon(self) -> None:
        """In a forked child: never touch, and never tear down, what belongs to the parent."""
        self._kv.abandon()
        for view in list(self._views):
            view.abandon()

    def _let_go(self, frames: Callable[[], None]) -> None:
        """Let frames go from the log. If the disk is too full even for that, all is as it was."""
        self._kv.flush()  # the write tags of the frames that go; they would be found nowhere else
        with self._stopping_on_failure():
            try:
                frames()
            except DiskFull as error:
                raise NothingDone(error) from error

    def _pass(self) -> None:
        """Serve those who wait, the first of them at least; who was served is done afterwards, whatever happens."""
        # A slice, which is one step: an iterator would fail if another put came between its making and its use.
        batch = self._queue[:_PASS_PUTS_MAX]
        try:
            self._check_writable()
            batch = self._serve(batch)
        except BaseException as error:
            shared = error if isinstance(error, Exception) else interrupted()
            for pending in batch:
                pending.error = pending.error or told_apart(shared)
            if shared is not error:
                raise
        finally:
            for pending in batch:
                pending.done = True
                with suppress(ValueError):
                    self._queue.remove(pending)

    def _serve(self, waiting: Sequence[Pending]) -> Sequence[Pending]:
        """Serve puts together, those that are not too much for one pass; the answer is which."""
        batch = [pending for pending in waiting if self._is_current(pending)]
        self._check_writable()  # again: what was taken back for one of them may have stopped the bucket for all
        now_ms = self._clock.now_ms()
        stored = Stored(self._kv, [pending.prepared for pending in batch])
        writers: dict[int, Writer] = {}
        views: dict[int, OwnerView] = {}
        frames: list[PendingFrame] = []
        writes: list[KvWrites] = []
        end = self.log.end
        for pending in batch:
            if not stored.has_room:
                waiting = waiting[: waiting.index(pending)]
                break
            tag = pending.tag
            writer: Writer | None = None
            try:
                # In this order: whoever is fenced is told so, and not that an earlier try was successful.
                seen = self._owning.admitted(tag, pending.prepared, views, self._clock.monotonic())
                if seen is None and isinstance(tag, PlainTag):
                    writer = writers.get(tag.writer) or self._dedup.writer(tag)
                    seen = writer.end_of(tag.seq)
                if seen is not None:
                    pending.end = seen if seen >= 0 else end
                    continue
                changes = self._merger.merge(pending.prepared, stored.olds(pending.prepared))
                frames.append(self._frame(tag, changes, now_ms))
            except Exception as error:  # noqa: BLE001 - a put that cannot be merged fails alone; its caller raises this
                pending.error = error
                continue
            stored.overlay(changes.writes)
            writes.append(changes.writes)
            views |= self._owning.after(tag, end, end + changes.count, views)
            pending.end = end = end + changes.count
            if writer is not None and isinstance(tag, PlainTag):
                writers[tag.writer] = writer.after(tag.seq, end, now_ms)
        if frames:
            self._commit(frames, writes, writers, views)
        return waiting

    def _is_current(self, pending: Pending) -> bool:
        """Prepare a put again if the table was altered since, and take back what an earlier attempt at its task has
        left here; False if that shows that it cannot be."""
        pending.error = None  # it may have been too much for the pass before
        try:
            pending.prepared = self._renewed(pending.prepared)
            if isinstance(pending.tag, OwnerTag) and pending.tag.ticket:
                displaced = self._owning.displaced(pending.tag, self._clock.monotonic())
                if displaced is not None:
                    self.undo(displaced)
        except Exception as error:  # noqa: BLE001 - it fails alone; its caller raises this
            pending.error = error
            return False
        return True

    def _renewed(self, prepared: Prepared) -> Prepared:
        merger = self._merger
        if prepared.schema.id == merger.schema.id:
            return prepared
        return merger.prepare(replace(prepared.write, schema_id=prepared.schema.id)).only(prepared.keys)

    def _commit(
        self,
        frames: list[PendingFrame],
        writes: list[KvWrites],
        writers: Mapping[int, Writer],
        views: Mapping[int, OwnerView] = NO_VIEWS,
    ) -> None:
        """Append, sync, apply, publish. Only a full disk at the append leaves the tablet serving.

        All of it is guarded as one: an interrupt anywhere between must not leave frames that are never applied.
        """
        with self._stopping_on_failure():
            try:
                self._thinning.thin()
                self.log.append(frames)
            except DiskFull as error:
                raise NothingDone(error) from error
            self._finish(writes, writers, views)

    def _finish(
        self,
        writes: Sequence[KvWrites],
        writers: Mapping[int, Writer],
        views: Mapping[int, OwnerView] = NO_VIEWS,
        *,
        clear: bool = False,
        csn: int | None = None,
    ) -> None:
        """Sync what was appended, apply it, publish it."""
        self.log.sync()
        records = self._dedup.remember(writers, self._clock.now_ms()) | self._owning.noted(views)
        csn = self._csn if csn is None else csn
        if self._rows is not None:
            self._rows = counted(0 if clear else self._rows, writes)
        self._kv.apply(writes, {**records, **state_records(self.log.end, self._rows, csn)}, clear=clear)
        self._csn, self._published = csn, self.log.end
        self._signal.notify()

    def _frame(self, tag: WriteTag, changes: Changes, now_ms: int, *, more: bool = False) -> PendingFrame:
        return framed(changes).frame(tag, self._merger.schema.id, now_ms, more=more)

    def _truncation(self) -> Iterator[PendingFrame]:
        """A -D for every row; a frame without rows ends the group."""
        tag, now_ms = SystemTag(SystemWork.TRUNCATE), self._clock.now_ms()
        for removal in self._removals():
            yield self._frame(tag, removal, now_ms, more=True)
        yield self._frame(tag, Changes(), now_ms)

    def _removals(self) -> Iterator[Changes]:
        """A -D for every row, page by page; of large rows a page has fewer, so that a frame always holds them."""
        view = self.pin_view()
        try:
            key = b""
            while len((taken := view.take(key, _TRUNCATE_PAGE_ROWS)).all):
                count = fitting(taken.all, _TRUNCATE_PAGE_BYTES)
                yield deleted(view.codec.decode(taken.all.slice(0, count)))
                key = view.used(taken, count)
        finally:
            view.close()

    def _group(self, merged: Merged, csn: int, timestamp_ms: int) -> Iterator[PendingFrame]:
        removals = map(framed, self._removals()) if merged.truncates else iter(())
        return grouped(chain(removals, merged.frames), csn, self._merger.schema.id, timestamp_ms)

    @contextmanager
    def _stopping_on_failure(self) -> Iterator[None]:
        """After a failure here nobody knows what is on disk: refuse everything until recovery has looked. Unless it is
        known that nothing is, see ``NothingDone``."""
        try:
            yield
        except NothingDone as refused:
            raise refused.error from refused.error.__cause__
        except BaseException as error:
            stopped, unknown = stopped_by(self.bucket, error)
            self._wants_recovery = stopped.retriable
            self._refuse(stopped)
            if isinstance(error, Exception):
                raise unknown from error
            raise

    def _refuse(self, reason: KolkError) -> None:
        self._refusal = reason
        for view in list(self._views):
            view.revoke(reason)
        self._signal.notify()

    def _check_writable(self) -> None:
        self._check_serving()
        if self.log.end != self._published:
            raise Stopped(f"bucket {self.bucket.name} has frames that were not applied; close and reopen the database")

    def _check_serving(self) -> None:
        if self._refusal is not None:
            raise copy(self._refusal)
