"""A database whose time is moved by hand, and owners on it by their raw calls, with fences, epochs and counts."""

from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

import kolk
from kolk.client.writes import put_write
from kolk.codec.bucketing import bucket_of
from kolk.engine.database import Engine
from kolk.engine.restore import restore
from kolk.model.ids import OwnerTag
from kolk.model.options import MergeMode
from kolk.model.owner import Claim, UndoMode
from kolk.model.write import Action, Write
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.server.run import Server
from kolk.testing.clock import ManualClock

TTL = 30.0
SERVER = kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1)
SUMS = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("pv", "bigint", agg="sum"),
        kolk.Column("top", "bigint", agg="max"),
        kolk.Column("note", "string", agg="listagg"),
        kolk.Column("title", "string", agg="last_value"),
    ],
    primary_key="k",
)
PLAIN = kolk.Schema(
    [kolk.Column("k", "int"), kolk.Column("a", "int"), kolk.Column("b", "string"), kolk.Column("at", "timestamp(3)")],
    primary_key="k",
)


class Rack:
    """An engine in a folder, with a clock of its own, by itself or behind a server; it can be closed and opened again,
    and clients of a server stay as they are."""

    def __init__(self, folder, form="embedded", disk=None, **settings):
        self.clock = ManualClock()
        self.db = None
        self._folder = folder
        self._form = form
        self._disk = disk
        self._server = None
        self._port = 0
        self._settings = {
            "durability": "process",
            "kv_block_cache_bytes": 2**23,
            "kv_write_buffer_bytes": 2**23,
        } | settings
        self._open()

    def _open(self):
        parts = {} if self._disk is None else {"disk": self._disk}
        self.engine = Engine(Folder(self._folder), kolk.EngineConfig(**self._settings), clock=self.clock, **parts)
        if self._form == "embedded":
            self.db = kolk.Database(self.engine, lambda: None, Rng(), clock=self.clock)
            return
        self._server = Server(self.engine, replace(SERVER, port=self._port), self.engine.close)
        self._port = int(self._server.url.rpartition(":")[2])
        self.db = self.db or self.connect()

    def connect(self):
        """One more client of the server."""
        remote = kolk.connect(self._server.url, timeout=10)
        return kolk.Database(remote._link.service, remote.close, Rng(), clock=self.clock)

    @property
    def service(self):
        return self.db._link.service

    @property
    def folder(self):
        return self._folder

    def reopen(self):
        self._end()
        self._open()

    def close(self):
        self.db.close()
        self._end()

    def _end(self):
        if self._server is not None:
            self._server.close()
        self.engine.close()

    def create(self, name="t", schema=SUMS, **options):
        self.db.create_table(name, schema, **{"buckets": 2, **options})
        return Owned(self, name)


class Owned:
    """A table, with owners by their raw calls."""

    def __init__(self, rack, name):
        self.rack = rack
        self.name = name

    @property
    def table(self):
        return self.rack.db.table(self.name)

    @property
    def engine(self):
        return self.rack.engine

    @property
    def service(self):
        return self.rack.service

    def begin(self, owner="a", columns=("pv",), ttl=TTL, undo="always", on_progress=None, **claim):
        """Begin; to hear of its progress, within the engine."""
        claim = Claim(owner=owner, columns=columns, ttl_seconds=ttl, undo=UndoMode(undo), **claim)
        if on_progress is not None:
            return Grip(self, self.engine.begin_owner(self.table.info.id, claim, on_progress))
        return Grip(self, self.service.begin_owner(self.table.info.id, claim))

    def a_key_of_each_bucket(self):
        """Keys, by the number of the bucket that they belong to."""
        info = self.table.info
        keys = pa.RecordBatch.from_pydict({"k": pa.array(range(50), pa.int32())})
        places = bucket_of(keys, info.schema.key_columns, info.spec.buckets).tolist()
        return [places.index(bucket) for bucket in range(info.spec.buckets)]

    def rows(self):
        """All rows, by key, without what is null."""
        found = {}
        with self.table.scan() as scan:
            for row in scan.to_arrow().to_pylist():
                key = row.pop(self.table.schema.primary_key[-1])
                found[key] = {name: value for name, value in row.items() if value is not None}
        return found

    def replayed(self):
        """The same, by the changelog."""
        found = {}
        names = [name for name in self.table.schema.names if name != self.table.schema.primary_key[-1]]
        for batch in self.table.changelog(schema="latest"):
            for row in batch.to_pylist():
                key = row[self.table.schema.primary_key[-1]]
                if row["_change_type"] == "-D":
                    del found[key]
                elif row["_change_type"] != "-U":
                    found[key] = {name: row[name] for name in names if row.get(name) is not None}
        return found

    def check(self, expected):
        """The rows are these, and so are those that the changelog makes."""
        assert self.rows() == expected
        assert self.replayed() == expected

    def frames(self, bucket=0):
        """The tags of the frames of a bucket."""
        return [frame.header.tag for frame in self.raw_frames(bucket)]

    def raw_frames(self, bucket=0):
        info = self.table.info
        with self.engine._tablets.use_one(info, info.bucket_ids[bucket]) as tablet:
            return list(tablet.log.frames(tablet.log.start))

    def locks(self):
        return {info.owner: info for info in self.rack.db.locks()}

    def put(self, rows, **options):
        return self.table.put(rows, **options)


