"""A write that is ready to meet the stored rows: distinct keys in order, and what the write says of each.

Everything in it is by key, so that it can be cut into the shares of buckets. It decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
import pyarrow as pa

from kolk.codec.buffers import Mask, Rows
from kolk.merge.rules import Rule
from kolk.model.schema import Schema
from kolk.model.write import Write


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One row for each key. Of an aggregation, its columns are states of what the write gives."""

    write: Write
    """What was asked for, should it have to be prepared again: of all keys, also in a share."""
    schema: Schema
    """The version that it was prepared for, which the write's rows are of."""
    rule: Rule
    keys: Sequence[bytes]
    rows: pa.RecordBatch
    values: pa.BinaryArray | None
    """The encoded rows, when they do not depend on what is stored."""
    blind: bool
    """Whether the merge need not see what is stored."""
    gone: Mask | None = None
    """Which keys are deleted, if some are; of an aggregation, those that are only taken from, and get no row."""
    removed: pa.RecordBatch | None = None
    """What retractions take from states, column by column, if there are any."""
    taken: Mask | None = None
    """Which keys retractions are about, if there are any."""
    is_aggregated: bool = False

    def take(self, order: Rows) -> "Prepared":
        """The same keys in another order, or some of them."""
        places = pa.array(order)
        return replace(
            self,
            keys=_picked(self.keys, order),
            rows=self.rows.take(places),
            values=None if self.values is None else self.values.take(places),
            gone=None if self.gone is None else self.gone[order],
            taken=None if self.taken is None else self.taken[order],
            removed=None if self.removed is None else self.removed.take(places),
        )

    def slice(self, start: int, count: int) -> "Prepared":
        """Some keys that stand behind each other."""
        rows = self.rows.slice(start, count)
        return replace(
            self,
            # A log table has no keys to tell by which of the rows are here.
            write=self.write if self.keys else replace(self.write, rows=rows),
            keys=self.keys[start : start + count],
            rows=rows,
            values=None if self.values is None else self.values.slice(start, count),
            gone=None if self.gone is None else self.gone[start : start + count],
            taken=None if self.taken is None else self.taken[start : start + count],
            removed=None if self.removed is None else self.removed.slice(start, count),
        )

    def only(self, keys: Sequence[bytes]) -> "Prepared":
        """Those of the keys that are among these."""
        if len(keys) == len(self.keys):
            return self
        wanted = set(keys)
        return self.take(np.array([place for place, key in enumerate(self.keys) if key in wanted], np.int64))


def _picked(keys: Sequence[bytes], order: Rows) -> Sequence[bytes]:
    if not keys or not len(order):
        return ()
    return itemgetter(*order.tolist())(keys) if len(order) > 1 else (keys[int(order[0])],)
