"""Real servers on real sockets: in this process where a test looks inside, in a child where it kills."""

import pytest
from tests.server.scan_wire import Caller, Wire

import kolk
from kolk.runtime.rng import Rng
from kolk.server.run import Server
from kolk.server.tokens import Tokens
from kolk.testing.clock import ManualClock

QUICK = kolk.EngineConfig(durability="process", kv_block_cache_bytes=2**23, kv_write_buffer_bytes=2**23)


@pytest.fixture
def schema():
    return kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.json"


@pytest.fixture
def tokens(path, clock, disk):
    """The tokens of a file on a disk that the test chooses."""
    return Tokens(path, clock, Rng(seed=1), disk)


@pytest.fixture
def serve(tmp_path):
    """Start servers of one folder; they are closed at the end of the test."""
    servers = []

    def start(*, events=None, disk_used=None, **settings):
        config = kolk.ServerConfig(**{"port": 0, "http_port": -1, "drain_seconds": 1.0} | settings)
        servers.append(Server.open(tmp_path / "data", config, QUICK, events=events, disk_used=disk_used))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def connect():
    """Connect to servers; the connections are closed at the end of the test, before the servers."""
    opened = []

    def to(server, **options):
        opened.append(kolk.connect(getattr(server, "url", server), **{"timeout": 10} | options))
        return opened[-1]

    yield to
    for db in opened:
        db.close()


@pytest.fixture
def hurry():
    """Give a connection's calls less time, after a set-up that had enough: machines are busy."""

    def to(db, seconds):
        db._link.service._retry._seconds = seconds

    return to


@pytest.fixture
def wired(tmp_path):
    made = []

    def make(**settings):
        made.append(Wire(tmp_path / "data", **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def wire(wired):
    return wired()


@pytest.fixture
def caller(wire):
    return Caller(wire.connect())
