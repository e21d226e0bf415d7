"""Owners of columns: who may write them, since when, and up to which epoch what was written stands.

A writer that names itself takes some columns of a table for itself. What it writes is visible at once and tagged with
its *epoch*; a commit says up to which epoch it stands. When the owner, or another one in its place, begins again, what
lies beyond is taken back. A *fence* grows with every beginning: whoever has an older one writes no more.

Everything here is a value or a pure decision; the engine keeps the records, the tablets the frames.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kolk.errors import InvalidArgument
from kolk.model.ids import TableId
from kolk.model.schema import Schema

NO_EPOCH = -1
"""The epoch of an owner that has committed nothing yet."""
EPOCH_MAX = 2**62
STATE_BYTES_MAX = 64 * 1024
NAME_LENGTH_MAX = 256


class UndoMode(Enum):
    """Whether what was not committed is taken back."""

    ALWAYS = "always"
    NONE = "none"
    """It is written again instead, which changes nothing: for functions that do not mind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRecord:
    """What is kept of an owner. ``columns`` are ids, None is all; ``number`` is never used again."""

    table: TableId
    name: str
    number: int
    columns: tuple[int, ...] | None
    fence: int
    ttl_seconds: float
    committed: int = NO_EPOCH
    committed_fence: int = 0
    stream: str = ""
    undo: UndoMode = UndoMode.ALWAYS
    state: bytes = b""
    evicted: bool = False
    """Whether it was taken back to its commit point in somebody else's favour."""
    is_resting: bool = False
    """Whether it has let its columns go by itself, with nothing left uncommitted."""

    def overlaps(self, columns: Collection[int] | None) -> bool:
        """Whether it has one of these columns; None is all of them."""
        if self.columns is None or columns is None:
            return True
        return not set(self.columns).isdisjoint(columns)


@dataclass(frozen=True, slots=True)
class Lock:
    """An owner, as the buckets of its table see it: replaced whole, read by anyone.

    ``expires`` is on the clock of this process.
    """

    record: OwnerRecord
    expires: float
    is_recovering: bool = False
    """Whether what it left is still being taken back; its new fence may not write before that."""

    def is_live(self, now: float) -> bool:
        """Whether its time is not up."""
        return now < self.expires


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerInfo:
    """An owner as ``db.locks()`` shows it."""

    table: str
    owner: str
    columns: tuple[str, ...] | None
    fence: int
    epoch: int | None
    is_live: bool
    seconds_left: float
    undo: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an owner asks for. ``columns`` are names, None for all."""

    owner: str
    columns: Sequence[str] | None
    ttl_seconds: float
    stream: str = ""
    resume_epoch: int | None = None
    undo: UndoMode = UndoMode.ALWAYS
    reset: bool = False


Locks = Mapping[int, Lock]
"""The locks of one table by the number of their owners."""


def conflicting(locks: Iterable[Lock], columns: Collection[int] | None, name: str | None) -> list[Lock]:
    """The locks of others that have one of these columns."""
    return [lock for lock in locks if lock.record.name != name and lock.record.overlaps(columns)]


def closed_columns(schema: Schema, names: Sequence[str]) -> tuple[int, ...]:
    """The ids of the columns that an owner asks for; InvalidArgument if one of them goes with another that it leaves
    out: a column that decides and those it decides about are of one owner."""
    chosen = {schema.column(name).id for name in names}
    for column in schema.value_columns:
        by = None if column.agg is None else column.agg.get("by")
        if by is not None and (column.name in names) != (by in names):
            raise InvalidArgument(
                f"the column {by!r} decides about {column.name!r}, so an owner has both of them or neither"
            )
    for name in names:
        if name in schema.primary_key:
            raise InvalidArgument(f"the column {name!r} is part of the primary key, which nobody owns; leave it out")
    return tuple(sorted(chosen))


def check_owner(name: object) -> str:
    """The name of an owner; InvalidArgument if it cannot be one."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidArgument(f"owner is a text of 1 to {NAME_LENGTH_MAX} printable characters, not {name!r}"[:500])
    return name


def check_epoch(epoch: object) -> int:
    """An epoch; InvalidArgument if it cannot be one."""
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch <= EPOCH_MAX:
        raise InvalidArgument(f"epoch is a whole number from 0 on, such as a batch id, not {epoch!r}"[:500])
    return epoch
