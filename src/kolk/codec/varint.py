"""Whole numbers in as few bytes as they need: seven bits to a byte, the lowest first, the eighth bit says that more
follow. Numbers that may be negative are folded: 0, -1, 1, -2 become 0, 1, 2, 3.

``VarintReader`` reads what others may have damaged: it runs past no end, takes no number longer than 64 bits, and none
that is written longer than it need be, so that a value has one form only.
"""

from kolk.errors import Corrupted

_BYTES_MAX = 10


def put_varint(out: bytearray, value: int) -> None:
    """Append a number below 2 ** 64."""
    assert 0 <= value < 2**64, "callers limit their numbers"
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_signed(out: bytearray, value: int) -> None:
    """Append a number of 64 bits that may be negative."""
    put_varint(out, value * 2 if value >= 0 else -value * 2 - 1)


def put_bytes(out: bytearray, value: bytes) -> None:
    """Append how many bytes there are, and them."""
    put_varint(out, len(value))
    out += value


class VarintReader:
    """Reads what was put, from left to right; Corrupted where it was not. Confined to one call."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    def varint(self) -> int:
        """The next number."""
        value = shift = 0
        for byte in self._data[self._at : self._at + _BYTES_MAX]:
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self.check((byte != 0 or shift == 7) and value < 2**64)
                return value
        raise self._damaged()

    def signed(self) -> int:
        """The next number that may be negative."""
        folded = self.varint()
        return folded // 2 if folded % 2 == 0 else -(folded // 2) - 1

    def counted(self) -> bytes:
        """The next bytes, whose number stands before them."""
        return self.take(self.varint())

    def text(self) -> str:
        """The same as text."""
        try:
            return self.counted().decode()
        except UnicodeDecodeError as error:
            raise self._damaged() from error

    def take(self, count: int) -> bytes:
        """The next so many bytes."""
        taken = self._data[self._at : self._at + count]
        self.check(len(taken) == count)
        self._at += count
        return taken

    def end(self) -> None:
        """Nothing follows."""
        self.check(self._at == len(self._data))

    def check(self, is_sound: bool) -> None:
        """Corrupted if not."""
        if not is_sound:
            raise self._damaged()

    def _damaged(self) -> Corrupted:
        return Corrupted(f"{self._what} cannot be read: it is damaged")
