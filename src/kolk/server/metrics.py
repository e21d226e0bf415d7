"""What the server counts, in Prometheus' text format: how much, how quickly, how often refused. Never what.

Each server has a registry of its own, so that two in one process do not mix and nothing of the embedding program shows.
Every label that a caller can influence has a limit: after so many values the rest are counted together as ``other``, so
that neither 10,000 tables nor made-up names make the answer endless. Histograms have no table label for the same
reason. A table that is dropped gives its place back.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from kolk.errors import KolkError
from kolk.model.lease import LeaseCounts
from kolk.model.owner import OwnerCounts
from kolk.model.page import BucketOffsets
from kolk.model.scan import ScanCounts
from kolk.model.snapshot import SnapshotCounts
from kolk.model.transaction import TransactionCounts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TABLES_MAX = 1_000
BUCKETS_MAX = 1_000
"""With more buckets than this their offsets are added up per table."""
OTHER = "other"
ALL_BUCKETS = "all"

_WORDS_MAX = 64  # methods, outcomes, reasons, kinds: all of them stand in the code, but a caller may slip
_CALL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _Values:
    """The values that one label has had, up to a limit. Thread-safe: one lock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def admit(self, value: str) -> str:
        """The value itself, or ``other`` if there are too many before it."""
        with self._lock:
            if value not in self._known and len(self._known) >= self._limit:
                return OTHER
            self._known.add(value)
            return value

    def forget(self, value: str) -> bool:
        """Give a place back; whether it was taken."""
        with self._lock:
            if value not in self._known:
                return False
            self._known.remove(value)
            return True


def _no_scans() -> ScanCounts:
    return ScanCounts(open=0, views=0, opened=0, expired=0, revoked=0, refused=0, rows=0, size_bytes=0)


def _no_snapshots() -> SnapshotCounts:
    return SnapshotCounts(taken=0, failed=0, removed=0, copied_bytes=0, last_seconds=None, oldest_age_seconds=None)


class Metrics:
    """The counters of one server. Thread-safe."""

    def __init__(
        self,
        *,
        version: str,
        offsets: Callable[[], Iterable[BucketOffsets]] = tuple,
        scans: Callable[[], ScanCounts] = _no_scans,
        snapshots: Callable[[], SnapshotCounts] = _no_snapshots,
        leases: Callable[[], LeaseCounts] = LeaseCounts,
        transactions: Callable[[], TransactionCounts] = TransactionCounts,
        owners: Callable[[], OwnerCounts] = OwnerCounts,
    ) -> None:
        registry = CollectorRegistry()
        self._exposition = _WithoutCreated(registry)
        self._tables = _Values(TABLES_MAX)
        self._by_table: list[Counter] = []
        self._methods, self._outcomes, self._reasons, self._kinds = (_Values(_WORDS_MAX) for _ in range(4))

        def by_table(name: str, what: str) -> Counter:
            self._by_table.append(Counter(name, what, ["table"], registry=registry))
            return self._by_table[-1]

        def seconds(name: str, what: str, labels: Iterable[str] = ()) -> Histogram:
            return Histogram(name, what, labels, registry=registry, buckets=_CALL_SECONDS)

        self._calls = Counter("kolk_calls", "Calls that ended.", ["method", "outcome"], registry=registry)
        self._call_seconds = seconds("kolk_call_seconds", "How long calls took.", ["method"])
        self._put_rows = by_table("kolk_put_rows", "Rows of acknowledged puts and deletes.")
        self._put_bytes = by_table("kolk_put_bytes", "Arrow bytes of acknowledged puts and deletes.")
        self._put_seconds = seconds("kolk_put_seconds", "From a whole put to its answer.")
        self._put_wait_seconds = seconds("kolk_put_wait_seconds", "How much of that was waiting for its turn.")
        self._get_keys = by_table("kolk_get_keys", "Keys that were looked up.")
        self._scan_rows = by_table("kolk_scan_rows", "Rows that scans sent.")
        self._scan_bytes = by_table("kolk_scan_bytes", "Arrow bytes that scans sent.")
        self._changelog_rows = by_table("kolk_changelog_rows", "Changes that changelogs sent.")
        self._busy = Counter("kolk_busy", "Calls that were answered Busy.", ["reason"], registry=registry)
        self._auth_failures = Counter(
            "kolk_auth_failures", "Calls without a good token, or denied.", ["reason"], registry=registry
        )
        self._disk_used = Gauge("kolk_disk_used_ratio", "Share of the data folder's disk in use.", registry=registry)
        self._streams = Gauge("kolk_streams_open", "Calls and streams that are open.", ["kind"], registry=registry)
        Gauge("kolk_build_info", "The version, as a label.", ["version"], registry=registry).labels(version).set(1)
        registry.register(_Offsets(offsets))
        registry.register(_Scans(scans))
        registry.register(_Kept(snapshots, leases))
        registry.register(_Transactions(transactions))
        registry.register(_Owners(owners))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def called(self, method: str, outcome: str, seconds: float) -> None:
        """A call ended: ``ok``, or the name of the error's class."""
        name = self._methods.admit(method)
        self._calls.labels(name, self._outcomes.admit(outcome)).inc()
        self._call_seconds.labels(name).observe(seconds)

    def put(self, table: str, *, rows: int, size_bytes: int, seconds: float, wait_seconds: float = 0.0) -> None:
        """A put or delete was acknowledged; ``seconds`` includes the wait for its turn."""
        name = self._tables.admit(table)
        self._put_rows.labels(name).inc(rows)
        self._put_bytes.labels(name).inc(size_bytes)
        self._put_seconds.observe(seconds)
        self._put_wait_seconds.observe(wait_seconds)

    def got(self, table: str, keys: int) -> None:
        """Keys were looked up, found or not."""
        self._get_keys.labels(self._tables.admit(table)).inc(keys)

    def scanned(self, table: str, *, rows: int, size_bytes: int) -> None:
        """A scan sent a batch."""
        name = self._tables.admit(table)
        self._scan_rows.labels(name).inc(rows)
        self._scan_bytes.labels(name).inc(size_bytes)

    def followed(self, table: str, rows: int) -> None:
        """A changelog sent a batch."""
        self._changelog_rows.labels(self._tables.admit(table)).inc(rows)

    def busy(self, reason: str) -> None:
        """A call was answered Busy because of this limit."""
        self._busy.labels(self._reasons.admit(reason)).inc()

    def auth_failed(self, reason: str) -> None:
        """A call was refused: ``unauthenticated`` or ``denied``."""
        self._auth_failures.labels(self._reasons.admit(reason)).inc()

    def disk_used(self, ratio: float) -> None:
        """The share of the disk that is in use, from 0 to 1."""
        self._disk_used.set(ratio)

    @contextlib.contextmanager
    def stream(self, kind: str) -> Iterator[None]:
        """Count a call or stream as open for as long as the block runs."""
        gauge = self._streams.labels(self._kinds.admit(kind))
        with gauge.track_inprogress():
            yield

    def forget(self, table: str) -> None:
        """The table was dropped: no more of it."""
        if self._tables.forget(table):
            for counter in self._by_table:
                counter.remove(table)

    def render(self) -> bytes:
        """Everything, in the format that ``CONTENT_TYPE`` names."""
        return generate_latest(self._exposition)


