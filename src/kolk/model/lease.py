"""Leases as values: dated promises not to delete snapshots, and what they say of each bucket.

A *pin* is one snapshot of one bucket, with the log offset from which its changes go on: a lease keeps both, and at most
one snapshot of a bucket. Pure: time is an argument, and nobody here knows whether a snapshot exists.

Pins lie in *chunks*, by the numbers of their partitions and buckets alone: whoever changes one pin of a hundred
thousand copies, and writes down, one chunk. What did not change is the very same object afterwards, so that two states
of a lease are compared without looking at every pin.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

import msgspec

from kolk.errors import InvalidArgument
from kolk.model.ids import BucketId, TableId
from kolk.model.names import plain_text

CHUNK_PARTITIONS = 16
CHUNK_BUCKETS = 256
"""A chunk has at most 4,096 pins: even with the greatest numbers and the longest names far less than a record takes."""
NUMBER_MAX = 2**63 - 1
HOLDER_MAX = 2**128 - 1
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

Chunk = tuple[int, int]
"""Which partitions and which buckets: the numbers of both, in steps."""


class LeaseEnd(Enum):
    """Why a lease is gone. The words cross the wire."""

    EXPIRED = "expired"
    DROPPED = "dropped"
    TAKEN = "taken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A snapshot that is kept: its number in its bucket, and the offset of the first change that is not in it."""

    snapshot: int
    offset: int


class ChunkedPins(Mapping[BucketId, Pinned]):
    """The pins of one table, in chunks, none of which is empty. Immutable; a change shares what it leaves alone."""

    __slots__ = ("_count", "chunks")

    def __init__(self, chunks: Mapping[Chunk, Mapping[BucketId, Pinned]]) -> None:
        self.chunks = chunks
        self._count = sum(map(len, chunks.values()))

    @classmethod
    def of(cls, pins: Mapping[BucketId, Pinned]) -> "ChunkedPins":
        """Any pins, in chunks."""
        return pins if isinstance(pins, cls) else cls({}).updated(pins)

    def __getitem__(self, bucket: BucketId) -> Pinned:
        return self.chunks[chunk_of(bucket)][bucket]

    def __iter__(self) -> Iterator[BucketId]:
        return (bucket for pins in self.chunks.values() for bucket in pins)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"ChunkedPins({dict(self)})"

    def updated(self, pins: Mapping[BucketId, Pinned]) -> "ChunkedPins":
        """With these pins, in place of those of the same buckets."""
        chunks: dict[Chunk, dict[BucketId, Pinned]] = {}
        for bucket, pinned in pins.items():
            if self.get(bucket) != pinned:
                at = chunk_of(bucket)
                if at not in chunks:
                    chunks[at] = dict(self.chunks.get(at, {}))
                chunks[at][bucket] = pinned
        return ChunkedPins({**self.chunks, **chunks}) if chunks else self

    def without(self, buckets: Iterable[BucketId]) -> "ChunkedPins":
        """Without those of these buckets that there are."""
        gone: dict[Chunk, set[BucketId]] = {}
        for bucket in buckets:
            if bucket in self:
                gone.setdefault(chunk_of(bucket), set()).add(bucket)
        if not gone:
            return self
        chunks = dict(self.chunks)
        for at, these in gone.items():
            chunks[at] = {bucket: pinned for bucket, pinned in chunks[at].items() if bucket not in these}
        return ChunkedPins({at: pins for at, pins in chunks.items() if pins})


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePins:
    """What a lease keeps of one table.

    ``position`` is that of the record of partitions, None without partitions: with it the changelog goes on where the
    snapshots end. ``is_consistent`` says that all of them are of one moment.
    """

    pins: Mapping[BucketId, Pinned]
    position: int | None = None
    is_consistent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What somebody asks a lease to keep of one table: a snapshot for each of some buckets. The rest as ``TablePins``
    has it."""

    snapshots: Mapping[BucketId, int]
    position: int | None = None
    is_consistent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease. ``holder`` is drawn at random by who asked for it, so that a call that is made again is known;
    ``generation`` is new whenever somebody takes it over, and who names an older one has lost it. ``left_ms`` is how
    long it lives on if nobody renews it, from when it was looked at."""

    id: str
    generation: int
    holder: int
    principal: str
    created_ms: int
    ttl_ms: int
    tables: Mapping[TableId, TablePins]
    left_ms: int = 0

    @property
    def pin_count(self) -> int:
        """How many buckets it holds a snapshot of."""
        return sum(len(table.pins) for table in self.tables.values())

    def pin(self, bucket: BucketId) -> Pinned | None:
        """What it keeps of a bucket."""
        table = self.tables.get(bucket.table)
        return None if table is None else table.pins.get(bucket)

    def missing(self, wanted: Mapping[TableId, Wanted]) -> dict[BucketId, int]:
        """Those of the wanted snapshots that it does not keep."""
        return {
            bucket: snapshot
            for each in wanted.values()
            for bucket, snapshot in each.snapshots.items()
            if (pinned := self.pin(bucket)) is None or pinned.snapshot != snapshot
        }

    def acquired(self, wanted: Mapping[TableId, Wanted], pinned: Mapping[BucketId, Pinned]) -> "Lease":
        """After some of what is wanted was pinned. A table of which it then keeps nothing that was asked for stays as
        it is; the others are of the position, and as consistent, as the call says. The same lease if that is no
        news."""
        tables = dict(self.tables)
        for table, each in wanted.items():
            known = tables.get(table)
            new = {bucket: pinned[bucket] for bucket in each.snapshots if bucket in pinned}
            pins = ChunkedPins.of({} if known is None else known.pins).updated(new)
            is_kept = any(bucket in pins and pins[bucket].snapshot == wish for bucket, wish in each.snapshots.items())
            is_news = known is None or known.pins is not pins or _said(known) != _said(each)
            if is_kept and is_news:
                tables[table] = TablePins(pins=pins, position=each.position, is_consistent=each.is_consistent)
        is_same = all(each is self.tables.get(table) for table, each in tables.items())
        return self if is_same else replace(self, tables=tables)

    def released(self, buckets: Iterable[BucketId]) -> "Lease":
        """Without the pins of some buckets; the same lease if it has none of them."""
        by_table: dict[TableId, list[BucketId]] = {}
        for bucket in buckets:
            by_table.setdefault(bucket.table, []).append(bucket)
        lease = self
        for table in by_table.keys() & self.tables.keys():
            lease = lease._with(table, ChunkedPins.of(self.tables[table].pins).without(by_table[table]))
        return lease

    def without_table(self, table: TableId) -> "Lease":
        """Without the pins of a table."""
        return self._with(table, ChunkedPins({})) if table in self.tables else self

    def without_partition(self, table: TableId, partition: int) -> "Lease":
        """Without the pins of a partition."""
        pins = {} if (known := self.tables.get(table)) is None else known.pins
        return self.released([bucket for bucket in pins if bucket.partition == partition])

    def _with(self, table: TableId, pins: ChunkedPins) -> "Lease":
        if pins is self.tables[table].pins:
            return self
        tables = {**self.tables, table: replace(self.tables[table], pins=pins)}
        return replace(self, tables={number: each for number, each in tables.items() if each.pins})


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseInfo:
    """A lease, for whoever looks after the database. ``is_readable`` is False for one whose record is damaged: it keeps
    everything, until somebody drops it."""

    id: str
    principal: str
    created: datetime
    expires: datetime
    ttl_seconds: float
    pins: int
    pinned_bytes: int
    tables: tuple[str, ...]
    is_readable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCounts:
    """How many leases there are, what they keep, and what became of others since the database was opened.

    ``unreadable`` are those whose records are damaged, which ``leases`` does not count. ``unavailable`` counts the
    snapshots that were asked for and did not exist, ``renew_failures`` the renewals that were refused.
    ``pinned_bytes`` is the size of the snapshots that leases keep, each counted once.
    """

    leases: int = 0
    unreadable: int = 0
    pins: int = 0
    expired: int = 0
    unavailable: int = 0
    renew_failures: int = 0
    oldest_age_seconds: float = 0.0
    pinned_bytes: int = 0


