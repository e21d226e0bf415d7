"""Faults on purpose, in a real process and on a real disk: being killed, and calls that fail.

What ``kolk.testing.disk`` models in memory happens here for real. A ``KillingDisk`` and a ``KillingKv`` take the
place of the disk and the KV of an engine and end their own process with SIGKILL at a chosen step of a put; a
``FailingDisk`` lets chosen calls fail with an error of the operating system. All come in through constructors:
``Engine(folder, config, disk=..., open_kv=...)``. Nothing is patched, and without a fault armed they do exactly
what they stand for.
"""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kolk.merge.changes import KvWrites
from kolk.runtime.disk import AppendFile, Chunk, OsDisk, Reader, naming_full_disk
from kolk.storage.kv import DAMAGED, Kv, KvMemory
from kolk.storage.meta import Meta, MetaChange


class Step(Enum):
    """A moment on the way of a put, of a snapshot or of closing, at which a process can be made to die."""

    BEFORE_APPEND = "before append"
    HALF_APPEND = "half append"
    """Half of the bytes of the write are in the file."""
    AFTER_APPEND = "after append"
    BEFORE_SYNC = "before sync"
    AFTER_SYNC = "after sync"
    BEFORE_WATERMARK = "before watermark"
    AFTER_WATERMARK = "after watermark"
    BEFORE_APPLY = "before apply"
    AFTER_APPLY = "after apply"
    BEFORE_INDEX = "before index"
    """A segment is full and synced; its index is not written."""
    BEFORE_ROLL = "before roll"
    """The file of a new segment is about to be made."""
    AFTER_ROLL = "after roll"
    """The file is made; its name is not durable yet."""
    BEFORE_FLUSH = "before flush"
    AFTER_FLUSH = "after flush"
    BEFORE_CHECKPOINT = "before checkpoint"
    AFTER_CHECKPOINT = "after checkpoint"
    BEFORE_COPY = "before copy"
    """A file of a snapshot is about to be copied."""
    HALF_COPY = "half copy"
    AFTER_COPY = "after copy"
    BEFORE_SHARE = "before share"
    """A file that an earlier snapshot has is about to get one more name."""
    AFTER_SHARE = "after share"
    BEFORE_MANIFEST = "before manifest"
    AFTER_MANIFEST = "after manifest"
    BEFORE_UNPUBLISH = "before unpublish"
    """The manifest of a snapshot is about to be removed."""
    AFTER_UNPUBLISH = "after unpublish"
    BEFORE_REMOVAL = "before removal"
    """The files of snapshots, or of buckets, are about to be removed."""
    HALF_REMOVAL = "half removal"
    AFTER_REMOVAL = "after removal"
    BEFORE_RESTORE = "before restore"
    """A bucket's KV is about to be marked as one that is not whole."""
    BEFORE_RESTORED_FILE = "before restored file"
    AFTER_RESTORED_FILE = "after restored file"
    AFTER_RESTORE = "after restore"
    """The mark is gone: it is whole."""
    BEFORE_RECORD = "before record"
    """Something is about to be written to the small durable tables."""
    AFTER_RECORD = "after record"
    BEFORE_STAGE = "before stage"
    """Rows of a transaction, or what stands before or behind them, are about to be written to a file of their own."""
    HALF_STAGE = "half stage"
    AFTER_STAGE = "after stage"
    BEFORE_SEAL = "before seal"
    """The file is about to be synced."""
    AFTER_SEAL = "after seal"
    BEFORE_UNSTAGE = "before unstage"
    """The file is about to be removed."""
    AFTER_UNSTAGE = "after unstage"


OF_A_PUT = tuple(Step)[: list(Step).index(Step.BEFORE_CHECKPOINT)]
"""The steps on the way of a put, and of closing; the others are those of snapshots, leases, recovery and staging."""


