"""Copies of files, part by part, with a digest of what was copied: for snapshots and backups.

A copy is durable but for its name, which is so when its folder is synced. Whoever copies goes on part by part, so that
he can look up in between; what he leaves half done means nothing.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from kolk.runtime.disk import Chunk, Disk

T = TypeVar("T")
_PART_BYTES = 4 * 2**20
_DIGEST_BYTES = 20


def copying(disk: Disk, source: str, target: str, size: int | None = None) -> Generator[int, None, tuple[int, str]]:
    """Copy a file, or the first ``size`` bytes of it; yields how much each part was. The answer is how much was copied,
    and its digest."""
    disk.remove(target)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    written = disk.open_append(target)
    try:
        for part in _parts(disk, source, size):
            digest.update(part)
            written.write([part])
            yield len(part)
        copied = written.size
        written.sync()
    finally:
        written.close()
    return copied, digest.hexdigest()


def digesting(disk: Disk, path: str) -> Generator[int, None, str]:
    """The digest of a file; yields how much each part was."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in _parts(disk, path, None):
        digest.update(part)
        yield len(part)
    return digest.hexdigest()


def digest_of(data: bytes) -> str:
    """The digest of bytes."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def finished(steps: Generator[int, None, T], on_step: Callable[[int], object] | None = None) -> T:
    """What a generator answers at its end; whoever wants to know is told of each step."""
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return end.value
        if on_step is not None:
            on_step(step)


def _parts(disk: Disk, path: str, size: int | None) -> Iterator[Chunk]:
    with disk.open_reader(path) as reader:
        end = reader.size if size is None else size
        for position in range(0, end, _PART_BYTES):
            yield reader.pread(position, min(_PART_BYTES, end - position))
