"""Scans: the whole table at one moment, opened once, read by whoever has its id.

A reader's place is a token. Within a scan it is exact, for the rows do not change. For a scan that is lost it still
says where to go on in a new one, at another moment: what that means is the reader's to say (``ScanRequest.resume``).
"""

import os
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from kolk.codec.token import KEY_BYTES, Token, Tokens
from kolk.config import EngineConfig
from kolk.engine.cut import Room
from kolk.engine.cutting import Cutting
from kolk.engine.nonces import Nonces
from kolk.engine.session import Opened, ScanSession
from kolk.engine.sessions import ScanSessions, ended, taken_back
from kolk.errors import InvalidArgument, KolkError, UsedAfterFork
from kolk.model.scan import START, Page, Place, ScanEnd, ScanPage, ScanRequest
from kolk.model.schema import Schema
from kolk.model.table import TableInfo
from kolk.runtime.clock import Clock
from kolk.runtime.rng import Rng
from kolk.storage.meta import ABSENT, Meta, MetaChange

LOCAL = ""
"""The principal of scans within this process, which last as long as their owner has them."""
_TOKEN_KEY = "scan-token-key"


class Scans:
    """Opens scans and reads them. Thread-safe: what it keeps is in its parts."""

    def __init__(
        self,
        cutting: Cutting,
        meta: Meta,
        clock: Clock,
        rng: Rng,
        config: EngineConfig,
    ) -> None:
        self.sessions = ScanSessions(config, clock)
        self.nonces = Nonces(self.sessions, meta, clock, config.scan_shared_ttl_seconds)
        self._cutting = cutting
        self._clock = clock
        self._rng = rng
        self._config = config
        self._tokens = Tokens(_token_key(meta, rng))
        self._pid = os.getpid()

    def open(self, info: TableInfo, schema: Schema, request: ScanRequest, principal: str = LOCAL) -> Opened:
        """Pin the table, or the buckets that are named, at one moment. With a nonce that is known nothing new is
        opened."""
        info.schema.check_known()
        if not (info.is_log and request.nonce and request.is_shared and request.is_live):
            self._cutting.merger(info)  # else it is the moment that several readers of a log agree on
        if request.where is not None:
            request.where.check(schema)
        if not request.nonce:
            return self._open(info, schema, request, principal)
        return self.nonces.open(info.id, request, principal, lambda: self._open(info, schema, request, principal))

    def join(self, id: str, principal: str = LOCAL, only: Sequence[str] | None = None) -> Opened:
        """An open scan, for one more reader, of all buckets or of some."""
        with self.sessions.use(id, principal) as session:
            session.cut.check(only)
            return replace(session.opened(), start=START, resumed=None, is_owned=False)

    def place(self, id: str, token: str) -> Place:
        """The place that a token of this scan stands for."""
        found = self._tokens.decode(token)
        if found.scan != id:
            raise InvalidArgument("this token is of another scan; a token is good for the scan that gave it")
        return found.place

    def read(
        self, id: str, principal: str, place: Place, room: Room, only: Collection[str] | None = None
    ) -> tuple[Page, ScanPage]:
        """What comes after a place."""
        with self._reading(id, principal) as session:
            return self._handed(session, session.cut.page(place, room, only), only)

    def call(
        self,
        id: str,
        principal: str,
        cursor: str,
        seq: int,
        size_bytes: int,
        token: str = "",
        only: Sequence[str] | None = None,
    ) -> ScanPage:
        """One call of a cursor; see ``ScanSession``."""
        if size_bytes <= 0:
            raise InvalidArgument(f"the size of a page is a positive number of bytes, not {size_bytes}")
        start = self.place(id, token) if token else START
        with self._reading(id, principal) as session:
            session.cut.check(only)
            page, read = session.call(cursor, seq, self.room(size_bytes), start, only)
            return self._handed(session, page, read)[1]

    def room(self, size_bytes: int) -> Room:
        """A page of a size that a client asked for."""
        return Room(2**31, min(size_bytes, self._config.scan_page_bytes_max))

    def local(self, opened: Opened, token: str = "", only: Sequence[str] | None = None) -> "LocalScan":
        """An open scan for a reader in this process; the scan ends when nobody has it any more."""
        place = self.place(opened.id, token) if token else opened.start
        return LocalScan(self, opened, place, only, Room(self._config.scan_page_rows, self._config.scan_page_bytes_max))

    def end(self, id: str, principal: str | None = LOCAL) -> bool:
        """End a scan, whoever's it is if no principal is named; whether there was one."""
        return os.getpid() == self._pid and self.sessions.end(id, principal)

    def reap(self) -> None:
        """End what is due, and forget what nobody can mean any more."""
        self.sessions.reap()
        self.nonces.reap()

    # --- inside

    @contextmanager
    def _reading(self, id: str, principal: str) -> Iterator[ScanSession]:
        if os.getpid() != self._pid:
            raise UsedAfterFork("this scan was opened before a fork; call kolk.connect in the child")
        with self.sessions.use(id, principal) as session:
            try:
                yield session
            except KolkError as error:
                refusal = session.cut.refusal
                if refusal is None:
                    raise
                self.sessions.end(id, None, ScanEnd.REVOKED, taken_back(refusal))
                raise ended(ScanEnd.REVOKED, taken_back(refusal)) from error

    def _handed(self, session: ScanSession, page: Page, only: Collection[str] | None) -> tuple[Page, ScanPage]:
        self.sessions.served(session, page, only)
        token = self._tokens.encode(Token(session.id, session.query, page.place))
        return page, ScanPage(page.batch, page.runs, token, page.is_last, page.event)

    def _open(self, info: TableInfo, schema: Schema, request: ScanRequest, principal: str) -> Opened:
        start, ttl = START, self._ttl(request, principal)
        if request.resume:
            token = self._tokens.decode(request.resume)
            if token.query != request.walk(info.id):
                raise InvalidArgument("this token is of a scan of something else; ask for the same, or begin anew")
            start = token.place
        cut = self._cutting.cut(info, schema, request, principal)
        request = request.resolved(cut.pins, cut.offsets)
        resumed = cut.read_before(start) if request.resume else None
        if not cut.buckets:
            self.sessions.note_empty()
            return Opened(
                "",
                info.id,
                request,
                cut.offsets,
                schema,
                cut.arrow,
                0,
                start,
                False,
                resumed,
                cut.is_consistent,
                cut.starts,
            )
        try:
            id, now_ms, now = f"{self._rng.id128():032x}", self._clock.now_ms(), self._clock.monotonic()
            session = ScanSession(
                id, info.id, str(info.name), principal, request, cut, ttl, now_ms, now, start, resumed
            )
            self.sessions.add(session)
        except BaseException:
            cut.close()
            raise
        return session.opened()

    def _ttl(self, request: ScanRequest, principal: str) -> float | None:
        wanted, config = request.ttl_seconds, self._config
        if wanted is None:
            if principal == LOCAL and request.is_owned:
                return None
            return config.scan_shared_ttl_seconds if request.is_shared else config.scan_ttl_seconds
        if not 0 < wanted <= config.scan_ttl_seconds_max:
            raise InvalidArgument(f"ttl is more than 0 and at most {config.scan_ttl_seconds_max:g} s, not {wanted:g} s")
        return wanted


