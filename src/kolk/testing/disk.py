"""A disk in memory that can lose power, run full and fail, like a real one: the twin of ``runtime.disk``.

A real disk keeps three promises only, and this one keeps no more: a synced file's bytes are there after a
power cut, a synced folder's names are there, and a sector of 512 bytes is written whole or not at all.
Everything else may be lost, kept, or kept in part, as the seed decides. After a sync that failed, the bytes
it should have saved can still be read, and later syncs succeed, but they are never saved: that is what Linux
does, and what makes a retried sync a lie.

``crash`` is a copy: the disk it is called on goes on, so that a test can look at many power cuts of one
moment. To cut the power in the *middle* of an operation, let ``power_off_after`` choose the step.
"""

import errno
import random  # noqa: TID251 - this is the seam itself: each disk has its own seed
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock

import pyarrow as pa

from kolk.errors import KolkError
from kolk.runtime.disk import TEMPORARY_SUFFIX, AppendFile, Chunk, Reader, naming_full_disk
from kolk.testing.sectors import Crash, SectorFile

_OPERATIONS = (
    "append",
    "sync",
    "truncate",
    "create",
    "link",
    "replace",
    "overwrite",
    "remove",
    "sync_folder",
    "make_folder",
    "read",
)


class PowerCut(BaseException):
    """The machine is off. Not an ``Exception``: no code of a program that lost its power may catch it."""


