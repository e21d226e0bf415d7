"""Settings: numbers and words that a user may tune, frozen and checked once.

Components (clock, disk, random numbers) are not settings; they are constructor arguments. Every setting says
why one would change it. The defaults need no thought.
"""

from dataclasses import dataclass, fields
from enum import Enum

from kolk.errors import InvalidArgument

MIB = 2**20
PUT_BYTES_LIMIT = 1024 * MIB
"""Arrow addresses 2 GiB in one array, and a put meets the rows that are stored."""


class Durability(Enum):
    """What an acknowledged put survives."""

    PROCESS = "process"
    """The end of the process, kill -9 included, but not a power cut: nothing is synced. For tests."""
    MACHINE = "machine"
    """A power cut: the log is synced before the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one database in one process."""

    durability: Durability = Durability.MACHINE
    """What acknowledged puts survive. ``process`` is faster and only for what can be made again."""
    log_segment_bytes: int = 128 * MIB
    """Size of a log file. Smaller files are trimmed sooner; recovery verifies the last one."""
    kv_block_cache_bytes: int = 256 * MIB
    """Memory for blocks read from disk, shared by all buckets. More makes lookups in large tables quicker."""
    kv_write_buffer_bytes: int = 256 * MIB
    """Memory for rows not yet flushed, shared by all buckets. It bounds what a restart replays."""
    put_rows_max: int = 1_000_000
    """Most rows in one put. A put is one atomic frame per bucket and is held in memory several times over."""
    put_bytes_max: int = 256 * MIB
    """Most Arrow bytes in one put."""
    scan_page_rows: int = 16_384
    """Rows per batch of a scan. Smaller batches let lookups in between sooner."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "durability", _durability(self.durability))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "durability" and (not isinstance(value, int) or value < 1):
                raise InvalidArgument(f"{field.name} is a positive whole number, not {value!r}")
        if self.put_bytes_max > PUT_BYTES_LIMIT:
            raise InvalidArgument(f"put_bytes_max is at most {PUT_BYTES_LIMIT:,}, not {self.put_bytes_max:,}")


def _durability(given: object) -> Durability:
    """People write the word."""
    words = {level.value: level for level in Durability}
    if isinstance(given, Durability):
        return given
    if not isinstance(given, str) or given not in words:
        raise InvalidArgument(f"durability is one of {', '.join(words)}, not {given!r}")
    return words[given]