class KillSwitch:
    """Ends its process with SIGKILL when a step is reached for the n-th time; never, before it is armed with one.

    A line with the step goes to ``report`` first, so that whoever waits for the process knows that it died
    where it was meant to. Thread-safe.
    """

    def __init__(self, step: Step | None = None, occurrence: int = 1, *, report: Path | None = None) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._step: Step | None = None
        self._left = 0
        self._report: Path | None = None
        if step is not None:
            self.arm(step, occurrence, report=report)

    def arm(self, step: Step, occurrence: int = 1, *, report: Path | None = None) -> None:
        """Count a step from now on."""
        assert occurrence >= 1, "occurrences count from 1"
        with self._lock:
            self._step, self._left, self._report = step, occurrence, report

    def at(self, step: Step) -> None:
        """The process is at this step: die if this is the one."""
        if self.is_due(step):
            self.kill()

    def is_due(self, step: Step) -> bool:
        """Count the step; whether the time has come. Who asks must then call ``kill``."""
        with self._lock:
            self._left -= step is self._step
            return step is self._step and self._left == 0

    def kill(self) -> None:
        """Die, as by ``kill -9``: no handler runs, nothing is flushed."""
        self.tell()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nothing runs after SIGKILL")

    def tell(self) -> None:
        """Write the report: this is the step."""
        if self._report is not None and self._step is not None:
            self._report.write_text(self._step.value + "\n")


class KillingDisk(OsDisk):
    """The real disk, with a kill switch around everything that a log, or a snapshot, does to it. Thread-safe as
    ``OsDisk``."""

    def __init__(self, switch: KillSwitch) -> None:
        self._switch = switch

    def open_append(self, path: str) -> AppendFile:
        """See ``Disk``. A file that is not there yet is a new segment: the log rolls; or one of a copy."""
        if _is_snapshot(path):
            self._switch.at(Step.BEFORE_COPY)
            return _CopiedFile(super().open_append(path), self._switch, Step.AFTER_COPY)
        if _is_kv(path):
            self._switch.at(Step.BEFORE_RESTORED_FILE)
            return _CopiedFile(super().open_append(path), self._switch, Step.AFTER_RESTORED_FILE)
        if _is_staging(path):
            return _StagedFile(super().open_append(path), self._switch)
        if self.exists(path):
            return _KillingFile(super().open_append(path), self._switch)
        self._switch.at(Step.BEFORE_ROLL)
        made = super().open_append(path)
        self._switch.at(Step.AFTER_ROLL)
        return _KillingFile(made, self._switch)

    def replace(self, path: str, data: bytes) -> None:
        """See ``Disk``."""
        if _is_snapshot(path):
            self._switch.at(Step.BEFORE_MANIFEST)
            super().replace(path, data)
            self._switch.at(Step.AFTER_MANIFEST)
            return
        self._switch.at(Step.BEFORE_RESTORE if _is_kv(path) else Step.BEFORE_INDEX)
        super().replace(path, data)

    def link(self, path: str, to: str) -> None:
        """See ``Disk``."""
        self._switch.at(Step.BEFORE_SHARE)
        super().link(path, to)
        self._switch.at(Step.AFTER_SHARE)

    def remove(self, path: str) -> None:
        """See ``Disk``."""
        is_manifest = _is_snapshot(path) and path.endswith(".manifest")
        if is_manifest:
            self._switch.at(Step.BEFORE_UNPUBLISH)
        elif _is_staging(path):
            self._switch.at(Step.BEFORE_UNSTAGE)
        super().remove(path)
        if _is_staging(path):
            self._switch.at(Step.AFTER_UNSTAGE)
        if is_manifest:
            self._switch.at(Step.AFTER_UNPUBLISH)
        elif _is_kv(path) and path.endswith(DAMAGED):
            self._switch.at(Step.AFTER_RESTORE)

    def remove_tree(self, path: str) -> None:
        """See ``Disk``."""
        if not self.exists(path) or not (_is_snapshot(path) or _is_bucket(path)):
            super().remove_tree(path)
            return
        self._switch.at(Step.BEFORE_REMOVAL)
        if self._switch.is_due(Step.HALF_REMOVAL):
            for file in [each for each in sorted(Path(path).rglob("*")) if each.is_file()][::2]:
                file.unlink()
            self._switch.kill()
        super().remove_tree(path)
        self._switch.at(Step.AFTER_REMOVAL)

    def overwrite(self, path: str, data: bytes) -> None:
        """See ``Disk``."""
        self._switch.at(Step.BEFORE_WATERMARK)
        super().overwrite(path, data)
        self._switch.at(Step.AFTER_WATERMARK)


