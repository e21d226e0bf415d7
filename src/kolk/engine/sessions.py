"""The scan sessions of a database: how many there may be, who may use them, and when they end.

A session ends once, whichever comes first: it is closed, nobody has used it for its time, or a tablet took its rows
back. Then its place is free at once; its views go when the page that is being made of them is done. Why it ended is
remembered for a while, so that a reader who comes late is told.

In use means that a page is being made, not that somebody is connected: a client that takes nothing for so long loses
its scan like one that is gone. A session that was read to its end and not closed lingers for a moment, for a reader who
lost the last page; it takes no place meanwhile, and is the first to go when room is needed.

A shared session does not end with one of its readers, and nobody knows how many there will be. One that was opened to
give way has its place until another needs it: then it goes if it was read to its end, or if nobody has read it for a
moment, whoever was used longest ago first. So those who come and read are never refused for what others left behind.
"""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kolk.config import EngineConfig
from kolk.engine.session import ScanSession
from kolk.errors import Closed, KolkError, TooManyScans, UnknownOrExpiredScan
from kolk.model.durations import moment
from kolk.model.ids import BucketId, TableId
from kolk.model.scan import Page, ScanCounts, ScanEnd, ScanInfo, rows_of
from kolk.runtime.clock import Clock
from kolk.tablet.retention import Holder, HolderKind

LINGER_SECONDS = 10.0
_ENDED_MAX = 10_000
_ENDED = "this scan was closed, by its reader or an operator (`kolk scans close`); scan again"
_READ = "this scan was read to its end, and is gone"
_GAVE_WAY = (
    "this scan gave its place to another one while nobody read it; scan again, or let the server keep more"
    " (scans_per_bucket_max, scans_max)"
)
_IDLE = "nobody has read this scan for {ttl:g} s, so it was given up; scan again, read quicker, or ask for a longer ttl"
_CLOSED = Closed("the database is closed")
_UNKNOWN = "there is no such scan: it ended long ago, or the server was restarted; scan again"


