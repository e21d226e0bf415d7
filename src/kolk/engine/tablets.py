"""The tablets of a database: opened when first asked for, closed together.

Folders are ``tables/<table id>/<partition id>/<bucket>``: numbers only, never a name that came from outside.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from kolk.errors import Closed, Corrupted, Stopped, TableNotFound
from kolk.merge.append import Appender
from kolk.merge.engine import Merger
from kolk.model.ids import BucketId, TableId
from kolk.model.table import TableInfo
from kolk.runtime.disk import Disk
from kolk.tablet.tablet import Tablet

_log = logging.getLogger(__name__)
OpenTablet = Callable[[BucketId, Path, Merger | Appender], Tablet]


class Tablets:
    """Buckets that are open. Thread-safe: one lock; an open bucket is found without it."""

    def __init__(self, folder: Path, disk: Disk, open_tablet: OpenTablet) -> None:
        self._folder = folder
        self._disk = disk
        self._open = open_tablet
        self._lock = threading.RLock()
        # Guarded by _lock.
        self._tablets: dict[BucketId, Tablet] = {}
        self._mergers: dict[TableId, Merger | Appender] = {}
        self._dropped: set[TableId] = set()
        self._closed = False

    def get(self, info: TableInfo, bucket: BucketId) -> Tablet:
        """The tablet of a bucket, recovered if this is its first use."""
        tablet = self._tablets.get(bucket)
        if tablet is not None and not tablet.wants_recovery:
            return tablet
        with self._lock:
            if self._closed:
                raise Closed("the database is closed")
            if info.id in self._dropped:
                # Its caller looked the table up before the drop; opening the bucket would bring its folder back.
                raise _gone(info)
            tablet = self._tablets.get(bucket)
            if tablet is not None and tablet.wants_recovery:
                self._tablets.pop(bucket).close(tablet.refusal)
            if bucket not in self._tablets:
                self._tablets[bucket] = self._opened(info, bucket)
            return self._tablets[bucket]

    def of(self, info: TableInfo) -> list[Tablet]:
        """All tablets of a table, in lock order."""
        return [self.get(info, bucket) for bucket in info.bucket_ids]

    def open(self) -> list[Tablet]:
        """Those that are open now."""
        return list(self._tablets.values())

    def merger(self, info: TableInfo) -> Merger | Appender:
        """The table's merger, made once."""
        merger = self._mergers.get(info.id)
        if merger is None:
            # Two that race make the same one twice, which is cheaper than waiting for a bucket that recovers.
            merger = Appender(info.schema) if info.is_log else Merger(info.schema, info.spec.options)
            self._mergers[info.id] = merger
        return merger

    def drop(self, info: TableInfo) -> None:
        """Close a dropped table's buckets and remove their files."""
        with self._lock:
            self._dropped.add(info.id)
            for bucket in [bucket for bucket in self._tablets if bucket.table == info.id]:
                self._tablets.pop(bucket).close(_gone(info))
            self._mergers.pop(info.id, None)
            try:
                self._disk.remove_tree(str(self._folder / str(info.id)))
            except OSError as error:
                _log.warning("files of the dropped table %s are left for the next start: %s", info.id, error)

    def sweep(self, known: set[TableId], next_id: int) -> None:
        """Remove the files of tables that were dropped: a crash came between a drop and its clean-up.

        Files of a table that the catalog has never heard of mean that the catalog is not the one they belong to.
        """
        self._disk.make_folder(str(self._folder))
        found = {TableId(int(name)) for name in self._disk.list(str(self._folder)) if name.isascii() and name.isdigit()}
        strange = sorted(table for table in found if table >= next_id)
        if strange:
            raise Corrupted(
                f"{self._folder} has files of table {strange[0]}, which the catalog does not know: the catalog is"
                " gone or older than its tables. Nothing was changed; restore meta.sqlite from a backup"
            )
        for table in found - known:
            self._disk.remove_tree(str(self._folder / str(table)))

    def close(self) -> None:
        """Close every tablet. Idempotent; one that fails to close does not keep the others open."""
        with self._lock:
            self._closed = True
            errors: list[BaseException] = []
            while self._tablets:
                _, tablet = self._tablets.popitem()
                try:
                    tablet.close()
                except BaseException as error:  # noqa: BLE001 - raised below, once every tablet had its chance
                    errors.append(error)
            if errors:
                raise errors[0]

    def abandon(self) -> None:
        """See ``Engine.abandon``. Takes no lock: whoever held it at the fork is not here to let it go."""
        for tablet in list(self._tablets.values()):
            tablet.abandon()

    def _opened(self, info: TableInfo, bucket: BucketId) -> Tablet:
        try:
            return self._open(bucket, self._path(bucket), self.merger(info))
        except OSError as error:
            raise Stopped(f"bucket {bucket.name} of {info.name} cannot be opened: {error}") from error

    def _path(self, bucket: BucketId) -> Path:
        return self._folder / str(bucket.table) / str(bucket.partition) / str(bucket.bucket)


def _gone(info: TableInfo) -> TableNotFound:
    return TableNotFound(f"the table {str(info.name)!r} was dropped")
