"""The aggregate functions of a table as a whole: from options to its schema, and whether every column has one.

``fields.<column>.agg`` and ``fields.<column>.<function>.<parameter>`` are options in what people write only; what they
say is part of the schema. Every column outside the key of an aggregation table names its function, or
``fields.default.agg`` names one for all that do not.
"""

from collections.abc import Mapping
from dataclasses import replace

from kolk.errors import InvalidSchema
from kolk.model.aggregate import Aggregate, canonical
from kolk.model.functions import function
from kolk.model.options import FALLBACK, MERGE_ENGINE, MergeEngine, TableOptions
from kolk.model.schema import Column, Schema

_FIELDS = "fields."
_AGG = "agg"


def declared(schema: Schema, options: Mapping[str, str]) -> tuple[Schema, dict[str, str]]:
    """The schema with the functions that options name, and the options that are left.

    A table whose columns have aggregate functions is an aggregation table, unless it is said to be another.
    """
    rest = {key: value for key, value in options.items() if not key.startswith(_FIELDS) or key == FALLBACK}
    given = _by_column({key: value for key, value in options.items() if key not in rest}, schema)
    columns = [_declared(column, given.get(column.name, {})) for column in schema.columns]
    schema = Schema(columns, schema.primary_key, id=schema.id, next_column_id=schema.next_column_id)
    # What is stored may name a function that nobody knows here; what is made may not.
    named = [column.agg.name for column in columns if column.agg is not None]
    for name in [*named, Aggregate.parse(rest[FALLBACK]).name] if FALLBACK in rest else named:
        function(name)
    _check_keyed(schema)
    if MERGE_ENGINE not in rest and schema.primary_key and (FALLBACK in rest or named):
        rest[MERGE_ENGINE] = MergeEngine.AGGREGATION.value
    return schema, rest


def completed(schema: Schema, options: TableOptions) -> Schema:
    """The schema with the fallback where a column names no function; InvalidSchema if that leaves one without."""
    named = [column for column in schema.columns if column.agg is not None]
    if options.merge_engine is not MergeEngine.AGGREGATION:
        if named:
            raise InvalidSchema(
                f"the column {named[0].name!r} has the aggregate function {named[0].agg}, which goes with"
                f" {MERGE_ENGINE}=aggregation; this table's merge engine is {options.merge_engine.value}"
            )
        return schema
    missing = [column for column in schema.value_columns if column.agg is None]
    if not missing:
        return schema
    if options.fallback is None:
        names = ", ".join(repr(column.name) for column in missing[:10])
        raise InvalidSchema(
            f"every column of an aggregation table outside its key names its aggregate function, and {names} does not;"
            f" give it one (agg='sum', or last_value to keep the newest), or name one for all with {FALLBACK}"
        )
    fallback = options.fallback
    filled = {column.name: replace(column, agg=fallback) for column in missing}
    for column in filled.values():
        column.check_function()
    columns = [filled.get(column.name, column) for column in schema.columns]
    return Schema(columns, schema.primary_key, id=schema.id, next_column_id=schema.next_column_id)


def field_options(schema: Schema) -> dict[str, str]:
    """The options that say what the schema does: ``declared`` reads them back."""
    found: dict[str, str] = {}
    for column in schema.columns:
        if column.agg is not None:
            found[f"{_FIELDS}{column.name}.{_AGG}"] = column.agg.name
            for name, value in column.agg.parameters:
                found[f"{_FIELDS}{column.name}.{column.agg.name}.{name}"] = value
    return found


def _check_keyed(schema: Schema) -> None:
    """Say it of the column, which somebody wrote, and not of the merge engine, which follows from it."""
    if schema.aggregates and not schema.primary_key:
        column = next(column for column in schema.columns if column.agg is not None)
        raise InvalidSchema(f"{column} needs a PRIMARY KEY, for rows of one key are aggregated; this table has none")


def _by_column(options: Mapping[str, str], schema: Schema) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for key, value in options.items():
        parts = key.removeprefix(_FIELDS).split(".")
        is_agg = len(parts) == 2 and parts[1] == _AGG
        if not is_agg and len(parts) != 3:
            raise InvalidSchema(
                f"unknown table option {key[:100]!r}; aggregate functions are fields.<column>.agg and"
                " fields.<column>.<function>.<parameter>"
            )
        if parts[0] not in schema.names:
            raise InvalidSchema(f"{key[:100]}: {parts[0]!r} is not a column; they are {', '.join(schema.names)}")
        found.setdefault(parts[0], {})[".".join(parts[1:])] = value
    return found


def _declared(column: Column, options: Mapping[str, str]) -> Column:
    """A column with the function and the parameters that its options name, in any order."""
    if not options:
        return column
    named = options.get(_AGG)
    if named is not None and not named.strip():
        raise InvalidSchema(f"fields.{column.name}.agg is empty; name a function, such as sum")
    if named is None and column.agg is None:
        key = next(iter(options))
        raise InvalidSchema(f"fields.{column.name}.{key} goes with fields.{column.name}.agg, which is missing")
    stated = column.agg if named is None else Aggregate.parse(named)
    assert stated is not None
    if column.agg is not None and function(stated.name).name != column.agg.name:
        raise InvalidSchema(
            f"the column {column.name!r} is given two aggregate functions, {column.agg.name} and {stated.name}"
        )
    known = function(stated.name)
    parameters = dict(column.agg.parameters if column.agg is not None else ()) | dict(stated.parameters)
    for key, value in options.items():
        if key == _AGG:
            continue
        prefix, parameter = key.split(".")
        if canonical(prefix) not in (known.name, *known.aliases):
            raise InvalidSchema(
                f"fields.{column.name}.{key[:100]} is a parameter of {prefix[:60]!r}, but the column's aggregate"
                f" function is {stated.name}"
            )
        if parameters.setdefault(canonical(parameter), value) != value:
            raise InvalidSchema(f"fields.{column.name}.{key[:100]} is given twice and differently")
    return replace(column, agg=str(Aggregate.make(stated.name, parameters)))
