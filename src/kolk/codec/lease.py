"""Leases as bytes: the binary records that meta keeps.

A lease is one *head*, one *table* record for each table, and the pins of each table in *chunks* (``kolk.model.lease``).
Renewing writes the head alone, and acquiring one more bucket one chunk, one table and the head. Every record is

    0   u32     crc     crc32 of the record's key and of the bytes from 4 on
    4   u8      format  1
    5           body    varints (``kolk.codec.varint``)

so that a record is good under its own key only. The bodies:

    head    generation, holder (16 bytes), principal (length, UTF-8), created_ms, ttl_ms, left_ms, digest of what was
            first asked for (16 bytes), number of tables, number of pins
    table   position + 1, or 0 for none; 1 if it is consistent, else 0; number of chunks, number of pins
    chunk   number of partitions, then of each, by number: its number less that of the one before; its name (length,
            UTF-8); number of buckets, then of each, by number: its number less that of the one before, its snapshot and
            its offset, each less that of the pin before (signed)

The first number of a partition is relative to the chunk's first one, and so is that of the first bucket of each
partition; the snapshot and the offset of a chunk's first pin to 0. How many of a record there are stands in the one
above it, so that nothing goes missing unnoticed. Corrupted for whatever was not written just so, UnknownFormat for what
a newer Kolk wrote.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from struct import Struct
from zlib import crc32

from kolk.codec.varint import VarintReader, put_bytes, put_signed, put_varint
from kolk.errors import Corrupted, UnknownFormat
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import CHUNK_BUCKETS, CHUNK_PARTITIONS, NUMBER_MAX, Chunk, Pinned

DIGEST_BYTES = 16
_HOLDER_BYTES = 16
_FORMAT = 1
_START = Struct("<IB")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHead:
    """What the head of a lease says. Its id is in the record's key."""

    generation: int
    holder: int
    principal: str
    created_ms: int
    ttl_ms: int
    left_ms: int
    digest: bytes
    tables: int
    pins: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHead:
    """What the record of one of its tables says."""

    position: int | None
    is_consistent: bool
    chunks: int
    pins: int


def encode_head(key: str, head: LeaseHead) -> bytes:
    """The head of a lease."""
    assert len(head.digest) == DIGEST_BYTES, "it is made here"
    body = bytearray()
    put_varint(body, head.generation)
    body += head.holder.to_bytes(_HOLDER_BYTES, "big")
    put_bytes(body, head.principal.encode())
    for number in (head.created_ms, head.ttl_ms, head.left_ms):
        put_varint(body, number)
    body += head.digest
    put_varint(body, head.tables)
    put_varint(body, head.pins)
    return _sealed(key, body)


def decode_head(key: str, record: bytes) -> LeaseHead:
    """What such a record says."""
    reader = _opened(key, record)
    head = LeaseHead(
        generation=reader.varint(),
        holder=int.from_bytes(reader.take(_HOLDER_BYTES), "big"),
        principal=reader.text(),
        created_ms=reader.varint(),
        ttl_ms=reader.varint(),
        left_ms=reader.varint(),
        digest=reader.take(DIGEST_BYTES),
        tables=reader.varint(),
        pins=reader.varint(),
    )
    reader.end()
    return head


def encode_table_head(key: str, table: TableHead) -> bytes:
    """The record of one of its tables."""
    body = bytearray()
    put_varint(body, 0 if table.position is None else table.position + 1)
    for number in (int(table.is_consistent), table.chunks, table.pins):
        put_varint(body, number)
    return _sealed(key, body)


def decode_table_head(key: str, record: bytes) -> TableHead:
    """What such a record says."""
    reader = _opened(key, record)
    position, is_consistent = reader.varint(), reader.varint()
    reader.check(is_consistent <= 1)
    table = TableHead(
        position=position - 1 if position else None,
        is_consistent=bool(is_consistent),
        chunks=reader.varint(),
        pins=reader.varint(),
    )
    reader.end()
    return table


def encode_chunk(key: str, chunk: Chunk, pins: Mapping[BucketId, Pinned]) -> bytes:
    """Some pins of one table, all of this chunk."""
    partition = chunk[0] * CHUNK_PARTITIONS
    snapshot = offset = 0
    body = bytearray()
    groups = [list(group) for _, group in groupby(sorted(pins), key=lambda bucket: bucket.partition)]
    put_varint(body, len(groups))
    for buckets in groups:
        put_varint(body, buckets[0].partition - partition)
        partition = buckets[0].partition
        put_bytes(body, _name_of(buckets).encode())
        put_varint(body, len(buckets))
        number = chunk[1] * CHUNK_BUCKETS
        for bucket in buckets:
            pinned = pins[bucket]
            put_varint(body, bucket.bucket - number)
            put_signed(body, pinned.snapshot - snapshot)
            put_signed(body, pinned.offset - offset)
            number, snapshot, offset = bucket.bucket, pinned.snapshot, pinned.offset
    return _sealed(key, body)


def decode_chunk(key: str, table: TableId, chunk: Chunk, record: bytes) -> dict[BucketId, Pinned]:
    """The pins of such a record."""
    reader = _opened(key, record)
    pins: dict[BucketId, Pinned] = {}
    partition, snapshot, offset = chunk[0] * CHUNK_PARTITIONS, 0, 0
    for place in range(_few(reader, CHUNK_PARTITIONS)):
        partition += _step(reader, is_first=not place)
        name = reader.text()
        number = chunk[1] * CHUNK_BUCKETS
        for order in range(_few(reader, CHUNK_BUCKETS)):
            number += _step(reader, is_first=not order)
            snapshot += reader.signed()
            offset += reader.signed()
            reader.check(0 <= snapshot <= NUMBER_MAX and 0 <= offset <= NUMBER_MAX)
            pins[BucketId(table, partition, number, name)] = Pinned(snapshot, offset)
        reader.check(number // CHUNK_BUCKETS == chunk[1])
    reader.check(partition // CHUNK_PARTITIONS == chunk[0])
    reader.end()
    return pins


def _few(reader: VarintReader, most: int) -> int:
    """How many things follow: one at least, and no more than there is room for."""
    count = reader.varint()
    reader.check(1 <= count <= most)
    return count


def _step(reader: VarintReader, *, is_first: bool) -> int:
    """How far the next number is from the one before, which is not the same."""
    step = reader.varint()
    reader.check(is_first or step > 0)
    return step


def _name_of(buckets: Iterable[BucketId]) -> str:
    """The name of a partition; whoever names a bucket by numbers alone need not know it."""
    return next((bucket.partition_name for bucket in buckets if bucket.partition_name), "")


def _sealed(key: str, body: bytearray) -> bytes:
    return _START.pack(_crc(key, bytes([_FORMAT]) + body), _FORMAT) + body


def _opened(key: str, record: bytes) -> VarintReader:
    what = f"the record {key}"
    if len(record) < _START.size:
        raise Corrupted(f"{what} cannot be read: it is cut off")
    crc, format = _START.unpack_from(record)
    if crc != _crc(key, record[4:]):
        raise Corrupted(f"{what} cannot be read: it is damaged, or was written for another key")
    if format != _FORMAT:
        raise UnknownFormat(f"{what} is of format {format}, and {_FORMAT} is known; upgrade Kolk")
    return VarintReader(record[_START.size :], what)


def _crc(key: str, data: bytes) -> int:
    return crc32(data, crc32(key.encode() + b"\0"))
