"""Functions that choose one of a group's rows: first and last values, extremes, and values by another column.

What is chosen is taken as it is, of whatever type. Extremes are in the order of ``max`` and ``min``: texts by their
UTF-8 bytes, NaN above every number, -0.0 below 0.0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kolk.codec.buffers import Mask, Rows, fixed_values, slot_type, valid_mask
from kolk.merge.aggregates.aggregator import SelfMerging
from kolk.merge.groups import Groups, tree
from kolk.model.kinds import Kind
from kolk.model.types import DataType

_COMPARED_BY_ARROW = (Kind.CHAR, Kind.STRING, Kind.DECIMAL)


@dataclass(frozen=True, slots=True)
class Chosen(SelfMerging):
    """The first or the last row of a group, of all its rows or of those that are not null."""

    last: bool
    ignores_nulls: bool

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The value of the row that is chosen."""
        if groups.are_single:
            return states
        valid = valid_mask(states) if self.ignores_nulls and states.null_count else None
        return taken(states, _end(groups, valid, last=self.last))

    def retracted(self, inputs: pa.Array, retracts: Mask, groups: Groups) -> pa.Array:
        """Whether the last thing that happened to a key is that its value was taken back."""
        valid = valid_mask(inputs) if self.ignores_nulls else np.ones_like(retracts)
        last = _end(groups, valid, last=True)
        return pa.array((last >= 0) & retracts[last])

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """Nothing, where it was taken back."""
        return pc.if_else(pc.fill_null(removed, False), pa.scalar(None, states.type), states)


@dataclass(frozen=True, slots=True)
class Extreme(SelfMerging):
    """The greatest or the least value; of equal ones the first."""

    type: DataType
    greatest: bool

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The value that is chosen; null where all are."""
        if groups.are_single:
            return states
        return taken(states, extreme(states, self.type, groups, greatest=self.greatest, last=False))


@dataclass(frozen=True, slots=True)
class ChosenBy(SelfMerging):
    """The value of the row in which another column is greatest or least; of equal ones the last."""

    by_type: DataType
    greatest: bool

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The value that is chosen; null where nothing decides."""
        assert by is not None, "the column that decides comes with the one it decides about"
        return taken(states, extreme(by, self.by_type, groups, greatest=self.greatest, last=True))


def taken(values: pa.Array, places: Rows) -> pa.Array:
    """The values at these places, null for a negative one."""
    nothing = places < 0
    return values.take(pa.array(places, mask=nothing) if nothing.any() else pa.array(places))


def extreme(values: pa.Array, type: DataType, groups: Groups, *, greatest: bool, last: bool) -> Rows:
    """The place of each group's greatest or least value; of equal ones the first or the last; -1 where all are null."""
    valid = valid_mask(values) if values.null_count else None
    if type.kind in _COMPARED_BY_ARROW:
        return _compared(values, groups, valid, greatest=greatest, last=last)
    ranks = ranks_of(values, type)
    if not greatest:
        ranks = ~ranks  # the order turned round, without an overflow
    if valid is None:
        best = groups.reduce(np.maximum, ranks)
        is_best = ranks == np.repeat(best, groups.counts)
    else:
        best = groups.reduce(np.maximum, np.where(valid, ranks, np.iinfo(np.int64).min))
        is_best = valid & (ranks == np.repeat(best, groups.counts))
    return _end(groups, is_best, last=last)


def ranks_of(values: pa.Array, type: DataType) -> NDArray[np.int64]:
    """Numbers in the order of the values of a type of fixed width; what stands at nulls is undefined."""
    found = fixed_values(values, np.dtype(slot_type(type)))
    if not type.is_floating:
        return found.astype(np.int64)
    wide = np.where(np.isnan(found), np.nan, found).astype(np.float64)  # every NaN is the same one
    bits = wide.view(np.int64)
    return np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)


def _compared(values: pa.Array, groups: Groups, valid: Mask | None, *, greatest: bool, last: bool) -> Rows:
    compare: Any = pc.greater if greatest else pc.less

    def better(left: Rows, right: Rows) -> Rows:
        one, other = values.take(pa.array(left)), values.take(pa.array(right))
        wins = compare(other, one) if not last else pc.invert(compare(one, other))
        # Null against anything is null: then the one that is valid goes on.
        wins = pc.fill_null(wins, False).to_numpy(zero_copy_only=False)
        if valid is not None:
            wins = np.where(valid[left], wins & valid[right], valid[right])
        return np.where(wins, right, left)

    chosen = tree(groups, better, np.arange(groups.rows))
    return chosen if valid is None else np.where(valid[chosen], chosen, -1)


def _end(groups: Groups, eligible: Mask | None, *, last: bool) -> Rows:
    """The first or the last place of each group that is eligible; -1 if none is."""
    if eligible is None:
        return groups.ends - 1 if last else groups.starts
    places = np.arange(groups.rows)
    if last:
        return groups.reduce(np.maximum, np.where(eligible, places, -1))
    first = groups.reduce(np.minimum, np.where(eligible, places, groups.rows))
    return np.where(first < groups.rows, first, -1)
