"""How much a lookup brings: one limit for all the buckets that it looks into."""

import pytest

import kolk
from kolk.errors import TooLarge
from kolk.tablet import readers

SCHEMA = kolk.Schema([kolk.Column("id", "int"), kolk.Column("text", "string")], primary_key=["id"])


def test_a_lookup_in_many_buckets_brings_no_more_than_one_in_a_single_bucket(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "READ_BYTES_MAX", 300_000)
    with kolk.connect(tmp_path / "data", config=kolk.EngineConfig(durability="process")) as db:
        table = db.create_table("t", SCHEMA, buckets=8)
        table.put([{"id": id, "text": "x" * 10_000} for id in range(64)])

        few, many = ([{"id": id} for id in range(count)] for count in (24, 64))

        assert table.get(few).num_rows == 24
        with pytest.raises(TooLarge, match="ask for fewer at once"):
            table.get(many)
