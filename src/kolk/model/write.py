"""A write as it is asked for: what to do, to which rows, of which columns."""

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from kolk.model.options import MergeMode


class Action(Enum):
    """What a write does with its keys."""

    UPSERT = "upsert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows that have the key columns and the target columns.

    ``columns`` names the target columns outside the key; None means the whole row. The rows of a delete have
    the key columns alone.
    """

    action: Action
    rows: pa.RecordBatch
    columns: tuple[str, ...] | None = None
    mode: MergeMode = MergeMode.ACCUMULATE
