"""A write as it is asked for: what to do, to which rows, of which columns."""

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from kolk.errors import InvalidRows
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema


class Action(Enum):
    """What a write does with its keys."""

    UPSERT = "upsert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows that have the key columns and the target columns.

    ``columns`` names the target columns outside the key; None means the whole row. The rows of a delete have
    the key columns alone. ``schema_id`` is the version of the table's schema that all names and types are of; 0 is the
    current one.
    """

    action: Action
    rows: pa.RecordBatch
    columns: tuple[str, ...] | None = None
    mode: MergeMode = MergeMode.ACCUMULATE
    schema_id: int = 0


def expected_columns(
    schema: Schema, action: Action, columns: tuple[str, ...] | None, mode: MergeMode
) -> tuple[Column, ...]:
    """The columns that the rows of such a write must have, in order."""
    is_log = not schema.primary_key
    if mode is not MergeMode.ACCUMULATE and is_log:
        raise InvalidRows("a log table takes mode='accumulate' only: there is nothing to overwrite")
    if columns is not None and is_log:
        raise InvalidRows("a log table takes whole rows only")
    if is_log and action is Action.DELETE:
        raise InvalidRows("a log table has no rows to delete by key")
    if columns is not None:
        _check_targets(schema, action, columns)
    if action is Action.DELETE:
        return schema.key_columns
    if columns is None:
        return schema.columns
    chosen = {*schema.primary_key, *columns}
    return tuple(column for column in schema.columns if column.name in chosen)


def _check_targets(schema: Schema, action: Action, columns: tuple[str, ...]) -> None:
    """Target columns are outside the key: a partial delete would take the key from its row."""
    for name in columns:
        schema.column(name)
        if name in schema.primary_key:
            raise InvalidRows(f"the column {name!r} is part of the primary key; name columns outside of it")
    if action is Action.DELETE and not columns:
        raise InvalidRows("a partial delete names at least one column outside the key")
