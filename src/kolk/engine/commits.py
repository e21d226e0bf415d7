"""The records of commits: what every application has committed last, and the number of the newest commit.

A record is what makes a commit: from the moment in which it is durable the transaction happens, whatever fails. So it
is written in one step with the number that it takes. They are few, one for each application and set of tables, and all
of them are in memory.

A name that was drawn for one write is no application: nobody comes back under it but the very call that drew it, which
asks again for minutes. Such names take no room of applications, which are never forgotten early. They have as much of
their own, and when that is full the oldest of them go first, once they are done and an hour old. The hour counts on the
clock that does not jump: one that was ahead when a name was written would keep it, and all that come after it, and one
that is put forward would let it go at once. Only of those that a start finds the wall clock says how old they are.

When a write fails so that nobody knows what became of it, what is in memory is worth nothing until it was read again;
and before that the number is written anew, because a write that failed may come back after a crash, unless a later one
has taken its place.

The number also stands in a small file beside the catalog, as a hint, ``u64 number | u32 crc32``: if it is greater than
what the catalog says, that is not the catalog that these logs were written with.
"""

import re
import struct
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from zlib import crc32

from kolk.codec.transaction import CSN_KEY, PREFIX, decode_record, encode_record, record_key
from kolk.config import Durability, EngineConfig
from kolk.errors import DiskFull, MetaBehindLog, MetaConflict, TooLarge, TooManyStagings
from kolk.model.ids import BucketId, TableId
from kolk.model.transaction import VERSION_MAX, CommitRecord
from kolk.runtime.clock import WatchedClock
from kolk.runtime.disk import Disk
from kolk.storage.meta import RECORD_BYTES_MAX, Meta

_ONE_SHOT = re.compile(r"[0-9a-f]{32}")
"""A name that was drawn for one write. One with dashes may be that of a streaming query, which lives for long."""
_NUMBER, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_ONE_SHOT_MS = 7 * 86_400 * 1_000
_ONE_SHOT_LEAST_SECONDS = 3_600.0
"""However many there are, one is kept for so long: whoever waits for the answer to a commit has given up by then."""
_GOING_MAX = 100
"""So many at most go with one commit; more than one is over the limit only if that was lowered."""


