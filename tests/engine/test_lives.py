"""The end of a partition: once the record says that it is gone, nothing is written to it and nothing read."""

import pytest

import kolk
from kolk.errors import PartitionDropped
from kolk.model.ids import PlainTag
from kolk.model.write import Action, Write

SCHEMA = kolk.Schema([kolk.Column("day", "string"), kolk.Column("key", "int")], primary_key=["day", "key"])


def test_a_put_that_found_its_bucket_before_the_drop_is_refused_once_the_record_has_its_end(tmp_path, monkeypatch):
    with kolk.connect(tmp_path / "data") as db:
        table, engine = db.create_table("t", SCHEMA, partition_by=["day"]), db._service
        table.put([{"day": "a", "key": 1}])
        (bucket,), tablets = table.info.buckets_of(engine._partitions.named(table.info, "day=a")), engine._tablets
        rows = table.scan().to_arrow().to_batches()[0]
        refused: list[PartitionDropped] = []
        remove = tablets.drop_partition

        def late(dropped):
            """The record is written, and the files are still there."""
            prepared = tablets.merger(table.info).prepare(Write(action=Action.UPSERT, rows=rows))
            with pytest.raises(PartitionDropped) as error:
                tablet.put(prepared, PlainTag(1, 1))
            refused.append(error.value)
            remove(dropped)

        monkeypatch.setattr(tablets, "drop_partition", late)
        with tablets.use_one(table.info, bucket) as tablet:
            table.drop_partition(day="a")

        assert [error.partition for error in refused] == ["day=a"]
        (event,) = engine._partitions.of(table.info).since(2)
        assert event.ends == (1,)
