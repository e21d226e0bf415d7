"""The requests about scans: open one, page through it, stream it, join it, end it, list them.

As in ``api``: who may, what came, then the engine. A scan belongs to the principal that opened it, not to a connection;
whoever reads on must still be allowed to read its table.
"""

from collections.abc import Callable, Generator
from typing import Any

import pyarrow as pa

from kolk.engine.database import Engine
from kolk.engine.session import Opened
from kolk.errors import InvalidArgument, TableNotFound
from kolk.model.grant import Operation, Principal
from kolk.model.predicate import Predicate
from kolk.model.scan import START, ScanPage, ScanRequest, ScanSource
from kolk.model.table import TableInfo
from kolk.server.records import shown_names
from kolk.wire import messages as m

STREAM_PAGE_BYTES = 2**20
"""Pages of a stream: the transport has several of them under way, so they need not be large."""

Allowed = Callable[[Principal, int, Operation], TableInfo]
Streamed = Generator[tuple[pa.RecordBatch, m.Page], None, None]
Answered = tuple[m.ScanRecord | m.ScanPart, pa.RecordBatch | None]


class Scanning:
    """Scans of clients, served by an engine. Thread-safe."""

    def __init__(self, engine: Engine, allowed: Allowed) -> None:
        self._engine = engine
        self._allowed = allowed

    def act(self, principal: Principal, action: m.AboutScans) -> Any:
        """Serve a request without rows."""
        match action:
            case m.JoinScan():
                self._table_of(principal, action.scan)
                return _record(self._engine.scans.join(action.scan, principal.name), None)
            case m.CloseScan():
                return self._close(principal, action)
            case m.ListScans():
                seen = self._tables(principal, Operation.DESCRIBE)
                return [each for each in self._engine.list_scans() if each.table in seen]

    def open(self, principal: Principal, asked: m.OpenScan) -> tuple[TableInfo, Answered]:
        """Open a scan; its first page is in the answer."""
        info = self._allowed(principal, asked.table, Operation.READ)
        schema = self._engine.schema(info.id, asked.schema_id)
        request = ScanRequest(
            names=shown_names(schema, asked.names),
            limit=asked.limit,
            where=None if asked.where is None else Predicate.parse(asked.where, schema),
            schema_id=schema.id,
            buckets=None if asked.buckets is None else tuple(dict.fromkeys(asked.buckets)),
            nonce=asked.nonce,
            is_shared=asked.shared,
            ttl_seconds=asked.ttl_seconds,
            linger_seconds=asked.linger_seconds,
            resume=asked.resume,
            source=_source(asked.source),
            lease=asked.lease,
            generation=asked.generation,
            pins=None if asked.pins is None else tuple(sorted(asked.pins.items())),
            position=asked.position,
        )
        scans = self._engine.scans
        opened = scans.open(info, schema, request, principal.name)
        if not opened.id or asked.shared:
            return info, (_record(opened, None), None)
        try:
            # Not by a cursor: whoever asks again with the nonce is given the same page.
            page = scans.read(opened.id, principal.name, opened.start, scans.room(asked.page_bytes))[1]
        except BaseException:
            scans.end(opened.id, principal.name)  # nobody has its id
            raise
        return info, (_record(opened, _part(page)), page.batch)

    def next_page(self, principal: Principal, asked: m.NextPage) -> tuple[TableInfo, Answered]:
        """One call of a cursor."""
        info = self._table_of(principal, asked.scan)
        page = self._engine.scans.call(
            asked.scan, principal.name, asked.cursor, asked.seq, asked.page_bytes, asked.token, asked.buckets
        )
        return info, (_part(page), page.batch)

    def stream(self, principal: Principal, asked: m.ReadScan) -> tuple[TableInfo, pa.Schema, Streamed]:
        """The rest of a scan, page by page."""
        info = self._table_of(principal, asked.scan)
        scans = self._engine.scans
        opened = scans.join(asked.scan, principal.name, asked.buckets)
        place = scans.place(asked.scan, asked.token) if asked.token else START
        only = None if asked.buckets is None else frozenset(asked.buckets)
        nothing = pa.RecordBatch.from_pylist([], schema=opened.arrow)

        def pages() -> Streamed:
            nonlocal place
            is_last = False
            with scans.sessions.followed(asked.scan):
                while not is_last:
                    page, handed = scans.read(asked.scan, principal.name, place, scans.room(STREAM_PAGE_BYTES), only)
                    place, is_last = page.place, page.is_last
                    yield handed.batch if handed.batch is not None else nothing, m.Page(part=_part(handed))

        return info, opened.arrow, pages()

    def _close(self, principal: Principal, asked: m.CloseScan) -> bool:
        """End a scan: one's own, or that of a table which one may alter."""
        scans = self._engine.scans
        if asked.nonce:
            return scans.nonces.close(asked.nonce, principal.name)
        if scans.end(asked.scan, principal.name):
            return True
        altered = self._tables(principal, Operation.ALTER)
        is_theirs = any(each.id == asked.scan and each.table in altered for each in scans.sessions.listed())
        return is_theirs and scans.end(asked.scan, None)

    def _tables(self, principal: Principal, operation: Operation) -> set[str]:
        return {str(info.name) for info in self._engine.tables() if principal.may(operation, info.name)}

    def _table_of(self, principal: Principal, scan: str) -> TableInfo:
        sessions = self._engine.scans.sessions
        table = sessions.table_of(scan, principal.name)
        try:
            return self._allowed(principal, table, Operation.READ)
        except TableNotFound:
            # Who had the scan knows the table. If it was dropped it took its rows back, which is what he is told.
            sessions.reap()
            sessions.table_of(scan, principal.name)
            raise


def _record(opened: Opened, first: m.ScanPart | None) -> m.ScanRecord:
    return m.ScanRecord(
        scan=opened.id,
        table=opened.table,
        offsets=opened.offsets,
        schema_id=opened.schema.id,
        names=None if opened.request.names is None else list(opened.request.names),
        estimate=opened.estimate,
        resumed=opened.resumed,
        first=first,
        pins=opened.pins,
        consistent=opened.is_consistent,
        starts=dict(opened.starts) or None,
    )


def _source(word: str) -> ScanSource:
    words = {source.value: source for source in ScanSource}
    if word not in words:
        raise InvalidArgument(f"the source of a scan is one of {', '.join(words)}, not {word[:50]!r}")
    return words[word]


def _part(page: ScanPage) -> m.ScanPart:
    return m.ScanPart(token=page.token, runs=page.runs, last=page.is_last, event=page.event)
