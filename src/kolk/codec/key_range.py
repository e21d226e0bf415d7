"""Where in the order of keys the rows lie that a predicate can select: what spares a scan the rest of the table.

The columns of the key are looked at in their order. As long as what the predicate says of a column leaves one value,
that value extends a prefix that all keys in question share; the first column of which more is left bounds what stands
behind the prefix, and ends it:

    a = 1 AND b >= 5 AND c < 9      of a key (a, b, c): from 0x01 | 1 | 5 on, and before all that starts with 0x01 | 2

What is said of one column is the overlap of the parts of an AND and the hull of the parts of an OR, and everything
where nothing is said of it. An OR at the top is the hull of its parts' ranges.

All bounds are bytes of keys, so their order is the keys' order, and no type is treated by itself. The bytes of a column
are those of ``kolk.codec.key``. A value that other columns follow, or that has a fixed width, never begins another one:
what lies behind it is the next number of as many bytes. A text at the end of the key begins all texts that go on from
it: only 0x00 lies behind it.

The range may hold keys that are not selected, and never leaves one out that is: whoever scans it still applies the
predicate. What is not understood, or is too long to be a key, does not narrow it, and nothing raises.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from kolk.codec.buffers import VARIABLE
from kolk.codec.key import KEY_BYTES_MAX, ROW_PREFIX, KeyCodec
from kolk.errors import TooLarge
from kolk.model.predicate import Predicate
from kolk.model.terms import Always, And, Comparison, Node, OneOf, Operator, Or

KeyRange = tuple[bytes, bytes]
"""The first key, and the first one that no longer belongs to it."""


def key_range(where: Predicate | None, keys: KeyCodec) -> KeyRange | None:
    """A range with the key of every row that can be selected, None if none can; no bound is longer than a key.

    The predicate is one about the schema of these keys.
    """
    root = Always(True) if where is None else where.root
    branches = root.parts if isinstance(root, Or) else (root,)
    found = _hull(_range_of(branch, keys) for branch in branches)
    return None if found is None else _shortened(*found)


def _range_of(node: Node, keys: KeyCodec) -> KeyRange | None:
    found, prefix, is_exact = _starting_with(ROW_PREFIX), ROW_PREFIX, True
    for number in range(len(keys.schema.key_columns)):
        place = _Place(keys, number, prefix)
        narrowed = _narrowed(node, place)
        if narrowed is None:
            return None
        # Once a column has several values, those behind it bound nothing; but one that can have none is still found.
        if is_exact:
            found, is_exact = narrowed, place.is_one_value(*narrowed)
            prefix = narrowed[0] if is_exact else prefix
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """A column of the key, behind the bytes of those before it that have one value."""

    keys: KeyCodec
    number: int
    prefix: bytes

    def range_of(self, term: Comparison | OneOf) -> KeyRange | None:
        """The keys of which a term can be true."""
        whole = _starting_with(self.prefix)
        bounds = self._bounds(term)
        if bounds is None:
            return whole
        least, greatest = bounds
        match term.operator if isinstance(term, Comparison) else Operator.EQUAL:
            case Operator.EQUAL:
                narrowed = least, self._after(greatest)
            case Operator.LESS:
                narrowed = whole[0], least
            case Operator.LESS_EQUAL:
                narrowed = whole[0], self._after(greatest)
            case Operator.GREATER:
                narrowed = self._after(least), whole[1]
            case Operator.GREATER_EQUAL:
                narrowed = least, whole[1]
            case Operator.NOT_EQUAL:
                narrowed = whole
        return _overlap([whole, narrowed])  # behind the greatest value lies what has another prefix

    def is_one_value(self, start: bytes, end: bytes) -> bool:
        """Whether all keys in this range of its own have the same value here, the last of ``start``."""
        is_bounded = len(start) > len(self.prefix)
        return is_bounded and _next(start) == end.ljust(len(start), b"\0")  # an end may lack its zeros

    def _bounds(self, term: Comparison | OneOf) -> tuple[bytes, bytes] | None:
        """The least and the greatest of a term's values behind the prefix; None if it says nothing of this column."""
        column = self.keys.schema.key_columns[self.number]
        if (term.column, term.type) != (column.name, column.type):
            return None
        if isinstance(term, OneOf) and term.negated:
            return None
        literals = term.literals if isinstance(term, OneOf) else (term.literal,)
        scalars = [literal.scalar for literal in literals]
        if not scalars or any(scalar.type != column.type.arrow or not scalar.is_valid for scalar in scalars):
            return None
        try:
            values = self.keys.encode_column(self.number, pa.array(scalars, column.type.arrow))
        except TooLarge:
            return None
        return self.prefix + min(values), self.prefix + max(values)

    def _after(self, key: bytes) -> bytes:
        """The first bytes behind all keys that have the value which ``key`` ends with."""
        columns = self.keys.schema.key_columns
        is_open = self.number == len(columns) - 1 and columns[self.number].type.kind in VARIABLE
        return key + b"\0" if is_open else _next(key)


# --- the tree


def _narrowed(node: Node, place: _Place) -> KeyRange | None:
    """What a predicate leaves of the keys with the place's prefix, by what it says of this column alone."""
    match node:
        case Always():
            return _starting_with(place.prefix) if node.value else None
        case And():
            return _overlap(_narrowed(part, place) for part in node.parts)
        case Or():
            return _hull(_narrowed(part, place) for part in node.parts)
        case Comparison() | OneOf():
            return place.range_of(node)
        case _:
            return _starting_with(place.prefix)


# --- ranges


def _starting_with(prefix: bytes) -> KeyRange:
    # Without its zeros, the next prefix still lies behind them all, and never behind 0x02, where the rows end.
    return prefix, _next(prefix).rstrip(b"\0")


def _next(key: bytes) -> bytes:
    """The next bytes of the same length. There are some, since a row's key starts with 0x01."""
    return (int.from_bytes(key, "big") + 1).to_bytes(len(key), "big")


def _overlap(ranges: Iterable[KeyRange | None]) -> KeyRange | None:
    """What lies in all of them: one at least."""
    starts: list[bytes] = []
    ends: list[bytes] = []
    for each in ranges:
        if each is None:
            return None
        starts.append(each[0])
        ends.append(each[1])
    start, end = max(starts), min(ends)
    return (start, end) if start < end else None


def _hull(ranges: Iterable[KeyRange | None]) -> KeyRange | None:
    """The least range that holds them all."""
    some = [each for each in ranges if each is not None]
    return (min(start for start, _ in some), max(end for _, end in some)) if some else None


def _shortened(start: bytes, end: bytes) -> KeyRange:
    """The same keys, or one more, between bounds that are no longer than a key may be."""
    return start[:KEY_BYTES_MAX], end if len(end) <= KEY_BYTES_MAX else _starting_with(end[:KEY_BYTES_MAX])[1]