class LossyDisk:
    """A ``Disk`` in memory. Thread-safe.

    ``fail_next`` knows its operations as ``append``, ``sync``, ``truncate``, ``create``, ``link``,
    ``replace``, ``overwrite``, ``remove``, ``sync_folder``, ``make_folder`` and ``read``.
    """

    def __init__(self, seed: int = 0, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        """How many bytes fit, all files together; may be changed at any time."""
        self._lock = RLock()
        self._rng = random.Random(seed)
        self._folders = {"", "/"}
        self._live: dict[str, SectorFile] = {}
        self._durable: dict[str, SectorFile] = {}
        self._failures: dict[str, list[OSError | KolkError | None]] = {}
        self._last_step: int | None = None
        self._steps = 0
        self._is_off = False

    # What a test does to it.

    def crash(self, mode: Crash) -> "LossyDisk":
        """The disk as a machine finds it after a power cut now. This one stays as it is."""
        with self._lock:
            found = LossyDisk(self._rng.getrandbits(64), capacity_bytes=self.capacity_bytes)
            found._folders = set(self._folders)
            for path in sorted(self._live.keys() | self._durable.keys()):
                old, new = self._durable.get(path), self._live.get(path)
                file = self._one_of(mode, old, new)
                if file is not None:
                    survivor = SectorFile(file.after(mode, self._rng))
                    found._live[path] = found._durable[path] = survivor
            return found

    def fail_next(self, operation: str, error: OSError | KolkError, *, after: int = 0) -> None:
        """Let an operation fail once, after ``after`` good ones. A failing append writes a part first."""
        assert operation in _OPERATIONS, f"{operation} is not one of {', '.join(_OPERATIONS)}"
        with self._lock:
            queue = self._failures.setdefault(operation, [])
            queue.extend([None] * after)
            queue.append(error)

    def heal(self) -> None:
        """Forget the failures that were asked for and have not come."""
        with self._lock:
            self._failures.clear()

    def power_off_after(self, steps: int) -> None:
        """Let every call raise ``PowerCut`` once ``steps`` more changes have been made; then ``crash``."""
        with self._lock:
            self._last_step = self._steps + steps

    @property
    def steps(self) -> int:
        """How many changes have been made: what to choose ``power_off_after`` from."""
        return self._steps

    @property
    def used_bytes(self) -> int:
        """The bytes in all files; one with several names counts once."""
        return sum(len(file.data) for file in {id(file): file for file in self._live.values()}.values())

    def flip(self, path: str, position: int, bit: int) -> None:
        """Let one bit rot, on the disk and in memory."""
        with self._lock:
            file = self._file(path)
            file.data[position] ^= 1 << bit
            if position < len(file.saved):
                file.saved[position] ^= 1 << bit

    # What a program does with it: see ``Disk``.

    def make_folder(self, path: str) -> None:
        """See ``Disk``."""
        with self._lock:
            if path.rstrip("/") in self._folders:
                return
            self._step("make_folder", path)
            if _parent(path) != path:
                self.make_folder(_parent(path))
            self._folders.add(path.rstrip("/"))

    def list(self, path: str) -> list[str]:
        """See ``Disk``."""
        with self._lock:
            self._check_power()
            if path.rstrip("/") not in self._folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            inside = [name for name in (*self._live, *self._folders) if name and _parent(name) == path.rstrip("/")]
            return sorted(name.rsplit("/", 1)[-1] for name in inside)

    def exists(self, path: str) -> bool:
        """See ``Disk``."""
        self._check_power()
        return path in self._live or path.rstrip("/") in self._folders

    def size(self, path: str) -> int:
        """See ``Disk``."""
        with self._lock:
            self._check_power()
            return len(self._file(path).data)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """See ``Disk``."""
        with self.open_reader(path) as reader:
            return reader.pread(offset, length).to_pybytes()

    def open_reader(self, path: str) -> Reader:
        """See ``Disk``."""
        with self._lock:
            self._check_power()
            file = self._file(path)
            return _LossyReader(file, partial(self._pread, path, file))

    def open_append(self, path: str) -> AppendFile:
        """See ``Disk``."""
        with self._lock:
            if path not in self._live:
                self._step("create", path)
                self._live[path] = SectorFile(b"")
            file = self._live[path]
            return _LossyAppendFile(
                file,
                append=partial(self._append, path, file),
                sync=partial(self._sync, path, file),
                truncate=partial(self._truncate, path, file),
            )

    def link(self, path: str, to: str) -> None:
        """See ``Disk``."""
        with self._lock:
            self._step("link", to)
            if to in self._live:
                raise FileExistsError(errno.EEXIST, "there is a file of this name", to)
            self._live[to] = self._file(path)

    def identity(self, path: str) -> tuple[int, ...]:
        """See ``Disk``."""
        with self._lock:
            self._check_power()
            file = self._file(path)
            return id(file), len(file.data), zlib.crc32(file.data)

    def replace(self, path: str, data: bytes) -> None:
        """See ``Disk``. A power cut may come before each of its steps."""
        aside = path + TEMPORARY_SUFFIX
        with self._lock:
            self._step("replace", path)
            self._live[aside] = SectorFile(b"")
            try:
                self._write(aside, self._live[aside], 0, data)
            except KolkError:
                del self._live[aside]
                raise
            self._step(None, path)
            self._live[aside].sync()
            self._step(None, path)
            self._live[path] = self._live.pop(aside)
            self._step("sync_folder", path)
            self._save_names(_parent(path))

    def overwrite(self, path: str, data: bytes) -> None:
        """See ``Disk``."""
        with self._lock:
            self._step("overwrite", path)
            self._write(path, self._live.setdefault(path, SectorFile(b"")), 0, data)

    def remove(self, path: str) -> None:
        """See ``Disk``."""
        with self._lock:
            if path in self._live:
                self._step("remove", path)
                del self._live[path]

    def remove_tree(self, path: str) -> None:
        """See ``Disk``."""
        root = path.rstrip("/")
        with self._lock:
            for name in [name for name in self._live if name.startswith(root + "/")]:
                self.remove(name)
            self._step(None, path)
            for folder in [folder for folder in self._folders if folder == root or folder.startswith(root + "/")]:
                self._folders.discard(folder)
                self._save_names(folder)

    def sync_folder(self, path: str) -> None:
        """See ``Disk``."""
        with self._lock:
            self._step("sync_folder", path)
            self._save_names(path.rstrip("/"))

    # How it works.

    def _step(self, operation: str | None, path: str) -> None:
        """One change is about to be made: the power may go before it, or it may fail."""
        self._check_power()
        if self._last_step == self._steps:
            self._is_off = True
            raise PowerCut
        self._steps += 1
        if operation is not None:
            self._fail_if_told(operation, path)

    def _fail_if_told(self, operation: str, path: str) -> None:
        queue = self._failures.get(operation)
        failure = queue.pop(0) if queue else None
        if failure is not None:
            with naming_full_disk(path):
                raise failure

    def _check_power(self) -> None:
        if self._is_off:
            raise PowerCut

    def _file(self, path: str) -> SectorFile:
        if path not in self._live:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._live[path]

    def _write(self, path: str, file: SectorFile, position: int, data: bytes) -> None:
        """Write what fits, then say that the disk is full, as a short write and its retry do."""
        growth = max(position + len(data) - len(file.data), 0)
        excess = 0 if self.capacity_bytes is None else max(self.used_bytes + growth - self.capacity_bytes, 0)
        file.write(position, data[: max(len(data) - excess, 0)])
        if excess:
            with naming_full_disk(path):
                raise OSError(errno.ENOSPC, "the test's capacity is reached", path)

    def _append(self, path: str, file: SectorFile, data: bytes) -> None:
        with self._lock:
            self._check_power()
            try:
                self._step("append", path)
            except BaseException:
                # Whether it fails or the power goes: some of it may have got through.
                file.write(len(file.data), data[: self._rng.randrange(len(data) + 1)])
                raise
            self._write(path, file, len(file.data), data)

    def _sync(self, path: str, file: SectorFile) -> None:
        with self._lock:
            try:
                self._step("sync", path)
            except Exception:
                file.fail_sync()
                raise
            file.sync()

    def _truncate(self, path: str, file: SectorFile, size: int) -> None:
        with self._lock:
            self._step("truncate", path)
            file.truncate(size)

    def _pread(self, path: str, file: SectorFile, offset: int, length: int) -> pa.Buffer:
        with self._lock:
            self._check_power()
            self._fail_if_told("read", path)
            return pa.py_buffer(bytes(file.data[offset : offset + length]))

    def _save_names(self, folder: str) -> None:
        for path in [path for path in self._live.keys() | self._durable.keys() if _parent(path) == folder]:
            if path in self._live:
                self._durable[path] = self._live[path]
            else:
                del self._durable[path]

    def _one_of(self, mode: Crash, old: SectorFile | None, new: SectorFile | None) -> SectorFile | None:
        """Which of a name's two states the crash leaves."""
        if old is new or mode is Crash.KEEP:
            return new
        return old if mode is Crash.DROP else self._rng.choice((old, new))


class _LossyAppendFile:
    """An ``AppendFile`` of a ``LossyDisk``, which does the work."""

    def __init__(
        self,
        file: SectorFile,
        append: Callable[[bytes], None],
        sync: Callable[[], None],
        truncate: Callable[[int], None],
    ) -> None:
        self._file = file
        self._append = append
        self._sync = sync
        self._truncate = truncate

    @property
    def size(self) -> int:
        return len(self._file.data)

    def write(self, parts: Sequence[Chunk]) -> None:
        self._append(b"".join(map(memoryview, parts)))

    def sync(self) -> None:
        self._sync()

    def truncate(self, size: int) -> None:
        self._truncate(size)

    def close(self) -> None:
        pass


class _LossyReader:
    """A ``Reader`` of a ``LossyDisk``, which does the work."""

    def __init__(self, file: SectorFile, pread: Callable[[int, int], pa.Buffer]) -> None:
        self._file = file
        self._pread = pread

    @property
    def size(self) -> int:
        return len(self._file.data)

    def pread(self, offset: int, length: int) -> pa.Buffer:
        return self._pread(offset, length)

    def close(self) -> None:
        pass

    def __enter__(self) -> "_LossyReader":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0]
