"""Scan sessions against a small model: whatever is opened, read, replayed, closed, left alone or taken back, counts,
caps and reasons agree, and in the end nothing is left that keeps RocksDB open.

The model of a session is a handful of plain values; what it shows is a list. Two tables of two buckets each, caps of a
few, and a clock that is moved by hand.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from tests.engine.scan_bench import ME, SCHEMA, TTL, ScanBench, ids_of

from kolk.engine.sessions import LINGER_SECONDS
from kolk.errors import InvalidArgument, TooManyScans, UnknownOrExpiredScan

FULL = os.environ.get("KOLK_FULL") == "1"
SCANS_MAX, PER_BUCKET_MAX, VIEWS_MAX = 4, 3, 10
NAMES = st.sampled_from(["web.t", "web.u"])
PAGE_BYTES = st.sampled_from([1, 700, 2**20])


@dataclass
class Session:
    """One session of the model."""

    id: str
    table: str
    views: int
    rows: list
    is_shared: bool
    last_use: float
    nonce: str
    cursors: dict = field(default_factory=dict)
    is_drained: bool = False
    end: str | None = None

    @property
    def ttl(self):
        if self.is_drained:
            return LINGER_SECONDS
        return 10 * TTL if self.is_shared else TTL


@dataclass
class Cursor:
    """How many calls it made, how many rows it had before the last page, and how many with it."""

    seq: int = -1
    before: int = 0
    after: int = 0


class Sessions(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    @initialize()
    def open_database(self):
        self.folder = Path(tempfile.mkdtemp())
        self.bench = ScanBench(
            self.folder / "data",
            rows=0,
            scans_max=SCANS_MAX,
            scans_per_bucket_max=PER_BUCKET_MAX,
            scan_views_max=VIEWS_MAX,
        )
        self.tables = {"web.t": self.bench.table}
        self.live = {"web.t": {}}
        self.open_sessions = []
        self.counts = dict.fromkeys(("opened", "ttl", "revoked", "refused"), 0)
        self.nonces = 0
        self._make("web.u")
        self.put("web.t", set(range(8)))
        self.put("web.u", {1, 2})

    def _make(self, name):
        self.tables[name] = self.bench.db.create_table(name, SCHEMA, buckets=2)
        self.live[name] = {}

    # --- the tables

    @rule(name=NAMES, ids=st.sets(st.integers(0, 30), min_size=1, max_size=12))
    def put_rows(self, name, ids):
        self.put(name, ids)

    def put(self, name, ids):
        self.tables[name].put([{"id": id, "v": "x" * 20, "n": 0} for id in ids])
        self.live[name] |= dict.fromkeys(ids)

    @rule(name=NAMES)
    def truncate(self, name):
        self.tables[name].truncate()
        self.live[name] = {}

    @rule(name=NAMES)
    def drop_and_make_anew(self, name):
        self.bench.db.drop_table(name)
        for session in self.open_sessions:
            if session.table == name:
                self._end(session, "closed" if session.is_drained else "revoked")
        self._make(name)

    # --- time

    @rule(seconds=st.sampled_from([1.0, LINGER_SECONDS, TTL, TTL + 0.001, 10 * TTL + 0.001]))
    def wait(self, seconds):
        self.bench.clock.advance(seconds=seconds)

    @rule()
    def reap(self):
        self.bench.engine.reap()
        self._expire()

    def _expire(self):
        """Those whose time is up end when anybody looks; a table that was dropped has taken its rows back before."""
        now = self.bench.clock.monotonic()
        for session in list(self.open_sessions):
            if now > session.last_use + session.ttl:
                self._end(session, "closed" if session.is_drained else "ttl")

    def _end(self, session, reason):
        session.end = reason
        if reason in self.counts:
            self.counts[reason] += 1

    # --- sessions

    @rule(
        target=sessions,
        name=NAMES,
        is_shared=st.sampled_from([False, False, True]),
        limit=st.none() | st.integers(1, 5),
        with_nonce=st.booleans(),
    )
    def open_scan(self, name, is_shared, limit, with_nonce):
        self.nonces += 1
        nonce = f"n{self.nonces}" if with_nonce else ""
        ids = sorted(self.live[name])
        views = len({tablet.bucket for tablet in self._tablets(name) if self._ids_in(tablet)})
        expected = self._cap(name, views) if ids else None
        request = {"is_shared": is_shared, "limit": limit, "nonce": nonce}
        if expected is not None:
            with pytest.raises(TooManyScans) as error:
                self.bench.open(table=self.tables[name], **request)
            assert error.value.cap == expected
            self.counts["refused"] += 1
            return multiple()
        opened = self.bench.open(table=self.tables[name], **request)
        self.counts["opened"] += 1
        if not ids:
            assert opened.id == ""
            return multiple()
        self._make_room(views)
        rows = self._shown(name, limit)
        assert set(rows) <= set(ids)
        session = Session(opened.id, name, views, rows, is_shared, self.bench.clock.monotonic(), nonce)
        self.open_sessions.append(session)
        return session

    def _tablets(self, name):
        return [each for each in self.bench.tablets if each.bucket.table == self.tables[name].info.id]

    def _ids_in(self, tablet):
        return tablet.between(b"\x01", b"\x02")

    def _shown(self, name, limit):
        """The rows of a table as it is now, in the order of a scan."""
        found = []
        for tablet in sorted(self._tablets(name), key=lambda tablet: tablet.bucket):
            codec = tablet.merger.codec
            found += [codec.decode_one_as(SCHEMA, value, ["id"])["id"][0].as_py() for value in self._ids_in(tablet)]
        return found[:limit]

    def _taking(self):
        return [session for session in self.open_sessions if not session.is_drained]

    def _lingering(self):
        return [session for session in self.open_sessions if session.is_drained]

    def _cap(self, name, views):
        """The cap that one more would pass. Buckets of one table all have the same scans, or no rows."""
        if len(self._taking()) >= SCANS_MAX:
            return "scans_max"
        crowded = self.bench.sessions._per_bucket
        if any(crowded[tablet.bucket] >= PER_BUCKET_MAX for tablet in self._tablets(name) if self._ids_in(tablet)):
            return "scans_per_bucket_max"
        if sum(session.views for session in self._taking()) + views > VIEWS_MAX:
            return "scan_views_max"
        return None

    def _make_room(self, views):
        """The oldest of those that linger go first."""
        while sum(session.views for session in self.open_sessions) + views > VIEWS_MAX:
            self._end(self._lingering()[0], "closed")
            self._settle()

    def _settle(self):
        self._expire()
        self.open_sessions = [session for session in self.open_sessions if session.end is None]

    @rule(session=sessions)
    def open_again(self, session):
        if not session.nonce:
            return
        table = self.tables[session.table]
        if session.end is None:
            request = {"nonce": session.nonce, "is_shared": session.is_shared}
            with pytest.raises(InvalidArgument, match="another scan"):
                self.bench.open(table=table, limit=77, **request)
        elif not session.is_shared:
            with pytest.raises((UnknownOrExpiredScan, InvalidArgument)):
                self.bench.open(table=table, nonce=session.nonce)

    @rule(session=sessions, cursor=st.sampled_from("ab"), page_bytes=PAGE_BYTES, how=st.sampled_from([0, 1, 1, 1, 2]))
    def page(self, session, cursor, page_bytes, how):
        """The last page again, the next one, or one out of order."""
        state = session.cursors.get(cursor, Cursor())
        seq = state.seq + how
        if session.end is not None:
            self._is_gone(session)
            return
        if how == 2 or seq < 0:
            with pytest.raises(InvalidArgument):
                self.bench.call(session.id, max(seq, 0) if how == 2 else 1, cursor=cursor, page_bytes=page_bytes)
            return
        page = self.bench.call(session.id, seq, cursor=cursor, page_bytes=page_bytes)
        start = state.before if how == 0 else state.after
        rows = ids_of([page])
        assert rows == session.rows[start : start + len(rows)]
        if how == 0:
            assert len(rows) == state.after - state.before
        assert rows or start == len(session.rows)
        session.cursors[cursor] = Cursor(seq, start, start + len(rows))
        assert page.is_last == (start + len(rows) == len(session.rows))
        session.last_use = self.bench.clock.monotonic()
        session.is_drained |= page.is_last and not session.is_shared

    def _is_gone(self, session):
        with pytest.raises(UnknownOrExpiredScan) as error:
            self.bench.call(session.id)
        assert error.value.reason == session.end

    @rule(session=sessions)
    def close(self, session):
        assert self.bench.scans.end(session.id, ME) == (session.end is None)
        if session.end is None:
            self._end(session, "closed")

    @rule(session=sessions)
    def call_as_somebody_else(self, session):
        with pytest.raises(UnknownOrExpiredScan) as error:
            self.bench.call(session.id, principal="somebody")
        assert error.value.reason in ("unknown", session.end)

    # --- what always holds

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "bench"):
            return
        counts = self.bench.counts  # which looks at who is due
        self._settle()
        assert counts.open == len(self._taking())
        assert counts.views == sum(session.views for session in self.open_sessions) == self.bench.views_open
        assert (counts.opened, counts.expired) == (self.counts["opened"], self.counts["ttl"])
        assert (counts.revoked, counts.refused) == (self.counts["revoked"], self.counts["refused"])
        assert counts.open <= SCANS_MAX
        assert counts.views <= VIEWS_MAX
        listed = {info.id: info.is_drained for info in self.bench.sessions.listed()}
        assert listed == {session.id: session.is_drained for session in self.open_sessions}

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        try:
            self.bench.sessions.close()
            assert self.bench.views_open == 0
            assert self.bench.sessions._per_bucket == {}
            self.bench.reopen()  # RocksDB refuses that while a view keeps it open
            assert set(self.bench.ids(self.bench.open().id)) == set(self.live["web.t"]) if self.live["web.t"] else True
        finally:
            self.bench.close()
            shutil.rmtree(self.folder)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=100 if FULL else 20, stateful_step_count=60 if FULL else 30)
