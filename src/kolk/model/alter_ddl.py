"""ALTER TABLE: how its forms are read, each into a frozen value::

    ALTER TABLE table ADD COLUMN [IF NOT EXISTS] column TYPE [NOT NULL] [DEFAULT literal] [FIRST | AFTER column]
    ALTER TABLE table ADD COLUMNS (column TYPE ..., ...)
    ALTER TABLE table DROP COLUMN [IF EXISTS] column
    ALTER TABLE table DROP COLUMNS (column, ...)
    ALTER TABLE table RENAME COLUMN column TO name
    ALTER TABLE table ALTER COLUMN column [SET DATA] TYPE type
    ALTER TABLE table ALTER COLUMN column DROP NOT NULL
    ALTER TABLE table ALTER COLUMN column FIRST | AFTER column
    ALTER TABLE table SET ('option' = 'value', ...)
    ALTER TABLE table ADD [IF NOT EXISTS] PARTITION (column = literal, ...)
    ALTER TABLE table DROP [IF EXISTS] PARTITION (column = literal, ...)

What no table can do, such as another default or NOT NULL afterwards, is refused with the reason. Whether this table can
do the rest is decided by whoever runs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from kolk.model.clauses import LIST_LENGTH_MAX, column_definition, column_name, literal, options, refuse_comment
from kolk.model.evolution import AddColumn, DropColumn, DropNotNull, MoveColumn, Operation, RenameColumn, WidenColumn
from kolk.model.names import TableName
from kolk.model.schema import Schema
from kolk.model.tokens import Reader, Token
from kolk.model.types import read_type


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable:
    """Columns are added, dropped, renamed, widened, moved or loosened.

    With ``is_lenient``, what is so already is left out: IF EXISTS, IF NOT EXISTS.
    """

    name: TableName
    operations: tuple[Operation, ...]
    is_lenient: bool = False

    def wanted(self, schema: Schema) -> list[Operation]:
        """The operations that are left to do on a table that is like this."""
        return [operation for operation in self.operations if not (self.is_lenient and _is_so(operation, schema))]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOptions:
    """``SET ('option' = 'value')``."""

    name: TableName
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartition:
    """``ADD PARTITION``, named by the text of its values."""

    name: TableName
    values: Mapping[str, str]
    if_not_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPartition:
    """``DROP PARTITION``."""

    name: TableName
    values: Mapping[str, str]
    if_exists: bool


Alteration = AlterTable | SetOptions | AddPartition | DropPartition


def read_alteration(reader: Reader, name: TableName) -> Alteration:
    """What stands behind ``ALTER TABLE name``."""
    if reader.accept("ADD"):
        return _add(reader, name)
    if reader.accept("DROP"):
        return _drop(reader, name)
    if reader.accept("RENAME"):
        if reader.at("TO"):
            reader.refuse(reader.token, "a table keeps its name; make a new table and copy the rows")
        reader.expect("COLUMN")
        old = column_name(reader)
        reader.expect("TO")
        return AlterTable(name=name, operations=(RenameColumn(old, column_name(reader)),))
    if reader.accept("ALTER"):
        reader.expect("COLUMN")
        return AlterTable(name=name, operations=(_alter_column(reader, column_name(reader)),))
    reader.expect("SET")
    return SetOptions(name=name, options=options(reader))


def read_added_column(reader: Reader) -> AddColumn:
    """A column definition and its place."""
    column = column_definition(reader)
    refuse_comment(reader, "column")
    first = reader.accept("FIRST")
    after = column_name(reader) if not first and reader.accept("AFTER") else None
    return AddColumn(column, first, after)


def _add(reader: Reader, name: TableName) -> AlterTable | AddPartition:
    if reader.accept_all("IF", "NOT", "EXISTS"):
        reader.expect("PARTITION")
        return AddPartition(name=name, values=_partition(reader), if_not_exists=True)
    if reader.accept("PARTITION"):
        return AddPartition(name=name, values=_partition(reader), if_not_exists=False)
    if reader.accept("COLUMNS"):
        return AlterTable(
            name=name, operations=tuple(reader.listed(partial(read_added_column, reader), LIST_LENGTH_MAX))
        )
    reader.expect("COLUMN")
    is_lenient = reader.accept_all("IF", "NOT", "EXISTS")
    return AlterTable(name=name, operations=(read_added_column(reader),), is_lenient=is_lenient)


def _drop(reader: Reader, name: TableName) -> AlterTable | DropPartition:
    if reader.accept_all("IF", "EXISTS"):
        reader.expect("PARTITION")
        return DropPartition(name=name, values=_partition(reader), if_exists=True)
    if reader.accept("PARTITION"):
        return DropPartition(name=name, values=_partition(reader), if_exists=False)
    if reader.accept("COLUMNS"):
        names = reader.listed(partial(column_name, reader), LIST_LENGTH_MAX)
        return AlterTable(name=name, operations=tuple(map(DropColumn, names)))
    reader.expect("COLUMN")
    is_lenient = reader.accept_all("IF", "EXISTS")
    return AlterTable(name=name, operations=(DropColumn(column_name(reader)),), is_lenient=is_lenient)


def _alter_column(reader: Reader, name: str) -> Operation:
    if reader.accept("TYPE"):
        return WidenColumn(name, read_type(reader))
    if reader.accept("FIRST"):
        return MoveColumn(name, first=True)
    if reader.accept("AFTER"):
        return MoveColumn(name, after=column_name(reader))
    if reader.accept("DROP"):
        _refuse_default(reader)
        reader.expect("NOT")
        reader.expect("NULL")
        return DropNotNull(name)
    reader.expect("SET")
    _refuse_default(reader)
    if reader.at("NOT"):
        reader.refuse(
            reader.token,
            "a column cannot become NOT NULL: rows that are there may have no value in it;"
            " add a NOT NULL column with a default instead",
        )
    reader.expect("DATA")
    reader.expect("TYPE")
    return WidenColumn(name, read_type(reader))


def _refuse_default(reader: Reader) -> None:
    if reader.at("DEFAULT"):
        reader.refuse(
            reader.token,
            "a default stays what it is, because rows that are older than the column are read with it;"
            " add a column with another default instead",
        )


def _partition(reader: Reader) -> dict[str, str]:
    values: dict[str, str] = {}
    for token, name, value in reader.listed(partial(_partition_value, reader), LIST_LENGTH_MAX):
        if name in values:
            reader.refuse(token, f"the column {name} is given twice")
        values[name] = value
    return values


def _partition_value(reader: Reader) -> tuple[Token, str, str]:
    start, name = reader.token, column_name(reader)
    reader.expect("=")
    place, value = reader.token, literal(reader)
    if value.text is None:
        reader.refuse(place, "a partition column is never null")
    return start, name, value.text


def _is_so(operation: Operation, schema: Schema) -> bool:
    names = {name.lower() for name in schema.names}
    match operation:
        case AddColumn(column=column):
            return column.name.lower() in names
        case DropColumn(name=name):
            return name.lower() not in names
        case _:
            return False
