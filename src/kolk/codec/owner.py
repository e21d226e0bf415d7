"""Owners as bytes: the record in the catalog, ``owner/<table id>/<name, quoted>``, in JSON."""

import base64
from typing import Any
from urllib.parse import quote

import msgspec

from kolk.errors import Corrupted
from kolk.model.ids import TableId
from kolk.model.owner import OwnerRecord, UndoMode

PREFIX = "owner/"
NUMBER_KEY = "owner-number"


def owner_key(record: OwnerRecord) -> str:
    """The key of a record."""
    return f"{PREFIX}{record.table}/{quote(record.name, safe='')}"


def encode_owner(record: OwnerRecord) -> bytes:
    """The record of an owner."""
    return msgspec.json.encode(
        {
            "table": record.table,
            "name": record.name,
            "number": record.number,
            "columns": record.columns,
            "fence": record.fence,
            "ttl_seconds": record.ttl_seconds,
            "committed": record.committed,
            "committed_fence": record.committed_fence,
            "stream": record.stream,
            "undo": record.undo.value,
            "state": base64.b64encode(record.state).decode(),
            "evicted": record.evicted,
            "resting": record.is_resting,
            "attempt": record.attempt,
            "past": record.past,
            "tickets": record.tickets,
            "restored": record.is_restored,
            "undoing": record.is_undoing,
            "used_ms": record.used_ms,
        }
    )


def decode_owner(value: bytes) -> OwnerRecord:
    """The owner of a record."""
    try:
        found: dict[str, Any] = msgspec.json.decode(value)
        return OwnerRecord(
            table=TableId(found["table"]),
            name=found["name"],
            number=found["number"],
            columns=None if found["columns"] is None else tuple(found["columns"]),
            fence=found["fence"],
            ttl_seconds=found["ttl_seconds"],
            committed=found["committed"],
            committed_fence=found["committed_fence"],
            stream=found["stream"],
            undo=UndoMode(found["undo"]),
            state=base64.b64decode(found["state"]),
            evicted=found["evicted"],
            is_resting=found["resting"],
            attempt=found["attempt"],
            past=tuple(found["past"]),
            tickets=found["tickets"],
            is_restored=found["restored"],
            is_undoing=found.get("undoing", False),  # older ones were written without it
            used_ms=found["used_ms"],
        )
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise Corrupted(f"the record of an owner cannot be read: {error}") from error
