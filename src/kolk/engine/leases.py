"""The leases of a database: who may keep snapshots from being deleted, how many, and for how long.

A lease belongs to whoever acquired it, known by principal and holder, until somebody of the same principal joins it and
goes on in its name. A generation is never used twice under one id, also not by a lease that is made anew: whoever was
fenced, or comes late, changes nothing. Nobody is told of the leases of another principal but that an id is taken.

Every call that changes a lease pins first, then persists, then shows, and lets go last (``kolk.engine.lease_book``). A
lease that is gone is an error for whoever goes on with it, and never made anew in silence; for whoever wants to be rid
of it, it is none.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from kolk.config import EngineConfig
from kolk.engine.lease_book import Held, LeaseBook, Pins, lease_lost
from kolk.errors import (
    Corrupted,
    InvalidArgument,
    KolkError,
    LeaseExists,
    SnapshotNotFound,
    TooLarge,
    TooManyLeases,
)
from kolk.model.durations import duration_text
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import (
    HOLDER_MAX,
    Lease,
    LeaseCounts,
    LeaseEnd,
    Wanted,
    check_lease_id,
    check_wanted,
    wish_digest,
)
from kolk.runtime.clock import Clock
from kolk.storage.meta import Meta, MetaChange
from kolk.tablet.retention import Holder, HolderKind


@dataclass(frozen=True, slots=True)
class Acquired:
    """A lease, and what was asked for that it does not keep, because it does not exist."""

    lease: Lease
    unavailable: dict[BucketId, int]


class Leases:
    """The leases of a database. Thread-safe: one lock, taken before those of pins and of meta. What is let go is
    reclaimed after it is released."""

    def __init__(self, meta: Meta, clock: Clock, pins: Pins, config: EngineConfig, tables: set[TableId]) -> None:
        # Constant after construction.
        self._clock = clock
        self._pins = pins
        self._config = config
        self._lock = threading.RLock()  # a signal handler may close the database in the middle of anything
        # Guarded by _lock.
        self._book = LeaseBook(meta, clock, pins)
        self._unavailable = self._renew_failures = 0
        with self._changing() as after:
            self._book.load(tables, after)

    def acquire(
        self,
        *,
        id: str,
        holder: int,
        principal: str,
        ttl_ms: int,
        wanted: Mapping[TableId, Wanted],
        generation: int = 0,
    ) -> Acquired:
        """Begin a lease, or with its generation, let it keep more; its time begins anew.

        What does not exist comes back, and the rest is kept; a lease that would keep nothing is not begun. A first call
        that is made again is answered alike. Steps: pin, persist, show. A crash after the first leaves nothing, after
        the second a lease that nobody knows of, until it is asked for again or expires.
        """
        check_lease_id(id)
        _check_holder(holder)
        self._check_ttl(ttl_ms)
        check_wanted(wanted)
        digest = wish_digest(wanted)
        with self._changing() as after:
            if id in self._book.unreadable:
                raise LeaseExists(f"the lease {id!r} cannot be read, and keeps its id until it is dropped; use another")
            held = self._book.live(id, after)
            if held is None:
                if generation:
                    raise self._book.lost(id, principal)
                return self._begin(id, holder, principal, ttl_ms, digest, wanted, after)
            lease = held.lease
            if (lease.principal, lease.holder) == (principal, holder):
                if generation == lease.generation:
                    return self._pin(replace(lease, ttl_ms=ttl_ms), held.digest, wanted, after)
                if not generation and digest == held.digest:
                    return Acquired(self._restart(held, lease, after), lease.missing(wanted))
            raise LeaseExists(
                f"there is a lease {id!r}, which somebody else holds; use another id, or join it to go on in its name"
            )

    def join(self, id: str, holder: int, principal: str, ttl_ms: int | None = None) -> Lease:
        """Go on in the name of a lease: whoever held it before is fenced. A call that is made again is answered alike.

        The time begins anew, with another length if one is given. LeaseLost if it is gone.
        """
        _check_holder(holder)
        with self._changing() as after:
            held = self._found(id, principal, after)
            lease = self._lasting(held.lease, ttl_ms)
            counted: list[MetaChange] = []
            if lease.holder != holder:
                lease = replace(lease, holder=holder, generation=lease.generation + 1)
                counted = self._book.used(lease.generation)
            return self._restart(held, lease, after, *counted)

    def renew(self, id: str, generation: int, ttl_ms: int | None = None, *, principal: str | None = None) -> Lease:
        """Let the time of a lease begin anew, with another length if one is given; LeaseLost if it is gone."""
        with self._changing() as after:
            try:
                held = self._known(id, principal, generation, after)
                return self._restart(held, self._lasting(held.lease, ttl_ms), after)
            except KolkError:
                self._renew_failures += 1
                raise

    def release(
        self, id: str, generation: int, buckets: Iterable[BucketId], *, principal: str | None = None
    ) -> Lease | None:
        """Keep the snapshots of these buckets no longer; a lease that keeps nothing is gone. The lease as it is then.

        Idempotent: what is unknown, or comes from somebody who has lost the lease, changes nothing. The time that is
        left stays what it was.
        """
        with self._changing() as after:
            held = self._book.live(id, after)
            if held is None or held.lease.generation != generation or not _is_of(held, principal):
                return None
            self._book.lessen({id: held.lease.released(buckets)}, after)
            left = self._book.held.get(id)
            return None if left is None else self._book.shown(left)

    def drop(self, id: str, generation: int | None = None, *, principal: str | None = None) -> bool:
        """End a lease, whoever's it is if nothing more is named, and readable or not; whether there was one."""
        with self._changing() as after:
            if id in self._book.unreadable:
                is_forced = generation is None and principal is None
                if is_forced:
                    self._book.clear(id, after)
                return is_forced
            held = self._book.live(id, after)
            if held is None or generation not in (None, held.lease.generation) or not _is_of(held, principal):
                return False
            self._book.commit({id: None}, after)
            return True

    def drop_table(self, table: TableId) -> None:
        """Forget what is kept of a dropped table."""
        with self._changing() as after:
            leases = self._book.held
            self._book.lessen({id: held.lease.without_table(table) for id, held in leases.items()}, after)

    def drop_partition(self, table: TableId, partition: int) -> None:
        """Forget what is kept of a dropped partition."""
        with self._changing() as after:
            leases = self._book.held
            less = {id: held.lease.without_partition(table, partition) for id, held in leases.items()}
            self._book.lessen(less, after)

    def found(self, id: str, principal: str | None = None, generation: int = 0) -> Lease:
        """The lease of this id, in this generation if one is named; LeaseLost, and why, if there is none."""
        with self._changing() as after:
            held = self._known(id, principal, generation, after) if generation else self._found(id, principal, after)
            return self._book.shown(held)

    def get(self, id: str) -> Lease | None:
        """The lease of this id, if there is one that can be read."""
        with self._lock:
            held = self._book.held.get(id)
            return None if held is None or self._book.is_over(held) else self._book.shown(held)

    def all(self) -> list[Lease]:
        """Those that can be read, the oldest first."""
        with self._lock:
            leases = [self._book.shown(held) for held in self._live()]
        return sorted(leases, key=lambda lease: (lease.created_ms, lease.id))

    def unreadable(self) -> dict[str, str]:
        """Those that cannot, and why."""
        with self._lock:
            return dict(self._book.unreadable)

    def holders(self, bucket: BucketId) -> list[Holder]:
        """The leases that hold a bucket's log: whoever reads a snapshot goes on from its offset."""
        with self._lock:
            now_ms = self._clock.now_ms()
            return [
                Holder(
                    kind=HolderKind.LEASE,
                    owner=f"lease {held.lease.id}",
                    offset=pinned.offset,
                    expires_ms=now_ms + self._book.shown(held).left_ms,
                )
                for held in self._live()
                if (pinned := held.lease.pin(bucket)) is not None
            ]

    def offsets(self, bucket: BucketId) -> dict[str, int]:
        """The same leases by id, and from where each holds it."""
        with self._lock:
            found = {held.lease.id: held.lease.pin(bucket) for held in self._live()}
            return {id: pinned.offset for id, pinned in found.items() if pinned is not None}

    def counts(self) -> LeaseCounts:
        """How many there are, and what became of others."""
        with self._lock:
            leases = [held.lease for held in self._live()]
            now_ms = self._clock.now_ms()
            return LeaseCounts(
                leases=len(leases),
                unreadable=len(self._book.unreadable),
                pins=sum(lease.pin_count for lease in leases),
                expired=self._book.ends[LeaseEnd.EXPIRED],
                unavailable=self._unavailable,
                renew_failures=self._renew_failures,
                oldest_age_seconds=max([0, *(now_ms - lease.created_ms for lease in leases)]) / 1_000,
            )

    def reap(self) -> None:
        """End what is due, and note how much time the others have left."""
        with self._changing() as after:
            self._reap(after)
            self._book.note_due(after)

    def close(self) -> None:
        """Note how much time all have left. Idempotent."""
        with self._changing() as after:
            self._book.note(self._live(), after)

    # --- inside: all under the lock

    @contextmanager
    def _changing(self) -> Iterator[ExitStack]:
        """Under the lock; what is put on the stack is done after it is released, whatever happened."""
        with ExitStack() as after, self._lock:
            yield after

    def _begin(
        self,
        id: str,
        holder: int,
        principal: str,
        ttl_ms: int,
        digest: bytes,
        wanted: Mapping[TableId, Wanted],
        after: ExitStack,
    ) -> Acquired:
        if id in self._book.held:  # it expired, and could not be removed: its records are in the way
            self._book.expire(id, after)
        self._check_room(after)
        generation, counted = self._book.generation()
        lease = Lease(
            id=id,
            generation=generation,
            holder=holder,
            principal=principal,
            created_ms=self._clock.now_ms(),
            ttl_ms=ttl_ms,
            tables={},
        )
        return self._pin(lease, digest, wanted, after, *counted)

    def _pin(
        self, lease: Lease, digest: bytes, wanted: Mapping[TableId, Wanted], after: ExitStack, *counted: MetaChange
    ) -> Acquired:
        """Let a lease keep what of this exists; whatever fails, pins that it does not keep then are given back."""
        missing = lease.missing(wanted)
        self._check_size(lease, missing)
        pinned = self._pins.pin(missing) if missing else {}
        try:
            unavailable = {bucket: snapshot for bucket, snapshot in missing.items() if bucket not in pinned}
            self._unavailable += len(unavailable)
            acquired = lease.acquired(wanted, pinned)
            if not acquired.tables:
                bucket, snapshot = next(iter(unavailable.items()))
                raise SnapshotNotFound(
                    f"none of these snapshots exists, such as {snapshot} of bucket {bucket.name} of table"
                    f" {bucket.table}; ask for the latest ones anew"
                )
            held = self._book.begun(acquired, digest)
            self._book.commit({lease.id: held}, after, *counted)
            return Acquired(self._book.shown(held), unavailable)
        finally:
            now = self._book.held.get(lease.id)
            stray = {
                bucket: each.snapshot for bucket, each in pinned.items() if now is None or now.lease.pin(bucket) != each
            }
            if stray:
                after.callback(self._pins.let_go, stray)

    def _restart(self, held: Held, lease: Lease, after: ExitStack, *counted: MetaChange) -> Lease:
        """Let the time of a lease begin anew."""
        begun = self._book.begun(lease, held.digest)
        self._book.commit({lease.id: begun}, after, *counted)
        return self._book.shown(begun)

    def _lasting(self, lease: Lease, ttl_ms: int | None) -> Lease:
        """A lease that lives for so long, if that is said."""
        if ttl_ms is None:
            return lease
        self._check_ttl(ttl_ms)
        return replace(lease, ttl_ms=ttl_ms)

    def _found(self, id: str, principal: str | None, after: ExitStack) -> Held:
        """The lease of this id, to go on with."""
        if id in self._book.unreadable:
            raise Corrupted(
                f"the lease {str(id)!r} cannot be read; everything is kept until an operator drops it: take a new one"
            )
        held = self._book.live(id, after)
        if held is None:
            raise self._book.lost(id, principal)
        if not _is_of(held, principal):  # and nobody is told that it is there
            raise lease_lost(id, LeaseEnd.UNKNOWN)
        return held

    def _known(self, id: str, principal: str | None, generation: int, after: ExitStack) -> Held:
        """The same, for who has it in this generation."""
        held = self._found(id, principal, after)
        if held.lease.generation != generation:
            raise lease_lost(id, LeaseEnd.TAKEN)
        return held

    def _live(self) -> list[Held]:
        return [held for held in self._book.held.values() if not self._book.is_over(held)]

    def _reap(self, after: ExitStack) -> None:
        for id in list(self._book.held):
            self._book.live(id, after)

    def _check_room(self, after: ExitStack) -> None:
        if self._taken >= self._config.leases_max:
            self._reap(after)
        if self._taken >= self._config.leases_max:
            raise TooManyLeases(
                f"there are {self._taken:,} leases, as many as may be; drop some, wait until some expire, or raise"
                " leases_max"
            )

    @property
    def _taken(self) -> int:
        return len(self._book.held) + len(self._book.unreadable)

    def _check_size(self, lease: Lease, missing: Mapping[BucketId, int]) -> None:
        most = self._config.lease_pins_max
        size = lease.pin_count + sum(lease.pin(bucket) is None for bucket in missing)
        if size > most:
            raise TooLarge(
                f"the lease {lease.id!r} would keep {size:,} snapshots, and {most:,} is the most; take several leases,"
                " or raise lease_pins_max"
            )

    def _check_ttl(self, ttl_ms: int) -> None:
        least, most = self._config.lease_ttl_seconds_min, self._config.lease_ttl_seconds_max
        is_number = isinstance(ttl_ms, int) and not isinstance(ttl_ms, bool)
        if not is_number or not least * 1_000 <= ttl_ms <= most * 1_000:
            asked = duration_text(ttl_ms) if is_number and ttl_ms >= 0 else str(ttl_ms)
            span = f"{duration_text(round(least * 1_000))} to {duration_text(round(most * 1_000))}"
            raise InvalidArgument(
                f"a lease lives for {span} after it was last renewed, not {asked[:50]}; renew it to keep it for longer"
            )


def _is_of(held: Held, principal: str | None) -> bool:
    """Whether a lease belongs to a principal; to None they all do."""
    return principal is None or held.lease.principal == principal


def _check_holder(holder: int) -> None:
    if not isinstance(holder, int) or isinstance(holder, bool) or not 0 <= holder <= HOLDER_MAX:
        raise InvalidArgument("a holder is a random number of 128 bits")
