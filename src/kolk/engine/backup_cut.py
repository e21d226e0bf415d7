"""What a backup is of: the records of the database, a snapshot of every bucket with rows, and the logs of log tables.

The records come first, then the snapshots, taken now and leased at once, then the logs, which are given second names so
that neither trimming nor dropping takes them away. If the tables or partitions are no longer what the records say when
all of that is there, it is done again: so what is copied is what there was at one time. Each table is of one moment, or
the next one is waited for; only one with more buckets than can be taken at once may be of several, and is named. Even
then nothing is committed to it between the first of them and the last: who wants to has to wait, and puts go on.

Followers stand in the first records, so none is further than the rows. What applications have committed to a table is
noted at the moment that its rows are of, table by table, so that a commit is either in the copy of a table and known
there, or neither; one of several tables may be in some of them only, and then its retry is told so. Nothing that is
staged is copied. It copies nothing itself.

What owners have committed is noted at that moment, too, with the locks of the buckets that are copied. What they have
not committed is in the rows, and only the log says what stood there before: so a bucket that has any keeps its log from
there on, given second names in the same moment.

A bucket is copied even if no row of it has changed, once anything was written to it since its newest snapshot: a put
that changed nothing, a commit, or the mark that an owner was taken back take no offset, and an older snapshot of the
same offset would lack them.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

from kolk.codec.cut import encode_cut
from kolk.codec.owner import NUMBER_KEY, encode_owner, owner_key
from kolk.codec.owner import PREFIX as OWNERS
from kolk.codec.transaction import CSN_KEY, encode_record, record_key
from kolk.codec.transaction import PREFIX as TRANSACTIONS
from kolk.engine.catalog import Catalog
from kolk.engine.cut_records import cut_key
from kolk.engine.gate import Gate
from kolk.engine.keeping import Keeping
from kolk.engine.looking import Onlooker
from kolk.engine.opening import BucketState
from kolk.engine.owners import Owners
from kolk.engine.partitions import Partitions
from kolk.engine.snapshots import Snapshots
from kolk.engine.tablets import Tablets
from kolk.engine.taking import CUT_BUCKETS_MAX, Taking, groups_of
from kolk.engine.transactions import Transactions
from kolk.errors import Busy
from kolk.model.ids import BucketId, TableId
from kolk.model.owner import OwnerRecord
from kolk.model.snapshot import Snapshot
from kolk.model.table import TableInfo
from kolk.model.transaction import CommitRecord, latest_of
from kolk.runtime.clock import Clock
from kolk.runtime.disk import Disk
from kolk.storage.meta import Meta
from kolk.storage.segment import Segment
from kolk.storage.snapshots import FolderSnapshots
from kolk.tablet.owning import dirt
from kolk.tablet.tablet import Tablet

TRIES = 10
_RENEWALS_PER_TTL = 10
_LEFT_OUT = ("lease/", "scan-nonce/", "snapshot-cut/", TRANSACTIONS, CSN_KEY, OWNERS, NUMBER_KEY)
"""Records that are not true in a copy: nobody holds a lease there, no scan was opened, and what was committed, and by
which owners, is noted later."""
_SHAPE = ("table/", "name/", "schema/", "partition/", "partition-event/")
"""Records that say which tables and partitions there are, in which versions."""


class Changed(Exception):
    """Tables or partitions came, went or were altered meanwhile: begin again."""


@dataclass(frozen=True, slots=True)
class LogCut:
    """The log of a bucket: its segments, and how the second names of their files begin."""

    bucket: BucketId
    prefix: str
    segments: Sequence[Segment]

    def path(self, segment: Segment) -> str:
        """Where the file of a segment is."""
        return self.prefix + segment.log_name


@dataclass(slots=True)
class BackupCut:
    """What is to be copied. Confined to one backup."""

    folder: Path
    """Where the second names of logs are."""
    records: Mapping[str, bytes] = field(default_factory=dict)
    tables: Sequence[TableInfo] = ()
    snapshots: dict[BucketId, Snapshot] = field(default_factory=dict)
    logs: list[LogCut] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    tails: dict[BucketId, LogCut] = field(default_factory=dict)
    """The logs that end where a snapshot does, of buckets with changes that may have to be taken back."""
    commits: dict[TableId, Sequence[CommitRecord]] = field(default_factory=dict)
    csn: int = 0
    owners: dict[TableId, Sequence[OwnerRecord]] = field(default_factory=dict)
    owner_number: int = 0

    @property
    def size_bytes(self) -> int:
        """How much there is to copy."""
        of_logs = sum(segment.size for log in (*self.logs, *self.tails.values()) for segment in log.segments)
        return of_logs + sum(snapshot.size_bytes for snapshot in self.snapshots.values())

    def records_there(self) -> dict[str, bytes]:
        """The records of the copy: with those of the snapshots that are of one moment, for there are no others."""
        cuts: dict[TableId, dict[BucketId, int]] = {}
        for bucket, snapshot in self.snapshots.items():
            cuts.setdefault(bucket.table, {})[bucket] = snapshot.id
        mixed = {info.id for info in self.tables if str(info.name) in self.mixed}
        of_cuts = {cut_key(table): encode_cut(cut) for table, cut in cuts.items() if table not in mixed}
        of_commits = {
            record_key(record): encode_record(record)
            for table, records in self.commits.items()
            for record in latest_of(records, table)
        }
        of_owners = {owner_key(record): encode_owner(record) for records in self.owners.values() for record in records}
        numbers = {CSN_KEY: self.csn, NUMBER_KEY: self.owner_number}
        kept = {key: value for key, value in self.records.items() if not key.startswith(_LEFT_OUT)}
        of_numbers = {key: str(number).encode() for key, number in numbers.items() if number}
        return kept | of_cuts | of_commits | of_owners | of_numbers


class BackupLease:
    """The lease under which a backup is made, renewed while that goes on. Confined to one backup."""

    def __init__(
        self, keeping: Keeping, clock: Clock, id: str, holder: int, principal: str, ttl_seconds: float
    ) -> None:
        self._keeping = keeping
        self._clock = clock
        self._id = id
        self._holder = holder
        self._principal = principal
        self._ttl_seconds = ttl_seconds
        self._generation = 0
        self._renewed = clock.monotonic()

    def keep(self, info: TableInfo, snapshots: Mapping[BucketId, Snapshot]) -> bool | None:
        """Keep these snapshots of a table, in place of others of it; whether they are of one moment, None if one is
        gone."""
        chosen = {bucket.name: snapshot.id for bucket, snapshot in snapshots.items()}
        state = self._keeping.acquire(
            self._id, self._holder, [(info, chosen)], self._ttl_seconds, self._principal, self._generation
        )
        self._generation, self._renewed = state.generation, self._clock.monotonic()
        return None if state.unavailable else state.tables[str(info.name)].is_consistent

    def renew(self, *, is_due: bool = False) -> None:
        """Renew it if that is due; LeaseLost if somebody has dropped it."""
        is_due = is_due or self._clock.monotonic() - self._renewed >= self._ttl_seconds / _RENEWALS_PER_TTL
        if self._generation and is_due:
            self._keeping.renew(self._id, self._generation, self._principal)
            self._renewed = self._clock.monotonic()

    def close(self) -> None:
        """Let everything go. Idempotent."""
        if self._generation:
            self._keeping.drop(self._id, self._generation)


class BackupCuts:
    """Finds what to copy. Thread-safe: it has no state, and what it touches has locks of its own."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        meta: Meta,
        catalog: Catalog,
        partitions: Partitions,
        tablets: Tablets,
        snapshots: Snapshots,
        taking: Taking,
        gate: Gate,
        transactions: Transactions,
        owners: Owners,
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._meta = meta
        self._catalog = catalog
        self._partitions = partitions
        self._tablets = tablets
        self._snapshots = snapshots
        self._taking = taking
        self._gate = gate
        self._transactions = transactions
        self._owners = owners
        self._numbers = count(1)

    def begun(self) -> BackupCut:
        """The records as they are now, and which tables there are; nothing else of them."""
        records = {record.key: record.value for record in self._meta.list("")}
        return BackupCut(self._folder / f"backup-{next(self._numbers)}", records, self._catalog.list())

    def cutting(self, cut: BackupCut, lease: BackupLease, held: ExitStack) -> Generator[int, None, None]:
        """Take and keep what is to be copied; second names of logs go with ``held``. Yields after each table. Changed
        if that is no longer what the records say."""
        held.callback(self._clear, cut.folder)
        self._disk.make_folder(str(cut.folder))
        for info in cut.tables:
            self._transactions.finish(info.id)
            if info.is_log:
                self._cut_logs(info, cut)
            else:
                yield from self._cut_rows(info, cut, lease)
            yield 0
        wanted = {bucket for info in cut.tables if not info.is_log for bucket in self._partitions.buckets(info)}
        if wanted != cut.snapshots.keys() or not self.is_still(cut):
            raise Changed
        for bucket, log in cut.tails.items():
            assert log.segments[-1].end == cut.snapshots[bucket].offset, "a log ends where its rows do"

    def is_still(self, cut: BackupCut) -> bool:
        """Whether tables and partitions are those that were cut."""
        return _shape({record.key: record.value for record in self._meta.list("")}) == _shape(cut.records)

    def sending(self, bucket: BucketId, snapshot: Snapshot, to: FolderSnapshots) -> Generator[int, None, None]:
        """See ``BucketSnapshots.sending``."""
        return self._snapshots.of(bucket).sending(snapshot, to)

    # --- inside

    def _cut_rows(self, info: TableInfo, cut: BackupCut, lease: BackupLease) -> Generator[int, None, None]:
        """Take snapshots of a table and lease them, until they are of one moment; of very many buckets, at last such
        that nothing was committed between their moments."""
        onlooker = Onlooker(partial(self._needs_copy, info, cut), partial(self._note, info, cut), is_exact=True)
        for attempt in count(1):
            is_last = attempt == TRIES
            in_groups = is_last and len(self._partitions.buckets(info)) > CUT_BUCKETS_MAX
            still = partial(self._still, info, cut) if in_groups else None
            taken = self._taking.take(info, onlooker=replace(onlooker, still=still))
            is_cut = lease.keep(info, taken) if taken else True
            if is_cut or (is_cut is not None and in_groups):
                cut.snapshots |= taken
                cut.mixed += [] if is_cut else [str(info.name)]
                return
            if is_last:
                raise Busy(
                    f"the {len(taken):,} buckets of {info.name} could not be taken at one moment in {TRIES} tries;"
                    " nothing was backed up, try again when less is written"
                )
            yield 0

    def _cut_logs(self, info: TableInfo, cut: BackupCut) -> None:
        """Give the logs of a log table second names, as they are at one moment; of very many, in groups, and once more,
        while nobody commits, if somebody has committed between two of them."""
        groups = groups_of(self._partitions.buckets(info))
        cut.mixed += [str(info.name)] if len(groups) > 1 else []
        noted: list[Sequence[CommitRecord]] = []
        logs: list[LogCut] = []
        for group in groups:
            with (
                self._tablets.use(info, group) as tablets,
                self._partitions.still_for(info),
                self._gate.exclusive(),
            ):
                logs += self._links(tablets, cut)
                self._note_commits(info, cut)
                noted.append(cut.commits[info.id])
        if any(each != noted[0] for each in noted):
            logs = []
            with self._still(info, cut):
                for group in groups:
                    with self._tablets.use(info, group) as tablets:
                        logs += self._links(tablets, cut)
        cut.logs += logs

    def _links(self, tablets: Sequence[Tablet], cut: BackupCut) -> list[LogCut]:
        """Second names of logs, as they are at one moment."""
        with ExitStack() as locks:
            for tablet in tablets:
                locks.enter_context(tablet.held())
            return [self._linked(tablet, cut.folder) for tablet in tablets]

    @contextmanager
    def _still(self, info: TableInfo, cut: BackupCut) -> Iterator[None]:
        """Within the block nothing is committed to a table, and what was so before is noted. Its buckets are written,
        one by one."""
        with self._owners.still(info.id), self._partitions.still_for(info), self._gate.exclusive():
            self._note_commits(info, cut)
            yield

    def _needs_copy(self, info: TableInfo, cut: BackupCut, state: BucketState) -> bool:
        """Whether a bucket has changes that may have to be taken back, and there are no second names of its log as it
        is now."""
        records = self._owners.of(info.id)
        views = self._owners.buckets.views(info, state.bucket) if records else {}
        tail = cut.tails.get(state.bucket)
        return any(dirt(views, records)) and (tail is None or tail.segments[-1] != state.segments[-1])

    def _note(self, info: TableInfo, cut: BackupCut, tablets: Sequence[Tablet]) -> None:
        """What stands beside the rows of a table, at their moment."""
        self._note_commits(info, cut)
        records = cut.owners[info.id]
        for tablet in tablets:
            cut.tails.pop(tablet.bucket, None)
            starts = [start for _, start in dirt(tablet.owners(), records)]
            if starts:
                cut.tails[tablet.bucket] = self._linked(tablet, cut.folder, min(starts))

    def _note_commits(self, info: TableInfo, cut: BackupCut) -> None:
        """What applications and owners have committed to a table, all of which its buckets have. The gate is passed
        alone."""
        self._transactions.check_finished(info.id)
        commits = self._transactions.commits
        cut.commits[info.id] = [record for record in commits.all() if info.id in record.handles]
        cut.csn = max(cut.csn, commits.csn)
        cut.owners[info.id] = self._owners.of(info.id)
        cut.owner_number = max(cut.owner_number, self._owners.number)

    def _linked(self, tablet: Tablet, folder: Path, start: int = 0) -> LogCut:
        """The log of a bucket, from the segment of an offset on."""
        if tablet.refusal is not None:
            raise copy(tablet.refusal)
        tablet.log.mark()  # nothing is half written
        *sealed, last = tablet.log.segments
        segments = (*(segment for segment in sealed if segment.end > start), last)
        bucket = tablet.bucket
        name = f"{bucket.table}-{bucket.partition}-{bucket.bucket}-{next(self._numbers)}-"
        log = LogCut(bucket, f"{folder}/{name}", segments)
        for segment in segments:
            self._disk.link(str(self._tablets.log_folder(bucket) / segment.log_name), log.path(segment))
        return log

    def _clear(self, folder: Path) -> None:
        with suppress(OSError):  # the next start removes it
            self._disk.remove_tree(str(folder))


def _shape(records: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key: value for key, value in records.items() if key.startswith(_SHAPE)}
