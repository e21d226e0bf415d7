"""A scan session: a cut, its readers' cursors, and when it was last used.

A cursor is one reader's way through the cut. It names its calls by a count: the call after the last one brings the next
page, the last one again brings the same page again, and anything else is a mistake that changes nothing. So a reader
whose answer was lost simply asks again.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from kolk.engine.cut import Cut, Room
from kolk.errors import InvalidArgument
from kolk.model.ids import TableId
from kolk.model.scan import START, Page, Place, Resumed, ScanEnd, ScanRequest, rows_of
from kolk.model.schema import Schema

CURSORS_MAX = 4_096
"""How many readers of one session are remembered; those after it displace who was used longest ago."""
_UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class Opened:
    """A scan that was opened, or joined: enough to read it. Without an id there is nothing to read."""

    id: str
    table: TableId
    request: ScanRequest
    offsets: dict[str, int]
    schema: Schema
    arrow: pa.Schema
    estimate: int | None
    start: Place
    is_owned: bool
    """Whether it ends with its reader: nobody else may be reading it."""
    resumed: Resumed | None = None
    is_consistent: bool = True
    starts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of a log table, of which the log is all there is, where each bucket began."""

    @property
    def pins(self) -> dict[str, int] | None:
        """The snapshots that it shows, by bucket; None if it shows the living rows."""
        return None if self.request.pins is None else dict(self.request.pins)


@dataclass(slots=True)
class _Cursor:
    """One reader: where the page begins that it had last, and that page, without its rows."""

    seq: int
    start: Place
    page: Page | None
    only: tuple[str, ...] | None


class ScanSession:
    """One open scan. Its life (``uses``, ``last_use`` and what follows) belongs to ``ScanSessions`` and its lock; here
    one lock guards the cursors, and each cursor has one more, so that its calls are served in turn."""

    def __init__(
        self,
        id: str,
        table: TableId,
        table_name: str,
        principal: str,
        request: ScanRequest,
        cut: Cut,
        ttl_seconds: float | None,
        opened_ms: int,
        now: float,
        start: Place = START,
        resumed: Resumed | None = None,
    ) -> None:
        # Constant after construction.
        self.id = id
        self.table = table
        self.table_name = table_name
        self.principal = principal
        self.request = request
        self.query = request.walk(table)
        self.cut = cut
        self.ttl_seconds = ttl_seconds
        self.opened_ms = opened_ms
        self.start = start
        self.resumed = resumed
        # Guarded by the lock of ScanSessions.
        self.uses = 0
        self.last_use = now
        self.last_use_ms = opened_ms
        self.is_drained = False
        self.unread = {bucket.name for bucket in cut.buckets}
        self.readers = 0
        self.end: tuple[ScanEnd, str] | None = None
        self.rows = 0
        self.size_bytes = 0
        self._lock = threading.RLock()
        # Guarded by _lock.
        self._cursors: OrderedDict[str, tuple[_Cursor, AbstractContextManager[bool]]] = OrderedDict()

    @property
    def gives_way(self) -> bool:
        """Whether others may have its place while nobody reads it."""
        return self.request.linger_seconds is not None

    def opened(self) -> Opened:
        """What its reader must know of it."""
        cut = self.cut
        return Opened(
            id=self.id,
            table=self.table,
            request=self.request,
            offsets=cut.offsets,
            schema=cut.schema,
            arrow=cut.arrow,
            estimate=cut.estimate,
            start=self.start,
            is_owned=self.request.is_owned,
            resumed=self.resumed,
            is_consistent=cut.is_consistent,
        )

    def call(
        self,
        cursor: str,
        seq: int,
        room: Room,
        start: Place = START,
        only: Sequence[str] | None = None,
    ) -> tuple[Page, tuple[str, ...] | None]:
        """Serve one call of a cursor; ``start`` and ``only`` are for its first. The answer is the page, and which
        buckets the cursor reads, None for all."""
        with self._lock:
            found = self._cursors.get(cursor)
            if found is None:
                if seq != 0:
                    raise InvalidArgument(
                        f"this scan has no cursor {cursor[:50]!r}, or has forgotten it; begin it with call 0, at the"
                        " token of the last page that you have"
                    )
                self._forget_oldest()
                fresh = _Cursor(-1, start, None, None if only is None else tuple(only))
                found = self._cursors[cursor] = (fresh, threading.RLock())
            self._cursors.move_to_end(cursor)
        state, lock = found
        with lock:
            return self._serve(state, seq, room), state.only

    def _serve(self, cursor: _Cursor, seq: int, room: Room) -> Page:
        if seq not in (cursor.seq, cursor.seq + 1):
            raise InvalidArgument(
                f"call {seq} is out of order: the last was {cursor.seq}, so {max(cursor.seq, 0)} repeats it and"
                f" {cursor.seq + 1} goes on; the scan is still there"
            )
        if cursor.page is not None and seq == cursor.seq:
            return self._again(cursor, cursor.page)
        start = cursor.start if cursor.page is None else cursor.page.place
        page = self.cut.page(start, room, cursor.only)
        # Only now, so that a call that failed can be made again.
        cursor.seq, cursor.start, cursor.page = seq, start, replace(page, batch=None)
        return page

    def _again(self, cursor: _Cursor, last: Page) -> Page:
        """The last page once more: just as many rows, whatever is asked for now and however many would fit."""
        rows = rows_of(last.runs)
        if not rows:
            return last
        page = self.cut.page(cursor.start, Room(rows, _UNBOUNDED, _UNBOUNDED), cursor.only)
        if page.runs == last.runs:
            return replace(last, batch=page.batch)
        cursor.page = replace(page, batch=None)  # a partition went, and its rows with it
        return page

    def _forget_oldest(self) -> None:
        while len(self._cursors) >= CURSORS_MAX:
            self._cursors.popitem(last=False)
