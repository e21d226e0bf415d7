"""Bootstrap: the whole table, and then every change after it, as one stream of changes.

First the rows of a scan, as insertions; then the changelog from the scan's offsets on. If the scan is lost in the
middle, what has happened meanwhile to the rows that were handed out comes next, as changes, and then the scan goes on
at the new moment: a consumer that applies what it is handed is right at every step.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self

import pyarrow as pa

from kolk.client.changelog import Changelog, HandOut, OnPartition, at_once
from kolk.client.link import Link
from kolk.client.resume import LOSSES_MAX, Between, Resumption
from kolk.client.service import ScanPages
from kolk.errors import Closed, HolderLost, InvalidArgument, KolkError, Unavailable, UnknownOrExpiredScan
from kolk.model.durations import Duration
from kolk.model.names import check_name
from kolk.model.page import changelog_schema
from kolk.model.predicate import Predicate
from kolk.model.scan import ScanPage, ScanRequest
from kolk.model.table import TableInfo, check_partitions_only


class Bootstrap:
    """Iterate for ``pa.RecordBatch`` pages with the change columns, in the version of the schema that the table's
    handle speaks. A context manager. Confined to one reader at a time; ``close`` may come from another thread.

    ``offsets`` is where the changelog goes on: once ``is_scanned``, kept and given as ``start`` to ``table.changelog``
    it misses nothing. The rows of the scan come as ``+I`` with the last offset that they include.
    """

    def __init__(
        self,
        link: Link,
        info: TableInfo,
        *,
        where: Predicate | None,
        follow: bool,
        follower: str | None,
        ttl_seconds: float | None,
        commit_interval: Duration | None,
        on_partition: OnPartition | None,
        on_progress: Callable[[int, int | None], object] | None,
    ) -> None:
        if info.is_log:
            raise InvalidArgument(f"{info.name} is a log table: its changelog from the start on is all of it")
        check_partitions_only(info, where)
        self._link = link
        self._info = info
        self._follow = follow
        self._where = where
        self._follower = None if follower is None else check_name(follower, "follower")
        self._commit_interval = commit_interval
        self._on_partition = on_partition
        self._on_progress = on_progress
        self._changelog: Changelog | None = None
        self._pages: ScanPages | None = None
        self._token = ""
        self._rows = 0
        self._opened_ms = link.clock.now_ms()
        self._losses = 0
        self._lost: KolkError | None = None
        self._mending: Between | None = None
        self._error: KolkError | None = None
        self._is_closed = False
        request = ScanRequest(where=where, schema_id=info.schema.id, ttl_seconds=ttl_seconds)
        self._resumption = Resumption(link, info, request)
        if self._follower is not None and _is_known(link, info, self._follower):
            self._changelog = self._log(None)
        else:
            self._pages = self._resumption.open("")
            self._offsets = dict(self._pages.offsets)

    @property
    def is_scanned(self) -> bool:
        """Whether all rows of the scan were handed out, so that what comes now are changes alone."""
        return self._changelog is not None

    @property
    def offsets(self) -> dict[str, int]:
        """Where the changelog goes on after what was handed out; during the scan, where it will begin."""
        return self._offsets if self._changelog is None else self._changelog.offsets

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, taken: Callable[[HandOut], object] = at_once) -> Iterator[pa.RecordBatch]:
        """See ``Changelog.batches``. Before the scan is done there is nothing to count."""
        while self._changelog is None:
            if self._error is not None:
                raise self._error
            try:
                yield from self._mended()
            except HolderLost as error:
                self._error = error
                raise
            try:
                yield from self._scanned()
            except (UnknownOrExpiredScan, Unavailable) as lost:
                self._losses += 1
                if isinstance(lost, Closed) or self._is_closed or self._losses > LOSSES_MAX:
                    raise
                self._lost = lost
            else:
                self._changelog = self._log(self._offsets)
        yield from self._changelog.batches(taken)

    def commit(self) -> None:
        """See ``Changelog.commit``. Nothing is committed before the scan is done: until then it begins anew."""
        if self._changelog is not None:
            self._changelog.commit()

    def close(self) -> None:
        """End the iteration. Idempotent."""
        self._end_scan()
        if self._changelog is not None:
            self._changelog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._end_scan()
        if self._changelog is not None:
            self._changelog.__exit__(kind, *exc)

    def __repr__(self) -> str:
        stage = "following the changelog" if self.is_scanned else "scanning"
        end = ", closed" if self._is_closed else ""
        return f"<kolk.Bootstrap of {self._info.name}, {self._rows:,} rows scanned, {stage}{end}>"

    def _end_scan(self) -> None:
        self._is_closed = True
        if self._pages is not None:
            self._pages.close()
        if self._mending is not None:
            self._mending.close()

    def _log(self, start: dict[str, int] | None) -> Changelog:
        return Changelog(
            self._link,
            self._info,
            start=start,
            follow=self._follow,
            where=self._where,
            schema=self._info.schema.id,
            follower=self._follower,
            commit_interval=self._commit_interval,
            on_partition=self._on_partition,
        )

    def _scanned(self) -> Iterator[pa.RecordBatch]:
        """The rows of the scan that are left. That a partition went is told by the changelog, in its turn; but whoever
        only wants to know what he missed would not hear of it there."""
        if self._is_closed or self._pages is None:
            raise Closed("this bootstrap is closed")
        while (page := self._pages.next()) is not None:
            self._token, self._losses = page.token, 0
            if page.event is not None and self._on_partition is None:
                raise page.event.error
            if page.batch is not None and page.batch.num_rows:
                self._rows += page.batch.num_rows
                yield self._as_changes(page)
                if self._on_progress is not None:  # only now: if it fails, the page is not lost
                    self._on_progress(self._rows, self._pages.estimate)
        self._pages.close()

    def _mended(self) -> Iterator[pa.RecordBatch]:
        """What happened to the rows that were handed out, if the scan was lost and is opened again. If that fails it is
        told, for it was tried long enough; iterating again goes on."""
        if self._is_closed:
            raise Closed("this bootstrap is closed")
        if self._lost is not None:
            self._reopen(self._lost)
        if self._mending is not None:
            for _, batch in self._mending:
                if batch.num_rows:
                    yield batch
            self._mending = None

    def _reopen(self, lost: KolkError) -> None:
        then, on_partition = self._offsets, self._on_partition
        if self._pages is not None:
            with suppress(KolkError):
                self._pages.close()
        try:
            pages = self._resumption.open(self._token)
            resumed = pages.resumed
            try:
                mending = resumed and self._resumption.changes(then, pages.offsets, resumed, on_partition)
            except BaseException:
                pages.close()
                raise
        except KolkError as error:
            raise error from lost
        self._opened_ms = self._link.clock.now_ms()
        self._pages, self._offsets, self._mending, self._lost = pages, dict(pages.offsets), mending, None

    def _as_changes(self, page: ScanPage) -> pa.RecordBatch:
        assert page.batch is not None
        rows, shown = page.batch, changelog_schema(self._info.schema)
        buckets = pa.concat_arrays([pa.repeat(bucket, count) for bucket, count in page.runs])
        offsets = pa.concat_arrays([pa.repeat(self._offsets[bucket] - 1, count) for bucket, count in page.runs])
        change = pa.repeat("+I", rows.num_rows)
        moment = pa.repeat(self._opened_ms, rows.num_rows).cast(pa.timestamp("ms", "UTC"))
        return pa.RecordBatch.from_arrays([change, offsets, moment, buckets, *rows.columns], schema=shown)


def _is_known(link: Link, info: TableInfo, follower: str) -> bool:
    return any(each.table == str(info.name) and each.name == follower for each in link.service.followers())
