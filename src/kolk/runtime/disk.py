"""The file system, as far as Kolk needs it, behind one seam.

Everything that must survive a crash goes through a ``Disk``, so that a test can put one in its place that
forgets, tears and fails (``kolk.testing.disk``), and so that each rule about durability is written once:
a new name is durable when its folder is synced, bytes are durable when their file is synced, and a small
file is replaced whole or not at all.

It refuses to interpret: it neither retries nor hides an error. A full disk alone is translated, into
``DiskFull``, because a caller can act on it; every other ``OSError`` comes through as it is. So does every
error of ``AppendFile.sync``, a full disk's too: after it nobody knows which bytes are safe, and freeing some
space does not help.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from kolk.errors import DiskFull

Chunk = bytes | memoryview | pa.Buffer
"""Bytes that can be written without being copied first; a ``memoryview`` is one of bytes."""

IOV_MAX = 1_024
"""How many pieces one ``writev`` takes: POSIX's usual limit, and Linux's."""

TEMPORARY_SUFFIX = ".tmp"
"""``replace`` writes here first; what a crash leaves behind under such a name means nothing."""

# A database's files are its owner's business, as PostgreSQL's are.
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
"""What file systems say that have no links, or no more of them."""
_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has the second only


class AppendFile(Protocol):
    """A file that grows at its end. Confined to one call at a time."""

    @property
    def size(self) -> int:
        """The bytes in the file, synced or not."""
        ...

    def write(self, parts: Sequence[Chunk]) -> None:
        """Append all parts, in order. After an error any prefix of them may be in the file: truncate it."""
        ...

    def sync(self) -> None:
        """Make every byte and the size durable. After an error nobody knows what is: never call it again."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; durable with the next sync."""
        ...

    def close(self) -> None:
        """Let the file go, without a sync. Idempotent."""
        ...


class Reader(Protocol):
    """A file open for reading. Thread-safe but for ``close``, which is the last call. A context manager."""

    @property
    def size(self) -> int:
        """The bytes in the file now."""
        ...

    def pread(self, offset: int, length: int) -> pa.Buffer:
        """The bytes at ``offset``; fewer than ``length`` only where the file ends."""
        ...

    def close(self) -> None:
        """Let the file go. Idempotent."""
        ...

    def __enter__(self) -> "Reader": ...

    def __exit__(self, *exc: object) -> None: ...


