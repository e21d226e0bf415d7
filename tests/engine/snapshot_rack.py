"""The snapshots of one bucket and of several, of made-up files on a disk in memory, for the tests of who keeps them."""

import errno
from itertools import count
from pathlib import Path

from kolk.engine.bucket_snapshots import BucketSnapshots
from kolk.engine.snapshots import Snapshots
from kolk.errors import TableNotFound
from kolk.model.ids import BucketId, TableId
from kolk.model.snapshot import Snapshot
from kolk.storage.snapshots import FolderSnapshots
from kolk.testing.disk import LossyDisk

BUCKET = BucketId(TableId(1), 0, 0)
HOME = "snapshots/1/0/0"
IO_ERROR = OSError(errno.EIO, "input/output error")


class Rack:
    """The snapshots of one bucket, whose checkpoints are two made-up files: one is the same in all of them."""

    def __init__(self, retained=2, disk=None):
        self.disk = LossyDisk() if disk is None else disk
        self.store = FolderSnapshots(self.disk, Path(HOME))
        self.freed = []
        self.own = BucketSnapshots(BUCKET, self.store, FakeKv, retained, self.freed.append)
        self._checkpoints = count(1)

    def publish(self, offset=None):
        number = next(self._checkpoints)
        folder = f"checkpoints/{number}"
        write(self.disk, folder, {"000001.sst": b"shared", f"{number:06}.own.sst": b"own %d" % number})
        try:
            return self.own.publish(Snapshot(id=0, offset=number, rows=1, schema_id=1, taken_ms=number), folder)
        finally:
            self.disk.remove_tree(folder)

    def add(self, times=1):
        """Publish and reclaim, as whoever takes snapshots does."""
        for _ in range(times):
            self.publish()
            self.own.reclaim()

    @property
    def ids(self):
        return [snapshot.id for snapshot in self.own.all()]

    @property
    def on_disk(self):
        """The numbers of the snapshots that have anything on the disk."""
        if not self.disk.exists(HOME):
            return []
        return sorted({int(name.removesuffix(".manifest")) for name in self.disk.list(HOME)})

    def files(self, id):
        return {
            name: self.disk.read(f"{HOME}/{id}/{name}", 0, self.disk.size(f"{HOME}/{id}/{name}"))
            for name in self.disk.list(f"{HOME}/{id}")
        }

    def reopened(self, retained=2):
        """The end of the process, and another one."""
        return Rack(retained, self.disk)


class FakeKv:
    """A KV of nothing, which only shows whether its folder is there."""

    def __init__(self, path):
        self.path = path
        self.is_damaged = False
        self.is_closed = False

    def pin(self, start, end):
        return FakePin()

    def close(self):
        self.is_closed = True


class FakePin:
    def close(self):
        pass


def write(disk, folder, files):
    disk.make_folder(folder)
    for name, data in files.items():
        file = disk.open_append(f"{folder}/{name}")
        file.write([data])
        file.sync()
    disk.sync_folder(folder)


class Hall:
    """The snapshots of several buckets."""

    def __init__(self, retained=2):
        self.disk = LossyDisk()
        self.dropped = set()
        self.all = Snapshots(Path("snapshots"), self.disk, FakeKv, retained, self.check_alive)
        self.buckets = [BucketId(TableId(table), 0, bucket) for table in (1, 2) for bucket in range(3)]
        self._numbers = count(1)

    def check_alive(self, bucket):
        if bucket.table in self.dropped:
            raise TableNotFound("dropped")

    def publish(self, bucket):
        folder = f"checkpoints/{next(self._numbers)}"
        write(self.disk, folder, {"1.sst": folder.encode()})
        facts = Snapshot(id=0, offset=5, rows=1, schema_id=1, taken_ms=5)
        return self.all.of(bucket).publish(facts, folder)

    def on_disk(self, bucket):
        path = f"snapshots/{bucket.table}/0/{bucket.bucket}"
        return [name for name in self.disk.list(path) if name.isdigit()] if self.disk.exists(path) else []
