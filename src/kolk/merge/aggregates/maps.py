"""Functions of maps: the values of each key by a function of values, for all keys of all maps at once.

The entries of a group's maps are put in the order of their keys, so that the values of one key stand together and are a
group themselves. That order is also how the maps are kept, so equal maps are equal bytes, whatever order they came in.
A map that nothing is left in is empty, not null.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kolk.codec.buffers import Mask, Rows, valid_mask
from kolk.merge.aggregates.aggregator import SelfMerging, Subtracting
from kolk.merge.aggregates.arithmetic import Sum
from kolk.merge.aggregates.choosing import Chosen, taken
from kolk.merge.aggregates.items import Runs, counts_of, owners_of, ranks
from kolk.merge.groups import Groups
from kolk.model.nested import bits_of, bounds_of, list_array, list_bounds, row_fields, validity_of
from kolk.model.types import DataType

_LAST = Chosen(last=True, ignores_nulls=False)


@dataclass(frozen=True, slots=True)
class MapOf(SelfMerging):
    """The values of each key, made one by a function of values: ``min_map`` and ``max_map``."""

    type: DataType
    function: SelfMerging

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """One map of each group's maps."""
        maps = _Entries.of(states)
        runs = Runs.of(groups.numbers[maps.owners], ranks(maps.keys, self.type.fields[0].type))
        if groups.are_single and runs.is_as_before:
            return states
        keys = maps.keys.take(pa.array(runs.order[runs.groups.starts]))
        items = self.function.merge(maps.items.take(pa.array(runs.order)), runs.groups)
        return _maps(self.type, keys, items, runs.owners, groups.any(valid_mask(states)))


@dataclass(frozen=True, slots=True)
class SumMap(Subtracting, MapOf):
    """The sum of each key's values."""

    function: Sum

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """The differences; a key that is not there is passed over."""
        if removed.null_count == len(removed):
            return states
        kept, less = _Entries.of(states), _Entries.of(removed)
        items = self.function.remove(kept.items, taken(less.items, _places(kept, less, self.type)))
        return list_array(self.type.arrow, kept.bounds, [kept.keys, items], validity_of(states))


@dataclass(frozen=True, slots=True)
class MergeMap(MapOf):
    """The last value of each key, which may be null."""

    function: Chosen = _LAST

    def retracted(self, inputs: pa.Array, retracts: Mask, groups: Groups) -> pa.Array:
        """The keys of which the last thing that happened is that they were taken back."""
        maps = _Entries.of(inputs)
        runs = Runs.of(groups.numbers[maps.owners], ranks(maps.keys, self.type.fields[0].type))
        last = runs.order[runs.groups.ends - 1]
        goes = retracts[maps.owners[last]]
        places, owners = pa.array(last[goes]), runs.owners[goes]
        present = counts_of(owners, len(groups)) > 0
        return _maps(self.type, maps.keys.take(places), maps.items.take(places), owners, present)

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """The maps without those keys."""
        if removed.null_count == len(removed):
            return states
        kept = _Entries.of(states)
        stays = _places(kept, _Entries.of(removed), self.type) < 0
        keys, items = kept.keys.filter(pa.array(stays)), kept.items.filter(pa.array(stays))
        return _maps(self.type, keys, items, kept.owners[stays], valid_mask(states))


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries of maps, one behind the other, and which map each is of."""

    bounds: Rows
    keys: pa.Array
    items: pa.Array
    owners: Rows

    @staticmethod
    def of(maps: pa.Array) -> "_Entries":
        bounds, entries = list_bounds(maps)
        keys, items = row_fields(entries)
        return _Entries(bounds, keys, items, owners_of(bounds))


def _places(kept: _Entries, less: _Entries, type: DataType) -> Rows:
    """For each entry of some maps the place of its key among those of other maps, row by row; -1 if it is not there."""
    keys = ranks(pa.concat_arrays([kept.keys, less.keys]), type.fields[0].type)
    runs = Runs.of(np.append(kept.owners, less.owners), keys)
    # No map has a key twice: a run of two is an entry, and behind it the other map's.
    pairs = runs.groups.starts[runs.groups.counts == 2]
    found = np.full(len(kept.keys), -1, np.int64)
    found[runs.order[pairs]] = runs.order[pairs + 1] - len(kept.keys)
    return found


def _maps(type: DataType, keys: pa.Array, items: pa.Array, owners: Rows, present: Mask) -> pa.Array:
    """Maps of entries that stand by owner."""
    return list_array(type.arrow, bounds_of(counts_of(owners, len(present))), [keys, items], bits_of(present))
