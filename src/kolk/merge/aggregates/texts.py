"""``listagg``: the texts of a group one behind the other, with a delimiter between them."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.codec.buffers import binary_size, check_bytes
from kolk.errors import AggregateOverflow
from kolk.merge.aggregates.aggregator import SelfMerging
from kolk.merge.aggregates.items import counts_of, first_places, identities
from kolk.merge.groups import Groups, live, spread
from kolk.model.kinds import Kind
from kolk.model.types import DataType


@dataclass(frozen=True, slots=True)
class ListAgg(SelfMerging):
    """Nulls are passed over, an empty text is a text. With ``distinct`` what was there before is left out."""

    type: DataType
    delimiter: str
    distinct: bool = False

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Join them."""
        if groups.are_single and not self.distinct:
            return states
        texts, groups, present = live(states, groups)
        if self.distinct:
            texts, groups = self._distinct(texts, groups)
        self._check_size(texts, groups)
        bounds = pa.array(groups.bounds, pa.int32())
        found = pc.binary_join(pa.ListArray.from_arrays(bounds, texts), self.delimiter)
        if self.type.kind is Kind.CHAR:
            longest = pc.max(pc.utf8_length(found)).as_py() or 0
            if longest > self.type.arguments[0]:
                raise AggregateOverflow(
                    f"the joined text has {longest} characters and does not fit a {self.type}; nothing was written."
                    " Widen the column to string"
                )
        return spread(found, present)

    def _check_size(self, texts: pa.Array, groups: Groups) -> None:
        """Before anything is made: a long delimiter makes much of little."""
        check_bytes(binary_size(texts) + (groups.rows - len(groups)) * len(self.delimiter.encode()))

    def _distinct(self, texts: pa.Array, groups: Groups) -> tuple[pa.Array, Groups]:
        """The parts of each group's texts, each once, in the order in which they first came."""
        parts = pc.split_pattern(texts, self.delimiter)
        lengths = np.diff(parts.offsets.to_numpy())
        owners = np.repeat(groups.numbers, lengths)
        flat = parts.flatten()
        first = first_places(owners, identities(flat, self.type))
        return flat.take(pa.array(first)), Groups.of_counts(counts_of(owners[first], len(groups)))
