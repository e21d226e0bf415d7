"""What waits for a bucket, and what it answers with: plain values beside the tablet itself."""

from copy import copy
from dataclasses import dataclass

from kolk.errors import KolkError, OutcomeUnknown
from kolk.merge.prepared import Prepared
from kolk.model.ids import OwnerTag, PlainTag


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """What a checkpoint holds: the log up to an offset, in rows of this version of the schema and earlier ones."""

    offset: int
    schema_id: int


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


def told_apart(error: Exception) -> Exception:
    """An error that several puts are told, for one of them: whoever made the put writes its tag on it."""
    if not isinstance(error, KolkError):
        return error
    own = copy(error)
    own.__cause__ = error.__cause__
    return own
