"""A database that nobody has open, gone through as a whole: does everything hold that must always hold?

It reads the files themselves, so it also shows what opening the database would mend or refuse, and what a crash has
left. Nothing in the folder is written: the catalog is read from a copy elsewhere, and rows through links to their
files. What is needed in memory does not grow with the tables: a few megabytes of one log, or of one bucket's rows, at a
time.
"""

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from kolk.codec.owner import NUMBER_KEY, decode_owner
from kolk.codec.owner import PREFIX as OWNER_PREFIX
from kolk.codec.transaction import CSN_KEY, decode_record
from kolk.codec.transaction import PREFIX as COMMIT_PREFIX
from kolk.codec.versions import RowCodecs
from kolk.engine.catalog import Catalog
from kolk.engine.commits import hinted_csn
from kolk.engine.partitions import Partitions
from kolk.errors import Corrupted, KolkError
from kolk.model.ids import BucketId, TableId
from kolk.model.options import ChangelogImage
from kolk.model.table import TableInfo
from kolk.model.transaction import CommitRecord
from kolk.runtime.clock import SystemClock
from kolk.runtime.looking import LookingDisk
from kolk.storage.kv import Kv, KvMemory
from kolk.storage.looked_log import LookedLog
from kolk.storage.meta import Meta
from kolk.storage.snapshots import FolderSnapshots
from kolk.tablet.commit_laws import ONE_BACKUP, RESTORE
from kolk.tablet.examination import Look, Recorded, examine
from kolk.tablet.faults import Fault, Faults, Law, place_of

_CATALOG = "meta.sqlite"
_CACHE_BYTES = 8 * 2**20
_SCRATCH = "kolk-doctor-"
_NOT_READ = ("LOG", "LOCK", "rocksdict")


@dataclass(slots=True)
class Examination:
    """What was found, and how much was looked at. ``not_compared`` are tables whose rows
    could not be held against their logs."""

    faults: Faults = field(default_factory=Faults)
    buckets: int = 0
    frames: int = 0
    not_compared: list[str] = field(default_factory=list[str])

    @property
    def found(self) -> list[Fault]:
        """The first few faults of each law."""
        return self.faults.found


def log_bytes(folder: Path) -> int:
    """How large the logs of a database are together."""
    return sum(file.stat().st_size for file in (folder / "tables").glob("*/*/*/log/*.log"))


def examined(folder: Path) -> Examination:
    """Look at everything in a folder that nobody writes to meanwhile."""
    found = Examination()
    try:
        with _catalog(folder) as meta:
            _Folder(folder, meta, found).examine()
    except (KolkError, OSError) as error:
        found.faults.add(Law.LOGS, str(error), _next_step(error))
    return found


def _next_step(error: KolkError | OSError) -> str:
    return "see whether this account may read it" if isinstance(error, OSError) else "what the error says"


