"""Backups: a copy of the whole database in another folder, made while it is used.

A backup is laid out like a data folder without ``FORMAT``, so nobody opens it by mistake::

    BACKUP, FILES                              what it is; the digests of all other files (``kolk.codec.backup``)
    meta.sqlite, tokens.json                   the records, and the hashes of the access tokens
    snapshots/<table>/<partition>/<bucket>/    one snapshot of each bucket of tables with a primary key
    tables/<table>/<partition>/<bucket>/log/   of these one empty segment, at the offset of the snapshot, so that rows
                                               come back by the ordinary recovery; or the segments before it, from where
                                               an owner has not committed; of a log table all segments

``BACKUP`` is written last, durably: whatever fails or dies before leaves a folder that is no backup. What is left of a
failure is removed; after a kill it stays, and its folder is refused until somebody removes it.

It goes on in steps of a moment each, as its caller asks for the next: so a caller far away sees how far it is, and no
call takes long. Whoever asks again after an answer was lost is known by his nonce. One backup is made at a time; one
that nobody has asked for in a while is given up. What is in it is decided in ``kolk.engine.backup_cut``.
"""

import logging
import os
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

from kolk.codec.backup import BackupHead, decode_backup, encode_backup, encode_files
from kolk.codec.snapshot import encode_snapshot
from kolk.engine.backup_cut import BackupCut, BackupCuts, BackupLease, Changed, LogCut
from kolk.engine.keeping import Keeping
from kolk.errors import Busy, Closed, Corrupted, InvalidArgument, KolkError, NotFound, Stopped, Unavailable
from kolk.model.backup import BackupFile, BackupInfo, BackupState
from kolk.model.durations import moment
from kolk.model.ids import BucketId
from kolk.model.snapshot import Snapshot
from kolk.runtime.clock import Clock
from kolk.runtime.disk import Disk
from kolk.runtime.folder import TOKENS_FILE
from kolk.runtime.migrations import FORMAT
from kolk.runtime.rng import Rng
from kolk.storage.copying import digest_of, digesting, finished
from kolk.storage.meta import ABSENT, Meta, MetaChange
from kolk.storage.segment import Segment
from kolk.storage.segment_copy import copying_segment
from kolk.storage.snapshots import MANIFEST_SUFFIX, FolderSnapshots

BACKUP_FILE, FILES_FILE, META_FILE = "BACKUP", "FILES", "meta.sqlite"
STEP_SECONDS = 1.0
IDLE_SECONDS = 300.0
_LEASE_SECONDS = 3_600.0
"""Longer than the snapshots of one table take, for it is not renewed meanwhile."""
_TRIES = 5
_FOLDERS = ("snapshots", "tables")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    """A backup that is being made. Guarded by ``Backups._lock``."""

    target: Path
    nonce: str
    used: float
    steps: Generator[int, None, BackupInfo] | None = None
    is_running: bool = False
    done: int = 0
    total: int = 0
    files: list[BackupFile] = field(default_factory=list)


