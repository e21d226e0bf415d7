"""What an aggregate function does, once it is bound to a column: the interface that all of them have.

A put's rows are sorted by key, so a function sees groups, one for each key:

- ``accumulate`` makes one state of the inputs of each group,
- ``merge`` makes one state of the states of each group, in order,
- ``retracted`` and ``remove``, for those that can: what a group's retractions take back, and a state without it,
- ``check`` refuses states from outside that are none.

A null state is the state of nothing: merged with another it gives that other. (``last_value`` and the like differ: a
null is a value to them.) The law that all rest on: ``merge`` of the states of parts is the state of the whole, so it
does not matter how rows are cut into puts. Functions are frozen values without state of their own.
"""

from typing import Protocol, runtime_checkable

import pyarrow as pa

from kolk.codec.buffers import Mask
from kolk.merge.groups import Groups, spread
from kolk.model.types import DataType


class Aggregator(Protocol):
    """One function, bound to the type and the parameters of a column."""

    def accumulate(self, inputs: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The state of each group's inputs. ``by`` is what another column was given, if that decides."""
        ...

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """One state of each group's states. ``by`` is the state of the column that decides."""
        ...

    def check(self, states: pa.Array) -> None:
        """Raise InvalidRows if one of these is not a state of this function."""
        ...


@runtime_checkable
class Retractable(Aggregator, Protocol):
    """A function whose inputs can be taken back."""

    def retracted(self, inputs: pa.Array, retracts: Mask, groups: Groups) -> pa.Array:
        """What each group's retractions take back, null for nothing. Other inputs are seen for their order."""
        ...

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """The states without what was taken back; null where there is no state."""
        ...


@runtime_checkable
class Widening(Retractable, Protocol):
    """A function whose states may not fit their column in between, before something is taken back."""

    @property
    def type(self) -> DataType:
        """The type of its states."""
        ...

    @property
    def roomy(self) -> "Widening":
        """The same function over a type that has room for more."""
        ...

    def fitted(self, states: pa.Array) -> pa.Array:
        """States of ``roomy`` as its own; AggregateOverflow, or what its column says, if one does not fit."""
        ...


class Unchecked:
    """A function of which every value of the column's type is a state."""

    def check(self, states: pa.Array) -> None:
        """Nothing to check."""


class SelfMerging(Unchecked):
    """A function whose inputs are states already."""

    def accumulate(self, inputs: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The same as merging them."""
        return self.merge(inputs, groups, by)

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """One state of each group's states."""
        raise NotImplementedError


class Subtracting:
    """A function that takes from a state the state of what is taken back."""

    def retracted(self: Aggregator, inputs: pa.Array, retracts: Mask, groups: Groups) -> pa.Array:
        """The state of each group's retractions alone."""
        left, present = groups.filtered(retracts)
        return spread(self.accumulate(inputs.filter(pa.array(retracts)), left), present)
