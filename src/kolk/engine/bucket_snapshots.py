"""The snapshots of one bucket, while the database is open: which there are, who keeps them, and which may go.

Whether a snapshot exists, whether somebody pins it, and whether it is to go are decided under one lock. So nobody pins
what is about to be removed, and nothing is removed that somebody has pinned: there is no moment in between. Files are
touched without it. What is to go is forgotten first, and a crash before its files are gone only means that it is found
again at the next start, and forgotten again.

A snapshot stays while it is among the newest that are good, while it is pinned, and while somebody reads it. One that
is found damaged, by whoever reads it, counts no more; and since it may share its files, the next one shares none.
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
from kolk.errors import Corrupted, KolkError, SnapshotNotFound, Unavailable
from kolk.model.ids import BucketId
from kolk.model.lease import Pinned
from kolk.model.snapshot import Snapshot
from kolk.runtime.disk import naming_full_disk
from kolk.storage.kv import Kv
from kolk.storage.segment import Segment
from kolk.storage.snapshots import FolderSnapshots, SnapshotStore
from kolk.storage.view import View

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """How many snapshots were removed, and whether that was all."""

    removed: int
    is_all: bool


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
        self._last = 0  # the greatest number so far: a reader who is lost may come back for one that is long gone
        self._is_doubted = False
        self._place: tuple[int, Segment] | None = None
        self._pins: Counter[int] = Counter()
        self._opened: dict[int, _Opened] = {}
        self._refusal: KolkError | None = None

    def all(self) -> list[Snapshot]:
        """Those that there are, the oldest first."""
        with self._lock:
            return [snapshot for _, snapshot in sorted(self._known().items())]

    def newest(self) -> Snapshot | None:
        """The newest one."""
        found = self.all()
        return found[-1] if found else None

    def find(self, id: int) -> Snapshot:
        """The one of this number."""
        with self._lock:
            found = self._known().get(id)
            is_broken = id in self._broken
        if is_broken:
            raise Corrupted(f"snapshot {id} of bucket {self.bucket.name} is damaged; take another one")
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

    def note_place(self, id: int, place: Segment) -> None:
        """Remember how far the log was when a snapshot was made; 0 is none, of a log that nothing was written to."""
        with self._lock:
            self._place = id, place

    def has_all(self, place: Segment) -> bool | None:
        """Whether the newest one has all of a log that is so far; None if nobody knows how far it was then. Offsets do
        not tell: what was written without rows takes none."""
        with self._lock:
            newest = self.newest()
            if self._place is None or self._place[0] != (0 if newest is None else newest.id):
                return None
            return self._place[1] == place

    # --- who keeps them

    def pin(self, id: int) -> Pinned | None:
        """Keep a snapshot; None if there is none of this number. What is dropped or closed keeps nothing any more."""
        with self._lock:
            self._check_alive()
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
            with self._lock:
                known, is_doubted = dict(self._known()), self._is_doubted
                id = max((self._last, *self._pins)) + 1
            try:
                shared = {} if is_doubted else known
                with self._typed("cannot be written"):
                    snapshot = self._store.publish(replace(facts, id=id), checkpoint, shared, self._check_alive)
            except BaseException:
                with self._lock:
                    self._good = None
                raise
            with self._lock:
                self._known()[id] = snapshot
                self._last = id
                self._is_doubted = self._is_doubted and not is_doubted
            return snapshot

    def reclaim(self) -> Reclaimed:
        """Remove what nobody needs any more. It waits for nobody who copies: what cannot be removed now is tried
        again."""
        if not self._files.acquire(blocking=False):
            return Reclaimed(0, is_all=False)
        try:
            with self._lock:
                if self._refusal is not None:
                    return Reclaimed(0, is_all=True)
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
            return Reclaimed(removed, is_all=removed == len(going))
        finally:
            self._files.release()

    # --- reading

    def newest_first(self) -> Sequence[Snapshot]:
        """See ``Copies`` of recovery."""
        return self.all()[::-1]

    def check(self, snapshot: Snapshot) -> None:
        """See ``Copies`` of recovery."""
        with self._noting_damage(snapshot):
            self._store.check(snapshot)

    def restore(self, snapshot: Snapshot, folder: str) -> None:
        """See ``Copies`` of recovery. One that is found damaged is not offered again, and counts no more."""
        with self._noting_damage(snapshot):
            self._store.restore(snapshot, folder)

    def sending(self, snapshot: Snapshot, to: FolderSnapshots) -> Generator[int, None, None]:
        """Copy a snapshot into another store; yields how much was copied."""
        with self._noting_damage(snapshot):
            yield from to.receiving(snapshot, self._store.folder(snapshot))

    def view(self, id: int, codec: RowCodecs, start: bytes, end: bytes) -> View:
        """The rows of a snapshot, those of a range of keys; it stays as long as the view is open."""
        with self._lock:
            self._check_alive()
            snapshot = self.find(id)
            opened = self._opened.get(id)
            if opened is None:
                try:
                    opened = self._opened[id] = _Opened(self._open_kv(self._store.folder(snapshot)))
                except Corrupted:
                    self._note_damaged(id)
                    raise
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
        """Keep a snapshot while it is copied; one that is found damaged is not offered again, and counts no more."""
        self.hold(snapshot.id)
        try:
            yield
        except Corrupted:
            self._note_damaged(snapshot.id)
            raise
        finally:
            self.let_go(snapshot.id)
            self._freed(self.bucket)

    def _closed_view(self, id: int) -> None:
        with self._lock:
            opened = self._opened[id]
            opened.uses -= 1
            if opened.kv.is_damaged:
                self._note_damaged(id)
            if not opened.uses:
                del self._opened[id]
                opened.kv.close()
                self._freed(self.bucket)

    def _note_damaged(self, id: int) -> None:
        with self._lock:
            if self._good is not None:
                self._good.pop(id, None)
            self._broken.add(id)
            self._is_doubted = True

    def _check_alive(self) -> None:
        if self._refusal is not None:
            raise copy(self._refusal)

    @contextmanager
    def _typed(self, what: str) -> Iterator[None]:
        try:
            with naming_full_disk(f"the snapshots of bucket {self.bucket.name}"):
                yield
        except OSError as error:
            raise Unavailable(
                f"the snapshots of bucket {self.bucket.name} {what}: {error}; see to that, then retry"
            ) from error

    def _known(self) -> dict[int, Snapshot]:
        with self._lock:
            if self._good is None:
                with self._typed("cannot be read"):
                    stored = self._store.load()
                self._good = {id: each for id, each in stored.good.items() if id not in self._going}
                self._broken |= stored.broken - self._going
                self._good = {id: each for id, each in self._good.items() if id not in self._broken}
                self._last = max((self._last, *stored.good, *stored.broken))
            return self._good
