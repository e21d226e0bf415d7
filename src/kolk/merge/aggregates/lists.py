"""Functions that keep a list of what a group was given: all of it, the best of it.

Lists are joined by moving their bounds, since those of a group stand behind each other already; values are moved only
when some are left out. A list that nothing is left in is empty, not null: null is the state of nothing given.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kolk.codec.buffers import Mask, Rows, valid_mask
from kolk.errors import InvalidRows
from kolk.merge.aggregates.aggregator import Subtracting, Unchecked
from kolk.merge.aggregates.items import Runs, counts_of, first_places, identities, owners_of, ranks
from kolk.merge.groups import Groups
from kolk.model.nested import bits_of, bounds_of, list_array, list_bounds, places_of, validity_of
from kolk.model.types import DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected(Subtracting, Unchecked):
    """All that was given, in order; with ``distinct`` each thing once, where it came first; the first ``max_size``."""

    type: DataType
    takes_arrays: bool = False
    keeps_nulls: bool = False
    distinct: bool = False
    max_size: int | None = None

    def accumulate(self, inputs: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The list of each group's inputs, or of what is within them."""
        if self.takes_arrays:
            return self.merge(inputs if self.keeps_nulls else _without_null_items(inputs, self.type), groups)
        if self.keeps_nulls or not inputs.null_count:
            return self._listed(inputs, groups.bounds, np.ones(len(groups), np.bool_))
        counts = groups.reduce(np.add, valid_mask(inputs).astype(np.int64))
        return self._listed(inputs.drop_null(), bounds_of(counts), counts > 0)

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Join the lists of each group."""
        if groups.are_single and not self.distinct and self.max_size is None:
            return states
        bounds, values = list_bounds(states)
        return self._listed(values, bounds[groups.bounds], groups.any(valid_mask(states)))

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """The lists without the first thing that equals one that is taken back, once for each of those."""
        if removed.null_count == len(removed):
            return states
        (bounds, values), (less_bounds, less) = list_bounds(states), list_bounds(removed)
        owners = owners_of(bounds)
        both = pa.concat_arrays([values, less])
        runs = Runs.of(np.append(owners, owners_of(less_bounds)), identities(both, self.type.fields[0].type))
        # In a run the list's own values stand before those that are taken back.
        is_own = runs.order < len(values)
        taken_back = runs.groups.reduce(np.add, (~is_own).astype(np.int64))
        goes = is_own & (runs.groups.places < np.repeat(taken_back, runs.groups.counts))
        stays = np.ones(len(values), np.bool_)
        stays[runs.order[goes]] = False
        counts = counts_of(owners[stays], len(states))
        return list_array(self.type.arrow, bounds_of(counts), [values.filter(pa.array(stays))], validity_of(states))

    def _listed(self, values: pa.Array, bounds: Rows, present: Mask) -> pa.Array:
        """Lists of values between these bounds, of which those that are too many are left out."""
        if self.distinct:
            owners = owners_of(bounds)
            first = first_places(owners, identities(values, self.type.fields[0].type))
            values, bounds = _chosen(values, owners, first, len(present))
        if self.max_size is not None and (counts := np.diff(bounds)).max(initial=0) > self.max_size:
            first = np.flatnonzero(places_of(counts) < self.max_size)
            values, bounds = _chosen(values, owners_of(bounds), first, len(present))
        return list_array(self.type.arrow, bounds, [values], bits_of(present))


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The ``n`` greatest or least inputs, the best first; with ``distinct`` equal ones count once. Nulls are none."""

    type: DataType
    n: int
    greatest: bool
    distinct: bool = False

    def accumulate(self, inputs: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The best of each group's inputs."""
        valid = valid_mask(inputs)
        return self._best(inputs.drop_null(), groups.numbers[valid], groups.any(valid))

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The best of the best."""
        bounds, values = list_bounds(states)
        return self._best(values, groups.numbers[owners_of(bounds)], groups.any(valid_mask(states)))

    def check(self, states: pa.Array) -> None:
        """Nothing among the best is null. Too many of them, or in another order, are put right when they are merged."""
        if list_bounds(states)[1].null_count:
            raise InvalidRows("a list of the best values has a null in it; leave it out")

    def _best(self, values: pa.Array, owners: Rows, present: Mask) -> pa.Array:
        found = ranks(values, self.type.fields[0].type)
        runs = Runs.of(owners, ~found if self.greatest else found)  # turned round without an overflow
        order = runs.order[runs.groups.starts] if self.distinct else runs.order
        places = places_of(counts_of(owners[order], len(present)))
        values, bounds = _chosen(values, owners, order[places < self.n], len(present))
        return list_array(self.type.arrow, bounds, [values], bits_of(present))


def _chosen(values: pa.Array, owners: Rows, places: Rows, count: int) -> tuple[pa.Array, Rows]:
    """The values at these places, and the bounds of the lists of so many owners that they make."""
    return values.take(pa.array(places)), bounds_of(counts_of(owners[places], count))


def _without_null_items(lists: pa.Array, type: DataType) -> pa.Array:
    bounds, values = list_bounds(lists)
    if not values.null_count:
        return lists
    counts = counts_of(owners_of(bounds)[valid_mask(values)], len(lists))
    return list_array(type.arrow, bounds_of(counts), [values.drop_null()], validity_of(lists))
