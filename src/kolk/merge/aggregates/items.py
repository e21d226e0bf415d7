"""What is within all lists or maps of a column: which values are equal, how they are ordered, and whose they are.

The functions that keep lists and maps flatten them, work on the values with the number of each one's owner beside it,
and build lists or maps of what is left. Equal values are equal as stored bytes are: NaN equals itself, -0.0 is not 0.0,
and of maps within values the order of the entries counts. Nothing here knows functions.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.codec.buffers import Rows, joined, null_mask
from kolk.codec.fields import Fields
from kolk.merge.aggregates.choosing import ranks_of
from kolk.merge.groups import Groups
from kolk.model.kinds import Kind
from kolk.model.types import DataType, Field

_RANKED_BY_ARROW = (Kind.CHAR, Kind.STRING, Kind.BYTES, Kind.BINARY, Kind.DECIMAL)


@dataclass(frozen=True, slots=True)
class Runs:
    """Values by owner, then by number, then as they came, so that an owner's equal ones stand together: a run."""

    order: Rows
    """The place of each value before."""
    groups: Groups
    """The runs."""
    owners: Rows
    """Whose each run is."""
    is_as_before: bool
    """Whether every value stands where it stood, alone in its run."""

    @staticmethod
    def of(owners: Rows, numbers: Rows) -> "Runs":
        """The runs of values, by their owners and the numbers that stand for them."""
        rows = len(owners)
        order = np.arange(rows) if _ascend(owners, numbers) else np.lexsort((numbers, owners))
        owners, numbers = owners[order], numbers[order]
        is_new = np.ones(rows, np.bool_)
        is_new[1:] = (owners[1:] != owners[:-1]) | (numbers[1:] != numbers[:-1])
        groups = Groups(np.flatnonzero(is_new), rows)
        as_before = groups.are_single and bool((order == np.arange(rows)).all())
        return Runs(order, groups, owners[groups.starts], as_before)


def identities(values: pa.Array, type: DataType) -> Rows:
    """A number for each value, of any type, the same for equal ones. A null equals a null."""
    if type.is_nested:
        fields = Fields([Field("item", type)])
        values = joined(fields.parts(np.zeros(len(values), fields.head), [values]))
    elif type.is_floating:
        values = pa.array(ranks_of(values, type), mask=null_mask(values))
    return values.dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)


def first_places(owners: Rows, numbers: Rows) -> Rows:
    """The places at which each owner's distinct values come first, in order, by the numbers of ``identities``."""
    # Both are below 2**31, as Arrow's offsets are, so one number has room for a pair; that is quicker than runs.
    _, first = np.unique(owners * (numbers.max(initial=0) + 1) + numbers, return_index=True)
    return np.sort(first)


def ranks(values: pa.Array, type: DataType) -> Rows:
    """A number for each value of a scalar type, none of which is null, in the order of ``max`` and ``min``."""
    if type.kind not in _RANKED_BY_ARROW:
        return ranks_of(values, type)
    encoded = values.dictionary_encode()
    found = np.empty(len(encoded.dictionary), np.int64)
    found[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(found))
    return found[encoded.indices.to_numpy()]


def owners_of(bounds: Rows) -> Rows:
    """The list that each value is in."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def counts_of(owners: Rows, count: int) -> Rows:
    """How many values each of so many owners has."""
    return np.bincount(owners, minlength=count)


def _ascend(owners: Rows, numbers: Rows) -> bool:
    later = owners[1:] > owners[:-1]
    return bool((later | ((owners[1:] == owners[:-1]) & (numbers[1:] >= numbers[:-1]))).all())
