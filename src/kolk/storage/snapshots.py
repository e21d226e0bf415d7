"""The snapshots of one bucket, as folders of files: published, read back, removed.

    snapshots/<table>/<partition>/<bucket>/7/000008.sst ...   the files of snapshot 7, which RocksDB can open
    snapshots/<table>/<partition>/<bucket>/7.manifest         what they are; with it the snapshot exists

The files are copies, so that damage in the bucket's own never reaches a snapshot that was taken before. What an earlier
snapshot has already is given one more name instead: the same by content, never by name. So each snapshot stands by
itself, and removing one takes nothing from another.

A crash after each step leaves: of a publication, files without a manifest, which are nothing; of a removal, the same.
``load`` clears them away. It decides nothing: neither when a snapshot is taken, nor which may go.
"""

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kolk.codec.snapshot import decode_snapshot, encode_snapshot
from kolk.errors import Corrupted
from kolk.model.snapshot import Snapshot, SnapshotFile
from kolk.runtime.disk import TEMPORARY_SUFFIX, Disk
from kolk.storage.copying import copying, digesting, finished

MANIFEST_SUFFIX = ".manifest"
_NOT_KEPT = ("LOG", "LOCK")
"""RocksDB's own diary, and its lock."""
_NAMED_ONCE = ".sst"
"""How the files of RocksDB end that are never written again once they are there."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """The snapshots that there are, by number, and the numbers of those that cannot be used."""

    good: Mapping[int, Snapshot]
    broken: frozenset[int]


class SnapshotStore(Protocol):
    """Where the snapshots of one bucket are kept. Confined to one caller at a time, but for ``folder``."""

    def load(self) -> Stored:
        """All there are. An error of the disk comes through: it does not mean that there are none."""
        ...

    def publish(
        self, facts: Snapshot, checkpoint: str, known: Mapping[int, Snapshot], check: Callable[[], None]
    ) -> Snapshot:
        """Keep the files of a checkpoint as a snapshot, which exists when this returns; with no folder, one without
        files. ``check`` is called now and then, and may raise. After an error it may or may not exist: ``load``
        tells."""
        ...

    def check(self, snapshot: Snapshot) -> None:
        """Read all of a snapshot's files; Corrupted if they are not what was kept."""
        ...

    def restore(self, snapshot: Snapshot, folder: str) -> None:
        """Copy a snapshot's files into an existing folder, durably; Corrupted if they are not what was kept."""
        ...

    def folder(self, snapshot: Snapshot) -> Path:
        """Where RocksDB can open a snapshot to read it."""
        ...

    def remove(self, id: int) -> None:
        """Remove a snapshot. Idempotent."""
        ...


