"""A lease in a client's hands: snapshots that stay, renewed in the background until it is closed.

It is renewed at every third of its time, so that one renewal may fail, and the next may be late, before it is lost. One
that fails is tried again at the next turn; whether the lease is lost the server decides, and by then also the clock
here: when its time has passed without an answer nobody can promise any more that the snapshots are there.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from operator import index
from typing import Any, Self

from kolk.client.link import Link
from kolk.client.service import Service
from kolk.errors import Closed, InvalidArgument, KolkError, LeaseExists, LeaseLost
from kolk.model.durations import Duration, seconds_of
from kolk.model.ids import TableId
from kolk.model.lease import NUMBER_MAX, check_lease_id
from kolk.model.lease_state import LeasedTable, LeaseState
from kolk.model.names import TableName, plain_text
from kolk.model.partition import bucket_names
from kolk.model.shown import shown
from kolk.runtime.ticker import Ticker

LEASE_TTL = "10m"
_TURNS = 3
OnLost = Callable[[LeaseLost], object]


class Lease:
    """A lease: scan with it (``table.scan(source=lease)``), follow the changelog from ``offsets``, close it.

    ``offsets`` and ``snapshots`` are by table and bucket; ``unavailable`` is what was asked for and does not exist;
    ``consistent`` says that all buckets of each table are of one moment. When the lease is lost, ``on_lost`` is called
    once, from another thread, ``is_lost`` is True and ``check`` raises. A scan that is open goes on: it keeps its
    snapshots itself. A context manager. Thread-safe.
    """

    def __init__(
        self,
        link: Link,
        holder: int,
        state: LeaseState,
        since: float,
        on_lost: OnLost | None = None,
    ) -> None:
        # Constant after construction.
        self._link = link  # kept, so that the connection lives as long as the lease
        self._holder = holder
        self._on_lost = on_lost
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._state = state
        self._renewed = since
        self._lost: LeaseLost | None = None
        self._is_closed, self._is_ours = False, True
        self._ticker, self._unclosed = self._renewing(state.ttl_seconds)

    @property
    def id(self) -> str:
        """Its name, by which another process goes on: ``db.join_lease(id)``."""
        return self._state.id

    @property
    def state(self) -> LeaseState:
        """All that is known of it, as of the last answer."""
        return self._state

    @property
    def offsets(self) -> dict[str, dict[str, int]]:
        """By table, where its changelog goes on: ``table.changelog(start=lease.offsets[table.name])``."""
        return {name: table.start for name, table in self._state.tables.items()}

    @property
    def snapshots(self) -> dict[str, dict[str, int]]:
        """By table and bucket, the numbers of the snapshots that are kept."""
        return {name: dict(table.snapshots) for name, table in self._state.tables.items()}

    @property
    def unavailable(self) -> dict[str, dict[str, int]]:
        """By table and bucket, the snapshots that were asked for and do not exist."""
        return {name: dict(missing) for name, missing in self._state.unavailable.items()}

    @property
    def consistent(self) -> bool:
        """Whether all buckets of each table are of one moment."""
        return all(table.is_consistent for table in self._state.tables.values())

    @property
    def is_lost(self) -> bool:
        """Whether it is known to be gone."""
        return self._lost is not None

    def table(self, name: str) -> LeasedTable | None:
        """What it keeps of a table."""
        return self._state.tables.get(self._as_kept(name))

    def check(self) -> None:
        """Raise LeaseLost if it is known to be gone, and Closed if it was closed here."""
        if self._lost is not None:
            raise self._lost
        if self._is_closed:
            raise Closed("this lease is closed")

    def renew(self, ttl: Duration | None = None) -> None:
        """Let its time begin anew now, with another length if one is given. It is done in the background anyway."""
        self.check()
        seconds = None if ttl is None else seconds_of(ttl, "ttl")
        with self._asking() as since:
            self._note(self._link.service.renew_lease(self.id, self._state.generation, seconds), since)

    def add(self, tables: Iterable[str] | Mapping[str, Mapping[str, int] | None]) -> None:
        """Keep more: the newest snapshots of more tables, or named ones; see ``Database.lease``."""
        self.check()
        service, state = self._link.service, self._state
        wanted = chosen_tables(service, tables)
        with self._asking() as since:
            self._note(
                service.acquire_lease(state.id, self._holder, wanted, state.ttl_seconds, state.generation), since
            )

    def release(self, table: str, buckets: Sequence[str] | None = None) -> None:
        """Keep a table, or some of its buckets, no longer: what was read need not stay. Idempotent; with the last of
        what it keeps the lease ends."""
        table = self._as_kept(table)
        buckets = None if buckets is None else bucket_names(buckets)
        left = self._link.service.release_lease(self.id, self._state.generation, {table: buckets})
        if left is not None:
            with self._lock:
                self._state = left  # its time goes on as it was
        elif self._is_left_without(table, buckets):
            self._end()
        else:
            self.lose(LeaseLost(f"the lease {self.id!r} was gone before something of it was released", "unknown"))

    def close(self) -> None:
        """Let everything go. Idempotent; one that was lost is no error, and one that was detached is left alone."""
        self._end()
        if self._is_ours:
            self._link.service.drop_lease(self.id, self._state.generation)
            self._is_ours = False

    def detach(self) -> LeaseState:
        """Renew it no longer, and leave it to whoever joins it before its time is over."""
        self._is_ours = False
        self._end()
        return self._state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # What ended the block is worth more than that the server could not be told: the lease expires by itself.
        with suppress(KolkError) if kind is not None else nullcontext():
            self.close()

    def __repr__(self) -> str:
        end = ", lost" if self.is_lost else ", closed" if self._is_closed else ""
        return f"<kolk.Lease {self.id} of {', '.join(self._state.tables)}{end}>"

    def _as_kept(self, table: str) -> str:
        """A table's name as the lease has it; one that was dropped since has a name that no table can have."""
        return table if isinstance(table, str) and table in self._state.tables else str(TableName.parse(table))

    def _end(self) -> None:
        self._is_closed = True
        if self._lost is None:
            self._ticker.close()
        else:
            # There is nothing to renew, and the last round may be the one that tells of it: it may wait for whoever
            # is told, and they for the end of the lease.
            self._ticker.stop()

    @contextmanager
    def _asking(self) -> Iterator[float]:
        """Whoever asks for a lease that is gone has lost it. Its time begins when the server is asked, at the latest:
        not when its answer comes."""
        try:
            yield self._link.clock.monotonic()
        except LeaseLost as error:
            self.lose(error)
            raise
        except LeaseExists as error:  # which it is, for somebody else
            lost = LeaseLost(f"somebody else goes on in the name of the lease {self.id!r}; take a new one", "taken")
            self.lose(lost)
            raise lost from error

    def _note(self, state: LeaseState, since: float) -> None:
        with self._lock:
            is_other = state.ttl_seconds != self._state.ttl_seconds
            self._state, self._renewed = state, since
            if is_other and not self._is_closed:
                self._ticker.stop()
                self._unclosed.detach()
                self._ticker, self._unclosed = self._renewing(state.ttl_seconds)

    def _renewing(self, ttl_seconds: float) -> tuple[Ticker, "weakref.finalize[..., Any]"]:
        """Renew it in the background from now on. What does so must not keep the lease alive: one that is forgotten is
        to expire, and its thread to end."""
        turn, name = partial(_turn, weakref.ref(self)), "kolk-lease"
        ticker = Ticker(turn, seconds=ttl_seconds / _TURNS, clock=self._link.clock, name=name)
        unclosed = weakref.finalize(self, ticker.stop)
        unclosed.atexit = False
        ticker.start()
        return ticker, unclosed

    def _is_left_without(self, table: str, buckets: Sequence[str] | None) -> bool:
        """Whether nothing is left without these, as far as is known here."""
        return all(
            name == table and (buckets is None or set(each.snapshots) <= set(buckets))
            for name, each in self._state.tables.items()
        )

    def turn(self) -> None:
        """Renew, as is due every third of its time. Called in the background."""
        if self._is_closed or self._lost is not None:
            return
        since = self._link.clock.monotonic()
        try:
            self._note(self._link.service.renew_lease(self.id, self._state.generation), since)
        except LeaseLost as error:
            self.lose(error)
        except Closed as error:
            self.lose(LeaseLost(f"the lease {self.id!r} is not renewed any more: {error}", "expired"))
        except KolkError as error:
            if self._link.clock.monotonic() - self._renewed >= self._state.ttl_seconds:
                lost = LeaseLost(f"the lease {self.id!r} could not be renewed for its time: {error}", "expired")
                self.lose(lost)

    def lose(self, error: LeaseLost) -> None:
        """Somebody was told that it is gone: from now on it is known to be."""
        with self._lock:
            is_first, self._lost = self._lost is None, self._lost or error
        if is_first and self._on_lost is not None:
            self._on_lost(error)


