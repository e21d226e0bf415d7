"""The records of commits: what every application has committed last, and the number of the newest commit.

A record is what makes a commit: from the moment in which it is durable the transaction happens, whatever fails. So it
is written in one step with the number that it takes. They are few, one for each application and set of tables, and all
of them are in memory.
"""

import re
import threading
from collections.abc import Collection

from kolk.codec.transaction import CSN_KEY, PREFIX, decode_record, encode_record, record_key
from kolk.config import EngineConfig
from kolk.errors import TooManyStagings
from kolk.model.ids import BucketId, TableId
from kolk.model.transaction import CommitRecord
from kolk.runtime.clock import Clock
from kolk.storage.meta import Meta

_ONE_SHOT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_ONE_SHOT_MS = 7 * 86_400 * 1_000


class Commits:
    """All records. Thread-safe: one lock; that of an application's commits is the caller's business."""

    def __init__(self, meta: Meta, config: EngineConfig, clock: Clock) -> None:
        self._meta = meta
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._records: dict[str, CommitRecord] = {}
        self._csn = 0
        self.load()

    def load(self) -> None:
        """Read what is there: at the start, and when nobody knows what became of a write."""
        found = {record.key: decode_record(record.value) for record in self._meta.list(PREFIX)}
        number = self._meta.get(CSN_KEY)
        with self._lock:
            self._records = found
            self._csn = 0 if number is None else int(number.value)

    @property
    def csn(self) -> int:
        """The number of the newest commit."""
        return self._csn

    def all(self) -> list[CommitRecord]:
        """Every record, by application."""
        with self._lock:
            return [self._records[key] for key in sorted(self._records)]

    def of(self, app: str) -> list[CommitRecord]:
        """The records of an application."""
        return [record for record in self.all() if record.app == app]

    def pending(self, bucket: BucketId | None = None) -> list[CommitRecord]:
        """Those that are not finished, or only those that a bucket takes part in, in their order."""
        found = [record for record in self.all() if not record.is_done]
        if bucket is not None:
            found = [record for record in found if bucket in record.bases]
        return sorted(found, key=lambda record: record.csn)

    def named(self) -> set[str]:
        """The handles that unfinished commits need."""
        return {handle for record in self.pending() for handles in record.handles.values() for handle in handles}

    @property
    def apps(self) -> int:
        """How many applications are remembered."""
        with self._lock:
            return len({record.app for record in self._records.values()})

    def check_room(self, app: str) -> None:
        """Whether one more application can be remembered; none is forgotten for it."""
        with self._lock:
            apps = {record.app for record in self._records.values()}
        if app not in apps and len(apps) >= self._config.txn_apps_max:
            refused = TooManyStagings(
                f"{len(apps):,} applications are remembered, and no more may be (txn_apps_max); use the same app_id for"
                " all commits of a job, and let its version grow"
            )
            refused.retriable = False  # they are remembered for days
            raise refused

    def begin(self, record: CommitRecord) -> None:
        """Make a commit: its record and its number, durably, in one step."""
        assert record.csn == self._csn + 1, "the caller has all locks that a commit takes"
        key = record_key(record)
        # Records of the same tables are replaced; those of other tables stay, since they are about those, too.
        self._meta.write(
            [
                self._meta.replacement(key, encode_record(record)),
                self._meta.replacement(CSN_KEY, str(record.csn).encode()),
            ]
        )
        with self._lock:
            self._records[key] = record
            self._csn = record.csn

    def finish(self, record: CommitRecord) -> None:
        """Note that a commit is in all its buckets."""
        key = record_key(record)
        self._meta.write([self._meta.replacement(key, encode_record(record))])
        with self._lock:
            self._records[key] = record

    def drop_table(self, table: TableId, known: Collection[TableId]) -> None:
        """Forget the commits of a table that is gone, unless they are about another one as well."""
        for record in self.all():
            if table in record.handles and not any(other in known for other in record.tables):
                self._forget(record)

    def reap(self) -> None:
        """Forget applications that have committed nothing for very long."""
        now_ms = self._clock.now_ms()
        retention_ms = self._config.txn_app_retention_seconds * 1_000
        for record in self.all():
            kept_ms = min(retention_ms, _ONE_SHOT_MS) if _ONE_SHOT.fullmatch(record.app) else retention_ms
            if record.is_done and now_ms - record.timestamp_ms > kept_ms:
                self._forget(record)

    def _forget(self, record: CommitRecord) -> None:
        key = record_key(record)
        with self._lock:
            if self._records.get(key) != record:
                return
            del self._records[key]
        if self._meta.get(key) is not None:
            self._meta.write([self._meta.replacement(key, None)])
