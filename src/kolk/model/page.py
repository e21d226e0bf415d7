"""What one step of reading a changelog brings."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ChangelogPage:
    """Some changes of one bucket (None: there are none now), and where to go on."""

    batch: pa.RecordBatch | None
    next_offset: int
