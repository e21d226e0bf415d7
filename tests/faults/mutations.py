"""Messages that are nearly right: what a broken, old or hostile client may send. All of it follows from a seed."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from kolk.wire import messages as m
from kolk.wire import owners as o
from kolk.wire import transactions as t
from kolk.wire.rows import encode_rows, encode_schema

HANDLE = "0123456789abcdef" * 2
EXTREMES = (0, 1, -1, 2**7, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63))
UNSIGNED = (2**63, 2**64 - 1)
TEXTS = (
    "",
    "\0",
    "no",
    "x" * 300,
    "\U0001f600" * 50,
    "0" * 5_000,
    "..",
    "key",
    "_change_type",
    "accumulate",
    "overwrite",
)


def put_message(table: int, rows: pa.RecordBatch, seq: int = 0, **changes: Any) -> bytes:
    """A good put, or one whose head is changed."""
    head = m.Put(table=table, writer=bytes(16), seq=seq, schema=encode_schema(rows.schema))
    return m.join(msgspec.structs.replace(head, **changes), encode_rows(rows)).to_pybytes()


def get_message(table: int, keys: pa.RecordBatch, **changes: Any) -> bytes:
    """A good lookup, or one whose head is changed."""
    head = m.Get(table=table, schema=encode_schema(keys.schema))
    return m.join(msgspec.structs.replace(head, **changes), encode_rows(keys)).to_pybytes()


def stage_message(table: int, rows: pa.RecordBatch, **changes: Any) -> bytes:
    """Good rows for a transaction, or such whose head is changed."""
    fields = {"handle": HANDLE, "app": "app", "version": 1, "table": table, "schema_id": 1, "number": 0}
    head = t.Stage(**fields | {"schema": encode_schema(rows.schema)} | changes)
    return m.join(head, encode_rows(rows)).to_pybytes()


def owned_message(table: int, number: int, fence: int, rows: pa.RecordBatch, **changes: Any) -> bytes:
    """A good put of an owner, or one whose head is changed."""
    fields = {"table": table, "number": number, "fence": fence, "epoch": 0, "seq": 1}
    head = o.PutOwned(**fields | {"schema": encode_schema(rows.schema)} | changes)
    return m.join(head, encode_rows(rows)).to_pybytes()


class Mutations:
    """Damages messages in every way that it knows, one to three at a time."""

    def __init__(self, seed: int, templates: Sequence[bytes]) -> None:
        self._rng = random.Random(seed)
        self._templates = list(templates)
        self._ways: list[Callable[[bytes], bytes]] = [
            self._flip,
            self._flip,
            self._set_number,
            self._set_number,
            self._cut,
            self._insert,
            self._remove,
            self._splice,
        ]

    def message(self) -> bytes:
        """One for an exchange: its bytes damaged, or its head changed field by field, or its rows damaged alone."""
        template, way = self._rng.choice(self._templates), self._rng.random()
        if way < 0.3:
            return self.bytes(template) or b"\0"  # to Flight, nothing at all is the end of the stream
        head, rows = m.split(pa.py_buffer(template))
        fields, inside = msgspec.msgpack.decode(head), rows.to_pybytes()
        if "writer" in fields:
            fields["writer"] = self._rng.randbytes(16)  # else it is taken for a retry and looked at no further
        if way < 0.6:
            self._change(fields)
        if way > 0.5:
            inside = self.bytes(inside)
        encoded = msgspec.msgpack.encode(fields)
        start = 4 + len(encoded)
        return struct.pack("<I", len(encoded)) + encoded + bytes(-start % 8) + inside

    def head(self) -> bytes:
        """One without rows."""
        template = self._rng.choice(self._templates)
        if self._rng.random() < 0.4:
            return self.bytes(template)
        fields = msgspec.msgpack.decode(template)
        self._change(fields)
        return msgspec.msgpack.encode(fields)

    def bytes(self, data: bytes) -> bytes:
        """These bytes, damaged; at times nothing but noise."""
        if self._rng.random() < 0.02:
            return self._rng.randbytes(self._rng.randrange(200))
        for _ in range(self._rng.randint(1, 3)):
            data = self._rng.choice(self._ways)(data)
        return data

    def _change(self, fields: dict[str, Any]) -> None:
        for name in self._rng.sample(sorted(fields), min(self._rng.choice((1, 1, 2)), len(fields))):
            if name != "op" or self._rng.random() < 0.2:
                fields[name] = self._other(fields[name])
            if self._rng.random() < 0.05:
                del fields[name]

    def _other(self, value: Any) -> Any:
        rng = self._rng
        if rng.random() < 0.1:
            return rng.choice([None, True, 1.5, "text", b"bytes", [], {}, [[]], {"": None}])
        match value:
            case bool():
                return not value
            case int():
                return rng.choice([*EXTREMES, *UNSIGNED, value ^ 1, -value if value < 2**63 else 0])
            case str():
                return rng.choice([*TEXTS, value + "x", value[:-1], value.upper()])
            case bytes():
                return self.bytes(value)
            case list():
                return rng.choice(
                    [[], [*value, *value], value[:-1], [*value, "no"], [self._other(each) for each in value]]
                )
            case dict():
                return {rng.choice([key, key, *TEXTS]): self._other(each) for key, each in value.items()}
            case _:
                return rng.choice([0, "no", ["no"], ["value", "value"], ["key"]])

    def _place(self, data: bytes, width: int = 1) -> int:
        return self._rng.randrange(max(len(data) - width, 0) + 1)

    def _flip(self, data: bytes) -> bytes:
        found = bytearray(data)
        for _ in range(self._rng.choice((1, 1, 2, 8))):
            if found:
                found[self._rng.randrange(len(found))] ^= 1 << self._rng.randrange(8)
        return bytes(found)

    def _set_number(self, data: bytes) -> bytes:
        width, form = self._rng.choice(((4, "<i"), (8, "<q"), (2, "<h")))
        number = self._rng.choice(EXTREMES)
        place = self._place(data, width) & ~(width - 1 if self._rng.random() < 0.8 else 0)
        low = -(2 ** (8 * width - 1))
        return data[:place] + struct.pack(form, max(low, min(number, -low - 1))) + data[place + width :]

    def _cut(self, data: bytes) -> bytes:
        return data[: self._place(data)]

    def _insert(self, data: bytes) -> bytes:
        place = self._place(data)
        return data[:place] + self._rng.randbytes(self._rng.choice((1, 4, 8, 64))) + data[place:]

    def _remove(self, data: bytes) -> bytes:
        place = self._place(data)
        return data[:place] + data[place + self._rng.choice((1, 4, 8, 64)) :]

    def _splice(self, data: bytes) -> bytes:
        other = self._rng.choice(self._templates)
        start = self._place(other)
        piece = other[start : start + self._rng.randrange(1, 100)]
        place = self._place(data)
        return data[:place] + piece + data[place + (len(piece) if self._rng.random() < 0.5 else 0) :]
