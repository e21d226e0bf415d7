"""A database in a temporary folder, without syncs: what these tests promise does not depend on them.

Each test that takes ``db`` runs twice: with the engine in this process, and over real sockets to a server of it.
"""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.spec.owned import PLAIN, SERVER, hurried, open_rack
from tests.spec.scanned import SCHEMA, rows

import kolk
from kolk.client.scan_reader import RemoteScan
from kolk.engine.database import Engine
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.server.run import Server
from kolk.testing.clock import ManualClock


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
    with Server.open(folder, SERVER, config) as server:
        yield server.url


@pytest.fixture
def db(url, folder, config):
    with kolk.connect(url) if url else kolk.connect(folder, config=config) as database:
        yield database


@pytest.fixture(scope="module", params=["embedded", "network"])
def database(request, tmp_path_factory, config):
    """One database for all tests of a module, which has a ``config`` of its own for it."""
    folder = tmp_path_factory.mktemp("shared") / "data"
    if request.param == "embedded":
        with kolk.connect(folder, config=config) as db:
            yield db
        return
    with Server.open(folder, SERVER, config) as server, kolk.connect(server.url) as db:
        yield db


@pytest.fixture
def pages(db):
    schema = kolk.Schema(
        [kolk.Column("page", "string"), kolk.Column("pv", "bigint"), kolk.Column("title", "string")],
        primary_key=["page"],
    )
    return db.create_table("web.pages", schema, buckets=4)


class Bench:
    """A database whose time is moved by hand, with log files of one put each, in either form."""

    def __init__(self, folder, form, **settings):
        self.clock = ManualClock()
        self.db = None
        self._port = 0
        self._folder = folder
        self._form = form
        self._settings = {
            "durability": "process",
            "kv_block_cache_bytes": 2**23,
            "kv_write_buffer_bytes": 2**23,
            "log_segment_bytes": 1,
        } | settings
        self._open()

    def _open(self):
        self.engine = Engine(Folder(self._folder), kolk.EngineConfig(**self._settings), clock=self.clock)
        self._server = None
        if self._form == "network":
            self._server = Server(self.engine, replace(SERVER, port=self._port), self.engine.close)
        self.db = self.db or self.connect()

    def connect(self):
        """One more client."""
        if self._server is None:
            return kolk.Database(self.engine, lambda: None, Rng(), clock=self.clock)
        remote = kolk.connect(self._server.url, timeout=10)
        return kolk.Database(remote._link.service, remote.close, Rng(), clock=self.clock)

    def reopen(self):
        """The end of the process, and another one."""
        self.close()
        self.db, self._port = None, 0
        self._open()

    def hurried(self):
        return hurried(self.db)

    def restart(self):
        """The end of the server's process, and another one at its address: clients stay as they are."""
        assert self._server is not None, "without a network the client ends with it"
        self._port = int(self._server.url.rpartition(":")[2])
        self._server.close()
        self._open()

    def close(self):
        if self.db is not None:
            self.db.close()
        if self._server is not None:
            self._server.close()
        self.engine.close()


@pytest.fixture
def bench(form, folder):
    """Make such a database with settings of its own."""
    made = []

    def make(**settings):
        made.append(Bench(folder, form, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def timed(bench):
    return bench()


@pytest.fixture
def rack(folder, form):
    """A database for owners, whose time is moved by hand."""
    with open_rack(folder, form) as rack:
        yield rack


@pytest.fixture
def t(rack):
    """A table of sums and other aggregates, with owners."""
    return rack.create(buckets=2)


@pytest.fixture
def p(rack):
    """A table without functions, with owners."""
    return rack.create(schema=PLAIN, buckets=1)


@pytest.fixture
def small(bench):
    """A database with pages of a few rows."""
    return bench(scan_page_rows=4, scan_page_bytes_max=420)


@pytest.fixture
def table(small):
    """A table of sixty rows in it."""
    made = small.db.create_table("t", SCHEMA, buckets=3)
    made.put(rows(range(60)))
    return made


@pytest.fixture
def by_pages(monkeypatch):
    """Over the network, too, nothing is read ahead."""
    monkeypatch.setattr(RemoteScan, "_streamed", lambda scan, deadline: scan._paged())


@pytest.fixture
def opened(url, folder, config):
    """A way to open the database that the test can use in its own loop."""

    @asynccontextmanager
    async def open_it():
        options = {} if url else {"config": config}
        async with await kolk.aio.connect(url or folder, **options) as db:
            yield db

    return open_it
