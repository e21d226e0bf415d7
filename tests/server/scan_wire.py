"""A server on a clock that is moved by hand, and clients that send it single messages about scans."""

import pyarrow as pa
import pytest

import kolk
from kolk.engine.database import Engine
from kolk.errors import UnknownOrExpiredScan
from kolk.model.grant import Grant
from kolk.runtime.clock import SystemClock
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.server.run import Server
from kolk.server.tokens import Tokens
from kolk.testing.clock import ManualClock
from kolk.wire import messages as m

TTL = 60.0
SECONDS = 30
SMALL = 1
LARGE = 2**20
SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")


class Wire:
    """A server of a database whose time is moved by hand, and clients that send it single messages."""

    def __init__(self, folder, **settings):
        self.clock = ManualClock()
        self.folder = folder
        quick = {"durability": "process", "kv_block_cache_bytes": 2**23, "kv_write_buffer_bytes": 2**23}
        self.engine = Engine(Folder(folder), kolk.EngineConfig(**quick | settings), clock=self.clock)
        self.server = Server(self.engine, kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1), self.engine.close)
        self.clients = []

    def connect(self, **options):
        self.clients.append(kolk.connect(self.server.url, **{"timeout": 10} | options))
        return self.clients[-1]

    def token(self, name, *grants):
        """The secret of a new token."""
        tokens = Tokens(self.folder / "tokens.json", SystemClock(), Rng())
        secret = tokens.create(name, [Grant.parse(text) for text in grants])[1]
        self.server._access._tokens._checked = float("-inf")
        return secret

    @property
    def counts(self):
        return self.engine.scans.sessions.counts()

    def close(self):
        for client in self.clients:
            client.close()
        self.server.close()


class Caller:
    """One client's connection, message by message."""

    def __init__(self, db):
        self.db = db
        self.service = db._link.service

    def open(self, table, page_bytes=LARGE, **request):
        record, rows = self.service.scan_page(m.OpenScan(table=table.info.id, page_bytes=page_bytes, **request))
        return m.as_record(record, m.ScanRecord), ids(rows, table)

    def next(self, scan, seq, table, page_bytes=LARGE, cursor="c", **request):
        call = m.NextPage(scan=scan, cursor=cursor, seq=seq, page_bytes=page_bytes, **request)
        record, rows = self.service.scan_page(call)
        return m.as_record(record, m.ScanPart), ids(rows, table)

    def rest(self, scan, table, token="", page_bytes=LARGE, cursor="rest"):
        part, found = self.next(scan, 0, table, page_bytes, cursor, token=token)
        seq = 0
        while not part.last:
            seq += 1
            part, more = self.next(scan, seq, table, page_bytes, cursor)
            found += more
        return found

    def close(self, scan="", nonce=""):
        return self.service._act(m.CloseScan(scan=scan, nonce=nonce))


def ids(rows, table):
    return pa.ipc.read_record_batch(rows, table.schema.arrow)["id"].to_pylist() if rows.size else []


def gone(ask):
    with pytest.raises(UnknownOrExpiredScan) as error:
        ask()
    return error.value.reason