class FolderSnapshots:
    """Snapshots in a local folder. Confined to one caller at a time, but for ``folder``."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = str(path)
        # Files that were looked at before, and are unchanged: they need not be read again to be known. Only those whose
        # names RocksDB uses once: a small file may come back with another content as the same inode, in the same tick.
        self._digests: dict[tuple[object, ...], str] = {}

    def load(self) -> Stored:
        """See ``SnapshotStore``."""
        if not self._disk.exists(self._path):
            return Stored({}, frozenset())
        # First, for a publication that ended in an error may have left a name that is not durable.
        self._disk.sync_folder(self._path)
        names = self._disk.list(self._path)
        ids = {id for name in names if (id := _number(name, MANIFEST_SUFFIX)) is not None}
        for name in names:
            id = _number(name)
            if id is not None and id not in ids:
                self._disk.remove_tree(self._folder(id))
            elif name.endswith(MANIFEST_SUFFIX + TEMPORARY_SUFFIX):
                self._disk.remove(f"{self._path}/{name}")
        good: dict[int, Snapshot] = {}
        for id in sorted(ids):
            try:
                good[id] = self._manifest(id)
            except Corrupted as error:
                _log.warning("%s", error)
        return Stored(good, frozenset(ids - good.keys()))

    def publish(
        self, facts: Snapshot, checkpoint: str, known: Mapping[int, Snapshot], check: Callable[[], None]
    ) -> Snapshot:
        """See ``SnapshotStore``."""
        folder = self._folder(facts.id)
        self._disk.make_folder(self._path)
        files: list[SnapshotFile] = []
        new_bytes = 0
        if checkpoint:
            self._disk.remove_tree(folder)
            self._disk.make_folder(folder)
            there = {file.digest: f"{self._folder(id)}/{file.name}" for id in sorted(known) for file in known[id].files}
            digests: dict[tuple[object, ...], str] = {}
            for name in self._disk.list(checkpoint):
                check()
                if name.startswith(_NOT_KEPT):
                    continue
                source, target = f"{checkpoint}/{name}", f"{folder}/{name}"
                identity, size = (name, *self._disk.identity(source)), self._disk.size(source)
                digest = self._digests.get(identity) or self._digest(source)
                if name.endswith(_NAMED_ONCE):
                    digests[identity] = digest
                if not self._shared(there.get(digest), target):
                    self._copy(source, target, SnapshotFile(name, size, digest))
                    new_bytes += size
                files.append(SnapshotFile(name, size, digest))
            self._disk.sync_folder(folder)
            self._digests = digests
        check()
        snapshot = replace(facts, files=tuple(files), new_bytes=new_bytes)
        self._disk.replace(self._manifest_path(facts.id), encode_snapshot(snapshot))
        return snapshot

    def check(self, snapshot: Snapshot) -> None:
        """See ``SnapshotStore``."""
        for file in snapshot.files:
            path = f"{self._folder(snapshot.id)}/{file.name}"
            if not self._is_whole(snapshot.id, file) or self._digest(path) != file.digest:
                raise Corrupted(f"the file {path} of snapshot {snapshot.id} is gone, or is not what was kept")

    def restore(self, snapshot: Snapshot, folder: str) -> None:
        """See ``SnapshotStore``."""
        finished(self._copying_files(snapshot, self._folder(snapshot.id), folder))

    def receiving(self, snapshot: Snapshot, source: Path) -> Generator[int, None, None]:
        """Keep a snapshot of another store, whose files are in ``source``, under its number; Corrupted if they are not
        what was kept there. Yields how much was copied. It exists when this is at its end."""
        folder = self._folder(snapshot.id)
        self._disk.make_folder(folder if snapshot.files else self._path)
        if snapshot.files:
            yield from self._copying_files(snapshot, str(source), folder)
        self._disk.replace(self._manifest_path(snapshot.id), encode_snapshot(snapshot))

    def folder(self, snapshot: Snapshot) -> Path:
        """See ``SnapshotStore``."""
        return Path(self._folder(snapshot.id))

    def remove(self, id: int) -> None:
        """See ``SnapshotStore``. First what makes it exist, then its files. Before these go its end is made durable,
        also if it is not there any more: a sync may have failed when this was last tried."""
        if not self._disk.exists(self._path):
            return
        self._disk.remove(self._manifest_path(id))
        self._disk.sync_folder(self._path)
        if self._disk.exists(self._folder(id)):
            self._disk.remove_tree(self._folder(id))

    def _manifest(self, id: int) -> Snapshot:
        path = self._manifest_path(id)
        snapshot = decode_snapshot(path, self._disk.read(path, 0, self._disk.size(path)))
        if snapshot.id != id:
            raise Corrupted(f"the manifest {path} is that of snapshot {snapshot.id}")
        missing = next((each for each in snapshot.files if not self._is_whole(id, each)), None)
        if missing is not None:
            raise Corrupted(f"snapshot {id} in {self._path} lacks its file {missing.name}, or a part of it")
        return snapshot

    def _is_whole(self, id: int, file: SnapshotFile) -> bool:
        path = f"{self._folder(id)}/{file.name}"
        return self._disk.exists(path) and self._disk.size(path) == file.size

    def _shared(self, source: str | None, target: str) -> bool:
        """Give a file that is there already its name in the new snapshot; False if there is none."""
        try:
            if source is not None:
                self._disk.link(source, target)
            return source is not None
        except FileNotFoundError:
            return False  # its snapshot was removed meanwhile

    def _copying_files(self, snapshot: Snapshot, source: str, target: str) -> Generator[int, None, None]:
        """Copy the files of a snapshot from one folder into another, durably, part by part."""
        for file in snapshot.files:
            path = f"{source}/{file.name}"
            if not self._disk.exists(path):
                raise Corrupted(f"snapshot {snapshot.id} lacks its file {path}")
            yield from self._copying(path, f"{target}/{file.name}", file)
        self._disk.sync_folder(target)

    def _copy(self, source: str, target: str, file: SnapshotFile) -> None:
        """Copy a file, durably but for its name, and see that it is what it should be."""
        finished(self._copying(source, target, file))

    def _copying(self, source: str, target: str, file: SnapshotFile) -> Generator[int, None, None]:
        """The same, part by part."""
        if (yield from copying(self._disk, source, target)) != (file.size, file.digest):
            raise Corrupted(f"the file {source} is not what was kept under its name")

    def _digest(self, path: str) -> str:
        return finished(digesting(self._disk, path))

    def _folder(self, id: int) -> str:
        return f"{self._path}/{id}"

    def _manifest_path(self, id: int) -> str:
        return f"{self._path}/{id}{MANIFEST_SUFFIX}"


def _number(name: str, suffix: str = "") -> int | None:
    """The number in a name that is made of it and a suffix; None if it is another name, and not one of ours."""
    stem = name.removesuffix(suffix)
    is_number = stem.isascii() and stem.isdigit() and name == f"{int(stem)}{suffix}"
    return int(stem) if is_number else None
