"""A store of snapshots on a disk that can be told to fail, and what should be in it.

Checkpoints are folders of a few made-up files: what RocksDB has in them is none of the store's business.
"""

import errno
from pathlib import Path

import pytest

from kolk.model.snapshot import Snapshot
from kolk.storage.snapshots import FolderSnapshots
from kolk.testing.disk import Crash, LossyDisk

HOME = "snapshots/1/0/0"
SEEDS = range(3)
IO_ERROR = OSError(errno.EIO, "input/output error")
every_crash = pytest.mark.parametrize("mode", Crash)

ONE = {"000008.sst": b"a" * 700, "000009.sst": b"b" * 900, "CURRENT": b"MANIFEST-1\n", "MANIFEST-1": b"first" * 150}
TWO = {"000009.sst": b"b" * 900, "000010.sst": b"c" * 1100, "CURRENT": b"MANIFEST-2\n", "MANIFEST-2": b"second" * 120}
THREE = {"000011.sst": b"d" * 300, "000009.sst": b"b" * 900, "CURRENT": b"MANIFEST-3\n", "MANIFEST-3": b"third" * 99}


def write(disk, folder, files):
    """A checkpoint; one that was there before goes."""
    disk.remove_tree(folder)
    disk.make_folder(folder)
    for name, data in files.items():
        file = disk.open_append(f"{folder}/{name}")
        file.write([data])
        file.sync()
    disk.sync_folder(folder)


class Shelf:
    """A store on a disk, and what should be in it."""

    def __init__(self, disk=None, known=None):
        self.disk = LossyDisk() if disk is None else disk
        self.store = FolderSnapshots(self.disk, Path(HOME))
        self.known = {} if known is None else known

    def publish(self, id, files, check=lambda: None):
        write(self.disk, "checkpoint", files)
        facts = Snapshot(id=id, offset=10 * id, rows=id, schema_id=1, taken_ms=1_000 + id)
        snapshot = self.store.publish(facts, "checkpoint", self.known, check)
        self.known[id] = snapshot
        return snapshot

    def restored(self, snapshot):
        """The files of a snapshot, checked against what is written down of them."""
        self.disk.remove_tree("restored")
        self.disk.make_folder("restored")
        self.store.restore(snapshot, "restored")
        return contents(self.disk, "restored")


def contents(disk, folder):
    return {name: disk.read(f"{folder}/{name}", 0, disk.size(f"{folder}/{name}")) for name in disk.list(folder)}


def shelf_of(*checkpoints, disk=None):
    shelf = Shelf(disk)
    for id, files in enumerate(checkpoints, 1):
        shelf.publish(id, files)
    return shelf


def check_found(disk, expected):
    """What a start finds: those of these snapshots that are there are whole, and there is nothing else. Their
    numbers."""
    shelf = Shelf(disk)
    stored = shelf.store.load()
    assert stored.broken == frozenset()
    for id, snapshot in stored.good.items():
        assert (snapshot.id, snapshot.offset, snapshot.rows) == (id, 10 * id, id)
        assert shelf.restored(snapshot) == expected[id]
    assert names_in(disk) == {
        *(f"{HOME}/{id}.manifest" for id in stored.good),
        *(f"{HOME}/{id}/{file.name}" for id, each in stored.good.items() for file in each.files),
    }
    return set(stored.good)


def names_in(disk):
    if not disk.exists(HOME):
        return set()
    files = {f"{HOME}/{name}" for name in disk.list(HOME)}
    for name in disk.list(HOME):
        if name.isdigit():
            files |= {f"{HOME}/{name}/{each}" for each in disk.list(f"{HOME}/{name}")}
            files.remove(f"{HOME}/{name}")
    return files


def facts(id):
    return {"id": id, "offset": 10 * id, "rows": id, "schema_id": 1, "taken_ms": 5}
