"""The operations of an alter as messages, and back: text for types, because both sides read it alike.

What comes in is checked as it is made: a name, type or default that cannot be is refused here. Whether the table can be
altered so is not decided here.
"""

from collections.abc import Iterable

from kolk.model import evolution as e
from kolk.model.schema import Column
from kolk.wire import messages as m


def column_text(column: Column) -> m.ColumnText:
    """A column for the other side; its id is the table's business."""
    return m.ColumnText(column.name, str(column.type), column.nullable, column.default, _text(column))


def column_of(text: m.ColumnText) -> Column:
    """The column that such a text stands for."""
    return Column(text.name, text.type, text.nullable, default=text.default, agg=text.agg)


def _text(column: Column) -> str | None:
    return None if column.agg is None else str(column.agg)


def encode_operations(operations: Iterable[e.Operation]) -> list[m.Changes]:
    """Operations for the other side."""
    return [_encoded(operation) for operation in operations]


def decode_operations(changes: Iterable[m.Changes]) -> list[e.Operation]:
    """The operations of the other side."""
    return [_decoded(change) for change in changes]


def _encoded(operation: e.Operation) -> m.Changes:
    match operation:
        case e.AddColumn():
            return m.AddColumn(column_text(operation.column), operation.first, operation.after)
        case e.DropColumn():
            return m.DropColumn(operation.name)
        case e.RenameColumn():
            return m.RenameColumn(operation.name, operation.to)
        case e.WidenColumn():
            return m.WidenColumn(operation.name, str(operation.type))
        case e.MoveColumn():
            return m.MoveColumn(operation.name, operation.first, operation.after)
        case e.DropNotNull():
            return m.DropNotNull(operation.name)


def _decoded(change: m.Changes) -> e.Operation:
    match change:
        case m.AddColumn():
            return e.AddColumn(column_of(change.column), change.first, change.after)
        case m.DropColumn():
            return e.DropColumn(change.name)
        case m.RenameColumn():
            return e.RenameColumn(change.name, change.to)
        case m.WidenColumn():
            return e.WidenColumn(change.name, change.type)
        case m.MoveColumn():
            return e.MoveColumn(change.name, change.first, change.after)
        case m.DropNotNull():
            return e.DropNotNull(change.name)
