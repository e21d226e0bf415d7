"""What is known of a log's trimmed beginning: when the last frame of it was committed.

Whoever asks for all changes since a time must be told if some of them are gone, and not be told so of a log whose
trimmed frames are all older. The file is written durably before the segments go. One that was not, because the disk was
full, or that an older Kolk has left behind, ends before the log starts: then nobody knows. The file has 32 bytes,
little endian::

    0   u32 crc32 of the bytes [4, 32)
    4   u32 format = 1
    8   i64 the offset below which frames were about to be trimmed
    16  i64 commit timestamp of the last of them, ms
    24  i64 zero
"""

import struct
from dataclasses import dataclass
from zlib import crc32

TRIMMED_NAME = "trimmed"
TRIMMED_BYTES = 32
_FIELDS = struct.Struct("<Iqqq")
_CRC = struct.Struct("<I")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Trimmed:
    """No frame below ``end`` was committed after ``timestamp_ms``."""

    end: int
    timestamp_ms: int

    def encode(self) -> bytes:
        """The file."""
        fields = _FIELDS.pack(_FORMAT, self.end, self.timestamp_ms, 0)
        return _CRC.pack(crc32(fields)) + fields

    @staticmethod
    def decode(data: bytes) -> "Trimmed | None":
        """What a file says; None for anything but a whole one."""
        if len(data) < TRIMMED_BYTES or crc32(data[_CRC.size : TRIMMED_BYTES]) != _CRC.unpack_from(data)[0]:
            return None
        format_, end, timestamp_ms, _ = _FIELDS.unpack_from(data, _CRC.size)
        return Trimmed(end, timestamp_ms) if format_ == _FORMAT else None
