"""The merger of one table: old rows and a put in, net changes out.

A put is merged in two steps, because only the second needs the tablet's lock:

1. ``prepare``: judge the put by the table's options, encode and sort its keys, let one row speak for each key.
2. ``merge``: given what is stored under those keys, decide per key and build the changes.

Both are pure and work on whole columns. The merger writes nothing and knows no offsets. It speaks the current version
of the table's schema: writes and stored rows of earlier ones are first brought to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.codec.buffers import Mask, binary_offsets
from kolk.codec.key import group_starts, sort_order
from kolk.codec.versions import RowCodecs
from kolk.errors import DeletesDisabled, InvalidRows, TooLarge
from kolk.merge.changes import Changes, Verdicts, blind, changes_of
from kolk.merge.rules import LastRow, Rule, rule_for
from kolk.model.defaults import default_values
from kolk.model.options import ChangelogImage, DeleteBehavior, MergeMode, TableOptions
from kolk.model.schema import Column, Schema
from kolk.model.translation import translated_write
from kolk.model.write import Action, Write

ROW_BYTES_MAX = 4 * 2**20
"""The largest encoded row. Larger values belong in files, with their address in the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A write that is ready to meet the stored rows: distinct keys in order, one row each."""

    write: Write
    """What was asked for, should it have to be prepared again."""
    schema: Schema
    """The version that it was prepared for, which the write's rows are of."""
    rule: Rule
    keys: Sequence[bytes]
    rows: pa.RecordBatch
    values: pa.BinaryArray | None
    """The encoded rows, when they do not depend on what is stored."""
    blind: bool
    """Whether the merge need not see what is stored."""


