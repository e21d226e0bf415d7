"""What becomes of buckets and of those who ask for them when a commit is broken off, or cannot be finished."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kolk.errors import (
    Corrupted,
    DiskFull,
    MetaBehindLog,
    MetaConflict,
    OutcomeUnknown,
    StagingGone,
    Stopped,
    TooLarge,
)
from kolk.model.ids import BucketId
from kolk.model.transaction import CommitRecord
from kolk.tablet.tablet import Tablet


@contextmanager
def stopping(left: Sequence[tuple[Tablet, object]]) -> Iterator[None]:
    """Whatever ends the block, unless it says that nothing happened: the buckets that are left serve nobody before
    recovery has looked whether the transaction was committed."""
    try:
        yield
    except (DiskFull, MetaConflict, MetaBehindLog, TooLarge):
        raise
    except BaseException:
        for tablet, _ in left:
            tablet.suspend("it was interrupted in the middle of a transaction")
        raise


@contextmanager
def told(bucket: BucketId, record: CommitRecord) -> Iterator[None]:
    """What whoever opens a bucket is told whose share of a commit cannot be given to it."""
    what = f"commit {record.csn}, version {record.version} of {record.app!r}, cannot be given to bucket {bucket.name}"
    try:
        yield
    except (Corrupted, StagingGone) as error:
        raise Corrupted(
            f"{what}, which is not served without it: {error}; what is staged for it lies in the folder staging:"
            " restore that, or the database, from a copy"
        ) from error
    except (OutcomeUnknown, DiskFull) as error:
        raise unfinished(f"{what}: {error}", is_retriable=error.retriable) from error
    except OSError as error:
        raise unfinished(f"{what}: {error}", is_retriable=False) from error


def unfinished(what: str, *, is_retriable: bool = True) -> Stopped:
    """That a commit is not in all its buckets yet."""
    stopped = Stopped(f"{what}; {'retry' if is_retriable else 'close and reopen the database'}")
    stopped.retriable = is_retriable
    return stopped
