"""A follower keeps the offsets of all buckets in one record, so their names together have a limit."""

import pytest

import kolk
from kolk.errors import TooManyPartitions

COLUMNS = [f"c{number}" for number in range(8)]


def test_names_that_no_record_of_offsets_could_hold_are_refused(tmp_path):
    schema = kolk.Schema([kolk.Column(name, "string", nullable=False) for name in COLUMNS])
    with kolk.connect(tmp_path / "data") as db:
        table = db.create_table("t", schema, partition_by=COLUMNS, buckets=1_000)
        table.add_partition({name: "short" for name in COLUMNS})

        with pytest.raises(TooManyPartitions, match="shorter values"):
            table.add_partition({name: "x" * 200 for name in COLUMNS})

        assert len(table.partitions()) == 1
