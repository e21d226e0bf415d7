"""What a lookup has found, as Python has it: rows as dicts. Where Python has no such value it is an error."""

from typing import Any

import pyarrow as pa

from kolk.errors import InvalidArgument
from kolk.model.values import as_python


def dicts_of(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dicts, and the maps in them, too."""
    try:
        columns = [as_python(column) for column in rows.columns]
    except ValueError as error:
        raise InvalidArgument(f"Python has no value for what this row holds ({error}); use get, for Arrow") from error
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
