"""What readers of a log are told: some changes, and where the log starts and ends."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ChangelogPage:
    """Some changes of one bucket (None: there are none now), and where to go on."""

    batch: pa.RecordBatch | None
    next_offset: int


@dataclass(frozen=True, slots=True)
class BucketOffsets:
    """Where the log of one bucket starts and ends."""

    table: str
    bucket: str
    start: int
    end: int
