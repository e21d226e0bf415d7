"""Writing the shares of a transaction that is decided: appended bucket by bucket, synced side by side, then applied.

Syncs are most of what a small commit waits for, and a file system makes several durable in little more than the time of
one. A bucket that fails is told of and left behind, and the others go on. Nothing is decided here, nor taken back.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from kolk.errors import KolkError
from kolk.model.ids import BucketId
from kolk.runtime.threads import side_by_side
from kolk.tablet.tablet import Merged, Tablet


def apply_shares(
    left: list[tuple[Tablet, Merged]], csn: int, timestamp_ms: int, failed: Callable[[Tablet, KolkError], None]
) -> dict[BucketId, int]:
    """Write all shares; where the logs of the buckets that have theirs end. The caller holds the locks.

    A tablet is in ``left`` until it has its share, or has stopped for an error of its own: whatever breaks this off,
    those whose share is not known to be whole are still there.
    """
    for share in list(left):
        tablet, merged = share
        try:
            tablet.append(merged, csn, timestamp_ms)
        except KolkError as error:
            failed(tablet, error)
            left.remove(share)
    side_by_side([partial(_sync, tablet) for tablet, _ in left])
    ends: dict[BucketId, int] = {}
    while left:
        tablet, merged = left[0]
        try:
            ends[tablet.bucket] = tablet.commit(merged, csn)
        except KolkError as error:
            failed(tablet, error)
        left.pop(0)
    return ends


def _sync(tablet: Tablet) -> None:
    with suppress(KolkError):  # a log that failed to sync says so again when its tablet goes on
        tablet.log.sync()