class Disk(Protocol):
    """The operations. Paths are text with ``/``. Thread-safe, except for two writers of one path."""

    def make_folder(self, path: str) -> None:
        """Create the folder and those above it that are missing, durably. It may exist."""
        ...

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of this name; an error if nobody can say."""
        ...

    def size(self, path: str) -> int:
        """The bytes in a file."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """The bytes at ``offset``; fewer than ``length`` only where the file ends."""
        ...

    def open_reader(self, path: str) -> Reader:
        """Open a file for reading; it stays readable when its name is removed."""
        ...

    def open_append(self, path: str) -> AppendFile:
        """Open a file to append to; made if missing, its name durable only after ``sync_folder``."""
        ...

    def link(self, path: str, to: str) -> None:
        """Give a file one more name, ``to``, durable only after ``sync_folder``. Where that cannot be done, the other
        name is that of a copy, which is as durable."""
        ...

    def identity(self, path: str) -> tuple[int, ...]:
        """What two looks at a file agree in only if nothing was written to it, or put in its place, in between."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Make ``data`` all of a small file, durably: a crash leaves the old content or the new."""
        ...

    def overwrite(self, path: str, data: bytes) -> None:
        """Write over the start of a file, made if missing, without a sync: for hints, which may be lost."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file's name, if it is there; durable only after ``sync_folder``."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all in it, durably, if it is there. A crash may leave a part of it."""
        ...

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable: what was created, renamed and removed in it."""
        ...


class OsDisk:
    """The operating system's file system. Thread-safe, except for two writers of one path."""

    def make_folder(self, path: str) -> None:
        """See ``Disk``. The parent is synced even if the folder exists: a crash may have come in between."""
        parent = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(parent):
            self.make_folder(parent)
        with naming_full_disk(path), contextlib.suppress(FileExistsError):
            os.mkdir(path, _FOLDER_MODE)
        self.sync_folder(parent)

    def list(self, path: str) -> list[str]:
        """See ``Disk``."""
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        """See ``Disk``. Not ``os.path.exists``, to which a disk that cannot be read is one with nothing on it."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:
        """See ``Disk``."""
        return os.stat(path).st_size

    def read(self, path: str, offset: int, length: int) -> bytes:
        """See ``Disk``."""
        with self.open_reader(path) as reader:
            return reader.pread(offset, length).to_pybytes()

    def open_reader(self, path: str) -> Reader:
        """See ``Disk``."""
        return _OsReader(path)

    def open_append(self, path: str) -> AppendFile:
        """See ``Disk``."""
        return _OsAppendFile(path)

    def link(self, path: str, to: str) -> None:
        """See ``Disk``."""
        try:
            with naming_full_disk(to):
                os.link(path, to)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._copy(path, to)

    def identity(self, path: str) -> tuple[int, ...]:
        """See ``Disk``."""
        found = os.stat(path)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def replace(self, path: str, data: bytes) -> None:
        """See ``Disk``. Steps: write aside, sync it, rename over, sync the folder."""
        aside = path + TEMPORARY_SUFFIX
        try:
            with naming_full_disk(path), _opened(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
                _write_all(fd, data)
                os.fsync(fd)
            os.replace(aside, path)
        except BaseException:
            self.remove(aside)
            raise
        self.sync_folder(os.path.dirname(os.path.abspath(path)))

    def overwrite(self, path: str, data: bytes) -> None:
        """See ``Disk``."""
        with naming_full_disk(path), _opened(path, os.O_WRONLY | os.O_CREAT) as fd:
            _write_all(fd, data)

    def remove(self, path: str) -> None:
        """See ``Disk``."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """See ``Disk``."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
        self.sync_folder(os.path.dirname(os.path.abspath(path)))

    def sync_folder(self, path: str) -> None:
        """See ``Disk``."""
        with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.fsync(fd)

    def _copy(self, path: str, to: str) -> None:
        with naming_full_disk(to):
            shutil.copyfile(path, to)
            with _opened(to, os.O_RDONLY) as fd:
                os.fsync(fd)


class _OsAppendFile:
    """An ``AppendFile`` over one descriptor. Confined to one call at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        with naming_full_disk(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _FILE_MODE)
        self._size = os.fstat(self._fd).st_size

    @property
    def size(self) -> int:
        return self._size

    def write(self, parts: Sequence[Chunk]) -> None:
        left = [part for part in parts if len(part)]
        with naming_full_disk(self._path):
            while left:
                written = os.writev(self._fd, left[:IOV_MAX])
                self._size += written
                left = _without(left, written)

    def sync(self) -> None:
        try:
            _sync_data(self._fd)
        except ValueError as error:  # the file is closed, which all the other calls say in the words of the system
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path) from error

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _OsReader:
    """A ``Reader`` over one descriptor. Thread-safe but for ``close``."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY)

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, offset: int, length: int) -> pa.Buffer:
        first = os.pread(self._fd, length, offset)
        if len(first) == length:
            return pa.py_buffer(first)
        pieces = [first]
        got = len(first)
        # One read may stop short of both the length and the end: Linux gives at most 2 GiB at a time.
        while pieces[-1] and got < length:
            pieces.append(os.pread(self._fd, length - got, offset + got))
            got += len(pieces[-1])
        return pa.py_buffer(b"".join(pieces))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> "_OsReader":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextlib.contextmanager
def naming_full_disk(path: str) -> Iterator[None]:
    """Turn the system's two ways to say "full" into ``DiskFull``, with the path and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"no space is left on the disk of {path}; free some, then retry") from error
        if error.errno == errno.EDQUOT:
            raise DiskFull(f"the disk quota of {path} is used up; raise it or free some space, then retry") from error
        raise


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    fd = os.open(path, flags, _FILE_MODE)
    try:
        yield fd
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _without(parts: list[Chunk], written: int) -> list[Chunk]:
    """What is left of ``parts`` after a write that may have stopped in the middle of one."""
    for position, part in enumerate(parts):
        if written < len(part):
            return [memoryview(part)[written:], *parts[position + 1 :]]
        written -= len(part)
    return []
