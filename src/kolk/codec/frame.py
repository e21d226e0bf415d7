"""The log frame: one put's changes in one bucket, with the tag that says whose they are.

Little endian; the whole frame is padded to 8 bytes, so that every frame, and the Arrow body in it, starts
at a multiple of 8 in its file::

    0   u32     length          bytes of the whole frame, padding included
    4   u32     crc             crc32 of the bytes [8, length)
    8   u8      format = 1
    9   u8      tag kind        0 plain, 1 transaction, 2 owner, 3 undo, 4 system
    10  u16     flags           bit 0 MORE: the next frame belongs to the same atomic group
                                bit 1 DONE (undo only), bit 2 SEALED (owner only); the others are zero
    12  u32     rows            0 if and only if there is no body
    16  i64     base offset     of the first row; a frame without rows takes no offset
    24  i64     commit timestamp, ms
    32  i32     schema id
    36  i32     leader epoch
    40  i64     synced          bytes of this segment file that were durable when this frame was written
    48  5 x i64 tag slots       plain: writer (low 64 bits, high 64 bits), seq;  transaction: csn, part;
                                owner: owner, fence, ticket, epoch, seq;  undo: owner, fence;  system: work;
                                unused slots are zero
    88  u32     header length   where the body starts: 96 to 4096, a multiple of 8
    92  u32     body length     without padding
    96          information     up to the header length; nothing decides by it
                body            one Arrow IPC record batch message
                padding         zeros, to a multiple of 8

Every format to come keeps length, crc and format where they are, so that an old reader can tell a frame it
does not know from a damaged one. Two ways to look at a frame are kept apart: ``verify`` judges bytes and
raises nothing, because a torn tail is no error; ``glimpse`` and ``decode_header`` read a header that is meant
to be good, and refuse one that cannot be. This module does no I/O and knows nothing of Arrow.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from kolk.errors import Corrupted, InvalidInput, TooLarge, UnknownFormat
from kolk.model.change import Offset
from kolk.model.ids import OwnerTag, PlainTag, SystemTag, SystemWork, TransactionTag, UndoTag, WriteTag

Buffer = bytes | memoryview | pa.Buffer

ALIGNMENT = 8
FORMAT = 1
HEADER_BYTES = 96
HEADER_BYTES_MAX = 4_096
FRAME_BYTES_MAX = 1 << 31
"""No frame is longer; Arrow's own 32-bit lengths end there too."""

BODY_BYTES_MAX = FRAME_BYTES_MAX - HEADER_BYTES_MAX - ALIGNMENT
"""The longest body that fits a frame whatever its header."""

_LENGTH_AND_CRC = struct.Struct("<II")
_HEADER = struct.Struct("<II BBHI qqii q 5q II".replace(" ", ""))
_GLIMPSE = struct.Struct("<I4x BBHI qq8x q 40x II".replace(" ", ""))
_PADDING = bytes(ALIGNMENT)
_LOW_64 = (1 << 64) - 1
assert _HEADER.size == _GLIMPSE.size == HEADER_BYTES


