"""The watermark: how much of a log is known to be durable, so that damage below it is never taken for a torn
tail.

It is written after each sync, over itself, and never synced: a value that is found was true when it was
written, because the sync it speaks of came first; a value that was lost, or is older, or is torn, only makes
recovery less strict. The file has 32 bytes, little endian::

    0   u32 crc32 of the bytes [4, 32)
    4   u32 format = 1
    8   i64 base offset of a segment
    16  i64 bytes of it that are durable
    24  i64 zero
"""

import struct
from dataclasses import dataclass
from zlib import crc32

WATERMARK_NAME = "synced"
WATERMARK_BYTES = 32
_FIELDS = struct.Struct("<Iqqq")
_CRC = struct.Struct("<I")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Watermark:
    """The first ``size`` bytes of the segment that starts at ``base`` are durable."""

    base: int
    size: int

    def encode(self) -> bytes:
        """The watermark file."""
        fields = _FIELDS.pack(_FORMAT, self.base, self.size, 0)
        return _CRC.pack(crc32(fields)) + fields

    @staticmethod
    def decode(data: bytes) -> "Watermark | None":
        """What a watermark file says; None for anything but a whole one: it is only a hint."""
        if len(data) < WATERMARK_BYTES or crc32(data[_CRC.size : WATERMARK_BYTES]) != _CRC.unpack_from(data)[0]:
            return None
        format_, base, size, _ = _FIELDS.unpack_from(data, _CRC.size)
        return Watermark(base, size) if format_ == _FORMAT else None
