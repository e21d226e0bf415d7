"""How a table's schema changes: operations as values, and one function that makes the next version of them.

Columns are known by their ids, so nothing that is stored is rewritten: a column that is added, dropped, renamed,
widened or moved is so from the next version on, and rows of earlier versions are read by id. What cannot be done that
way is refused: whatever would change the bytes of keys or the bucket of a row, and whatever an old value might not fit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from kolk.errors import InvalidSchema
from kolk.model.aggregate import Aggregate
from kolk.model.aggregation import completed
from kolk.model.kinds import Kind
from kolk.model.names import check_name, no_column, plain_text
from kolk.model.options import KV_TTL_COLUMN
from kolk.model.schema import COLUMNS_MAX, SCHEMA_ID_MAX, Column, Schema, data_type
from kolk.model.table import TableSpec
from kolk.model.types import DataType

OPERATIONS_MAX = COLUMNS_MAX


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column: first, after another one, or at the end.

    NOT NULL goes with a default only, because rows that are there need a value.
    """

    column: Column
    first: bool = False
    after: str | None = None

    def __post_init__(self) -> None:
        _make_plain(self, "after")
        if not isinstance(self.column, Column):
            raise InvalidSchema(f"a kolk.Column is added, such as Column('x', 'bigint'), not {self.column!r}")
        _check_place(self.first, self.after)


@dataclass(frozen=True, slots=True)
class DropColumn:
    """A column is no longer there. Its id is never used again, so that a later one of its name is another one."""

    name: str

    def __post_init__(self) -> None:
        _make_plain(self, "name")


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """A column under another name; keys, bucket key, version column and the column of the row TTL follow."""

    name: str
    to: str

    def __post_init__(self) -> None:
        _make_plain(self, "name")
        object.__setattr__(self, "to", check_name(self.to, "column"))


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """A column gets a type that holds every value of the old one."""

    name: str
    type: DataType

    def __init__(self, name: str, type: DataType | pa.DataType | str) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "type", data_type(type))
        _make_plain(self, "name")


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """A column gets another place in the order of columns: first, or after another one."""

    name: str
    first: bool = False
    after: str | None = None

    def __post_init__(self) -> None:
        _make_plain(self, "name", "after")
        _check_place(self.first, self.after)
        if not self.first and self.after is None:
            raise InvalidSchema(f"where is {self.name!r} to stand? Say first=True or after='another column'")


@dataclass(frozen=True, slots=True)
class DropNotNull:
    """A column may be null from now on."""

    name: str

    def __post_init__(self) -> None:
        _make_plain(self, "name")


Operation = AddColumn | DropColumn | RenameColumn | WidenColumn | MoveColumn | DropNotNull


def altered(spec: TableSpec, operations: Iterable[Operation]) -> TableSpec:
    """The table after all operations, one after the other, as the next version; InvalidSchema if one cannot be."""
    given = list(operations)
    if not 1 <= len(given) <= OPERATIONS_MAX:
        raise InvalidSchema(f"one alter has 1 to {OPERATIONS_MAX:,} operations, this one has {len(given):,}")
    if spec.schema.id >= SCHEMA_ID_MAX:
        raise InvalidSchema(
            f"the schema has had its {SCHEMA_ID_MAX:,} versions, which is all that stored rows can tell apart;"
            " make a new table and copy the rows"
        )
    draft = _Draft(spec)
    for operation in given:
        draft.apply(operation)
    return draft.finish()


