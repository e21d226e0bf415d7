"""A user's aggregate function, bound to a column: its methods are called value by value, and nothing of it is trusted.

States are Python values while it works on them, and values of the column's type otherwise. Whatever a method raises
becomes InvalidRows that names the function and the column, so that a put fails alone, before anything is written; so
does a state that does not fit its column. A null is passed over, and None for a state is the state of nothing, as
everywhere. ``merge`` is called under the lock of a bucket, so what takes long in it makes everybody wait.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kolk.codec.buffers import Mask, replaced, valid_mask
from kolk.errors import InvalidRows, KolkError
from kolk.merge.aggregates.aggregator import Unchecked
from kolk.merge.groups import Groups, spread
from kolk.model.conversion import array_of, converted
from kolk.model.functions import Function
from kolk.model.rows import checked_rows
from kolk.model.schema import Column
from kolk.model.types import DataType
from kolk.model.values import as_python

_SHOWN_LENGTH_MAX = 300


@dataclass(frozen=True, slots=True)
class Custom(Unchecked):
    """A function without ``retract``. Every value of the column's type may be a state: its own methods judge it."""

    function: Function
    column: str
    type: DataType

    def accumulate(self, inputs: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Begin with ``init`` for each group, and add its values one by one."""
        given, user = python_values(inputs, self.column), self.function.implementation
        states: list[Any] = []
        with self._explained("accumulate"):
            for start, end in groups.spans:
                state = None
                for value in given[start:end]:
                    if value is not None:
                        state = user.accumulate(user.init() if state is None else state, value)
                states.append(state)
        return self._stored(states)

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Merge each group's states one by one; one that stands alone stays as it is, byte by byte."""
        if groups.are_single:
            return states
        given, user = python_values(states, self.column), self.function.implementation
        places: list[int] = []
        made: list[Any] = []
        with self._explained("merge"):
            for start, end in groups.spans:
                valid = [place for place in range(start, end) if given[place] is not None]
                if len(valid) < 2:
                    places.append(valid[0] if valid else start)
                    continue
                state = given[valid[0]]
                for place in valid[1:]:
                    state = given[place] if state is None else user.merge(state, given[place])
                places.append(len(states) + len(made))
                made.append(state)
        return pa.concat_arrays([states, self._stored(made)]).take(pa.array(places, pa.int64()))

    def _stored(self, states: Sequence[Any]) -> pa.Array:
        """States as the column holds them."""
        try:
            array = converted(array_of(states, self.type, self.column), self.type, self.column)
            batch = pa.RecordBatch.from_arrays([array], names=[self.column])
            return checked_rows(batch, [Column(self.column, self.type)]).column(0)
        except InvalidRows as error:
            raise InvalidRows(
                f"a state that the aggregate function {self.function.name!r} gave does not fit its column: {error}"
            ) from error

    @contextmanager
    def _explained(self, step: str) -> Iterator[None]:
        with explained(self.function.name, self.column, step):
            yield


@dataclass(frozen=True, slots=True)
class RetractableCustom(Custom):
    """A function with ``retract``. What is taken back is kept as the values themselves until it meets the state."""

    def retracted(self, inputs: pa.Array, retracts: Mask, groups: Groups) -> pa.Array:
        """The values of each group that are taken back, as lists."""
        taken = retracts & valid_mask(inputs)
        left, present = groups.filtered(taken)
        bounds = pa.array(left.bounds, pa.int32())
        return spread(pa.ListArray.from_arrays(bounds, inputs.filter(pa.array(taken))), present)

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """Take the values back one by one; where there is none the state stays as it is."""
        touched = valid_mask(states) & valid_mask(removed)
        where = np.flatnonzero(touched)
        if not len(where):
            return states
        given = python_values(states.take(pa.array(where)), self.column)
        values = python_values(removed.take(pa.array(where)), self.column)
        user = self.function.implementation
        with self._explained("retract"):
            for place, taken in enumerate(values):
                for value in taken:
                    given[place] = None if given[place] is None else user.retract(given[place], value)
        return replaced(states, where, self._stored(given))


def custom_aggregator(column: Column, function: Function) -> Custom:
    """A registered function, bound to a column."""
    kind = RetractableCustom if hasattr(function.implementation, "retract") else Custom
    return kind(function, column.name, column.type)


def python_values(array: pa.Array, column: str) -> list[Any]:
    """The values as Python has them, maps as dicts; InvalidRows if it has none for one of them."""
    try:
        return as_python(array)
    except ValueError as error:
        raise InvalidRows(f"Python has no value for what the column {column!r} holds: {error}") from error


@contextmanager
def explained(function: str, column: str, step: str) -> Iterator[None]:
    """What a user's method raises, as an error that says whose it was. Its exit must not end a server, either."""
    try:
        yield
    except (Exception, SystemExit) as error:
        told = str(error) if isinstance(error, KolkError) else repr(error)
        raise InvalidRows(
            f"the aggregate function {function!r} of the column {column!r} failed to {step}:"
            f" {told[:_SHOWN_LENGTH_MAX]}; nothing was written"
        ) from error
