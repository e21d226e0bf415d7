"""Partitions: a table cut by the values of some of its columns, each part with buckets and a life of its own.

A partition is named by its values, ``day=2026-11-15/region=eu``, and known by a number that is never used again: one
that is dropped and made anew is another one. What happens to them is recorded as *events*, counted from 1 for each
table; a partition's number is that of the event that made it. Whoever reads a table keeps its place in that record
beside the offsets of the buckets, under the key ``partitions``, and so learns of every partition in order.

Values are plain words, because they become part of names that people and URLs carry. This module knows no bytes.
"""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress
from typing import Any, TypeVar

import pyarrow as pa

from kolk.errors import InvalidArgument, InvalidRows, InvalidSchema, PartitionDropped
from kolk.model.conversion import array_of, converted
from kolk.model.durations import moment
from kolk.model.kinds import Kind
from kolk.model.names import NAME_LENGTH_MAX, plain_text
from kolk.model.predicate import Predicate
from kolk.model.rows import checked_rows
from kolk.model.schema import Column, Schema

PARTITIONS = "partitions"
"""Where an offsets mapping of a partitioned table holds the place in the record of its partitions. No bucket of such
a table has this name: theirs have an equals sign."""

PARTITION_COLUMNS_MAX = 8
T = TypeVar("T")
_VALUE_LENGTH_MAX = 200
_NAME_LENGTH_MAX = PARTITION_COLUMNS_MAX * (NAME_LENGTH_MAX + _VALUE_LENGTH_MAX + 2)
_VALUE = re.compile(rf"(?!__)[A-Za-z0-9_-]{{1,{_VALUE_LENGTH_MAX}}}")
_RULE = f"its values are 1 to {_VALUE_LENGTH_MAX} of A-Z a-z 0-9 _ -, not starting with two underscores"
_KINDS = (
    Kind.BOOLEAN,
    Kind.TINYINT,
    Kind.SMALLINT,
    Kind.INT,
    Kind.BIGINT,
    Kind.CHAR,
    Kind.STRING,
    Kind.DATE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition that exists."""

    id: int
    name: str
    created_ms: int

    @property
    def values(self) -> dict[str, str]:
        """The value of each partition column, as text."""
        return values_of(self.name)

    @property
    def created(self) -> datetime.datetime:
        """When it was made."""
        return moment(self.created_ms)


class PartitionEventKind(StrEnum):
    """What happened to a partition."""

    CREATED = "created"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """An event as the table's record has it. ``ends`` are where the logs of a dropped partition's buckets ended, as far
    as they could be read."""

    number: int
    kind: PartitionEventKind
    partition: Partition
    timestamp_ms: int
    ends: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """A table's partitions at one moment, by name, and what is kept of their record. Replaced whole."""

    partitions: Mapping[str, Partition]
    events: tuple[RecordedEvent, ...] = ()
    position: int = 1
    """The number of the next event."""

    @property
    def start(self) -> int:
        """The number of the first event that is kept."""
        return self.position - len(self.events)

    def since(self, position: int) -> tuple[RecordedEvent, ...]:
        """The events from this number on."""
        return self.events[max(position - self.start, 0) :]

    def at(self, position: int) -> dict[str, Partition]:
        """The partitions that there were when the next event had this number, by name."""
        found = {name: each for name, each in self.partitions.items() if each.id < position}
        dropped = (event for event in self.since(position) if event.kind is PartitionEventKind.DROPPED)
        return found | {event.partition.name: event.partition for event in dropped if event.partition.id < position}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEvent:
    """What a reader is told of a partition. ``position`` is its place in the record after this event.

    Of one that was dropped, ``unread`` is how many of its changes the reader was not given; None if nobody knows, as
    for the rows of a scan.
    """

    kind: PartitionEventKind
    partition: str
    position: int
    timestamp_ms: int
    unread: int | None = 0

    @property
    def values(self) -> dict[str, str]:
        """The value of each partition column, as text."""
        return values_of(self.partition)

    @property
    def error(self) -> PartitionDropped:
        """The same for a reader who did not ask to be told."""
        how = "it was not read to its end" if self.unread is None else f"{self.unread:,} changes of it were not read"
        return PartitionDropped(
            f"the partition {self.partition} was dropped, and {how}; the others are not touched: iterate on to read"
            " them. With on_partition=... you are told of partitions without an exception",
            self.partition,
            self.unread,
        )


def check_partition_by(given: Iterable[str] | None, schema: Schema) -> tuple[str, ...]:
    """The partition columns, if a table may be cut by them; None is none."""
    names = () if given is None else _names(given)
    if names is None:
        raise InvalidSchema(f"partition_by is a list of column names, not {given!r}")
    if len(set(names)) < len(names):
        raise InvalidSchema(f"partition_by names a column twice: {', '.join(names)}")
    if len(names) > PARTITION_COLUMNS_MAX:
        raise InvalidSchema(f"a table has at most {PARTITION_COLUMNS_MAX} partition columns, not {len(names)}")
    for name in names:
        if name not in schema.names:
            raise InvalidSchema(f"the partition column {name!r} is not a column; they are {', '.join(schema.names)}")
        if schema.primary_key and name not in schema.primary_key:
            raise InvalidSchema(
                f"the partition column {name!r} is not in the primary key ({', '.join(schema.primary_key)}), so one key"
                " could be in two partitions; add it to the key"
            )
        kind = schema.column(name).type.kind
        if kind not in _KINDS:
            allowed = ", ".join(kind.value for kind in _KINDS)
            raise InvalidSchema(f"the partition column {name!r} is a {schema.column(name).type}; use one of {allowed}")
        if schema.column(name).nullable:
            raise InvalidSchema(f"the partition column {name!r} may be null; make it NOT NULL")
    if names and set(names) == set(schema.primary_key):
        raise InvalidSchema("the partition columns are the whole primary key, so a partition would hold one row")
    return names


def check_name(columns: Sequence[Column], name: str) -> None:
    """Raise InvalidRows if the values of these columns, from which a name was made, cannot stand in one, or would not
    be read back from it: it would name a partition that nobody can name."""
    names = [column.name for column in columns]
    parts = _parts(name)
    if [column for column, *_ in parts] != names or not all(_VALUE.fullmatch(value) for *_, value in parts):
        raise InvalidRows(
            f"{name[:100]!r} cannot be a partition: {_RULE}. The partition column{'s' * (len(columns) > 1)}"
            f" {', '.join(names)} must hold such values"
        )
    try:
        is_same = partition_name(columns, values_of(name)) == name
    except InvalidArgument:
        is_same = False
    if not is_same:
        raise InvalidRows(f"{name[:100]!r} cannot be a partition: a value of {', '.join(names)} is out of range")


def partition_name(columns: Sequence[Column], values: Mapping[str, Any]) -> str:
    """The name of the partition with these values, given as Python values or as text."""
    wanted = [column.name for column in columns]
    if set(values) != set(wanted):
        raise InvalidArgument(f"a partition of this table is named by {', '.join(wanted)}, all of them and no others")
    return "/".join(f"{column.name}={_text(column, values[column.name])}" for column in columns)


def parse_partition(columns: Sequence[Column], name: str) -> str:
    """A partition's name as somebody wrote it, in its one right form."""
    is_text = isinstance(name, str) and len(name) <= _NAME_LENGTH_MAX
    parts = _parts(name) if is_text else []
    if not parts or any(not equals for _, equals, _ in parts) or len({column for column, *_ in parts}) < len(parts):
        example = "/".join(f"{column.name}=..." for column in columns)
        raise InvalidArgument(f"{str(name)[:100]!r} is not a partition of this table; write {example}")
    return partition_name(columns, {column: value for column, _, value in parts})


def new_partition(columns: Sequence[Column], name: str) -> str:
    """The same for one that is to be made: InvalidRows if no row could be in it, since its values do not fit."""
    named = parse_partition(columns, name)
    checked_rows(values_batch(columns, [named]), columns)
    return named


def values_of(name: str) -> dict[str, str]:
    """The values that a partition's name is made of."""
    return {column: value for column, _, value in _parts(name)}


def values_batch(columns: Sequence[Column], names: Sequence[str]) -> pa.RecordBatch:
    """The partition columns of these partitions, one row each: what a predicate is asked with."""
    values = [values_of(name) for name in names]
    arrays = [_array(column, [each[column.name] for each in values]) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.arrow for column in columns]))


