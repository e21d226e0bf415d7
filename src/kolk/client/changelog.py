"""A changelog: every change of a table from some offsets on, bucket by bucket in order.

Without ``follow`` it ends where the log ended when it was opened; with ``follow`` it waits for more. The order
within a bucket is the order of the log; between buckets there is none.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Self

import pyarrow as pa

from kolk.client.link import Link
from kolk.client.service import ChangePages, Service
from kolk.errors import Closed, InvalidArgument, OffsetOutOfRange
from kolk.model.table import TableInfo

Start = Mapping[str, int] | str | datetime.datetime | None
_PATIENCE_SECONDS = 1.0
"""How long a follower waits at most before it looks whether it was closed."""


class Changelog:
    """Iterate for ``pa.RecordBatch`` pages with the change columns. A context manager.

    ``offsets`` is where each bucket will go on: kept and given as ``start`` later, nothing is missed and nothing
    comes twice. Confined to one reader at a time; ``close`` may come from another thread and ends the iteration.
    """

    def __init__(
        self,
        link: Link,
        info: TableInfo,
        *,
        start: Start = None,
        stop: Mapping[str, int] | None = None,
        follow: bool = False,
        buckets: Sequence[str] | None = None,
    ) -> None:
        service = link.service
        self._link = link
        self._info = info
        self._closed = False
        self._pages: ChangePages | None = None
        bounds = service.bounds(info.id)
        chosen = _chosen(buckets, bounds)
        starts = _starts(start, bounds, service, info)
        self.offsets = {bucket: starts.get(bucket, bounds[bucket][0]) for bucket in chosen}
        self._stops = _stops(stop, follow, chosen, bounds)
        for bucket, offset in self.offsets.items():
            _check_start(bucket, offset, bounds[bucket])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._closed:
            raise Closed("this changelog is closed")
        pages = self._link.service.open_changes(self._info.id, self.offsets, self._stops)
        self._pages = pages
        try:
            while not (self._closed or self._is_finished()):
                self._link.service  # noqa: B018 - raises Closed if the connection was closed meanwhile
                found = pages.next(_PATIENCE_SECONDS)
                if found is None:
                    continue
                bucket, page = found
                # Moved before the batch is handed out: a reader that keeps the offsets after it keeps the right ones.
                self.offsets[bucket] = page.next_offset
                if page.batch is not None:
                    yield page.batch
        finally:
            pages.close()

    def close(self) -> None:
        """End the iteration, also one that waits in another thread. Idempotent."""
        self._closed = True
        if self._pages is not None:
            self._pages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _is_finished(self) -> bool:
        return all(stop is not None and self.offsets[bucket] >= stop for bucket, stop in self._stops.items())


def _chosen(buckets: Sequence[str] | None, bounds: Mapping[str, object]) -> list[str]:
    if buckets is None:
        return list(bounds)
    if isinstance(buckets, str) or not isinstance(buckets, Iterable):
        raise InvalidArgument(f"buckets is a list of bucket names, such as ['0'], not {buckets!r}")
    unknown = [bucket for bucket in buckets if not isinstance(bucket, str) or bucket not in bounds]
    if unknown:
        raise InvalidArgument(f"there is no bucket {unknown[0]!r}; the buckets are {', '.join(bounds)}")
    return list(buckets)


def _starts(start: Start, bounds: Mapping[str, tuple[int, int]], service: Service, info: TableInfo) -> dict[str, int]:
    if start is None or (isinstance(start, str) and start == "earliest"):
        return {}
    if isinstance(start, str) and start == "latest":
        return {bucket: end for bucket, (_, end) in bounds.items()}
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise InvalidArgument("start needs a time zone: datetime(..., tzinfo=datetime.UTC)")
        return service.offsets_at(info.id, int(start.timestamp() * 1000))
    if not isinstance(start, Mapping):
        raise InvalidArgument(f"start is 'earliest', 'latest', a datetime or offsets by bucket, not {start!r}")
    unknown = [bucket for bucket in start if bucket not in bounds]
    if unknown:
        raise InvalidArgument(f"start names a bucket {unknown[0]!r}; the buckets are {', '.join(bounds)}")
    return _whole_numbers(start, "start")


def _whole_numbers(offsets: Mapping[str, int], what: str) -> dict[str, int]:
    """Offsets as Python numbers; numpy's are welcome."""
    try:
        return {bucket: index(offset) for bucket, offset in offsets.items()}
    except TypeError:
        raise InvalidArgument(f"{what} maps buckets to whole numbers, not {dict(offsets)!r}") from None


def _stops(
    stop: Mapping[str, int] | None, follow: bool, chosen: Sequence[str], bounds: Mapping[str, tuple[int, int]]
) -> dict[str, int | None]:
    """Where each bucket ends: where it is told to, but not past its present end unless it follows."""
    if stop is not None and not isinstance(stop, Mapping):
        raise InvalidArgument(f"stop is offsets by bucket, not {stop!r}")
    given = _whole_numbers(stop or {}, "stop")
    unknown = [bucket for bucket in given if bucket not in bounds]
    if unknown:
        raise InvalidArgument(f"stop names a bucket {unknown[0]!r}; the buckets are {', '.join(bounds)}")
    if follow:
        return {bucket: given.get(bucket) for bucket in chosen}
    return {bucket: min(given.get(bucket, bounds[bucket][1]), bounds[bucket][1]) for bucket in chosen}


def _check_start(bucket: str, offset: int, bounds: tuple[int, int]) -> None:
    start, end = bounds
    if offset < start:
        raise OffsetOutOfRange(
            f"bucket {bucket!r} starts at offset {start}; {offset} was trimmed. Scan the table and go on from the"
            " scan's offsets"
        )
    if offset > end:
        raise OffsetOutOfRange(f"bucket {bucket!r} ends at offset {end}; {offset} is not written yet")
