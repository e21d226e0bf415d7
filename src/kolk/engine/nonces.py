"""Nonces: a reader's own names for scans, so that opening one again opens no second one.

An answer that was lost leaves a scan that nobody knows the id of; whoever asks again with its nonce is given that very
scan. If it is gone he is told so, and never given another one: that would show another moment. Nor is a scan opened
whose nonce was closed before. Many who open at once wait for the first of them; if he fails the next one tries.

A shared scan that has no session, because there are no rows to pin, is all in its answer. That is kept as a session
would be, for so long after its last use, and all answers together have a limit: whoever was asked for longest ago goes.

Nonces are kept in memory, as many as may be. That of a shared scan is also a meta record for a day,
``scan-nonce/<hash of principal and nonce>`` (the time in milliseconds and a hash of the principal, as text), for it
must be refused after a restart, too. No limit of sessions bounds these, for a scan without one has a record as well: so
each principal may have so many, and is refused then.
"""

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

from kolk.engine.session import Opened
from kolk.engine.sessions import ScanSessions, ended
from kolk.errors import InvalidArgument, KolkError, TooManyScans, UnknownOrExpiredScan
from kolk.model.ids import TableId
from kolk.model.scan import ScanEnd, ScanRequest
from kolk.runtime.clock import Clock
from kolk.storage.meta import ABSENT, Meta, MetaChange, Record

NONCES_MAX = 10_000
OFFSETS_MAX = 250_000
"""How many offsets the answers have in all that are kept for scans without a session: some 30 MB."""
RECORDS_MAX = 500_000
"""How many records of shared scans a principal may have: one every 170 ms all day, and some 50 MB on disk. A query of
Spark leaves one."""
_RECORDS = "scan-nonce/"
_RECORD_MS = 86_400_000
_REAPED_EVERY_MS = _RECORD_MS // 100
"""There may be very many of them, and nothing hurries."""
_LOST = "the scan of this nonce is gone, and another one would show another moment; open one with a new nonce"
_Key = tuple[str, str]
"""A principal and its nonce."""


