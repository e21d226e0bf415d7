"""What is known of a log's segments, and how their files are named.

A segment holds the frames of a range of offsets and is named by the first of them, so a log knows its shape
from a folder listing alone. Two segments can never have one name: a log rolls only when its last segment
has rows. One that has none, and grows all the same, is thinned instead (``Log.thin``).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment as it is at one moment. Only the last one of a log is ever replaced by a longer one."""

    base: int
    end: int
    size: int
    last_timestamp_ms: int

    @property
    def has_rows(self) -> bool:
        """Whether it takes up offsets, so that the next segment would have a name of its own."""
        return self.end > self.base

    def continues(self, earlier: "Segment") -> bool:
        """Whether it may be what has become of a segment that somebody looked at earlier, when it was the last one."""
        if self.size <= earlier.size:
            return self == earlier
        return self.base == earlier.base and self.end >= earlier.end

    @property
    def log_name(self) -> str:
        """The name of its file."""
        return f"{self.base:0{_DIGITS}d}{LOG_SUFFIX}"

    @property
    def index_name(self) -> str:
        """The name of its index file."""
        return f"{self.base:0{_DIGITS}d}{INDEX_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Extent:
    """All of a log at one moment. It is replaced whole, so that a reader sees one moment without a lock."""

    sealed: tuple[Segment, ...]
    last: Segment

    @property
    def start(self) -> int:
        """The first offset."""
        return self.sealed[0].base if self.sealed else self.last.base

    @property
    def end(self) -> int:
        """The offset after the last row."""
        return self.last.end

    @property
    def segments(self) -> Sequence[Segment]:
        """All of them, in order."""
        return (*self.sealed, self.last)

    def from_offset(self, offset: int) -> Sequence[Segment]:
        """The segments that may hold frames at ``offset`` or after it.

        A frame without rows whose offset is the base of a segment may be the last one of the segment before.
        """
        segments = self.segments
        return segments[max(bisect_left(segments, offset, key=lambda segment: segment.base) - 1, 0) :]


def parse_base(name: str, suffix: str) -> int | None:
    """The base offset that a file name with this suffix stands for; None if it is no such name."""
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)
