"""Transactions against a small model: whatever is staged, committed, tried again, broken off or read in between, every
version counts once, in all buckets or in none, and logs, rows and records agree.

The model is a dict of sums and counts for each table, and the last version of each application and table. The disk and
the catalog fail when told to, the process ends with and without a word.
"""

import errno
import os
import shutil
import tempfile
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.engine.transaction_bench import TransactionBench

import kolk
from kolk.errors import KolkError, MixedVersions
from kolk.model.transaction import Verdict
from kolk.testing.faults import Call
from kolk.testing.meta import Outcome
from kolk.testing.soundness import check_sound

FULL = os.environ.get("KOLK_FULL") == "1"
SCHEMA = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("total", "bigint", agg="sum"),
        kolk.Column("names", "string", agg="listagg"),
        kolk.Column("times", "bigint", agg="count_rows"),
    ],
    primary_key=["k"],
)
NAMES = ("t", "u")
APPS = st.sampled_from("abc")
ROWS = st.lists(st.tuples(st.integers(0, 8), st.integers(-3, 9)), max_size=6)
TABLES = st.sampled_from([("t",), ("u",), ("t", "u")])


class Model(RuleBasedStateMachine):
    @initialize(is_small=st.booleans())
    def open(self, is_small):
        self.folder = Path(tempfile.mkdtemp())
        self.numbers = count(1)
        self.bench = TransactionBench(self.folder / "0", put_rows_max=8 if is_small else 1_000)
        for name in NAMES:
            options = {"table.delete.behavior": "allow"}
            self.bench.db.create_table(name, SCHEMA, buckets=3, merge_engine="aggregation", options=options)
        self.rows = {name: {} for name in NAMES}
        self.last = {}

    def table(self, name):
        return self.bench.db.table(name)

    # --- what the model knows

    def _put(self, name, rows):
        for k, n in rows:
            total, names, times = self.rows[name].get(k, (0, "", 0))
            self.rows[name][k] = (total + n, f"{names},{n}" if names else f"{n}", times + 1)

    def _apply(self, app, version, pieces, truncates):
        for name, lists in pieces.items():
            if name in truncates:
                self.rows[name] = {}
            for rows in lists:
                self._put(name, rows)
            self.last[app, name] = version

    def _verdict(self, app, version, names):
        lasts = [self.last.get((app, name), -1) for name in names]
        if all(version > last for last in lasts):
            return Verdict.COMMITTED
        if all(version == last for last in lasts):
            return Verdict.DUPLICATE
        return Verdict.OLD if all(version <= last for last in lasts) else None

    # --- writers

    @rule(name=st.sampled_from(NAMES), rows=ROWS)
    def put(self, name, rows):
        self.table(name).put(_inputs(rows))
        self._put(name, rows)

    @rule(name=st.sampled_from(NAMES), k=st.integers(0, 8))
    def delete(self, name, k):
        self.table(name).delete([k])
        self.rows[name].pop(k, None)

    @rule(
        app=APPS,
        step=st.sampled_from([1, 1, 1, 5, 0, -1]),
        names=TABLES,
        rows=st.lists(ROWS, max_size=3),
        truncates=st.sampled_from([(), (), (), ("t",), ("t", "u")]),
        fault=st.sampled_from([None, None, None, "append", "sync", "second", "refused", "lost", "written", "done"]),
        ending=st.sampled_from(["go on", "reopen", "crash"]),
    )
    def commit(self, app, step, names, rows, truncates, fault, ending):
        """One attempt, of which something may fail after it was staged; then somebody mends that, and tries again."""
        version = max(0, max((self.last.get((app, name), 0) for name in names), default=0) + step)
        pieces = {name: [[(k, n + place) for k, n in each] for each in rows] for place, name in enumerate(names)}
        truncates = tuple(name for name in truncates if name in names)
        expected = self._verdict(app, version, names)
        handles = self._staged(app, version, pieces)
        self._arm(fault)
        try:
            found = self._commit(app, version, handles, truncates)
        except MixedVersions:
            assert expected is None
            self._mend("go on")
            self.bench.engine.discard([handle for each in handles.values() for handle in each])
            return
        except KolkError:
            assert fault is not None
            found = None
        is_even = self.is_whole(names, pieces, truncates, expected, app, version) if found is None else None
        self._mend(ending if fault else "go on")
        if found is None:
            # Nobody was told: then what the next one is told is true.
            handles = self._staged(app, version, pieces)
            again = self._commit(app, version, handles, truncates)
            assert expected is not None
            if expected is Verdict.COMMITTED:
                assert again in (Verdict.COMMITTED, Verdict.DUPLICATE)
                assert is_even in (None, again is Verdict.DUPLICATE)
            else:
                assert _alike(again, expected)
        else:
            assert _alike(found, expected)
            assert _alike(self._commit(app, version, self._staged(app, version, pieces), truncates), {
                Verdict.COMMITTED: Verdict.DUPLICATE
            }.get(expected, expected))  # fmt: skip
        if expected is Verdict.COMMITTED:
            self._apply(app, version, pieces, truncates)

    def is_whole(self, names, pieces, truncates, expected, app, version):
        """Of those who can read at all, nobody sees half of it: None if nobody can, or nothing can be told."""
        seen = set()
        for name in names:
            try:
                found = self._scanned(name)
            except KolkError:
                return None
            before = self.rows[name]
            model = Model.__new__(Model)
            model.rows, model.last = {each: dict(self.rows[each]) for each in NAMES}, {}
            model._apply(app, version, pieces, truncates)
            after = model.rows[name]
            assert found == before or (expected is Verdict.COMMITTED and found == after)
            if before != after:
                seen.add(found == after)
        return seen.pop() if len(seen) == 1 else None

    @rule(app=APPS, version=st.integers(0, 9), rows=ROWS, is_sealed=st.booleans())
    def stage_and_leave(self, app, version, rows, is_sealed):
        self.bench.staged(self.table("t"), _inputs(rows), app, version, is_sealed=is_sealed)

    @rule(how=st.sampled_from(["reopen", "crash", "reap", "snapshot", "wait"]))
    def pass_time(self, how):
        if how == "reap":
            self.bench.engine.reap()
            self.bench.engine.tick()
        elif how == "snapshot":
            self.table("t").take_snapshot()
        elif how == "wait":
            self.bench.clock.advance(seconds=90_000)
            self.bench.engine.reap()
            assert self.bench.files() == set()
        else:
            getattr(self.bench, how)()

    # --- inside

    def _staged(self, app, version, pieces):
        return {
            self.table(name).info.id: [
                self.bench.staged(self.table(name), _inputs(rows), app, version) for rows in lists
            ]
            for name, lists in pieces.items()
        }

    def _commit(self, app, version, handles, truncates):
        ids = [self.table(name).info.id for name in truncates]
        return self.bench.commit(handles, app, version, truncates=ids).verdict

    def _arm(self, fault):
        disk, meta = self.bench.disk, self.bench.meta
        match fault:
            case "append":
                disk.fail_always(Call.WRITE, errno.ENOSPC, within="/1/log")
            case "second":
                disk.fail_next(Call.WRITE, errno.EIO, after=1, within="/log")
            case "sync":
                disk.fail_next(Call.SYNC, errno.EIO, within="/2/log")
            case "refused" | "lost" | "written":
                meta.fail_next(Outcome(fault))
            case "done":
                meta.fail_next(Outcome.LOST, after=1)

    def _mend(self, ending):
        self.bench.disk.heal()
        self.bench.meta.heal()
        stopped = [
            tablet for tablet in self.bench.engine._tablets.opened() if tablet.refusal and not tablet.wants_recovery
        ]
        if ending == "crash":
            self.bench.crash()
        elif ending == "reopen" or stopped:  # a disk that failed is looked at by the next start
            self.bench.reopen()

    def _scanned(self, name):
        with self.table(name).scan() as scan:
            return {row["k"]: (row["total"], row["names"], row["times"]) for row in scan.to_arrow().to_pylist()}

    # --- what always holds

    @invariant()
    def everything_agrees(self):
        if not hasattr(self, "bench"):
            return
        for name in NAMES:
            assert self._scanned(name) == self.rows[name]
        self.bench.check()
        check_sound(self.bench.path)
        commits = self.bench.transactions.commits
        for (app, name), version in self.last.items():
            table = self.table(name).info.id
            assert version == max(each.version for each in commits.of(app) if table in each.handles)

    def teardown(self):
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.folder)


def _inputs(rows):
    return [{"k": k, "total": n, "names": f"{n}"} for k, n in rows]


def _alike(found, expected):
    return found is expected or (found is Verdict.DUPLICATE_DIFFERENT and expected is Verdict.DUPLICATE)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=200 if FULL else 12, stateful_step_count=40 if FULL else 20)
TestModel.pytestmark = [pytest.mark.timeout(3_600 if FULL else 300)]
