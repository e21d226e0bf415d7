"""How a cut is made: the buckets of a scan, all pinned at one moment.

Of the living rows: while all their locks are held and the database's gate is passed alone, so that no put falls between
two of the views and no transaction is seen in part. Buckets that must recover do so before, so that nobody waits for
them. Of snapshots: they are pinned for as long as it takes to open views of them, and the views keep them afterwards.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import count

from kolk.codec.key import ROW_PREFIX
from kolk.codec.key_range import key_range
from kolk.engine.cut import CHUNK_ROWS, Cut
from kolk.engine.gate import Gate
from kolk.engine.partitions import LOOKS_MAX, Partitions
from kolk.engine.snapshots import Snapshots
from kolk.engine.tablets import Tablets
from kolk.errors import PartitionDropped, SnapshotNotFound
from kolk.merge.engine import Merger
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import TablePins
from kolk.model.partition import PARTITIONS, matching
from kolk.model.scan import ScanRequest
from kolk.model.schema import Schema
from kolk.model.table import TableInfo
from kolk.storage.view import View
from kolk.tablet.tablet import Tablet

Pinning = Callable[[TableInfo, ScanRequest, str], AbstractContextManager[TablePins]]
"""The snapshots that a request of a principal means, pinned within the block."""


class Cutting:
    """Makes cuts. Thread-safe: it has no state, and what it touches has locks of its own.

    That of a log table has no views, and is only from where to where each bucket goes: the log itself is all there is
    to read, and whoever reads it notices if some of it went since.
    """

    def __init__(
        self,
        partitions: Partitions,
        tablets: Tablets,
        snapshots: Snapshots,
        pinning: Pinning,
        gate: Gate,
        page_rows: int,
        check_alive: Callable[[TableId], object],
    ) -> None:
        self._partitions = partitions
        self._tablets = tablets
        self._snapshots = snapshots
        self._pinning = pinning
        self._gate = gate
        self._chunk_rows = min(CHUNK_ROWS, page_rows)
        self._check_alive = check_alive

    def cut(self, info: TableInfo, schema: Schema, request: ScanRequest, principal: str) -> Cut:
        """What a request asks for, pinned."""
        if request.is_live:
            return self._live(info, schema, request)
        with self._pinning(info, request, principal) as found:
            return self._kept(info, schema, request, found)

    def merger(self, info: TableInfo) -> Merger:
        """The merger of a table that has rows to scan."""
        return self._tablets.keyed_merger(info)

    # --- living rows

    def _live(self, info: TableInfo, schema: Schema, request: ScanRequest) -> Cut:
        for attempt in count(1):
            # Buckets may have to recover, for which no partition should have to wait. So look again once all are open.
            with (
                self._partitions.still_for(info, attempt > LOOKS_MAX),
                suppress(PartitionDropped),
                self._tablets.use(info, self._buckets(info, request)) as tablets,
                self._partitions.still_for(info),
            ):
                self._check_alive(info.id)  # a dropped table has no partitions, and is not empty
                if [tablet.bucket for tablet in tablets] == list(self._buckets(info, request)):
                    position = self._partitions.of(info).position if info.is_partitioned else None
                    if info.is_log:
                        bounds = self._bounds(tablets)
                        starts = {bucket: start for bucket, (start, _) in bounds.items()}
                        ends = {bucket: end for bucket, (_, end) in bounds.items()}
                        return self._made(schema, request, [], ends, position, None, starts=starts)
                    estimate = sum(tablet.estimate() for tablet in tablets)
                    views = self._pin(tablets, self._span(info, schema, request))
                    offsets = {bucket: view.offset for bucket, view in views}
                    return self._made(schema, request, views, offsets, position, estimate)
        raise AssertionError("the last attempt succeeds")

    def _pin(self, tablets: Sequence[Tablet], span: tuple[bytes, bytes]) -> list[tuple[BucketId, View]]:
        with self._alone(tablets):
            views: list[tuple[BucketId, View]] = []
            try:
                for tablet in tablets:
                    views.append((tablet.bucket, tablet.pin_view(*span)))  # noqa: PERF401 - each is closed if one fails
            except BaseException:
                _close(views)
                raise
            return views

    def _bounds(self, tablets: Sequence[Tablet]) -> dict[BucketId, tuple[int, int]]:
        with self._alone(tablets):
            return {tablet.bucket: (tablet.log.start, tablet.end) for tablet in tablets}

    @contextmanager
    def _alone(self, tablets: Sequence[Tablet]) -> Iterator[None]:
        """One moment of all these tablets: nobody puts, truncates, trims or commits within the block."""
        with self._gate.exclusive(), ExitStack() as held:
            for tablet in tablets:
                held.enter_context(tablet.held())
            yield

    # --- snapshots

    def _kept(self, info: TableInfo, schema: Schema, request: ScanRequest, found: TablePins) -> Cut:
        span = self._span(info, schema, request)
        codec = self.merger(info).codec
        chosen = self._kept_buckets(info, request, found)
        views: list[tuple[BucketId, View]] = []
        rows: int | None = 0
        try:
            for bucket in chosen:
                try:
                    self._partitions.check_alive(bucket)
                    snapshots, id = self._snapshots.of(bucket), found.pins[bucket].snapshot
                    snapshot = snapshots.find(id)
                    rows = None if rows is None or snapshot.rows is None else rows + snapshot.rows
                    if snapshot.files:
                        views.append((bucket, snapshots.view(id, codec, *span)))
                except PartitionDropped as gone:
                    views.append((bucket, View.gone(gone, codec)))
        except BaseException:
            _close(views)
            raise
        offsets = {bucket: found.pins[bucket].offset for bucket in chosen}
        pins = {bucket.name: found.pins[bucket].snapshot for bucket in chosen}
        return self._made(
            schema, request, views, offsets, found.position, rows, pins=pins, is_consistent=found.is_consistent
        )

    def _kept_buckets(self, info: TableInfo, request: ScanRequest, found: TablePins) -> Sequence[BucketId]:
        """Those of the pinned buckets that are asked for, in order. They are of the moment of the snapshots: what the
        table has besides by now is not among them."""
        if request.buckets is not None:
            named = {bucket.name: bucket for bucket in found.pins}
            missing = next((name for name in request.buckets if name not in named), None)
            if missing is not None:
                self._partitions.bucket(info, missing)
                raise SnapshotNotFound(f"there is no snapshot of bucket {missing} of {info.name} in what is scanned")
            return sorted({named[name] for name in request.buckets})
        if not info.is_partitioned:
            return sorted(found.pins)
        names = list({bucket.partition_name for bucket in found.pins})
        chosen = set(matching(info.partition_columns, names, request.where))
        return sorted(bucket for bucket in found.pins if bucket.partition_name in chosen)

    # --- both

    def _made(
        self,
        schema: Schema,
        request: ScanRequest,
        views: Sequence[tuple[BucketId, View]],
        offsets: Mapping[BucketId, int],
        position: int | None,
        rows: int | None,
        *,
        pins: Mapping[str, int] | None = None,
        is_consistent: bool = True,
        starts: Mapping[BucketId, int] | None = None,
    ) -> Cut:
        try:
            # A bucket without rows need not be kept; its offset says all there is.
            kept = [(bucket, view) for bucket, view in views if request.limit != 0 and _has_rows(view)]
        except BaseException:
            _close(views)
            raise
        pinned = {bucket for bucket, _ in kept}
        _close([(bucket, view) for bucket, view in views if bucket not in pinned])
        estimate = None if request.where is not None or rows is None else rows
        return Cut(
            kept,
            offsets,
            {} if position is None else {PARTITIONS: position},
            schema,
            request.names,
            request.limit,
            request.where,
            estimate if estimate is None or request.limit is None else min(estimate, request.limit),
            self._chunk_rows,
            pins=pins,
            is_consistent=is_consistent,
            starts=starts,
        )

    def _span(self, info: TableInfo, schema: Schema, request: ScanRequest) -> tuple[bytes, bytes]:
        return key_range(request.where, self.merger(info).codec.keys_of(schema)) or (ROW_PREFIX, ROW_PREFIX)

    def _buckets(self, info: TableInfo, request: ScanRequest) -> Sequence[BucketId]:
        if request.buckets is None:
            return self._partitions.buckets(info, request.where)
        return sorted({self._partitions.bucket(info, name) for name in request.buckets})


def _has_rows(view: View) -> bool:
    """Whether there is something to read, or to be told."""
    try:
        return not view.is_empty()
    except PartitionDropped:
        return True


def _close(views: Iterable[tuple[BucketId, View]]) -> None:
    for _, view in views:
        view.close()