def chunk_of(bucket: BucketId) -> Chunk:
    """The chunk that a bucket's pin lies in."""
    return bucket.partition // CHUNK_PARTITIONS, bucket.bucket // CHUNK_BUCKETS


def numbers_of(pins: Mapping[BucketId, Pinned]) -> dict[BucketId, int]:
    """The snapshots of these pins, by bucket."""
    return {bucket: pinned.snapshot for bucket, pinned in pins.items()}


def lost_pins(before: Lease | None, after: Lease | None) -> dict[BucketId, int]:
    """The snapshots that a lease has kept and keeps no more; None is no lease."""
    lost: dict[BucketId, int] = {}
    for table, known in before.tables.items() if before is not None else ():
        kept = None if after is None else after.tables.get(table)
        chunks = {} if kept is None else ChunkedPins.of(kept.pins).chunks
        for at, pins in ChunkedPins.of(known.pins).chunks.items():
            others = chunks.get(at, {})
            if others is not pins:
                lost |= {
                    bucket: pinned.snapshot
                    for bucket, pinned in pins.items()
                    if (other := others.get(bucket)) is None or other.snapshot != pinned.snapshot
                }
    return lost


def check_lease_id(id: str) -> str:
    """Refuse what is no id of a lease: it is in file names and on terminals."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidArgument(
            "a lease id is up to 128 letters, digits and . _ : - and begins with a letter or digit, not"
            f" {str(id)[:200]!r}"
        )
    return plain_text(id)


def check_wanted(wanted: Mapping[TableId, Wanted]) -> None:
    """Refuse what asks for nothing, or for what cannot be."""
    if not any(each.snapshots for each in wanted.values()):
        raise InvalidArgument(
            "a lease keeps at least one snapshot; name one, or renew the lease if that is what is meant"
        )
    for table, each in wanted.items():
        if each.position is not None:
            _check_number("a position in the record of partitions", each.position)
        for bucket, snapshot in each.snapshots.items():
            if bucket.table != table:
                raise InvalidArgument(f"{bucket} is no bucket of the table {table}")
            _check_number("a partition", bucket.partition)
            _check_number("a bucket", bucket.bucket)
            _check_number("a snapshot", snapshot)


def wish_digest(wanted: Mapping[TableId, Wanted]) -> bytes:
    """A short name for what is asked, in which two calls agree only if they ask for the same."""
    wishes = [
        (
            table,
            each.position,
            each.is_consistent,
            sorted((bucket.partition, bucket.bucket, snapshot) for bucket, snapshot in each.snapshots.items()),
        )
        for table, each in sorted(wanted.items(), key=lambda item: item[0])
    ]
    return hashlib.blake2b(msgspec.msgpack.encode(wishes), digest_size=16).digest()


def _said(table: TablePins | Wanted) -> tuple[int | None, bool]:
    return table.position, table.is_consistent


def _check_number(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise InvalidArgument(f"{what} is a number from 0 on, not {str(value)[:200]!r}")
