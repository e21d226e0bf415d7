"""Partitions and their events as bytes: the JSON records that meta keeps.

A partition: {"name": "day=2026-11-15", "created_ms": …}; its number is the record's key.
An event: {"kind": "created" | "dropped", "id": …, "name": …, "created_ms": …, "at_ms": …, "ends": [42, …]}; ``ends`` is
where the logs of a dropped partition ended, null for one that could not be read.
"""

from typing import Any

import msgspec

from kolk.errors import Corrupted
from kolk.model.partition import Partition, PartitionEventKind, RecordedEvent


def encode_partition(partition: Partition) -> bytes:
    """The record of a partition."""
    return msgspec.json.encode({"name": partition.name, "created_ms": partition.created_ms})


def decode_partition(key: str, number: int, record: bytes) -> Partition:
    """The partition of such a record."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(record)
        return Partition(id=number, name=str(fields["name"]), created_ms=int(fields["created_ms"]))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(key, error) from error


def encode_event(event: RecordedEvent) -> bytes:
    """The record of an event."""
    partition = event.partition
    fields = {"kind": event.kind.value, "id": partition.id, "name": partition.name, "created_ms": partition.created_ms}
    return msgspec.json.encode({**fields, "at_ms": event.timestamp_ms, "ends": event.ends})


def decode_event(key: str, number: int, record: bytes) -> RecordedEvent:
    """The event of such a record."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(record)
        partition = Partition(id=int(fields["id"]), name=str(fields["name"]), created_ms=int(fields["created_ms"]))
        return RecordedEvent(
            number=number,
            kind=PartitionEventKind(fields["kind"]),
            partition=partition,
            timestamp_ms=int(fields["at_ms"]),
            ends=tuple(None if end is None else int(end) for end in fields["ends"]),
        )
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(key, error) from error


def _unreadable(key: str, error: Exception) -> Corrupted:
    return Corrupted(f"the record {key} cannot be read: {error}; restore meta.sqlite from a backup")
