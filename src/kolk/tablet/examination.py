"""One bucket that nobody serves, gone through from its first frame to its last row: is it what it must be?

Everything is read once, in pieces, and nothing is written. The KV may be older than the log, as after a crash: it is
compared as of the offset that it says it has. If the log does not begin at 0, the rows of a snapshot stand for what is
gone. Without one, and for tables whose changelog lacks the rows before, rows are not compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from kolk.codec.checksum import added
from kolk.codec.versions import RowCodecs
from kolk.merge.changed import changed_columns, sum_of_changes, sum_of_rows
from kolk.merge.changes import change_schema
from kolk.model.ids import BucketId
from kolk.model.owner import Lock, OwnerRecord
from kolk.model.transaction import CommitRecord
from kolk.storage.kv import Kv
from kolk.storage.looked_log import LookedLog
from kolk.storage.segment_reader import Frame
from kolk.tablet.commit_laws import CommitLaws
from kolk.tablet.faults import Faults, Law
from kolk.tablet.owner_laws import BUILD_ANEW, OwnerLaws
from kolk.tablet.owning import RECORD as OWNER_RECORD
from kolk.tablet.owning import OwnerView, Owning
from kolk.tablet.records import APPLIED, CSN, ROWS, applied_offset, last_csn, row_count

_ROWS_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the catalog has of one table, and the numbers that it has given."""

    commits: Iterable[CommitRecord]
    newest_commit: int
    owners: Iterable[OwnerRecord]
    newest_owner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One bucket as it is on disk. ``codec`` is None if its rows cannot be compared: those of a log table, or of one
    whose changelog lacks the rows before. ``copy`` is a snapshot, if there is one to begin with, with its offset."""

    table: str
    bucket: BucketId
    log: LookedLog
    kv: Kv | None
    codec: RowCodecs | None
    copy: tuple[Kv, int] | None = None

    @property
    def place(self) -> str:
        """For people."""
        return f"bucket {self.bucket.name} of {self.table}"


@dataclass(frozen=True, slots=True)
class Examined:
    """How much was looked at, and whether the rows were compared."""

    frames: int
    is_compared: bool


def examine(look: Look, recorded: Recorded, faults: Faults) -> Examined:
    """Note every fault of a bucket."""
    state = _State(look, recorded, faults)
    frames = 0
    for frame in look.log.frames():
        state.take(frame)
        frames += 1
    state.finish()
    return Examined(frames, state.is_comparing)


class _State:
    """What is known after the frames so far. Confined to one examination."""

    def __init__(self, look: Look, recorded: Recorded, faults: Faults) -> None:
        self._look, self._faults = look, faults
        place = look.place
        self._commits = CommitLaws(place, look.bucket, recorded.newest_commit, recorded.commits, faults)
        self._owners: OwnerLaws | None = None
        if look.codec is not None:
            schema = look.codec.schema
            self._owners = OwnerLaws(place, look.table, recorded.newest_owner, recorded.owners, schema, faults)
        applied = None if look.kv is None else applied_offset(look.kv.records(APPLIED))
        if applied is not None and applied > look.log.end:
            what = f"the KV has offset {applied:,}, and the log ends at {look.log.end:,}: acknowledged frames are gone"
            faults.add(Law.LOGS, f"{place}: {what}", "restore the folder from a backup")
        # A KV that is older than the log is built anew when the bucket is opened.
        self._kv = look.kv if applied is not None and look.log.start <= applied <= look.log.end else None
        self._applied = 0 if applied is None or self._kv is None else applied
        locks = {record.number: Lock(record, 0.0) for record in recorded.owners}
        self._owning = Owning({} if self._kv is None else self._kv.records(OWNER_RECORD), lambda: locks)
        self._since = 0 if look.log.start == 0 else None if look.copy is None else look.copy[1]
        is_covered = self._since is not None and self._since <= self._applied
        self.is_comparing = look.codec is not None and self._kv is not None and is_covered
        self._sum = 0

    def take(self, frame: Frame) -> None:
        """The next frame."""
        header, codec = frame.header, self._look.codec
        self._commits.take(header)
        if header.base_offset >= self._applied:
            views: dict[int, OwnerView] = self._owning.after(header.tag, header.base_offset, header.end_offset, {})
            self._owning.noted(views)
        if codec is None or self._owners is None:
            return
        schema = codec.of(header.schema_id).schema
        rows = pa.ipc.read_record_batch(frame.body, change_schema(schema)) if header.rows else None
        self._owners.take(header, lambda: frozenset() if rows is None else changed_columns(rows, schema))
        is_stored = self._since is not None and self._since <= header.base_offset < self._applied
        if self.is_comparing and is_stored and rows is not None:
            self._sum = added(self._sum, sum_of_changes(rows, schema, codec.schema))

    def finish(self) -> None:
        """All frames were taken."""
        log, kv, codec = self._look.log, self._kv, self._look.codec
        self._commits.finish(log.start, log.end, None if kv is None else last_csn(kv.records(CSN)))
        if self._owners is not None:
            self._owners.finish(log.start, None if kv is None else self._owning.views)
        if not self.is_comparing or kv is None or codec is None:
            return
        copied = (0, 0) if log.start == 0 or self._look.copy is None else _sum_of(self._look.copy[0], codec)
        found, count = _sum_of(kv, codec)
        counted = row_count(kv.records(ROWS))
        if found != added(self._sum, copied[0]):
            what = f"the rows are not what the log makes up to offset {self._applied:,}"
            self._faults.add(Law.ROWS, f"{self._look.place}: {what}", BUILD_ANEW)
        elif counted is not None and counted != count and self._applied:
            what = f"there are {count:,} rows, and {counted:,} were counted"
            self._faults.add(Law.ROWS, f"{self._look.place}: {what}", BUILD_ANEW)


def _sum_of(kv: Kv, codec: RowCodecs) -> tuple[int, int]:
    """The sum of all rows of a KV, and how many they are."""
    pin = kv.pin()
    total = count = 0
    try:
        while len(values := pin.take(_ROWS_AT_ONCE)):
            total = added(total, sum_of_rows(codec.decode(values), codec.schema))
            count += len(values)
    finally:
        pin.close()
    return total, count
