"""Tables, their columns and their rows, between the messages and the engine."""

from collections.abc import Sequence

import pyarrow as pa

from kolk.codec.table import encode_table
from kolk.errors import InvalidArgument
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo
from kolk.model.write import Action, Write, expected_columns
from kolk.wire import messages as m
from kolk.wire.message import OfWrite
from kolk.wire.rows import check_schema, read_rows


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


def write_of(put: OfWrite, rows: pa.Buffer, schema: Schema, rows_max: int) -> Write:
    """The write that a message asks for."""
    action, mode = Action.parse(put.action), MergeMode.parse(put.mode)
    columns = None if put.columns is None else tuple(put.columns)
    batch = received(put.schema, rows, expected_columns(schema, action, columns, mode), rows_max)
    return Write(action=action, rows=batch, columns=columns, mode=mode, schema_id=schema.id)


def received(schema: bytes, rows: pa.Buffer, columns: Sequence[Column], rows_max: int) -> pa.RecordBatch:
    """Rows from outside, under the columns that they must have. The engine validates them in full."""
    expected = pa.schema([column.arrow for column in columns])
    check_schema(schema, expected)
    return read_rows(rows, expected, rows_max=rows_max)
