"""``avg``: a sum and a count side by side, of which ``kolk.merge.finishing`` makes the average.

The average itself cannot be merged, so it is not what is kept. Sums are exact as ``sum`` is, and fit their type or are
an error.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.codec.buffers import Mask
from kolk.errors import InvalidRows
from kolk.merge.aggregates.aggregator import Subtracting, Unchecked
from kolk.merge.aggregates.arithmetic import Sum
from kolk.merge.groups import Groups, live, spread
from kolk.model.nested import row_array, row_fields, validity_of
from kolk.model.types import DataType


@dataclass(frozen=True, slots=True)
class Average(Subtracting, Unchecked):
    """The sum and the number of the inputs that are not null; null where all are."""

    type: DataType

    def accumulate(self, inputs: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Sum them up and count them."""
        given, left, present = live(inputs, groups)
        sums, _ = self._functions
        return self._rows([sums.merge(given, left), pa.array(left.counts)], present)

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Add up the sums, and the counts."""
        if groups.are_single:
            return states
        given, left, present = live(states, groups)
        fields = row_fields(given)
        return self._rows(
            [each.merge(field, left) for each, field in zip(self._functions, fields, strict=True)], present
        )

    def check(self, states: pa.Array) -> None:
        """There is a count, and a sum if it counts anything. It may be negative, where more was taken back than given:
        what a table holds must be good enough to be put back."""
        sums, counts = row_fields(states.drop_null())
        if counts.null_count:
            raise InvalidRows("the count of an average is null; it says how many values were added up")
        if pc.any(pc.and_(sums.is_null(), pc.not_equal(counts, 0))).as_py():
            raise InvalidRows("the sum of an average is null, although its count says that values were added up")

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """The differences."""
        if removed.null_count == len(removed):
            return states
        sums, counts = row_fields(states)
        # The sum of nothing may be null in a state from outside; something can be taken from 0 alone.
        fields = [sums.fill_null(0), counts]
        less = row_fields(removed)
        found = [each.remove(*pair) for each, *pair in zip(self._functions, fields, less, strict=True)]
        return row_array(self.type.arrow, len(states), found, validity_of(states))

    @property
    def _functions(self) -> tuple[Sum, Sum]:
        sums, counts = self.type.fields
        return Sum(sums.type), Sum(counts.type)

    def _rows(self, fields: list[pa.Array], present: Mask) -> pa.Array:
        return spread(row_array(self.type.arrow, int(np.count_nonzero(present)), fields, None), present)
