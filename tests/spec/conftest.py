"""A database in a temporary folder, without syncs: what these tests promise does not depend on them."""

import pytest

import kolk


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def config():
    return kolk.EngineConfig(durability="process", kv_block_cache_bytes=2**23, kv_write_buffer_bytes=2**23)


@pytest.fixture
def db(folder, config):
    with kolk.connect(folder, config=config) as database:
        yield database


@pytest.fixture
def pages(db):
    schema = kolk.Schema(
        [kolk.Column("page", "string"), kolk.Column("pv", "bigint"), kolk.Column("title", "string")],
        primary_key=["page"],
    )
    return db.create_table("web.pages", schema, buckets=4)
