"""Keeping what puts that change nothing leave in a log within bounds.

Such a put writes a frame without rows, for its tag. While nothing else is written these frames are the whole last
segment, which takes no offset: it cannot be rolled, since the next one would have its name, and nothing of it can be
trimmed. So it is thinned now and then: a bucket remembers the last few puts of a writer only, and frames from which a
replay would learn nothing are left out. What is left makes the same of the log as all of it, so nothing depends on what
the KV has.
"""

from collections.abc import Iterable
from heapq import heappush, heappushpop

from kolk.errors import Corrupted, Stopped, Unavailable
from kolk.model.ids import PlainTag
from kolk.storage.log import ROWLESS_BYTES, Log
from kolk.storage.segment_reader import Frame
from kolk.tablet.dedup import KEPT_PER_WRITER


class Thinning:
    """When and how a log is thinned. Guarded by the tablet's lock."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._at = ROWLESS_BYTES

    def thin(self) -> None:
        """Thin the last segment, if it is time; a disk that does not let us leaves it as it is."""
        if self._log.rowless_bytes < self._at:
            return
        try:
            self._log.thin(needed)
        except Stopped:
            raise
        except (Unavailable, Corrupted):
            pass  # a full disk, or one that cannot be read: the segment stays as it is, and whoever reads it is told
        # Twice what is left: however many writers there are, a frame is looked at twice on average.
        self._at = max(ROWLESS_BYTES, 2 * self._log.rowless_bytes)


def needed(frames: Iterable[Frame]) -> list[Frame]:
    """Those of a segment's frames without rows from which a replay learns as much as from all of them.

    Of a writer's puts they are the last that are remembered, and one more: the greatest that is forgotten. What owners,
    transactions and the store itself wrote stays, and so does the very last frame, which has the time.
    """
    puts: dict[int, list[tuple[int, int, Frame]]] = {}
    others: list[tuple[int, Frame]] = []
    place, last, is_group = -1, None, False
    for place, frame in enumerate(frames):
        tag, last = frame.header.tag, frame
        is_group, was_group = frame.header.more, is_group
        if not isinstance(tag, PlainTag) or is_group or was_group:
            others.append((place, frame))
            continue
        kept, put = puts.setdefault(tag.writer, []), (tag.seq, place, frame)
        if len(kept) <= KEPT_PER_WRITER:
            heappush(kept, put)
        else:
            heappushpop(kept, put)
    chosen = dict(others) | {at: frame for kept in puts.values() for _, at, frame in kept}
    if last is not None:
        chosen[place] = last
    return [chosen[at] for at in sorted(chosen)]
