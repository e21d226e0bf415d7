"""What the changes of a frame are, to somebody who compares: the columns that they change, and the sum of their rows.

A row that comes or goes changes the columns that it has something in; null, and the default of a new row, are nobody's.

The sum is that of the rows that come minus that of those that go. The changelog shows both images of every update, so
the sum of all frames up to an offset is that of the rows at that offset: a table can be compared with its log in one
pass over each, whatever their size. It needs the full image; and it finds accidents, not forgeries.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.codec.checksum import added, row_hashes
from kolk.model.change import ChangeKind
from kolk.model.defaults import default_values
from kolk.model.schema import Column, Schema
from kolk.model.translation import translated


def changed_columns(rows: pa.RecordBatch, schema: Schema) -> frozenset[int]:
    """The ids of the columns that the rows of a frame change; none of an update without the row before it."""
    ops = rows.column(0).to_numpy()
    before, after = (_of_kinds(rows, ops, kind) for kind in (ChangeKind.UPDATE_BEFORE, ChangeKind.UPDATE_AFTER))
    alone = _of_kinds(rows, ops, ChangeKind.INSERT, ChangeKind.DELETE)
    is_paired = before.num_rows == after.num_rows
    found: set[int] = set()
    for place, column in enumerate(schema.columns, 1):
        is_changed = is_paired and _differ(before.column(place), after.column(place))
        if column.name not in schema.primary_key and (is_changed or _is_set(alone.column(place), column)):
            found.add(column.id)
    return frozenset(found)


def sum_of_changes(rows: pa.RecordBatch, source: Schema, schema: Schema) -> int:
    """What the rows of a frame of one version add to the sum of the rows in another."""
    table = pa.RecordBatch.from_arrays(rows.columns[1:], schema=source.arrow)
    shown = translated(table, source, schema.columns) if source.id != schema.id else table
    hashes, ops = row_hashes(shown, schema.columns), rows.column(0).to_numpy()
    come = (ops == ChangeKind.INSERT) | (ops == ChangeKind.UPDATE_AFTER)
    return added(_total(hashes[come]), -_total(hashes[~come]))


def sum_of_rows(rows: pa.RecordBatch, schema: Schema) -> int:
    """The sum of rows themselves."""
    return _total(row_hashes(rows, schema.columns))


def _total(hashes: NDArray[np.uint64]) -> int:
    return added(0, int(hashes.sum(dtype=np.uint64)))


def _of_kinds(rows: pa.RecordBatch, ops: NDArray[np.int8], *kinds: ChangeKind) -> pa.RecordBatch:
    return rows.filter(pa.array(np.isin(ops, kinds)))


def _is_set(values: pa.Array, column: Column) -> bool:
    """Whether one of the values is neither null nor what a new row has."""
    values = values.drop_null()
    if column.default is None:
        return len(values) > 0
    return _differ(values, default_values(column.default, column.type, len(values)))


def _differ(one: pa.Array, other: pa.Array) -> bool:
    """Whether two columns differ; Arrow holds that NaN is not NaN."""
    if one.equals(other):
        return False
    has_floats = any(word in str(one.type) for word in ("float", "double"))
    return not has_floats or repr(one.to_pylist()) != repr(other.to_pylist())
