"""A table at the moment that its snapshots are of: what was copied of it, and who else looks at that moment.

Values only; ``kolk.engine.taking`` finds the moment, and holds it still.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from kolk.engine.opening import BucketState
from kolk.model.ids import BucketId
from kolk.storage.segment import Segment
from kolk.tablet.tablet import Checkpointed, Tablet


@dataclass(frozen=True, slots=True)
class Copied:
    """A checkpoint that is to become a snapshot, when it was made, and how far the log was then."""

    bucket: BucketId
    path: Path
    made: Checkpointed
    taken_ms: int
    place: Segment


@dataclass(frozen=True, slots=True)
class Look:
    """A table at one moment: checkpoints of the buckets that changed, and of the others, the snapshots that they have;
    None of those that never had anything. If ``is_cut`` is False some are of another moment."""

    copies: Sequence[Copied]
    others: Mapping[BucketId, int | None]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Onlooker:
    """Who has to know more of that moment than snapshots tell.

    If it ``is_exact`` the snapshot of a bucket has also what was written without rows, which takes no offset. ``needs``
    says whether a bucket is copied although nothing was written to it. ``look`` is called at the moment, when no commit
    is under way, with the buckets that are copied, or more, all of whose locks are held; again, if that was none. If
    there is a block ``still``, the buckets are taken in groups, however few they are, and all of them are looked at
    within it: it keeps what must not come between two groups away.
    """

    needs: Callable[[BucketState], bool]
    look: Callable[[Sequence[Tablet]], None]
    still: Callable[[], AbstractContextManager[None]] | None = None
    is_exact: bool = False


NOBODY = Onlooker(lambda _state: False, lambda _tablets: None)
