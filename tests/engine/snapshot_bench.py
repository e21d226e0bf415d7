"""An engine on a real disk whose calls fail when told to, and whose clock is moved by hand, for tests of snapshots."""

import errno
import threading

import kolk
from kolk.engine.database import Engine
from kolk.model.scan import ScanRequest, ScanSource
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.clock import ManualClock

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("n", "bigint")], primary_key=["id"])
TTL = 600.0


class FaultyDisk(OsDisk):
    """The real disk. ``fail_at`` lets one of the calls on paths that contain ``within`` fail, counted from 0; a call
    that changes something counts twice, for it may fail before and, as far as its caller knows, after."""

    def __init__(self):
        self._lock = threading.Lock()
        self._within = None
        self._left = 0
        self.has_failed = False
        self.on_step = lambda path: None

    def fail_at(self, step, within="/snapshots/", number=errno.EIO):
        with self._lock:
            self._within, self._left, self._number = within, step, number
            self.has_failed = False

    def heal(self):
        with self._lock:
            self._within = None

    def step(self, path):
        self.on_step(path)
        with self._lock:
            if self._within is None or self._within not in f"{path}/":
                return
            self._left -= 1
            if self._left >= 0:
                return
            self._within, self.has_failed = None, True
        raise OSError(self._number, "told to fail", path)

    def list(self, path):
        self.step(path)
        return super().list(path)

    def open_reader(self, path):
        self.step(path)
        return super().open_reader(path)

    def open_append(self, path):
        return _FaultyFile(self, path, super().open_append(path))


def _faulty(name):
    def call(disk, path, *args):
        target = args[0] if name == "link" else path
        disk.step(target)
        getattr(OsDisk, name)(disk, path, *args)
        disk.step(target)

    return call


for _name in ("make_folder", "link", "replace", "remove", "remove_tree", "sync_folder"):
    setattr(FaultyDisk, _name, _faulty(_name))


class _FaultyFile:
    def __init__(self, disk, path, file):
        self._disk, self._path, self._file = disk, path, file

    @property
    def size(self):
        return self._file.size

    def write(self, parts):
        self._disk.step(self._path)
        self._file.write(parts)

    def sync(self):
        self._disk.step(self._path)
        self._file.sync()

    def truncate(self, size):
        self._file.truncate(size)

    def close(self):
        self._file.close()


class SnapshotBench:
    """An engine, and the ways to look at its snapshots."""

    def __init__(self, path, **settings):
        self.path = path
        self.clock = ManualClock()
        self.settings = {
            "durability": "process",
            "kv_block_cache_bytes": 2**22,
            "kv_write_buffer_bytes": 2**22,
            "kv_snapshot_interval_seconds": 100.0,
            "log_segment_bytes": 1,
        } | settings
        self.open_engine()

    def open_engine(self):
        self.disk = FaultyDisk()
        self.engine = Engine(Folder(self.path), kolk.EngineConfig(**self.settings), clock=self.clock, disk=self.disk)
        self.db = kolk.Database(self.engine, self.engine.close, Rng(), clock=self.clock)

    def reopen(self):
        self.close()
        self.open_engine()

    def close(self):
        self.disk.heal()
        self.db.close()

    def table(self, name="t", buckets=3, schema=SCHEMA, **how):
        return self.db.create_table(name, schema, buckets=buckets, **how)

    def take(self, table):
        return {each.bucket: each for each in self.engine.take_snapshot(table.info.id)}

    def ids(self, table):
        """The numbers of the snapshots of each bucket."""
        found = {}
        for each in self.engine.snapshots(table.info.id):
            found.setdefault(each.bucket, []).append(each.id)
        return found

    def lease(self, table, id="l", snapshots=None, ttl=TTL, holder=1, generation=0):
        return self.engine.acquire_lease(id, holder, {table.info.id: snapshots}, ttl, generation)

    def scanned(self, table, lease=None, pins=None):
        """A scan of snapshots, read to its end: its rows, and the scan."""
        source = ScanSource.SNAPSHOT if lease is None else ScanSource.LEASE
        request = ScanRequest(source=source, lease=lease or "", pins=pins)
        scan = self.engine.open_scan(table.info.id, request)
        rows = []
        while (page := scan.next()) is not None:
            if page.batch is not None:
                rows += page.batch.to_pylist()
        scan.close()
        return rows, scan

    def files(self, folder="snapshots"):
        """Everything below a folder of the database."""
        home = self.path / folder
        return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())

    def explained(self):
        """The files that the known snapshots of all tables are made of."""
        found = []
        for info in self.engine.tables():
            if info.is_log:
                continue
            for bucket in self.engine._partitions.buckets(info):
                home = f"{bucket.table}/{bucket.partition}/{bucket.bucket}"
                for snapshot in self.engine._snapshots.of(bucket).all():
                    found.append(f"{home}/{snapshot.id}.manifest")
                    found += [f"{home}/{snapshot.id}/{file.name}" for file in snapshot.files]
        return sorted(found)

    def check_files(self):
        """Nothing is on the disk that no snapshot explains, and nothing is missing."""
        assert self.files() == self.explained()
        assert self.files("checkpoints") == []


def put(table, ids, n=0):
    table.put([{"id": id, "n": n} for id in ids])


def by_id(rows):
    return {row["id"]: row["n"] for row in rows}
