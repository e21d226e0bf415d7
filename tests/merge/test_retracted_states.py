"""What is taken back before anything is stored, or as states: the edges of retraction."""

import numpy as np
import pyarrow as pa
import pytest

from kolk.merge.engine import Merger
from kolk.merge.groups import Groups
from kolk.model.change import ChangeKind
from kolk.model.options import DeleteBehavior, MergeEngine, MergeMode, TableOptions
from kolk.model.schema import Column, Schema
from kolk.model.write import Action, Write


def test_no_groups_have_no_ends():
    none = Groups(np.array([], np.int64), 0)

    assert none.ends.tolist() == none.counts.tolist() == none.numbers.tolist() == []


@pytest.mark.parametrize("mode", [MergeMode.ACCUMULATE, MergeMode.MERGE_STATE])
@pytest.mark.parametrize("agg", ["last_value", "sum", "bit_xor"])
def test_a_state_is_taken_back_as_the_value_that_it_is(mode, agg):
    schema = Schema([Column("k", "bigint"), Column("v", "bigint", agg=agg)], "k")
    merger = Merger(schema, TableOptions(merge_engine=MergeEngine.AGGREGATION, delete_behavior=DeleteBehavior.IGNORE))
    rows = pa.record_batch({"k": pa.array([1]), "v": pa.array([7])}, schema=schema.arrow)
    stored = merger.codec.encode(rows)
    back = rows.append_column("_change_type", pa.array([ChangeKind.DELETE], pa.int8()))

    changes = merger.merge(merger.prepare(Write(action=Action.CHANGE, rows=back, mode=mode)), stored)

    assert changes.rows is not None
    assert changes.rows.column("v").to_pylist() == [7, None if agg == "last_value" else 0]