class _Draft:
    """A table in the making. Confined to one call."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._columns = list(spec.schema.columns)
        self._next_id = spec.schema.next_column_id

    def apply(self, operation: Operation) -> None:
        match operation:
            case AddColumn(column=column):
                self._add(column, operation)
            case DropColumn(name=name):
                self._drop(self._column(name))
            case RenameColumn(name=name, to=to):
                self._rename(self._column(name), to)
            case WidenColumn(name=name, type=type):
                self._widen(self._column(name), type)
            case MoveColumn(name=name):
                self._move(self._column(name), operation)
            case DropNotNull(name=name):
                self._drop_not_null(self._column(name))

    def finish(self) -> TableSpec:
        """The next version, checked as a whole."""
        old = self._spec.schema
        if tuple(self._columns) == old.columns:
            raise InvalidSchema("this alter changes nothing; leave it out")
        schema = Schema(self._columns, self._names(old.primary_key), id=old.id + 1, next_column_id=self._next_id)
        options = replace(
            self._spec.options,
            version_column=self._name(self._spec.options.version_column),
            kv_ttl_column=self._name(self._spec.options.kv_ttl_column),
        )
        schema = completed(schema, options)
        _check_functions(old, schema)
        return replace(self._spec, schema=schema, bucket_key=self._names(self._spec.bucket_key), options=options)

    def _add(self, column: Column, place: AddColumn) -> None:
        self._check_free(column.name)
        if not column.nullable and column.default is None:
            raise InvalidSchema(
                f"the column {column.name!r} is NOT NULL and has no default, so rows that are there would have no value"
                " in it; give it a default, or let it be null"
            )
        self._columns.insert(self._position(place), replace(column, id=self._next_id))
        self._next_id += 1

    def _drop(self, column: Column) -> None:
        self._check_role(column, "dropped")
        if self._is(column, self._spec.options.version_column):
            raise InvalidSchema(
                f"{column.name!r} is the version column, by which the merge engine decides; it cannot be dropped"
            )
        if self._is(column, self._spec.options.kv_ttl_column):
            raise InvalidSchema(
                f"{column.name!r} is the {KV_TTL_COLUMN}, which holds the time of every row; it cannot be dropped"
            )
        self._check_decides(column)
        if len(self._columns) == 1:
            raise InvalidSchema(
                f"{column.name!r} is the only column, and a table has one at least; drop the table instead"
            )
        self._columns.remove(column)

    def _check_decides(self, column: Column) -> None:
        """Whether another column is chosen by this one."""
        for other in self._columns:
            if other.agg is not None and other.agg.get("by") == column.name:
                raise InvalidSchema(
                    f"{column.name!r} decides about {other.name!r}, which is {other.agg}; drop that one first"
                )

    def _rename(self, column: Column, to: str) -> None:
        if self._is_partition(column):
            raise InvalidSchema(f"{column.name!r} is a partition column; it cannot be renamed")
        if to != column.name:
            self._check_free(to, but=column)
        self._swap(column, replace(column, name=to))
        for other in self._columns:
            if other.agg is not None and other.agg.get("by") == column.name:
                parameters = {**dict(other.agg.parameters), "by": to}
                self._swap(other, replace(other, agg=Aggregate.make(other.agg.name, parameters)))

    def _widen(self, column: Column, type: DataType) -> None:
        if column.type == type:
            raise InvalidSchema(f"the column {column.name!r} is a {type.shown} already")
        self._check_role(column, "widened")
        if not is_wider(column.type, type):
            raise InvalidSchema(
                f"the column {column.name!r} is a {column.type.shown} and cannot become a {type.shown}, which does not"
                f" hold all its values alike; it can become {_wider_types(column.type)}. Add a column instead"
            )
        self._swap(column, replace(column, type=type))

    def _move(self, column: Column, place: MoveColumn) -> None:
        if place.after == column.name:
            raise InvalidSchema(f"the column {column.name!r} cannot stand after itself")
        self._columns.remove(column)
        self._columns.insert(self._position(place), column)

    def _drop_not_null(self, column: Column) -> None:
        if column.id in self._ids(self._spec.schema.primary_key):
            raise InvalidSchema(f"{column.name!r} is part of the primary key, which is never null")
        if self._is_partition(column):
            raise InvalidSchema(f"{column.name!r} is a partition column, which is never null")
        if column.nullable:
            raise InvalidSchema(f"the column {column.name!r} may be null already")
        self._swap(column, replace(column, nullable=True))

    # --- what a column stands for; by id, since names may have changed in this very alter

    def _check_role(self, column: Column, what: str) -> None:
        """Keys, buckets and partitions are made of a column's values as they are."""
        if column.id in self._ids(self._spec.schema.primary_key):
            raise InvalidSchema(
                f"{column.name!r} is part of the primary key, whose bytes find the rows that are there; it cannot be"
                f" {what}. It can be renamed and moved; for another key make a new table and copy the rows"
            )
        if column.id in self._ids(self._spec.bucket_key):
            raise InvalidSchema(
                f"{column.name!r} is part of the bucket key, which has chosen the bucket of every row; it cannot be"
                f" {what}. It can be renamed and moved"
            )
        if self._is_partition(column):
            raise InvalidSchema(f"{column.name!r} is a partition column; it cannot be {what}")

    def _is_partition(self, column: Column) -> bool:
        """Partitions are named by the names and values of these columns, so both stay as they are."""
        return column.id in self._ids(self._spec.partition_by)

    def _is(self, column: Column, name: str | None) -> bool:
        """Whether it is the column that an option names, if it names one."""
        return name is not None and column.id in self._ids([name])

    def _ids(self, names: Iterable[str]) -> set[int]:
        """The ids of columns that the table names, under their names before this alter."""
        return {self._spec.schema.column(name).id for name in names}

    def _names(self, names: Sequence[str]) -> tuple[str, ...]:
        """The same columns under their names after it."""
        now = {column.id: column.name for column in self._columns}
        return tuple(now[self._spec.schema.column(name).id] for name in names)

    def _name(self, name: str | None) -> str | None:
        """The same for the column that an option names, if it names one."""
        return None if name is None else self._names([name])[0]

    # --- columns by name and place

    def _column(self, name: str) -> Column:
        found = next((column for column in self._columns if column.name == name), None)
        if found is None:
            raise InvalidSchema(no_column(name, [column.name for column in self._columns]))
        return found

    def _check_free(self, name: str, but: Column | None = None) -> None:
        """Names differ in more than case; only a column itself may change its own case."""
        for column in self._columns:
            if column is not but and column.name.lower() == name.lower():
                raise InvalidSchema(f"there is a column {column.name!r} already; choose another name than {name!r}")

    def _position(self, place: AddColumn | MoveColumn) -> int:
        if place.first:
            return 0
        return len(self._columns) if place.after is None else self._columns.index(self._column(place.after)) + 1

    def _swap(self, old: Column, new: Column) -> None:
        self._columns[self._columns.index(old)] = new


