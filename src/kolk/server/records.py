"""What the server tells of tables and events, as messages."""

from kolk.codec.table import encode_table
from kolk.errors import InvalidArgument
from kolk.model.partition import PartitionEvent
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


def event_record(event: PartitionEvent) -> m.EventRecord:
    """What became of a partition."""
    return m.EventRecord(event.kind.value, event.partition, event.position, event.timestamp_ms, event.unread)


def table_record(info: TableInfo) -> m.TableRecord:
    """A table."""
    return m.TableRecord(info.id, encode_table(info))
