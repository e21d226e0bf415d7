"""An aggregation table without a disk: its merger over a dict of bytes."""

import pyarrow as pa

from kolk.merge.engine import Merger
from kolk.model.change import SYMBOLS
from kolk.model.evolution import altered
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema
from kolk.model.table import TableSpec
from kolk.model.write import CHANGE, Action, Write, expected_columns


class Bench:
    """A merger over a dict of bytes. Rows are dicts; what a put does not name it does not give."""

    def __init__(self, *columns: Column, deletes: str | None = None) -> None:
        options = {"table.merge-engine": "aggregation"} | ({"table.delete.behavior": deletes} if deletes else {})
        self.spec = TableSpec.make("t", Schema([Column("k", "int"), *columns], ["k"]), options=options)
        self.versions = [self.spec.schema]
        self.merger = Merger(self.spec.schema, self.spec.options)
        self.stored: dict[bytes, bytes] = {}

    def alter(self, *operations) -> None:
        self.spec = altered(self.spec, operations)
        self.merger = Merger(self.spec.schema, self.spec.options, self.versions)
        self.versions.append(self.spec.schema)

    def put(self, *rows: dict, columns=None, mode=MergeMode.ACCUMULATE, schema: Schema | None = None):
        """Put rows; those that have a ``_change_type`` are changes."""
        schema = schema or self.spec.schema
        action = Action.CHANGE if "_change_type" in rows[0] else Action.UPSERT
        wanted = expected_columns(schema, action, columns, mode)
        given = [
            {**row, CHANGE.name: SYMBOLS.index(row[CHANGE.name])} if action is Action.CHANGE else row for row in rows
        ]
        batch = pa.RecordBatch.from_pylist(given, pa.schema([column.arrow for column in wanted]))
        return self.write(Write(action=action, rows=batch, columns=columns, mode=mode, schema_id=schema.id))

    def retract(self, *rows: dict, columns=None):
        return self.put(*({**row, "_change_type": "-D"} for row in rows), columns=columns)

    def delete(self, *keys: int, columns=None, mode=MergeMode.ACCUMULATE):
        rows = pa.record_batch({"k": pa.array(keys, pa.int32())}, pa.schema([self.spec.schema.key_columns[0].arrow]))
        return self.write(
            Write(action=Action.DELETE, rows=rows, columns=columns, mode=mode, schema_id=self.spec.schema.id)
        )

    def write(self, write: Write) -> list[tuple[str, dict]]:
        """The changes that the changelog shows."""
        prepared = self.merger.prepare(write)
        olds = pa.array([self.stored.get(key) for key in prepared.keys], pa.binary())
        changes = self.merger.merge(prepared, olds)
        self.stored.update(zip(changes.writes.keys, changes.writes.values, strict=True))
        for key in changes.writes.deletes:
            del self.stored[key]
        shown = [] if changes.rows is None else changes.rows.to_pylist()
        return [(SYMBOLS[row.pop("__op")], row) for row in shown]

    @property
    def rows(self) -> list[dict]:
        values = pa.array([self.stored[key] for key in sorted(self.stored)], pa.binary())
        return self.merger.codec.decode(self.merger.codec.to_current(values)).to_pylist()

    @property
    def row(self) -> dict:
        (row,) = self.rows
        return row
