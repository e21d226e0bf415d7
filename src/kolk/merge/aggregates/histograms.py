"""``histogram``: how many inputs fell between bounds, as a list of one count more than there are bounds.

A value belongs to the first bound that it is less than, or, if it is less than none, to the last count; NaN as well,
which is greater than every number. Integers are compared with the bounds exactly, however large they are.
"""

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kolk.codec.buffers import Mask, Rows, check_bytes, fixed_values, slot_type, valid_mask
from kolk.errors import InvalidRows
from kolk.merge.aggregates.aggregator import Subtracting
from kolk.merge.aggregates.arithmetic import COUNTS
from kolk.merge.groups import Groups, live
from kolk.model.nested import bits_of, list_array, list_bounds, validity_of
from kolk.model.types import DataType

_COUNT_BYTES = 8
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Subtracting):
    """Counts that add up. Taken back they are subtracted, below zero as well, as a ``count`` is."""

    type: DataType
    input: DataType
    bounds: tuple[float, ...]

    def accumulate(self, inputs: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Count each group's inputs; nulls are none."""
        given, left, present = live(inputs, groups)
        check_bytes(len(left) * self._width * _COUNT_BYTES)
        values = fixed_values(given, np.dtype(slot_type(self.input)))
        places = left.numbers * self._width + self._places(values)
        counts = np.bincount(places, minlength=len(left) * self._width)
        return self._lists(pa.array(counts.astype(np.int64)), present)

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Add up the counts at the same places."""
        if groups.are_single:
            return states
        left, present = groups.filtered(valid_mask(states))
        _, values = list_bounds(states)
        # The counts of each place together: of a group of n lists, n of the first place, n of the second ...
        order = np.lexsort((np.tile(np.arange(self._width), left.rows), np.repeat(left.numbers, self._width)))
        summed = Groups.of_counts(np.repeat(left.counts, self._width))
        return self._lists(COUNTS.merge(values.take(pa.array(order)), summed), present)

    def check(self, states: pa.Array) -> None:
        """A state has a count for each place."""
        lengths = pc.list_value_length(states).drop_null().to_numpy()
        if (lengths != self._width).any():
            raise InvalidRows(
                f"a histogram of {len(self.bounds)} bounds is a list of {self._width} counts; one of these has"
                f" {int(lengths[lengths != self._width][0])}"
            )
        if list_bounds(states)[1].null_count:
            raise InvalidRows("a count of a histogram is null; where nothing was counted it is 0")

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """The differences."""
        has_state, has_less = valid_mask(states), valid_mask(removed)
        bounds, values = list_bounds(states)
        less = np.zeros((len(states), self._width), np.int64)
        less[has_less] = fixed_values(list_bounds(removed)[1], np.dtype("i8")).reshape(-1, self._width)
        found = COUNTS.remove(values, pa.array(less[has_state].ravel()))
        return list_array(self.type.arrow, bounds, [found], validity_of(states))

    @property
    def _width(self) -> int:
        return len(self.bounds) + 1

    def _places(self, values: NDArray[np.generic]) -> Rows:
        """How many bounds each value is not less than, which is its place."""
        if self.input.is_floating:
            return np.searchsorted(np.array(self.bounds), values.astype(np.float64), side="right")
        # A whole number is less than a bound if it is less than the next whole one; no bigint reaches those left out.
        whole = [max(math.ceil(bound), _INTEGER_MIN) for bound in self.bounds if math.ceil(bound) <= _INTEGER_MAX]
        return np.searchsorted(np.array(whole, np.int64), values.astype(np.int64), side="right")

    def _lists(self, counts: pa.Array, present: Mask) -> pa.Array:
        bounds = np.append(0, np.cumsum(present.astype(np.int64) * self._width))
        return list_array(self.type.arrow, bounds, [counts], bits_of(present))
