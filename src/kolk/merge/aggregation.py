"""The aggregation engine of one table: a put becomes states, one for each key, and states are merged into rows.

Both steps work column by column, each by its function; only the second needs what is stored. Non-target columns are
none of its business.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from kolk.codec.buffers import Mask
from kolk.errors import AggregateOverflow, InvalidRows
from kolk.merge.aggregates.aggregator import Aggregator, Retractable, SelfMerging, Widening
from kolk.merge.aggregates.binding import aggregator_of
from kolk.merge.groups import Groups, spread
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema


class Aggregation:
    """The functions of a table's columns, bound. Immutable, so thread-safe."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._aggregators = {column.name: aggregator_of(column, schema) for column in schema.value_columns}
        self._by = {
            column.name: column.agg.get("by") for column in schema.value_columns if column.agg is not None
        }  # fmt: skip

    def check_targets(self, targets: Sequence[str]) -> None:
        """A column that another one decides about is put together with it, and the other way round."""
        for name, by in self._by.items():
            if by is not None and (name in targets) != (by in targets):
                raise InvalidRows(
                    f"the column {by!r} decides about {name!r}, so a put gives both of them or neither;"
                    f" add {name if by in targets else by!r} to its columns"
                )

    def _check_retractable(self, targets: Sequence[str]) -> None:
        """Whether what was put into these columns can be taken back."""
        for column in self._chosen(targets):
            if not column.is_retractable:
                raise InvalidRows(
                    f"the column {column.name!r} is {column.agg}, which cannot take a value back; put changes without"
                    " -U and -D rows, or name the columns that can with columns=[...]"
                )

    def check_states(self, rows: pa.RecordBatch, targets: Sequence[str]) -> None:
        """Whether what is to be stored as it is can be merged into later."""
        for name in targets:
            with _about(name):
                self._aggregators[name].check(rows.column(name))

    def states(self, rows: pa.RecordBatch, groups: Groups, targets: Sequence[str], mode: MergeMode) -> list[pa.Array]:
        """For each target the state of every group of rows, which are inputs, or states themselves."""
        return [self._states(column, rows, groups, mode) for column in self._chosen(targets)]

    def retracting(
        self, rows: pa.RecordBatch, retracts: Mask, groups: Groups, targets: Sequence[str], mode: MergeMode
    ) -> tuple[list[pa.Array], list[pa.Array]]:
        """For each target the state of what every group of rows gives, null for nothing, and what it takes back.

        Both may be of a wider type than the column's: what comes and goes in one put may together be more than a column
        holds of it at the end.
        """
        self._check_retractable(targets)
        left, present = groups.filtered(~retracts)
        states: list[pa.Array] = []
        removed: list[pa.Array] = []
        for column in self._chosen(targets):
            function = self._roomy(column)
            inputs = rows.column(column.name)
            if isinstance(function, Widening):
                inputs = _as(inputs, function.type.arrow)
            added = inputs.filter(pa.array(~retracts))
            with _about(column.name):
                if mode is MergeMode.MERGE_STATE:
                    function.check(inputs)
                # Whose inputs are states is told of all rows in any case: to some of them their order matters.
                if mode is MergeMode.MERGE_STATE and not isinstance(function, SelfMerging):
                    _check_takes_states(column)
                    taken, some = groups.filtered(retracts)
                    states.append(spread(function.merge(added, left), present))
                    removed.append(spread(function.merge(inputs.filter(pa.array(retracts)), taken), some))
                else:
                    states.append(spread(function.accumulate(added, left), present))
                    removed.append(function.retracted(inputs, retracts, groups))
        return states, removed

    def merged(
        self,
        states: pa.RecordBatch,
        stored: pa.RecordBatch,
        found: Mask,
        targets: Sequence[str],
        removed: pa.RecordBatch | None,
    ) -> dict[str, pa.Array]:
        """The states merged into what is stored under those of the keys that were found, without what is removed."""
        if removed is None:
            return self._merged(states, stored, found, targets, self._aggregators)
        functions = {column.name: self._roomy(column) for column in self._chosen(targets)}
        merged = self._merged(states, stored, found, targets, functions)
        for name in targets:
            with _about(name):
                merged[name] = self._fitted(name, functions[name].remove(merged[name], removed.column(name)))
        return merged

    # --- inside

    def _merged(
        self,
        states: pa.RecordBatch,
        stored: pa.RecordBatch,
        found: Mask,
        targets: Sequence[str],
        functions: Mapping[str, Aggregator],
    ) -> dict[str, pa.Array]:
        if not found.any():
            return {name: states.column(name) for name in targets}
        groups = Groups.of_counts(1 + found.astype(np.int64))
        index = np.empty(groups.rows, np.int64)
        index[groups.ends - 1] = stored.num_rows + np.arange(len(found))
        index[groups.starts[found]] = np.arange(stored.num_rows)
        places = pa.array(index)
        # The column that decides is among the targets of those it decides about.
        pairs = {name: _behind(stored.column(name), states.column(name)).take(places) for name in targets}
        merged: dict[str, pa.Array] = {}
        for name in targets:
            with _about(name):
                merged[name] = functions[name].merge(pairs[name], groups, self._decider(name, pairs))
        return merged

    def _states(self, column: Column, rows: pa.RecordBatch, groups: Groups, mode: MergeMode) -> pa.Array:
        function, given = self._aggregators[column.name], rows.column(column.name)
        by = self._decider(column.name, rows)
        with _about(column.name):
            if mode is MergeMode.MERGE_STATE:
                function.check(given)
                return function.merge(given, groups, by)
            return function.accumulate(given, groups, by)

    def _decider(self, name: str, given: "pa.RecordBatch | dict[str, pa.Array]") -> pa.Array | None:
        by = self._by[name]
        return None if by is None else given[by]

    def _roomy(self, column: Column) -> Retractable:
        """The function of a column that can take values back, with room for more than the column holds."""
        function: Aggregator = self._aggregators[column.name]
        assert isinstance(function, Retractable), f"{column.agg} says that it can take values back"
        return function.roomy if isinstance(function, Widening) else function

    def _fitted(self, name: str, states: pa.Array) -> pa.Array:
        function = self._aggregators[name]
        return function.fitted(states) if isinstance(function, Widening) else states

    def _chosen(self, targets: Sequence[str]) -> list[Column]:
        return [self._schema.column(name) for name in targets]


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Say of which column an error is."""
    try:
        yield
    except (AggregateOverflow, InvalidRows) as error:
        raise type(error)(f"the column {name!r}: {error}") from error


def _check_takes_states(column: Column) -> None:
    if column.function is not None and column.function.implementation is not None:
        raise InvalidRows(
            f"{column.agg} takes back values and not states; put -U and -D rows without mode='merge_state'"
        )


def _behind(stored: pa.Array, states: pa.Array) -> pa.Array:
    return pa.concat_arrays([_as(stored, states.type), states])


def _as(values: pa.Array, type: pa.DataType) -> pa.Array:
    """The same numbers in a type with more room."""
    return values if values.type == type else values.cast(type)
