"""A write as it is asked for: what to do, to which rows, of which columns."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from kolk.errors import InvalidArgument, InvalidRows
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema


class Action(Enum):
    """What a write does with its keys."""

    UPSERT = "upsert"
    DELETE = "delete"
    CHANGE = "change"
    """Each row says in ``_change_type`` whether it comes or goes, as in a changelog."""

    @staticmethod
    def parse(text: str) -> "Action":
        """Clients write the word."""
        actions = {action.value: action for action in Action}
        if text not in actions:
            raise InvalidArgument(f"an action is one of {', '.join(actions)}, not {text[:60]!r}")
        return actions[text]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows that have the key columns and the target columns.

    ``columns`` names the target columns outside the key; None means the whole row. The rows of a delete have
    the key columns alone, those of changes have ``CHANGE`` behind all others. ``schema_id`` is the version of the
    table's schema that all names and types are of; 0 is the current one.
    """

    action: Action
    rows: pa.RecordBatch
    columns: tuple[str, ...] | None = None
    mode: MergeMode = MergeMode.ACCUMULATE
    schema_id: int = 0


CHANGE = Column("_change_type", "tinyint", nullable=False)
"""A ``ChangeKind`` by its number."""


def expected_columns(
    schema: Schema, action: Action, columns: tuple[str, ...] | None, mode: MergeMode
) -> tuple[Column, ...]:
    """The columns that the rows of such a write must have, in order."""
    is_log = not schema.primary_key
    if mode is not MergeMode.ACCUMULATE and is_log:
        raise InvalidRows("a log table takes mode='accumulate' only: there is nothing to overwrite")
    if action is Action.CHANGE and is_log:
        raise InvalidRows(f"a log table takes rows as they are; leave {CHANGE.name} out")
    if columns is not None and is_log:
        raise InvalidRows("a log table takes whole rows only")
    if is_log and action is Action.DELETE:
        raise InvalidRows("a log table has no rows to delete by key")
    if columns is not None:
        _check_targets(schema, action, columns)
    if action is Action.DELETE:
        return schema.key_columns
    given = schema.input_columns if mode is MergeMode.ACCUMULATE else schema.columns
    if columns is not None:
        chosen = {*schema.primary_key, *columns}
        given = tuple(column for column in given if column.name in chosen)
    return (*given, CHANGE) if action is Action.CHANGE else given


def left_out(schema: Schema, names: Collection[str], mode: MergeMode) -> tuple[str, ...] | None:
    """The target columns of a put to an aggregation table that gives these columns: None if they are all.

    What is left out keeps its value, and in a new row has its default: a default is what a row begins with, not
    something to be added once more with every put. A column that counts rows counts them, given or not; but what is put
    as states has been counted before.
    """
    values = [column for column in schema.value_columns if column.agg is not None]
    counts = mode is MergeMode.ACCUMULATE
    kept = [
        column
        for column in values
        if column.name in names or (counts and column.function and column.function.is_optional)
    ]
    return None if len(kept) == len(values) else tuple(column.name for column in kept)


def _check_targets(schema: Schema, action: Action, columns: tuple[str, ...]) -> None:
    """Target columns are outside the key: a partial delete would take the key from its row."""
    if len(set(columns)) < len(columns):
        raise InvalidRows("the columns of a write name one of them twice")
    for name in columns:
        schema.column(name)
        if name in schema.primary_key:
            raise InvalidRows(f"the column {name!r} is part of the primary key; name columns outside of it")
    if action is Action.DELETE and not columns:
        raise InvalidRows("a partial delete names at least one column outside the key")


def empty_write(schema: Schema) -> Write:
    """A write without rows, of no column: only its tag is of interest."""
    rows = pa.RecordBatch.from_pylist([], schema=pa.schema([column.arrow for column in schema.key_columns]))
    return Write(action=Action.UPSERT, rows=rows, columns=(), mode=MergeMode.OVERWRITE, schema_id=schema.id)
