"""The state of leases, in memory and in meta, which are kept the same.

What a lease keeps was *pinned* before it gets here (``Pins`` counts, atomically with whoever deletes); it is
persisted, then shown. What it keeps no more is persisted first, and let go after. So a crash, or a write that fails,
never leaves a lease whose snapshots may go. If nobody can say whether a write was made, the lease counts as unreadable.

An unreadable lease is a reason to delete nothing at all (``Pins.freeze``) until an operator drops it: it keeps its id,
and what it kept, nobody knows.

Time is counted on the monotonic clock, in whole microseconds, and the time that is left is persisted: neither a wall
clock that jumps nor the time that a database was closed for ends a lease. After a start every lease has a third of its
time at least, which is when its holder renews it.

Who may do what with a lease is not decided here but in ``kolk.engine.leases``.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from kolk.engine.lease_records import StoredLease, lease_changes, lease_removal, load_leases
from kolk.errors import KolkError, LeaseLost
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import Lease, LeaseEnd, Pinned, lost_pins
from kolk.runtime.clock import Clock
from kolk.storage.meta import ABSENT, Meta, MetaChange

_NEXT = "next-lease-generation"
_ENDED_MAX = 10_000
_ANEW = "take a new one, and read from its start"
_LOST = {
    LeaseEnd.EXPIRED: f"the lease {{id!r}} was not renewed in time, so what it kept was let go; {_ANEW}",
    LeaseEnd.DROPPED: f"the lease {{id!r}} was dropped, or the last of what it kept was released; {_ANEW}",
    LeaseEnd.TAKEN: f"somebody else goes on in the name of the lease {{id!r}}; stop one of the two, or {_ANEW}",
    LeaseEnd.UNKNOWN: f"there is no lease {{id!r}}: there never was, or it is long gone; {_ANEW}",
}
_log = logging.getLogger(__name__)


class Pins(Protocol):
    """Who keeps snapshots, and how many leases keep each. Thread-safe; its lock is taken after that of ``Leases``."""

    def pin(self, wanted: Mapping[BucketId, int]) -> dict[BucketId, Pinned]:
        """Count a pin on each of these snapshots that exists; the others are not in the answer.

        Atomic with retention. A table or partition that is dropped has no snapshots any more before ``Leases`` is told.
        """
        ...

    def hold(self, pins: Mapping[BucketId, int]) -> None:
        """Count a pin on each, whether it exists or not."""
        ...

    def let_go(self, pins: Mapping[BucketId, int]) -> None:
        """Take back one count of each, and reclaim what nobody keeps; what is unknown is ignored."""
        ...

    def freeze(self) -> None:
        """Delete nothing at all until ``thaw`` was called as often."""
        ...

    def thaw(self) -> None:
        """Take back one ``freeze``."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """A lease, when it ends, and when that was last written down, both on the monotonic clock. ``digest`` is of what
    was first asked for."""

    lease: Lease
    digest: bytes
    deadline_us: int
    noted_us: int


class LeaseBook:
    """The leases that there are, and why others are gone. Guarded by ``Leases._lock``.

    What is let go is put on the stack that a call brings along, to be done after that lock is released.
    """

    def __init__(self, meta: Meta, clock: Clock, pins: Pins) -> None:
        self._meta = meta
        self._clock = clock
        self._pins = pins
        self.held: dict[str, Held] = {}
        self.unreadable: dict[str, str] = {}
        self.ends: Counter[LeaseEnd] = Counter()
        # Why leases ended, and whose they were, if anybody knows.
        self._ended: OrderedDict[str, tuple[LeaseEnd, str | None]] = OrderedDict()

    def load(self, tables: set[TableId], after: ExitStack) -> None:
        """Count what is leased, before anything can be deleted. Slots of other tables are what a crash left of a
        dropped one, and go."""
        found, unreadable = load_leases(self._meta)
        for id, why in unreadable.items():
            self._freeze(id, why)
        now_us = self._now_us()
        less: dict[str, Lease] = {}
        for stored in found:
            lease = stored.lease
            left_ms = max(lease.left_ms, -(-lease.ttl_ms // 3))
            self.held[lease.id] = Held(lease, stored.digest, now_us + left_ms * 1_000, now_us)
            self._pins.hold(lost_pins(lease, None))
            for table in stored.lease.tables.keys() - tables:
                lease = lease.without_table(table)
            less[lease.id] = lease
        self.lessen(less, after)

    # --- who is there

    def live(self, id: str, after: ExitStack) -> Held | None:
        """The lease of this id. One whose time is up ends now; if that cannot be written, it is gone all the same, and
        keeps its snapshots until it can."""
        held = self.held.get(id)
        if held is None or not self.is_over(held):
            return held
        try:
            self.expire(id, after)
        except KolkError as error:
            _log.warning("the lease %s expired, and could not be removed: %s; it is tried again", id, error)
        return None

    def is_over(self, held: Held) -> bool:
        """Whether its time is up."""
        return held.deadline_us <= self._now_us()

    def shown(self, held: Held) -> Lease:
        """A lease with the time that it has left now."""
        return replace(held.lease, left_ms=max(-((self._now_us() - held.deadline_us) // 1_000), 0))

    def lost(self, id: str, principal: str | None = None) -> LeaseLost:
        """What whoever asks for a lease that is not there is told. Why it ended is for its owner alone, or for who is
        not asked for his name."""
        reason, owner = self._ended.get(id, (LeaseEnd.UNKNOWN, None))
        return lease_lost(id, reason if principal is None or owner in (None, principal) else LeaseEnd.UNKNOWN)

    # --- what becomes of them

    def begun(self, lease: Lease, digest: bytes) -> Held:
        """With all its time before it."""
        now_us = self._now_us()
        return Held(replace(lease, left_ms=lease.ttl_ms), digest, now_us + lease.ttl_ms * 1_000, now_us)

    def generation(self) -> tuple[int, list[MetaChange]]:
        """One that was never used, and what notes that it is now."""
        generation = self._next()
        return generation, self.used(generation)

    def used(self, generation: int) -> list[MetaChange]:
        """What notes that a generation is used, if that is news."""
        is_news = generation >= self._next()
        return [self._meta.replacement(_NEXT, str(generation + 1).encode())] if is_news else []

    def expire(self, id: str, after: ExitStack) -> None:
        """End a lease whose time is up."""
        self._remember(id, LeaseEnd.EXPIRED, self.held[id])
        self.commit({id: None}, after, reason=LeaseEnd.EXPIRED)

    def lessen(self, less: Mapping[str, Lease], after: ExitStack) -> None:
        """Let leases keep less; those of which nothing is left go, and those that stay as they are are left alone."""
        changed = {
            id: self._noted(replace(self.held[id], lease=lease)) if lease.tables else None
            for id, lease in less.items()
            if lease is not self.held[id].lease or not lease.tables
        }
        if changed:
            self.commit(changed, after)

    def note(self, leases: Iterable[Held], after: ExitStack) -> None:
        """Write down how much time is left. If that fails, a start gives them more than they had."""
        changed = {held.lease.id: self._noted(held) for held in leases}
        try:
            if changed:
                self.commit(changed, after)
        except KolkError as error:
            _log.warning("the time that leases have left could not be written down: %s", error)

    def note_due(self, after: ExitStack) -> None:
        """The same for those of which it was not done for a third of their time."""
        now_us = self._now_us()
        due = [held for held in self.held.values() if 3 * (now_us - held.noted_us) >= held.lease.ttl_ms * 1_000]
        self.note(due, after)

    def clear(self, id: str, after: ExitStack) -> None:
        """Remove what there is of an unreadable lease."""
        changes = lease_removal(self._meta, id)
        if changes:
            self._meta.write(changes)
        del self.unreadable[id]
        self._remember(id, LeaseEnd.DROPPED, None)
        after.callback(self._pins.thaw)

    def commit(
        self,
        changed: Mapping[str, Held | None],
        after: ExitStack,
        *others: MetaChange,
        reason: LeaseEnd = LeaseEnd.DROPPED,
    ) -> None:
        """Persist what becomes of some leases, all at once, then show it, and let go of what they keep no more.

        If the write fails, what is shown is what is written: an interrupt may have come after it.
        """
        changes = [
            change
            for id, held in changed.items()
            for change in lease_changes(
                self._meta, _lease_of(self.held.get(id)), held and StoredLease(held.lease, held.digest)
            )
        ]
        try:
            self._meta.write([*changes, *others])
        except BaseException as error:
            is_written = self._is_written(changes[0])
            if is_written:
                self._show(changed, reason, after)
            elif is_written is None:
                self._give_up(changed, error, after)
            raise
        self._show(changed, reason, after)

    # --- inside

    def _is_written(self, head: MetaChange) -> bool | None:
        """Whether a write that failed was made after all; None if nobody can say."""
        try:
            record = self._meta.get(head.key)
        except KolkError:
            return None
        version = ABSENT if record is None else record.version
        if version == head.expected:
            return False
        return True if version == (ABSENT if head.value is None else head.expected + 1) else None

    def _show(self, changed: Mapping[str, Held | None], reason: LeaseEnd, after: ExitStack) -> None:
        for id, held in changed.items():
            before = self.held.pop(id, None)
            if held is not None:
                self.held[id] = held
            else:
                self._remember(id, reason, before)
                self.ends[reason] += 1
            lost = lost_pins(_lease_of(before), _lease_of(held))
            if lost:
                after.callback(self._pins.let_go, lost)

    def _give_up(self, changed: Mapping[str, Held | None], error: BaseException, after: ExitStack) -> None:
        """Nobody can say what is written of these leases. Where only times differ, that does not matter."""
        for id, held in changed.items():
            before = self.held.get(id)
            if before is None or held is None or not _is_alike(before.lease, held.lease):
                self._freeze(id, f"it could not be written, nor read again: {error}")
                after.callback(self._pins.let_go, lost_pins(_lease_of(self.held.pop(id, None)), None))

    def _freeze(self, id: str, why: str) -> None:
        self.unreadable[id] = why
        self._pins.freeze()
        _log.warning("no snapshot is deleted until the lease %s is dropped, which cannot be read: %s", id, why)

    def _noted(self, held: Held) -> Held:
        """With the time that is left, to be written down."""
        return replace(held, lease=self.shown(held), noted_us=self._now_us())

    def _remember(self, id: str, reason: LeaseEnd, held: Held | None) -> None:
        self._ended[id] = (reason, None if held is None else held.lease.principal)
        self._ended.move_to_end(id)
        if len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)

    def _next(self) -> int:
        record = self._meta.get(_NEXT)
        return 1 if record is None else int(record.value)

    def _now_us(self) -> int:
        return round(self._clock.monotonic() * 1_000_000)


def lease_lost(id: str, reason: LeaseEnd) -> LeaseLost:
    """What whoever has lost a lease is told."""
    return LeaseLost(_LOST[reason].format(id=id), reason.value)


def _lease_of(held: Held | None) -> Lease | None:
    return None if held is None else held.lease


def _is_alike(one: Lease, other: Lease) -> bool:
    """Whether two states of a lease differ in their times alone."""
    return one.tables is other.tables and one.generation == other.generation
