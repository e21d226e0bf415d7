"""A table whose scans are driven by hand, on a clock that is moved by hand, for the tests of scan sessions."""

import pyarrow as pa

import kolk
from kolk.engine.database import Engine
from kolk.model.predicate import Predicate
from kolk.model.scan import ScanRequest
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.clock import ManualClock

SCHEMA = kolk.Schema(
    [kolk.Column("id", "bigint"), kolk.Column("v", "string"), kolk.Column("n", "bigint")], primary_key=["id"]
)
TTL = 60.0
ME = "me"
PAGE = 2**20


class ScanBench:
    """An engine, a table of it with some rows, and the calls that a server makes on behalf of clients."""

    def __init__(self, path, *, rows=10, buckets=2, **settings):
        self.path = path
        self.clock = ManualClock()
        self.settings = {
            "durability": "process",
            "kv_block_cache_bytes": 2**22,
            "kv_write_buffer_bytes": 2**22,
        } | settings
        self.open_engine()
        self.table = self.db.create_table("web.t", SCHEMA, buckets=buckets)
        self.put(range(rows))

    def open_engine(self):
        self.engine = Engine(Folder(self.path), kolk.EngineConfig(**self.settings), clock=self.clock)
        self.db = kolk.Database(self.engine, self.engine.close, Rng(), clock=self.clock)
        self.scans = self.engine.scans
        self.sessions = self.scans.sessions

    def reopen(self):
        """The end of the process, and another one."""
        self.close()
        self.open_engine()
        self.table = self.db.table("web.t")

    def close(self):
        self.db.close()

    def put(self, ids, v="v", n=0):
        rows = [{"id": id, "v": v, "n": n} for id in ids]
        if rows:
            self.table.put(rows)

    def open(self, principal=ME, table=None, **request):
        """A new scan."""
        table = table or self.table
        if isinstance(request.get("where"), str):
            request["where"] = Predicate.parse(request["where"], table.schema)
        return self.scans.open(table.info, table.schema, ScanRequest(**request), principal)

    def call(self, scan, seq=0, *, cursor="c", page_bytes=PAGE, principal=ME, token="", only=None):
        """One call of a cursor."""
        return self.scans.call(scan, principal, cursor, seq, page_bytes, token, only)

    def pages(self, scan, *, cursor="c", page_bytes=PAGE, principal=ME, token="", only=None):
        """All pages of a cursor."""
        pages = []
        while not pages or not pages[-1].is_last:
            given = {"token": token, "only": only} if not pages else {}
            page = self.call(scan, len(pages), cursor=cursor, page_bytes=page_bytes, principal=principal, **given)
            pages.append(page)
        return pages

    def ids(self, scan, **how):
        """The ids that a scan shows, in its order."""
        return ids_of(self.pages(scan, **how))

    @property
    def counts(self):
        return self.sessions.counts()

    @property
    def tablets(self):
        return self.engine._tablets.opened()

    @property
    def views_open(self):
        """How many views really pin rows, whatever anybody has counted."""
        return sum(view.is_open for tablet in self.tablets for view in list(tablet._views))


def ids_of(pages):
    return [id for page in pages if page.batch is not None for id in page.batch["id"].to_pylist()]


def sent(page):
    """The bytes of a page's rows as they are sent."""
    return b"" if page.batch is None else page.batch.serialize().to_pybytes()


def table_of(pages):
    return pa.Table.from_batches([page.batch for page in pages if page.batch is not None])