class KillingKv(Kv):
    """The real KV, with a kill switch around its writes. Thread-safe as ``Kv``."""

    def __init__(self, path: Path, memory: KvMemory, switch: KillSwitch) -> None:
        super().__init__(path, memory)
        self._switch = switch

    def apply(self, writes: Iterable[KvWrites], records: Mapping[bytes, bytes | None], *, clear: bool = False) -> None:
        """See ``Kv``."""
        self._switch.at(Step.BEFORE_APPLY)
        super().apply(writes, records, clear=clear)
        self._switch.at(Step.AFTER_APPLY)

    def flush(self) -> None:
        """See ``Kv``."""
        self._switch.at(Step.BEFORE_FLUSH)
        super().flush()
        self._switch.at(Step.AFTER_FLUSH)

    def checkpoint(self, path: Path) -> None:
        """See ``Kv``."""
        self._switch.at(Step.BEFORE_CHECKPOINT)
        super().checkpoint(path)
        self._switch.at(Step.AFTER_CHECKPOINT)


class KillingMeta(Meta):
    """The real small tables, with a kill switch around what is written to them. Thread-safe as ``Meta``."""

    def __init__(self, path: Path, switch: KillSwitch) -> None:
        super().__init__(path)
        self._switch = switch

    def write(self, changes: Sequence[MetaChange], *, syncs: bool = True) -> None:
        """See ``Meta``."""
        self._switch.at(Step.BEFORE_RECORD)
        super().write(changes, syncs=syncs)
        self._switch.at(Step.AFTER_RECORD)


class _KillingFile:
    """An ``AppendFile`` with a kill switch. Confined to one call at a time."""

    def __init__(self, file: AppendFile, switch: KillSwitch) -> None:
        self._file = file
        self._switch = switch

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, parts: Sequence[Chunk]) -> None:
        self._switch.at(Step.BEFORE_APPEND)
        if self._switch.is_due(Step.HALF_APPEND):
            self._file.write([_half(parts)])
            self._switch.kill()
        self._file.write(parts)
        self._switch.at(Step.AFTER_APPEND)

    def sync(self) -> None:
        self._switch.at(Step.BEFORE_SYNC)
        self._file.sync()
        self._switch.at(Step.AFTER_SYNC)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


class _StagedFile(_KillingFile):
    """A file of staged rows. Confined to one call at a time."""

    def write(self, parts: Sequence[Chunk]) -> None:
        self._switch.at(Step.BEFORE_STAGE)
        if self._switch.is_due(Step.HALF_STAGE):
            self._file.write([_half(parts)])
            self._switch.kill()
        self._file.write(parts)
        self._switch.at(Step.AFTER_STAGE)

    def sync(self) -> None:
        self._switch.at(Step.BEFORE_SEAL)
        self._file.sync()
        self._switch.at(Step.AFTER_SEAL)


class _CopiedFile(_KillingFile):
    """A file of a snapshot that is being copied. Confined to one call at a time."""

    def __init__(self, file: AppendFile, switch: KillSwitch, done: Step) -> None:
        super().__init__(file, switch)
        self._done = done

    def write(self, parts: Sequence[Chunk]) -> None:
        if self._switch.is_due(Step.HALF_COPY):
            self._file.write([_half(parts)])
            self._switch.kill()
        self._file.write(parts)

    def sync(self) -> None:
        self._file.sync()
        self._switch.at(self._done)


