"""The aggregation engine of one table: a put becomes states, one for each key, and states are merged into rows.

Both steps work column by column, each by its function; only the second needs what is stored. Non-target columns are
none of its business.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from kolk.codec.buffers import Mask
from kolk.errors import AggregateOverflow, InvalidRows
from kolk.merge.aggregates.aggregator import Aggregator, Retractable, SelfMerging
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

    def check_retractable(self, targets: Sequence[str]) -> None:
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

    def removed(
        self, rows: pa.RecordBatch, retracts: Mask, groups: Groups, targets: Sequence[str], mode: MergeMode
    ) -> pa.RecordBatch:
        """What the retractions among the rows take from each state. All of a group's rows are here, for their order."""
        found: dict[str, pa.Array] = {}
        for column in self._chosen(targets):
            function, given = self._retractable(column), rows.column(column.name)
            with _about(column.name):
                if mode is MergeMode.MERGE_STATE:
                    function.check(given)
                # Whose inputs are states is told of all rows in any case: to some of them their order matters.
                if mode is MergeMode.MERGE_STATE and not isinstance(function, SelfMerging):
                    self._check_takes_states(column)
                    left, present = groups.filtered(retracts)
                    found[column.name] = spread(function.merge(given.filter(pa.array(retracts)), left), present)
                else:
                    found[column.name] = function.retracted(given, retracts, groups)
        return pa.RecordBatch.from_pydict(found)

    def merged(
        self, states: pa.RecordBatch, stored: pa.RecordBatch, found: Mask, targets: Sequence[str]
    ) -> dict[str, pa.Array]:
        """The states merged into what is stored under those of the keys that were found."""
        if not found.any():
            return {name: states.column(name) for name in targets}
        groups = Groups.of_counts(1 + found.astype(np.int64))
        index = np.empty(groups.rows, np.int64)
        index[groups.ends - 1] = stored.num_rows + np.arange(len(found))
        index[groups.starts[found]] = np.arange(stored.num_rows)
        places = pa.array(index)
        # The column that decides is among the targets of those it decides about.
        pairs = {
            name: pa.concat_arrays([stored.column(name), states.column(name)]).take(places) for name in targets
        }  # fmt: skip
        merged: dict[str, pa.Array] = {}
        for name in targets:
            with _about(name):
                merged[name] = self._aggregators[name].merge(pairs[name], groups, self._decider(name, pairs))
        return merged

    def remaining(self, name: str, states: pa.Array, removed: pa.Array) -> pa.Array:
        """The states of a column without what was taken from them."""
        with _about(name):
            return self._retractable(self._schema.column(name)).remove(states, removed)

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

    def _check_takes_states(self, column: Column) -> None:
        if column.function is not None and column.function.implementation is not None:
            raise InvalidRows(
                f"the column {column.name!r} is {column.agg}, which takes back values and not states; put -U and -D"
                " rows without mode='merge_state'"
            )

    def _retractable(self, column: Column) -> Retractable:
        function: Aggregator = self._aggregators[column.name]
        assert isinstance(function, Retractable), f"{column.agg} says that it can take values back"
        return function

    def _chosen(self, targets: Sequence[str]) -> list[Column]:
        return [self._schema.column(name) for name in targets]


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Say of which column an error is."""
    try:
        yield
    except (AggregateOverflow, InvalidRows) as error:
        raise type(error)(f"the column {name!r}: {error}") from error