def matching(columns: Sequence[Column], names: Sequence[str], where: Predicate | None) -> list[str]:
    """Those of these partitions that can have rows which a predicate selects."""
    if where is None or not names:
        return list(names)
    return list(compress(names, where.may_match(values_batch(columns, names)).tolist()))


def selected(columns: Sequence[Column], of_buckets: Mapping[str, T], where: Predicate | None) -> dict[str, T]:
    """What there is for buckets whose partitions a predicate selects, and for the record of partitions."""
    if where is None:
        return dict(of_buckets)
    names = list(dict.fromkeys(partition_of(bucket) for bucket in of_buckets if "=" in bucket))
    wanted = {"", *matching(columns, names, where)}
    return {bucket: value for bucket, value in of_buckets.items() if partition_of(bucket) in wanted}


def partition_of(bucket: str) -> str:
    """The partition that a bucket belongs to, by their public names."""
    return bucket.rpartition("/")[0]


def bucket_names(given: Iterable[str]) -> tuple[str, ...]:
    """Buckets as an argument names them; whether there are such is not said."""
    names = _names(given)
    if names is None:
        raise InvalidArgument(f"buckets is a list of bucket names, such as ['0'], not {given!r}")
    return names


def after(event: PartitionEvent, offsets: Mapping[str, int]) -> dict[str, int]:
    """A reader's offsets once it knows of an event: without the buckets of what was dropped, and further on in the
    record of partitions, if it keeps its place there."""
    is_drop = event.kind is PartitionEventKind.DROPPED
    left = {name: at for name, at in offsets.items() if not (is_drop and partition_of(name) == event.partition)}
    return left | ({PARTITIONS: event.position} if PARTITIONS in offsets else {})


