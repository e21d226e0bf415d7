"""The tree of a predicate: terms about columns under AND and OR, evaluated over Arrow.

There is no NOT in it: a negation is pushed down to the terms when the tree is made, where it turns ``<`` into ``>=``
and IN into NOT IN. That keeps SQL's three-valued logic, and makes it simple: a term that is null selects no row, just
as one that is false, and nothing above it can tell the two apart. So a mask is plain booleans. And since AND and OR
only ever grow with their parts, a term about a column that is not known can be taken for true, to find out what may
match.

The order of floats is Spark's: NaN is equal to itself and greater than everything, and -0.0 is equal to 0.0. Text is
ordered by the code points of its characters, bytes by their values, false before true.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kolk.model.literals import Exact, Literal, exact_of_scalar, floor_of, literal
from kolk.model.schema import Column
from kolk.model.tokens import name_text
from kolk.model.types import DataType

RESERVED = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "TRUE", "FALSE"})
"""A column of such a name stands in backticks."""

Mask = NDArray[np.bool_]


class Operator(Enum):
    """How a column is compared with a value."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="

    @property
    def negated(self) -> "Operator":
        """The one that holds where this does not."""
        return _NEGATED[self]

    @property
    def mirrored(self) -> "Operator":
        """The one that means the same with its sides exchanged."""
        return _MIRRORED.get(self, self)


_PAIRS = (
    (Operator.EQUAL, Operator.NOT_EQUAL),
    (Operator.LESS, Operator.GREATER_EQUAL),
    (Operator.GREATER, Operator.LESS_EQUAL),
)
_NEGATED = {**dict(_PAIRS), **{second: first for first, second in _PAIRS}}
_MIRRORED = {
    Operator.LESS: Operator.GREATER,
    Operator.GREATER: Operator.LESS,
    Operator.LESS_EQUAL: Operator.GREATER_EQUAL,
    Operator.GREATER_EQUAL: Operator.LESS_EQUAL,
}
_COMPARE: dict[Operator, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    Operator.EQUAL: pc.equal,
    Operator.NOT_EQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.LESS_EQUAL: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.GREATER_EQUAL: pc.greater_equal,
}
_BELOW = (Operator.LESS, Operator.LESS_EQUAL)
_ABOVE = (Operator.GREATER, Operator.GREATER_EQUAL)


# --- the tree


@dataclass(frozen=True, slots=True)
class Always:
    """True or false, whatever the row."""

    value: bool

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """The same for all rows."""
        return np.full(batch.num_rows, self.value)

    def __str__(self) -> str:
        return "TRUE" if self.value else "FALSE"


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a column is null, or is not."""

    column: str
    type: DataType
    negated: bool = False

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """The rows of which it is true, and all if the column is not known."""
        array = _known(batch, self.column)
        if array is None:
            return np.ones(batch.num_rows, np.bool_)
        return _plain(array.is_valid() if self.negated else array.is_null())

    def __str__(self) -> str:
        return f"{_column_text(self.column)} IS {'NOT ' if self.negated else ''}NULL"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column beside one value of its type."""

    column: str
    type: DataType
    operator: Operator
    literal: Literal

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """The rows of which it is true, and all if the column is not known."""
        array = _known(batch, self.column)
        if array is None:
            return np.ones(batch.num_rows, np.bool_)
        if self.type.is_floating and self.literal.text == _NAN:
            is_nan = pc.is_nan(array)
            return _plain(is_nan if self.operator is Operator.EQUAL else pc.invert(is_nan))
        mask = _plain(_COMPARE[self.operator](array, self.literal.scalar))
        return mask | _plain(pc.is_nan(array)) if self.type.is_floating and self.operator in _ABOVE else mask

    def __str__(self) -> str:
        return f"{_column_text(self.column)} {self.operator.value} {self.literal.text}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a column is one of several values of its type, or none of them."""

    column: str
    type: DataType
    literals: tuple[Literal, ...]
    negated: bool
    _values: pa.Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        scalars = [literal.scalar for literal in self.literals]
        if self.type.is_floating:
            # Arrow's hash tables tell the two zeros apart.
            scalars += [pa.scalar(-0.0, self.type.arrow) for literal in self.literals if literal.text == "0.0"]
        object.__setattr__(self, "_values", pa.array(scalars, self.type.arrow))

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """The rows of which it is true, and all if the column is not known."""
        array = _known(batch, self.column)
        if array is None:
            return np.ones(batch.num_rows, np.bool_)
        mask = _plain(pc.is_in(array, value_set=self._values))
        if self.type.is_floating and any(literal.text == _NAN for literal in self.literals):
            mask |= _plain(pc.is_nan(array))  # there are many NaNs, and the hash table knows one
        return ~mask & _plain(array.is_valid()) if self.negated else mask

    def __str__(self) -> str:
        listed = ", ".join(literal.text for literal in self.literals)
        return f"{_column_text(self.column)} {'NOT ' if self.negated else ''}IN ({listed})"


