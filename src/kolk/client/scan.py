"""A scan: the table as it was at one moment, or a part of it, as record batches."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from kolk.client.link import Link
from kolk.client.service import ScanPages
from kolk.errors import Closed, KolkError, PartitionDropped
from kolk.model.partition import PartitionEvent

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class Scan:
    """Iterate for ``pa.RecordBatch`` pages, or ask for everything at once. A context manager.

    ``offsets`` maps each bucket to the log offset that the scan stands for: the table's changelog from there on is
    exactly what came after. Failures are sticky: a scan that failed once fails again, it never looks finished.
    Confined to one reader at a time.

    A partition that is dropped meanwhile takes its rows away. Whoever gave ``on_partition`` is told so; without it the
    scan raises PartitionDropped, once, and can be iterated on for the rows of the others.
    """

    def __init__(
        self,
        link: Link,
        pages: ScanPages,
        schema: pa.Schema,
        on_partition: Callable[[PartitionEvent], object] | None = None,
    ) -> None:
        self.offsets = dict(pages.offsets)
        self.schema = schema
        self._link = link  # kept, so that the connection lives as long as the scan
        self._pages = pages
        self._on_partition = on_partition
        self._error: KolkError | None = None
        self._given_back: deque[pa.RecordBatch] = deque()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            if self._error is not None:
                raise self._error
            if self._given_back:
                yield self._given_back.popleft()
                continue
            try:
                page = self._pages.next()
            except BaseException as error:
                # Whatever it was, the page is gone: reading on would leave a hole that nobody sees.
                self._error = error if isinstance(error, KolkError) else Closed(f"this scan failed: {error!r}")
                self._pages.close()
                raise
            if page is None:
                self._pages.close()
                return
            if isinstance(page, PartitionEvent):
                if self._on_partition is None:
                    raise page.error
                self._on_partition(page)
            elif page.num_rows:
                yield page

    def to_arrow(self) -> pa.Table:
        """All rows that are left, as one table.

        If a partition is dropped, nothing that was read is lost: a second call has it too, without that partition.
        """
        batches: list[pa.RecordBatch] = []
        try:
            batches.extend(self)
        except PartitionDropped:
            self._given_back.extend(batches)
            raise
        return pa.Table.from_batches(batches, self.schema)

    def to_pandas(self, **options: Any) -> "pd.DataFrame":
        """All rows that are left, as a pandas frame; the options are those of ``pyarrow.Table.to_pandas``."""
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> "pl.DataFrame":
        """All rows that are left, as a polars frame."""
        import polars

        return polars.DataFrame(self.to_arrow())

    def close(self) -> None:
        """Let the rows go. Idempotent; reading on raises Closed."""
        self._error = self._error or Closed("this scan is closed")
        self._pages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