class ScanSessions:
    """All open scans. Thread-safe: one lock, held for moments only. It closes no view while it holds it."""

    def __init__(self, config: EngineConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._lock = threading.RLock()  # a signal handler may close the database in the middle of anything
        # Guarded by _lock.
        self._open: dict[str, ScanSession] = {}
        self._ended: OrderedDict[str, tuple[ScanEnd, str]] = OrderedDict()
        self._per_bucket: Counter[BucketId] = Counter()
        self._taken = 0
        self._views = 0
        self._opened = self._rows = self._bytes = self._refused = 0
        self._ends: Counter[ScanEnd] = Counter()
        # Appended to by the garbage collector, wherever it runs.
        self._orphans: deque[str] = deque()

    def add(self, session: ScanSession) -> None:
        """Let a session begin; TooManyScans, and none that can be read ends for it, if there are as many as may be."""
        gone: list[ScanSession] = []
        try:
            with self._lock:
                gone += self._overdue()
                views = len(session.cut.buckets)
                shortage = self._shortage(session)
                if shortage is not None:
                    gone += self._revoked()  # some may only wait for somebody to notice that their rows are gone
                    shortage = self._shortage(session)
                while shortage is not None:
                    idle = [] if shortage.is_for_good else self._giving_way(shortage.taking)
                    if not idle:
                        raise self._refused_for(shortage)
                    gone.append(self._remove(idle[0], ScanEnd.CLOSED, _GAVE_WAY))
                    shortage = self._shortage(session)
                while self._views + views > self._config.scan_views_max:
                    gone.append(self._remove(self._lingering()[0], ScanEnd.CLOSED, _READ))
                self._open[session.id] = session
                self._views += views
                self._opened += 1
                self._take_place(session, 1)
        finally:
            _close(gone)

    def note_empty(self) -> None:
        """A scan was opened that needs no session, since there is nothing to read."""
        with self._lock:
            self._opened += 1

    @contextmanager
    def use(self, id: str, principal: str) -> Iterator[ScanSession]:
        """The session, which does not end within the block; its time begins anew if the block succeeds."""
        gone: list[ScanSession] = []
        try:
            with self._lock:
                gone += self._overdue(id)
                session = self._found(id, principal)
                session.uses += 1
        finally:
            _close(gone)
        is_done = False
        try:
            yield session
            is_done = True
        finally:
            with self._lock:
                session.uses -= 1
                if is_done:
                    session.last_use = self._clock.monotonic()
                    session.last_use_ms = self._clock.now_ms()
                is_over = session.end is not None and not session.uses
            if is_over:
                session.cut.close()

    @contextmanager
    def followed(self, id: str) -> Iterator[None]:
        """Somebody reads this scan as long as the block lasts, however slowly he takes it."""
        with self._lock:
            session = self._open.get(id)
            if session is not None:
                session.readers += 1
        try:
            yield
        finally:
            with self._lock:
                if session is not None:
                    session.readers -= 1

    def served(self, session: ScanSession, page: Page, only: Collection[str] | None) -> None:
        """Count what a page brought, of these buckets or of all; the last one of all buckets drains a session that is
        not shared."""
        rows = rows_of(page.runs)
        size = 0 if page.batch is None else page.batch.nbytes
        with self._lock:
            self._rows += rows
            self._bytes += size
            session.rows += rows
            session.size_bytes += size
            if page.is_last:
                session.unread.difference_update(session.unread.copy() if only is None else only)
            is_end = page.is_last and only is None
            if is_end and not session.request.is_shared and not session.is_drained and session.end is None:
                session.is_drained = True
                self._take_place(session, -1)

    def end(self, id: str, principal: str | None, reason: ScanEnd = ScanEnd.CLOSED, why: str = _ENDED) -> bool:
        """End a session, whoever's it is if no principal is named; whether there was one."""
        with self._lock:
            session = self._open.get(id)
            if session is None or (principal is not None and session.principal != principal):
                return False
            self._remove(session, reason, why)
        _close([session])
        return True

    def orphan(self, id: str) -> None:
        """Nobody has this scan any more. Takes no lock: it is ended when somebody comes by."""
        self._orphans.append(id)

    def reap(self) -> None:
        """End whatever is due."""
        with self._lock:
            gone = [*self._overdue(), *self._revoked()]
        _close(gone)

    def close(self) -> None:
        """End all of them, because the database is closed."""
        with self._lock:
            gone = [self._remove(session, ScanEnd.REVOKED, taken_back(_CLOSED)) for session in self._all()]
        _close(gone)

    def listed(self) -> list[ScanInfo]:
        """Those that are open, the oldest first."""
        self.reap()
        with self._lock:
            return [self._info(session) for session in self._all()]

    def table_of(self, id: str, principal: str) -> TableId:
        """The table of an open scan."""
        with self._lock:
            return self._found(id, principal).table

    def is_open(self, id: str) -> bool:
        """Whether there is such a scan, whoever's it is."""
        return id in self._open

    def counts(self) -> ScanCounts:
        """What became of scans so far. Those that linger are not open any more."""
        self.reap()
        with self._lock:
            return ScanCounts(
                open=self._taken,
                views=self._views,
                opened=self._opened,
                expired=self._ends[ScanEnd.TTL],
                revoked=self._ends[ScanEnd.REVOKED],
                refused=self._refused,
                rows=self._rows,
                size_bytes=self._bytes,
            )

    def holders(self, bucket: BucketId) -> list[Holder]:
        """The scans that hold a bucket's log: who reads one may want what came after it."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        with self._lock:
            return [
                Holder(
                    kind=HolderKind.SCAN,
                    owner=f"scan {session.id}",
                    offset=offset,
                    expires_ms=None if (left := self._left(session, now)) is None else now_ms + round(left * 1_000),
                )
                for session in self._all()
                if (offset := session.cut.offset_of(bucket)) is not None
            ]

    # --- inside: all under the lock

    def _shortage(self, session: ScanSession) -> "_Shortage | None":
        """Which cap is in the way of one more."""
        config = self._config
        if self._taken >= config.scans_max:
            return _Shortage("scans_max", f"{config.scans_max} scans are open, as many as may be", self._taking())
        crowded = next(
            (each for each in session.cut.buckets if self._per_bucket[each] >= config.scans_per_bucket_max), None
        )
        if crowded is not None:
            what = (
                f"bucket {crowded.name} of {session.table_name} has {config.scans_per_bucket_max} scans, as many as it"
                " may"
            )
            there = [each for each in self._taking() if crowded in each.cut.buckets]
            return _Shortage("scans_per_bucket_max", what, there)
        views = len(session.cut.buckets)
        pinned = self._views - sum(len(each.cut.buckets) for each in self._lingering())
        if pinned + views > config.scan_views_max:
            what = (
                f"scans have {pinned:,} buckets pinned, and with the {views:,} of this one it would be more than"
                f" {config.scan_views_max:,}"
            )
            return _Shortage("scan_views_max", what, self._taking(), is_for_good=views > config.scan_views_max)
        return None

    def _refused_for(self, shortage: "_Shortage") -> TooManyScans:
        self._refused += 1
        if shortage.is_for_good:
            error = TooManyScans(f"{shortage.what}; scan some buckets at a time, or raise {shortage.cap}", shortage.cap)
            error.retriable = False
            return error
        now = self._clock.monotonic()
        lefts = [left for each in shortage.taking if (left := self._left(each, now)) is not None]
        soonest = max(min(lefts), 0.0) if lefts else None
        when = "" if soonest is None else f" in at most {max(soonest, 0.001):.3g} s"
        return TooManyScans(f"{shortage.what}; close some, raise {shortage.cap}, or retry{when}", shortage.cap, soonest)

    def _found(self, id: str, principal: str) -> ScanSession:
        session = self._open.get(id)
        if session is None:
            raise ended(*self._ended.get(id, (ScanEnd.UNKNOWN, _UNKNOWN)))
        if session.principal != principal:  # and nobody is told that it is there
            raise ended(ScanEnd.UNKNOWN, _UNKNOWN)
        return session

    def _overdue(self, id: str | None = None) -> list[ScanSession]:
        """Remove those that nobody has any more, and those whose time is up, or this one if it is."""
        gone: list[ScanSession] = []
        while self._orphans:
            session = self._open.get(self._orphans.popleft())
            if session is not None:
                gone.append(self._remove(session, ScanEnd.CLOSED, _ENDED))
        now = self._clock.monotonic()
        one = None if id is None else self._open.get(id)
        for session in self._all() if id is None else [] if one is None else [one]:
            left = self._left(session, now)
            if session.uses or left is None or left >= 0:
                continue
            if session.is_drained:
                gone.append(self._remove(session, ScanEnd.CLOSED, _READ))
            else:
                gone.append(self._remove(session, ScanEnd.TTL, _IDLE.format(ttl=session.ttl_seconds)))
        return gone

    def _revoked(self) -> list[ScanSession]:
        """Remove those whose rows were taken back; from one that was read to its end nothing was taken."""
        found = [(session, session.cut.refusal) for session in self._all() if not session.uses]
        return [
            self._remove(session, ScanEnd.CLOSED, _READ)
            if session.is_drained
            else self._remove(session, ScanEnd.REVOKED, taken_back(why))
            for session, why in found
            if why is not None
        ]

    def _left(self, session: ScanSession, now: float) -> float | None:
        """How long a session may still wait for its reader."""
        ttl = session.ttl_seconds
        if session.is_drained:
            ttl = LINGER_SECONDS if ttl is None else min(ttl, LINGER_SECONDS)
        linger = session.request.linger_seconds
        if linger is not None and not (session.unread or session.readers):
            ttl = linger if ttl is None else min(ttl, linger)
        return None if ttl is None else session.last_use + ttl - now

    def _remove(self, session: ScanSession, reason: ScanEnd, why: str) -> ScanSession:
        if self._open.pop(session.id, None) is None:  # a signal handler came in between
            return session
        self._views -= len(session.cut.buckets)
        if not session.is_drained:
            self._take_place(session, -1)
        session.end = (reason, why)
        self._ends[reason] += 1
        self._ended[session.id] = session.end
        if len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)
        return session

    def _take_place(self, session: ScanSession, by: int) -> None:
        self._taken += by
        for bucket in session.cut.buckets:
            self._per_bucket[bucket] += by
            if not self._per_bucket[bucket]:
                del self._per_bucket[bucket]

    def _taking(self) -> list[ScanSession]:
        return [session for session in self._all() if not session.is_drained]

    def _giving_way(self, sessions: Sequence[ScanSession]) -> list[ScanSession]:
        """Those whose place another may have: first what was read to its end, then what nobody has read for a
        moment."""
        before = self._clock.monotonic() - LINGER_SECONDS
        idle = [each for each in sessions if each.gives_way and not (each.uses or each.readers)]
        found = [each for each in idle if not each.unread or each.last_use < before]
        return sorted(found, key=lambda each: (bool(each.unread), each.last_use))

    def _lingering(self) -> list[ScanSession]:
        return [session for session in self._all() if session.is_drained]

    def _all(self) -> Sequence[ScanSession]:
        return list(self._open.values())

    def _info(self, session: ScanSession) -> ScanInfo:
        left = self._left(session, self._clock.monotonic())
        return ScanInfo(
            id=session.id,
            table=session.table_name,
            principal=session.principal,
            is_shared=session.request.is_shared,
            is_drained=session.is_drained or (session.gives_way and not session.unread),
            views=len(session.cut.buckets),
            rows=session.rows,
            size_bytes=session.size_bytes,
            opened=moment(session.opened_ms),
            last_use=moment(session.last_use_ms),
            expires=None if left is None else moment(self._clock.now_ms() + round(left * 1_000)),
        )


@dataclass(frozen=True, slots=True)
class _Shortage:
    """A cap that is reached, and the sessions that take its places."""

    cap: str
    what: str
    taking: Sequence[ScanSession]
    is_for_good: bool = False


def ended(reason: ScanEnd, why: str) -> UnknownOrExpiredScan:
    """What a reader is told whose scan is gone."""
    return UnknownOrExpiredScan(why, reason.value)


def taken_back(why: KolkError) -> str:
    """What a reader is told whose rows a tablet took back."""
    return f"this scan lost its rows: {why}"


def _close(sessions: Sequence[ScanSession]) -> None:
    """Let the views of ended sessions go, but not those that somebody makes a page of: he does it."""
    for session in sessions:
        if not session.uses:
            session.cut.close()
