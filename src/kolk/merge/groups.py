"""Rows that stand group by group, and the ways to make one value of each group, for all groups at once.

Nothing here knows what a value means. A reduction is either numpy's ``reduceat``, or a tree: neighbours are combined in
pairs, then the results, until each group has one left, which is a few calls over whole columns however large a group
is. Groups are never empty; who has none leaves it out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.codec.buffers import Mask, Rows, spread_places, valid_mask
from kolk.model.nested import places_of


@dataclass(frozen=True)
class Groups:
    """Group ``i`` is the rows from ``starts[i]`` up to ``starts[i + 1]``, the last one up to ``rows``."""

    starts: Rows
    rows: int

    @staticmethod
    def of_counts(counts: Rows) -> "Groups":
        """Groups of so many rows each."""
        ends = np.cumsum(counts)
        return Groups(ends - counts, int(ends[-1]) if len(ends) else 0)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def are_single(self) -> bool:
        """Whether every group is one row."""
        return len(self.starts) == self.rows

    @cached_property
    def bounds(self) -> Rows:
        """Where each group starts, and behind them where the last one ends."""
        return np.append(self.starts, self.rows)

    @property
    def ends(self) -> Rows:
        """Where each group ends."""
        return self.bounds[1:]  # none, if there are no groups

    @cached_property
    def counts(self) -> Rows:
        """How many rows each group has."""
        return self.ends - self.starts

    @cached_property
    def numbers(self) -> Rows:
        """The group of each row."""
        return np.repeat(np.arange(len(self.starts)), self.counts)

    @cached_property
    def places(self) -> Rows:
        """The place of each row within its group."""
        return places_of(self.counts)

    @property
    def spans(self) -> Iterator[tuple[int, int]]:
        """Where each group starts and ends, for what is done one by one."""
        return pairwise(self.bounds.tolist())

    def reduce(self, ufunc: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        """One value for each group, by a numpy function of two arguments."""
        return values if self.are_single else ufunc.reduceat(values, self.starts, axis=0)

    def any(self, mask: Mask) -> Mask:
        """Whether a group has a row of the mask."""
        return self.reduce(np.logical_or, mask)

    def filtered(self, mask: Mask) -> tuple["Groups", Mask]:
        """The groups of the rows that the mask leaves, and which groups have any of them."""
        left = np.add.reduceat(mask, self.starts, dtype=np.int64) if self.rows else self.starts
        present = left > 0
        return Groups.of_counts(left[present]), present


def live(values: pa.Array, groups: Groups) -> tuple[pa.Array, Groups, Mask]:
    """The values that are not null, their groups, and which groups have any."""
    left, present = groups.filtered(valid_mask(values))
    return (values.drop_null() if values.null_count else values), left, present


def spread(values: pa.Array, present: Mask) -> pa.Array:
    """Values of the groups that are present, with nulls for those that are not."""
    if present.all():
        return values
    return values.take(spread_places(present))


def tree(groups: Groups, combine: Callable[[Rows, Rows], Rows], chosen: Rows) -> Rows:
    """One of ``chosen`` for each group: ``combine`` says of pairs of them, left and right, which goes on."""
    for left, stays in _rounds(groups):
        chosen[left] = combine(chosen[left], chosen[left + 1])
        chosen = chosen[stays]
    return chosen


def fold(groups: Groups, combine: Callable[[pa.Array, pa.Array], pa.Array], values: pa.Array) -> pa.Array:
    """As ``tree`` for what makes a new value of two: ``combine`` gets them as two columns."""
    for left, stays in _rounds(groups):
        made = combine(values.take(pa.array(left)), values.take(pa.array(left + 1)))
        index = np.arange(len(values))
        index[left] = len(values) + np.arange(len(left))
        if values.type != made.type:  # decimals grow
            values = values.cast(made.type)
        values = pa.concat_arrays([values, made]).take(pa.array(index[stays]))
    return values


def _rounds(groups: Groups) -> Iterator[tuple[Rows, Mask]]:
    """The rounds of a tree: where the left ones of the pairs are, and which rows the next round has."""
    while not groups.are_single:
        is_left = groups.places % 2 == 0
        has_right = groups.places + 1 < np.repeat(groups.counts, groups.counts)
        yield np.flatnonzero(is_left & has_right), is_left
        groups = Groups.of_counts((groups.counts + 1) // 2)
