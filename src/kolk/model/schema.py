"""A table's schema: columns with stable ids, and the primary key.

Columns are matched by id, never by position, in everything that is stored; the ids never change and are
never reused. A ``Schema`` is frozen and checked when made, so whoever holds one may trust it. It is one version of a
table's schema; how one version becomes the next is ``kolk.model.evolution``'s business. This module does not know
tables, options or bytes.
"""

import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from kolk.errors import InvalidRows, InvalidSchema, UnknownAggregate
from kolk.model.aggregate import Aggregate
from kolk.model.defaults import default_literal, default_text
from kolk.model.functions import Function, function, is_function, is_own
from kolk.model.names import check_name, no_column, plain_text
from kolk.model.types import DataType

COLUMNS_MAX = 1_600
"""The most columns of a table, the fields within nested ones counted as well: the catalog's record holds them all."""
PRIMARY_KEY_COLUMNS_MAX = 32
CHANGE_COLUMN_NAMES = ("_change_type", "_log_offset", "_commit_timestamp", "_bucket")
"""The columns that a changelog has besides the table's."""
DEFAULTS_BYTES_MAX = 50_000
"""The most that the defaults and the aggregate functions of a table take together, as UTF-8: the catalog's record holds
them all, too."""
SCHEMA_ID_MAX = 2**16 - 1
"""The last version of a table's schema: a stored row names its version in two bytes."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``Column("pv", "bigint", default=0)``, ``Column("pv", "bigint", agg="sum")``.

    The schema gives the id. ``default`` is kept as text, whatever it was given as; see ``kolk.model.defaults``.
    ``agg`` is the aggregate function of a column of an aggregation table; see ``kolk.model.functions``.
    """

    name: str
    type: DataType
    nullable: bool = True
    id: int = -1
    default: str | None = None
    agg: Aggregate | None = None

    def __init__(
        self,
        name: str,
        type: DataType | pa.DataType | str,
        nullable: bool = True,
        *,
        default: object = None,
        agg: "str | Aggregate | None" = None,
        params: Mapping[str, object] | None = None,
        id: int = -1,
    ) -> None:
        object.__setattr__(self, "name", check_name(name, "column"))
        object.__setattr__(self, "type", data_type(type))
        object.__setattr__(self, "nullable", bool(nullable))
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "default", None if default is None else default_text(default, self.type, name))
        object.__setattr__(self, "agg", _aggregate(agg, params, self.type, name))

    @property
    def function(self) -> Function | None:
        """The aggregate function; UnknownAggregate if it is one that nobody has registered here."""
        return None if self.agg is None else function(self.agg.name)

    def check_function(self) -> None:
        """Raise UnknownAggregate if its function is not known here, or not in the version that it was made with."""
        if self.agg is None:
            return
        try:
            if function(self.agg.name).check(self.agg, self.type) != self.agg:
                raise UnknownAggregate("it was made where nobody had registered it; register it there first")
        except InvalidSchema as error:
            raise _renewed(error, f"the aggregate function of the column {self.name!r}: {error}") from None

    @property
    def is_retractable(self) -> bool:
        """Whether what a put gives can be taken back."""
        function = self.function
        return self.agg is not None and function is not None and function.is_retractable(function.values_of(self.agg))

    @property
    def input(self) -> DataType:
        """The type of what a put gives: the column's own, unless its function makes something else of it."""
        if self.agg is None:
            return self.type
        return function(self.agg.name).input(self.agg, self.type)

    @property
    def arrow(self) -> pa.Field:
        """The column as an Arrow field."""
        return pa.field(self.name, self.type.arrow, nullable=self.nullable)

    def __str__(self) -> str:
        default = "" if self.default is None else f" DEFAULT {default_literal(self.default, self.type)}"
        agg = "" if self.agg is None else f" {self.agg.ddl}"
        return f"{self.name} {self.type}{agg}{'' if self.nullable else ' NOT NULL'}{default}"


