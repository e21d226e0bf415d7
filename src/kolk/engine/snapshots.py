"""The snapshots of a database, bucket by bucket: who keeps them, and when those go that nobody keeps.

Folders are ``snapshots/<table id>/<partition id>/<bucket>``, as those of the buckets are. What a lease or a reader lets
go is removed soon afterwards, whether or not the bucket is ever written again: a few buckets at once, the rest in
rounds, so that the end of a large lease does not stop everybody else.

While the database is *frozen* nothing is removed at all: somebody could not be asked what he keeps.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path

from kolk.engine.bucket_snapshots import BucketSnapshots, Reclaimed
from kolk.engine.sweeping import sweep
from kolk.errors import KolkError, PartitionDropped, TableNotFound
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import Pinned, numbers_of
from kolk.model.partition import Layout
from kolk.runtime.disk import Disk
from kolk.storage.kv import Kv
from kolk.storage.snapshots import FolderSnapshots
from kolk.tablet.retention import Holder, HolderKind

_AT_ONCE = 64
"""So many buckets are gone through when a lease ends, and in each round."""
_log = logging.getLogger(__name__)


class Snapshots:
    """All snapshots. Thread-safe: one lock, held for moments; each bucket has its own. Leases pin them here."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        open_kv: Callable[[Path], Kv],
        retained: int,
        check_alive: Callable[[BucketId], object],
    ) -> None:
        # Constant after construction.
        self._folder = folder
        self._disk = disk
        self._open_kv = open_kv
        self._retained = retained
        self.check_alive = check_alive
        self._lock = threading.RLock()
        # Guarded by _lock.
        self._buckets: dict[BucketId, BucketSnapshots] = {}
        self._due: OrderedDict[BucketId, None] = OrderedDict()
        self._frozen = 0
        self._removed = 0
        self._refusal: KolkError | None = None

    def of(self, bucket: BucketId) -> BucketSnapshots:
        """The snapshots of a bucket. One that was dropped has none, and its error comes through: what is made here for
        a bucket that lives is there to be retired when that is dropped."""
        with self._lock:
            found = self._buckets.get(bucket)
            if found is None:
                self.check_alive(bucket)
                store = FolderSnapshots(self._disk, self._folder / bucket.folder)
                found = BucketSnapshots(bucket, store, self._open_kv, self._retained, self._note_due)
                self._buckets[bucket] = found
                if self._refusal is not None:
                    found.retire(self._refusal)
            return found

    def check_open(self) -> None:
        """Raise why nothing is taken any more, if that is so."""
        if self._refusal is not None:
            raise copy(self._refusal)

    def holders(self, bucket: BucketId) -> list[Holder]:
        """The snapshots that there are, which hold the log after them: recovery needs those that are retained, and of
        the others, which are about to go, somebody may still take a lease."""
        return [
            Holder(kind=HolderKind.SNAPSHOT, owner=f"snapshot {snapshot.id}", offset=snapshot.offset)
            for snapshot in self.of(bucket).all()
        ]

    def floor(self, bucket: BucketId) -> int:
        """The offset from which recovery may need a bucket's log, whoever else keeps it."""
        return min((snapshot.offset for snapshot in self.of(bucket).retained()), default=0)

    # --- for leases

    def pin(self, wanted: Mapping[BucketId, int]) -> dict[BucketId, Pinned]:
        """Keep these, as far as they exist; the answer is those that do."""
        pinned: dict[BucketId, Pinned] = {}
        try:
            for bucket, id in wanted.items():
                with suppress(TableNotFound, PartitionDropped):  # what was dropped has none
                    found = self.of(bucket).pin(id)
                    if found is not None:
                        pinned[bucket] = found
        except BaseException:
            self.let_go(numbers_of(pinned))
            raise
        return pinned

    def hold(self, pins: Mapping[BucketId, int]) -> None:
        """Keep these, whether they exist or not."""
        for bucket, id in pins.items():
            with suppress(TableNotFound, PartitionDropped):
                self.of(bucket).hold(id)

    def let_go(self, pins: Mapping[BucketId, int]) -> None:
        """Take back one pin of each, and remove what nobody keeps. Of what was dropped there is nothing to let go."""
        for bucket, id in pins.items():
            with self._lock:
                found = self._buckets.get(bucket)
            if found is not None:  # else it was dropped, with all its pins
                found.let_go(id)
                self._note_due(bucket)
        self.reclaim()

    def freeze(self) -> None:
        """From now on nothing is removed, until there was a ``thaw`` for each of these."""
        with self._lock:
            self._frozen += 1

    def thaw(self) -> None:
        """See ``freeze``."""
        with self._lock:
            self._frozen -= 1

    @property
    def is_frozen(self) -> bool:
        """Whether nothing may be removed now."""
        return self._frozen > 0

    @property
    def removed(self) -> int:
        """How many were removed since the start."""
        return self._removed

    @property
    def broken(self) -> int:
        """How many there are that cannot be used, of the buckets that were asked for."""
        with self._lock:
            everyone = list(self._buckets.values())
        return sum(each.broken for each in everyone)

    # --- how they go

    def reclaim(self, most: int = _AT_ONCE) -> None:
        """Remove what nobody needs of the buckets where something was let go, a few of them. Where that cannot be done
        now it is tried again later."""
        behind: list[BucketId] = []
        for _ in range(most):
            with self._lock:
                if self._frozen or not self._due:
                    break
                bucket, _ = self._due.popitem(last=False)
            try:
                reclaimed = self.of(bucket).reclaim()
            except (TableNotFound, PartitionDropped):
                continue
            except (KolkError, OSError) as error:
                _log.warning("snapshots of bucket %s are not removed yet: %s", bucket.name, error)
                reclaimed = Reclaimed(0, is_all=False)
            if not reclaimed.is_all:
                behind.append(bucket)
            with self._lock:
                self._removed += reclaimed.removed
        self.note_due(behind)

    def drop(self, is_meant: Callable[[BucketId], bool], folder: tuple[int, ...], reason: KolkError) -> None:
        """Remove the snapshots of what was dropped, whoever keeps or reads them."""
        with self._lock:
            dropped = [bucket for bucket in self._buckets if is_meant(bucket)]
            gone = [self._buckets.pop(bucket) for bucket in dropped]
            for bucket in dropped:
                self._due.pop(bucket, None)
        for snapshots in gone:
            snapshots.retire(reason)
        path = self._folder.joinpath(*map(str, folder))
        try:
            if self._disk.exists(str(path)):
                self._disk.remove_tree(str(path))
        except OSError as error:
            _log.warning("snapshots of what was dropped are left in %s for the next start: %s", path, error)

    def sweep(self, known: Mapping[TableId, Layout | None], next_table: int) -> None:
        """Remove the snapshots of what was dropped before a crash; of the others, look in time whether something was
        let go and is still there."""
        sweep(self._disk, self._folder, known, next_table)
        for table, layout in known.items():
            path = self._folder / str(table)
            if self._disk.exists(str(path)):
                self._note_stored(table, path, layout)

    def close(self, reason: KolkError) -> None:
        """Nobody reads or takes any more; what is being copied is waited for."""
        with self._lock:
            self._refusal = reason
            everyone = list(self._buckets.values())
        for snapshots in everyone:
            snapshots.retire(reason)

    def abandon(self) -> None:
        """See ``Engine.abandon``."""
        for snapshots in list(self._buckets.values()):
            snapshots.abandon()

    def note_due(self, buckets: Iterable[BucketId]) -> None:
        """Something may be removed there."""
        for bucket in buckets:
            self._note_due(bucket)

    def _note_stored(self, table: TableId, path: Path, layout: Layout | None) -> None:
        names = {} if layout is None else {each.id: each.name for each in layout.partitions.values()}
        for partition in filter(str.isdigit, self._disk.list(str(path))):
            name = names.get(int(partition), "")
            for bucket in filter(str.isdigit, self._disk.list(str(path / partition))):
                self._note_due(BucketId(table, int(partition), int(bucket), name))

    def _note_due(self, bucket: BucketId) -> None:
        with self._lock:
            self._due[bucket] = None
