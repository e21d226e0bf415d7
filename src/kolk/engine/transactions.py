"""Transactions: rows are staged, and a commit applies all of them in all buckets, or nothing, exactly once.

A commit goes through these steps; a crash after each leaves:

1. the application's lock; an unfinished commit of it is finished first    nothing new
2. the version is judged: new, a duplicate, or old                         nothing new
3. what was staged is read, prepared and cut into the shares of buckets    nothing new
4. the gate, and the locks of all buckets, in their order                  nothing new
5. every share is merged: what cannot be merged fails here                 nothing new
6. the record is written, with the number of the commit                    **the commit**: the next start finishes it
7. each bucket appends, syncs, applies and publishes its frames            some buckets have it: the next start does
                                                                           the others before it serves them
8. the record is marked as done, and what was staged is removed            nothing to do

A bucket that fails in step 7 stops, and is not served again before it has its share. Whoever opens a bucket comes here
first (``settle``).
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from zlib import crc32

import pyarrow as pa

from kolk.codec.checksum import added
from kolk.config import EngineConfig
from kolk.engine.catalog import Catalog
from kolk.engine.commits import Commits
from kolk.engine.gate import Gate
from kolk.engine.partitions import Partitions
from kolk.engine.planning import Plan, Planning
from kolk.engine.routing import Routing
from kolk.engine.stagings import Stagings
from kolk.engine.tablets import Tablets
from kolk.engine.transaction_list import listed
from kolk.errors import (
    Corrupted,
    DiskFull,
    KolkError,
    MetaBehindLog,
    MetaConflict,
    NotFound,
    PartitionDropped,
    PermissionDenied,
    SchemaChanged,
    StagingGone,
    Stopped,
    TooLarge,
)
from kolk.model.ids import BucketId, TableId
from kolk.model.rows import checked_rows
from kolk.model.schema import Column
from kolk.model.transaction import (
    CommitRecord,
    CommitRequest,
    CommitResult,
    Seal,
    Staging,
    TransactionCounts,
    TransactionInfo,
    Verdict,
    check_app,
    check_handle,
    check_version,
    judged,
)
from kolk.runtime.clock import Clock
from kolk.tablet.tablet import Merged, Tablet

_log = logging.getLogger(__name__)
_APP_LOCKS = 64
_LOOKS_MAX = 10


class Transactions:
    """Stages and commits. Thread-safe: commits of one application one after the other, others side by side."""

    def __init__(
        self,
        commits: Commits,
        stagings: Stagings,
        catalog: Catalog,
        partitions: Partitions,
        tablets: Tablets,
        routing: Routing,
        gate: Gate,
        clock: Clock,
        config: EngineConfig,
    ) -> None:
        self._planning = Planning(stagings, catalog, partitions, tablets, routing, config)
        self.commits = commits
        self.stagings = stagings
        self._catalog = catalog
        self._tablets = tablets
        self._gate = gate
        self._clock = clock
        self._config = config
        self._apps = [threading.Lock() for _ in range(_APP_LOCKS)]
        # Taken after all tablets: numbers are given in the order in which the frames are written.
        self._numbering = threading.Lock()
        # Why commits could not be finished, by number. Written by who holds the lock of the application.
        self._problems: dict[int, str] = {}
        self._counting = threading.Lock()
        # Guarded by _counting.
        self._verdicts: Counter[Verdict] = Counter()

    # --- staging

    def stage(self, staging: Staging, number: int, rows: pa.RecordBatch) -> None:
        """Keep a batch for a commit, once it has passed the check that every row passes. Batches of a handle are
        numbered from 0 on; one that is staged again is answered, and kept once."""
        check_handle(staging.handle)
        check_app(staging.app)
        check_version(staging.version)
        wanted = self.columns(staging)
        if rows.num_rows > self._config.put_rows_max:
            raise self._too_much(f"{rows.num_rows:,} rows")
        # Nobody asks rows that were not checked how large they are: Arrow would follow their offsets.
        checked = checked_rows(rows, wanted)
        if checked.nbytes > self._config.put_bytes_max:
            raise self._too_much(f"{checked.nbytes:,} bytes")
        self.stagings.append(staging, number, checked, wanted)

    def _too_much(self, what: str) -> TooLarge:
        return TooLarge(
            f"at most {self._config.put_rows_max:,} rows and {self._config.put_bytes_max:,} bytes are staged at once,"
            f" not {what}; stage them in pieces"
        )

    def columns(self, staging: Staging) -> Sequence[Column]:
        """The columns that rows must have to be staged."""
        return self._planning.columns(staging)

    def seal(self, staging: Staging, batches: int) -> Seal:
        """Make what was staged durable, so many batches; nothing is added to it afterwards."""
        return self.stagings.seal(staging, batches)

    def discard(self, handles: Iterable[str], principal: str | None = None) -> int:
        """Forget what was staged, unless a commit needs it: what is this principal's, or anybody's; the answer is how
        many handles there were."""
        if principal is not None:
            handles = [one.handle for one in self.stagings.staged(handles) if one.principal == principal]
        return self.stagings.discard(handles, self.commits.named())

    # --- committing

    def commit(self, request: CommitRequest, principal: str) -> CommitResult:
        """Apply what was staged, unless this version, or a later one, was committed before. See the module.

        Asked once more with the very handles that were committed, because the answer was lost, it says the same again.
        """
        with self._app_lock(request.app):
            for record in self.commits.of(request.app):
                if not record.is_done:
                    self._finished(record)
            verdict = judged(request, self.commits.of(request.app))
            if verdict is not None:
                return self._not_again(request, verdict, principal)
            self.commits.check_room(request.app)
            handles = [handle for table in request.tables for handle in request.handles[table]]
            with self.stagings.pinned(handles) as staged:
                by_handle = {staging.handle: (staging, seal) for staging, seal in staged}
                _check_staged(request, by_handle, principal)
                record = self._committed(request, by_handle)
            if record.is_done:
                self._clear(record)
            self._count(Verdict.COMMITTED)
            return CommitResult(verdict=Verdict.COMMITTED, offsets=_offsets(record))

    def settle(self, tablet: Tablet) -> None:
        """Give a bucket that is being opened its share of commits that did not come to it. Nobody else has it yet."""
        if tablet.csn > self.commits.csn:
            raise MetaBehindLog(
                f"the log of bucket {tablet.bucket.name} has commit {tablet.csn}, and the catalog knows"
                f" {self.commits.csn} only: the folder was put together of different backups, and nothing is served"
            )
        for record in self.commits.pending(tablet.bucket):
            if tablet.csn >= record.csn:
                continue
            base = record.bases[tablet.bucket]
            if tablet.end != base:
                raise Corrupted(
                    f"commit {record.csn} is to follow offset {base} of bucket {tablet.bucket.name}, but its log ends"
                    f" at {tablet.end}"
                )
            table = tablet.bucket.table
            info = self._catalog.by_id(table)
            shares = self._planning.shares(info, record.handles[table], makes=False).get(tablet.bucket, ())
            with tablet.held():
                merged = tablet.merged(shares, truncates=table in record.truncates)
                tablet.commit(merged, record.csn, record.timestamp_ms)
            _log.info("bucket %s was given its share of commit %d", tablet.bucket.name, record.csn)

    def recover(self) -> None:
        """At the start, before anybody is served: finish what was committed."""
        for record in self.commits.pending():
            self._attempted(record)

    def reap(self) -> None:
        """Finish what could not be finished when it was committed, and forget what nobody came back for."""
        for record in self.commits.pending():
            lock = self._app_lock(record.app)
            if lock.acquire(blocking=False):  # else it is just being committed
                try:
                    if record in self.commits.of(record.app):
                        self._attempted(record)
                finally:
                    lock.release()
        self.stagings.reap(self.commits.named())
        self.commits.reap()

    def listed(self) -> list[TransactionInfo]:
        """What is staged, by application and version, and what each has committed last."""
        names = {info.id: str(info.name) for info in self._catalog.list()}
        return listed(self.commits, self.stagings, names, self._problems)

    def counts(self) -> TransactionCounts:
        """How much of all that there is."""
        with self._counting:
            seen = Counter(self._verdicts)
        return TransactionCounts(
            handles=self.stagings.count,
            staged_bytes=self.stagings.bytes,
            apps=self.commits.apps,
            pending=len(self.commits.pending()),
            committed=seen[Verdict.COMMITTED],
            duplicates=seen[Verdict.DUPLICATE] + seen[Verdict.DUPLICATE_DIFFERENT],
            different=seen[Verdict.DUPLICATE_DIFFERENT],
            old=seen[Verdict.OLD],
        )

    # --- inside

    def _app_lock(self, app: str) -> threading.Lock:
        return self._apps[crc32(app.encode()) % _APP_LOCKS]

    def _count(self, verdict: Verdict) -> None:
        with self._counting:
            self._verdicts[verdict] += 1

    def _attempted(self, record: CommitRecord) -> None:
        """Finish a commit if it can be. Its buckets are not served before they have it; everything else is."""
        try:
            self._finished(record)
        except KolkError as error:
            if self._problems.get(record.csn) != str(error):
                _log.warning("commit %d could not be finished yet: %s", record.csn, error)
            self._problems[record.csn] = str(error)

    def _not_again(self, request: CommitRequest, verdict: Verdict, principal: str) -> CommitResult:
        """The answer to a commit that was made before: the first attempt's rows stand, this one's are dropped. If that
        attempt is this very one, it is told so."""
        same = [
            record
            for record in self.commits.of(request.app)
            if (record.tables, record.version) == (request.tables, request.version)
        ]
        if verdict is Verdict.DUPLICATE and same and _is_itself(request, same[0]):
            return CommitResult(verdict=Verdict.COMMITTED, offsets=_offsets(same[0]))
        if verdict is Verdict.DUPLICATE and same and self._differs(request, same[0]):
            _log.warning("%r committed version %d once more, with other rows", request.app, request.version)
            verdict = Verdict.DUPLICATE_DIFFERENT
        self._count(verdict)
        self.discard([handle for handles in request.handles.values() for handle in handles], principal)
        return CommitResult(verdict=verdict, offsets=_offsets(same[0]) if same else {})

    def _differs(self, request: CommitRequest, record: CommitRecord) -> bool:
        handles = [handle for handles in request.handles.values() for handle in handles]
        listed = {staging.handle: seal for staging, seal, _ in self.stagings.listed()}
        if any(handle not in listed for handle in handles) and request.checksum is None:
            return False  # what this attempt staged is gone, so there is nothing to compare
        seals = [listed[handle] for handle in handles if handle in listed]
        return (_rows(request, seals), _checksum(request, seals)) != (record.rows, record.checksum)

    def _committed(self, request: CommitRequest, staged: Mapping[str, tuple[Staging, Seal]]) -> CommitRecord:
        for _ in range(_LOOKS_MAX):
            plan = self._planning.plan(request, staged)
            try:
                with self._gate.shared(), self._taken(plan) as tablets:
                    if any(self._catalog.by_id(table).schema.id != plan.infos[table].schema.id for table in plan.infos):
                        continue  # it was altered meanwhile, which is judged anew
                    return self._decided(request, staged, plan, tablets)
            except PartitionDropped:
                continue
        raise SchemaChanged("the tables are altered faster than the commit can follow; commit again")

    @contextmanager
    def _taken(self, plan: Plan) -> Iterator[list[Tablet]]:
        """The tablets of a plan, with their locks, in their order."""
        with ExitStack() as taken:
            tablets: list[Tablet] = []
            for table, info in plan.infos.items():
                buckets = sorted(bucket for bucket in plan.shares if bucket.table == table)
                tablets += taken.enter_context(self._tablets.use(info, buckets))
            for tablet in tablets:
                taken.enter_context(tablet.held())
            yield tablets

    def _decided(
        self,
        request: CommitRequest,
        staged: Mapping[str, tuple[Staging, Seal]],
        plan: Plan,
        tablets: Sequence[Tablet],
    ) -> CommitRecord:
        """Merge, decide, and apply. All locks are held."""
        merged = [
            tablet.merged(plan.shares[tablet.bucket], truncates=tablet.bucket.table in request.truncates)
            for tablet in tablets
        ]
        seals = [seal for _, seal in staged.values()]
        with self._numbering:
            record = CommitRecord(
                app=request.app,
                version=request.version,
                csn=self.commits.csn + 1,
                is_done=False,
                handles={table: tuple(request.handles[table]) for table in request.tables},
                schemas={table: info.schema.id for table, info in plan.infos.items()},
                truncates=request.truncates,
                bases={tablet.bucket: tablet.end for tablet in tablets},
                timestamp_ms=max([self._clock.now_ms(), *(tablet.last_timestamp_ms for tablet in tablets)]),
                rows=_rows(request, seals),
                checksum=_checksum(request, seals),
            )
            self._record(record, tablets)
        return self._applied(record, list(zip(tablets, merged, strict=True)))

    def _record(self, record: CommitRecord, tablets: Sequence[Tablet]) -> None:
        try:
            self.commits.begin(record)
        except (DiskFull, MetaConflict):
            raise  # refused: nothing happened
        except BaseException:
            # Nobody knows whether it is written. The buckets find out when they are opened again.
            for tablet in tablets:
                tablet.suspend("nobody knows yet whether a transaction was committed")
            self.commits.load()
            raise

    def _applied(self, record: CommitRecord, shares: Sequence[tuple[Tablet, Merged]]) -> CommitRecord:
        """Write the share of each bucket; one that fails stops, and has its share before it serves again."""
        ends: dict[BucketId, int] = {}
        left = list(shares)
        try:
            while left:
                tablet, merged = left.pop(0)
                try:
                    ends[tablet.bucket] = tablet.commit(merged, record.csn, record.timestamp_ms)
                except KolkError as error:
                    _log.error("commit %d is not in bucket %s yet: %s", record.csn, tablet.bucket.name, error)
        except BaseException:
            for tablet, _ in left:
                tablet.suspend("it was interrupted in the middle of a transaction")
            raise
        record = replace(record, ends=ends)
        if len(ends) < len(record.bases):
            return record
        return self._marked(record)

    def _marked(self, record: CommitRecord) -> CommitRecord:
        done = replace(record, is_done=True)
        try:
            self.commits.finish(done)
        except (DiskFull, Stopped) as error:
            _log.warning("commit %d is in all its buckets, which could not be noted: %s", record.csn, error)
            return record
        return done

    def _finished(self, record: CommitRecord) -> None:
        """Let every bucket of a commit have its share: whoever opens one gives it."""
        ends = dict(record.ends)
        for bucket in sorted(record.bases):
            try:
                with self._tablets.use_one(self._catalog.by_id(bucket.table), bucket) as tablet:
                    if tablet.csn < record.csn:
                        raise Stopped(f"bucket {bucket.name} has not got commit {record.csn} yet; retry")
                    ends.setdefault(bucket, tablet.end)
            except NotFound:
                continue  # its partition or table was dropped, and there is nobody to give it to
        record = self._marked(replace(record, ends=ends))
        if record.is_done:
            self._problems.pop(record.csn, None)
            self._clear(record)

    def _clear(self, record: CommitRecord) -> None:
        """Remove what was staged for a commit that is done, and what earlier attempts have left."""
        handles = [handle for handles in record.handles.values() for handle in handles]
        handles += self.stagings.of(record.app, record.tables, record.version)
        self.stagings.discard(dict.fromkeys(handles), self.commits.named())


def _check_staged(request: CommitRequest, staged: Mapping[str, tuple[Staging, Seal]], principal: str) -> None:
    for table, handles in request.handles.items():
        for handle in handles:
            staging = staged[handle][0]
            if staging.principal != principal:
                raise PermissionDenied(f"what was staged under {handle} is somebody else's")
            if (staging.app, staging.version, staging.table) != (request.app, request.version, table):
                raise StagingGone(
                    f"what was staged under {handle} is for version {staging.version} of {staging.app!r} and table"
                    f" {staging.table}, not for this commit"
                )


def _is_itself(request: CommitRequest, record: CommitRecord) -> bool:
    """Whether a commit is the one that the record is of: handles are drawn at random for every attempt."""
    given = {table: tuple(handles) for table, handles in request.handles.items()}
    return given == dict(record.handles) and any(given.values())


def _rows(request: CommitRequest, seals: Sequence[Seal]) -> int:
    return sum(seal.rows for seal in seals) if request.rows is None else request.rows


def _checksum(request: CommitRequest, seals: Sequence[Seal]) -> int:
    if request.checksum is not None:
        return request.checksum
    total = 0
    for seal in seals:
        total = added(total, seal.checksum)
    return total


def _offsets(record: CommitRecord) -> dict[TableId, dict[str, int]]:
    found: dict[TableId, dict[str, int]] = {table: {} for table in record.tables}
    for bucket, end in record.ends.items():
        found[bucket.table][bucket.name] = end
    return found
