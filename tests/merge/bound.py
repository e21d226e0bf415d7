"""A function bound to a column, the laws that all functions keep, and inputs to try them on."""

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from kolk.merge.aggregates.binding import aggregator_of
from kolk.merge.groups import Groups
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import Keys, batches

Oracle = Callable[[list[Any]], Any]


class Bound:
    """A function, and the types of what it is given and keeps."""

    def __init__(self, type: str, agg: str) -> None:
        self.column = Column("v", type, agg=agg)
        self.state, self.input = self.column.type.arrow, self.column.input.arrow
        self.function: Any = aggregator_of(self.column, Schema([Column("k", "bigint"), self.column], ["k"]))

    def accumulate(self, *parts: list) -> list:
        """The states of parts, each a group of inputs, as Python has them."""
        return self.made(self.function.accumulate(pa.array(chain(*parts), self.input), groups_of(*map(len, parts))))

    def merge(self, *parts: list) -> list:
        return self.made(self.function.merge(pa.array(chain(*parts), self.state), groups_of(*map(len, parts))))

    def retract(self, state: Any, *changes: tuple[str, Any]) -> Any:
        """A state after a put of changes: + rows are added, - rows are taken back."""
        inputs = pa.array([value for _, value in changes], self.input)
        retracts = np.array([sign == "-" for sign, _ in changes])
        removed = self.function.retracted(inputs, retracts, groups_of(len(changes)))
        states = pa.array([state], self.state)
        if not retracts.all():
            given = inputs.filter(pa.array(~retracts))
            added = self.function.accumulate(given, groups_of(len(given)))
            states = self.function.merge(pa.concat_arrays([states, added]), groups_of(2))
        return self.made(self.function.remove(states, removed))[0]

    def check(self, *states: Any) -> None:
        self.function.check(pa.array(states, self.state))

    def made(self, states: pa.Array) -> list:
        """What a function made, which must be sound and exactly of the column's type."""
        assert states.type.equals(self.state, check_metadata=True)
        states.validate(full=True)
        return states.to_pylist()


def groups_of(*counts: int) -> Groups:
    return Groups.of_counts(np.array(counts, np.int64))


def plain(array: pa.Array) -> list:
    """Values that compare exactly; there is one NaN."""
    return [_one_nan(row["v"], array.type) for row in plain_rows(pa.record_batch({"v": array}))]


def number(bits: bytes) -> float:
    """The number that stands for itself as bits."""
    return float(np.frombuffer(bits, "<f8")[0])


def _one_nan(value: Any, type: pa.DataType) -> Any:
    if isinstance(value, list):
        within = pa.struct([type.key_field, type.item_field]) if pa.types.is_map(type) else type.value_type
        return [_one_nan(each, within) for each in value]
    if isinstance(value, dict):
        return {name: _one_nan(each, type.field(name).type) for name, each in value.items()}
    is_nan = value is not None and pa.types.is_floating(type) and math.isnan(number(value))
    return _NAN if is_nan else value


_NAN = np.array(math.nan).tobytes()


def order(value: Any) -> Any:
    """A key that sorts plain scalars as max and min do."""
    if isinstance(value, bytes) and len(value) == 8:
        found = number(value)
        return (math.isnan(found), 0.0 if math.isnan(found) else found, math.copysign(1, found))
    return value.encode() if isinstance(value, str) else value


@st.composite
def inputs(draw: st.DrawFn, type: DataType, *, max_rows: int = 12) -> pa.Array:
    """A slice of values with nulls among them; some come again and again."""
    schema = Schema([Column("k", "bigint"), Column("v", type)], ["k"])
    array = draw(batches(schema, keys=Keys.ANY, max_rows=max_rows)).column("v")
    if not len(array) or draw(st.booleans()):
        return array
    places = draw(st.lists(st.integers(0, min(len(array), 3) - 1), max_size=max_rows))
    start = draw(st.integers(0, len(places)))
    return array.take(pa.array(places, pa.int64())).slice(start)


@st.composite
def small(draw: st.DrawFn, type: DataType, values: st.SearchStrategy[Any], *, max_rows: int = 12) -> pa.Array:
    """As ``inputs``, of these values only."""
    given = draw(st.lists(st.none() | values, max_size=max_rows))
    return pa.array(given, type.arrow).slice(draw(st.integers(0, len(given))))


@st.composite
def cuts(draw: st.DrawFn, rows: int) -> Groups:
    """So many rows in groups."""
    starts = draw(st.sets(st.integers(1, rows - 1), max_size=rows)) if rows > 1 else set()
    return Groups(np.array(sorted(starts | {0}) if rows else [], np.int64), rows)


def check_laws(data: st.DataObject, bound: Bound, array: pa.Array, oracle: Oracle) -> None:
    """Whatever rows are cut into, the state of the whole is the same, and what a plain loop says."""
    function, declared = bound.function, bound.column.function
    groups = data.draw(cuts(len(array)), "groups")
    values = plain(array)

    states = function.accumulate(array, groups)

    bound.made(states)
    whole = plain(states)
    assert whole == [oracle(values[start:end]) for start, end in zip(groups.starts, groups.ends, strict=True)]
    singles = function.accumulate(array, groups_of(*[1] * len(array)))
    assert plain(function.merge(singles, groups)) == whole
    finer = Groups(np.union1d(groups.starts, data.draw(cuts(len(array)), "parts").starts), len(array))
    parts = Groups(np.searchsorted(finer.starts, groups.starts), len(finer))
    merged = function.merge(function.accumulate(array, finer), parts)
    bound.made(merged)
    assert plain(merged) == whole
    function.check(states)
    if declared.is_commutative:
        mixed = np.concatenate(
            [np.arange(0)]
            + [data.draw(st.permutations(range(a, b))) for a, b in zip(groups.starts, groups.ends, strict=True)]
        ).astype(np.int64)
        assert plain(function.accumulate(array.take(pa.array(mixed)), groups)) == whole
    if declared.is_idempotent:
        twice = np.arange(2 * len(states)).reshape(2, -1).T.ravel()
        again = pa.concat_arrays([states, states]).take(pa.array(twice))
        assert plain(function.merge(again, groups_of(*[2] * len(states)))) == whole
