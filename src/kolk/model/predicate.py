"""Predicates: which rows a scan is to show. A frozen value that is read from text, has one text, and is evaluated over
Arrow.

The text is SQL's (``kolk.model.where``), the tree and what it means are in ``kolk.model.terms``. A predicate is made
for the columns of one schema: its literals are values of their types. It selects the rows of which it is true, not
those of which it is false or null.
"""

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from kolk.errors import InvalidArgument
from kolk.model.schema import Schema
from kolk.model.terms import Mask, Node, OneOf, terms_of
from kolk.model.where import TERMS_MAX, TEXT_LENGTH_MAX, VALUES_MAX, read_where


@dataclass(frozen=True)
class Predicate:
    """Which rows are selected. Equal predicates have equal texts."""

    root: Node

    def __post_init__(self) -> None:
        terms = list(terms_of(self.root))
        if len(terms) > TERMS_MAX:
            raise InvalidArgument(
                f"a predicate has at most {TERMS_MAX:,} comparisons, not {len(terms):,}; use IN (...)"
            )
        values = sum(len(term.literals) for term in terms if isinstance(term, OneOf))
        if values > VALUES_MAX:
            raise InvalidArgument(f"a predicate has at most {VALUES_MAX:,} values in its INs, not {values:,}")
        if len(self.text) > TEXT_LENGTH_MAX:
            raise InvalidArgument(
                f"the predicate has {len(self.text):,} characters as Kolk writes it, and at most {TEXT_LENGTH_MAX:,}"
            )

    @staticmethod
    def parse(text: str, schema: Schema) -> "Predicate":
        """Read SQL about the columns of a schema; whatever the text, the only error is InvalidArgument."""
        return Predicate(read_where(text, schema))

    @cached_property
    def text(self) -> str:
        """What is read back as an equal predicate, given the same schema."""
        return str(self.root)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns it needs, in the order in which it names them first."""
        return tuple(dict.fromkeys(term.column for term in terms_of(self.root)))

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """Of each row, whether it is selected. The batch has all of ``columns``."""
        assert set(self.columns) <= set(batch.schema.names)
        return self.root.mask(batch)

    def may_match(self, known: pa.RecordBatch) -> Mask:
        """Of each row of which only some columns are known, whether it could still be selected.

        It is false only if no values of the other columns could make the predicate true.
        """
        return self.root.mask(known)

    def check(self, schema: Schema) -> None:
        """Raise InvalidArgument if it was made for columns that this schema does not have."""
        for term in terms_of(self.root):
            if term.column not in schema.names or schema.column(term.column).type != term.type:
                raise InvalidArgument(
                    f"the predicate is about a column {term.column!r} of type {term.type.shown}, which the table does"
                    " not have; get the table anew"
                )

    def __str__(self) -> str:
        return self.text