class Merger:
    """Merges writes into one table's rows. Immutable, so thread-safe."""

    def __init__(self, schema: Schema, options: TableOptions, earlier: Iterable[Schema] = ()) -> None:
        self.schema = schema
        self.options = options
        self.codec = RowCodecs(schema, earlier)
        self.versions = self.codec.versions
        self.keys = self.codec.keys_of(schema)
        self._rules = {mode: rule_for(options, schema, self.codec, mode) for mode in MergeMode}

    def prepare(self, write: Write) -> Prepared:
        """Step 1. Raises what makes the write impossible whatever is stored."""
        rule = self._rules[write.mode]
        if write.schema_id not in (0, self.schema.id):
            write = translated_write(write, self.versions.spoken(write.schema_id), self.schema)
        self._check(write, rule)
        rows = write.rows
        if self._ignores(write):
            rows = rows.slice(0, 0)
        # A partial write reads and writes whole rows: notice here, not under the lock, that they are too many.
        self.codec.check_size(rows.num_rows)
        keys = self.keys.encode(rows)
        order = sort_order(keys)
        ordered = keys.take(pa.array(order))
        starts = group_starts(ordered)
        if rows.num_rows:
            rows = rows.take(pa.array(rule.reduce(rows, order, starts)))
        if len(starts) < len(ordered):
            ordered = ordered.take(pa.array(starts))
        whole = write.action is Action.UPSERT and write.columns is None
        return Prepared(
            write=write,
            schema=self.schema,
            rule=rule,
            keys=self.keys.to_list(ordered),
            rows=rows,
            values=self._encode(rows) if whole else None,
            blind=whole and isinstance(rule, LastRow) and self.options.changelog_image is ChangelogImage.WAL,
        )

    def merge(self, prepared: Prepared, olds: pa.BinaryArray) -> Changes:
        """Step 2. ``olds`` holds what is stored under each key, null for nothing; unused when blind."""
        if not prepared.keys:
            return Changes()
        if prepared.blind:
            assert prepared.values is not None
            return blind(prepared.rows, prepared.keys, prepared.values)
        assert prepared.schema.id == self.schema.id, "a put that was prepared for another version is prepared again"
        olds = self.codec.to_current(olds)
        found = olds.is_valid().to_numpy(zero_copy_only=False)
        if prepared.values is not None:
            verdicts = self._upsert(prepared, olds, found)
        elif prepared.write.action is Action.UPSERT:
            verdicts = self._partial_upsert(prepared, olds, found)
        elif prepared.write.columns is not None:
            verdicts = self._partial_delete(prepared, olds, found)
        else:
            none = np.zeros_like(found)
            verdicts = Verdicts(
                keys=prepared.keys,
                olds=olds,
                rows=None,
                values=None,
                inserted=none,
                updated=none,
                deleted=found,
            )
        return changes_of(verdicts, self.codec, self.options.changelog_image)

    def _upsert(self, prepared: Prepared, olds: pa.BinaryArray, found: Mask) -> Verdicts:
        assert prepared.values is not None
        accepted = prepared.rule.accepts(prepared.rows, olds, found)
        return _verdicts(prepared, olds, found, accepted, prepared.rows, prepared.values)

    def _partial_upsert(self, prepared: Prepared, olds: pa.BinaryArray, found: Mask) -> Verdicts:
        """Targets from the put, everything else from the stored row, where there is none the default or null."""
        stored = self.codec.decode(olds.drop_null())
        place = pa.array(np.cumsum(found) - 1, mask=~found)
        given = set(prepared.rows.schema.names)
        arrays = [
            prepared.rows.column(column.name)
            if column.name in given
            else _or_default(column, stored.column(column.name).take(place), found)
            for column in self.schema.columns
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow)
        return _verdicts(prepared, olds, found, np.ones_like(found), rows, self._encode(rows))

    def _partial_delete(self, prepared: Prepared, olds: pa.BinaryArray, found: Mask) -> Verdicts:
        """Targets become null; a row with nothing left but its key goes."""
        targets = set(prepared.write.columns or ())
        stored = self.codec.decode(olds.drop_null())
        others = [column.name for column in self.schema.value_columns if column.name not in targets]
        left = np.zeros(stored.num_rows, np.bool_)
        for name in others:
            left |= stored.column(name).is_valid().to_numpy(zero_copy_only=False)
        place = pa.array(np.cumsum(found) - 1, mask=~found)
        arrays = [
            pa.nulls(len(found), column.type.arrow)
            if column.name in targets
            else stored.column(column.name).take(place)
            for column in self.schema.columns
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow)
        stays = found.copy()
        stays[found] = left
        verdicts = _verdicts(prepared, olds, found, stays, rows, self._encode(rows))
        return replace(verdicts, deleted=found & ~stays)

    def _encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        values = self.codec.encode(rows)
        if rows.num_rows and (largest := int(np.diff(binary_offsets(values)).max())) > ROW_BYTES_MAX:
            raise TooLarge(f"a row takes {largest:,} bytes; the limit is {ROW_BYTES_MAX:,}")
        return values

    def _ignores(self, write: Write) -> bool:
        return (
            write.action is Action.DELETE
            and write.mode is MergeMode.ACCUMULATE
            and self.options.delete_behavior is DeleteBehavior.IGNORE
        )

    def _check(self, write: Write, rule: Rule) -> None:
        deleting = write.action is Action.DELETE
        if deleting and self.options.delete_behavior is DeleteBehavior.DISABLE:
            raise DeletesDisabled("deletes are disabled for this table: its table.delete.behavior is 'disable'")
        if write.columns is None:
            return
        if not rule.partial:
            engine = self.options.merge_engine.value
            raise InvalidRows(f"partial writes are not supported by the {engine} merge engine; put whole rows")
        for column in self.schema.value_columns:
            is_given = column.name in write.columns or (column.default is not None and not deleting)
            if not column.nullable and deleting == is_given:
                raise InvalidRows(
                    f"the column {column.name!r} is NOT NULL, so a partial delete cannot null it"
                    if deleting
                    else f"the column {column.name!r} is NOT NULL, so a partial put cannot leave it out"
                )


def _or_default(column: Column, kept: pa.Array, found: Mask) -> pa.Array:
    """What a partial put leaves alone: what is stored, and the default in rows that are new."""
    if column.default is None or found.all():
        return kept
    return pc.if_else(pa.array(found), kept, default_values(column.default, column.type, 1)[0])


def _verdicts(
    prepared: Prepared,
    olds: pa.BinaryArray,
    found: Mask,
    accepted: Mask,
    rows: pa.RecordBatch,
    values: pa.BinaryArray,
) -> Verdicts:
    """Insert what was absent, update what differs, leave what is equal."""
    same = pc.fill_null(pc.equal(olds, values), False).to_numpy(zero_copy_only=False)
    return Verdicts(
        keys=prepared.keys,
        olds=olds,
        rows=rows,
        values=values,
        inserted=accepted & ~found,
        updated=accepted & found & ~same,
        deleted=np.zeros_like(found),
    )
