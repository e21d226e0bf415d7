"""Hypothesis strategies for alters: operations that a table can take, so that laws are tested over many versions.

Only what ``kolk.model.evolution`` allows is drawn; what it refuses has tests of its own. Names are drawn anew for each
column, with a few that come back after they were dropped, because ids and names must not be mixed up.
"""

from dataclasses import replace

from hypothesis import strategies as st

from kolk.model.evolution import (
    AddColumn,
    DropColumn,
    DropNotNull,
    MoveColumn,
    Operation,
    RenameColumn,
    WidenColumn,
    altered,
    is_wider,
)
from kolk.model.ids import TableId
from kolk.model.kinds import Kind
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.model.types import DataType

_DEFAULTS: dict[Kind, tuple[str | None, ...]] = {
    Kind.BOOLEAN: (None, "true"),
    Kind.TINYINT: (None, "7"),
    Kind.SMALLINT: (None, "-1"),
    Kind.INT: (None, "0"),
    Kind.BIGINT: (None, "1099511627776"),
    Kind.FLOAT: (None, "0.1"),
    Kind.DOUBLE: (None, "0.1", "1e300"),
    Kind.DECIMAL: (None, "0"),
    Kind.CHAR: (None, "", "é"),
    Kind.STRING: (None, "it's"),
    Kind.DATE: (None, "1969-07-20"),
    Kind.TIME: (None, "01:02:03"),
    Kind.TIMESTAMP: (None, "2026-11-15 12:00:00"),
    Kind.TIMESTAMP_LTZ: (None, "2026-11-15 12:00:00Z"),
}
_WIDER = [DataType.parse(text) for text in ("smallint", "int", "bigint", "double", "char(30)", "string")]
_NAMES = ("x", "y", "Zeta", "w-1")


def added_columns(types: st.SearchStrategy[DataType]) -> st.SearchStrategy[Column]:
    """A column that a table with rows can get: nullable, or with a default."""

    def of(type: DataType) -> st.SearchStrategy[Column]:
        defaults = st.sampled_from(_DEFAULTS.get(type.kind, (None,)))
        return st.tuples(st.sampled_from(_NAMES), defaults, st.booleans()).map(
            lambda drawn: Column(drawn[0], type, drawn[1] is None or drawn[2], default=drawn[1])
        )

    return types.flatmap(of)


@st.composite
def operations(draw: st.DrawFn, spec: TableSpec, types: st.SearchStrategy[DataType]) -> Operation:
    """One operation that this table can take."""
    schema, names = spec.schema, list(spec.schema.names)
    kept = {*schema.primary_key, *spec.bucket_key, *spec.partition_by}
    named = {spec.options.version_column, spec.options.kv_ttl_column}
    free = [name for name in _NAMES if name.lower() not in {one.lower() for one in names}]
    loose = [column for column in schema.columns if column.name not in kept | named]
    choices: list[st.SearchStrategy[Operation]] = [_moves(names)] if len(names) > 1 else []
    if free:
        added = added_columns(types).flatmap(
            lambda column: st.builds(
                AddColumn,
                st.sampled_from(free).map(lambda name: replace(column, name=name)),
                after=st.none() | st.sampled_from(names),
            )
        )
        choices += [added, st.builds(RenameColumn, st.sampled_from(names), st.sampled_from(free))]
    if loose and len(names) > 1:
        choices.append(st.builds(DropColumn, st.sampled_from([column.name for column in loose])))
    for column in schema.columns:
        if column.name in kept:
            continue
        if not column.nullable:
            choices.append(st.just(DropNotNull(column.name)))
        choices += [st.just(WidenColumn(column.name, type)) for type in _wider_types(column.type)]
    return draw(st.one_of(choices))


@st.composite
def histories(
    draw: st.DrawFn, schema: Schema, types: st.SearchStrategy[DataType], *, max_versions: int = 5
) -> list[Schema]:
    """A schema and the versions that follow it, one or two operations apart."""
    spec = TableSpec.make("t", schema)
    versions = [schema]
    for _ in range(draw(st.integers(0, max_versions - 1))):
        spec = draw(evolved(spec, types))[1]
        versions.append(spec.schema)
    return versions


@st.composite
def evolved(draw: st.DrawFn, spec: TableSpec, types: st.SearchStrategy[DataType]) -> tuple[list[Operation], TableSpec]:
    """One or two operations, and the table after them."""
    first = draw(operations(spec, types))
    outcome = altered(spec, [first])
    if not draw(st.booleans()):
        return [first], outcome
    second = draw(operations(outcome, types))
    both = [first, second]
    together = replace(altered(outcome, [second]).schema, id=outcome.schema.id)
    return (both, altered(spec, both)) if together.columns != spec.schema.columns else ([first], outcome)


def table_of(spec: TableSpec) -> TableInfo:
    """The same as a table that exists."""
    return TableInfo(id=TableId(1), spec=spec, created_ms=0)


def _moves(names: list[str]) -> st.SearchStrategy[Operation]:
    """A move that changes the order: the last column to the front, or one of the others to the end."""
    to_end = st.sampled_from(names[:-1]).map(lambda name: MoveColumn(name, after=names[-1]))
    return st.one_of(st.just(MoveColumn(names[-1], first=True)), to_end)


def _wider_types(type: DataType) -> list[DataType]:
    found = [wider for wider in _WIDER if is_wider(type, wider)]
    if type.kind is Kind.DECIMAL and type.arguments[0] < 38:
        found.append(DataType(Kind.DECIMAL, (type.arguments[0] + 1, type.arguments[1])))
    return found
