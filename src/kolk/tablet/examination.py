"""One bucket that nobody serves, gone through from its first frame to its last row: is it what it must be?

Everything is read once, in pieces, and nothing is written. The KV may be older than the log, as after a crash: it is
compared as of the offset that it says it has. If the log does not begin at 0, the rows of a snapshot stand for what is
gone. Without one, and for tables whose changelog lacks the rows before, rows are not compared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from kolk.codec.checksum import added
from kolk.codec.versions import RowCodecs
from kolk.errors import Corrupted
from kolk.merge.changed import changed_columns, sum_of_changes, sum_of_rows
from kolk.merge.changes import change_schema
from kolk.model.ids import BucketId
from kolk.model.owner import Lock, OwnerRecord
from kolk.model.transaction import CommitRecord
from kolk.storage.kv import Kv
from kolk.storage.looked_log import LookedLog
from kolk.storage.segment_reader import Frame
from kolk.tablet.commit_laws import RESTORE, CommitLaws
from kolk.tablet.faults import Faults, Law, build_anew, place_of
from kolk.tablet.owner_laws import OwnerLaws
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What a KV keeps beside its rows."""

    applied: int
    csn: int
    rows: int | None
    owners: Mapping[bytes, bytes]

    @staticmethod
    def of(kv: Kv) -> "_Stored":
        return _Stored(
            applied=applied_offset(kv.records(APPLIED)),
            csn=last_csn(kv.records(CSN)),
            rows=row_count(kv.records(ROWS)),
            owners=kv.records(OWNER_RECORD),
        )


class _State:
    """What is known after the frames so far. Confined to one examination."""

    def __init__(self, look: Look, recorded: Recorded, faults: Faults) -> None:
        self._look, self._faults = look, faults
        self._commits = CommitLaws(look.table, look.bucket, recorded.newest_commit, recorded.commits, faults)
        self._owners: OwnerLaws | None = None
        if look.codec is not None:
            owners, schema = recorded.owners, look.codec.schema
            self._owners = OwnerLaws(look.table, look.bucket, recorded.newest_owner, owners, schema, faults)
        self._stored = self._usable()
        locks = {record.number: Lock(record, 0.0) for record in recorded.owners}
        self._owning = Owning({} if self._stored is None else self._stored.owners, lambda: locks)
        self._applied = 0 if self._stored is None else self._stored.applied
        self._since = 0 if look.log.start == 0 else None if look.copy is None else look.copy[1]
        is_covered = self._since is not None and self._since <= self._applied
        self.is_comparing = look.codec is not None and self._stored is not None and is_covered
        self._sum = 0

    def _usable(self) -> _Stored | None:
        """What the KV keeps; None if there is no KV, or none that can be used: it is built anew when its bucket is
        opened."""
        kv, log = self._look.kv, self._look.log
        if kv is None:
            return None
        try:
            stored = _Stored.of(kv)
        except Corrupted as error:
            self._add(Law.ROWS, f"the KV is damaged ({error.__cause__ or error})", build_anew(self._look.bucket))
            return None
        if stored.applied > log.end:
            what = (
                f"the KV has offset {stored.applied:,}, and the log ends at {log.end:,}: acknowledged frames are gone"
            )
            self._add(Law.LOGS, what, RESTORE)
        return stored if log.start <= stored.applied <= log.end else None

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
        log, stored = self._look.log, self._stored
        self._commits.finish(log.start, log.end, None if stored is None else stored.csn)
        if self._owners is not None:
            self._owners.finish(log.start, None if stored is None else self._owning.views)
        if self.is_comparing and stored is not None:
            self._compare(stored)

    def _compare(self, stored: _Stored) -> None:
        """Hold the rows against what the log has made."""
        kv, codec, copy, bucket = self._look.kv, self._look.codec, self._look.copy, self._look.bucket
        assert kv is not None, "what is stored is stored there"
        assert codec is not None, "there is something to compare"
        try:
            found, count = _sum_of(kv, codec)
        except Corrupted as error:
            self._add(Law.ROWS, f"the KV is damaged ({error.__cause__ or error})", build_anew(bucket))
            return
        if self._since and copy is not None:
            try:
                self._sum = added(self._sum, _sum_of(copy[0], codec)[0])
            except Corrupted:
                self.is_comparing = False  # whoever looks at snapshots tells of it
                return
        if found != self._sum:
            what = f"the rows are not what the log makes up to offset {self._applied:,}"
            self._add(Law.ROWS, what, build_anew(bucket))
        elif stored.rows not in (None, count) and self._applied:
            what = f"there are {count:,} rows, and {stored.rows:,} were counted"
            self._add(Law.ROWS, what, build_anew(bucket))

    def _add(self, law: Law, what: str, next_step: str) -> None:
        self._faults.add(law, f"{place_of(self._look.table, self._look.bucket)}: {what}", next_step)


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
