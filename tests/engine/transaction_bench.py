"""An engine whose disk, catalog and clock do as they are told, for tests of transactions, and ways to look at it."""

from datetime import timedelta
from itertools import count, pairwise

import kolk
from kolk.client.writes import put_write, targets_of
from kolk.engine.database import Engine
from kolk.model.ids import TransactionTag
from kolk.model.options import MergeMode
from kolk.model.transaction import CommitRequest, Staging
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.storage.kv import Kv
from kolk.testing.clock import ManualClock
from kolk.testing.copies import copy_of_one_moment
from kolk.testing.faults import FailingDisk
from kolk.testing.meta import FailingMeta

TOTALS = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("total", "bigint", agg="sum"),
        kolk.Column("most", "int", agg="max"),
        kolk.Column("last", "string", agg="last_value"),
        kolk.Column("names", "string", agg="listagg"),
        kolk.Column("times", "bigint", agg="count_rows"),
    ],
    primary_key=["k"],
)
PLAIN = kolk.Schema([kolk.Column("k", "int"), kolk.Column("n", "bigint"), kolk.Column("s", "string")], "k")
EVENTS = kolk.Schema([kolk.Column("k", "int"), kolk.Column("n", "bigint")])
DAYS = kolk.Schema([kolk.Column("day", "string"), kolk.Column("k", "int"), kolk.Column("n", "bigint")], ["day", "k"])
DAY = timedelta(days=1).total_seconds()


def events(n, keys=range(12)):
    """A row of input for each key."""
    return [{"k": k, "total": n, "most": n * k, "last": f"l{n}", "names": f"{n}"} for k in keys]


def plain(n, keys=range(6)):
    """A row of a table without functions for each key."""
    return [{"k": k, "n": n, "s": f"s{n}"} for k in keys]


def put(table, n, keys=range(6)):
    """The same, put beside all transactions."""
    table.put(plain(n, keys))