# Plain numbers, not enums: they are compared once or more per frame, and an IntEnum costs ten times as much.
_PLAIN, _TRANSACTION, _OWNER, _UNDO, _SYSTEM = range(5)
_MORE, _DONE, _SEALED = 1, 2, 4
_FLAGS_OF_KIND = (_MORE, _MORE, _MORE | _SEALED, _MORE | _DONE, _MORE)
_SLOTS_OF_KIND = (3, 2, 5, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """Everything a frame says but its rows."""

    tag: WriteTag
    more: bool
    rows: int
    base_offset: Offset
    timestamp_ms: int
    schema_id: int
    leader_epoch: int
    synced: int
    body_length: int
    information: bytes = b""
    """A multiple of 8 bytes; ``padded`` makes it so."""

    @property
    def end_offset(self) -> Offset:
        """The offset after the frame's last row."""
        return Offset(self.base_offset + self.rows)

    @property
    def header_length(self) -> int:
        """Where the body starts."""
        return HEADER_BYTES + len(self.information)

    @property
    def length(self) -> int:
        """The bytes of the whole frame, padding included."""
        return _aligned(self.header_length + self.body_length)


class Glimpse(NamedTuple):
    """What a log needs of a header to hop to the next frame: a third of the cost of decoding it."""

    length: int
    more: bool
    rows: int
    base_offset: int
    timestamp_ms: int
    synced: int


class Verdict(Enum):
    """What ``verify`` finds."""

    INTACT = "intact"
    NOTHING = "no frame has this length"
    SHORT = "the bytes end before the frame does"
    DAMAGED = "the checksum does not match"


def padded(information: bytes) -> bytes:
    """``information`` with zeros up to the alignment."""
    return information + _PADDING[: -len(information) % ALIGNMENT]


def encode_frame(header: FrameHeader, body: Buffer | None) -> list[Buffer]:
    """The frame as pieces to write one after the other; the body is not copied."""
    length = header.length
    _check_encodable(header, 0 if body is None else len(body))
    kind, flags, slots = _tag_fields(header.tag)
    packed = bytearray(
        _HEADER.pack(
            length,
            0,
            FORMAT,
            kind,
            flags | (_MORE if header.more else 0),
            header.rows,
            header.base_offset,
            header.timestamp_ms,
            header.schema_id,
            header.leader_epoch,
            header.synced,
            *slots,
            header.header_length,
            header.body_length,
        )
    )
    packed += header.information
    padding = _PADDING[: length - header.header_length - header.body_length]
    crc = crc32(memoryview(packed)[8:])
    if body is not None:
        crc = crc32(padding, crc32(body, crc))
    _LENGTH_AND_CRC.pack_into(packed, 0, length, crc)
    pieces = [bytes(packed)] if body is None else [bytes(packed), body, padding]
    return [piece for piece in pieces if len(piece)]


def declared_length(buffer: Buffer, position: int) -> int:
    """The length of the frame at ``position``, as far as its first 8 bytes tell; 0 if no frame has it."""
    length, _ = _LENGTH_AND_CRC.unpack_from(buffer, position)
    return length if HEADER_BYTES <= length <= FRAME_BYTES_MAX and length % ALIGNMENT == 0 else 0


def verify(buffer: memoryview, position: int) -> Verdict:
    """Judge the bytes at ``position`` by length and checksum alone, whatever their format."""
    if len(buffer) - position < _LENGTH_AND_CRC.size:
        return Verdict.SHORT
    length = declared_length(buffer, position)
    if not length:
        return Verdict.NOTHING
    if position + length > len(buffer):
        return Verdict.SHORT
    _, crc = _LENGTH_AND_CRC.unpack_from(buffer, position)
    return Verdict.INTACT if crc32(buffer[position + 8 : position + length]) == crc else Verdict.DAMAGED


def glimpse(buffer: Buffer, position: int) -> Glimpse:
    """Read the few fields that lead to the next frame; the header must be whole and possible."""
    length, format_, kind, flags, rows, base, timestamp, synced, header_length, body_length = _GLIMPSE.unpack_from(
        buffer, position
    )
    if (
        format_ != FORMAT
        or kind > _SYSTEM
        or flags & ~_FLAGS_OF_KIND[kind]
        or (rows == 0) != (body_length == 0)
        or base < 0
        or synced < 0
        or not HEADER_BYTES <= header_length <= HEADER_BYTES_MAX
        or header_length % ALIGNMENT
        or length != _aligned(header_length + body_length)
        or length > FRAME_BYTES_MAX
    ):
        _refuse(format_)
    return Glimpse(length, bool(flags & _MORE), rows, base, timestamp, synced)


def decode_header(buffer: Buffer, position: int = 0) -> FrameHeader:
    """Read the whole header, information included; it must be whole and possible."""
    seen = glimpse(buffer, position)
    fields = _HEADER.unpack_from(buffer, position)
    _, _, format_, kind, flags, _, _, _, schema_id, leader_epoch, _, *slots, header_length, body_length = fields
    if any(slots[_SLOTS_OF_KIND[kind] :]):
        _refuse(format_)
    information = bytes(memoryview(buffer)[position + HEADER_BYTES : position + header_length])
    try:
        tag = _tag(kind, flags, slots)
    except InvalidInput as error:
        raise Corrupted(f"a log frame's header has a tag that no Kolk writes: {error}") from None
    return FrameHeader(
        tag=tag,
        more=seen.more,
        rows=seen.rows,
        base_offset=Offset(seen.base_offset),
        timestamp_ms=seen.timestamp_ms,
        schema_id=schema_id,
        leader_epoch=leader_epoch,
        synced=seen.synced,
        body_length=body_length,
        information=information,
    )


def find_headers(buffer: Buffer) -> list[int]:
    """The positions, in steps of 8, where a header of this format could stand: to look behind damage.

    Only the fields that must agree with each other are looked at, all positions at once; chance bytes pass
    about once in 2**70. What is found here is a candidate, to be verified.
    """
    words = np.frombuffer(buffer, dtype="<u4", count=len(buffer) // ALIGNMENT * 2).reshape(-1, 2)
    count = len(words) - HEADER_BYTES // ALIGNMENT + 1
    if count <= 0:
        return []
    length = words[:count, 0].astype(np.int64)
    header_length = words[11 : 11 + count, 0].astype(np.int64)
    body_length = words[11 : 11 + count, 1].astype(np.int64)
    possible = (
        ((words[1 : 1 + count, 0] & 0xFF) == FORMAT)
        & (header_length >= HEADER_BYTES)
        & (header_length <= HEADER_BYTES_MAX)
        & (header_length % ALIGNMENT == 0)
        & (length == (header_length + body_length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)
    )
    return (np.flatnonzero(possible) * ALIGNMENT).tolist()


def _aligned(length: int) -> int:
    return (length + ALIGNMENT - 1) & -ALIGNMENT


def _check_encodable(header: FrameHeader, body_length: int) -> None:
    assert header.body_length == body_length, "the header speaks of another body"
    assert (header.rows == 0) == (body_length == 0), "a frame has a body if and only if it has rows"
    assert len(header.information) % ALIGNMENT == 0, "information is padded"
    if header.header_length > HEADER_BYTES_MAX:
        raise TooLarge(f"a frame's information is at most {HEADER_BYTES_MAX - HEADER_BYTES} bytes")
    if header.length > FRAME_BYTES_MAX:
        raise TooLarge(f"a frame is at most {FRAME_BYTES_MAX} bytes, this one has {header.length}: put fewer rows")


def _refuse(format_: int) -> None:
    if format_ != FORMAT:
        raise UnknownFormat(f"a log frame has format {format_}, this Kolk reads {FORMAT}; upgrade Kolk")
    raise Corrupted("a log frame's header has values that no Kolk writes")


def _tag_fields(tag: WriteTag) -> tuple[int, int, tuple[int, int, int, int, int]]:
    match tag:
        case PlainTag(writer=writer, seq=seq):
            return _PLAIN, 0, (_signed(writer & _LOW_64), _signed(writer >> 64), seq, 0, 0)
        case TransactionTag(csn=csn, part=part):
            return _TRANSACTION, 0, (csn, part, 0, 0, 0)
        case OwnerTag(owner=owner, fence=fence, ticket=ticket, epoch=epoch, seq=seq, sealed=sealed):
            return _OWNER, _SEALED if sealed else 0, (owner, fence, ticket, epoch, seq)
        case UndoTag(owner=owner, fence=fence, done=done):
            return _UNDO, _DONE if done else 0, (owner, fence, 0, 0, 0)
        case SystemTag(work=work):
            return _SYSTEM, 0, (work, 0, 0, 0, 0)


def _tag(kind: int, flags: int, slots: Sequence[int]) -> WriteTag:
    if kind == _PLAIN:
        return PlainTag((slots[1] & _LOW_64) << 64 | slots[0] & _LOW_64, slots[2])
    if kind == _TRANSACTION:
        return TransactionTag(slots[0], slots[1])
    if kind == _OWNER:
        return OwnerTag(slots[0], slots[1], slots[2], slots[3], slots[4], bool(flags & _SEALED))
    if kind == _UNDO:
        return UndoTag(slots[0], slots[1], bool(flags & _DONE))
    return SystemTag(_system_work(slots[0]))


def _system_work(number: int) -> SystemWork:
    try:
        return SystemWork(number)
    except ValueError:
        raise Corrupted(f"a log frame's header names system work {number}, which no Kolk does") from None


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
