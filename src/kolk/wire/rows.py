"""One record batch as bytes, and back, for bytes that nobody vouches for.

Unvalidated Arrow crashes a process, and a few kilobytes can unfold to gigabytes. So rows from outside are looked at
before anything is decoded, in this order: their length; their own header, which tells how many rows they claim and
where each buffer lies; their schema, which must be the one expected; then they are decoded and validated in full.
Compressed rows are refused: what is in a buffer then is exactly as long as it looks.

Only the head of the Arrow message is read here, by hand (Arrow's format, ``Message.fbs``): pyarrow offers no look
without decoding.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from kolk.errors import InvalidRows, TooLarge
from kolk.model.write import Write

SCHEMA_BYTES_MAX = 2**20
_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<II")
_RECORD_BATCH = 3  # MessageHeader in Message.fbs
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 1, 2, 3
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 1, 2, 3
_PAIR = struct.Struct("<qq")  # a FieldNode, and a Buffer
_PAIRS_MAX = 10_000  # a table has at most 1,600 columns and fields


def encode_rows(rows: pa.RecordBatch) -> pa.Buffer:
    """The rows as one Arrow message, without their schema."""
    return rows.serialize()


def write_fields(write: Write) -> dict[str, Any]:
    """What stands beside the rows of a write: the fields of ``OfWrite``, but for the table."""
    return {
        "schema": encode_schema(write.rows.schema),
        "action": write.action.value,
        "columns": None if write.columns is None else list(write.columns),
        "mode": write.mode.value,
        "schema_id": write.schema_id,
    }


@lru_cache(maxsize=1_024)
def encode_schema(schema: pa.Schema) -> bytes:
    """The schema as one Arrow message."""
    return schema.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class Peek:
    """What a record batch says of itself before it is decoded."""

    rows: int
    columns: int
    body_bytes: int
    is_compressed: bool


def peek(message: pa.Buffer) -> Peek:
    """Look at the head of an Arrow message; InvalidRows if it is no record batch or does not fit its bytes."""
    try:
        return _peek(memoryview(message))
    except InvalidRows:
        raise
    except (struct.error, IndexError, ValueError) as error:
        raise InvalidRows("the rows are not an Arrow record batch: their header is cut off") from error


def read_rows(message: pa.Buffer, schema: pa.Schema, *, rows_max: int) -> pa.RecordBatch:
    """The rows of a message under a schema that both sides know. They still need ``validate(full=True)``."""
    seen = peek(message)
    if seen.is_compressed:
        raise InvalidRows("the rows are compressed; send them as they are")
    if seen.rows > rows_max:
        raise TooLarge(f"a message takes at most {rows_max:,} rows, this one says {seen.rows:,}; send them in pieces")
    try:
        return pa.ipc.read_record_batch(_aligned(message), schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRows(f"the rows are not valid Arrow data: {error}") from error


def read_answer(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a server's answer, which is trusted."""
    return pa.ipc.read_record_batch(_aligned(message), schema)


def check_schema(encoded: bytes, expected: pa.Schema) -> None:
    """Whether a message's schema is the expected one: names, order and types."""
    if encoded == encode_schema(expected):
        return
    if len(encoded) > SCHEMA_BYTES_MAX:
        raise TooLarge(f"the schema of the rows has {len(encoded):,} bytes, more than {SCHEMA_BYTES_MAX:,}")
    try:
        given = pa.ipc.read_schema(pa.py_buffer(encoded))
        is_expected, shown = given.names == expected.names and given.types == expected.types, _shown(given)
    except (pa.ArrowException, OSError, ValueError) as error:  # names that are no UTF-8 are a ValueError
        raise InvalidRows(f"the schema of the rows is not valid Arrow data: {error}") from error
    if not is_expected:
        raise InvalidRows(f"expected rows of {_shown(expected)}, got {shown}")


def _shown(schema: pa.Schema) -> str:
    text = ", ".join(f"{field.name} {field.type}" for field in schema)
    return text if len(text) <= 500 else f"{text[:500]}…"


def _aligned(message: pa.Buffer) -> pa.Buffer:
    """Arrow wants its buffers at multiples of 8, and the transport puts a message anywhere."""
    if message.address % 64 == 0:
        return message
    copy = pa.allocate_buffer(message.size)
    np.frombuffer(copy, np.uint8)[:] = np.frombuffer(message, np.uint8)
    return copy


def _peek(view: memoryview) -> Peek:
    continuation, length = _PREFIX.unpack_from(view)
    if continuation != _CONTINUATION or length > len(view) - _PREFIX.size:
        raise ValueError(length)
    flat = view[_PREFIX.size : _PREFIX.size + length]
    body_bytes = len(view) - _PREFIX.size - length
    message = _Table(flat, struct.unpack_from("<I", flat)[0])
    if message.number(_MESSAGE_HEADER_TYPE, "<B") != _RECORD_BATCH:
        raise ValueError("not a record batch")
    if message.number(_MESSAGE_BODY_LENGTH, "<q") != body_bytes:
        raise InvalidRows("the rows are not as long as their header says")
    batch = message.table(_MESSAGE_HEADER)
    rows = batch.number(_BATCH_LENGTH, "<q")
    nodes, buffers = batch.pairs(_BATCH_NODES), batch.pairs(_BATCH_BUFFERS)
    # In plain Python: for the few that there are it is several times as fast as numpy.
    if rows < 0 or any(length < 0 or nulls < 0 for length, nulls in nodes):
        raise InvalidRows("the rows have a negative length")
    if any(start < 0 or length < 0 or start + length > body_bytes for start, length in buffers):
        raise InvalidRows("the rows have a buffer that lies outside of them")
    return Peek(rows, len(nodes), body_bytes, batch.place(_BATCH_COMPRESSION) is not None)


@dataclass(frozen=True, slots=True)
class _Table:
    """A flatbuffer table at a position; any step outside the bytes is a struct.error or ValueError."""

    flat: memoryview
    at: int

    def place(self, field: int) -> int | None:
        """Where a field is; None if it is not there."""
        vtable = self.at - struct.unpack_from("<i", self.flat, self.at)[0]
        if vtable < 0:
            raise ValueError(vtable)
        (size,) = struct.unpack_from("<H", self.flat, vtable)
        slot = 4 + 2 * field
        if slot + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self.flat, vtable + slot)
        return self.at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        return 0 if place is None else struct.unpack_from(form, self.flat, place)[0]

    def table(self, field: int) -> "_Table":
        place = self.place(field)
        if place is None:
            raise ValueError(field)
        return _Table(self.flat, place + struct.unpack_from("<I", self.flat, place)[0])

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two i64."""
        place = self.place(field)
        if place is None:
            return []
        start = place + struct.unpack_from("<I", self.flat, place)[0]
        (count,) = struct.unpack_from("<I", self.flat, start)
        raw = self.flat[start + 4 : start + 4 + count * _PAIR.size]
        if count > _PAIRS_MAX or len(raw) != count * _PAIR.size:
            raise ValueError(count)
        return list(_PAIR.iter_unpack(raw))
