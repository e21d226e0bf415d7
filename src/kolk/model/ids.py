"""Identities: of tables and buckets, and of writes.

A *write tag* stands in every log frame and says who wrote it; it is how a retry is told from a new write, and how a
transaction or an owner finds its frames again. One frame has one tag.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NewType

from kolk.errors import InvalidArgument

TableId = NewType("TableId", int)

NO_PARTITION = 0
"""The partition id of a table that is not partitioned."""


@dataclass(frozen=True, slots=True, order=True)
class BucketId:
    """One bucket. The order is the order in which locks are taken."""

    table: TableId
    partition: int
    bucket: int
    partition_name: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The public name: the key of every offsets mapping."""
        return f"{self.partition_name}/{self.bucket}" if self.partition_name else str(self.bucket)

    @property
    def folder(self) -> str:
        """Where its files are, below whatever holds files of all buckets: numbers only, never a name from outside."""
        return f"{self.table}/{self.partition}/{self.bucket}"


@dataclass(frozen=True, slots=True)
class PlainTag:
    """A plain put: the writer's random 128-bit id and its own count of puts."""

    writer: int
    seq: int

    def __post_init__(self) -> None:
        for value, limit in ((self.writer, 2**128), (self.seq, 2**63)):
            if not isinstance(value, int) or not 0 <= value < limit:
                raise InvalidArgument(f"a write tag is a 128-bit writer and a 63-bit count, not {self}")


@dataclass(frozen=True, slots=True)
class TransactionTag:
    """One bucket's share of a commit; ``part`` counts its frames."""

    csn: int
    part: int


@dataclass(frozen=True, slots=True)
class OwnerTag:
    """A put under a column lock."""

    owner: int
    fence: int
    ticket: int
    epoch: int
    seq: int
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class UndoTag:
    """A correction that takes an owner's uncommitted changes back; ``done`` ends it in this bucket."""

    owner: int
    fence: int
    done: bool


class SystemWork(IntEnum):
    """Why the store itself wrote a frame. Persisted: never renumber."""

    TRUNCATE = 0
    TTL = 1


@dataclass(frozen=True, slots=True)
class SystemTag:
    """A frame that no client asked for row by row."""

    work: SystemWork


WriteTag = PlainTag | TransactionTag | OwnerTag | UndoTag | SystemTag
