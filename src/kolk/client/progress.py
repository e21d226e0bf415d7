"""How far a reader has come in a follower's name: what it was handed, what it has handled, what is committed.

A batch counts as handled when the next one is asked for. What is handled is committed now and then, and at the end;
what was handed out and not committed comes again. So nothing is missed, and after a crash a little comes twice.
"""

import threading
from collections.abc import Mapping

from kolk.client.link import Link
from kolk.errors import HolderLost, InvalidArgument, KolkError
from kolk.model.follower import Session
from kolk.model.ids import TableId
from kolk.model.partition import PARTITIONS, PartitionEvent, after

_SIGN_SECONDS = 60.0
"""A reader with nothing to commit says so often that it is in use, and learns whether it was replaced."""


class Progress:
    """One reader's progress. Thread-safe: one lock for what was handed out and handled, never held for long, and one
    that is held while it commits, so that commits go in order."""

    def __init__(self, link: Link, table: TableId, name: str, session: Session, interval_seconds: float | None) -> None:
        # Constant after construction.
        self._link = link
        self._table = table
        self._name = name
        self._epoch = session.epoch
        self._interval = interval_seconds
        self._lock = threading.Lock()
        self._committing = threading.Lock()  # taken before _lock
        # Guarded by _lock.
        self._handed = dict(session.offsets)
        self._handled = dict(session.offsets)
        # Guarded by _committing.
        self._committed = dict(session.offsets)
        self._last_call = self._last_commit = link.clock.monotonic()

    def hand_out(self, bucket: str, end: int) -> None:
        """A batch that ends here is given to the reader."""
        with self._lock:
            self._handed[bucket] = end

    def hand_out_event(self, event: PartitionEvent) -> None:
        """The reader is told of a partition."""
        with self._lock:
            self._handed = after(event, self._handed)

    def handle_all(self) -> None:
        """The reader asks for more: it is done with what it has."""
        with self._lock:
            self._handled = dict(self._handed)

    def handle(self, bucket: str, end: int) -> None:
        """The reader is done with the batch that ends here."""
        with self._lock:
            self._handled[bucket] = end

    def handle_event(self, event: PartitionEvent) -> None:
        """The reader is done with what it was told of a partition."""
        with self._lock:
            self._handled = after(event, self._handled)

    def take_back(self) -> None:
        """The reader may not have got the last batch: it is not handed out."""
        with self._lock:
            self._handed = dict(self._handled)

    def commit(self) -> None:
        """Commit everything that was handed out."""
        with self._committing:
            self._commit(self._reached(in_hand=True))

    def commit_if_due(self) -> None:
        """Commit what is handled if the interval has passed; in between only say, rarely, that one is there."""
        with self._committing:
            now = self._link.clock.monotonic()
            if self._interval is not None and now - self._last_commit >= self._interval:
                self._commit(self._reached(in_hand=False))
            elif now - self._last_call >= _SIGN_SECONDS:
                self._tell({})

    def finish(self, *, in_hand: bool) -> None:
        """Commit what is handled, and the batch in hand too if the reader is done with it.

        Not if commits are left to the caller.
        """
        with self._committing:
            offsets = self._reached(in_hand=in_hand)
            if self._interval is not None and self._moved(offsets):
                self._commit(offsets)

    def lost(self, error: KolkError) -> KolkError:
        """What it means that the log does not have the next change."""
        return HolderLost(
            f"the log that the follower {self._name!r} had yet to read is gone ({error}): it was idle for too long, or"
            " kept too much, or the table was truncated; drop it with db.drop_follower and choose where to start anew"
        )

    def _reached(self, *, in_hand: bool) -> dict[str, int]:
        with self._lock:
            return dict(self._handed if in_hand else self._handled)

    def _commit(self, offsets: Mapping[str, int]) -> None:
        moved = self._moved(offsets)
        self._tell(moved)
        is_whole = offsets.get(PARTITIONS) != self._committed.get(PARTITIONS)
        self._committed = dict(offsets) if is_whole else self._committed | moved
        self._last_commit = self._last_call

    def _tell(self, moved: Mapping[str, int]) -> None:
        self._link.service.commit_follower(self._table, self._name, self._epoch, moved)
        self._last_call = self._link.clock.monotonic()

    def _moved(self, offsets: Mapping[str, int]) -> dict[str, int]:
        """What is new since the last commit. Of a partitioned table the place in the record of partitions is always
        said, because it tells which buckets are meant by their names; after a step there, so is everything."""
        if offsets.get(PARTITIONS) != self._committed.get(PARTITIONS):
            return dict(offsets)
        moved = {bucket: end for bucket, end in offsets.items() if end > self._committed.get(bucket, -1)}
        return moved | {PARTITIONS: offsets[PARTITIONS]} if moved and PARTITIONS in offsets else moved


class Unremembered:
    """The progress of a reader without a name: nobody keeps it. Thread-safe."""

    def hand_out(self, bucket: str, end: int) -> None:
        """See ``Progress``."""

    def hand_out_event(self, event: PartitionEvent) -> None:
        """See ``Progress``."""

    def handle_all(self) -> None:
        """See ``Progress``."""

    def handle(self, bucket: str, end: int) -> None:
        """See ``Progress``."""

    def handle_event(self, event: PartitionEvent) -> None:
        """See ``Progress``."""

    def take_back(self) -> None:
        """See ``Progress``."""

    def commit(self) -> None:
        """See ``Progress``; there is nobody to commit for."""
        raise InvalidArgument("only a follower commits: changelog(follower='name'); else keep changelog.offsets")

    def commit_if_due(self) -> None:
        """See ``Progress``."""

    def finish(self, *, in_hand: bool) -> None:
        """See ``Progress``."""

    def lost(self, error: KolkError) -> KolkError:
        """See ``Progress``."""
        return error