@dataclass(frozen=True)
class Schema:
    """Columns in order, and the names of the primary key (empty for a log table).

    ``id`` numbers the versions of one table's schema; a new table's schema is version 1. ``next_column_id`` is greater
    than every column id that any version had, so that none is used twice.
    """

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    id: int = 1
    next_column_id: int = 0

    def __init__(
        self,
        columns: Iterable[Column],
        primary_key: Sequence[str] | str = (),
        *,
        id: int = 1,
        next_column_id: int = 0,
    ) -> None:
        key = _names(primary_key)
        given = list(columns) if isinstance(columns, Iterable) else columns  # a generator is read once
        numbered = _numbered(_columns(given), key, next_column_id)
        object.__setattr__(self, "columns", numbered)
        object.__setattr__(self, "primary_key", key)
        object.__setattr__(self, "id", id)
        last = max((column.id for column in numbered), default=-1)
        object.__setattr__(self, "next_column_id", max(next_column_id, last + 1))
        _check(self)

    @staticmethod
    def from_arrow(
        arrow: pa.Schema, primary_key: Sequence[str] | str = (), *, agg: "Mapping[str, str | Aggregate] | None" = None
    ) -> "Schema":
        """A schema with the columns of an Arrow schema; ``agg`` names their functions: ``{"pv": "sum"}``."""
        if not isinstance(arrow, pa.Schema):
            raise InvalidSchema(f"from_arrow takes a pyarrow.Schema, not a {type(arrow).__name__}")
        if agg is not None and not isinstance(agg, Mapping):
            raise InvalidSchema("agg is a dict of columns and their aggregate functions, such as {'pv': 'sum'}")
        functions = {} if agg is None else dict(agg)
        columns = [
            Column(field.name, DataType.from_arrow(field.type), field.nullable, agg=functions.pop(field.name, None))
            for field in arrow
        ]
        if functions:
            raise InvalidSchema(
                f"agg names {next(iter(functions))!r}, which is not a column; they are {', '.join(arrow.names)}"
            )
        return Schema(columns, primary_key)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The whole row as an Arrow schema."""
        return pa.schema([column.arrow for column in self.columns])

    def arrow_of(self, names: Sequence[str] | None) -> pa.Schema:
        """The columns named, in that order, as an Arrow schema; all of them without names."""
        return self.arrow if names is None else pa.schema([self.column(name).arrow for name in names])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        """The primary key's columns, in key order."""
        return tuple(self.column(name) for name in self.primary_key)

    @cached_property
    def value_columns(self) -> tuple[Column, ...]:
        """The columns outside the primary key, in schema order."""
        return tuple(column for column in self.columns if column.name not in self.primary_key)

    @cached_property
    def aggregates(self) -> bool:
        """Whether it is of an aggregation table: columns have functions."""
        return any(column.agg is not None for column in self.columns)

    @cached_property
    def _registered(self) -> tuple[Column, ...]:
        """The columns whose functions are not Kolk's own, or were not when they were made."""
        with_functions = [(column, column.agg) for column in self.columns if column.agg is not None]
        return tuple(column for column, agg in with_functions if not is_own(agg.name) or agg.get("version") is not None)

    def check_known(self) -> None:
        """Raise UnknownAggregate if a column's function is not known here, so that nobody can tell what it holds."""
        for column in self._registered:
            if column.agg is not None and not is_function(column.agg.name):
                column.check_function()

    def check_functions(self) -> None:
        """The same for a function of another version, too: what is written must go on with what is stored."""
        for column in self._registered:
            column.check_function()

    @cached_property
    def input_columns(self) -> tuple[Column, ...]:
        """The columns as a put gives them: of the type that their functions take, with nulls where those count them."""
        return tuple(column if column.agg is None else _input(column) for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of this name; an error that lists the names if there is none."""
        try:
            return self.columns[self._positions[name]]
        except KeyError:
            raise InvalidRows(no_column(name, self.names)) from None

    @cached_property
    def by_id(self) -> dict[int, Column]:
        """The columns by their ids."""
        return {column.id: column for column in self.columns}

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {column.name: position for position, column in enumerate(self.columns)}

    def __str__(self) -> str:
        key = f", PRIMARY KEY ({', '.join(self.primary_key)})" if self.primary_key else ""
        return f"({', '.join(map(str, self.columns))}{key})"

    def __repr__(self) -> str:
        return f"<kolk.Schema {self}>"


def data_type(given: object) -> DataType:
    """A column type in any of the forms that people give it in."""
    if isinstance(given, str):
        return DataType.parse(given)
    if isinstance(given, pa.DataType):
        return DataType.from_arrow(given)
    if isinstance(given, DataType):
        return given
    raise InvalidSchema(f"a column type is text such as 'bigint' or an Arrow type, not {given!r}")


def _names(given: object) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    texts = [plain_text(name) for name in names if isinstance(name, str)]
    if len(texts) < len(names):
        raise InvalidSchema(f"primary_key is a list of column names, not {given!r}")
    return tuple(texts)


def _columns(given: object) -> tuple[Column, ...]:
    columns = [column for column in given if isinstance(column, Column)] if isinstance(given, Iterable) else []
    if not isinstance(given, Iterable) or len(columns) < len(list(given)):
        raise InvalidSchema("a schema is made of kolk.Column values: Schema([Column('id', 'bigint'), ...])")
    return tuple(columns)


def _aggregate(given: object, params: object, type: DataType, name: str) -> Aggregate | None:
    """An aggregate as it is kept. One that was stored is kept even if nobody knows it, or only in another version, so
    that the table can be seen; whoever wants to use it is told."""
    if given is None:
        if params is not None and _mapping(params):
            raise InvalidSchema(f"the column {name!r} has parameters, but no aggregate function; give agg, too")
        return None
    try:
        if isinstance(given, Aggregate):
            aggregate = given
            if not is_function(aggregate.name) or aggregate.get("version") is not None:
                return aggregate
        else:
            aggregate = Aggregate.parse(given)  # pyright: ignore[reportArgumentType] - it refuses what is no text
        if params is not None:
            aggregate = Aggregate.make(aggregate.name, {**dict(aggregate.parameters), **_mapping(params)})
        return function(aggregate.name).check(aggregate, type)
    except InvalidSchema as error:
        raise _renewed(error, f"the aggregate function of the column {name!r}: {error}") from None


def _renewed(error: InvalidSchema, message: str) -> InvalidSchema:
    return builtins.type(error)(message)


def _mapping(params: object) -> dict[str, object]:
    if not isinstance(params, Mapping):
        raise InvalidSchema("params is a dict of parameters and their values")
    return {str(key): value for key, value in params.items()}


def _input(column: Column) -> Column:
    assert column.function is not None
    nullable = column.nullable or column.function.is_total
    return Column(column.name, column.input, nullable, id=column.id)


def _numbered(columns: tuple[Column, ...], key: tuple[str, ...], next_id: int) -> tuple[Column, ...]:
    """Give fresh ids where there are none; key columns are never null."""
    keys = frozenset(key)
    next_id = max(next_id, *(column.id + 1 for column in columns), 0)
    numbered: list[Column] = []
    for column in columns:
        if column.id < 0:
            column, next_id = replace(column, id=next_id), next_id + 1
        numbered.append(replace(column, nullable=False) if column.name in keys else column)
    return tuple(numbered)


def _check(schema: Schema) -> None:
    names = schema.names
    if not 1 <= len(names) <= COLUMNS_MAX:
        raise InvalidSchema(f"a table has 1 to {COLUMNS_MAX} columns, this one has {len(names)}")
    nested = sum(column.type.size for column in schema.columns)
    if len(names) + nested > COLUMNS_MAX:
        raise InvalidSchema(
            f"a table has at most {COLUMNS_MAX} columns and fields of nested types together, this one has"
            f" {len(names)} and {nested}"
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidSchema(f"column names must differ; given twice: {', '.join(twice)}")
    taken = [name for name in names if name.lower() in CHANGE_COLUMN_NAMES]
    if taken:
        raise InvalidSchema(f"the name {taken[0]!r} is taken: the changelog has a column of that name")
    if len({name.lower() for name in names}) < len(names):
        raise InvalidSchema("column names must differ in more than case: Spark does not tell them apart")
    if len({column.id for column in schema.columns}) < len(names):
        raise InvalidSchema("column ids must differ")
    texts = [text for column in schema.columns for text in (column.default, str(column.agg or "")) if text]
    if sum(len(text.encode()) for text in texts) > DEFAULTS_BYTES_MAX:
        raise InvalidSchema(
            f"the defaults and aggregate functions of a table take at most {DEFAULTS_BYTES_MAX:,} bytes together"
        )
    _check_key(schema)
    for column in schema.columns:
        if column.agg is not None and (by := column.agg.get("by")) is not None:
            _check_by(schema, column, by)


def _check_by(schema: Schema, column: Column, by: str) -> None:
    """The column that decides holds the greatest, or least, that it has seen: there is nothing else to compare with."""
    assert column.agg is not None
    extreme = "max" if column.agg.name == "max_by" else "min"
    decider = schema.column(by) if by in schema.names else None
    if decider is None or decider.agg is None or decider.agg.name != extreme:
        raise InvalidSchema(
            f"the column {column.name!r} is {column.agg}, so {by!r} must be a column with the aggregate function"
            f" {extreme}, which keeps the value to compare with"
        )


def _check_key(schema: Schema) -> None:
    names = schema.names
    if len(schema.primary_key) > PRIMARY_KEY_COLUMNS_MAX:
        raise InvalidSchema(f"a primary key has at most {PRIMARY_KEY_COLUMNS_MAX} columns")
    if len(set(schema.primary_key)) < len(schema.primary_key):
        raise InvalidSchema("the primary key names a column twice")
    for name in schema.primary_key:
        if name not in names:
            raise InvalidSchema(f"the primary key column {name!r} is not a column; they are {', '.join(names)}")
        type = schema.column(name).type
        if schema.column(name).agg is not None:
            raise InvalidSchema(
                f"the primary key column {name!r} has the aggregate function {schema.column(name).agg}; a key is never"
                " merged, so leave it out"
            )
        if schema.column(name).default is not None:
            raise InvalidSchema(
                f"the primary key column {name!r} has a default; every row gives its key, so leave it out"
            )
        if type.is_nested:
            raise InvalidSchema(
                f"{name!r} is a {type.shown} and cannot be a primary key: nested values have no order;"
                " use scalar columns"
            )
        if type.is_floating:
            raise InvalidSchema(
                f"{name!r} is a {type} and cannot be a primary key: NaN and -0.0 have no one identity;"
                " use a decimal or a bigint"
            )