@dataclass(frozen=True, slots=True)
class And:
    """All parts are true: at least two, of which none is an ``And`` or a constant."""

    parts: "tuple[Node, ...]"

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """The rows of which it is true."""
        mask = self.parts[0].mask(batch)
        for part in self.parts[1:]:
            if not mask.any():
                break
            mask = mask & part.mask(batch)
        return mask

    def __str__(self) -> str:
        return " AND ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    """Some part is true: there are at least two, of which none is an ``Or`` or a constant."""

    parts: "tuple[Node, ...]"

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """The rows of which it is true."""
        mask = self.parts[0].mask(batch)
        for part in self.parts[1:]:
            if mask.all():
                break
            mask = mask | part.mask(batch)
        return mask

    def __str__(self) -> str:
        return " OR ".join(map(str, self.parts))


Term = IsNull | Comparison | OneOf
Node = Always | Term | And | Or
_NAN = "'NaN'"


def all_of(nodes: Sequence[Node]) -> Node:
    """All of these; of none, true."""
    parts = [part for node in nodes for part in (node.parts if isinstance(node, And) else (node,))]
    if Always(False) in parts:
        return Always(False)
    parts = [part for part in parts if not isinstance(part, Always)]
    return And(tuple(parts)) if len(parts) > 1 else parts[0] if parts else Always(True)


def any_of(nodes: Sequence[Node]) -> Node:
    """Some of these; of none, false."""
    parts = [part for node in nodes for part in (node.parts if isinstance(node, Or) else (node,))]
    if Always(True) in parts:
        return Always(True)
    parts = [part for part in parts if not isinstance(part, Always)]
    return Or(tuple(parts)) if len(parts) > 1 else parts[0] if parts else Always(False)


def terms_of(node: Node) -> Iterator[Term]:
    """The terms of a tree, from left to right."""
    match node:
        case And() | Or():
            for part in node.parts:
                yield from terms_of(part)
        case Always():
            return
        case _:
            yield node


# --- terms


def compared(column: Column, operator: Operator, exact: Exact) -> Node:
    """A column beside a value that its type may not be able to hold, as a term in which it is."""
    value, is_same = floor_of(exact, column.type)
    if value is None:
        return _of_any(column, operator in (*_ABOVE, Operator.NOT_EQUAL))
    if not is_same:
        # The exact value lies right above this one.
        if operator in (Operator.EQUAL, Operator.NOT_EQUAL):
            return _of_any(column, operator is Operator.NOT_EQUAL)
        operator = Operator.LESS_EQUAL if operator in _BELOW else Operator.GREATER
    held = literal(value, column.type)
    if held.text == _NAN and column.type.is_floating:
        # The greatest value: nothing is above it, and everything is below it or it.
        if operator in (Operator.LESS_EQUAL, Operator.GREATER):
            return _of_any(column, operator is Operator.LESS_EQUAL)
        operator = {Operator.GREATER_EQUAL: Operator.EQUAL, Operator.LESS: Operator.NOT_EQUAL}.get(operator, operator)
    return Comparison(column.name, column.type, operator, held)


def one_of(column: Column, exacts: Sequence[Exact], negated: bool = False) -> Node:
    """A column among several values; those that its type cannot hold are never equal to it, and left out."""
    floors = (floor_of(exact, column.type) for exact in exacts)
    held = [literal(value, column.type) for value, is_same in floors if is_same and value is not None]
    literals = tuple(dict.fromkeys(held))
    if not literals:
        return _of_any(column, negated)
    if len(literals) == 1:
        operator = Operator.NOT_EQUAL if negated else Operator.EQUAL
        return Comparison(column.name, column.type, operator, literals[0])
    return OneOf(column.name, column.type, literals, negated)


def matching(column: Column, values: pa.Array) -> Node:
    """A column equal to one of these values of its type; to a null, if it is null."""
    terms: list[Node] = [IsNull(column.name, column.type)] if values.null_count else []
    exacts = [exact_of_scalar(value, column.type) for value in values.drop_null()]
    return any_of([*terms, one_of(column, exacts)] if exacts else terms)


def _of_any(column: Column, outcome: bool) -> Node:
    """What is true, or false, of every value, and of null neither."""
    return IsNull(column.name, column.type, negated=True) if outcome else Always(False)


# --- inside


def _column_text(name: str) -> str:
    return f"`{name}`" if name.upper() in RESERVED else name_text(name)


def _known(batch: pa.RecordBatch, name: str) -> Any:
    place = batch.schema.get_field_index(name)
    return None if place < 0 else batch.column(place)


def _plain(array: pa.BooleanArray) -> Mask:
    """As numpy has it, null being false."""
    return (array.fill_null(False) if array.null_count else array).to_numpy(zero_copy_only=False)
