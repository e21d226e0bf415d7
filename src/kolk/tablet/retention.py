"""How far a log may be trimmed: one pure function over everybody who still needs it.

A *holder* is a named reason to keep the log from an offset on: a snapshot, a lease, an open scan, a commit
point, a follower. Nothing else may keep a log, and nothing may be trimmed past the lowest of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


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
