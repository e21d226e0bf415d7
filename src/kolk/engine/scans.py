"""A table scan: every bucket pinned at one moment, then read page by page."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import pyarrow as pa

from kolk.errors import PartitionDropped, UsedAfterFork
from kolk.model.ids import BucketId
from kolk.model.partition import PartitionEvent, PartitionEventKind
from kolk.model.predicate import Predicate
from kolk.model.schema import Schema
from kolk.storage.view import View
from kolk.tablet.tablet import Tablet

_PAGES_READ_MAX = 64
"""How many pages without a row that is wanted are read in one call: a reader who gave up is noticed in between."""


class TableScan:
    """One consistent cut of a table, or those of its rows that a predicate selects. Confined to one reader at a time;
    ``close`` may come from anywhere.

    A partition that is dropped meanwhile takes its own rows away; the reader is told once, and goes on.
    """

    def __init__(
        self,
        views: Sequence[tuple[BucketId, View]],
        places: Mapping[str, int],
        schema: Schema,
        names: Sequence[str] | None,
        limit: int | None,
        page_rows: int,
        where: Predicate | None = None,
    ) -> None:
        self.offsets = {bucket.name: view.offset for bucket, view in views} | dict(places)
        self._views = [view for _, view in views]
        self._unread = list(views)
        self._schema = schema
        self._names = names
        self._where = where
        self._left = limit
        self._page_rows = page_rows
        self._pid = os.getpid()

    @staticmethod
    def open(
        tablets: Sequence[Tablet],
        schema: Schema,
        names: Sequence[str] | None,
        limit: int | None,
        page_rows: int,
        places: Mapping[str, int],
        where: Predicate | None = None,
    ) -> "TableScan":
        """Pin all tablets while all their locks are held: no put falls between two of the views.

        The rows are shown in this version of the table's schema, whatever version each was written with.
        ``places`` are the offsets of what is no bucket: the record of partitions, if the table has one.
        """
        with ExitStack() as held:
            for tablet in tablets:
                held.enter_context(tablet.held())
            views = [(tablet.bucket, tablet.pin_view()) for tablet in tablets]
        return TableScan(views, places, schema, names, limit, page_rows, where)

    def next(self) -> pa.RecordBatch | PartitionEvent | None:
        """The next page, or that a partition is gone; None when the table, or the limit, is used up.

        A page without rows only says that there were none among those read so far.
        """
        if os.getpid() != self._pid:
            raise UsedAfterFork("this scan was opened before a fork; call kolk.connect in the child")
        pages = 0
        while self._unread and self._left != 0:
            try:
                page = self._unread[0][1].next(self._rows_to_read, self._names, self._where, self._schema)
            except PartitionDropped as error:
                return self._without(error.partition)
            if page is None:
                self._unread.pop(0)[1].close()
                continue
            pages += 1
            if page.num_rows or pages == _PAGES_READ_MAX:
                return self._limited(page)
        return None

    def close(self) -> None:
        """Let every view go. Idempotent."""
        if os.getpid() == self._pid:
            for view in self._views:
                view.close()

    @property
    def _rows_to_read(self) -> int:
        # Nobody knows how many rows must be read to find so many of those that are wanted.
        return self._page_rows if self._left is None or self._where is not None else min(self._page_rows, self._left)

    def _limited(self, page: pa.RecordBatch) -> pa.RecordBatch:
        if self._left is None:
            return page
        page = page.slice(0, self._left)
        self._left -= page.num_rows
        return page

    def _without(self, partition: str) -> PartitionEvent:
        """Read on without a partition that is gone."""
        self._unread = [(bucket, view) for bucket, view in self._unread if bucket.partition_name != partition]
        return PartitionEvent(
            kind=PartitionEventKind.DROPPED, partition=partition, position=0, timestamp_ms=0, unread=None
        )
