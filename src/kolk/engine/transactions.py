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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
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
from kolk.model.table import TableInfo
from kolk.model.transaction import (
    CommitRecord,
    CommitRequest,
    CommitResult,
    Seal,
    Staging,
    TransactionInfo,
    Verdict,
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

    # --- staging

    def stage(self, staging: Staging, rows: pa.RecordBatch) -> None:
        """Keep rows for a commit, once they have passed the check that every row passes."""
        wanted = self._planning.columns(staging)
        if rows.num_rows > self._config.put_rows_max:
            raise TooLarge(f"at most {self._config.put_rows_max:,} rows are staged at once; stage them in pieces")
        self.stagings.append(staging, checked_rows(rows, wanted), wanted)

    def seal(self, staging: Staging) -> Seal:
        """Make what was staged durable; nothing is added to it afterwards."""
        self._planning.columns(staging)
        return self.stagings.seal(staging)

    def discard(self, handles: Sequence[str]) -> None:
        """Forget what was staged, unless a commit needs it."""
        self.stagings.discard(handles, self.commits.named())

    # --- committing

    def commit(self, request: CommitRequest, principal: str) -> CommitResult:
        """Apply what was staged, unless this version, or a later one, was committed before. See the module."""
        with self._apps[crc32(request.app.encode()) % _APP_LOCKS]:
            for record in self.commits.of(request.app):
                if not record.is_done:
                    self._finished(record)
            verdict = judged(request, self.commits.of(request.app))
            if verdict is not None:
                return self._not_again(request, verdict)
            self.commits.check_room(request.app)
            handles = [handle for table in request.tables for handle in request.handles[table]]
            with self.stagings.pinned(handles) as staged:
                by_handle = {staging.handle: (staging, seal) for staging, seal in staged}
                _check_staged(request, by_handle, principal)
                record = self._committed(request, by_handle)
            if record.is_done:
                self._clear(record)
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
                merged = tablet.merged(shares, truncates=table in record.truncates, is_decided=True)
                tablet.commit(merged, record.csn, record.timestamp_ms)
            _log.info("bucket %s was given its share of commit %d", tablet.bucket.name, record.csn)

    def recover(self) -> None:
        """At the start, before anybody is served: finish what was committed."""
        for record in self.commits.pending():
            try:
                self._finished(record)
            except KolkError as error:
                # Its buckets are not served before they have it; everything else is.
                _log.warning("commit %d could not be finished yet: %s", record.csn, error)

    def reap(self) -> None:
        """Forget what nobody came back for."""
        self.stagings.reap(self.commits.named())
        self.commits.reap()

    def listed(self) -> list[TransactionInfo]:
        """What is staged, by application and version, and what each has committed last."""
        names = {info.id: str(info.name) for info in self._catalog.list()}
        found = [
            TransactionInfo(
                app=record.app,
                version=record.version,
                tables=tuple(names.get(table, str(table)) for table in record.tables),
                state="done" if record.is_done else "pending",
                rows=record.rows,
                timestamp_ms=record.timestamp_ms,
                handles=sum(map(len, record.handles.values())),
            )
            for record in self.commits.all()
        ]
        named = self.commits.named()
        staged = [each for each in self.stagings.listed() if each[0].handle not in named]
        by = sorted(staged, key=lambda each: (each[0].app, each[0].version, each[2]))
        for (app, version, is_sealed), group in groupby(by, key=lambda each: (each[0].app, each[0].version, each[2])):
            alike = list(group)
            found.append(
                TransactionInfo(
                    app=app,
                    version=version,
                    tables=tuple(sorted({names.get(each[0].table, str(each[0].table)) for each in alike})),
                    state="sealed" if is_sealed else "staging",
                    rows=sum(seal.rows for _, seal, _ in alike),
                    bytes=sum(seal.bytes for _, seal, _ in alike),
                    handles=len(alike),
                )
            )
        return found

    # --- inside

    def _not_again(self, request: CommitRequest, verdict: Verdict) -> CommitResult:
        """The answer to a commit that was made before: the first attempt's rows stand, this one's are dropped."""
        same = [
            record
            for record in self.commits.of(request.app)
            if (record.tables, record.version) == (request.tables, request.version)
        ]
        if verdict is Verdict.DUPLICATE and same and self._differs(request, same[0]):
            _log.warning("%r committed version %d once more, with other rows", request.app, request.version)
            verdict = Verdict.DUPLICATE_DIFFERENT
        self.discard([handle for handles in request.handles.values() for handle in handles])
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
            for info in plan.infos.values():
                self._lapse(info)  # columns that nobody has any more are free
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
