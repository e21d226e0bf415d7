"""From rows to partition names, for whole batches: the same as for each row by itself."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.model.test_partition import VALUES

from kolk.codec.partitioning import part
from kolk.model.partition import partition_name
from kolk.model.schema import Column


@st.composite
def batches(draw):
    """Rows of partition columns, of few distinct values, perhaps a slice out of the middle of more."""
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    columns = [Column(f"c{place}", type, nullable=False) for place, type in enumerate(types)]
    rows = draw(st.integers(0, 40))
    arrays = []
    for column, type in zip(columns, types, strict=True):
        pool = draw(st.lists(VALUES[type], min_size=1, max_size=4))
        arrays.append(pa.array([draw(st.sampled_from(pool)) for _ in range(rows)], column.type.arrow))
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.arrow for column in columns]))
    start = draw(st.integers(0, rows))
    return columns, batch.slice(start, draw(st.integers(0, rows - start)))


@given(batches())
def test_rows_are_parted_as_each_row_by_itself_would_be(drawn):
    columns, batch = drawn

    names, places = part(batch, columns)

    assert [names[place] for place in places] == [partition_name(columns, row) for row in batch.to_pylist()]
    assert len(set(names)) == len(names)
    assert sorted(set(places.tolist())) == list(range(len(names)) if batch.num_rows else [])


def test_a_million_rows_of_a_thousand_partitions_are_parted_without_a_loop_over_rows():
    columns = [Column("day", "int", nullable=False), Column("region", "string", nullable=False)]
    days = np.arange(1_000_000, dtype="i4") % 250
    regions = pa.array(["a", "b", "c", "d"]).take(pa.array(np.arange(1_000_000) // 250 % 4))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(days), regions], schema=pa.schema([column.arrow for column in columns])
    )

    names, places = part(batch, columns)

    assert len(names) == 1_000
    assert names[places[0]] == "day=0/region=a"
    assert names[places[999_999]] == "day=249/region=d"
