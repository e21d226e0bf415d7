"""How far a streaming query has come, as a value: what Spark keeps in its checkpoint, and how batches are divided.

A query that starts with all rows reads *snapshots* first, bucket by bucket, each divided at row counts; then the *log*,
each bucket divided at its offsets. A micro-batch is what lies between two positions. Both are exact: the snapshots are
leased and do not change, and neither does a log, so a batch that is read again has the very same rows.

Spark compares positions as texts, so equal ones are written alike. Its very first batch is special: when it has to be
read again Spark asks anew where the query begins, and the answer may be another one by then. So the end of the first
batch says where that batch began, and that counts.

Pure: nobody here asks a server. Refused is what another format, or no query of ours, has written.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kolk.errors import InvalidArgument, UnknownFormat
from kolk.model.partition import (
    PARTITIONS,
    Partition,
    PartitionEvent,
    PartitionEventKind,
    after,
    partition_of,
)

VERSION = 1
_SHOWN_MAX = 200
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """What is left of a bucket's snapshot: so many of its rows are read, and the token is the place after them."""

    snapshot: int
    rows: int
    done: int = 0
    token: str = ""

    @property
    def left(self) -> int:
        """How many rows are left, as far as is known."""
        return max(self.rows - self.done, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a query is.

    ``log`` is by bucket, with the place in the record of partitions if the table has any; ``made`` has the numbers of
    those partitions, since one that is made anew has the same name and another log. While ``unread`` has buckets, their
    rows come first; the ``lease`` keeps them, and was made at ``leased_ms``. Its name stays here until a later batch:
    whoever commits this one lets it go. ``first`` is where the first batch of the query began, if it is the one that
    ends here. ``where`` is the text of what chooses its partitions, empty if it reads them all: what is not in ``log``
    was passed over by it. None is written by a Kolk that did not keep it, and says nothing.
    """

    table: int
    follower: str
    log: Mapping[str, int]
    made: Mapping[str, int] = field(default_factory=dict[str, int])
    lease: str = ""
    leased_ms: int = 0
    unread: Mapping[str, Unread] = field(default_factory=dict[str, Unread])
    first: "Position | None" = None
    where: str | None = None

    @property
    def is_scanned(self) -> bool:
        """Whether all rows of the snapshots are read, so that the log is next."""
        return not self.unread

    @property
    def place(self) -> int:
        """The place in the record of partitions; 0 if the table has none."""
        return self.log.get(PARTITIONS, 0)

    def json(self) -> dict[str, Any]:
        """As Spark keeps it: equal positions are equal texts."""
        found: dict[str, Any] = {
            "version": VERSION,
            "table": self.table,
            "follower": self.follower,
            "log": _by_name(self.log),
        }
        if self.where is not None:
            found["where"] = self.where
        if self.made:
            found["made"] = _by_name(self.made)
        if self.lease:
            found["lease"] = self.lease
            found["leased"] = self.leased_ms
            found["unread"] = {
                name: [each.snapshot, each.rows, each.done, each.token] for name, each in _by_name(self.unread).items()
            }
        if self.first is not None:
            found["first"] = self.first.json()
        return found

    @staticmethod
    def of(found: Mapping[str, Any]) -> "Position":
        """What Spark has kept."""
        version = found.get("version")
        if version != VERSION:
            raise UnknownFormat(
                f"this checkpoint has offsets of version {version!r}, and this kolk knows version {VERSION}; use the"
                " kolk that wrote it, or start with a new checkpoint"
            )
        try:
            first, where = found.get("first"), found.get("where")
            return Position(
                table=int(found["table"]),
                follower=str(found["follower"]),
                log={str(name): int(offset) for name, offset in found["log"].items()},
                made={str(name): int(number) for name, number in found.get("made", {}).items()},
                lease=str(found.get("lease", "")),
                leased_ms=int(found.get("leased", 0)),
                unread={
                    str(name): Unread(snapshot=int(snapshot), rows=int(rows), done=int(done), token=str(token))
                    for name, (snapshot, rows, done, token) in found.get("unread", {}).items()
                },
                first=None if first is None else Position.of(first),
                where=None if where is None else str(where),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(
                f"these are no offsets of a query on kolk ({type(error).__name__}: {error}); the checkpoint is another"
                " query's, or damaged: start with a new one"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSlice:
    """Rows of a bucket's snapshot: from a place on, which is after ``start`` rows, up to ``stop`` rows, or all."""

    bucket: str
    snapshot: int
    place: int | None
    start: int
    stop: int | None
    token: str
    rows: int
    offset: int
    leased_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Changes of a bucket: ``partition`` is the number of its partition, 0 without."""

    bucket: str
    partition: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many changes."""
        return self.stop - self.start


Slice = SnapshotSlice | LogSlice


def shares(sizes: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """How much is taken of each: all of it, or as much as the limit allows, the same of each; what some do not need,
    the others have."""
    if limit is None or sum(sizes.values()) <= limit:
        return dict(sizes)
    taken: dict[str, int] = {}
    for place, (name, size) in enumerate(sorted(sizes.items(), key=lambda each: (each[1], each[0]))):
        # The smallest come first, so that whatever one of them leaves is shared by all that follow.
        even, more = divmod(limit, len(sizes) - place)
        taken[name] = min(size, even + (1 if more else 0))
        limit -= taken[name]
    return {name: taken[name] for name in sizes}


def scanned(position: Position, limit: int | None, lanes: int) -> dict[str, int]:
    """Up to how many rows of each snapshot the next batch goes; a bucket that is not named waits. With a limit few are
    read at once, as many as there are lanes or as are needed for a full batch, so that few are divided in their
    middle."""
    chosen: list[str] = []
    room = limit
    for name, unread in position.unread.items():
        if room is not None and room <= 0 and len(chosen) >= lanes:
            break
        chosen.append(name)
        room = None if room is None else room - unread.left
    taken = shares({name: position.unread[name].left for name in chosen}, limit)
    return {name: position.unread[name].done + rows for name, rows in taken.items() if rows}


def after_rows(position: Position, reached: Mapping[str, Unread]) -> Position:
    """After a batch of the snapshots: how far each bucket was read. One that was read to its end is done with."""
    unread = {**position.unread, **reached}
    return replace(position, unread={name: each for name, each in unread.items() if each.left}, first=None)


def after_changes(position: Position, ends: Mapping[str, int], limit: int | None) -> Position:
    """After a batch of the log: up to the ends of its buckets, or as far as the limit allows."""
    sizes = {name: max(ends.get(name, at) - at, 0) for name, at in position.log.items() if name != PARTITIONS}
    taken = shares(sizes, limit)
    log = {name: at + taken.get(name, 0) for name, at in position.log.items()}
    return replace(position, log=log, lease="", leased_ms=0, first=None)


def after_event(position: Position, event: PartitionEvent, buckets: int) -> Position:
    """Once it is known what became of a partition: a new one is read from its beginning, one that is gone no more."""
    log, made = after(event, position.log), dict(position.made)
    if event.kind is PartitionEventKind.DROPPED:
        made.pop(event.partition, None)
    else:
        log |= {f"{event.partition}/{bucket}": 0 for bucket in range(buckets)}
        made[event.partition] = event.position - 1  # a partition has the number of the event that made it
    return replace(position, log=log, made=made)


def at_place(position: Position, place: int) -> Position:
    """The same, further on in the record of partitions."""
    return replace(position, log={**position.log, PARTITIONS: place})


def numbers(names: Iterable[str], place: int, partitions: Iterable[Partition]) -> dict[str, int]:
    """The numbers of partitions as they were at a place in their record. One that is gone by now has none, and whoever
    reads on will be told."""
    known = {each.name: each.id for each in partitions if each.id < place}
    return {name: known[name] for name in dict.fromkeys(names) if name in known}


def behind(position: Position, ends: Mapping[str, int]) -> int:
    """How many rows and changes are yet to be read."""
    rows = sum(each.left for each in position.unread.values())
    names = [name for name in ends if name != PARTITIONS]
    return rows + sum(max(ends[name] - position.log.get(name, 0), 0) for name in names)


def slices(start: Position | None, end: Position) -> list[Slice]:
    """What lies between two positions, bucket by bucket; without a start, or at the first batch, from where the end
    says that it began."""
    begin = end.first or start
    if begin is None or begin.table != end.table:
        raise InvalidArgument("these offsets are not of one query; start it with a checkpoint of its own")
    return [*_snapshot_slices(begin, end), *_log_slices(begin, end)]


def grouped(sliced: Sequence[Slice], groups: int) -> list[list[Slice]]:
    """The same in at most so many groups of about the same number of rows. A bucket is not divided: its changes stay in
    order."""
    found: list[list[Slice]] = [[] for _ in range(min(groups, len(sliced)))]
    sizes = [0] * len(found)
    for each in sorted(sliced, key=lambda one: -one.rows):
        least = sizes.index(min(sizes))
        found[least].append(each)
        sizes[least] += max(each.rows, 1)
    return found


def other_where(table: str, kept: str, asked: str) -> InvalidArgument:
    """The query has chosen its partitions by another text than it is asked for now."""
    return InvalidArgument(
        f"this query has read the partitions of {table} {_those(kept)}, and was started again for those"
        f" {_those(asked)}: it would never read what it has passed over. Start it with {_said(kept)}, or with a new"
        " checkpoint"
    )


def _snapshot_slices(begin: Position, end: Position) -> list[Slice]:
    found: list[Slice] = []
    for name, before in begin.unread.items():
        behind = end.unread.get(name)
        if behind is not None and behind.done <= before.done:
            continue
        found.append(
            SnapshotSlice(
                bucket=name,
                snapshot=before.snapshot,
                place=begin.log.get(PARTITIONS),
                start=before.done,
                stop=None if behind is None else behind.done,
                token=before.token,
                rows=before.left if behind is None else behind.done - before.done,
                offset=begin.log[name],
                leased_ms=begin.leased_ms,
            )
        )
    return found


def _log_slices(begin: Position, end: Position) -> list[Slice]:
    found: list[Slice] = []
    for name, stop in end.log.items():
        if name == PARTITIONS:
            continue
        partition = partition_of(name)
        is_same = begin.made.get(partition) == end.made.get(partition)
        start = begin.log.get(name, 0) if is_same else 0
        if stop > start:
            found.append(LogSlice(bucket=name, partition=end.made.get(partition, 0), start=start, stop=stop))
    return found


def _by_name(of_buckets: Mapping[str, T]) -> dict[str, T]:
    """In one order, whoever made it: 2 before 10."""
    return {name: of_buckets[name] for name in sorted(of_buckets, key=_order)}


def _order(name: str) -> tuple[str, int, str]:
    head, _, tail = name.rpartition("/")
    return (head, int(tail), "") if tail.isdecimal() else (head, -1, tail)


def _those(where: str) -> str:
    """Which partitions a query reads, for people."""
    return f"where {where[:_SHOWN_MAX]}" if where else "without a 'where', which are all"


def _said(where: str) -> str:
    """The option that chooses them, as people write it."""
    return f".option('where', {where[:_SHOWN_MAX]!r})" if where else "no option 'where'"
