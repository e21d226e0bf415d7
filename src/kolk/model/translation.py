"""Rows of one version of a table's schema as rows of another, column by column and by id.

Forward it always succeeds: what the older version lacks is null or the default, what the newer one lacks is left out,
what was widened is cast. Backward, for a handle that is older than the table, a value may not fit any more; then
``SchemaChanged`` says so, and nothing is rounded or cut. Whole columns are translated, never single rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from kolk.errors import SchemaChanged
from kolk.model.defaults import default_values
from kolk.model.kinds import Kind
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema
from kolk.model.write import Action, Write, expected_columns, left_out

_REFRESH = "call table.refresh() to see the table as it is now"


def translated(rows: pa.RecordBatch, source: Schema, columns: Sequence[Column]) -> pa.RecordBatch:
    """Rows with columns of ``source``, under these columns; those that they have in common must be among the rows."""
    return _under(rows, source.by_id, columns)


def common_names(columns: Sequence[Column], source: Schema) -> list[str]:
    """The names in ``source`` of those of the columns that it has: what must be read to translate to them."""
    return [source.by_id[column.id].name for column in columns if column.id in source.by_id]


def translated_write(write: Write, source: Schema, target: Schema) -> Write:
    """A write that was made for one version as one for a later version.

    Target columns that are gone are left out, also if none is left. Of an aggregation table, columns that are new are
    none of the write's: there is nothing to add to them. But one that the write decides about is null in its rows.
    """
    if source.id == target.id:
        return write
    is_merged = target.aggregates and write.action is not Action.DELETE and write.mode is not MergeMode.OVERWRITE
    names = None
    if write.columns is not None:
        names = tuple(common_names([source.column(name) for name in write.columns], target))
        names += _decided(source, target, names) if is_merged else ()
    elif is_merged:
        common = common_names(source.columns, target)
        names = left_out(target, [*common, *_decided(source, target, common)], write.mode)
    if write.action is Action.DELETE:
        return replace(
            write, rows=translated(write.rows, source, target.key_columns), columns=names, schema_id=target.id
        )
    given = {column.id: column for column in expected_columns(source, write.action, write.columns, write.mode)}
    wanted = expected_columns(target, write.action, names, write.mode)
    return replace(write, rows=_under(write.rows, given, wanted), columns=names, schema_id=target.id)


def _decided(source: Schema, target: Schema, names: Sequence[str]) -> tuple[str, ...]:
    """The new columns that these decide about."""
    new = [column for column in target.value_columns if column.id not in source.by_id]
    return tuple(column.name for column in new if column.agg and column.agg.get("by") in names)


def _under(rows: pa.RecordBatch, source: Mapping[int, Column], columns: Sequence[Column]) -> pa.RecordBatch:
    arrays = [_translated(rows, source.get(column.id), column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.arrow for column in columns]))


def filled(column: Column, rows: int) -> pa.Array:
    """What a column holds in rows that do not have it: its default, or null."""
    if column.default is not None:
        return default_values(column.default, column.type, rows)
    if not column.nullable:
        raise SchemaChanged(
            f"the column {column.name!r} was dropped, and this handle knows it as NOT NULL without a default;"
            f" {_REFRESH}"
        )
    return pa.nulls(rows, column.type.arrow)


def _translated(rows: pa.RecordBatch, source: Column | None, column: Column) -> pa.Array:
    if source is None:
        return filled(column, rows.num_rows)
    array = rows.column(source.name)
    if source.type != column.type:
        array = _cast(array, column)
    if array.null_count and not column.nullable:
        if column.default is None:
            raise SchemaChanged(f"the column {column.name!r} may be null by now, and a value is; {_REFRESH}")
        array = pc.fill_null(array, default_values(column.default, column.type, 1)[0])
    return array


def _cast(array: pa.Array, column: Column) -> pa.Array:
    """The same values as of another type of the same family; SchemaChanged if one does not fit."""
    try:
        cast = array.cast(column.type.arrow)
    except pa.ArrowInvalid:
        raise _misfit(column) from None
    if column.type.kind is Kind.CHAR and (pc.max(pc.utf8_length(cast)).as_py() or 0) > column.type.arguments[0]:
        raise _misfit(column)
    if column.type.kind is Kind.FLOAT and not _is_same(array, cast):
        raise _misfit(column)
    return cast


def _is_same(wide: pa.Array, narrow: pa.Array) -> bool:
    """Whether no double was rounded when it became a float; Arrow itself does not say."""
    back = narrow.cast(wide.type)
    same = pc.or_(pc.equal(wide, back), pc.and_(pc.is_nan(wide), pc.is_nan(back)))
    return bool(pc.all(same).as_py() is not False)


def _misfit(column: Column) -> SchemaChanged:
    return SchemaChanged(
        f"the column {column.name!r} was widened, and a value does not fit the {column.type} that this handle knows it"
        f" as; {_REFRESH}"
    )
