"""Scans as values: what is asked for, where a reader is, what it is handed, and how an open one looks from outside.

A reader's place in a scan is a point in one total order, that of the buckets and of the keys within each. So a place
stands for itself: it needs no iterator, it can be written down as a token, and it means the same in a scan that is
opened anew.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

import msgspec
import pyarrow as pa

from kolk.errors import InvalidArgument
from kolk.model.ids import BucketId, TableId
from kolk.model.names import plain_text
from kolk.model.partition import PARTITIONS, PartitionEvent
from kolk.model.predicate import Predicate
from kolk.model.shown import shown

NONCE_LENGTH_MAX = 200


class ScanEnd(Enum):
    """Why a scan is gone. The words cross the wire."""

    TTL = "ttl"
    CLOSED = "closed"
    REVOKED = "revoked"
    UNKNOWN = "unknown"


class ScanSource(Enum):
    """Which rows a scan shows. The words cross the wire."""

    LIVE = "live"
    SNAPSHOT = "snapshot"
    LEASE = "lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """What a scan is to show, and how long it is to live.

    ``buckets`` are public names; None is all of them. With a ``nonce`` opening again gives the same scan and no second
    one. A shared scan is for several readers: its end is not the end of one of them, and its nonce is known for a day.
    One with ``linger_seconds`` gives way: read to its end it is kept for so long only, and while nobody reads it others
    may have its place. ``resume`` is the token of a scan that was lost: only what comes after it is shown.

    ``source`` is the living rows, the newest snapshots, or those of the ``lease``, which whoever asks has in this
    ``generation``, if one is named: what another holder leases under its id is not what he knows. ``pins`` names the
    snapshots one by one, as a scan has them that goes on. Its buckets are those that had these names at ``position`` in
    the record of partitions: one that is made anew has the name of another, and snapshots of the same numbers.
    """

    names: tuple[str, ...] | None = None
    limit: int | None = None
    where: Predicate | None = None
    schema_id: int = 0
    buckets: tuple[str, ...] | None = None
    nonce: str = ""
    is_shared: bool = False
    ttl_seconds: float | None = None
    linger_seconds: float | None = None
    resume: str = ""
    source: ScanSource = ScanSource.LIVE
    lease: str = ""
    generation: int = 0
    pins: tuple[tuple[str, int], ...] | None = None
    position: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and (not isinstance(self.limit, int) or not 0 <= self.limit < 2**63):
            raise InvalidArgument(f"limit is a number of rows, not {shown(self.limit)}")
        if not _is_text(self.nonce) or len(self.nonce) > NONCE_LENGTH_MAX:
            raise InvalidArgument(f"a nonce is text of at most {NONCE_LENGTH_MAX} characters, not {self.nonce!r:.60}")
        object.__setattr__(self, "nonce", plain_text(self.nonce))
        object.__setattr__(self, "limit", None if self.limit is None else int(self.limit))
        if self.linger_seconds is not None and not (self.is_shared and 0 < self.linger_seconds < float("inf")):
            raise InvalidArgument("linger is more than 0 s, and for shared scans: others end when they are read")

    @property
    def is_owned(self) -> bool:
        """Whether the scan ends with its reader: nobody else can find it."""
        return not (self.is_shared and self.nonce)

    def query(self, table: TableId) -> bytes:
        """A short name for what is asked, in which two requests agree only if they would show the same rows."""
        where = None if self.where is None else self.where.text
        return _digest((table, self.schema_id, self.names, where, self.limit, self.buckets, *self._shown))

    def walk(self, table: TableId) -> bytes:
        """A short name for the rows that are walked through, in which two requests agree only if a place in one of them
        is the same place in the other. Columns do not move a place, and neither does where somebody stops: one may
        count rows by their keys, and another read up to there, and on."""
        version = None if self.where is None else (self.schema_id, self.where.text)
        return _digest((table, version, self.buckets, *self._shown))

    @property
    def is_live(self) -> bool:
        """Whether it asks for the living rows."""
        return self.source is ScanSource.LIVE

    @property
    def _shown(self) -> tuple[object, ...]:
        """Whose rows are asked for, if they are not the living ones."""
        return () if self.is_live else (self.source.value, self.lease, self.pins, self.position)

    def resolved(self, pins: Mapping[str, int] | None, offsets: Mapping[str, int]) -> "ScanRequest":
        """The request that asks for just the snapshots that were found for this one, with the offsets of the scan; None
        are the living rows."""
        if pins is None:
            return self
        named, position = tuple(sorted(pins.items())), offsets.get(PARTITIONS)
        return replace(self, source=ScanSource.SNAPSHOT, lease="", generation=0, pins=named, position=position)


def check_scan_id(id: str) -> str:
    """Refuse what is no id of a scan; whether there is such a scan is not said."""
    if not _is_text(id):
        raise InvalidArgument(f"a scan is named by its id, the text in scan.id, not {id!r:.60}")
    return plain_text(id)


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reader is: all buckets before this one are read, and of this one all keys up to ``after``.

    ``delivered`` counts the rows up to here, by which a limit is kept.
    """

    partition: int = 0
    bucket: int = 0
    after: bytes = b""
    delivered: int = 0


START = Place()


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a scan that was lost had read: some buckets wholly, and one perhaps up to a key."""

    whole: tuple[str, ...]
    bucket: str | None = None
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a scan, or that a partition is gone, and the place after them.

    ``runs`` says which bucket the rows are of: so many from the first, so many from the next. A page without rows only
    says that none of those looked at so far is wanted.
    """

    batch: pa.RecordBatch | None
    runs: tuple[tuple[str, int], ...]
    place: Place
    is_last: bool
    event: PartitionEvent | None = None


@dataclass(frozen=True, slots=True)
class ScanPage:
    """The same as a client is handed it: the place is a token. None can be read after the last one."""

    batch: pa.RecordBatch | None
    runs: tuple[tuple[str, int], ...]
    token: str
    is_last: bool
    event: PartitionEvent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanInfo:
    """An open scan, for whoever looks after the database.

    ``views`` is how many buckets it has pinned, ``expires`` when it is given up if nobody reads it; None is never.
    """

    id: str
    table: str
    principal: str
    is_shared: bool
    is_drained: bool
    views: int
    rows: int
    size_bytes: int
    opened: datetime
    last_use: datetime
    expires: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanCounts:
    """What became of scans since the database was opened, and how many there are."""

    open: int
    views: int
    opened: int
    expired: int
    revoked: int
    refused: int
    rows: int
    size_bytes: int


def _is_text(given: object) -> bool:
    """Whether this is text that can be sent: half a surrogate pair is no character."""
    return isinstance(given, str) and given.encode(errors="ignore").decode() == given


def _digest(asked: tuple[object, ...]) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(asked), digest_size=16).digest()


def read_before(place: Place, buckets: Sequence[BucketId]) -> Resumed:
    """What of these buckets, which are in order, comes before a place."""
    at = (place.partition, place.bucket)
    whole = tuple(each.name for each in buckets if (each.partition, each.bucket) < at)
    here = next((each.name for each in buckets if (each.partition, each.bucket) == at and place.after), None)
    return Resumed(whole, here, place.after if here else b"")


def rows_of(runs: Sequence[tuple[str, int]]) -> int:
    """How many rows these runs are."""
    return sum(rows for _, rows in runs)