def chosen_tables(
    service: Service, tables: Iterable[str] | Mapping[str, Mapping[str, int] | None]
) -> dict[TableId, Mapping[str, int] | None]:
    """The tables of these names, each with the snapshots that are named by bucket, or None for the newest."""
    if isinstance(tables, str) or not isinstance(tables, Iterable):
        raise InvalidArgument(f"tables is a list of table names, or a dict of them and snapshots, not {tables!r}")
    names = list(tables)
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"tables is a list of table names, or a dict of them and snapshots, not {names!r}")
    chosen = tables if isinstance(tables, Mapping) else dict.fromkeys(names)
    return {service.table(TableName.parse(name)).id: _named(snapshots) for name, snapshots in chosen.items()}


def _named(snapshots: Mapping[str, int] | None) -> Mapping[str, int] | None:
    if snapshots is None:
        return None
    if not isinstance(snapshots, Mapping) or not all(isinstance(bucket, str) for bucket in snapshots):
        raise InvalidArgument(
            f"snapshots maps buckets to the numbers of their snapshots, {{'0': 7}}, not {shown(snapshots)}"
        )
    return {plain_text(bucket): _number(bucket, number) for bucket, number in snapshots.items()}


def _number(bucket: str, given: object) -> int:
    """The number of a snapshot as a Python number; numpy's are welcome."""
    try:
        number = -1 if isinstance(given, bool) else index(given)  # pyright: ignore[reportArgumentType] - it refuses others
    except TypeError:
        number = -1
    if not 0 <= number <= NUMBER_MAX:
        raise InvalidArgument(
            f"snapshots maps buckets to the numbers of their snapshots, and {shown(given)}, given for"
            f" bucket {bucket!r}, is no such number"
        )
    return number


def leased(
    link: Link,
    tables: Mapping[TableId, Mapping[str, int] | None],
    ttl: Duration,
    lease_id: str | None,
    on_lost: OnLost | None,
) -> Lease:
    """A new lease on the newest snapshots of tables, or on some by bucket."""
    tables = {table: _named(snapshots) for table, snapshots in tables.items()}
    holder, seconds = link.rng.id128(), seconds_of(ttl, "ttl")
    id = f"{link.rng.id128():032x}" if lease_id is None else check_lease_id(lease_id)
    since = link.clock.monotonic()
    return Lease(link, holder, link.service.acquire_lease(id, holder, tables, seconds), since, on_lost)


def joined(link: Link, lease_id: str, ttl: Duration | None, on_lost: OnLost | None) -> Lease:
    """A lease that somebody else began, taken over."""
    holder, seconds = link.rng.id128(), None if ttl is None else seconds_of(ttl, "ttl")
    since = link.clock.monotonic()
    return Lease(link, holder, link.service.join_lease(check_lease_id(lease_id), holder, seconds), since, on_lost)


def _turn(lease: "weakref.ref[Lease]") -> None:
    found = lease()
    if found is not None:
        found.turn()
