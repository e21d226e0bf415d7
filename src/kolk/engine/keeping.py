"""Snapshots and leases as their users see them: tables and buckets by name, numbers as infos.

It joins what takes snapshots, what keeps them and what promises to keep them. Whatever it hands out of these is pinned
before it is looked at: between choosing the newest snapshots and leasing them there is no moment at which they may go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from kolk.engine.leases import Leases
from kolk.engine.partitions import Partitions, gone
from kolk.engine.snapshots import Snapshots
from kolk.engine.taking import Taking
from kolk.errors import InvalidArgument, KolkError, LeaseLost, SnapshotNotFound, TableNotFound
from kolk.model.durations import moment
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import Lease, LeaseCounts, LeaseInfo, Pinned, TablePins, Wanted
from kolk.model.lease_state import LeasedTable, LeaseState
from kolk.model.scan import ScanRequest, ScanSource
from kolk.model.snapshot import Snapshot, SnapshotCounts, SnapshotInfo
from kolk.model.table import TableInfo
from kolk.runtime.clock import Clock
from kolk.tablet.retention import Holder


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
        return [
            self._described(info, bucket, snapshot)
            for bucket in self._partitions.buckets(info)
            for snapshot in self._snapshots.of(bucket).all()
        ]

    @contextmanager
    def pinned(self, info: TableInfo, request: ScanRequest, principal: str) -> Iterator[TablePins]:
        """The snapshots that a scan asks for; within the block they stay."""
        found = self._pinned(info, request, principal)
        try:
            yield found
        finally:
            self._snapshots.let_go({bucket: each.snapshot for bucket, each in found.pins.items()})

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
        for info, _ in tables:
            if info.is_log:
                raise InvalidArgument(f"{info.name} is a log table: its log is kept by a follower, not by a lease")
        known = self._leases.get(id)
        if known is not None and not generation and (known.principal, known.holder) == (principal, holder):
            # The answer was lost. What is newest now may be something else, and it is not what was leased.
            return self._state(self._leases.join(id, holder, principal))
        held: dict[BucketId, int] = {}
        try:
            wanted = {info.id: self._wanted(info, chosen, held) for info, chosen in tables}
            acquired = self._leases.acquire(
                id=id,
                holder=holder,
                principal=principal,
                ttl_ms=round(ttl_seconds * 1_000),
                wanted=wanted,
                generation=generation,
            )
        finally:
            self._snapshots.let_go(held)
        return self._state(acquired.lease, acquired.unavailable)

    def join(self, id: str, holder: int, principal: str, ttl_seconds: float | None = None) -> LeaseState:
        """Go on in the name of a lease."""
        return self._state(self._leases.join(id, holder, principal, _ms(ttl_seconds)))

    def renew(self, id: str, generation: int, principal: str, ttl_seconds: float | None = None) -> LeaseState:
        """Let the time of a lease begin anew."""
        return self._state(self._leases.renew(id, generation, _ms(ttl_seconds), principal=principal))

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

    def lease(self, id: str) -> LeaseState:
        """A lease, with all that it keeps."""
        return self._state(self._found(id))

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

    # --- drops

    def drop_table(self, info: TableInfo) -> None:
        """Remove the snapshots of a dropped table, leased or not. First they go, so that nobody leases them anew."""
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
        """Let leases go of partitions that were dropped just before a crash."""
        dropped = {
            (bucket.table, bucket.partition)
            for lease in self._leases.all()
            for pins in lease.tables.values()
            for bucket in pins.pins
            if not self._partitions.is_alive(bucket)
        }
        for table, partition in sorted(dropped):
            self._leases.drop_partition(table, partition)

    # --- inside

    def _pinned(self, info: TableInfo, request: ScanRequest, principal: str) -> TablePins:
        if request.pins is not None:
            wanted = {self._partitions.bucket(info, name): id for name, id in request.pins}
            position = self._partitions.of(info).position if info.is_partitioned else None
            return self._all(info, TablePins(pins={}, position=position), wanted)
        if request.source is not ScanSource.LEASE:
            return self._taking.latest(info)
        lease = self._found(request.lease)
        leased = lease.tables.get(info.id)
        if lease.principal != principal:
            raise LeaseLost(f"there is no lease {request.lease[:128]!r}")
        if leased is None:
            raise SnapshotNotFound(f"the lease {lease.id!r} keeps nothing of {info.name}")
        return self._all(info, leased, {bucket: each.snapshot for bucket, each in leased.pins.items()})

    def _all(self, info: TableInfo, found: TablePins, wanted: Mapping[BucketId, int]) -> TablePins:
        """Pin snapshots, all of them."""
        pinned = self._snapshots.pin(wanted)
        missing = next((bucket for bucket in wanted if bucket not in pinned), None)
        if missing is not None:
            self._snapshots.let_go({bucket: each.snapshot for bucket, each in pinned.items()})
            raise SnapshotNotFound(
                f"snapshot {wanted[missing]} of bucket {missing.name} of {info.name} is gone: nobody kept it; scan the"
                " newest one, and lease what has to stay"
            )
        is_consistent = found.is_consistent or self._taking.is_cut(info.id, wanted)
        return TablePins(pins=pinned, position=found.position, is_consistent=is_consistent)

    def _wanted(self, info: TableInfo, chosen: Mapping[str, int] | None, held: dict[BucketId, int]) -> Wanted:
        """What to lease of a table. The newest ones are pinned already, and so noted down."""
        if chosen is None:
            found = self._taking.latest(info)
            ids = {bucket: each.snapshot for bucket, each in found.pins.items()}
            held.update(ids)
            return Wanted(snapshots=ids, position=found.position, is_consistent=found.is_consistent)
        ids = {self._partitions.bucket(info, name): id for name, id in chosen.items()}
        position = self._partitions.of(info).position if info.is_partitioned else None
        return Wanted(snapshots=ids, position=position, is_consistent=self._taking.is_cut(info.id, ids))

    def _found(self, id: str) -> Lease:
        lease = self._leases.get(id)
        if lease is None:
            raise LeaseLost(f"there is no lease {str(id)[:128]!r}: it expired, was dropped, or never was")
        return lease

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


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)
