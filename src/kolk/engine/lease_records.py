"""Leases as meta records: which records a change of a lease touches, and what is found of leases at a start.

``lease/<id>`` is the head, ``lease/<id>/<table>`` a table, and ``lease/<id>/<table>/<partitions>-<buckets>`` a chunk of
pins (``kolk.codec.lease``). A change writes the head, and whatever else is another object than before: so the version
of the head tells whether a change was made. A lease of which anything is damaged, missing or too much is no lease but a
reason to delete nothing: it is named, and never read in part.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kolk.codec.lease import (
    LeaseHead,
    TableHead,
    decode_chunk,
    decode_head,
    decode_table_head,
    encode_chunk,
    encode_head,
    encode_table_head,
)
from kolk.errors import Corrupted
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import Chunk, ChunkedPins, Lease, Pinned, TablePins
from kolk.storage.meta import Meta, MetaChange, Record

_PREFIX = "lease/"
_KEY = re.compile(rf"{_PREFIX}[^/]*/([0-9]{{12,19}})(?:/([0-9]{{12,19}})-([0-9]{{12,19}}))?")
_NO_PINS = ChunkedPins({})


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it was found, with the time that was left, and the digest of what was first asked for."""

    lease: Lease
    digest: bytes


def lease_changes(meta: Meta, before: Lease | None, after: StoredLease | None) -> list[MetaChange]:
    """What makes one state of a lease another; None is no lease. The first change is the head's."""
    known = before if after is None else after.lease
    assert known is not None, "something becomes something else"
    values = {_head_key(known.id): None if after is None else _head(after)}
    old = {} if before is None else before.tables
    new = {} if after is None else after.lease.tables
    for table in {**old, **new}:
        values |= _table_values(known.id, table, old.get(table), new.get(table))
    return [meta.replacement(key, value) for key, value in values.items()]


def lease_removal(meta: Meta, id: str) -> list[MetaChange]:
    """What removes whatever there is of a lease, readable or not."""
    head = _head_key(id)
    records = [record for record in meta.list(head) if record.key == head or record.key.startswith(f"{head}/")]
    return [MetaChange(record.key, None, record.version) for record in records]


def load_leases(meta: Meta) -> tuple[list[StoredLease], dict[str, str]]:
    """All leases, and why those that cannot be read cannot, by id."""
    records: dict[str, list[Record]] = {}
    for record in meta.list(_PREFIX):
        records.setdefault(record.key.split("/")[1], []).append(record)
    found: list[StoredLease] = []
    unreadable: dict[str, str] = {}
    for id, own in records.items():
        try:
            found.append(_read(id, own))
        except Corrupted as error:
            unreadable[id] = str(error)
    return found, unreadable


def _head(stored: StoredLease) -> bytes:
    lease = stored.lease
    head = LeaseHead(
        generation=lease.generation,
        holder=lease.holder,
        principal=lease.principal,
        created_ms=lease.created_ms,
        ttl_ms=lease.ttl_ms,
        left_ms=lease.left_ms,
        digest=stored.digest,
        tables=len(lease.tables),
        pins=lease.pin_count,
    )
    return encode_head(_head_key(lease.id), head)


def _table_values(id: str, table: TableId, old: TablePins | None, new: TablePins | None) -> dict[str, bytes | None]:
    """The records of a table that change, and what they become."""
    if old is new:
        return {}
    was = _NO_PINS if old is None else ChunkedPins.of(old.pins)
    pins = _NO_PINS if new is None else ChunkedPins.of(new.pins)
    key = _table_key(id, table)
    values: dict[str, bytes | None] = {key: None}
    if new is not None:
        head = TableHead(
            position=new.position, is_consistent=new.is_consistent, chunks=len(pins.chunks), pins=len(pins)
        )
        values[key] = encode_table_head(key, head)
    for chunk in {**was.chunks, **pins.chunks}:
        now = pins.chunks.get(chunk)
        if now is not was.chunks.get(chunk):
            key = _chunk_key(id, table, chunk)
            values[key] = None if now is None else encode_chunk(key, chunk, now)
    return values


def _read(id: str, records: Sequence[Record]) -> StoredLease:
    """The lease of these records, if they are all of it and nothing else."""
    values = {record.key: record.value for record in records}
    head_key = _head_key(id)
    _check(head_key in values, id, "its head is missing")
    head = decode_head(head_key, values.pop(head_key))
    tables: dict[TableId, TableHead] = {}
    chunks: dict[TableId, dict[Chunk, dict[BucketId, Pinned]]] = {}
    for key, value in values.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise _unreadable(id, f"it has a record {key!r}")
        table = TableId(int(match[1]))
        if match[2] is None:
            tables[table] = decode_table_head(key, value)
        else:
            chunk = (int(match[2]), int(match[3]))
            chunks.setdefault(table, {})[chunk] = decode_chunk(key, table, chunk, value)
    pins = {table: ChunkedPins(each) for table, each in chunks.items()}
    _check_whole(id, head, tables, pins)
    lease = Lease(
        id=id,
        generation=head.generation,
        holder=head.holder,
        principal=head.principal,
        created_ms=head.created_ms,
        ttl_ms=head.ttl_ms,
        left_ms=head.left_ms,
        tables={
            table: TablePins(pins=pins[table], position=each.position, is_consistent=each.is_consistent)
            for table, each in tables.items()
        },
    )
    return StoredLease(lease, head.digest)


def _check_whole(id: str, head: LeaseHead, tables: dict[TableId, TableHead], pins: dict[TableId, ChunkedPins]) -> None:
    """Whether everything is there that the records above say there is."""
    _check(len(tables) == head.tables and tables.keys() == pins.keys(), id, "some of its tables are missing")
    for table, each in tables.items():
        found = pins[table]
        is_whole = (len(found.chunks), len(found)) == (each.chunks, each.pins)
        _check(is_whole, id, f"some of its pins of table {table} are missing")
    _check(sum(map(len, pins.values())) == head.pins, id, "some of its pins are missing")


def _check(is_sound: bool, id: str, what: str) -> None:
    if not is_sound:
        raise _unreadable(id, what)


def _unreadable(id: str, what: str) -> Corrupted:
    return Corrupted(f"the lease {id!r} cannot be read: {what}")


def _head_key(id: str) -> str:
    return f"{_PREFIX}{id}"


def _table_key(id: str, table: TableId) -> str:
    return f"{_head_key(id)}/{table:012}"


def _chunk_key(id: str, table: TableId, chunk: Chunk) -> str:
    return f"{_table_key(id, table)}/{chunk[0]:012}-{chunk[1]:012}"
