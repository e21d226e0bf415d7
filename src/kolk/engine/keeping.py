"""Snapshots and leases as their users see them: tables and buckets by name, numbers as infos.

It joins what takes snapshots, what keeps them and what promises to keep them. Whatever it hands out of these is pinned
before it is looked at: between choosing the newest snapshots and leasing them there is no moment at which they may go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import isfinite

from kolk.engine.leases import Leases
from kolk.engine.partitions import Partitions, gone
from kolk.engine.snapshots import Snapshots
from kolk.engine.taking import Taking
from kolk.errors import InvalidArgument, KolkError, PartitionDropped, SnapshotNotFound, TableNotFound
from kolk.model.durations import moment
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import Lease, LeaseCounts, LeaseInfo, Pinned, TablePins, Wanted, numbers_of
from kolk.model.lease_state import LeasedTable, LeaseState
from kolk.model.scan import ScanRequest, ScanSource
from kolk.model.snapshot import Snapshot, SnapshotCounts, SnapshotInfo
from kolk.model.table import TableInfo
from kolk.runtime.clock import Clock
from kolk.tablet.retention import Holder

_SECONDS_MAX = 1e15
"""More than that is not told apart from a number that is none."""


class Keeping:
    """Snapshots and leases of a database. Thread-safe: it has no state, and what it touches has locks of its own."""

    def __init__(
        self,
        partitions: Partitions,
        snapshots: Snapshots,
        taking: Taking,
        leases: Leases,
        clock: Clock,
        info_of: Callable[[TableId], TableInfo],
    ) -> None:
        self._partitions = partitions
        self._snapshots = snapshots
        self._taking = taking
        self._leases = leases
        self._clock = clock
        self._info_of = info_of

    # --- snapshots

    def take(self, info: TableInfo) -> list[SnapshotInfo]:
        """Copy what changed; the answer is the newest snapshot of every bucket."""
        taken = self._taking.take(info)
        return [self._described(info, bucket, taken[bucket]) for bucket in sorted(taken)]

    def snapshots(self, info: TableInfo) -> list[SnapshotInfo]:
        """The snapshots of a table, by bucket and number."""
        if info.is_log:
            raise InvalidArgument(f"{info.name} is a log table: its log is all there is, and it has no snapshots")
        found: list[SnapshotInfo] = []
        for bucket in self._partitions.buckets(info):
            with suppress(PartitionDropped):
                found += [self._described(info, bucket, snapshot) for snapshot in self._snapshots.of(bucket).all()]
        return found

    @contextmanager
    def pinned(self, info: TableInfo, request: ScanRequest, principal: str) -> Iterator[TablePins]:
        """The snapshots that a scan asks for; within the block they stay."""
        found = self._pinned(info, request, principal)
        try:
            yield found
        finally:
            self._snapshots.let_go(numbers_of(found.pins))

    # --- leases

    def acquire(
        self,
        id: str,
        holder: int,
        tables: Sequence[tuple[TableInfo, Mapping[str, int] | None]],
        ttl_seconds: float,
        principal: str,
        generation: int = 0,
    ) -> LeaseState:
        """Begin a lease on the newest snapshots of tables, or on some by bucket; or with its generation, let it keep
        more."""
        _check_tables([info for info, _ in tables])
        ttl_ms = _ms(ttl_seconds)
        known = self._leases.get(id)
        if known is not None and not generation and (known.principal, known.holder) == (principal, holder):
            # The answer was lost. What is newest now may be something else, and it is not what was leased.
            again = self._leases.join(id, holder, principal)
            return self._state(again, self._missing(again, tables))
        held: dict[BucketId, int] = {}
        try:
            wanted = {info.id: self._wanted(info, chosen, held, known) for info, chosen in tables}
            acquired = self._leases.acquire(
                id=id, holder=holder, principal=principal, ttl_ms=ttl_ms, wanted=wanted, generation=generation
            )
        finally:
            self._snapshots.let_go(held)
        return self._state(acquired.lease, acquired.unavailable)

    def join(self, id: str, holder: int, principal: str, ttl_seconds: float | None = None) -> LeaseState:
        """Go on in the name of a lease."""
        return self._state(self._leases.join(id, holder, principal, _ms_or_none(ttl_seconds)))

    def renew(self, id: str, generation: int, principal: str, ttl_seconds: float | None = None) -> LeaseState:
        """Let the time of a lease begin anew."""
        return self._state(self._leases.renew(id, generation, _ms_or_none(ttl_seconds), principal=principal))

    def release(
        self, id: str, generation: int, principal: str, buckets: Mapping[str, Sequence[str] | None]
    ) -> LeaseState | None:
        """Keep no longer what a lease keeps of some tables, or of some of their buckets; None if nothing is left."""
        lease = self._leases.get(id)
        if lease is None:
            return None
        named: list[BucketId] = []
        for table, pins in lease.tables.items():
            name = self._name(table)
            if name in buckets:
                names = buckets[name]
                named += [bucket for bucket in pins.pins if names is None or bucket.name in names]
        left = self._leases.release(id, generation, named, principal=principal)
        return None if left is None else self._state(left)

    def drop(self, id: str, generation: int | None = None, principal: str | None = None) -> bool:
        """End a lease, whoever's it is if nobody is named; whether there was one."""
        return self._leases.drop(id, generation, principal=principal)

    def lease(self, id: str, principal: str | None = None) -> LeaseState:
        """A lease, with all that it keeps; that of a principal, if one is named."""
        return self._state(self._leases.found(id, principal))

    def leases(self) -> list[LeaseInfo]:
        """The leases, the oldest first."""
        listed = [self._listed(lease) for lease in self._leases.all()]
        now = moment(self._clock.now_ms())
        return listed + [
            LeaseInfo(
                id=id,
                principal="",
                created=now,
                expires=now,
                ttl_seconds=0.0,
                pins=0,
                pinned_bytes=0,
                tables=(),
                is_readable=False,
            )
            for id in self._leases.unreadable()
        ]

    def lease_counts(self) -> LeaseCounts:
        """How many leases there are, and what they keep; a snapshot that several keep counts once."""
        kept = {
            (bucket, each)
            for lease in self._leases.all()
            for table in lease.tables.values()
            for bucket, each in table.pins.items()
        }
        return replace(self._leases.counts(), pinned_bytes=sum(self._size(bucket, each) for bucket, each in kept))

    def snapshot_counts(self) -> SnapshotCounts:
        """What became of snapshots so far."""
        return self._taking.counts()

    def is_leased(self, buckets: Sequence[BucketId]) -> bool:
        """Whether a lease keeps something of one of these."""
        return any(self._leases.holders(bucket) for bucket in buckets)

    def holders(self, bucket: BucketId) -> list[Holder]:
        """The snapshots and leases that hold a bucket's log: all of it, if there are leases that nobody can read."""
        if self._snapshots.is_frozen:
            return []
        return [*self._snapshots.holders(bucket), *self._leases.holders(bucket)]

    def leased(self, bucket: BucketId) -> dict[str, int]:
        """The leases that hold a bucket's log, by id, and from where."""
        return self._leases.offsets(bucket)

    def floor(self, bucket: BucketId) -> int:
        """The offset from which recovery may need a bucket's log: all of it, if nobody may remove anything."""
        return 0 if self._snapshots.is_frozen else self._snapshots.floor(bucket)

    # --- drops

    def drop_table(self, info: TableInfo) -> None:
        """Remove the snapshots of a dropped table, leased or not. First these: whoever is about to lease one does so
        before the leases are gone through, or finds none."""
        self._snapshots.drop(
            lambda bucket: bucket.table == info.id,
            (info.id,),
            TableNotFound(f"the table {str(info.name)!r} was dropped"),
        )
        self._leases.drop_table(info.id)
        self._taking.forget(info.id)

    def drop_partition(self, bucket: BucketId) -> None:
        """Remove the snapshots of a dropped partition, of which this is a bucket, leased or not."""
        self._snapshots.drop(
            lambda other: (other.table, other.partition) == (bucket.table, bucket.partition),
            (bucket.table, bucket.partition),
            gone(bucket),
        )
        self._leases.drop_partition(bucket.table, bucket.partition)

    def forget_dropped(self) -> None:
        """Let leases keep nothing of partitions whose drop a crash has cut short."""
        buckets = {bucket for lease in self._leases.all() for table in lease.tables.values() for bucket in table.pins}
        for bucket in buckets:
            if not self._partitions.is_alive(bucket):
                self._leases.drop_partition(bucket.table, bucket.partition)

    # --- inside

    def _pinned(self, info: TableInfo, request: ScanRequest, principal: str) -> TablePins:
        if request.pins is not None:
            return self._pinned_again(info, request.pins, request.position)
        if request.source is not ScanSource.LEASE:
            return self._taking.latest(info)
        lease = self._leases.found(request.lease, principal, request.generation)
        leased = lease.tables.get(info.id)
        if leased is None:
            raise SnapshotNotFound(f"the lease {lease.id!r} keeps nothing of {info.name}")
        # Of a partition that is being dropped there may be nothing to pin any more, and it is not asked for.
        kept = {bucket: each.snapshot for bucket, each in leased.pins.items() if self._partitions.is_alive(bucket)}
        return self._all(info, leased, kept)

    def _pinned_again(self, info: TableInfo, pins: Sequence[tuple[str, int]], position: int | None) -> TablePins:
        """The snapshots of a scan that goes on. Those of partitions that went meanwhile are in the answer too: whoever
        comes to them is told."""
        if position is None and info.is_partitioned:
            position = self._partitions.of(info).position
        at = {} if position is None else {each.name: each for each in self._partitions.buckets_at(info, position)}
        wanted = {at[name] if name in at else self._partitions.bucket(info, name): id for name, id in pins}
        gone = {bucket: Pinned(id, 0) for bucket, id in wanted.items() if not self._partitions.is_alive(bucket)}
        alive = {bucket: id for bucket, id in wanted.items() if bucket not in gone}
        found = self._all(info, TablePins(pins={}, position=position), alive)
        return replace(found, pins={**found.pins, **gone})

    def _all(self, info: TableInfo, found: TablePins, wanted: Mapping[BucketId, int]) -> TablePins:
        """Pin snapshots, all of them."""
        pinned = self._snapshots.pin(wanted)
        missing = next((bucket for bucket in wanted if bucket not in pinned), None)
        if missing is not None:
            self._snapshots.let_go(numbers_of(pinned))
            raise SnapshotNotFound(
                f"snapshot {wanted[missing]} of bucket {missing.name} of {info.name} is gone: nobody kept it; scan the"
                " newest one, and lease what has to stay"
            )
        is_consistent = found.is_consistent or self._taking.is_cut(info.id, wanted)
        return TablePins(pins=pinned, position=found.position, is_consistent=is_consistent)

    def _wanted(
        self, info: TableInfo, chosen: Mapping[str, int] | None, held: dict[BucketId, int], known: Lease | None
    ) -> Wanted:
        """What to lease of a table, which is pinned already as far as it exists, and so noted down. It is of one moment
        together with all that the lease then keeps of the table."""
        if chosen is None:
            found = self._taking.latest(info)
            ids = numbers_of(found.pins)
            held.update(ids)
            if not ids:
                raise InvalidArgument(f"{info.name} has no partitions yet, so there is nothing to lease; put some rows")
            return Wanted(snapshots=ids, position=found.position, is_consistent=found.is_consistent)
        ids = self._named(info, chosen)
        position = self._partitions.of(info).position if info.is_partitioned else None
        pinned = numbers_of(self._snapshots.pin(ids))
        held.update(pinned)
        leased = None if known is None else known.tables.get(info.id)
        before = {} if leased is None else numbers_of(leased.pins)
        return Wanted(
            snapshots=ids, position=position, is_consistent=self._taking.is_cut(info.id, {**before, **pinned})
        )

    def _missing(
        self, lease: Lease, tables: Sequence[tuple[TableInfo, Mapping[str, int] | None]]
    ) -> dict[BucketId, int]:
        """Those of the snapshots that were asked for by number which a lease does not keep."""
        wanted = {info.id: Wanted(snapshots=self._named(info, chosen)) for info, chosen in tables if chosen is not None}
        return lease.missing(wanted)

    def _named(self, info: TableInfo, chosen: Mapping[str, int]) -> dict[BucketId, int]:
        return {self._partitions.bucket(info, name): id for name, id in chosen.items()}

    def _state(self, lease: Lease, unavailable: Mapping[BucketId, int] | None = None) -> LeaseState:
        missing: dict[str, dict[str, int]] = {}
        for bucket, id in (unavailable or {}).items():
            missing.setdefault(self._name(bucket.table), {})[bucket.name] = id
        return LeaseState(
            id=lease.id,
            generation=lease.generation,
            principal=lease.principal,
            created=moment(lease.created_ms),
            expires=moment(self._clock.now_ms() + lease.left_ms),
            ttl_seconds=lease.ttl_ms / 1_000,
            tables={self._name(table): _leased(table, each) for table, each in lease.tables.items()},
            unavailable=missing,
        )

    def _listed(self, lease: Lease) -> LeaseInfo:
        return LeaseInfo(
            id=lease.id,
            principal=lease.principal,
            created=moment(lease.created_ms),
            expires=moment(self._clock.now_ms() + lease.left_ms),
            ttl_seconds=lease.ttl_ms / 1_000,
            pins=lease.pin_count,
            pinned_bytes=sum(
                self._size(bucket, each) for table in lease.tables.values() for bucket, each in table.pins.items()
            ),
            tables=tuple(sorted(self._name(table) for table in lease.tables)),
        )

    def _size(self, bucket: BucketId, pinned: Pinned) -> int:
        try:
            return self._snapshots.of(bucket).find(pinned.snapshot).size_bytes
        except (KolkError, OSError):
            return 0

    def _described(self, info: TableInfo, bucket: BucketId, snapshot: Snapshot) -> SnapshotInfo:
        return SnapshotInfo(
            table=str(info.name),
            bucket=bucket.name,
            id=snapshot.id,
            offset=snapshot.offset,
            rows=snapshot.rows,
            schema_id=snapshot.schema_id,
            taken=moment(snapshot.taken_ms),
            size_bytes=snapshot.size_bytes,
            new_bytes=snapshot.new_bytes,
            leases=self._snapshots.of(bucket).pins(snapshot.id),
        )

    def _name(self, table: TableId) -> str:
        try:
            return str(self._info_of(table).name)
        except TableNotFound:
            return f"(dropped table {table})"


def _leased(table: TableId, pins: TablePins) -> LeasedTable:
    return LeasedTable(
        table=table,
        snapshots={bucket.name: each.snapshot for bucket, each in pins.pins.items()},
        offsets={bucket.name: each.offset for bucket, each in pins.pins.items()},
        position=pins.position,
        is_consistent=pins.is_consistent,
    )


def _check_tables(tables: Sequence[TableInfo]) -> None:
    """Refuse what cannot be leased."""
    for info in tables:
        if info.is_log:
            raise InvalidArgument(f"{info.name} is a log table: its log is kept by a follower, not by a lease")
    if len({info.id for info in tables}) < len(tables):
        raise InvalidArgument("a table is named twice; name it once, with all that is to be leased of it")


def _ms(seconds: float) -> int:
    if not isfinite(seconds) or abs(seconds) > _SECONDS_MAX:
        raise InvalidArgument(f"a lease lives for a number of seconds after it was last renewed, not {seconds:g}")
    return round(seconds * 1_000)


def _ms_or_none(seconds: float | None) -> int | None:
    return None if seconds is None else _ms(seconds)
