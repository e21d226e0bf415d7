"""The merger of one table: old rows and a put in, net changes out.

A put is merged in two steps, because only the second needs the tablet's lock:

1. ``prepare``: judge the put by the table's options, encode and sort its keys, make one row for each key: the one that
   speaks for it, or the states that an aggregation table makes of all of them.
2. ``merge``: given what is stored under those keys, decide per key and build the changes.

Both are pure and work on whole columns. The merger writes nothing and knows no offsets. It speaks the current version
of the table's schema: writes and stored rows of earlier ones are first brought to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.codec.buffers import Mask, Rows, binary_offsets, fixed_values
from kolk.codec.key import group_starts, sort_order
from kolk.codec.versions import RowCodecs
from kolk.errors import DeletesDisabled, InvalidRows, TooLarge
from kolk.merge.aggregation import Aggregation
from kolk.merge.changes import Changes, Verdicts, blind, changes_of
from kolk.merge.groups import Groups
from kolk.merge.prepared import Prepared
from kolk.merge.rules import LastRow, Rule, rule_for
from kolk.model.change import ChangeKind
from kolk.model.defaults import default_values
from kolk.model.functions import registered
from kolk.model.options import ChangelogImage, DeleteBehavior, MergeEngine, MergeMode, TableOptions
from kolk.model.schema import Column, Schema
from kolk.model.translation import translated_write
from kolk.model.write import Action, Write

ROW_BYTES_MAX = 4 * 2**20
"""The largest encoded row. Larger values belong in files, with their address in the row."""


class Merger:
    """Merges writes into one table's rows. Immutable but for a cache, so thread-safe.

    The functions of an aggregation table are looked up when a write first needs them, and again when users have
    registered others since: what does not merge, such as recovery, a snapshot or a row whose time is up, goes on
    without them.
    """

    def __init__(self, schema: Schema, options: TableOptions, earlier: Iterable[Schema] = ()) -> None:
        self.schema = schema
        self.options = options
        self.codec = RowCodecs(schema, earlier)
        self.versions = self.codec.versions
        self.keys = self.codec.keys_of(schema)
        self._aggregates = options.merge_engine is MergeEngine.AGGREGATION
        # Two that race make the same one twice.
        self._bound: tuple[object, Aggregation] | None = None
        self._rule = rule_for(options, schema, self.codec)

    def prepare(self, write: Write, *, is_correction: bool = False) -> Prepared:
        """Step 1. Raises what makes the write impossible whatever is stored. A correction is the store's own, so that
        what clients may not do does not concern it: all of it has been stored before, if not together."""
        rule = LastRow() if write.mode is MergeMode.OVERWRITE else self._rule
        if write.schema_id not in (0, self.schema.id):
            write = translated_write(write, self.versions.spoken(write.schema_id), self.schema)
        is_aggregated = self._is_aggregated(write)
        if not is_correction:
            self._check(write, rule)
        is_given = self._aggregates and write.mode is MergeMode.OVERWRITE and write.action is not Action.DELETE
        if is_given and not is_correction:
            self._aggregation.check_states(write.rows, self._targets(write))
        rows, gone = self._looked_at(write, is_aggregated)
        # A partial write reads and writes whole rows: notice here, not under the lock, that they are too many.
        self.codec.check_size(rows.num_rows)
        keys = self.keys.encode(rows)
        order = sort_order(keys)
        ordered = keys.take(pa.array(order))
        starts = group_starts(ordered)
        if len(starts) < len(ordered):
            ordered = ordered.take(pa.array(starts))
        prepared = Prepared(
            write=write,
            schema=self.schema,
            rule=rule,
            keys=self.keys.to_list(ordered),
            rows=rows,
            values=None,
            blind=False,
        )
        if not rows.num_rows:
            return prepared
        if is_aggregated:
            return self._aggregated(prepared, order, starts, gone)
        chosen = rule.reduce(rows, order, starts)
        rows, gone = rows.take(pa.array(chosen)), None if gone is None else gone[chosen]
        whole = write.action is not Action.DELETE and write.columns is None
        return replace(
            prepared,
            rows=rows,
            gone=gone,
            values=None if not whole else self.codec.encode(rows) if is_correction else self._encode(rows),
            blind=self._is_blind(write, rule),
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
        if prepared.is_aggregated:
            verdicts = self._aggregate(prepared, olds, found)
        elif prepared.values is not None:
            verdicts = self._upsert(prepared, olds, found)
        elif prepared.write.columns is not None:
            verdicts = self._partial(prepared, olds, found)
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

    @property
    def _aggregation(self) -> Aggregation:
        """The functions, bound; UnknownAggregate if one is not known here, or only in another version."""
        known, bound = registered(), self._bound
        if bound is None or bound[0] is not known:
            bound = self._bound = known, Aggregation(self.schema)
        return bound[1]

    # --- preparing

    def _looked_at(self, write: Write, is_aggregated: bool) -> tuple[pa.RecordBatch, Mask | None]:
        """The rows of a write that count, and which of them go, if some do."""
        rows = write.rows
        if write.action is Action.DELETE:
            return rows.slice(0, 0) if self._ignores(write.mode) else rows, None
        if write.action is not Action.CHANGE:
            return rows, None
        kinds = fixed_values(rows.column(rows.num_columns - 1), np.dtype("i1"))
        if len(kinds) and not (int(kinds.min()) >= min(ChangeKind) and int(kinds.max()) <= max(ChangeKind)):
            raise InvalidRows(f"a change is one of {', '.join(str(int(kind)) for kind in ChangeKind)}")
        rows = rows.select(list(range(rows.num_columns - 1)))
        before, deletes = kinds == ChangeKind.UPDATE_BEFORE, kinds == ChangeKind.DELETE
        if is_aggregated:
            return rows, before | deletes if (before | deletes).any() else None
        # What was there before an update says nothing that the row after it does not.
        counted = ~before & ~deletes if self._ignores(write.mode) else ~before
        return rows.filter(pa.array(counted)), deletes[counted] if deletes[counted].any() else None

    def _aggregated(self, prepared: Prepared, order: Rows, starts: Rows, retracts: Mask | None) -> Prepared:
        """States of the rows of each key, and what is taken from them."""
        write, targets = prepared.write, self._targets(prepared.write)
        rows, groups = prepared.rows.take(pa.array(order)), Groups(starts, len(order))
        key_rows = rows.select(list(self.schema.primary_key))
        keyed = key_rows if groups.are_single else key_rows.take(pa.array(starts))
        names = [*self.schema.primary_key, *targets]
        if retracts is None:
            states = self._aggregation.states(rows, groups, targets, write.mode)
            made = pa.RecordBatch.from_arrays([*keyed.columns, *states], names=names)
            return replace(prepared, rows=made, is_aggregated=True)
        retracts = retracts[order]
        states, removed = self._aggregation.retracting(rows, retracts, groups, targets, write.mode)
        return replace(
            prepared,
            rows=pa.RecordBatch.from_arrays([*keyed.columns, *states], names=names),
            removed=pa.RecordBatch.from_arrays([*keyed.columns, *removed], names=names),
            taken=groups.any(retracts),
            gone=~groups.any(~retracts),
            is_aggregated=True,
        )

    def _targets(self, write: Write) -> tuple[str, ...]:
        """The columns outside the key that a write is about."""
        if write.columns is not None:
            return write.columns
        return tuple(column.name for column in self.schema.value_columns)

    def _is_aggregated(self, write: Write) -> bool:
        is_merged = write.mode is not MergeMode.OVERWRITE and write.action is not Action.DELETE
        return self._aggregates and is_merged

    def _is_blind(self, write: Write, rule: Rule) -> bool:
        is_plain = write.action is Action.UPSERT and write.columns is None
        return is_plain and isinstance(rule, LastRow) and self.options.changelog_image is ChangelogImage.WAL

    # --- merging

    def _aggregate(self, prepared: Prepared, olds: pa.BinaryArray, found: Mask) -> Verdicts:
        """Targets are merged, everything else is what is stored, or, where nothing is, the default or null."""
        targets = self._targets(prepared.write)
        stored = self.codec.decode(olds.drop_null() if olds.null_count else olds)
        merged = self._aggregation.merged(prepared.rows, stored, found, targets, prepared.removed)
        accepted = np.ones_like(found) if prepared.gone is None else found | ~prepared.gone
        given = merged | {name: prepared.rows.column(name) for name in self.schema.primary_key}
        rows = self._whole_rows(given, stored, found)
        ends = np.zeros_like(found)
        if prepared.taken is not None and self.options.delete_behavior is DeleteBehavior.ALLOW:
            # What nothing is left of after a retraction is no row.
            ends = prepared.taken & ~_any_left(rows, [column.name for column in self.schema.value_columns])
            accepted &= ~ends
        self._check_left(rows, accepted)
        verdicts = _verdicts(prepared, olds, found, accepted, rows, self._encode(rows))
        return replace(verdicts, stored=stored, deleted=found & ends)

    def _check_left(self, rows: pa.RecordBatch, accepted: Mask) -> None:
        """A retraction may leave nothing in a column, which one that is NOT NULL does not take."""
        for column in self.schema.value_columns:
            array = rows.column(column.name)
            if (
                not column.nullable
                and array.null_count
                and pc.any(pc.and_(array.is_null(), pa.array(accepted))).as_py()
            ):
                raise InvalidRows(f"the column {column.name!r} is NOT NULL, but a row would have nothing left in it")

    def _upsert(self, prepared: Prepared, olds: pa.BinaryArray, found: Mask) -> Verdicts:
        assert prepared.values is not None
        accepted = prepared.rule.accepts(prepared.rows, olds, found)
        if prepared.gone is None:
            return _verdicts(prepared, olds, found, accepted, prepared.rows, prepared.values)
        verdicts = _verdicts(prepared, olds, found, accepted & ~prepared.gone, prepared.rows, prepared.values)
        return replace(verdicts, deleted=found & prepared.gone)

    def _partial(self, prepared: Prepared, olds: pa.BinaryArray, found: Mask) -> Verdicts:
        """Targets from the put, everything else from the stored row, where there is none the default or null. In rows
        that go, targets become null; one with nothing left but its key goes."""
        targets = prepared.write.columns or ()
        is_delete = prepared.write.action is Action.DELETE
        gone = np.ones_like(found) if is_delete else prepared.gone
        stored = self.codec.decode(olds.drop_null() if olds.null_count else olds)
        given = {name: prepared.rows.column(name) for name in self.schema.primary_key}
        for name in targets:
            type = self.schema.column(name).type.arrow
            if is_delete:
                given[name] = pa.nulls(len(found), type)
            elif gone is None:
                given[name] = prepared.rows.column(name)
            else:
                given[name] = pc.if_else(pa.array(gone), pa.scalar(None, type), prepared.rows.column(name))
        rows = self._whole_rows(given, stored, found)
        values = self._encode(rows)
        if gone is None:
            return replace(_verdicts(prepared, olds, found, np.ones_like(found), rows, values), stored=stored)
        others = [column.name for column in self.schema.value_columns if column.name not in targets]
        ends = found & gone & ~_any_left(rows, others)
        verdicts = _verdicts(prepared, olds, found, ~ends & (found | ~gone), rows, values)
        return replace(verdicts, stored=stored, deleted=ends)

    def _whole_rows(self, given: dict[str, pa.Array], stored: pa.RecordBatch, found: Mask) -> pa.RecordBatch:
        """The given columns, and the others from what is stored."""
        place = pa.array(np.cumsum(found) - 1, mask=~found)
        arrays = [
            given[column.name]
            if column.name in given
            else _or_default(column, stored.column(column.name).take(place), found)
            for column in self.schema.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow)

    def _encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        values = self.codec.encode(rows)
        if rows.num_rows and (largest := int(np.diff(binary_offsets(values)).max())) > ROW_BYTES_MAX:
            raise TooLarge(f"a row takes {largest:,} bytes; the limit is {ROW_BYTES_MAX:,}")
        return values

    # --- checks

    def _ignores(self, mode: MergeMode) -> bool:
        """Whether deletes are passed over; one that overwrites never is."""
        return mode is MergeMode.ACCUMULATE and self.options.delete_behavior is DeleteBehavior.IGNORE

    def _check(self, write: Write, rule: Rule) -> None:
        if write.mode is MergeMode.MERGE_STATE and not self._aggregates:
            raise InvalidRows(
                "mode='merge_state' is for tables of the aggregation merge engine; this one is of another"
            )
        if write.mode is MergeMode.MERGE_STATE and write.action is Action.DELETE:
            raise InvalidRows("a delete has no states to merge; leave mode='merge_state' out")
        if self._aggregates and write.columns is not None and write.mode is not MergeMode.OVERWRITE:
            self._aggregation.check_targets(write.columns)
        deletes = write.action is Action.DELETE or (
            write.action is Action.CHANGE and not self._is_aggregated(write) and _has_deletes(write)
        )
        if deletes and self.options.delete_behavior is DeleteBehavior.DISABLE:
            raise DeletesDisabled("deletes are disabled for this table: its table.delete.behavior is 'disable'")
        if write.columns is None:
            return
        if not rule.partial:
            engine = self.options.merge_engine.value
            raise InvalidRows(f"partial writes are not supported by the {engine} merge engine; put whole rows")
        for column in self.schema.value_columns:
            is_target = column.name in write.columns
            if column.nullable:
                continue
            if deletes and is_target:
                raise InvalidRows(f"the column {column.name!r} is NOT NULL, so a partial delete cannot null it")
            if write.action is not Action.DELETE and not is_target and column.default is None:
                raise InvalidRows(f"the column {column.name!r} is NOT NULL, so a partial put cannot leave it out")


def _has_deletes(write: Write) -> bool:
    return bool(
        (fixed_values(write.rows.column(write.rows.num_columns - 1), np.dtype("i1")) == ChangeKind.DELETE).any()
    )


def _any_left(rows: pa.RecordBatch, names: Sequence[str]) -> Mask:
    """Which rows have a value in one of these columns."""
    left = np.zeros(rows.num_rows, np.bool_)
    for name in names:
        left |= rows.column(name).is_valid().to_numpy(zero_copy_only=False)
    return left


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
