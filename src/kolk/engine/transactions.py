"""Transactions: rows are staged, and a commit applies all of them in all buckets, or nothing, exactly once.

A commit goes through these steps; a crash after each leaves:

1. the application's lock; an unfinished commit of it is finished first    nothing new
2. the version is judged: new, a duplicate, or old                         nothing new
3. what was staged is read, prepared and cut into the shares of buckets    nothing new
4. all buckets are opened; then the gate, and their locks, in their order  nothing new
5. every share is merged: what cannot be merged fails here                 nothing new
6. the record is written, with the number of the commit                    **the commit**: the next start finishes it
7. each bucket appends its frames; all are synced, side by side; then      some buckets have it: the next start does
   each applies and publishes them                                         the others before it serves them
8. the record is marked as done, and what was staged is removed            nothing to do

A bucket that fails in step 7 stops, and is not served again before it has its share. Whoever opens a bucket comes here
first (``settle``).
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from zlib import crc32

import pyarrow as pa

from kolk.config import EngineConfig
from kolk.engine.catalog import Catalog
from kolk.engine.commit_answers import check_size, check_staged, checksum_of, end_of, is_itself, offsets_of, rows_of
from kolk.engine.commit_guards import stopping, told, unfinished
from kolk.engine.commit_shares import apply_shares
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
    KolkError,
    PartitionDropped,
    SchemaChanged,
    TableNotFound,
    TooLarge,
)
from kolk.merge.prepared import Prepared
from kolk.model.ids import BucketId, TableId
from kolk.model.rows import checked_rows
from kolk.model.schema import Column
from kolk.model.table import TableInfo
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
_AHEAD_MS_MAX = 60_000
"""A clock that is put back by no more is corrected, as clocks are all the time. By more, it was wrong: its times must
not go from table to table, where nothing would be old, and no time be right, until the clock comes to them."""


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
        lapse: Callable[[TableInfo], None],
    ) -> None:
        self._lapse = lapse
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
        # What was read to finish a commit, for the next of its buckets. Guarded by the lock for opening buckets; who
        # drops it needs none.
        self._read: tuple[int, TableId, Mapping[BucketId, Sequence[Prepared]]] | None = None

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

    def keep(self, staging: Staging) -> None:
        """Let the time of a handle to which more is to come begin anew."""
        self.stagings.keep(staging)

    def seal(self, staging: Staging, batches: int) -> Seal:
        """Make what was staged durable, so many batches; nothing is added to it afterwards."""
        return self.stagings.seal(staging, batches)

    def discard(self, handles: Iterable[str], principal: str | None = None) -> int:
        """Forget what was staged, by this principal or whoever it was, unless a commit needs it; the answer is how many
        handles went."""
        return self.stagings.discard(handles, lambda staging: principal in (None, staging.principal))

    # --- committing

    def commit(self, request: CommitRequest, principal: str) -> CommitResult:
        """Apply what was staged, unless this version, or a later one, was committed before. See the module.

        Asked once more with the very handles that were committed, because the answer was lost, it says the same again.
        """
        with self._app_lock(request.app):
            unfinished = self._finish_all(self.commits.of(request.app))
            verdict = judged(request, self.commits.of(request.app))
            if verdict is not None:
                return self._not_again(request, verdict, principal)
            if unfinished is not None:
                raise unfinished  # the record of this one would take the other's place
            self.commits.check_room(request.app)
            handles = [handle for table in request.tables for handle in request.handles[table]]
            with self.stagings.pinned(handles) as staged:
                by_handle = {staging.handle: (staging, seal) for staging, seal in staged}
                check_staged(request, by_handle, principal)
                check_size(by_handle, self._config.txn_bytes_max)
                record = self._committed(request, by_handle)
            if record.is_done:
                self._clear(record)
            self._count(Verdict.COMMITTED)
            return CommitResult(verdict=Verdict.COMMITTED, offsets=offsets_of(record))

    def settle(self, tablet: Tablet) -> None:
        """Give a bucket that is being opened its share of commits that did not come to it. Nobody else has it yet."""
        self.commits.check_log(tablet.bucket, tablet.csn)
        for record in self.commits.pending(tablet.bucket):
            if tablet.csn < record.csn:
                with told(tablet.bucket, record):
                    self._roll_forward(tablet, record)
                _log.info("bucket %s was given its share of commit %d", tablet.bucket.name, record.csn)

    def recover(self) -> None:
        """At the start, before anybody is served: finish what was committed, and clear up after it."""
        self.commits.drop_gone({info.id for info in self._catalog.list()})
        # What it cannot finish yet is told of in the log; those buckets are not served before, everything else is.
        self._finish_all(self.commits.pending())
        for record in self.commits.all():
            if record.is_done:
                self._clear(record)

    @contextmanager
    def still(self, table: TableId) -> Iterator[None]:
        """Within the block no commit of a table is under way, nor half done: what was merged for it in one version is
        never given to a bucket in another. Retriable if one cannot be finished."""
        self.finish(table)
        with self._gate.exclusive():
            self.check_finished(table)
            yield

    def finish(self, table: TableId) -> None:
        """Finish the commits of a table that are not in all its buckets yet, as well as it can be."""
        self._finish_somebody([record for record in self.commits.pending() if table in record.handles])

    def check_finished(self, table: TableId) -> None:
        """Whether all commits of a table are in all its buckets. Pass the gate alone, or it is not true for long."""
        if any(table in record.handles for record in self.commits.pending()):
            raise unfinished("a transaction of this table is not in all its buckets yet")

    def reap(self) -> None:
        """Forget what nobody came back for, and finish what could not be finished before."""
        self._finish_somebody(self.commits.pending())
        self.stagings.reap()
        self.commits.reap()

    def listed(self) -> list[TransactionInfo]:
        """What is staged, by application and version, and what each has committed last."""
        names = {info.id: str(info.name) for info in self._catalog.list()}
        return listed(self.commits, self.stagings, names, self._problems)

    def counts(self) -> TransactionCounts:
        """How much of all that there is."""
        with self._counting:
            seen = Counter(self._verdicts)
        apps, pending = self.commits.counts
        return TransactionCounts(
            handles=self.stagings.count,
            staged_bytes=self.stagings.bytes,
            apps=apps,
            pending=pending,
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

    def _not_again(self, request: CommitRequest, verdict: Verdict, principal: str) -> CommitResult:
        """The answer to a commit that was made before: the first attempt's rows stand, this one's are dropped. If that
        attempt is this very one, it is told so."""
        same = [
            record
            for record in self.commits.of(request.app)
            if (record.tables, record.version) == (request.tables, request.version)
        ]
        if verdict is Verdict.DUPLICATE and same and is_itself(request, same[0]):
            return CommitResult(verdict=Verdict.COMMITTED, offsets=offsets_of(same[0]))
        if verdict is Verdict.DUPLICATE and same and self._differs(request, same[0]):
            _log.warning(
                "%r committed version %d once more, with other rows; the first ones stand", request.app, request.version
            )
            verdict = Verdict.DUPLICATE_DIFFERENT
        self._count(verdict)
        own = (request.app, request.version, principal)
        self.stagings.discard(
            [handle for handles in request.handles.values() for handle in handles],
            lambda staging: (staging.app, staging.version, staging.principal) == own,
        )
        return CommitResult(verdict=verdict, offsets=offsets_of(same[0]) if same else {})

    def _differs(self, request: CommitRequest, record: CommitRecord) -> bool:
        """Whether this attempt has other rows than the one that counts, as far as that is known."""
        handles = [handle for handles in request.handles.values() for handle in handles]
        listed = {staging.handle: seal for staging, seal, _ in self.stagings.listed()}
        # What an attempt staged may be gone: then there is nothing to compare but what it says itself.
        seals = [listed[handle] for handle in handles] if all(handle in listed for handle in handles) else None
        rows = None if request.rows is None and seals is None else rows_of(request, seals or ())
        checksum = None if request.checksum is None and seals is None else checksum_of(request, seals or ())
        return rows not in (None, record.rows) or checksum not in (None, record.checksum)

    def _committed(self, request: CommitRequest, staged: Mapping[str, tuple[Staging, Seal]]) -> CommitRecord:
        for _ in range(_LOOKS_MAX):
            plan = self._planning.plan(request, staged)
            for info in plan.infos.values():
                self._lapse(info)  # columns that nobody has any more are free
            try:
                # Buckets may have to recover, for which nobody should have to wait at the gate.
                with self._used(plan) as tablets, self._gate.shared(), _held(tablets):
                    if not self._is_current(plan, tablets):
                        continue  # which is judged anew
                    return self._decided(request, staged, plan, tablets)
            except PartitionDropped:
                continue
        raise SchemaChanged("the tables are altered faster than the commit can follow; commit again")

    @contextmanager
    def _used(self, plan: Plan) -> Iterator[list[Tablet]]:
        """The tablets of a plan, in the order of their locks."""
        with ExitStack() as used:
            tablets: list[Tablet] = []
            for table, info in plan.infos.items():
                buckets = sorted(bucket for bucket in plan.shares if bucket.table == table)
                tablets += used.enter_context(self._tablets.use(info, buckets))
            yield tablets

    def _is_current(self, plan: Plan, tablets: Sequence[Tablet]) -> bool:
        """Whether no table was altered since the plan was made, and no tablet stopped that recovery brings back: the
        bucket may have another one by now."""
        infos = plan.infos
        is_altered = any(self._catalog.by_id(table).schema.id != infos[table].schema.id for table in infos)
        return not is_altered and not any(tablet.wants_recovery for tablet in tablets)

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
        left = list(zip(tablets, merged, strict=True))
        with stopping(left):
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
                    timestamp_ms=self._moment(tablets),
                    rows=rows_of(request, seals),
                    checksum=checksum_of(request, seals),
                )
                self.commits.begin(record)
            return self._applied(record, left)

    def _moment(self, tablets: Sequence[Tablet]) -> int:
        """The time of a commit, one in all its buckets: it goes back in none of them that is ahead of the clock by a
        correction. One that is ahead by more goes on at its own time, as for a put, and the others do not share it."""
        now_ms = self._clock.now_ms()
        lasts = [tablet.last_timestamp_ms for tablet in tablets]
        return max([now_ms, *(last for last in lasts if last <= now_ms + _AHEAD_MS_MAX)])

    def _applied(self, record: CommitRecord, left: list[tuple[Tablet, Merged]]) -> CommitRecord:
        """Write the share of each bucket that is left; one that fails stops, and has its share before it serves
        again."""

        def failed(tablet: Tablet, error: KolkError) -> None:
            _log.error("commit %d is not in bucket %s yet: %s", record.csn, tablet.bucket.name, error)
            self._problems[record.csn] = str(error)

        ends = apply_shares(left, record.csn, record.timestamp_ms, failed)
        record = replace(record, ends=ends)
        return self._marked(record) if len(ends) == len(record.bases) else record

    def _marked(self, record: CommitRecord) -> CommitRecord:
        done = replace(record, is_done=True)
        try:
            self.commits.finish(done)
        except KolkError as error:
            _log.warning("commit %d is in all its buckets, which could not be noted: %s", record.csn, error)
            self._problems[record.csn] = str(error)
            return record
        self._problems.pop(record.csn, None)
        return done

    def _finish_somebody(self, records: Sequence[CommitRecord]) -> None:
        """Finish commits, of whichever application, unless somebody is at it right now."""
        for record in records:
            lock = self._app_lock(record.app)
            if lock.acquire(blocking=False):
                try:
                    self._finish_all([each for each in self.commits.pending() if each.csn == record.csn])
                finally:
                    lock.release()

    def _finish_all(self, records: Sequence[CommitRecord]) -> KolkError | None:
        """Finish those of the records that are not; the answer is why one cannot be. Hold the applications' locks."""
        failed: KolkError | None = None
        for record in sorted(records, key=lambda record: record.csn):
            if not record.is_done:
                try:
                    self._finish(record)
                except KolkError as error:
                    if self._problems.get(record.csn) != str(error):
                        _log.warning("commit %d could not be finished yet: %s", record.csn, error)
                    self._problems[record.csn] = str(error)
                    failed = failed or error
        return failed

    def _finish(self, record: CommitRecord) -> None:
        """Let every bucket of a commit have its share: whoever opens one gives it."""
        ends = dict(record.ends)
        try:
            for bucket in sorted(record.bases):
                try:
                    with self._tablets.use_one(self._catalog.by_id(bucket.table), bucket) as tablet:
                        if tablet.refusal is not None:
                            raise copy(tablet.refusal)
                        if tablet.csn < record.csn:
                            raise unfinished(f"bucket {bucket.name} has not got commit {record.csn} yet")
                        end = end_of(tablet, record) if bucket not in ends else None
                        ends |= {} if end is None else {bucket: end}
                except (TableNotFound, PartitionDropped):
                    continue  # there is nobody to give it to
        finally:
            self._read = None
        record = self._marked(replace(record, ends=ends))
        if record.is_done:
            self._clear(record)

    def _roll_forward(self, tablet: Tablet, record: CommitRecord) -> None:
        """Give a bucket the share that it lacks, merged as it was to be. Nobody else has the bucket."""
        base, table = record.bases[tablet.bucket], tablet.bucket.table
        if tablet.end != base:
            raise Corrupted(f"it is to follow offset {base}, but the log ends at {tablet.end}")
        read = self._read  # once, for it may be dropped meanwhile
        if read is None or read[:2] != (record.csn, table):
            info = self._catalog.by_id(table)
            read = self._read = record.csn, table, self._planning.shares(info, record.handles[table], makes=False)
        shares = read[2].get(tablet.bucket, ())
        with tablet.held():
            merged = tablet.merged(shares, truncates=table in record.truncates, is_decided=True)
            tablet.append(merged, record.csn, record.timestamp_ms)
            tablet.commit(merged, record.csn)

    def _clear(self, record: CommitRecord) -> None:
        """Remove what was staged for a commit that is done, and what earlier attempts have left."""
        handles = [handle for handles in record.handles.values() for handle in handles]
        handles += self.stagings.of(record.app, record.tables, record.version)
        self.stagings.discard(dict.fromkeys(handles))


@contextmanager
def _held(tablets: Sequence[Tablet]) -> Iterator[None]:
    """The locks of tablets, taken in the order in which they are given."""
    with ExitStack() as held:
        for tablet in tablets:
            held.enter_context(tablet.held())
        yield