class LocalScan:
    """A reader in this process; see ``ScanPages`` of the client. Confined to one thread at a time; ``close`` may come
    from anywhere, and so may the garbage collector."""

    def __init__(self, scans: Scans, opened: Opened, place: Place, only: Sequence[str] | None, room: Room) -> None:
        self.id = opened.id
        self.offsets = dict(opened.offsets)
        self.schema = opened.arrow
        self.estimate = opened.estimate
        self.resumed = opened.resumed
        self.pins = opened.pins
        self.is_consistent = opened.is_consistent
        self.starts = dict(opened.starts)
        self._scans = scans
        self._place = place
        self._only = None if only is None else frozenset(only)
        self._room = room
        self._is_done = not opened.id
        self._unclosed = weakref.finalize(self, scans.sessions.orphan, opened.id) if opened.is_owned else None

    def next(self) -> ScanPage | None:
        """The next page; None at the end."""
        if self._is_done:
            return None
        page, handed = self._scans.read(self.id, LOCAL, self._place, self._room, self._only)
        self._place, self._is_done = page.place, page.is_last
        return handed

    def close(self) -> None:
        """End the scan, unless others may read it. Idempotent."""
        if self._unclosed is not None and self._unclosed.detach() is not None:
            self._scans.end(self.id)


def _token_key(meta: Meta, rng: Rng) -> bytes:
    """The key of this database's tokens, made when the database is first opened."""
    record = meta.get(_TOKEN_KEY)
    if record is not None:
        return record.value
    key = rng.token_bytes(KEY_BYTES)
    meta.write([MetaChange(_TOKEN_KEY, key, ABSENT)])
    return key