class _Offsets(Collector):
    """Asks for the logs' offsets when somebody looks, because they change with every put."""

    def __init__(self, offsets: Callable[[], Iterable[BucketOffsets]]) -> None:
        self._offsets = offsets

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        start = GaugeMetricFamily("kolk_log_start_offset", "First offset of the log.", labels=["table", "bucket"])
        end = GaugeMetricFamily("kolk_log_end_offset", "Offset after the last change.", labels=["table", "bucket"])
        try:
            buckets = _limited(list(self._offsets()))
        except KolkError:
            buckets = []  # a database that stops has no offsets; the other figures are wanted all the more
        for each in buckets:
            start.add_metric([each.table, each.bucket], each.start)
            end.add_metric([each.table, each.bucket], each.end)
        yield from (start, end)


class _Scans(Collector):
    """Asks for the scans when somebody looks, because only the engine knows when one ends: by itself, mostly."""

    def __init__(self, scans: Callable[[], ScanCounts]) -> None:
        self._scans = scans

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        counts = self._scans()
        yield GaugeMetricFamily("kolk_scans_open", "Scans that are open.", counts.open)
        yield GaugeMetricFamily("kolk_scan_views", "Buckets that scans have pinned.", counts.views)
        yield CounterMetricFamily("kolk_scans_opened", "Scans that were opened.", counts.opened)
        yield CounterMetricFamily("kolk_scans_expired", "Scans that nobody read for their time.", counts.expired)
        yield CounterMetricFamily("kolk_scans_revoked", "Scans whose rows were taken back.", counts.revoked)
        yield CounterMetricFamily("kolk_scans_refused", "Scans that were too many.", counts.refused)