@dataclass(frozen=True, slots=True)
class _Given:
    """What a nonce stands for: the scan of an id, or without one an answer that is kept as long as may be. Neither of
    them is a scan that was closed before it was opened."""

    query: bytes = b""
    id: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What whoever opens a shared scan without a session is told, for so long after the last time."""

    opened: Opened
    ttl_seconds: float
    last_use: float

    @property
    def offsets(self) -> int:
        return len(self.opened.offsets) + len(self.opened.starts)


class Nonces:
    """The nonces of a database. Thread-safe: one lock, held for moments only, and by nobody who opens a scan."""

    def __init__(self, sessions: ScanSessions, meta: Meta, clock: Clock, ttl_seconds: float) -> None:
        # Constant after construction.
        self._sessions = sessions
        self._meta = meta
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._lock = threading.RLock()
        # Guarded by _lock: when records were last reaped, and how many each principal has, by its hash.
        self._reaped_ms: int | None = None
        self._recorded = Counter(map(_whose, meta.list(_RECORDS)))
        # What was opened with a nonce, or is about to be. Little of each, for there are many.
        self._given: OrderedDict[_Key, Future[_Given]] = OrderedDict()
        # The answers of those without a session, whoever was used longest ago first, and how many offsets they have.
        self._answers: OrderedDict[_Key, _Answer] = OrderedDict()
        self._offsets = 0

    def open(self, table: TableId, request: ScanRequest, principal: str, open_: Callable[[], Opened]) -> Opened:
        """The scan of the request's nonce, which ``open_`` opens if nobody has."""
        key, query = (principal, request.nonce), request.query(table)
        while True:
            with self._lock:
                known = self._given.get(key)
                future = known or self._given.setdefault(key, Future())
            if known is None:
                return self._open_first(key, query, open_, future, request)
            if known.exception() is None:
                return self._found(key, known.result(), query)

    def close(self, nonce: str, principal: str) -> bool:
        """End the scan that was opened with a nonce; whether there was one. If it is yet to be opened, it never is."""
        with self._lock:
            known = self._given.get((principal, nonce))
            if known is None:
                never = self._given[principal, nonce] = Future[_Given]()
                never.set_result(_Given())
                self._forget()
                return False
        if known.exception() is not None:
            return False
        return self._sessions.end(known.result().id, principal)

    def reap(self) -> None:
        """Remove the answers whose time is up, and the records that nobody can mean any more."""
        with self._lock:
            for key in [key for key, answer in self._answers.items() if self._is_over(answer)]:
                self._drop(key)
        self._reap_records()

    def _reap_records(self) -> None:
        now = self._clock.now_ms()
        with self._lock:
            if self._reaped_ms is not None and 0 <= now - self._reaped_ms < _REAPED_EVERY_MS:
                return
            self._reaped_ms = now
        stale = [record for record in self._meta.list(_RECORDS) if _written_ms(record) < now - _RECORD_MS]
        if stale:
            self._meta.write([MetaChange(record.key, None, record.version) for record in stale])
            with self._lock:
                self._recorded -= Counter(map(_whose, stale))

    def _open_first(
        self, key: _Key, query: bytes, open_: Callable[[], Opened], future: "Future[_Given]", request: ScanRequest
    ) -> Opened:
        """Open what nobody has opened under this nonce."""
        try:
            opened = self._open_shared(key, open_) if request.is_shared else open_()
        except BaseException as error:
            with self._lock:
                self._given.pop(key, None)
            future.set_exception(error if isinstance(error, KolkError) else KolkError(str(error)))
            raise
        with self._lock:
            if not opened.id and request.is_shared:
                self._keep(key, _Answer(opened, request.ttl_seconds or self._ttl_seconds, self._clock.monotonic()))
            future.set_result(_Given(query, opened.id))
            if not opened.id and not request.is_shared:
                del self._given[key]  # only its own reader asks again, and may as well look again
            self._forget()
        return opened

    def _keep(self, key: _Key, answer: _Answer) -> None:
        """Under the lock: keep an answer, if need be in the place of those used longest ago."""
        self._answers[key] = answer
        self._offsets += answer.offsets
        while self._offsets > OFFSETS_MAX and len(self._answers) > 1:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: _Key) -> None:
        self._offsets -= self._answers.pop(key).offsets

    def _is_over(self, answer: _Answer) -> bool:
        return self._clock.monotonic() > answer.last_use + answer.ttl_seconds

    def _open_shared(self, key: _Key, open_: Callable[[], Opened]) -> Opened:
        """Open a scan and record its nonce, unless it is recorded: then a restart came since."""
        record = _RECORDS + hashlib.blake2b("\0".join(key).encode(), digest_size=16).hexdigest()
        if self._meta.get(record) is not None:
            raise ended(ScanEnd.UNKNOWN, _LOST)
        whose = hashlib.blake2b(key[0].encode(), digest_size=8).hexdigest()
        with self._place(whose):
            opened = open_()
            try:
                self._meta.write([MetaChange(record, f"{self._clock.now_ms()} {whose}".encode(), ABSENT)])
            except BaseException:
                self._sessions.end(opened.id, None)
                raise
        return opened

    @contextmanager
    def _place(self, whose: str) -> Iterator[None]:
        """Take a place for the record that is written within the block; TooManyScans if there is none."""
        if self._recorded[whose] >= RECORDS_MAX:
            self._reap_records()
        with self._lock:
            if self._recorded[whose] >= RECORDS_MAX:
                assert self._reaped_ms is not None
                wait = max(self._reaped_ms + _REAPED_EVERY_MS - self._clock.now_ms(), 1) / 1_000
                raise TooManyScans(
                    f"{RECORDS_MAX:,} shared scans were opened in this name within a day, as many as are remembered;"
                    " let more readers share each of them, use a token of your own, or open scans that are not shared",
                    retry_after=wait,
                )
            self._recorded[whose] += 1
        try:
            yield
        except BaseException:
            with self._lock:
                self._recorded[whose] -= 1
            raise

    def _found(self, key: _Key, given: _Given, query: bytes) -> Opened:
        if given == _Given():
            raise ended(ScanEnd.CLOSED, _LOST)
        if given.query != query:
            raise InvalidArgument("this nonce was used for another scan; every scan has a nonce of its own")
        if not given.id:
            return self._answered(key)
        try:
            with self._sessions.use(given.id, key[0]) as session:
                return session.opened()
        except UnknownOrExpiredScan as error:
            raise UnknownOrExpiredScan(_LOST, error.reason) from error

    def _answered(self, key: _Key) -> Opened:
        """The answer that is kept for a nonce; asking for it is a use."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is None or self._is_over(answer):
                raise ended(ScanEnd.TTL, _LOST)
            self._answers[key] = replace(answer, last_use=self._clock.monotonic())
            self._answers.move_to_end(key)
            return answer.opened

    def _forget(self) -> None:
        """Under the lock: those given longest ago, but none whose scan is still there or is being opened."""
        excess = len(self._given) - NONCES_MAX
        if excess > 0:
            unused = (
                key
                for key, given in self._given.items()
                if given.done() and not self._sessions.is_open(given.result().id)
            )
            for key in list(islice(unused, excess)):
                del self._given[key]
                if key in self._answers:
                    self._drop(key)


def _written_ms(record: Record) -> int:
    return int(record.value.split()[0])


def _whose(record: Record) -> str:
    """The hash of a record's principal; an old one does not tell."""
    return record.value.partition(b" ")[2].decode()
