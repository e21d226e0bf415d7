"""How far a log may be trimmed, and how far it should be: pure functions, over those who still need it and over age
and size.

A *holder* is a named reason to keep the log from an offset on: a snapshot, a lease, an open scan, a commit
point, a follower. Nothing else may keep a log, and nothing may be trimmed past the lowest of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kolk.storage.segment import Segment

_NONE_KNOWN: Mapping[Segment, int] = {}


class HolderKind(Enum):
    """Why the log is held."""

    SNAPSHOT = "snapshot"
    LEASE = "lease"
    SCAN = "scan"
    COMMIT_POINT = "commit point"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a bucket's log, from where, and until when."""

    kind: HolderKind
    owner: str
    offset: int
    expires_ms: int | None = None


def log_floor(*, is_log_table: bool, end: int, holders: Iterable[Holder], now_ms: int) -> int:
    """The offset below which the log may go.

    The log of a primary-key table is the only copy of its rows until a snapshot has them, so without a snapshot
    its floor is 0. A log table's rows go by age and size alone, unless somebody holds them.
    """
    live = [holder for holder in holders if holder.expires_ms is None or holder.expires_ms > now_ms]
    has_snapshot = any(holder.kind is HolderKind.SNAPSHOT for holder in live)
    if not is_log_table and not has_snapshot:
        return 0
    return min((holder.offset for holder in live), default=end)


def outlived(
    segments: Sequence[Segment],
    *,
    now_ms: int,
    ttl_ms: int | None,
    bytes_max: int | None,
    known_ms: Mapping[Segment, int] = _NONE_KNOWN,
) -> int:
    """The offset below which age and size want a log to go; whole segments from the oldest on.

    A segment is too old when its newest row is. All may be, the last one too. By size the last one always stays:
    what is there is at most ``bytes_max``, or else one segment.

    A time that is still to come was written under a clock that was ahead, or after such a one, and says nothing: that
    segment is as old as it is known to be, ``known_ms``, which is never more than it is.
    """
    below = segments[0].base
    left = sum(segment.size for segment in segments)
    for segment in segments:
        age_ms = now_ms - segment.last_timestamp_ms
        is_old = ttl_ms is not None and (age_ms if age_ms >= 0 else known_ms.get(segment, 0)) >= ttl_ms
        is_too_much = bytes_max is not None and left > bytes_max and segment is not segments[-1]
        if not (is_old or is_too_much):
            break
        below = segment.end
        left -= segment.size
    return below


def bytes_from(segments: Iterable[Segment], offset: int, *, below: int | None = None) -> int:
    """How many bytes a holder at ``offset`` keeps: whole segments, and only those that end by ``below``, if given."""
    return sum(segment.size for segment in segments if segment.end > offset and (below is None or segment.end <= below))
