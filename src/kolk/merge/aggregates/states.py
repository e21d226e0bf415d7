"""Functions whose state is bytes of a format that others know too: bitmaps and sketches.

What they share is here: groups, nulls, and the rule that bytes from outside are looked at before any library reads
them, at the very first write too. What a format is, and how states of it are united, a codec knows. A codec's states
are canonical: what adds nothing to a state leaves its bytes as they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from kolk.codec.buffers import check_bytes
from kolk.errors import UnknownAggregate
from kolk.merge.groups import Groups, live, spread

_LIBRARIES = ("pyroaring", "datasketches")


class Codec(Protocol):
    """One format of states. Frozen, without state of its own."""

    def values(self, inputs: pa.Array) -> Any:
        """Inputs without nulls in the form that ``build`` takes slices of; InvalidRows if one cannot be put in."""
        ...

    def build(self, values: Any) -> bytes:
        """The state of some values."""
        ...

    def merged(self, states: Sequence[bytes]) -> bytes:
        """The canonical state of states that were checked, one or more."""
        ...

    def check(self, state: bytes) -> None:
        """Raise InvalidRows if these bytes are no state. They may be anything, made to do harm even."""
        ...


@dataclass(frozen=True, slots=True)
class States:
    """A column of such states. With ``takes_values`` a put gives what is in them, otherwise it gives states."""

    codec: Codec
    takes_values: bool

    def accumulate(self, inputs: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The state of each group's values, or the union of its states; null where all are."""
        if not self.takes_values:
            self.check(inputs)
            return self.merge(inputs, groups)
        given, left, present = live(inputs, groups)
        values = self.codec.values(given)
        return spread(_binary([self.codec.build(values[start:end]) for start, end in left.spans]), present)

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """The union of each group's states. A single one is made canonical, for it may come from elsewhere."""
        given, left, present = live(states, groups)
        found = given.to_pylist()
        return spread(_binary([self.codec.merged(found[start:end]) for start, end in left.spans]), present)

    def check(self, states: pa.Array) -> None:
        """Each by itself."""
        for state in states.drop_null().to_pylist():
            self.codec.check(state)


@contextmanager
def libraries() -> Iterator[None]:
    """Around the import of what needs them: if they are not there, UnknownAggregate says how to get them."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _LIBRARIES:
            raise
        raise UnknownAggregate(
            f"bitmaps and sketches need {error.name}, which is not installed here; pip install 'kolk[sketches]'"
        ) from None


def _binary(states: list[bytes]) -> pa.Array:
    check_bytes(sum(map(len, states)))
    return pa.array(states, pa.binary())
