"""Taking snapshots when something fails, and when it ends in the middle."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from tests.engine.snapshot_bench import by_id, put

import kolk
from kolk.engine import taking
from kolk.errors import Closed, Corrupted, DiskFull, KolkError, TableNotFound, Unavailable
from kolk.model.scan import ScanRequest, ScanSource

FULL = os.environ.get("KOLK_FULL") == "1"
DAYS = kolk.Schema(
    [kolk.Column("day", "string"), kolk.Column("id", "bigint"), kolk.Column("n", "bigint")], primary_key=["day", "id"]
)


def _days(table, days, n=0):
    table.put([{"day": day, "id": id, "n": n} for day in days for id in range(5)])


# --- failures


@pytest.mark.parametrize("within", ["/snapshots/", "/checkpoints/"])
def test_whatever_fails_nothing_is_left_and_it_is_due_again(taken, within):
    """T2, T3, P5: at every step of the copy, and of clearing up after it; the others are taken all the same."""
    table = taken.table(buckets=2)
    put(table, range(10))
    taken.take(table)
    failed = 0
    for tried, step in enumerate(range(0, 200, 1 if FULL else 7)):
        put(table, range(10), n=tried + 1)
        taken.disk.fail_at(step, within)
        taken.clock.advance(seconds=100)
        taken.engine.take_due()
        has_failed = taken.disk.has_failed
        taken.disk.heal()
        assert {row["n"] for row in taken.scanned(table)[0]} <= {tried, tried + 1}
        failed += has_failed
        taken.clock.advance(seconds=100)
        taken.engine.take_due()
        rows, scan = taken.scanned(table)
        assert {row["n"] for row in rows} == {tried + 1}
        assert scan.is_consistent
        taken.engine.reap()
        if within == "/snapshots/":
            taken.check_files()
        assert {len(ids) for ids in taken.ids(table).values()} == {2}
        if not has_failed:
            break
    assert failed == tried > 1
    assert not has_failed


def test_one_bucket_that_cannot_be_published_does_not_keep_the_others_from_it(taken):
    table = taken.table(buckets=3)
    put(table, range(30))
    taken.disk.fail_at(0, "/snapshots/1/0/1/")

    with pytest.raises(Unavailable, match=r"bucket 1 cannot be written.*told to fail"):
        taken.take(table)

    assert taken.ids(table) == {"0": [1], "2": [1]}
    lease = taken.lease(table)
    assert lease.tables["t"].snapshots == {"0": 1, "1": 1, "2": 1}
    assert lease.tables["t"].is_consistent
    assert taken.engine.status()["snapshots"]["failed"] == 1


def test_after_a_failure_the_cut_that_was_there_is_leased_while_it_is_there_and_then_a_new_one(taken):
    table = taken.table(buckets=2)
    put(table, range(10))
    taken.take(table)

    leased = []
    for n in (1, 2, 3):
        put(table, range(10), n)
        taken.disk.fail_at(0, "/snapshots/1/0/1/")
        with pytest.raises(Unavailable, match="told to fail"):
            taken.take(table)
        state = taken.lease(table, f"l{n}").tables["t"]
        leased.append((dict(state.snapshots), state.is_consistent))
        taken.engine.drop_lease(f"l{n}")

    assert leased == [({"0": 1, "1": 1}, True), ({"0": 3, "1": 2}, True), ({"0": 3, "1": 2}, True)]


def test_what_was_pinned_in_vain_is_let_go(taken, monkeypatch):
    """Every time one snapshot of a cut is found damaged as soon as it is there, so that an older one is leased."""
    table = taken.table(buckets=2)
    put(table, range(10))
    taken.take(table)
    put(table, range(10), 1)
    take = taking.Taking.take

    def take_and_find_damage(self, info, **how):
        found = take(self, info, **how)
        bucket = info.bucket_ids[0]
        (taken.path / "snapshots" / bucket.folder / str(found[bucket].id) / "CURRENT").write_bytes(b"?")
        with pytest.raises(Corrupted):
            taken.scanned(table, pins=[(bucket.name, found[bucket].id)])
        return found

    monkeypatch.setattr(taking.Taking, "take", take_and_find_damage)
    taken.take(table)
    lease = taken.lease(table)
    taken.engine.drop_lease("l")

    assert (lease.tables["t"].snapshots, lease.tables["t"].is_consistent) == ({"0": 1, "1": 2}, False)
    assert {each.leases for each in taken.engine.snapshots(table.info.id)} == {0}


def test_a_checkpoint_that_says_something_else_becomes_no_snapshot(taken, monkeypatch):
    table = taken.table(buckets=1)
    put(table, range(10))
    monkeypatch.setattr(taking, "applied_offset", lambda records: 3)

    with pytest.raises(KolkError, match="stands at 3 and not at 10"):
        taken.take(table)

    assert taken.ids(table) == {}
    taken.check_files()


def test_a_full_disk_is_told_and_the_next_time_it_succeeds(taken):
    table = taken.table(buckets=2)
    put(table, range(10))
    taken.disk.fail_at(8, number=28)

    with pytest.raises(DiskFull, match="free some"):
        taken.take(table)
    taken.take(table)

    taken.check_files()
    assert by_id(taken.scanned(table)[0]) == dict.fromkeys(range(10), 0)


@pytest.mark.parametrize(
    ("number", "told"), [(errno.EIO, Unavailable), (errno.EMFILE, Unavailable), (errno.EDQUOT, DiskFull)]
)
@pytest.mark.parametrize("call", ["take", "ids", "lease", "scanned"])
def test_whatever_the_disk_says_is_told_in_an_error_of_ours(taken, call, number, told):
    """At every step: of the look what there is, which the first call makes, and of the copy."""
    table = taken.table(buckets=1)
    put(table, range(10))
    taken.take(table)
    for step in range(0, 100, 1 if FULL else 5):
        put(table, range(10), n=step + 1)
        taken.reopen()
        table = taken.db.table("t")
        taken.disk.fail_at(step, number=number)
        with suppress(told):
            getattr(taken, call)(table)
        has_failed = taken.disk.has_failed
        taken.disk.heal()
        getattr(taken, call)(table)
        if not has_failed:
            break
    assert step > 0
    assert not has_failed


# --- ends


def test_a_drop_in_the_middle_ends_the_take_and_leaves_nothing(taken, monkeypatch):
    """Between the look whether the table is there and the publication, which is the last moment there is."""
    table = taken.table(buckets=2)
    put(table, range(10))
    snapshots, dropping = taken.engine._snapshots, []
    check = snapshots.check_alive

    with ThreadPoolExecutor(1) as pool:

        def drop_first(bucket):
            check(bucket)
            if not dropping and bucket in snapshots._buckets:  # before, it is asked for who has yet to be made
                dropping.append(pool.submit(taken.db.drop_table, "t"))
                while snapshots._buckets:
                    pass

        monkeypatch.setattr(snapshots, "check_alive", drop_first)
        with pytest.raises(TableNotFound):
            taken.take(table)
        dropping[0].result(30)

    assert taken.files() == taken.files("checkpoints") == []
    assert taken.engine._meta.list("snapshot-cut/") == []


def test_closing_in_the_middle_of_a_take_ends_it_soon_and_leaves_a_good_folder(taken):
    table = taken.table(buckets=6)
    put(table, range(60))
    taken.take(table)
    put(table, range(60), 1)
    is_copying, may_go_on = threading.Event(), threading.Event()

    def wait(path):
        if "/snapshots/" in path:
            is_copying.set()
            may_go_on.wait(30)

    taken.disk.on_step = wait
    with ThreadPoolExecutor(2) as pool:
        takes = pool.submit(taken.take, table)
        assert is_copying.wait(30)
        closing = pool.submit(taken.engine.close)
        while taken.engine._snapshots._refusal is None:
            pass
        may_go_on.set()
        closing.result(30)
        with pytest.raises(Closed):
            takes.result(30)

    taken.open_engine()
    table = taken.db.table("t")
    taken.check_files()
    assert {each for ids in taken.ids(table).values() for each in ids} <= {1, 2}
    assert by_id(table.scan().to_arrow().to_pylist()) == dict.fromkeys(range(60), 1)
    taken.take(table)
    assert taken.lease(table).tables["t"].is_consistent


def test_once_it_is_told_to_stop_no_other_table_is_begun(taken):
    tables = [taken.table(f"t{number}", buckets=1) for number in range(3)]
    for table in tables:
        put(table, [1])
    taken.clock.advance(seconds=100)

    taken.engine.stop_taking()
    taken.engine.take_due()

    assert taken.files() == []
    with pytest.raises(Closed):
        taken.take(tables[0])


def test_what_is_written_down_of_a_table_goes_with_it_also_if_a_crash_came_between(taken):
    table = taken.table()
    put(table, range(9))
    taken.take(table)
    assert len(taken.engine._meta.list("snapshot-cut/")) == 1
    taken.engine._catalog.drop(table.info)  # and the process ends here

    taken.reopen()

    assert taken.engine._meta.list("snapshot-cut/") == []
    assert taken.files() == []


def test_a_partition_whose_drop_was_cut_short_is_nobodys_lease_after_a_restart(taken):
    table = taken.db.create_table("p", DAYS, buckets=1, partition_by=["day"])
    _days(table, "ab")
    taken.lease(table)
    [gone] = [each for each in table.partitions() if each.name == "day=a"]
    taken.engine._partitions.remove(table.info, gone, [5])  # and the process ends here

    taken.reopen()
    table = taken.db.table("p")

    assert list(taken.engine.lease("l").tables["p"].snapshots) == ["day=b/0"]
    assert {row["day"] for row in taken.scanned(table, lease="l")[0]} == {"b"}
    taken.check_files()


def test_what_only_the_process_kept_goes_after_its_end_also_of_a_bucket_that_is_idle(taken):
    """A scan kept it, or a crash came before it went: the next round finds it."""
    table = taken.table(buckets=1)
    put(table, range(9))
    taken.take(table)
    scan = taken.engine.open_scan(table.info.id, ScanRequest(source=ScanSource.SNAPSHOT))
    for n in (1, 2):
        put(table, range(9), n)
        taken.take(table)
    assert taken.ids(table) == {"0": [1, 2, 3]}
    taken.reopen()
    scan.close()

    taken.clock.advance(seconds=100)
    taken.engine.take_due()
    taken.engine.reap()

    assert taken.ids(table) == {"0": [2, 3]}
    taken.check_files()
