"""A table as a dict: the slow, obvious twin that says what Kolk should answer.

One row at a time, in plain Python, with no thought for speed. Tests drive a table and its model side by side and
compare rows and changelog; so may users who test their own pipelines.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from kolk.errors import SchemaChanged
from kolk.model.defaults import default_values
from kolk.model.kinds import Kind
from kolk.model.options import ChangelogImage, DeleteBehavior, MergeEngine, TableOptions
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType
from kolk.testing.aggregates import merged_state, state_after, state_of

Row = dict[str, Any]
Change = tuple[str, Row]


def plain_rows(batch: pa.RecordBatch | pa.Table) -> list[Row]:
    """The rows as dicts of values that compare exactly: times as numbers, floats as their bits, maps as pairs."""
    columns = {name: _plain(batch.column(name)) for name in batch.schema.names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    if pt.is_list(array.type) or pt.is_map(array.type):
        return [_plain(value.values) if value.is_valid else None for value in array]
    if pt.is_struct(array.type):
        fields = dict(zip((field.name for field in array.type), map(_plain, array.flatten()), strict=True))
        rows = [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]
        return [row if value.is_valid else None for row, value in zip(rows, array, strict=True)]
    if pt.is_floating(array.type):
        return [None if value is None else struct.pack("<d", value) for value in array.to_pylist()]
    if pt.is_temporal(array.type):
        wide = array.type.bit_width == 64
        return array.cast(pa.int64() if wide else pa.int32()).to_pylist()
    return array.to_pylist()


def default_of(column: Column) -> Any:
    """The default of a column as a Python value; None if it has none."""
    return None if column.default is None else default_values(column.default, column.type, 1)[0].as_py()


def translated_row(row: Row, source: Schema, target: Schema) -> Row:
    """A row of one version of a schema as one of another, column by column; SchemaChanged if a value does not fit."""
    known = {column.id: column for column in source.columns}
    found: Row = {}
    for column in target.columns:
        value = row[known[column.id].name] if column.id in known else default_of(column)
        if value is None and not column.nullable:
            value = default_of(column)
        if value is None and not column.nullable:
            raise SchemaChanged(f"{column.name} is never null")
        if column.id in known and not _fits(value, column.type):
            raise SchemaChanged(f"{value!r} is no {column.type}")
        found[column.name] = value
    return found


def _fits(value: Any, type: DataType) -> bool:
    """Whether a value of a type of the same family is one of this type."""
    if value is None:
        return True
    if type.kind is Kind.CHAR:
        return len(value) <= type.arguments[0]
    if type.kind is Kind.FLOAT:
        return value != value or struct.unpack("<f", struct.pack("<f", value))[0] == value
    if type.kind is Kind.DECIMAL:
        return len(value.as_tuple().digits) <= type.arguments[0]
    bits = {Kind.TINYINT: 7, Kind.SMALLINT: 15, Kind.INT: 31}.get(type.kind)
    return bits is None or -(2**bits) <= value < 2**bits


class TableModel:
    """What a primary-key table holds. Each call answers the net changes, by key, that the changelog should show."""

    def __init__(self, schema: Schema, options: TableOptions) -> None:
        self.rows: dict[tuple[Any, ...], Row] = {}
        self._schema = schema
        self._options = options

    def upsert(
        self,
        rows: Iterable[Row],
        targets: Sequence[str] | None = None,
        *,
        overwrite: bool = False,
        are_states: bool = False,
    ) -> list[Change]:
        """Put rows, one after the other."""
        if self._options.merge_engine is MergeEngine.AGGREGATION and not overwrite:
            return self._aggregate([("+I", row) for row in rows], targets, are_states)
        before = dict(self.rows)
        touched: set[tuple[Any, ...]] = set()
        for row in rows:
            key = self._key(row)
            touched.add(key)
            new = self._merged(self.rows.get(key), row, targets, overwrite)
            if new is not None:
                self.rows[key] = new
        plain = self._options.merge_engine is MergeEngine.DEFAULT or overwrite
        if self._options.changelog_image is ChangelogImage.WAL and targets is None and plain:
            return [("+U", self.rows[key]) for key in sorted(touched)]
        return self._changes(before)

    def delete(
        self, keys: Iterable[Row], targets: Sequence[str] | None = None, *, overwrite: bool = False
    ) -> list[Change]:
        """Delete rows, or null their target columns."""
        before = dict(self.rows)
        if self._options.delete_behavior is DeleteBehavior.IGNORE and not overwrite:
            return []
        for row in keys:
            key = self._key(row)
            old = self.rows.get(key)
            if old is None:
                continue
            nulled = {**old, **dict.fromkeys(targets or ())}
            left = [name for name in nulled if name not in self._schema.primary_key and nulled[name] is not None]
            if targets is None or not left:
                del self.rows[key]
            else:
                self.rows[key] = nulled
        return self._changes(before)

    def change(
        self,
        changes: Iterable[Change],
        targets: Sequence[str] | None = None,
        *,
        overwrite: bool = False,
        are_states: bool = False,
    ) -> list[Change]:
        """Put the changes of a changelog, one after the other; an aggregation table takes back what goes."""
        if self._options.merge_engine is MergeEngine.AGGREGATION and not overwrite:
            return self._aggregate(changes, targets, are_states)
        before = dict(self.rows)
        for kind, row in changes:
            if kind == "-D":
                self.delete([row], targets, overwrite=overwrite)
            elif kind != "-U":
                self.upsert([row], targets, overwrite=overwrite)
        return self._changes(before)

    def alter(self, schema: Schema, options: TableOptions) -> None:
        """Go on in another version of the schema; the changelog shows nothing of it."""
        self.rows = {key: translated_row(row, self._schema, schema) for key, row in self.rows.items()}
        self._schema = schema
        self._options = options

    def clear(self) -> list[Change]:
        """Remove everything."""
        before = dict(self.rows)
        self.rows.clear()
        return self._changes(before)

    def _aggregate(
        self, changes: Iterable[Change], targets: Sequence[str] | None, are_states: bool
    ) -> list[Change]:  # fmt: skip
        """What comes to a key is merged into its row first, then what goes is taken back."""
        before = dict(self.rows)
        by_key: dict[tuple[Any, ...], list[Change]] = {}
        for kind, row in changes:
            by_key.setdefault(self._key(row), []).append((kind, row))
        for key, steps in by_key.items():
            new = self._aggregated(self.rows.get(key), steps, targets, are_states)
            if new is not None:
                self.rows[key] = new
            else:
                self.rows.pop(key, None)
        return self._changes(before)

    def _aggregated(
        self, old: Row | None, steps: Sequence[Change], targets: Sequence[str] | None, are_states: bool
    ) -> Row | None:
        takes = [kind in ("-U", "-D") for kind, _ in steps]
        if old is None and all(takes):
            return None
        columns = [column for column in self._schema.value_columns if targets is None or column.name in targets]
        new = {column.name: default_of(column) for column in self._schema.columns} if old is None else dict(old)
        new |= {name: steps[0][1][name] for name in self._schema.primary_key}
        for column in columns:
            given = [(taken, row[column.name]) for taken, (_, row) in zip(takes, steps, strict=True)]
            stored = None if old is None else old[column.name]
            by = None if column.agg is None else column.agg.get("by")
            if by is not None:
                deciders = [row[by] for _, row in steps]
                made = state_of(column, [value for _, value in given], deciders)
                decided = state_of(self._schema.column(by), deciders)
                pairs = [] if old is None else [(stored, old[by])]
                new[column.name] = merged_state(column, *zip(*pairs, (made, decided), strict=True))
            else:
                new[column.name] = state_after(
                    column, stored, given, are_states=are_states, is_new=old is None
                )  # fmt: skip
        is_empty = all(new[column.name] is None for column in self._schema.value_columns)
        ends = any(takes) and is_empty and self._options.delete_behavior is DeleteBehavior.ALLOW
        return None if ends else new

    def _merged(self, old: Row | None, row: Row, targets: Sequence[str] | None, overwrite: bool) -> Row | None:
        engine = MergeEngine.DEFAULT if overwrite else self._options.merge_engine
        if engine is MergeEngine.FIRST_ROW and old is not None:
            return None
        if engine is MergeEngine.VERSIONED and old is not None:
            column = self._options.version_column or ""
            if _version(row[column]) < _version(old[column]):
                return None
        if targets is None:
            return dict(row)
        kept = old or {column.name: default_of(column) for column in self._schema.columns}
        given = {*self._schema.primary_key, *targets}
        return {name: row[name] if name in given else kept[name] for name in self._schema.names}

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._schema.primary_key)

    def _changes(self, before: Mapping[tuple[Any, ...], Row]) -> list[Change]:
        changes: list[Change] = []
        for key in sorted({*before, *self.rows}):
            old, new = before.get(key), self.rows.get(key)
            if _exact(old) == _exact(new):
                continue
            if old is not None and new is not None and self._options.changelog_image is ChangelogImage.FULL:
                changes.append(("-U", old))
            if new is not None:
                changes.append(("+I" if old is None else "+U", new))
            elif old is not None:
                changes.append(("-D", old))
        return changes


def _exact(row: Row | None) -> Row | None:
    """A row that equals another only if both are stored alike, by which a change is judged: -0.0 is not 0.0."""
    if row is None:
        return None
    return {name: struct.pack("<d", value) if isinstance(value, float) else value for name, value in row.items()}


def _version(value: int | None) -> int:
    return -(2**63) if value is None else value
