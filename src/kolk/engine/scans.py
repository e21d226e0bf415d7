"""A table scan: every bucket pinned at one moment, then read page by page."""

import os
from collections.abc import Sequence
from contextlib import ExitStack

import pyarrow as pa

from kolk.errors import UsedAfterFork
from kolk.storage.view import View
from kolk.tablet.tablet import Tablet


class TableScan:
    """One consistent cut of a table. Confined to one reader at a time; ``close`` may come from anywhere."""

    def __init__(
        self,
        views: Sequence[tuple[str, View]],
        names: Sequence[str] | None,
        limit: int | None,
        page_rows: int,
    ) -> None:
        self.offsets = {bucket: view.offset for bucket, view in views}
        self._views = [view for _, view in views]
        self._unread = list(self._views)
        self._names = names
        self._left = limit
        self._page_rows = page_rows
        self._pid = os.getpid()

    @staticmethod
    def open(tablets: Sequence[Tablet], names: Sequence[str] | None, limit: int | None, page_rows: int) -> "TableScan":
        """Pin all tablets while all their locks are held: no put falls between two of the views."""
        with ExitStack() as held:
            for tablet in tablets:
                held.enter_context(tablet.held())
            views = [(tablet.bucket.name, tablet.pin_view()) for tablet in tablets]
        return TableScan(views, names, limit, page_rows)

    def next(self) -> pa.RecordBatch | None:
        """The next page; None when the table, or the limit, is used up."""
        if os.getpid() != self._pid:
            raise UsedAfterFork("this scan was opened before a fork; call kolk.connect in the child")
        while self._unread and self._left != 0:
            rows = self._page_rows if self._left is None else min(self._page_rows, self._left)
            page = self._unread[0].next(rows, self._names)
            if page is not None:
                if self._left is not None:
                    self._left -= page.num_rows
                return page
            self._unread.pop(0).close()
        return None

    def close(self) -> None:
        """Let every view go. Idempotent."""
        if os.getpid() == self._pid:
            for view in self._views:
                view.close()
