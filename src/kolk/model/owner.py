"""Owners of columns: who may write them, since when, and up to which epoch what was written stands.

A writer that names itself takes some columns of a table for itself. What it writes is visible at once and tagged with
its *epoch*; a commit says up to which epoch it stands. When the owner, or another one in its place, begins again, what
lies beyond is taken back. A *fence* grows with every beginning: whoever has an older one writes no more.

Everything here is a value or a pure decision; the engine keeps the records, the tablets the frames.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from kolk.errors import InvalidArgument
from kolk.model.ids import OwnerTag, TableId
from kolk.model.names import no_column, plain_text
from kolk.model.schema import Column, Schema
from kolk.model.shown import shown as shown_value
from kolk.model.table import TableInfo

NO_EPOCH = -1
"""The epoch of an owner that has committed nothing yet."""
EPOCH_MAX = 2**62
STATE_BYTES_MAX = 64 * 1024
NAME_LENGTH_MAX = 256
TTL_SECONDS_MAX = 7 * 86_400.0
ATTEMPTS_KEPT = 16
"""Of so many runs an owner knows that they are over; who comes from an older one is taken for a new one."""
TASKS_MAX = 1 << 20
MESSAGE_BYTES_MAX = 64 * 1024


class UndoMode(Enum):
    """Whether what was not committed is taken back."""

    ALWAYS = "always"
    NONE = "none"
    """It is written again instead, which changes nothing: for functions that do not mind."""

    @staticmethod
    def parse(text: str) -> "UndoMode":
        """Clients write the word."""
        modes = {mode.value: mode for mode in UndoMode}
        if not isinstance(text, str) or text not in modes:
            raise InvalidArgument(f"undo is one of {', '.join(modes)}, not {text!r}"[:500])
        return modes[text]


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
    """Whether it has let its columns go, with nothing left uncommitted."""
    attempt: str = ""
    """The token of the run that it writes in, if that has one: whoever brings it writes under the same fence."""
    past: tuple[str, ...] = ()
    """The tokens of the runs before, the newest last."""
    tickets: int = 0
    """How many tickets its tasks were given."""
    is_restored: bool = False
    """Whether it came out of a backup, and has not begun since."""
    is_undoing: bool = False
    """Whether it is being taken back to its commit point, or was not to the end: by a beginning, or, if it is evicted
    too, by whatever lets its columns go. Nobody has been given its fence then."""
    used_ms: int = 0
    """When it last began, committed or let its columns go."""

    @property
    def has_columns(self) -> bool:
        """Whether anybody else must leave its columns alone."""
        return self.is_undoing or not (self.evicted or self.is_resting)

    @property
    def is_set_back(self) -> bool:
        """Whether what it takes for written may not be there, although nobody has told it yet."""
        return self.evicted or self.is_restored

    @property
    def over(self) -> tuple[str, ...]:
        """The tokens of its runs, once the last of them is over too."""
        return tuple(token for token in (*self.past, self.attempt) if token)[-ATTEMPTS_KEPT:]

    def names(self, schema: Schema) -> tuple[str, ...] | None:
        """The names of its columns, those that there still are; None for all."""
        if self.columns is None:
            return None
        return tuple(schema.by_id[id].name for id in self.columns if id in schema.by_id)

    def overlaps(self, columns: Collection[int]) -> bool:
        """Whether it has one of these columns. An owner of all has also what is in none: whether a row is there."""
        return self.columns is None or not set(self.columns).isdisjoint(columns)


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a run, one for each partition of its rows, as far as it has come. Its ticket grows with each attempt.

    ``message`` is what it left when it was through; None before.
    """

    epoch: int
    ticket: int
    message: bytes | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """An owner, as the buckets of its table see it: replaced whole, read by anyone.

    ``expires`` is on the clock of this process.
    """

    record: OwnerRecord
    expires: float
    is_recovering: bool = False
    """Whether what it left is still being taken back; its new fence may not write before that."""
    tasks: Mapping[int, Task] = field(default_factory=dict[int, Task])
    """The tasks of its newest epoch, by their partitions."""
    closing: int = NO_EPOCH
    """The epoch that is being committed: to it, and to those before it, nothing is added meanwhile."""

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
    is_recovering: bool = False
    """Whether what it left is being taken back, or was not to the end: nobody writes its columns."""
    is_dirty: bool | None = None
    """Whether it has changes that are not committed; None if nobody knows without opening buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerCounts:
    """The locks that there are, and what became of owners since the start."""

    remembered: int = 0
    """The owners that are known, whether they have columns or not."""
    locks: int = 0
    live: int = 0
    """Those of the locks whose time is not up."""
    dirty: int = 0
    """Those with changes that are not committed, as far as that is known without opening buckets."""
    abandoned: int = 0
    """Those of them whose time is up: nobody else may write their columns before they are taken back."""
    begun: int = 0
    committed: int = 0
    conflicts: int = 0
    """Beginnings that were refused, because others had the columns."""
    evicted: int = 0
    """Owners that were taken back to their last commit in somebody else's favour."""
    fenced: int = 0
    """Puts that were refused, because a newer writer goes on, or the time of their lock was up."""
    undone_rows: int = 0
    undo_seconds: float = 0.0


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
    attempt: str = ""


