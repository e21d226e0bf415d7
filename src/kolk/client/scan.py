"""A scan: the table as it was at one moment, or a part of it, as record batches."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from kolk.client.changelog import HandOut, OnPartition, at_once, ignored
from kolk.client.link import Link
from kolk.client.resume import LOSSES_MAX, Resumption
from kolk.client.service import ScanPages
from kolk.errors import Closed, InvalidArgument, KolkError, PartitionDropped, Unavailable, UnknownOrExpiredScan
from kolk.model.scan import ScanPage

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Found = dict[str, list[pa.RecordBatch]]
OnProgress = Callable[[int, int | None], object]


class Scan:
    """Iterate for ``pa.RecordBatch`` pages, or ask for everything at once. A context manager.

    ``offsets`` maps each bucket to the log offset that the scan stands for: the table's changelog from there on is
    exactly what came after. ``id`` names it for other readers, if it is shared; ``token`` is the place after the last
    batch that was handed out; ``rows`` is how many rows were, and ``estimate`` about how many there are, if anybody
    knows. ``consistent`` is False if its buckets are snapshots of several moments. Failures are sticky: a scan that
    failed once fails again, it never looks finished. Confined to one reader at a time.

    A partition that is dropped meanwhile takes its rows away. Whoever gave ``on_partition`` is told so; without it the
    scan raises PartitionDropped, once, and can be iterated on for the rows of the others.
    """

    def __init__(
        self,
        link: Link,
        pages: ScanPages,
        table: str,
        on_partition: OnPartition | None = None,
        on_progress: OnProgress | None = None,
        resumption: Resumption | None = None,
        schema: pa.Schema | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        self.id = pages.id
        self.offsets = dict(pages.offsets)
        self.schema = schema or pages.schema
        self.estimate = pages.estimate
        self.consistent = pages.is_consistent
        self.rows = 0
        self.token = ""
        self._link = link  # kept, so that the connection lives as long as the scan
        self._pages = pages
        self._on_partition = on_partition
        self._on_progress = on_progress
        self._resumption = resumption
        self._table = table
        self._is_shared = is_shared
        self._error: KolkError | None = None
        self._given_back: deque[pa.RecordBatch] = deque()
        self._found: Found = {}
        self._losses = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, taken: Callable[[HandOut], object] = at_once) -> Iterator[pa.RecordBatch]:
        """The same for a reader that is given a batch later than it is taken, or not at all: ``taken`` gets, before
        each batch, what to call when it is handed out. Until then ``token`` and ``rows`` do not count it."""
        if self._resumption is not None:
            raise InvalidArgument(
                'resume="log" mends what was read, so it needs the whole result: to_arrow(), to_pandas() or'
                " to_polars(); table.bootstrap() goes on by itself batch by batch"
            )
        yield from self._batches(taken)

    def give_back(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Batches that were taken and not used: they come first, before what is left."""
        self._given_back.extendleft(reversed([*batches]))

    def to_arrow(self) -> pa.Table:
        """All rows that are left, as one table.

        If a partition is dropped, or something else interrupts it that is not the end of the scan, nothing that was
        read is lost: a second call has it too.
        """
        if self._resumption is not None:
            rows = self._whole(self._resumption).select(self.schema.names)
            given_back, self._given_back = self._given_back, deque()
            return pa.Table.from_batches([*given_back, *rows.to_batches()], self.schema)
        batches: list[pa.RecordBatch] = []
        try:
            batches.extend(self._batches())
        except BaseException:
            self.give_back(batches)
            raise
        return pa.Table.from_batches(batches, self.schema)

    def to_pandas(self, **options: Any) -> "pd.DataFrame":
        """All rows that are left, as a pandas frame; the options are those of ``pyarrow.Table.to_pandas``."""
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> "pl.DataFrame":
        """All rows that are left, as a polars frame."""
        import polars

        return polars.DataFrame(self.to_arrow())

    def pages(self, taken: Callable[[HandOut], object] = at_once) -> Iterator[ScanPage]:
        """What is left, page by page, each with the buckets that its rows are of and the token after it."""
        while True:
            if self._error is not None:
                raise self._error
            try:
                page = self._pages.next()
            except BaseException as error:
                # Whatever it was, the page is gone: reading on would leave a hole that nobody sees.
                self._error = error if isinstance(error, KolkError) else Closed(f"this scan failed: {error!r}")
                self._pages.close()
                raise
            if page is None:
                if not self._is_shared:  # others may still read it
                    self._pages.close()
                return
            hand_out = partial(self._hand_out, page)
            if page.event is not None:
                if self._on_partition is None:
                    taken(hand_out)
                else:
                    hand_out()
                    self._on_partition(page.event)
                if self._on_partition is None or self._resumption is not None:  # which mends it, whoever was told
                    raise page.event.error
            elif page.batch is not None and page.batch.num_rows:
                taken(hand_out)
                yield page
                self._tell()  # only now: if it fails, the page is not lost
            else:
                hand_out()
                self._tell()

    def close(self) -> None:
        """Let the rows go. Idempotent; reading on raises Closed."""
        self._error = self._error or Closed("this scan is closed")
        self._pages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        about = "" if self.estimate is None else f" of about {self.estimate:,}"
        end = "" if self._error is None else ", closed" if isinstance(self._error, Closed) else ", failed"
        return f"<kolk.Scan of {self._table}, {self.rows:,} rows read{about}{end}>"

    def _hand_out(self, page: ScanPage) -> None:
        self.token = page.token
        self.rows += 0 if page.batch is None else page.batch.num_rows

    def _batches(self, taken: Callable[[HandOut], object] = at_once) -> Iterator[pa.RecordBatch]:
        while True:
            if self._given_back:
                if self._error is not None:
                    raise self._error
                yield self._given_back.popleft()
                continue
            for page in self.pages(taken):
                assert page.batch is not None
                yield page.batch
            return

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.rows, self.estimate)

    def _whole(self, resumption: Resumption) -> pa.Table:
        """Every row, whatever happens to the scan meanwhile, all of one moment. If it fails, what was read is kept for
        the next call."""
        while True:
            try:
                for page in self.pages():
                    _sort_in(self._found, page)
            except (UnknownOrExpiredScan, Unavailable, PartitionDropped) as lost:
                self._losses += 1
                if isinstance(lost, Closed) or self._losses > LOSSES_MAX:
                    raise
                self._go_on(resumption, lost)
            else:
                found, self._found = self._found, {}
                return pa.Table.from_batches([batch for each in found.values() for batch in each], self._pages.schema)

    def _go_on(self, resumption: Resumption, lost: KolkError) -> None:
        """Open the scan again, and carry what was read over to its moment. If that fails, what was lost is told too."""
        with suppress(KolkError):
            self._pages.close()
        try:
            pages = resumption.open(self.token)
            try:
                found = self._mended(resumption, pages)
            except BaseException:
                pages.close()
                raise
        except KolkError as error:
            raise error from lost
        self._pages, self._found, self._error = pages, found, None
        self.id, self.offsets = pages.id, dict(pages.offsets)
        self.rows = sum(batch.num_rows for each in found.values() for batch in each)

    def _mended(self, resumption: Resumption, pages: ScanPages) -> Found:
        """What was read, as it is at the moment of a new scan."""
        resumed = pages.resumed
        if resumed is None:
            return {}
        changed: Found = {}
        for bucket, batch in resumption.changes(self.offsets, pages.offsets, resumed, ignored):
            changed.setdefault(bucket, []).append(batch)
        # A bucket of a partition that is gone has no rows; one that was made anew is read anew.
        return {
            bucket: resumption.mended(self._found.get(bucket, []), changed.get(bucket, []), pages.schema)
            for bucket in (*resumed.whole, resumed.bucket)
            if bucket is not None
        }


def _sort_in(found: Found, page: ScanPage) -> None:
    """Add the rows of a page to those of their buckets."""
    assert page.batch is not None
    start = 0
    for bucket, count in page.runs:
        found.setdefault(bucket, []).append(page.batch.slice(start, count))
        start += count