class Grip:
    """What an owner has in its hand after it has begun."""

    def __init__(self, owned, record):
        self.owned = owned
        self.record = record
        self.columns = None if record.columns is None else record.names(owned.table.schema)
        self.seq = 0
        self.seqs = {}

    @property
    def _table(self):
        return self.owned.table.info.id

    @property
    def _service(self):
        return self.owned.service

    def tag(self, epoch, seq=None, ticket=0):
        if seq is None:
            self.seq = seq = self.seq + 1
        return OwnerTag(self.record.number, self.record.fence, ticket, epoch, seq)

    def put(self, rows, epoch=0, *, seq=None, columns=None, mode="accumulate", ticket=0):
        table = self.owned.table
        rows = [{"k": key, **values} for key, values in rows.items()] if isinstance(rows, dict) else rows
        columns = self.columns if columns is None else columns
        write = put_write(table.schema, rows, columns, MergeMode.parse(mode))
        tag = self.tag(epoch, seq, ticket)
        ends = self._service.put_owned(self._table, write, tag)
        self.seqs.setdefault(epoch, {}).update(dict.fromkeys(ends, tag.seq))
        return ends

    def delete(self, keys, epoch=0, *, whole=False, columns=None):
        schema = self.owned.table.schema
        rows = pa.RecordBatch.from_pylist([{"k": key} for key in keys], schema=pa.schema([schema.arrow.field("k")]))
        columns = None if whole else columns or self.columns
        write = Write(action=Action.DELETE, rows=rows, columns=columns, mode=MergeMode.OVERWRITE, schema_id=schema.id)
        tag = self.tag(epoch)
        ends = self._service.put_owned(self._table, write, tag)
        self.seqs.setdefault(epoch, {}).update(dict.fromkeys(ends, tag.seq))
        return ends

    def commit(self, epoch=0, seqs=None, state=b""):
        seqs = self.seqs.get(epoch, {}) if seqs is None else seqs
        self._service.commit_owner(self._table, self.record.number, self.record.fence, epoch, seqs, state)
        return self

    def renew(self):
        return self._service.renew_owner(self._table, self.record.number, self.record.fence)

    def rest(self):
        self._service.rest_owner(self._table, self.record.number, self.record.fence)

    def release(self):
        return self._service.release_owner(self._table, self.record.name, self.record.fence, number=self.record.number)

    def begin_task(self, epoch, partition):
        return self._service.begin_task(self._table, self.record.number, self.record.fence, epoch, partition)

    def seal(self, partition, ticket, seqs, message=b"done"):
        self._service.seal_task(self._table, self.record.number, self.record.fence, partition, ticket, seqs, message)

    def commit_tasks(self, epoch, tasks, state=b"", **options):
        self._service.commit_tasks(self._table, self.record.number, self.record.fence, epoch, tasks, state, **options)


@contextmanager
def hurried(db):
    """Within the block what fails over the network is not tried again for long."""
    retry = getattr(db._link.service, "_retry", None)
    if retry is None:
        yield
        return
    before, retry._seconds = retry._seconds, 0.5
    yield
    retry._seconds = before


@contextmanager
def open_rack(folder, form="embedded", **settings):
    rack = Rack(folder, form, **settings)
    try:
        yield rack
    finally:
        rack.close()


def backed_up(rack, name="backup"):
    """A backup of a rack, beside it."""
    place = rack.engine.path.with_name(name)
    rack.db.backup(place)
    return place


@contextmanager
def restoring(folder):
    """A way to the table ``t`` of a database that is made of a backup, or of one of now; each time another one."""
    opened = []

    def make(rack, backup=None):
        place = folder / f"restored-{len(opened)}"
        restore(backup or backed_up(rack), place)
        opened.append(Rack(place, log_segment_bytes=1))
        return Owned(opened[-1], "t")

    try:
        yield make
    finally:
        for each in opened:
            each.close()
