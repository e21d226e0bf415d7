"""The tablets of a database."""

import pytest

import kolk
from kolk.errors import TableNotFound


def test_a_bucket_of_a_dropped_table_is_not_opened_again(tmp_path):
    with kolk.connect(tmp_path / "data") as db:
        table = db.create_table("t", kolk.Schema([kolk.Column("id", "int")], "id"), buckets=2)
        tablets = db._service._tablets
        db.drop_table("t")

        with pytest.raises(TableNotFound, match="was dropped"), tablets.use_one(table.info, table.info.bucket_id(1)):
            pass
        assert not (tmp_path / "data" / "tables" / str(table.info.id)).exists()
