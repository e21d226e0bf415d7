"""The snapshots of one bucket, while the database is open: which there are, who keeps them, and which may go.

Whether a snapshot exists, whether somebody pins it, and whether it is to go are decided under one lock. So nobody pins
what is about to be removed, and nothing is removed that somebody has pinned: there is no moment in between. Files are
touched without it. What is to go is forgotten first, and a crash before its files are gone only means that it is found
again at the next start, and forgotten again.

A snapshot stays while it is among the newest that are good, while it is pinned, and while somebody reads it.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from weakref import WeakSet

from kolk.codec.versions import RowCodecs
from kolk.errors import Corrupted, KolkError, SnapshotNotFound
from kolk.model.ids import BucketId
from kolk.model.lease import Pinned
from kolk.model.snapshot import Snapshot
from kolk.storage.kv import Kv
from kolk.storage.snapshots import FolderSnapshots, SnapshotStore
from kolk.storage.view import View

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Opened:
    """A snapshot that is being read."""

    kv: Kv
    uses: int = 0
    views: WeakSet[View] = field(default_factory=WeakSet)


class BucketSnapshots:
    """The snapshots of a bucket. Thread-safe: one lock, held for moments, and one more for whoever changes files."""

    def __init__(
        self,
        bucket: BucketId,
        store: SnapshotStore,
        open_kv: Callable[[Path], Kv],
        retained: int,
        freed: Callable[[BucketId], None],
    ) -> None:
        # Constant after construction.
        self.bucket = bucket
        self._store = store
        self._open_kv = open_kv
        self._retained = retained
        self._freed = freed
        self._files = threading.RLock()
        self._lock = threading.RLock()
        # Guarded by _lock; the list is read from disk when somebody first asks, and again after a doubtful publication.
        self._good: dict[int, Snapshot] | None = None
        self._broken: set[int] = set()
        self._going: set[int] = set()
        self._pins: Counter[int] = Counter()
        self._opened: dict[int, _Opened] = {}
        self._refusal: KolkError | None = None

    def all(self) -> list[Snapshot]:
        """Those that there are, the oldest first."""
        return [snapshot for _, snapshot in sorted(self._known().items())]

    def newest(self) -> Snapshot | None:
        """The newest one."""
        return self.all()[-1] if self._known() else None

    def find(self, id: int) -> Snapshot:
        """The one of this number."""
        with self._lock:
            found = self._known().get(id)
        if found is None:
            raise SnapshotNotFound(
                f"bucket {self.bucket.name} has no snapshot {id}; newer ones may have taken its place, so take the"
                " latest, and a lease to keep it"
            )
        return found

    def retained(self) -> list[Snapshot]:
        """Those that are kept for recovery: the newest few."""
        return self.all()[-self._retained :]

    @property
    def broken(self) -> int:
        """How many were found to be damaged; the disk is not asked for it."""
        with self._lock:
            return len(self._broken)

    # --- who keeps them

    def pin(self, id: int) -> Pinned | None:
        """Keep a snapshot; None if there is none of this number."""
        with self._lock:
            found = self._known().get(id)
            if found is None:
                return None
            self._pins[id] += 1
            return Pinned(id, found.offset)

    def hold(self, id: int) -> None:
        """Keep a snapshot that was pinned before the database was opened, whether it is still there or not."""
        with self._lock:
            self._pins[id] += 1

    def let_go(self, id: int) -> None:
        """Take back one pin; what was not pinned is no matter. Nothing is removed before ``reclaim``."""
        with self._lock:
            if self._pins[id] <= 1:
                del self._pins[id]
            else:
                self._pins[id] -= 1

    def pins(self, id: int) -> int:
        """How often a snapshot is pinned."""
        with self._lock:
            return self._pins.get(id, 0)

    # --- how they come and go

    def publish(self, facts: Snapshot, checkpoint: str) -> Snapshot:
        """Keep a checkpoint as the next snapshot, which is numbered here. After a failure the disk is asked again what
        there is."""
        with self._files:
            self._check_alive()
            known = dict(self._known())
            with self._lock:
                id = max((*known, *self._broken, *self._going, *self._pins), default=0) + 1
            try:
                snapshot = self._store.publish(replace(facts, id=id), checkpoint, known, self._check_alive)
            except BaseException:
                with self._lock:
                    self._good = None
                raise
            with self._lock:
                self._known()[id] = snapshot
            return snapshot

    def reclaim(self) -> int:
        """Remove what nobody needs any more; how many that were. What cannot be removed now is tried again."""
        with self._files:
            with self._lock:
                if self._refusal is not None:
                    return 0
                good = self._known()
                stay = {snapshot.id for snapshot in self.retained()} | self._pins.keys() | self._opened.keys()
                doomed = (good.keys() | self._broken) - stay
                self._going |= doomed
                self._broken -= doomed
                for id in doomed:
                    good.pop(id, None)
                going = sorted(self._going)
            removed = 0
            for id in going:
                try:
                    self._store.remove(id)
                except OSError as error:
                    _log.warning("snapshot %d of bucket %s is not removed yet: %s", id, self.bucket.name, error)
                    continue
                removed += 1
                with self._lock:
                    self._going.discard(id)
            return removed

    # --- reading

    def newest_first(self) -> Sequence[Snapshot]:
        """See ``Copies`` of recovery."""
        return self.all()[::-1]

    def restore(self, snapshot: Snapshot, folder: str) -> None:
        """See ``Copies`` of recovery. One that is found damaged is not offered again, and counts no more."""
        with self._noting_damage(snapshot):
            self._store.restore(snapshot, folder)

    def sending(self, snapshot: Snapshot, to: FolderSnapshots) -> Generator[int, None, None]:
        """Copy a snapshot, which somebody keeps meanwhile, into another store; yields how much was copied."""
        with self._noting_damage(snapshot):
            yield from to.receiving(snapshot, self._store.folder(snapshot))

    def view(self, id: int, codec: RowCodecs, start: bytes, end: bytes) -> View:
        """The rows of a snapshot, those of a range of keys; it stays as long as the view is open."""
        with self._lock:
            self._check_alive()
            snapshot = self.find(id)
            opened = self._opened.get(id)
            if opened is None:
                opened = self._opened[id] = _Opened(self._open_kv(self._store.folder(snapshot)))
            opened.uses += 1
            try:
                pin = opened.kv.pin(start, end)
            except BaseException:
                self._closed_view(id)
                raise
            view = View(pin, snapshot.offset, codec, closed=lambda: self._closed_view(id))
            opened.views.add(view)
            return view

    def retire(self, reason: KolkError) -> None:
        """The bucket is gone, or the database closes: nobody reads or takes snapshots any more. Who is just about to
        publish one is waited for."""
        with self._lock:
            self._refusal = reason
            views = [view for opened in self._opened.values() for view in opened.views]
        for view in views:
            view.revoke(reason)
        with self._files:
            pass

    def abandon(self) -> None:
        """In a forked child: never tear down what belongs to the parent."""
        for opened in list(self._opened.values()):
            opened.kv.abandon()
            for view in list(opened.views):
                view.abandon()

    @contextmanager
    def _noting_damage(self, snapshot: Snapshot) -> Iterator[None]:
        try:
            yield
        except Corrupted:
            with self._lock:
                self._known().pop(snapshot.id, None)
                self._broken.add(snapshot.id)
            raise

    def _closed_view(self, id: int) -> None:
        with self._lock:
            opened = self._opened[id]
            opened.uses -= 1
            if not opened.uses:
                del self._opened[id]
                opened.kv.close()
                self._freed(self.bucket)

    def _check_alive(self) -> None:
        if self._refusal is not None:
            raise copy(self._refusal)

    def _known(self) -> dict[int, Snapshot]:
        with self._lock:
            if self._good is None:
                stored = self._store.load()
                self._good = {id: each for id, each in stored.good.items() if id not in self._going}
                self._broken |= stored.broken - self._going
                self._good = {id: each for id, each in self._good.items() if id not in self._broken}
            return self._good
