"""How snapshots are taken: when they are due or asked for, all buckets at one moment, and never half."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engine.snapshot_bench import by_id, put

import kolk
from kolk.engine import taking
from kolk.errors import InvalidArgument

FULL = os.environ.get("KOLK_FULL") == "1"
DAYS = kolk.Schema(
    [kolk.Column("day", "string"), kolk.Column("id", "bigint"), kolk.Column("n", "bigint")], primary_key=["day", "id"]
)


def ids_by_bucket(table, count, first=0):
    """So many ids of each bucket."""
    found = {name: [] for name in table.describe()["offsets"]}
    id = first
    while any(len(ids) < count for ids in found.values()):
        [(name, _)] = table.put([{"id": id, "n": 0}]).offsets.items()
        found[name].append(id)
        id += 1
    return found


# --- what is taken


def test_a_snapshot_has_the_rows_the_offset_and_the_count_of_its_moment(taken):
    """T1, I1: and a second one those of its own, while the first stays what it is."""
    table = taken.table(buckets=2)
    put(table, range(10))
    first = taken.take(table)
    taken.lease(table)
    put(table, range(5, 12), n=1)
    table.delete([{"id": 0}])
    second = taken.take(table)

    assert sum(each.offset for each in first.values()) == 10
    assert sum(each.rows for each in first.values()) == 10
    assert sum(each.offset for each in second.values()) == 10 + 2 * 5 + 2 + 1
    assert sum(each.rows for each in second.values()) == 11
    assert by_id(taken.scanned(table, lease="l")[0]) == dict.fromkeys(range(10), 0)
    assert by_id(taken.scanned(table)[0]) == dict.fromkeys(range(1, 5), 0) | dict.fromkeys(range(5, 12), 1)
    assert {each.id for each in second.values()} == {2}
    taken.check_files()


def test_what_did_not_change_is_not_taken_again(taken):
    """P3: neither by hand nor by the clock, and an idle bucket keeps its snapshot beside a busy one."""
    table = taken.table()
    ids = ids_by_bucket(table, 2)
    before = taken.take(table)

    assert taken.take(table) == before
    table.put([{"id": ids["1"][0], "n": 9}])
    after = taken.take(table)

    assert {name: each.id for name, each in after.items()} == {"0": 1, "1": 2, "2": 1}
    assert taken.engine.status()["snapshots"]["taken"] == 4


def test_files_that_did_not_change_are_not_copied_again(taken):
    """T7, A1."""
    table = taken.table(buckets=1)
    put(table, range(2_000))
    first = taken.take(table)["0"]
    put(table, [1], n=1)
    second = taken.take(table)["0"]

    assert first.new_bytes == first.size_bytes
    assert second.new_bytes < second.size_bytes / 2


def test_buckets_that_never_had_anything_have_snapshots_without_files_when_asked_for(taken):
    table = taken.table()

    infos = taken.take(table)

    assert [(each.id, each.offset, each.rows, each.size_bytes) for each in infos.values()] == [(1, 0, 0, 0)] * 3
    assert taken.scanned(table)[0] == []
    lease = taken.lease(table)
    put(table, range(9))
    assert taken.scanned(table, lease="l")[0] == []
    assert lease.tables["t"].is_consistent
    changes = [row["id"] for batch in table.changelog(start=lease.tables["t"].start) for row in batch.to_pylist()]
    assert sorted(changes) == list(range(9))
    taken.check_files()


def test_a_log_table_is_refused_with_the_reason(taken):
    table = taken.db.create_table("log", kolk.Schema([kolk.Column("n", "bigint")]))

    for call in (lambda: taken.take(table), lambda: taken.ids(table), lambda: taken.lease(table)):
        with pytest.raises(InvalidArgument, match="log table"):
            call()


# --- when


def test_a_table_is_due_within_the_interval_and_again_after_it(taken):
    """P1, P3, P4: also after a round in which nothing was to be done."""
    table = taken.table()
    put(table, range(9))

    taken.engine.take_due()
    early = taken.ids(table)
    taken.clock.advance(seconds=100)
    taken.engine.take_due()
    assert early == {}
    assert taken.ids(table) == {"0": [1], "1": [1], "2": [1]}
    put(table, range(9), n=1)
    taken.clock.advance(seconds=99)
    taken.engine.take_due()
    assert taken.ids(table)["0"] == [1]
    taken.clock.advance(seconds=1)
    taken.engine.take_due()
    assert taken.ids(table)["0"] == [1, 2]


def test_a_table_that_has_nothing_is_not_taken_by_the_clock(taken):
    table = taken.table()

    taken.clock.advance(seconds=1_000)
    taken.engine.take_due()

    assert taken.ids(table) == {}
    assert taken.files() == []


def test_the_tables_of_a_database_are_not_all_due_at_once(taken):
    tables = [taken.table(f"t{number}", buckets=1) for number in range(20)]
    for table in tables:
        put(table, [1])

    due = []
    for _ in range(10):
        taken.clock.advance(seconds=10)
        taken.engine.take_due()
        due.append(sum(len(taken.ids(table)) for table in tables))

    assert due[-1] == 20
    assert all(after - before < 6 for before, after in zip([0, *due], due, strict=False))


def test_an_interval_that_is_none_is_refused():
    """P2: to take none a table has no option; a database names a long time."""
    with pytest.raises(InvalidArgument, match="kv_snapshot_interval_seconds"):
        kolk.EngineConfig(kv_snapshot_interval_seconds=0)
    with pytest.raises(InvalidArgument, match="kv_snapshot_num_retained"):
        kolk.EngineConfig(kv_snapshot_num_retained=0)


# --- one moment


def _is_of_one_moment(rows, keys):
    """Whether of a writer who went round his keys, one put after the other, this is a prefix."""
    values = [rows.get(key, 0) for key in keys]
    return values == sorted(values, reverse=True) and values[0] - values[-1] <= 1


@pytest.mark.parametrize("buckets", [4, pytest.param(16, marks=pytest.mark.long)])
def test_a_cut_is_of_one_moment_whoever_writes_meanwhile(taken, buckets):
    """Writers go round the buckets: each has written in order, so a moment has a prefix of what he did."""
    table = taken.table(buckets=buckets)
    ids = ids_by_bucket(table, 3)
    rounds = [[ids[name][writer] for name in ids] for writer in range(3)]
    is_over = threading.Event()

    def write(keys):
        n = 0
        while not is_over.is_set():
            n += 1
            for key in keys:
                table.put([{"id": key, "n": n}])
        return n

    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write, keys) for keys in rounds]
        try:
            for take in range(6):
                taken.take(table)
                lease = taken.lease(table, f"l{take}")
                assert lease.tables["t"].is_consistent
                rows, scan = taken.scanned(table, lease=lease.id)
                assert scan.is_consistent
                rows = by_id(rows)
                assert all(_is_of_one_moment(rows, keys) for keys in rounds), rows
                taken.engine.drop_lease(lease.id)
        finally:
            is_over.set()
        assert all(each.result() > 3 for each in writing)
    taken.check_files()


def test_a_bucket_that_changes_after_the_look_is_taken_as_well(taken, monkeypatch):
    """Somebody writes to idle buckets between the look at them and the checkpoints of the others, every time."""
    table = taken.table(buckets=4)
    ids = ids_by_bucket(table, 1)
    taken.take(table)
    look, late = taking.Taking._look, []

    def late_look(self, info, buckets, changed, *rest):
        idle = [bucket for bucket in buckets if bucket not in changed]
        late.append(len(idle))
        for bucket in idle[:1]:
            table.put([{"id": ids[bucket.name][0], "n": len(late)}])
        return look(self, info, buckets, changed, *rest)

    monkeypatch.setattr(taking.Taking, "_look", late_look)
    table.put([{"id": ids["3"][0], "n": 77}])
    infos = taken.take(table)

    assert late == [3, 2, 1, 0]
    assert {each.id for each in infos.values()} == {2}
    assert taken.lease(table).tables["t"].is_consistent
    taken.check_files()


@pytest.mark.parametrize("most", [1, 2])
def test_more_buckets_than_can_be_held_are_taken_in_groups_and_are_no_cut(taken, monkeypatch, most):
    monkeypatch.setattr(taking, "CUT_BUCKETS_MAX", most)
    table = taken.table(buckets=4)
    put(table, range(40))

    infos = taken.take(table)
    lease = taken.lease(table)

    assert {name: each.id for name, each in infos.items()} == lease.tables["t"].snapshots
    assert not lease.tables["t"].is_consistent
    assert not taken.scanned(table, lease="l")[1].is_consistent
    assert by_id(taken.scanned(table, lease="l")[0]) == dict.fromkeys(range(40), 0)
    taken.check_files()


def test_what_was_taken_last_is_what_is_leased_also_after_there_was_a_cut(taken, monkeypatch):
    """An older cut is there, and it is not what somebody has just taken."""
    table = taken.table(buckets=4)
    put(table, range(40))
    taken.take(table)
    cut = taken.lease(table, "cut")
    monkeypatch.setattr(taking, "CUT_BUCKETS_MAX", 2)
    for n in range(1, 4):
        put(table, range(40), n)
        taken.take(table)
        lease = taken.lease(table, f"l{n}")
        assert (set(lease.tables["t"].snapshots.values()), lease.tables["t"].is_consistent) == ({n + 1}, False)
        assert by_id(taken.scanned(table, lease=lease.id)[0]) == dict.fromkeys(range(40), n)
    assert taken.engine.lease("cut").tables["t"].is_consistent
    assert by_id(taken.scanned(table, lease=cut.id)[0]) == dict.fromkeys(range(40), 0)

    monkeypatch.undo()
    put(table, range(40), 9)
    assert taken.take(table)["0"].id == 5
    assert taken.lease(table, "again").tables["t"].is_consistent


def test_whether_it_is_of_one_moment_is_known_after_a_restart(taken, monkeypatch):
    table = taken.table(buckets=4)
    put(table, range(40))
    taken.take(table)
    taken.lease(table)
    taken.reopen()

    assert taken.engine.lease("l").tables["t"].is_consistent
    assert taken.lease(taken.db.table("t"), "m").tables["t"].is_consistent
    assert taken.scanned(table)[1].is_consistent
    monkeypatch.setattr(taking, "CUT_BUCKETS_MAX", 3)
    put(taken.db.table("t"), range(40), 1)
    taken.take(table)
    taken.reopen()
    assert not taken.lease(taken.db.table("t"), "n").tables["t"].is_consistent


def test_a_lease_that_mixes_moments_does_not_call_itself_consistent(taken):
    """One bucket alone is of one moment, but not together with what the lease has of others."""
    table = taken.table(buckets=2)
    put(table, range(20))
    taken.take(table)
    put(table, range(20), 1)
    taken.take(table)

    whole = taken.lease(table, "whole", {"0": 2, "1": 2})
    old = taken.lease(table, "old", {"0": 1, "1": 1})
    part = taken.lease(table, "part", {"0": 1})
    mixed = taken.lease(table, "part", {"1": 2}, generation=part.generation)
    moved = taken.lease(table, "whole", {"1": 1}, generation=whole.generation)
    back = taken.lease(table, "whole", {"1": 2}, generation=moved.generation)

    states = [each.tables["t"].is_consistent for each in (whole, old, part, mixed, moved, back)]
    assert states == [True, False, True, False, False, True]


def test_some_buckets_of_a_cut_are_of_one_moment(taken):
    table = taken.table(buckets=3)
    put(table, range(20))
    taken.take(table)

    assert taken.lease(table, "l", {"0": 1, "2": 1}).tables["t"].is_consistent


def test_a_damaged_record_of_the_cut_is_only_the_end_of_the_cut(taken):
    table = taken.table()
    put(table, range(20))
    taken.take(table)
    meta = taken.engine._meta
    [record] = meta.list("snapshot-cut/")
    meta.write([meta.replacement(record.key, b"[[0,[0")])

    assert not taken.lease(table).tables["t"].is_consistent
    put(table, range(20), 1)
    taken.take(table)
    assert taken.lease(table, "m").tables["t"].is_consistent


# --- partitions


def _days(table, days, n=0):
    table.put([{"day": day, "id": id, "n": n} for day in days for id in range(5)])


def test_a_table_of_partitions_is_taken_as_a_whole(taken):
    table = taken.db.create_table("p", DAYS, buckets=2, partition_by=["day"])
    _days(table, "abc")

    infos = taken.take(table)
    lease = taken.lease(table)

    assert sorted(infos) == sorted(f"day={day}/{bucket}" for day in "abc" for bucket in (0, 1))
    assert lease.tables["p"].snapshots == dict.fromkeys(infos, 1)
    assert lease.tables["p"].is_consistent
    table.drop_partition(day="b")
    rows, _ = taken.scanned(table, lease="l")
    assert sorted({row["day"] for row in rows}) == ["a", "c"]
    assert sorted(taken.engine.lease("l").tables["p"].snapshots) == [
        f"day={day}/{bucket}" for day in "ac" for bucket in (0, 1)
    ]
    again = taken.lease(table, "again")
    assert again.tables["p"].is_consistent, "what is left of a cut, and what is empty, is taken anew as one"
    _days(table, "d")
    rows = {(row["day"], row["id"]): row["n"] for row in taken.scanned(table, lease="l")[0]}
    for batch in table.changelog(start=lease.tables["p"].start | {}, on_partition=lambda event: None):
        rows |= {(row["day"], row["id"]): row["n"] for row in batch.to_pylist()}
    assert rows == {(day, id): 0 for day in "acd" for id in range(5)}
    taken.check_files()


def test_a_table_without_partitions_yet_has_nothing_to_lease(taken):
    table = taken.db.create_table("p", DAYS, buckets=2, partition_by=["day"])

    assert taken.take(table) == {}
    assert taken.scanned(table)[0] == []
    with pytest.raises(InvalidArgument, match="nothing to lease"):
        taken.lease(table)


def test_partitions_that_come_and_go_meanwhile_do_not_stop_it(taken):
    table = taken.db.create_table("p", DAYS, buckets=2, partition_by=["day"])
    _days(table, "ab")
    is_over = threading.Event()

    def churn():
        n = 0
        while not is_over.is_set():
            n += 1
            _days(table, ["x"], n)
            _days(table, "ab", n)
            table.drop_partition(day="x")

    with ThreadPoolExecutor(1) as pool:
        churning = pool.submit(churn)
        try:
            for take in range(20 if FULL else 2):
                taken.take(table)
                lease = taken.lease(table, f"l{take}")
                rows = {(row["day"], row["id"]): row["n"] for row in taken.scanned(table, lease=lease.id)[0]}
                assert {(day, id) for day in "ab" for id in range(5)} <= rows.keys()
                if lease.tables["p"].is_consistent:
                    assert len({rows["a", id] for id in range(5)} | {rows["b", id] for id in range(5)}) <= 2
                taken.engine.drop_lease(lease.id)
        finally:
            is_over.set()
        churning.result()
    taken.engine.reap()
    taken.check_files()