Locks = Mapping[int, Lock]
"""The locks of one table by the number of their owners."""


def shown(info: TableInfo, lock: Lock, now: float, *, is_dirty: bool | None = None) -> OwnerInfo:
    """A lock as people see it."""
    record = lock.record
    return OwnerInfo(
        table=str(info.name),
        owner=record.name,
        columns=record.names(info.schema),
        fence=record.fence,
        epoch=None if record.committed == NO_EPOCH else record.committed,
        is_live=lock.is_live(now),
        seconds_left=max(lock.expires - now, 0.0),
        undo=record.undo.value,
        is_recovering=lock.is_recovering,
        is_dirty=is_dirty,
    )


def closed_columns(schema: Schema, names: Sequence[str]) -> tuple[int, ...]:
    """The ids of the columns that an owner asks for; InvalidArgument if one of them goes with another that it leaves
    out: a column that decides and those it decides about are of one owner."""
    if isinstance(names, str) or not names:
        raise InvalidArgument("columns is a list of the columns to own; leave it out to own all of them")
    for name in names:
        if name not in schema.names:
            raise InvalidArgument(no_column(name, schema.names)[:500])
        column = schema.column(name)
        if not column.nullable and column.default is None and len(set(names)) < len(schema.value_columns):
            raise InvalidArgument(
                f"the column {name!r} is NOT NULL without a default, so what its owner inserts could not be taken back"
                " from a row that others have columns in; own all columns, or let it be null"
            )
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


def ids_of(schema: Schema, names: Sequence[str] | None) -> tuple[int, ...]:
    """The ids of columns by their names; None is all that there are outside the key."""
    columns = schema.value_columns if names is None else [schema.column(name) for name in names]
    return tuple(column.id for column in columns)


def is_replayable(column: Column) -> bool:
    """Whether a column does not mind to be given again what it was given, in whatever order."""
    function = column.function
    return function is not None and function.is_idempotent and function.is_commutative


def restored(record: OwnerRecord, skipped: int) -> OwnerRecord:
    """An owner as it comes out of a backup: with a fence that nobody has, however often it began since then, for what
    those writers wrote is not there."""
    return replace(record, fence=record.fence + skipped, attempt="", past=record.over, is_restored=True)


def ticket_of(number: int, partition: int) -> int:
    """The ticket of a task: it grows with the number, and says which task it is."""
    return number * TASKS_MAX + partition


def partition_of(ticket: int) -> int:
    """The task that a ticket is of."""
    return ticket % TASKS_MAX


def check_tag(tag: OwnerTag) -> None:
    """Raise InvalidArgument if this cannot be the tag of a put."""
    check_epoch(tag.epoch)
    for value in (tag.owner, tag.fence, tag.ticket, tag.seq):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= EPOCH_MAX:
            raise InvalidArgument(f"the tag of an owner's put has counts from 0 on, not {value!r}"[:500])


def check_ttl(seconds: object) -> float:
    """How long a lock lasts without being renewed; InvalidArgument if it cannot be."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= TTL_SECONDS_MAX:
        raise InvalidArgument(f"ttl is a time of up to {TTL_SECONDS_MAX / 86_400:.0f} days, not {seconds!r} s"[:500])
    return float(seconds)


def check_owner(name: object) -> str:
    """The name of an owner; InvalidArgument if it cannot be one."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidArgument(
            f"owner is a text of 1 to {NAME_LENGTH_MAX} printable characters, not {shown_value(name)}"
        )
    return plain_text(name)


def check_claim(claim: Claim) -> None:
    """Raise InvalidArgument if nobody can ask for this, whatever the table: what is kept of an owner has a limit."""
    check_owner(claim.owner)
    check_ttl(claim.ttl_seconds)
    for what, text in (("stream", claim.stream), ("attempt", claim.attempt)):
        if not isinstance(text, str) or len(text) > NAME_LENGTH_MAX or not text.isprintable():
            raise InvalidArgument(f"{what} is a text of up to {NAME_LENGTH_MAX} printable characters"[:500])
    if claim.resume_epoch is not None:
        check_epoch(claim.resume_epoch)


def check_epoch(epoch: object) -> int:
    """An epoch; InvalidArgument if it cannot be one."""
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch <= EPOCH_MAX:
        raise InvalidArgument(f"epoch is a whole number from 0 on, such as a batch id, not {shown_value(epoch)}")
    return int(epoch)


def check_state(state: object) -> bytes:
    """What a commit keeps for the job; InvalidArgument if it cannot be kept."""
    if not isinstance(state, bytes):
        raise InvalidArgument(f"user_state is bytes, such as text.encode(), not {type(state).__name__}")
    if len(state) > STATE_BYTES_MAX:
        raise InvalidArgument(f"the state of an owner has at most {STATE_BYTES_MAX:,} bytes, not {len(state):,}")
    return state