def _check_functions(old: Schema, new: Schema) -> None:
    """A function is known here when it is given to a column, or the column to another type; to drop one it need not."""
    for column in new.columns:
        before = old.by_id.get(column.id)
        if before is None or (before.type, before.agg) != (column.type, column.agg):
            column.check_function()


def _make_plain(operation: object, *fields: str) -> None:
    """Let these names be plain text, if they are text; that no column has another name, the table says."""
    for field in fields:
        name = getattr(operation, field)
        if isinstance(name, str):
            object.__setattr__(operation, field, plain_text(name))


def _check_place(first: bool, after: str | None) -> None:
    if first and after is not None:
        raise InvalidSchema("a column is first or after another one, not both")


# --- widening

_INTEGERS = (Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT)
_FLOATS = (Kind.FLOAT, Kind.DOUBLE)


def is_wider(old: DataType, new: DataType) -> bool:
    """Whether every value of the old type is the same value of the new one, and the types differ."""
    if old == new:
        return False
    for ranks in (_INTEGERS, _FLOATS):
        if old.kind in ranks and new.kind in ranks:
            return ranks.index(new.kind) > ranks.index(old.kind)
    if old.kind is Kind.DECIMAL and new.kind is Kind.DECIMAL:
        return new.arguments[1] == old.arguments[1] and new.arguments[0] > old.arguments[0]
    if old.kind is Kind.CHAR:
        return new.kind is Kind.STRING or (new.kind is Kind.CHAR and new.arguments[0] > old.arguments[0])
    return False


def _wider_types(type: DataType) -> str:
    """What a type can become, for an error."""
    wider: list[str] = []
    for ranks in (_INTEGERS, _FLOATS):
        if type.kind in ranks:
            wider = [kind.value for kind in ranks[ranks.index(type.kind) + 1 :]]
    if type.kind is Kind.DECIMAL and type.arguments[0] < 38:
        wider = [f"decimal(p, {type.arguments[1]}) with p from {type.arguments[0] + 1} to 38"]
    elif type.kind is Kind.CHAR:
        wider = ["a longer char", "string"]
    return " or ".join(wider) or "nothing else"