class Backups:
    """Makes backups. Thread-safe: one lock, held while a step is made."""

    def __init__(
        self,
        source: Path,
        disk: Disk,
        cuts: BackupCuts,
        keeping: Keeping,
        clock: Clock,
        rng: Rng,
        lease_seconds_max: float,
    ) -> None:
        # Constant after construction.
        self._source = source
        self._disk = disk
        self._cuts = cuts
        self._keeping = keeping
        self._clock = clock
        self._rng = rng
        self._lease_seconds = min(_LEASE_SECONDS, lease_seconds_max)
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may close the database in the middle of anything
        # Guarded by _lock.
        self._job: _Job | None = None
        self._is_closed = False

    def advance(self, target: Path, nonce: str, principal: str) -> BackupState:
        """Begin a backup, or go on with it for a moment."""
        with self._lock:
            job = self._job
            if job is None or job.nonce != nonce:
                try:
                    made = self._made(target, nonce)
                    job = None if made is not None else self._begun(target.absolute(), nonce, principal)
                except OSError as error:
                    raise Stopped(f"{target} cannot be used for a backup: {error}") from error
                if job is None:
                    assert made is not None, "it is made, or begun"
                    return BackupState(done_bytes=made.size_bytes, total_bytes=made.size_bytes, info=made)
            return self._advanced(job)

    def cancel(self, nonce: str) -> None:
        """Give a backup up, and remove what there is of it. Idempotent."""
        with self._lock:
            if self._job is not None and self._job.nonce == nonce:
                self._end()

    def reap(self) -> None:
        """Give up one that nobody has asked for in a while."""
        if self._lock.acquire(blocking=False):  # else somebody makes a step
            try:
                if self._job is not None and self._clock.monotonic() - self._job.used >= IDLE_SECONDS:
                    _log.warning("nobody goes on with the backup in %s, so it is given up", self._job.target)
                    self._end()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Give up what is being made. Idempotent; a step that is made in another thread is waited for."""
        self._is_closed = True
        with self._lock:
            self._end()

    # --- jobs: all under the lock

    def _begun(self, target: Path, nonce: str, principal: str) -> _Job:
        if self._is_closed:
            raise Closed("the database is closed")
        if self._job is not None:
            raise _final(Busy(f"a backup in {self._job.target} is being made, one at a time; wait until it is whole"))
        check_free(self._disk, target, "backup")
        for one, other in ((target, self._source), (self._source, target)):
            if one.resolve().is_relative_to(other.resolve()):
                raise InvalidArgument(
                    f"{target} and the database in {self._source} lie within each other; give another folder"
                )
        job = _Job(target, nonce, self._clock.monotonic())
        job.steps = self._making(job, principal)
        self._job = job
        return job

    def _advanced(self, job: _Job) -> BackupState:
        assert job.steps is not None, "a job has its steps from the beginning"
        until = self._clock.monotonic() + STEP_SECONDS
        job.is_running = True
        try:
            while True:
                job.done += next(job.steps)
                job.used = self._clock.monotonic()
                if job.used >= until:
                    return BackupState(done_bytes=job.done, total_bytes=job.total)
        except StopIteration as end:
            self._job = None
            return BackupState(done_bytes=job.total, total_bytes=job.total, info=end.value)
        except BaseException:
            self._job = None
            raise
        finally:
            job.is_running = False

    def _end(self) -> None:
        job = self._job
        if job is None or job.is_running:  # in this very thread: it is told at its next step
            return
        self._job = None
        if job.steps is not None:
            job.steps.close()

    def _made(self, target: Path, nonce: str) -> BackupInfo | None:
        """The backup that was made for this nonce, if it was."""
        path = str(target / BACKUP_FILE)
        if not self._disk.exists(path):
            return None
        with suppress(Corrupted):
            head = decode_backup(path, self._disk.read(path, 0, self._disk.size(path)))
            return info_of(target, head) if head.nonce == nonce else None
        return None

    # --- one backup

    def _making(self, job: _Job, principal: str) -> Generator[int, None, BackupInfo]:
        """Make a backup; yields how many bytes were copied. What fails leaves nothing."""
        existed = self._disk.exists(str(job.target))
        try:
            for _ in range(_TRIES):
                with suppress(Changed):
                    return (yield from self._attempt(job, principal))
                job.files.clear()
                job.done = 0
                clear(self._disk, job.target)
            raise Busy(f"tables or partitions came and went in each of {_TRIES} tries; try again when fewer do")
        except KolkError as error:
            told = copy(error)  # others may be told the same
            told.args = (f"{error}; {self._cleared(job, existed)}",)
            raise _final(told) from error
        except OSError as error:
            raise Stopped(f"{error}; {self._cleared(job, existed)}") from error
        except BaseException:
            self._cleared(job, existed)
            raise

    def _attempt(self, job: _Job, principal: str) -> Generator[int, None, BackupInfo]:
        id, holder = f"backup-{self._rng.token_hex()}", self._rng.id128()
        lease = BackupLease(self._keeping, self._clock, id, holder, principal, self._lease_seconds)
        with self._held() as held:
            held.callback(_end_lease, lease)
            cut, taken_ms = self._cuts.begun(), self._clock.now_ms()
            try:
                yield from self._watched(self._cuts.cutting(cut, lease, held), lease)
                job.total = cut.size_bytes
                yield from self._watched(self._copying(job, cut), lease)
            except (NotFound, Corrupted, Unavailable, OSError) as error:
                if not self._cuts.is_still(cut):
                    raise Changed from error  # it went while it was copied
                lease.renew(is_due=True)  # or else it went because nobody kept it any more
                raise
            return self._finished(job, cut, taken_ms)

    @contextmanager
    def _held(self) -> Iterator[ExitStack]:
        """What is let go at the end of the block; not by a forked child, for it belongs to the parent."""
        with ExitStack() as held:
            try:
                yield held
            finally:
                if os.getpid() != self._pid:
                    held.pop_all()

    def _watched(self, steps: Generator[int, None, None], lease: BackupLease) -> Generator[int, None, None]:
        """The same steps, as long as it makes sense to go on."""
        with closing(steps):
            for copied in steps:
                if self._is_closed:
                    raise Closed("the database is closed, so the backup was given up")
                lease.renew()
                yield copied

    def _copying(self, job: _Job, cut: BackupCut) -> Generator[int, None, None]:
        for folder in _FOLDERS:
            self._disk.make_folder(str(job.target / folder))
        for bucket, snapshot in cut.snapshots.items():
            yield from self._copying_rows(job, bucket, snapshot, has_log=bucket in cut.tails)
        for log in (*cut.logs, *cut.tails.values()):
            yield from self._copying_log(job, log)
        self._write_meta(job, cut)
        tokens = self._source / TOKENS_FILE
        if self._disk.exists(str(tokens)):
            self._write(job, TOKENS_FILE, self._disk.read(str(tokens), 0, self._disk.size(str(tokens))))

    def _copying_rows(
        self, job: _Job, bucket: BucketId, snapshot: Snapshot, *, has_log: bool
    ) -> Generator[int, None, None]:
        """A snapshot, and, if it has no other, the empty log that begins where it ends."""
        place = f"snapshots/{bucket.folder}"
        yield from self._cuts.sending(bucket, snapshot, FolderSnapshots(self._disk, job.target / place))
        manifest = encode_snapshot(snapshot)
        inside = f"{place}/{snapshot.id}"
        job.files.append(BackupFile(f"{inside}{MANIFEST_SUFFIX}", len(manifest), digest_of(manifest)))
        job.files += [BackupFile(f"{inside}/{each.name}", each.size, each.digest) for each in snapshot.files]
        if not has_log:
            empty = Segment(base=snapshot.offset, end=snapshot.offset, size=0, last_timestamp_ms=0)
            self._disk.make_folder(str(job.target / _log_place(bucket)))
            self._write(job, f"{_log_place(bucket)}/{empty.log_name}", b"")

    def _copying_log(self, job: _Job, log: LogCut) -> Generator[int, None, None]:
        place = _log_place(log.bucket)
        self._disk.make_folder(str(job.target / place))
        for segment in log.segments:
            name = f"{place}/{segment.log_name}"
            size, digest = yield from copying_segment(self._disk, log.path(segment), str(job.target / name), segment)
            job.files.append(BackupFile(name, size, digest))
        self._disk.sync_folder(str(job.target / place))

    def _write_meta(self, job: _Job, cut: BackupCut) -> None:
        with closing(Meta(job.target / META_FILE)) as meta:
            meta.write([MetaChange(key, value, ABSENT) for key, value in cut.records_there().items()])
        # What SQLite has written is safe as soon as it says so; its name need not be.
        self._disk.sync_folder(str(job.target))
        path = str(job.target / META_FILE)
        job.files.append(BackupFile(META_FILE, self._disk.size(path), finished(digesting(self._disk, path))))

    def _write(self, job: _Job, name: str, data: bytes) -> None:
        self._disk.replace(str(job.target / name), data)
        job.files.append(BackupFile(name, len(data), digest_of(data)))

    def _finished(self, job: _Job, cut: BackupCut, taken_ms: int) -> BackupInfo:
        """Everything is there: list it, and then say that it is a backup."""
        files = encode_files(job.files)
        self._disk.replace(str(job.target / FILES_FILE), files)
        head = BackupHead(
            format=FORMAT,
            taken_ms=taken_ms,
            source=str(self._source),
            nonce=job.nonce,
            tables=len(cut.tables),
            buckets=len(cut.snapshots) + len(cut.logs),
            files=len(job.files),
            size_bytes=sum(file.size for file in job.files),
            mixed=cut.mixed,
            digest=digest_of(files),
        )
        self._disk.replace(str(job.target / BACKUP_FILE), encode_backup(head))
        return info_of(job.target, head)

    def _cleared(self, job: _Job, existed: bool) -> str:
        """Remove what there is of a backup that failed; how that went, in words."""
        if os.getpid() != self._pid:
            return "this process was forked from the one that makes it"
        job.files.clear()
        return f"there is no backup in {job.target}{cleared(self._disk, job.target, existed=existed)}"


def check_free(disk: Disk, folder: Path, what: str) -> None:
    """Refuse a folder in which there is something already."""
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(f"{folder} is a file; give the path of a folder for the {what}, new or empty")
    there = disk.list(str(folder)) if disk.exists(str(folder)) else []
    if not there:
        return
    what_is_there = (
        "holds a backup already"
        if BACKUP_FILE in there
        else "holds a database"
        if "FORMAT" in there
        else f"is not empty; if that is what is left of a {what} that was killed, remove it"
    )
    raise InvalidArgument(f"{folder} {what_is_there}; give a new or empty folder for the {what}")


def clear(disk: Disk, folder: Path) -> None:
    """Remove what there is of a backup, or of a database that is not finished; what would make it one goes first."""
    if not disk.exists(str(folder)):
        return
    for name in (BACKUP_FILE, FILES_FILE, META_FILE, f"{META_FILE}-wal", f"{META_FILE}-shm", TOKENS_FILE):
        disk.remove(str(folder / name))
    disk.sync_folder(str(folder))
    for name in _FOLDERS:
        if disk.exists(str(folder / name)):
            disk.remove_tree(str(folder / name))


def cleared(disk: Disk, folder: Path, *, existed: bool) -> str:
    """The same after a failure, with a folder that was not there before; what could not be done, in words."""
    try:
        clear(disk, folder)
        if not existed and disk.exists(str(folder)):
            disk.remove_tree(str(folder))
        return ""
    except (OSError, KolkError) as error:
        return f", and what was written could not be removed: {error}"


def info_of(path: Path, head: BackupHead) -> BackupInfo:
    """A backup for its users."""
    return BackupInfo(
        path=str(path),
        source=head.source,
        taken=moment(head.taken_ms),
        tables=head.tables,
        buckets=head.buckets,
        files=head.files,
        size_bytes=head.size_bytes,
        mixed=tuple(head.mixed),
    )


def _final(error: KolkError) -> KolkError:
    """Nobody tries it again by himself: a backup that failed begins from its start."""
    error.retriable = False
    return error


def _end_lease(lease: BackupLease) -> None:
    with suppress(KolkError):  # then it expires by itself
        lease.close()


def _log_place(bucket: BucketId) -> str:
    return f"tables/{bucket.folder}/log"
