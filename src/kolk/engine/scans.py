"""A table scan: every bucket pinned at one moment, then read page by page."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import pyarrow as pa

from kolk.errors import PartitionDropped, UsedAfterFork
from kolk.model.ids import BucketId
from kolk.model.partition import PartitionEvent, PartitionEventKind
from kolk.storage.view import View
from kolk.tablet.tablet import Tablet


class TableScan:
    """One consistent cut of a table. Confined to one reader at a time; ``close`` may come from anywhere.

    A partition that is dropped meanwhile takes its own rows away; the reader is told once, and goes on.
    """

    def __init__(
        self,
        views: Sequence[tuple[BucketId, View]],
        places: Mapping[str, int],
        names: Sequence[str] | None,
        limit: int | None,
        page_rows: int,
    ) -> None:
        self.offsets = {bucket.name: view.offset for bucket, view in views} | dict(places)
        self._views = [view for _, view in views]
        self._unread = list(views)
        self._names = names
        self._left = limit
        self._page_rows = page_rows
        self._pid = os.getpid()

    @staticmethod
    def open(
        tablets: Sequence[Tablet],
        names: Sequence[str] | None,
        limit: int | None,
        page_rows: int,
        places: Mapping[str, int],
    ) -> "TableScan":
        """Pin all tablets while all their locks are held: no put falls between two of the views.

        ``places`` are the offsets of what is no bucket: the record of partitions, if the table has one.
        """
        with ExitStack() as held:
            for tablet in tablets:
                held.enter_context(tablet.held())
            views = [(tablet.bucket, tablet.pin_view()) for tablet in tablets]
        return TableScan(views, places, names, limit, page_rows)

    def next(self) -> pa.RecordBatch | PartitionEvent | None:
        """The next page, or that a partition is gone; None when the table, or the limit, is used up."""
        if os.getpid() != self._pid:
            raise UsedAfterFork("this scan was opened before a fork; call kolk.connect in the child")
        while self._unread and self._left != 0:
            rows = self._page_rows if self._left is None else min(self._page_rows, self._left)
            try:
                page = self._unread[0][1].next(rows, self._names)
            except PartitionDropped as error:
                return self._without(error.partition)
            if page is not None:
                if self._left is not None:
                    self._left -= page.num_rows
                return page
            self._unread.pop(0)[1].close()
        return None

    def close(self) -> None:
        """Let every view go. Idempotent."""
        if os.getpid() == self._pid:
            for view in self._views:
                view.close()

    def _without(self, partition: str) -> PartitionEvent:
        """Read on without a partition that is gone."""
        self._unread = [(bucket, view) for bucket, view in self._unread if bucket.partition_name != partition]
        return PartitionEvent(
            kind=PartitionEventKind.DROPPED, partition=partition, position=0, timestamp_ms=0, unread=None
        )