class Commits:
    """All records. Thread-safe: one lock, also held while they are written; only meta's comes after it. That of an
    application's commits is the caller's business."""

    def __init__(self, meta: Meta, config: EngineConfig, clock: WatchedClock, disk: Disk, hint: str) -> None:
        """``hint`` is the path of the file with the number."""
        self._disk = disk
        self._hint = hint
        self._meta = meta
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock: the records of each application by key; the names that were drawn for one write, by their
        # last commit, each with the moment of that; and the records that are not finished.
        self._apps: dict[str, dict[str, CommitRecord]] = {}
        self._drawn: dict[str, float] = {}
        self._pending: dict[str, CommitRecord] = {}
        self._csn = 0
        self._is_certain = True
        self._behind: MetaBehindLog | None = None
        self._load()
        hinted = hinted_csn(disk, hint)
        if hinted > self._csn:
            raise MetaBehindLog(
                f"commit {hinted} was made, and the catalog knows {self._csn} only: meta.sqlite is an earlier copy, and"
                " the database is not opened; restore all of its folder from one backup"
            )

    @property
    def csn(self) -> int:
        """The number of the newest commit."""
        with self._certain():
            return self._csn

    def all(self) -> list[CommitRecord]:
        """Every record, by application."""
        with self._certain():
            return [record for app in sorted(self._apps) for _, record in sorted(self._apps[app].items())]

    def of(self, app: str) -> list[CommitRecord]:
        """The records of an application."""
        with self._certain():
            return list(self._apps.get(app, {}).values())

    def pending(self, bucket: BucketId | None = None) -> list[CommitRecord]:
        """Those that are not finished, or only those that a bucket takes part in, in their order."""
        with self._certain():
            found = [each for each in self._pending.values() if bucket is None or bucket in each.bases]
        return sorted(found, key=lambda record: record.csn)

    def named(self) -> set[str]:
        """The handles that unfinished commits need."""
        return {handle for record in self.pending() for handles in record.handles.values() for handle in handles}

    @property
    def counts(self) -> tuple[int, int]:
        """How many applications are remembered, and how many commits are not finished, as far as that is known: for
        those who watch, also while the catalog cannot be read."""
        with self._lock:
            return len(self._apps) - len(self._drawn), len(self._pending)

    def check_log(self, bucket: BucketId, csn: int) -> None:
        """Whether the catalog knows what the log of a bucket has. Once it does not, no number is given any more: they
        would come up to it, and nobody could tell."""
        with self._certain():
            if csn > self._csn:
                self._behind = MetaBehindLog(
                    f"the log of bucket {bucket.name} has commit {csn}, and the catalog knows {self._csn} only: the"
                    " folder was put together of different backups; restore all of it from one"
                )
                raise copy(self._behind)

    def check_room(self, app: str) -> None:
        """Whether one more application can be remembered; none is forgotten for it. Of a name that was drawn for one
        write, whether there is room or an older one may go."""
        with self._certain():
            if app in self._apps:
                return
            is_drawn = _is_drawn(app)
            count = len(self._drawn) if is_drawn else len(self._apps) - len(self._drawn)
            if count < self._config.txn_apps_max or self._going_for(app):
                return
        if is_drawn:
            raise TooManyStagings(
                f"{count:,} writes without a name are remembered, no more may be (txn_apps_max), and none of them goes"
                " before it is finished and an hour old; write less often, or under one app_id whose version grows"
            )
        refused = TooManyStagings(
            f"{count:,} applications are remembered, and no more may be (txn_apps_max); use the same app_id for all"
            " commits of a job, and let its version grow"
        )
        refused.retriable = False  # they are remembered for days
        raise refused

    def begin(self, record: CommitRecord) -> None:
        """Make a commit: its record and its number, durably, in one step. DiskFull, MetaConflict and TooLarge say that
        nothing happened; after any other error nobody knows before the records are read again."""
        _check_size(record)
        key = record_key(record)
        with self._certain():
            if self._behind is not None:
                raise copy(self._behind)
            assert record.csn == self._csn + 1, "the caller has all locks that a commit takes"
            going = self._going_for(record.app)
            self._is_certain = False
            try:
                # Records of the same tables are replaced; those of other tables stay, since they are about those, too.
                self._meta.write(
                    [
                        self._meta.replacement(key, encode_record(record)),
                        self._meta.replacement(CSN_KEY, str(record.csn).encode()),
                        *(self._meta.replacement(record_key(each), None) for each in going),
                    ]
                )
            except (DiskFull, MetaConflict):
                self._is_certain = True
                raise
            for each in going:
                self._hide(each)
            self._show(key, record)
            self._csn = record.csn
            self._is_certain = True
            number = _NUMBER.pack(record.csn)
            with suppress(OSError, DiskFull):
                self._disk.overwrite(self._hint, number + _CRC.pack(crc32(number)))

    def finish(self, record: CommitRecord) -> None:
        """Note that a commit is in all its buckets. If that fails it is noted later.

        A power cut may take the mark back. The logs have the commit then, durably, so the next start finds that it is
        done. Only where logs are not synced could it not be done again: what was staged for it may be gone.
        """
        key = record_key(record)
        syncs = self._config.durability is Durability.PROCESS
        with self._certain():
            self._meta.write([self._meta.replacement(key, encode_record(record))], syncs=syncs)
            self._show(key, record)

    def drop_gone(self, known: Collection[TableId]) -> None:
        """Forget the commits none of whose tables is there any more."""
        for record in self.all():
            if not any(table in known for table in record.tables):
                self._forget(record)

    def reap(self) -> None:
        """Forget applications that have committed nothing for very long. Whose last commit has a time that is still to
        come, because the clock was ahead, is kept for longer, and nobody too short because it was put forward."""
        retention_ms = self._config.txn_app_retention_seconds * 1_000
        for record in self.all():
            kept_ms = min(retention_ms, _ONE_SHOT_MS) if _is_drawn(record.app) else retention_ms
            if record.is_done and self._clock.has_passed(kept_ms, record.timestamp_ms):
                self._forget(record)

    # --- inside: all under the lock

    @contextmanager
    def _certain(self) -> Iterator[None]:
        """Within the block what is in memory is what is written."""
        with self._lock:
            if not self._is_certain:
                self._meta.write([self._meta.replacement(CSN_KEY, str(self._written_csn()).encode())])
                self._load()
                self._is_certain = True
            yield

    def _load(self) -> None:
        known, self._apps, self._drawn, self._pending = self._drawn, {}, {}, {}
        found = [(each.key, decode_record(each.value)) for each in self._meta.list(PREFIX)]
        now_ms, now = self._clock.now_ms(), self._clock.monotonic()
        for key, record in sorted(found, key=lambda each: each[1].csn):
            self._show(key, record, known.get(record.app, now - max(now_ms - record.timestamp_ms, 0) / 1_000))
        self._csn = self._written_csn()

    def _written_csn(self) -> int:
        number = self._meta.get(CSN_KEY)
        return 0 if number is None else int(number.value)

    def _show(self, key: str, record: CommitRecord, since: float | None = None) -> None:
        self._apps.setdefault(record.app, {})[key] = record
        if _is_drawn(record.app):
            self._drawn.pop(record.app, None)
            self._drawn[record.app] = self._clock.monotonic() if since is None else since
        self._pending.pop(key, None)
        if not record.is_done:
            self._pending[key] = record

    def _forget(self, record: CommitRecord) -> None:
        key = record_key(record)
        with self._certain():
            if self._apps.get(record.app, {}).get(key) != record:
                return
            self._meta.write([self._meta.replacement(key, None)])
            self._hide(record)

    def _hide(self, record: CommitRecord) -> None:
        key = record_key(record)
        del self._apps[record.app][key]
        self._pending.pop(key, None)
        if not self._apps[record.app]:
            del self._apps[record.app]
            self._drawn.pop(record.app, None)

    def _going_for(self, app: str) -> list[CommitRecord]:
        """What is forgotten so that there is room for this name, if it was drawn for one write: the oldest of such
        names. Never one whose commit is not finished."""
        over = len(self._drawn) + 1 - self._config.txn_apps_max
        going: list[CommitRecord] = []
        if over <= 0 or app in self._apps or not _is_drawn(app):
            return going
        left, now = min(over, _GOING_MAX), self._clock.monotonic()
        for name, since in self._drawn.items():
            if now - since <= _ONE_SHOT_LEAST_SECONDS:
                break
            records = self._apps[name].values()
            if all(record.is_done for record in records):
                going += records
                left -= 1
            if not left:
                break
        return going


def _is_drawn(app: str) -> bool:
    return _ONE_SHOT.fullmatch(app) is not None


def hinted_csn(disk: Disk, path: str) -> int:
    """What the file beside the catalog says; 0 if there is none, or a torn one."""
    if not disk.exists(path):
        return 0
    data = disk.read(path, 0, _NUMBER.size + _CRC.size)
    number, crc = data[: _NUMBER.size], data[_NUMBER.size :]
    return int(_NUMBER.unpack(number)[0]) if crc == _CRC.pack(crc32(number)) else 0


def _check_size(record: CommitRecord) -> None:
    """Whether the record fits, also when it says where every bucket ends."""
    if len(encode_record(replace(record, ends=dict.fromkeys(record.bases, VERSION_MAX)))) > RECORD_BYTES_MAX:
        handles = sum(map(len, record.handles.values()))
        raise TooLarge(
            f"a transaction of {len(record.bases):,} buckets and {handles:,} handles is too large for one record;"
            " commit it in pieces, each with a greater version"
        )
