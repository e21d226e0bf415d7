"""One file of a disk that can lose power: the bytes that reads see, and those that would survive.

Kept by sectors of 512 bytes, which a disk writes whole or not at all.
"""

import random  # noqa: TID251 - only for the type; the seeded generator is passed in
from collections.abc import Iterable
from enum import Enum

SECTOR_BYTES = 512


class Crash(Enum):
    """What a power cut does to what was not synced."""

    DROP = "drop"
    """All of it is lost."""
    KEEP = "keep"
    """All of it is kept: the system had just written it out."""
    PREFIX = "prefix"
    """Of each file's new bytes a prefix is kept; each new or removed name is kept or lost."""
    TORN = "torn"
    """Of each file's new sectors some are kept, the others old or zero; each name is kept or lost."""


class SectorFile:
    """A file in memory. ``data`` is what reads see, ``saved`` what was synced. Guarded by its disk's lock."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = bytearray(data)
        self.saved = bytearray(data)
        self._dirty: set[int] = set()

    def write(self, position: int, data: bytes) -> None:
        """Change the bytes that reads see."""
        self.data[position : position + len(data)] = data
        self._dirty.update(range(position // SECTOR_BYTES, -(-(position + len(data)) // SECTOR_BYTES)))

    def truncate(self, size: int) -> None:
        """Cut off what reads see, or add zeros."""
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        """Save the size and the sectors that were written since the last sync, failed ones included."""
        self.saved = self._mixed(len(self.data), self._dirty)
        self._dirty.clear()

    def fail_sync(self) -> None:
        """Let what a sync should have saved count as clean, though it is not saved."""
        self._dirty.clear()

    def after(self, mode: Crash, rng: random.Random) -> bytearray:
        """The bytes that a power cut leaves."""
        if mode is Crash.KEEP:
            return self._mixed(len(self.data), self._dirty)
        if mode is Crash.DROP:
            return self.saved
        shorter, longer = sorted((len(self.saved), len(self.data)))
        size = rng.randint(shorter, longer)
        if mode is Crash.PREFIX:
            # What was written over old bytes is kept or not; of what was added, a prefix is.
            over = {sector for sector in self._dirty if (sector + 1) * SECTOR_BYTES <= len(self.saved)}
            return self._mixed(size, self._dirty - (over if rng.random() < 0.5 else set()))
        whole_sectors = min(longer, -(-size // SECTOR_BYTES) * SECTOR_BYTES)
        kept = {sector for sector in sorted(self._dirty) if rng.random() < 0.5}
        return self._mixed(rng.choice((shorter, longer, whole_sectors)), kept)

    def _mixed(self, size: int, fresh: Iterable[int]) -> bytearray:
        """``size`` bytes: the given sectors as they are read, the others as saved, zeros where neither is."""
        mixed = self.saved[:size] + bytes(max(size - len(self.saved), 0))
        for sector in fresh:
            start, stop = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, size)
            if start < stop:
                new = self.data[start:stop]
                mixed[start:stop] = new + bytes(stop - start - len(new))
        return mixed
