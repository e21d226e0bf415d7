"""Letting rows go that are past their time: the round that the engine makes every minute.

``table.kv.ttl`` and ``table.kv.ttl.column`` say how long a row of a primary-key table lives, counted from its own time.
A walk goes through a bucket in key order and removes, visibly, what has expired (``kolk.tablet.expiry``). What a round
may look at is bounded for the database as a whole; where it stops, the next one goes on, so that a large table holds
up nobody and every table has its turn.

A bucket that has been walked to its end is left alone, and may rest, until there is something to find: somebody wrote
to it, or the earliest time that is left in it has come. What is known of walks is in memory only: after a start every
bucket with rows is walked once. Times are kept, never moments to wake up at, so a ttl that is changed and a clock that
is put back need no care: nothing is removed that has not expired by the clock and the option of its moment.

It waits for nobody. A scan keeps the rows of its cut, followers find a -D with the whole row in the changelog, and a
table, a partition or a database that goes meanwhile is no news.
"""

import logging
from bisect import bisect_left
from dataclasses import dataclass

from kolk.engine.catalog import Catalog
from kolk.engine.partitions import Partitions
from kolk.engine.tablets import Tablets
from kolk.errors import Closed, KolkError, PartitionDropped, TableNotFound
from kolk.model.ids import BucketId, TableId
from kolk.model.table import TableInfo
from kolk.runtime.clock import Clock
from kolk.tablet.expiry import Walk

ROUND_ROWS_MAX = 200_000
"""How many rows a round looks at, all tables together: a fraction of a second's work in a minute."""
STEP_ROWS_MAX = 4_096
"""How many rows one step looks at, and so removes at most while puts wait."""
_BUCKET_ROWS_MIN = 1_000
"""What a bucket that is looked at counts at least: to open one costs about as much as to read so many rows."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """How far a bucket's walk has come."""

    end: int
    """Where the log ended when the walk began, and the offsets that it has taken itself since."""
    after: bytes | None = b""
    """The key to go on after; None if it is finished."""
    earliest_ms: int | None = None
    """When the first of the rows that stayed expires, as the time in its column; None if none of them ever does."""

    def beyond(self, walk: Walk) -> "_Progress":
        """After one step more."""
        known = [ms for ms in (self.earliest_ms, walk.earliest_ms) if ms is not None]
        return _Progress(end=self.end + walk.removed, after=walk.after, earliest_ms=min(known, default=None))

    def is_over(self, end: int, before_ms: int) -> bool:
        """Whether there is nothing to find in a bucket that ends here, for rows of this time or earlier."""
        is_due = self.earliest_ms is not None and self.earliest_ms <= before_ms
        return self.after is None and self.end == end and not is_due


class Expiry:
    """Removes expired rows. Its rounds are one thread's at a time; what it touches has locks of its own."""

    def __init__(
        self,
        catalog: Catalog,
        partitions: Partitions,
        tablets: Tablets,
        clock: Clock,
        rows_max: int = ROUND_ROWS_MAX,
    ) -> None:
        # Constant after construction.
        self._catalog = catalog
        self._partitions = partitions
        self._tablets = tablets
        self._clock = clock
        self._rows_max = rows_max
        # Confined to the thread of the round. The bucket where the last one stopped is the first of the next.
        self._walks: dict[BucketId, _Progress] = {}
        self._first: BucketId | None = None

    def round(self) -> None:
        """Remove what has expired, as much as one round may. A table that fails is told of in the log, and does not
        stop the others."""
        tables = [info for info in self._catalog.list() if info.spec.options.kv_ttl_ms is not None]
        owners = {bucket: info for info in tables for bucket in self._partitions.buckets(info)}
        self._walks = {bucket: walk for bucket, walk in self._walks.items() if bucket in owners}
        failed: set[TableId] = set()
        left = self._rows_max
        for bucket in self._in_turn(owners):
            self._first = bucket
            if left <= 0:
                return
            info = owners[bucket]
            try:
                left -= self._walk(info, bucket, left)
            except (Closed, TableNotFound, PartitionDropped):
                continue  # it went meanwhile, or the database is about to close
            except KolkError as error:
                if info.id not in failed:
                    _log.warning("the expired rows of %s are not removed: %s", info.name, error)
                failed.add(info.id)
        self._first = None

    def _in_turn(self, owners: dict[BucketId, TableInfo]) -> list[BucketId]:
        """All buckets, from the one on where the last round stopped."""
        buckets = sorted(owners)
        place = 0 if self._first is None else bisect_left(buckets, self._first)
        return buckets[place:] + buckets[:place]

    def _walk(self, info: TableInfo, bucket: BucketId, rows: int) -> int:
        """Go on with a bucket, if there is anything to find; the answer is how many rows that counts for."""
        ttl_ms, name = info.spec.options.kv_ttl_ms, info.spec.options.kv_ttl_column
        assert ttl_ms is not None
        assert name is not None
        column, before_ms = info.schema.column(name).id, self._clock.now_ms() - ttl_ms
        end = self._tablets.state(info, bucket).end
        walk = self._walks.get(bucket, _Progress(end=0, after=None))
        if walk.is_over(end, before_ms):
            return 0
        if walk.after is None:
            walk = _Progress(end=end)
        looked = 0
        with self._tablets.use_one(info, bucket) as tablet:
            if tablet.waits_for_owner(column):
                return _BUCKET_ROWS_MIN  # until its owner's next commit, of which the log says nothing
            while walk.after is not None and looked < rows:
                step = tablet.expire(column, before_ms, walk.after, min(STEP_ROWS_MAX, rows - looked))
                looked += step.rows
                walk = self._walks[bucket] = walk.beyond(step)
            if tablet.waits_for_owner(column):
                del self._walks[bucket]  # some rows may have been passed over
        return max(looked, _BUCKET_ROWS_MIN)
