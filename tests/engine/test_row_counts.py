"""How many rows a bucket has: counted as they come and go, whatever makes them, and the same after every recovery."""

import datetime
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.snapshot_bench import SnapshotBench, put

import kolk
from kolk.storage.kv import Kv
from kolk.tablet.records import ROWS

FULL = os.environ.get("KOLK_FULL") == "1"
GOLDEN = Path(__file__).parent.parent / "golden"
ENGINES = {
    "default": {},
    "first_row": {"table.merge-engine": "first_row"},
    "versioned": {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"},
}
WIDE = kolk.Schema(
    [kolk.Column("id", "bigint"), kolk.Column("v", "bigint"), kolk.Column("s", "string")], primary_key=["id"]
)
IDS = st.lists(st.integers(0, 12), min_size=1, max_size=8)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "part", "overwrite", "delete", "truncate", "take"]), IDS, st.integers(0, 3)
    ),
    max_size=8,
)


def call(table, what, ids, v):
    """One call of a writer; what an engine refuses is no matter."""
    rows = [{"id": id, "v": v, "s": "x" * v} for id in ids]
    try:
        if what == "put":
            table.put(rows)
        elif what == "part":
            table.put([{"id": id, "v": v} for id in ids], columns=["id", "v"])
        elif what == "overwrite":
            table.put(rows, mode="overwrite")
        elif what == "delete":
            table.delete([{"id": id} for id in ids])
        elif what == "truncate":
            table.truncate()
        else:
            table.take_snapshot()
    except kolk.errors.KolkError:
        assert what in ("part", "overwrite", "delete")


def check_counts(bench, table):
    """What snapshots say is what a scan finds, bucket by bucket."""
    infos = bench.take(table)
    for name, info in infos.items():
        with table.scan(buckets=[name]) as scan:
            assert scan.estimate == info.rows == scan.to_arrow().num_rows


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=100 if FULL else 6)
@given(calls=CALLS)
def test_the_rows_of_a_snapshot_are_as_many_as_it_says(tmp_path_factory, engine, calls):
    """I3: also after a restart, after a recovery from a snapshot, and after one from the log alone."""
    home = tmp_path_factory.mktemp("counted") / "data"
    bench = SnapshotBench(home)
    try:
        table = bench.db.create_table("t", WIDE, buckets=2, options=ENGINES[engine])
        for each in calls:
            call(table, *each)
        check_counts(bench, table)
        for gone in ([], ["kv"], ["kv", "snapshots"]):
            bench.close()
            for kv in home.glob("tables/*/*/*/kv") if "kv" in gone else ():
                shutil.rmtree(kv)
            if "snapshots" in gone:
                shutil.rmtree(home / "snapshots")
            bench = SnapshotBench(home)
            check_counts(bench, bench.db.table("t"))
            call(bench.db.table("t"), "put", [1, 99], 2)
            check_counts(bench, bench.db.table("t"))
    finally:
        bench.close()
        shutil.rmtree(home)


def test_nobody_counts_the_rows_of_a_table_whose_changelog_has_no_old_rows(taken):
    table = taken.table(buckets=1, options={"table.changelog.image": "wal"})
    put(table, range(5))
    put(table, range(3))

    infos = taken.take(table)
    taken.reopen()

    assert infos["0"].rows is None
    assert [each.rows for each in taken.engine.snapshots(table.info.id)] == [None]
    rows, scan = taken.scanned(taken.db.table("t"))
    assert (len(rows), scan.estimate) == (5, None)


def test_rows_that_expire_are_counted_no_more(taken):
    schema = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("at", "timestamp_ltz(3)")], primary_key=["id"])
    options = {"table.kv.ttl": "1h", "table.kv.ttl.column": "at"}
    table = taken.db.create_table("ttl", schema, buckets=2, options=options)
    start = datetime.datetime.fromtimestamp(taken.clock.now_ms() / 1_000, datetime.UTC)
    table.put([{"id": id, "at": start + datetime.timedelta(minutes=id)} for id in range(20)])
    before = sum(each.rows for each in taken.take(table).values())

    taken.clock.advance(seconds=3_600 + 9 * 60)
    taken.engine.tick()

    assert before == 20
    assert sum(each.rows for each in taken.take(table).values()) == 10
    check_counts(taken, table)
    taken.reopen()
    check_counts(taken, taken.db.table("ttl"))


def test_a_truncated_table_has_none_and_counts_on(taken):
    table = taken.table(buckets=2)
    put(table, range(50))
    table.truncate()

    assert sum(each.rows for each in taken.take(table).values()) == 0
    put(table, range(7))
    check_counts(taken, table)


def test_a_retry_is_not_counted_twice(taken):
    table = taken.table(buckets=1)
    tag = kolk.model.ids.PlainTag(5, 1)

    for _ in range(2):
        table.put([{"id": 1, "n": 1}], tag=tag)

    assert taken.take(table)["0"].rows == 1


def test_a_folder_that_was_written_before_rows_were_counted_counts_them_once(tmp_path, monkeypatch):
    with zipfile.ZipFile(GOLDEN / "format1.zip") as archive:
        archive.extractall(tmp_path / "old")
    counted = []
    count = Kv.count

    def note(kv):
        counted.append(kv.path)
        return count(kv)

    monkeypatch.setattr(Kv, "count", note)
    for run in range(3):
        with kolk.connect(tmp_path / "old") as db:
            for info in db.tables():
                table = db.table(str(info.name))
                if not info.schema.primary_key:
                    continue
                for each in table.take_snapshot():
                    with table.scan(buckets=[each.bucket]) as scan:
                        assert each.rows in (None, scan.to_arrow().num_rows)
        if not run:
            assert counted
            counted.clear()
    assert counted == []


def test_the_count_is_written_in_the_same_batch_as_the_rows(taken):
    table = taken.table(buckets=1)
    put(table, range(3))
    [tablet] = taken.engine._tablets.opened()

    assert int.from_bytes(tablet._kv.records(ROWS)[ROWS], "little") == 3