def _names(given: object) -> tuple[str, ...] | None:
    """What was given, if it is several texts and not one."""
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else None
    if names is None or not all(isinstance(name, str) for name in names):
        return None
    return tuple(map(plain_text, names))


def _parts(name: str) -> list[tuple[str, str, str]]:
    """The columns of a name and their values, with the sign between them, if it is there."""
    return [part.partition("=") for part in name.split("/")]


def _text(column: Column, value: Any) -> str:
    """A value in the one form that its column's rows would give it: 1 and "01" are the same day of an int column."""
    try:
        array = _array(column, [value]) if isinstance(value, str) else _converted(column, value)
    except (ValueError, InvalidRows, pa.ArrowException) as error:
        raise InvalidArgument(
            f"{str(value)[:100]!r} is not a value of the partition column {column.name!r}, a {column.type}:"
            f" {str(error)[:200]}"
        ) from error
    if array.null_count:
        raise InvalidArgument(f"the partition column {column.name!r} cannot be null")
    text: str = array.cast(pa.string())[0].as_py()
    if not _VALUE.fullmatch(text):
        raise InvalidRows(f"{text[:60]!r} cannot be a value of the partition column {column.name!r}: {_RULE}")
    return text


def _converted(column: Column, value: Any) -> pa.Array:
    """By the rules of a put: a partition must not be found, or dropped, by a value that none of its rows could have."""
    return converted(array_of([value], column.type, column.name), column.type, column.name)


def _array(column: Column, texts: Sequence[str]) -> pa.Array:
    return pa.array(texts, pa.string()).cast(column.type.arrow)
