"""What readers of a log are told: some changes, under which columns, and where the log starts and ends."""

from dataclasses import dataclass

import pyarrow as pa

from kolk.model.schema import CHANGE_COLUMN_NAMES, Schema

_TYPES = (pa.string(), pa.int64(), pa.timestamp("ms", "UTC"), pa.string())
_CHANGE_COLUMNS = tuple(
    pa.field(name, type, nullable=False) for name, type in zip(CHANGE_COLUMN_NAMES, _TYPES, strict=True)
)


def changelog_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a changelog whose rows are of this version."""
    return pa.schema([*_CHANGE_COLUMNS, *schema.arrow])


@dataclass(frozen=True, slots=True)
class ChangelogPage:
    """Some changes of one bucket (None: there are none now), and where to go on.

    ``schema_id`` is the version of the table's schema that they are shown in, all of them; 0 if there are none.
    """

    batch: pa.RecordBatch | None
    next_offset: int
    schema_id: int = 0


@dataclass(frozen=True, slots=True)
class BucketOffsets:
    """Where the log of one bucket starts and ends."""

    table: str
    bucket: str
    start: int
    end: int