class _Kept(Collector):
    """Asks for snapshots and leases when somebody looks. There is no label: buckets are too many, and leases have the
    names that their holders give them."""

    def __init__(self, snapshots: Callable[[], SnapshotCounts], leases: Callable[[], LeaseCounts]) -> None:
        self._snapshots = snapshots
        self._leases = leases

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        try:
            snapshots, leases = self._snapshots(), self._leases()
        except KolkError:
            return  # see _Offsets
        yield CounterMetricFamily("kolk_snapshots_taken", "Snapshots of buckets that were taken.", snapshots.taken)
        yield CounterMetricFamily("kolk_snapshots_failed", "Attempts of a table that failed.", snapshots.failed)
        yield CounterMetricFamily("kolk_snapshots_removed", "Snapshots that nobody kept.", snapshots.removed)
        yield CounterMetricFamily("kolk_snapshot_copied_bytes", "Bytes copied for them.", snapshots.copied_bytes)
        yield GaugeMetricFamily("kolk_snapshots_broken", "Snapshots that cannot be used.", snapshots.broken)
        # Before the first one there is neither, and a zero would look like a good one.
        if snapshots.last_seconds is not None:
            yield GaugeMetricFamily("kolk_snapshot_last_seconds", "What the last took.", snapshots.last_seconds)
        if snapshots.oldest_age_seconds is not None:
            age = snapshots.oldest_age_seconds
            yield GaugeMetricFamily("kolk_snapshot_age_seconds", "Since the turn of the table longest ago.", age)
        yield GaugeMetricFamily("kolk_leases_active", "Leases that are live.", leases.leases)
        yield GaugeMetricFamily("kolk_leases_unreadable", "Leases that are damaged.", leases.unreadable)
        yield GaugeMetricFamily("kolk_lease_pins", "Snapshots that leases keep, for each lease.", leases.pins)
        yield GaugeMetricFamily("kolk_lease_pinned_bytes", "Their size, each counted once.", leases.pinned_bytes)
        yield GaugeMetricFamily("kolk_lease_oldest_age_seconds", "Age of the oldest.", leases.oldest_age_seconds)
        yield CounterMetricFamily("kolk_leases_expired", "Leases that were not renewed.", leases.expired)
        yield CounterMetricFamily("kolk_lease_unavailable", "Snapshots asked for in vain.", leases.unavailable)
        yield CounterMetricFamily("kolk_lease_renew_failures", "Renewals refused.", leases.renew_failures)


class _Transactions(Collector):
    """Asks for transactions when somebody looks. There is no label: applications have the names that users give."""

    def __init__(self, transactions: Callable[[], TransactionCounts]) -> None:
        self._transactions = transactions

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        counts = self._transactions()
        yield GaugeMetricFamily("kolk_staged_bytes", "Bytes that wait for a commit.", counts.staged_bytes)
        yield GaugeMetricFamily("kolk_staged_handles", "Handles that they wait under.", counts.handles)
        yield GaugeMetricFamily("kolk_apps", "Applications whose last version is remembered.", counts.apps)
        yield GaugeMetricFamily("kolk_commits_pending", "Commits not yet in all their buckets.", counts.pending)
        yield CounterMetricFamily("kolk_commits", "Transactions that were committed.", counts.committed)
        yield CounterMetricFamily("kolk_commits_duplicate", "Those committed before.", counts.duplicates)
        yield CounterMetricFamily("kolk_commits_different", "Of them, those with other rows.", counts.different)
        yield CounterMetricFamily("kolk_commits_old", "Those of a version before the last.", counts.old)


class _Owners(Collector):
    """Asks for owners when somebody looks. There is no label: they have the names that users give."""

    def __init__(self, owners: Callable[[], OwnerCounts]) -> None:
        self._owners = owners

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        try:
            counts = self._owners()
        except KolkError:
            return  # see _Offsets
        yield GaugeMetricFamily("kolk_locks", "Owners that hold columns.", counts.locks)
        yield GaugeMetricFamily("kolk_locks_live", "Those whose time is not up.", counts.live)
        yield GaugeMetricFamily("kolk_owners_dirty", "Those with changes that are not committed.", counts.dirty)
        yield GaugeMetricFamily("kolk_owners_abandoned", "Those of them whose time is up.", counts.abandoned)
        yield CounterMetricFamily("kolk_owners_begun", "Owners that have begun.", counts.begun)
        yield CounterMetricFamily("kolk_owner_commits", "Epochs that were committed.", counts.committed)
        yield CounterMetricFamily("kolk_owner_conflicts", "Owners that others kept from beginning.", counts.conflicts)
        yield CounterMetricFamily("kolk_owners_evicted", "Owners taken back for somebody else.", counts.evicted)
        yield CounterMetricFamily("kolk_fenced_puts", "Puts of owners that may write no more.", counts.fenced)
        yield CounterMetricFamily("kolk_undo_rows", "Rows that were taken back.", counts.undone_rows)
        yield CounterMetricFamily("kolk_undo_seconds", "How long that took.", counts.undo_seconds)


class _WithoutCreated(Collector):
    """Leaves out the time at which each series was made, which doubles the answer and which nobody asks for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _limited(buckets: list[BucketOffsets]) -> list[BucketOffsets]:
    """As they are, or if they are too many added up per table, and the tables after too many of those as one."""
    if len(buckets) <= BUCKETS_MAX:
        return buckets
    sums: dict[str, BucketOffsets] = {}
    for each in buckets:
        table = each.table if each.table in sums or len(sums) < TABLES_MAX else OTHER
        before = sums.get(table, BucketOffsets(table, ALL_BUCKETS, 0, 0))
        sums[table] = BucketOffsets(table, ALL_BUCKETS, before.start + each.start, before.end + each.end)
    return list(sums.values())
