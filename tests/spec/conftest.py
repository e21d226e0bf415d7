"""A database in a temporary folder, without syncs: what these tests promise does not depend on them.

Each test that takes ``db`` runs twice: with the engine in this process, and over real sockets to a server of it.
"""

import pytest

import kolk
from kolk.server.run import Server


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def config():
    return kolk.EngineConfig(durability="process", kv_block_cache_bytes=2**23, kv_write_buffer_bytes=2**23)


@pytest.fixture(params=["embedded", "network"])
def form(request):
    return request.param


@pytest.fixture
def url(form, folder, config):
    """What to connect to besides the folder: the server, in the network form."""
    if form == "embedded":
        yield None
        return
    with Server.open(folder, kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1), config) as server:
        yield server.url


@pytest.fixture
def db(url, folder, config):
    with kolk.connect(url) if url else kolk.connect(folder, config=config) as database:
        yield database


@pytest.fixture
def pages(db):
    schema = kolk.Schema(
        [kolk.Column("page", "string"), kolk.Column("pv", "bigint"), kolk.Column("title", "string")],
        primary_key=["page"],
    )
    return db.create_table("web.pages", schema, buckets=4)
