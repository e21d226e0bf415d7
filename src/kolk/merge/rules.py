"""The rules of the merge engines: which of several rows of one key stands.

A rule answers two questions, each for a whole batch at once: which row of a key's rows in one put speaks for
the put (``reduce``), and whether that row replaces the stored one (``accepts``). Partial updates, deletes and
the changelog are the same for every rule and live elsewhere.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from kolk.codec.buffers import Mask, fixed_values, null_mask, slot_type
from kolk.codec.versions import RowCodecs
from kolk.model.options import MergeEngine, TableOptions
from kolk.model.schema import Column, Schema

Indices = np.ndarray[Any, np.dtype[np.int64]]


class Rule(Protocol):
    """One merge engine, over rows sorted by key: group ``i`` is ``order[starts[i]:starts[i + 1]]``."""

    @property
    def partial(self) -> bool:
        """Whether the rule can work on some columns only."""
        ...

    def reduce(self, rows: pa.RecordBatch, order: Indices, starts: Indices) -> Indices:
        """The index of the row that speaks for each key."""
        ...

    def accepts(self, rows: pa.RecordBatch, olds: pa.BinaryArray, found: Mask) -> Mask:
        """For each key whether its new row replaces what is stored; ``olds`` is null where nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class LastRow:
    """The default engine: the newest row stands."""

    partial: bool = True

    def reduce(self, rows: pa.RecordBatch, order: Indices, starts: Indices) -> Indices:
        """The last row put of each key."""
        return order[np.append(starts[1:], len(order)) - 1]

    def accepts(self, rows: pa.RecordBatch, olds: pa.BinaryArray, found: Mask) -> Mask:
        """Always."""
        return np.ones(len(found), np.bool_)


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The first row of a key stands for ever."""

    partial: bool = False

    def reduce(self, rows: pa.RecordBatch, order: Indices, starts: Indices) -> Indices:
        """The first row put of each key."""
        return order[starts]

    def accepts(self, rows: pa.RecordBatch, olds: pa.BinaryArray, found: Mask) -> Mask:
        """Only where nothing is stored."""
        return ~found


@dataclass(frozen=True, slots=True)
class Versioned:
    """The row with the greatest version stands; of equal versions the newest; a null version is the least."""

    column: Column
    codec: RowCodecs
    partial: bool = False

    def reduce(self, rows: pa.RecordBatch, order: Indices, starts: Indices) -> Indices:
        """The last row among those with the greatest version of each key."""
        versions = self._versions(rows)[order]
        greatest = np.repeat(np.maximum.reduceat(versions, starts), np.diff(np.append(starts, len(order))))
        last = np.where(versions == greatest, np.arange(len(order)), -1)
        return order[np.maximum.reduceat(last, starts)]

    def accepts(self, rows: pa.RecordBatch, olds: pa.BinaryArray, found: Mask) -> Mask:
        """Where the new version is not smaller than the stored one."""
        accepted = ~found
        stored = self._versions(self.codec.decode(olds.drop_null(), [self.column.name]))
        accepted[found] = self._versions(rows)[found] >= stored
        return accepted

    def _versions(self, rows: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.int64]]":
        array = rows.column(self.column.name)
        versions = fixed_values(array, np.dtype(slot_type(self.column.type))).astype("i8")
        missing = null_mask(array)
        if missing is not None:
            versions[missing] = np.iinfo("i8").min
        return versions


def rule_for(options: TableOptions, schema: Schema, codec: RowCodecs) -> Rule:
    """The rule of a table; what an aggregation table does not aggregate, it treats as the default engine does."""
    match options.merge_engine:
        case MergeEngine.DEFAULT | MergeEngine.AGGREGATION:
            return LastRow()
        case MergeEngine.FIRST_ROW:
            return FirstRow()
        case MergeEngine.VERSIONED:
            assert options.version_column is not None
            return Versioned(schema.column(options.version_column), codec)