@contextmanager
def _catalog(folder: Path) -> Iterator[Meta]:
    """The catalog, from a copy: SQLite writes beside what it reads."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as scratch:
        for name in (_CATALOG, f"{_CATALOG}-wal"):
            if (folder / name).exists():
                shutil.copyfile(folder / name, Path(scratch) / name)
        meta = Meta(Path(scratch) / _CATALOG)
        try:
            yield meta
        finally:
            meta.close()


class _Folder:
    """One folder, with the records of its catalog. Confined to one examination."""

    def __init__(self, folder: Path, meta: Meta, found: Examination) -> None:
        self._folder = folder
        self._disk = LookingDisk()
        self._found = found
        self._memory = KvMemory(block_cache_bytes=_CACHE_BYTES, write_buffer_bytes=_CACHE_BYTES)
        self._catalog = Catalog(meta)
        tables = self._catalog.list()
        self._partitions = Partitions(meta, SystemClock(), 0, tables, self._catalog.by_id)
        self._commits = [decode_record(record.value) for record in meta.list(COMMIT_PREFIX)]
        self._owners = [decode_owner(record.value) for record in meta.list(OWNER_PREFIX)]
        csn, number = meta.get(CSN_KEY), meta.get(NUMBER_KEY)
        self._newest_commit = 0 if csn is None else int(csn.value)
        self._newest_owner = 0 if number is None else int(number.value)

    def examine(self) -> None:
        """Everything."""
        self._check_records()
        for info in self._catalog.list():
            recorded = Recorded(
                commits=[record for record in self._commits if info.id in record.handles],
                newest_commit=self._newest_commit,
                owners=[record for record in self._owners if record.table == info.id],
                newest_owner=self._newest_owner,
            )
            are_compared = [self._bucket(info, bucket, recorded) for bucket in self._partitions.buckets(info)]
            if not all(are_compared):
                self._found.not_compared.append(str(info.name))

    def _check_records(self) -> None:
        """What the records of the catalog must say of each other, and of the hint beside it."""
        faults, newest = self._found.faults, self._newest_commit
        hinted = max([hinted_csn(self._disk, str(self._folder / "csn")), *(each.csn for each in self._commits)])
        if hinted > newest:
            faults.add(Law.CATALOG, f"commit {hinted} was made, and the catalog knows {newest} only", ONE_BACKUP)
        by_table: defaultdict[tuple[str, TableId], list[CommitRecord]] = defaultdict(list)
        for record in self._commits:
            for table in record.tables:
                by_table[record.app, table].append(record)
        for (app, _), records in by_table.items():
            in_order = sorted(records, key=lambda record: record.csn)
            for before, after in pairwise(in_order):
                if after.version <= before.version:
                    what = f"{app!r} committed version {after.version} after version {before.version} of one table"
                    faults.add(Law.COMMITS, what, RESTORE)
        for record in self._owners:
            if record.number > self._newest_owner:
                what = f"{record.name!r} is owner {record.number}, and {self._newest_owner} numbers were given"
                faults.add(Law.CATALOG, what, ONE_BACKUP)

    def _bucket(self, info: TableInfo, bucket: BucketId, recorded: Recorded) -> bool:
        """Look at a bucket; whether its rows were compared, or there are none."""
        path = self._folder / "tables" / bucket.folder
        if not (path / "log").exists():
            return True  # nobody has used it yet
        try:
            with ExitStack() as opened:
                log = LookedLog(self._disk, str(path / "log"))
                kv = self._opened(opened, path / "kv") if (path / "kv").exists() else None
                codec = None
                if not info.is_log and info.spec.options.changelog_image is ChangelogImage.FULL:
                    codec = RowCodecs(info.schema, self._catalog.versions(info))
                copy = None if codec is None or log.start == 0 else self._copy(opened, bucket, log)
                look = Look(table=str(info.name), bucket=bucket, log=log, kv=kv, codec=codec, copy=copy)
                seen = examine(look, recorded, self._found.faults)
        except (KolkError, OSError) as error:
            self._found.faults.add(Law.LOGS, f"{place_of(str(info.name), bucket)}: {error}", _next_step(error))
            return True
        self._found.buckets += 1
        self._found.frames += seen.frames
        return seen.is_compared or info.is_log or kv is None

    def _copy(self, opened: ExitStack, bucket: BucketId, log: LookedLog) -> tuple[Kv, int] | None:
        """The newest snapshot that has what is gone of a log, if it can be used."""
        store = FolderSnapshots(self._disk, self._folder / "snapshots" / bucket.folder)
        for _, snapshot in sorted(store.load().good.items(), reverse=True):
            if snapshot.files and log.start <= snapshot.offset <= log.end:
                kv = self._opened(opened, store.folder(snapshot))
                if kv is not None:
                    return kv, snapshot.offset
        return None

    def _opened(self, opened: ExitStack, path: Path) -> Kv | None:
        """A KV to be read; None if it is damaged: it is a cache, and is built anew when its bucket is opened.

        It is read through links to its files, because rocksdict writes one of its own into a folder that it only reads.
        """
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix=_SCRATCH)))
        for file in path.absolute().iterdir():
            if not file.name.startswith(_NOT_READ):
                (scratch / file.name).symlink_to(file)
        try:
            kv = Kv(scratch, self._memory, is_read_only=True)
        except Corrupted:
            return None
        opened.callback(kv.close)
        return kv
