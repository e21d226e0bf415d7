"""Tables and their columns, between the messages and the engine."""

from kolk.codec.table import encode_table
from kolk.errors import InvalidArgument
from kolk.model.schema import Schema
from kolk.model.table import TableInfo
from kolk.wire import messages as m


def shown_names(schema: Schema, names: list[str] | None) -> tuple[str, ...] | None:
    """The columns that a client names, each of which must be there, once."""
    if names is None:
        return None
    if not names or len(set(names)) < len(names):
        raise InvalidArgument("name every column once, and at least one")
    for name in names:
        schema.column(name)
    return tuple(names)


def table_record(info: TableInfo) -> m.TableRecord:
    """A table."""
    return m.TableRecord(info.id, encode_table(info))
