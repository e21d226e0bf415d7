"""Leases as values: dated promises not to delete snapshots, and what they say of each bucket.

A *pin* is one snapshot of one bucket, with the log offset from which its changes go on: a lease keeps both. Pure: time
is an argument, and nobody here knows whether a snapshot exists.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kolk.errors import InvalidArgument
from kolk.model.ids import BucketId, TableId

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A snapshot that is kept: its number in its bucket, and the offset of the first change that is not in it."""

    snapshot: int
    offset: int


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
class Lease:
    """A lease. ``holder`` is drawn at random by who asked for it, so that a call that is made again is known;
    ``generation`` is new whenever somebody takes it over, and who names an older one has lost it."""

    id: str
    generation: int
    holder: int
    principal: str
    created_ms: int
    ttl_ms: int
    tables: Mapping[TableId, TablePins]


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


def check_lease_id(id: str) -> str:
    """Refuse what is no id of a lease: it is in file names and on terminals."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidArgument(
            f"a lease id is up to 128 letters, digits, . _ : - and begins with a letter or digit, not {str(id)[:99]!r}"
        )
    return id
