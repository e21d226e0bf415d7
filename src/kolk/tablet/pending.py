"""What waits for a bucket, and what it answers with: plain values beside the tablet itself."""

from copy import copy
from dataclasses import dataclass

from kolk.errors import DiskFull, KolkError, OutcomeUnknown, Stopped
from kolk.merge.prepared import Prepared
from kolk.model.ids import BucketId, OwnerTag, PlainTag


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """What a checkpoint holds: the log up to an offset, in rows of this version of the schema and earlier ones."""

    offset: int
    schema_id: int


class NothingDone(Exception):
    """Carries a failure out of what would stop a bucket: it left nothing behind, and the bucket goes on."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Pending:
    """A put that waits for its pass. Guarded by the tablet's lock once it is queued."""

    __slots__ = ("done", "end", "error", "prepared", "tag")

    def __init__(self, prepared: Prepared, tag: PlainTag | OwnerTag) -> None:
        self.prepared = prepared
        self.tag = tag
        self.end = 0
        self.error: BaseException | None = None
        self.done = False


def interrupted() -> KolkError:
    """What the others of a pass are told whose thread was interrupted."""
    error = OutcomeUnknown("the put was interrupted together with another one; put it again with the same tag")
    error.retriable = True
    return error


def stopped_by(bucket: BucketId, error: BaseException) -> tuple[Stopped, OutcomeUnknown]:
    """What everybody is told of a bucket that stopped, and what the one is told under whose put it did.

    If RocksDB found its disk full after the log had the frames, or somebody pressed Ctrl-C, recovery is exact.
    """
    is_mended = isinstance(error, DiskFull) or not isinstance(error, Exception)
    what = "free some space, then retry" if isinstance(error, DiskFull) else "close and reopen the database"
    if not isinstance(error, Exception):
        what = "retry"
    stopped = Stopped(f"bucket {bucket.name} stopped: {error!r}; {what}")
    unknown = OutcomeUnknown(f"bucket {bucket.name} stopped under this put: {error}; {what}")
    stopped.retriable = unknown.retriable = is_mended
    return stopped, unknown


def told_apart(error: Exception) -> Exception:
    """An error that several puts are told, for one of them: whoever made the put writes its tag on it."""
    if not isinstance(error, KolkError):
        return error
    own = copy(error)
    own.__cause__ = error.__cause__
    return own