class Call(Enum):
    """A call that a ``FailingDisk`` can let fail."""

    WRITE = "write"
    """An append. Half of the bytes are written first, as by a short write."""
    SYNC = "sync"
    CREATE = "create"
    """A new segment's file."""
    SYNC_FOLDER = "sync_folder"
    READ = "read"
    """A file that is opened to be read."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error, for calls on paths that contain ``within``."""

    number: int
    within: str


class FailingDisk(OsDisk):
    """The real disk, some of whose calls fail when told to. Thread-safe as ``OsDisk``.

    ``calls`` counts what was tried, by call and path, failures included: with it a test sees that a failed
    sync is not tried again.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[Call, str]] = Counter()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._once: dict[Call, list[_Failure | None]] = {}
        self._always: dict[Call, _Failure] = {}

    def fail_next(self, call: Call, number: int, *, after: int = 0, within: str = "") -> None:
        """Let one call fail with this errno, after ``after`` good ones, all on paths that contain ``within``."""
        with self._lock:
            self._once.setdefault(call, []).extend([*[None] * after, _Failure(number, within)])

    def fail_always(self, call: Call, number: int, *, within: str = "") -> None:
        """Let the call fail with this errno until ``heal``."""
        with self._lock:
            self._always[call] = _Failure(number, within)

    def heal(self) -> None:
        """Let every call succeed again: space was freed."""
        with self._lock:
            self._once.clear()
            self._always.clear()

    def attempts(self, call: Call, within: str = "") -> int:
        """How often a call was tried on paths that contain ``within``."""
        with self._lock:
            return sum(count for (made, path), count in self.calls.items() if made is call and within in path)

    def open_append(self, path: str) -> AppendFile:
        """See ``Disk``."""
        if not self.exists(path):
            with naming_full_disk(path):
                self.attempt(Call.CREATE, path)
        return _FailingFile(super().open_append(path), path, self)

    def open_reader(self, path: str) -> Reader:
        """See ``Disk``."""
        self.attempt(Call.READ, path)
        return super().open_reader(path)

    def sync_folder(self, path: str) -> None:
        """See ``Disk``."""
        self.attempt(Call.SYNC_FOLDER, path)
        super().sync_folder(path)

    def attempt(self, call: Call, path: str) -> None:
        """Count a call, and fail if it is this one's turn."""
        with self._lock:
            self.calls[call, path] += 1
            failure = self._due(call, path)
        if failure is not None:
            raise OSError(failure.number, os.strerror(failure.number), path)

    def _due(self, call: Call, path: str) -> _Failure | None:
        always = self._always.get(call)
        if always is not None and always.within in path:
            return always
        queue = self._once.get(call, [])
        # Good calls that are waited for count only on the paths of the failure behind them.
        coming = next((failure for failure in queue if failure is not None), None)
        if coming is None or coming.within not in path:
            return None
        return queue.pop(0)


class _FailingFile:
    """An ``AppendFile`` of a ``FailingDisk``. Confined to one call at a time."""

    def __init__(self, file: AppendFile, path: str, disk: FailingDisk) -> None:
        self._file = file
        self._path = path
        self._disk = disk

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, parts: Sequence[Chunk]) -> None:
        with naming_full_disk(self._path):
            try:
                self._disk.attempt(Call.WRITE, self._path)
            except OSError:
                self._file.write([_half(parts)])
                raise
        self._file.write(parts)

    def sync(self) -> None:
        self._disk.attempt(Call.SYNC, self._path)
        self._file.sync()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


def _is_snapshot(path: str) -> bool:
    return "/snapshots/" in path


def _is_staging(path: str) -> bool:
    return "/staging/" in path


def _is_bucket(path: str) -> bool:
    return "/tables/" in path and not _is_kv(path)


def _is_kv(path: str) -> bool:
    return "/tables/" in path and "/kv" in path


def _half(parts: Sequence[Chunk]) -> bytes:
    """The first half of the bytes, at least one of them missing."""
    whole = b"".join(map(memoryview, parts))
    return whole[: len(whole) // 2]
