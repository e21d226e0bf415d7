"""Reading an open scan of a server: by pages if it is small or limited, else as a stream.

Both go on by themselves when the connection breaks: a page is asked for again under its number, and a stream is opened
again at the token of the last batch that was handed out. Nothing is asked for ahead of its use beyond what the
transport has under way, and nothing at all beyond a limit.
"""

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

from kolk.client.retry import Deadline, Retry
from kolk.client.streams import Stream
from kolk.errors import Closed, KolkError, TimedOut, UnknownOrExpiredScan, Unreachable
from kolk.model.scan import ScanPage
from kolk.wire import messages as m
from kolk.wire.rows import read_answer

FIRST_PAGE_BYTES = 64 * 1024
PAGE_BYTES_MAX = 4 * 2**20
_GROWTH = 4
_STREAM_ROWS_MIN = 100_000
"""A limit below this is read by pages."""
_CLOSE_SECONDS = 2.0


class ScanCalls(Protocol):
    """What a reader needs of the connection. The record of an answer is in plain values."""

    def scan_page(self, call: m.OpenScan | m.NextPage) -> tuple[Any, pa.Buffer]:
        """Ask for a page, again and again if it helps."""
        ...

    def scan_stream(self, ticket: m.ReadScan, deadline: Deadline) -> Stream:
        """Ask for a stream."""
        ...

    def end_scan(self, scan: str, nonce: str, seconds: float) -> bool:
        """End a scan; whether there was one."""
        ...

    def orphan_scan(self, scan: str) -> None:
        """Nobody has this scan any more. Called by the garbage collector, so it sends nothing."""
        ...


class RemoteScan:
    """See ``ScanPages``. Confined to one reader at a time; ``close`` may come from anywhere."""

    def __init__(
        self,
        calls: ScanCalls,
        record: m.ScanRecord,
        schema: pa.Schema,
        rows: pa.Buffer | None,
        retry: Retry,
        *,
        cursor: str,
        limit: int | None,
        is_owned: bool,
        is_shared: bool,
        token: str = "",
        buckets: Sequence[str] | None = None,
    ) -> None:
        self.id = record.scan
        self.offsets = dict(record.offsets)
        self.schema = schema
        self.estimate = record.estimate
        self.resumed = record.resumed
        self.pins = record.pins
        self.is_consistent = record.consistent
        self.starts = record.starts or {}
        self._calls = calls
        self._retry = retry
        self._cursor = cursor
        self._is_shared = is_shared
        self._is_streamed = limit is None or limit >= _STREAM_ROWS_MIN
        self._buckets = None if buckets is None else list(buckets)
        self._token = token
        self._seq = 0
        self._page_bytes = FIRST_PAGE_BYTES
        self._stream: Stream | None = None
        self._first = None if record.first is None else _page(record.first, rows, schema)
        self._is_done = not record.scan
        self._is_closed = False
        self._unclosed = weakref.finalize(self, calls.orphan_scan, self.id) if is_owned and self.id else None
        if self._unclosed is not None:
            self._unclosed.atexit = False

    def next(self) -> ScanPage | None:
        """See ``ScanPages``."""
        if self._is_done:
            return None
        if self._is_closed:
            raise Closed("this scan is closed")
        page, self._first = self._first, None
        if page is None:
            try:
                page = self._retry.run(self._streamed) if self._is_streamed else self._paged()
            except UnknownOrExpiredScan:
                self._is_ours()  # there is nothing to end
                raise
        self._token, self._is_done = page.token, page.is_last
        if page.is_last and not self._is_shared:
            self._is_ours()  # it goes by itself
        return page

    def close(self) -> None:
        """See ``ScanPages``. One that was read to its end goes by itself, unless it is shared."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.cancel()
        if self._is_ours():
            with suppress(KolkError):
                self._calls.end_scan(self.id, "", _CLOSE_SECONDS)

    def _is_ours(self) -> bool:
        """Whether it is for us to end it; from now on it is not."""
        return self._unclosed is not None and self._unclosed.detach() is not None

    def _paged(self) -> ScanPage:
        call = m.NextPage(
            scan=self.id,
            cursor=self._cursor,
            seq=self._seq,
            page_bytes=self._page_bytes,
            token="" if self._seq else self._token,
            buckets=None if self._seq else self._buckets,
        )
        record, rows = self._calls.scan_page(call)
        self._seq += 1
        self._page_bytes = min(self._page_bytes * _GROWTH, PAGE_BYTES_MAX)
        return _page(m.as_record(record, m.ScanPart), rows, self.schema)

    def _streamed(self, deadline: Deadline) -> ScanPage:
        if self._is_closed:
            raise Closed("this scan is closed")
        if self._stream is None:
            ticket = m.ReadScan(scan=self.id, token=self._token, buckets=self._buckets)
            self._stream = self._calls.scan_stream(ticket, deadline)
        try:
            found = self._stream.next(deadline.seconds_left)
            part = None if found is None else found[1].part
            if found is None or part is None:
                raise Unreachable("the server ended the scan in the middle; retry")
        except BaseException:
            self._stream = None
            raise
        return _page(part, None, self.schema, found[0])


def opened_scan(
    open_: Callable[[], tuple[Any, pa.Buffer]], give_up: Callable[[], object]
) -> tuple[m.ScanRecord, pa.Buffer]:
    """Open a scan. If that is interrupted nobody has its id, so it is ended by its nonce."""
    try:
        record, rows = open_()
    except BaseException as error:
        if not isinstance(error, KolkError) or isinstance(error, Unreachable | TimedOut):
            with suppress(Exception):
                give_up()
        raise
    return m.as_record(record, m.ScanRecord), rows


def _page(part: m.ScanPart, rows: pa.Buffer | None, schema: pa.Schema, batch: pa.RecordBatch | None = None) -> ScanPage:
    if batch is None and rows is not None and rows.size:
        batch = read_answer(rows, schema)
    return ScanPage(batch, part.runs, part.token, part.last, part.event)
