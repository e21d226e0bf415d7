"""A table as somebody knows it: its name, its schema, its options, and how they are changed.

A handle speaks the version of the schema that it was opened with. Whatever happens to the table meanwhile, it may go
on: rows go in and come out in that version, by column id. ``refresh`` gives it the newest one; so does altering through
it.
"""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from kolk.client.link import Link
from kolk.client.service import Service
from kolk.errors import InvalidArgument, InvalidSchema, TableNotFound
from kolk.model.evolution import AddColumn, DropColumn, DropNotNull, MoveColumn, Operation, RenameColumn, WidenColumn
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo
from kolk.model.types import DataType

_KINDS = (AddColumn, DropColumn, RenameColumn, WidenColumn, MoveColumn, DropNotNull)


class Handle:
    """What a table is, for those who use it. Thread-safe: what it knows is one value, replaced whole."""

    def __init__(self, link: Link, info: TableInfo) -> None:
        self._link = link
        self._info = info

    @property
    def name(self) -> str:
        """``database.table``, or ``table`` alone in the default database."""
        return str(self._info.name)

    @property
    def schema(self) -> Schema:
        """The columns and the primary key, in the version that this handle speaks."""
        return self._info.schema

    @property
    def info(self) -> TableInfo:
        """Everything that the table is, as far as this handle knows; see ``refresh``."""
        return self._info

    @property
    def link(self) -> Link:
        """The connection that it came by, for those who build on the client."""
        return self._link

    def describe(self) -> dict[str, object]:
        """The table as it is now, its options and the log offsets of its buckets, in plain values."""
        return self._service.describe(self._info.id)

    def refresh(self) -> Schema:
        """Speak the newest version of the schema from now on; the answer is that version."""
        self._info = newest(self._service, self._info)
        return self.schema

    # --- changes

    def alter(self, operations: Iterable[Operation] | Operation) -> Schema:
        """Change the schema: all operations, one after the other, or none of them. This handle then speaks the outcome.

        ``table.alter([kolk.RenameColumn("pv", "views"), kolk.AddColumn(kolk.Column("clicks", "bigint", default=0))])``.
        Nothing is rewritten, and nobody who uses the table is disturbed. If somebody else has altered it since this
        handle was opened, it is an error, ``SchemaChanged``: refresh and look first.
        """
        info = self._info
        self._info = self._service.alter_table(info.id, info.schema.id, _checked(operations))
        return self.schema

    def add_column(
        self,
        column: Column | str,
        type: DataType | pa.DataType | str | None = None,
        *,
        nullable: bool = True,
        default: object = None,
        agg: str | None = None,
        first: bool = False,
        after: str | None = None,
    ) -> Schema:
        """Add a column: ``table.add_column("clicks", "bigint", default=0, after="pv")``; at the end unless told.

        Rows that are there have the default, or null. A column that is not nullable needs a default, and one of an
        aggregation table its aggregate function: ``agg="sum"``.
        """
        if isinstance(column, Column):
            if type is not None or default is not None or agg is not None or not nullable:
                raise InvalidSchema("the kolk.Column says type, nullable, default and agg; leave them out here")
            return self.alter([AddColumn(column, first, after)])
        if type is None:
            raise InvalidSchema("what type has the column? table.add_column('clicks', 'bigint')")
        return self.alter([AddColumn(Column(column, type, nullable, default=default, agg=agg), first, after)])

    def drop_column(self, name: str) -> Schema:
        """Drop a column; what it held is no longer shown."""
        return self.alter([DropColumn(name)])

    def rename_column(self, name: str, to: str) -> Schema:
        """Give a column another name; also one of the primary key."""
        return self.alter([RenameColumn(name, to)])

    def widen_column(self, name: str, type: DataType | pa.DataType | str) -> Schema:
        """Give a column a type that holds more: a wider integer, double for float, a decimal of more digits, a longer
        char, string for char."""
        return self.alter([WidenColumn(name, type)])

    def move_column(self, name: str, *, first: bool = False, after: str | None = None) -> Schema:
        """Give a column another place among the others."""
        return self.alter([MoveColumn(name, first, after)])

    def drop_not_null(self, name: str) -> Schema:
        """Let a column be null from now on."""
        return self.alter([DropNotNull(name)])

    def set_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Set options that may change on a living table; the answer is all options as they are now."""
        if not isinstance(options, Mapping):
            raise InvalidArgument("options is a dict of option names and values")
        text = {str(key): str(value) for key, value in options.items()}
        changed = self._service.set_options(self._info.id, text)
        if changed.schema == self._info.schema:
            self._info = changed
        return changed.spec.option_text

    @property
    def _service(self) -> Service:
        return self._link.service


def newest(service: Service, info: TableInfo) -> TableInfo:
    """The table as it is now; TableNotFound if it was dropped, even if there is a new one of its name."""
    found = service.table(info.name)
    if found.id != info.id:
        raise TableNotFound("this table was dropped; get the table of that name anew with db.table")
    return found


def _checked(operations: Iterable[Operation] | Operation) -> Sequence[Operation]:
    given = [operations] if isinstance(operations, _KINDS) else operations
    listed = list(given) if isinstance(given, Iterable) else [given]
    for operation in listed:
        if not isinstance(operation, _KINDS):
            raise InvalidArgument(
                f"an alter is a list of {', '.join(kind.__name__ for kind in _KINDS)}, not {str(operation)[:100]!r}"
            )
    return listed