class TransactionBench:
    """An engine, and what its users may do."""

    def __init__(self, path, **settings):
        self.path = path
        self.clock = ManualClock()
        self.settings = {
            "durability": "machine",
            "kv_block_cache_bytes": 2**22,
            "kv_write_buffer_bytes": 2**22,
        } | settings
        self.numbers = count(1)
        self.lives = count(1)
        self.before_opening = lambda path: None
        self.open_engine()

    def open_engine(self):
        self.disk = FailingDisk()
        self.engine = Engine(
            Folder(self.path),
            kolk.EngineConfig(**self.settings),
            clock=self.clock,
            disk=self.disk,
            open_kv=self._opened_kv,
            open_meta=self._opened_meta,
        )
        self.db = kolk.Database(self.engine, self.engine.close, Rng(), clock=self.clock)

    def _opened_kv(self, path, memory):
        self.before_opening(path)
        return Kv(path, memory)

    def _opened_meta(self, path):
        self.meta = FailingMeta(path)
        return self.meta

    def close(self):
        self.disk.heal()
        self.meta.heal()
        self.db.close()

    def reopen(self, **settings):
        self.close()
        self.settings |= settings
        self.open_engine()

    def crash(self):
        """The folder as a kill would leave it now, opened by another process."""
        target = self.path.with_name(f"{self.path.name}-{next(self.lives)}")
        copy_of_one_moment(self.path, target)
        self.close()
        self.path = target
        self.open_engine()

    @property
    def transactions(self):
        return self.engine.transactions

    def totals(self, name="t", buckets=3, **how):
        return self.db.create_table(name, TOTALS, buckets=buckets, merge_engine="aggregation", **how)

    def staged(self, table, rows, app="a", version=1, *, columns=None, mode="accumulate", is_sealed=True, **how):
        """A handle with these rows."""
        parsed = MergeMode.parse(mode)
        write = put_write(table.schema, rows, targets_of(table.schema, columns), parsed, **how)
        ids = None if write.columns is None else tuple(table.schema.column(name).id for name in write.columns)
        staging = Staging(
            handle=f"{next(self.numbers):032x}",
            app=app,
            version=version,
            table=table.info.id,
            schema_id=write.schema_id,
            action=write.action,
            columns=ids,
            mode=parsed,
        )
        self.engine.stage(staging, 0, write.rows)
        if is_sealed:
            self.engine.seal(staging, 1)
        return staging.handle

    def commit(self, handles, app="a", version=1, *, truncates=(), **how):
        """Commit the handles of these tables, [(table, handles)] or {table id: handles}."""
        by_table = handles if isinstance(handles, dict) else {table.info.id: each for table, each in handles}
        request = CommitRequest(app=app, version=version, handles=by_table, truncates=frozenset(truncates), **how)
        return self.engine.commit_transaction(request)

    def committed(self, table, rows, app="a", version=1, **how):
        """Stage rows and commit them."""
        return self.commit([(table, [self.staged(table, rows, app, version, **how)])], app, version)

    def files(self):
        """The handles that there are files of."""
        return {path.name.removesuffix(".rows") for path in (self.path / "staging").iterdir()}

    def rows(self, table):
        """All rows by key."""
        keys = table.schema.primary_key
        return {tuple(row[name] for name in keys): row for row in table.scan().to_arrow().to_pylist()}

    def times(self, table):
        """How often rows were put."""
        return {row["times"] for row in self.rows(table).values()}

    def replayed(self, table):
        """What the changelog makes, each change checked against what is there before it."""
        state, times = {}, {}
        keys = table.schema.primary_key
        for batch in table.changelog(start="earliest"):
            for change in batch.to_pylist():
                row = {name: value for name, value in change.items() if not name.startswith("_")}
                key = tuple(row[name] for name in keys)
                times.setdefault(change["_bucket"], []).append(change["_commit_timestamp"])
                match change["_change_type"]:
                    case "+I":
                        assert key not in state
                        state[key] = row
                    case "+U":
                        state[key] = row
                    case "-U":
                        assert state[key] == row
                    case "-D":
                        assert state.pop(key) == row
        assert all(one <= other for each in times.values() for one, other in pairwise(each))
        return state

    def frames(self, tablet):
        """The headers of a log, to its very end."""
        return [frame.header for frame in tablet.log.frames(tablet.log.start)]

    def headers(self, table):
        """Those of all buckets of a table, each with its bucket's name."""
        for bucket in self.engine._partitions.buckets(table.info):
            with self.engine._tablets.use_one(table.info, bucket) as tablet:
                yield from ((bucket.name, header) for header in self.frames(tablet))

    def check(self, *tables):
        """Invariants 1, 2, 3 and 8: of every table that there is, or of these."""
        commits = self.transactions.commits
        found = {}
        for table in tables or self.db.tables():
            info = table.info
            for bucket in self.engine._partitions.buckets(info):
                with self.engine._tablets.use_one(info, bucket) as tablet:
                    assert tablet.refusal is None
                    groups = {}
                    for header in self.frames(tablet):
                        if isinstance(header.tag, TransactionTag):
                            groups.setdefault(header.tag.csn, []).append(header)
                    assert list(groups) == sorted(groups), "csn grows along every log"
                    assert not groups or max(groups) <= commits.csn
                    assert not groups or max(groups) <= tablet.csn <= commits.csn
                    for csn, headers in groups.items():
                        assert [header.tag.part for header in headers] == list(range(len(headers)))
                        assert [header.more for header in headers] == [True] * (len(headers) - 1) + [False]
                        assert len({header.timestamp_ms for header in headers}) == 1
                        found.setdefault(csn, {})[bucket] = headers[-1]
            if info.schema.primary_key and not tables:
                assert self.replayed(table) == self.rows(table), "the replay of the changelog is the KV"
        for csn, headers in found.items():
            assert len({header.timestamp_ms for header in headers.values()}) == 1, f"{csn} is of one moment"
        for record in commits.all():
            for bucket in record.bases:
                is_asked = not tables or bucket.table in {table.info.id for table in tables}
                is_there = is_asked and self.engine._partitions.is_alive(bucket)
                if is_there and bucket.table in {info.id for info in self.engine.tables()}:
                    assert bucket in found.get(record.csn, {}), f"{bucket} has commit {record.csn}"
        return found
