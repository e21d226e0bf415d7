"""What a transaction promises, rule by rule: those of ``exactly-once`` by name, and what follows from them."""

import errno
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.engine.transaction_bench import DAYS, EVENTS, PLAIN, TOTALS, events

import kolk
from kolk.client.writes import put_write
from kolk.errors import (
    AggregateOverflow,
    DeletesDisabled,
    InvalidArgument,
    InvalidRows,
    KolkError,
    MixedVersions,
    PartitionNotFound,
    PermissionDenied,
    SchemaChanged,
    StagingGone,
    TableNotFound,
    TooLarge,
    TooManyStagings,
)
from kolk.model.ids import PlainTag, TransactionTag
from kolk.model.options import MergeMode
from kolk.model.transaction import CommitRequest, Staging, Verdict
from kolk.model.write import Action
from kolk.testing.faults import Call

DAY = timedelta(days=1).total_seconds()


def put(table, n, keys=range(6)):
    table.put([{"k": k, "n": n, "s": f"s{n}"} for k in keys])


def plain(n, keys=range(6)):
    return [{"k": k, "n": n, "s": f"s{n}"} for k in keys]


def headers(tx, table):
    info = table.info
    for bucket in tx.engine._partitions.buckets(info):
        with tx.engine._tablets.use_one(info, bucket) as tablet:
            yield from ((bucket.name, header) for header in tx.frames(tablet))


# --- rules


def test_every_put_beside_transactions_has_a_frame_of_its_own(tx):
    """H1: one frame, one tag: whatever waits together is never written as one."""
    table = tx.db.create_table("t", PLAIN)
    barrier = threading.Barrier(8)

    def write(n):
        barrier.wait()
        if n % 2:
            put(table, n)
        else:
            tx.committed(table, plain(n), app=f"a{n}")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    tags = [header.tag for _, header in headers(tx, table)]
    assert len(tags) == len(set(tags)) == 8
    assert sum(isinstance(tag, PlainTag) for tag in tags) == 4
    tx.check()


def test_a_transaction_that_changes_nothing_is_in_the_log_of_every_participant(tx):
    """H2: a share without changes still writes a frame, without rows and without an offset."""
    table = tx.db.create_table("t", PLAIN, buckets=3)
    put(table, 1, range(12))
    ends = table.describe()["offsets"]

    result = tx.committed(table, plain(1, range(12)))

    assert result.verdict is Verdict.COMMITTED
    assert table.describe()["offsets"] == ends
    frames = [header for _, header in headers(tx, table) if isinstance(header.tag, TransactionTag)]
    assert [frame.rows for frame in frames] == [0, 0, 0]
    assert sum(batch.num_rows for batch in table.changelog(start="earliest")) == 12
    put(table, 2, range(12))
    tx.crash()
    table = tx.db.table("t")
    assert tx.committed(table, plain(1, range(12))).verdict is Verdict.DUPLICATE
    assert {row["n"] for row in tx.rows(table).values()} == {2}
    tx.check()


def test_the_version_of_one_table_says_nothing_of_another(tx):
    """H4: last is per application and table: two tables written under one version are both committed."""
    one, other = tx.totals("one"), tx.totals("other")
    assert tx.committed(one, events(1), version=5).verdict is Verdict.COMMITTED
    assert tx.committed(other, events(1), version=5).verdict is Verdict.COMMITTED
    assert tx.committed(other, events(1), version=5).verdict is Verdict.DUPLICATE
    assert tx.committed(one, events(1), app="b", version=5).verdict is Verdict.COMMITTED

    assert {row["times"] for row in tx.rows(one).values()} == {2}
    assert {row["times"] for row in tx.rows(other).values()} == {1}


def test_the_versions_of_a_table_count_whatever_other_tables_were_committed_with_it(tx):
    """H4: a commit of two tables makes the version of each of them."""
    one, other = tx.totals("one"), tx.totals("other")
    handles = [(one, [tx.staged(one, events(1), version=7)]), (other, [tx.staged(other, events(1), version=7)])]
    assert tx.commit(handles, version=7).verdict is Verdict.COMMITTED

    assert tx.committed(one, events(2), version=7).verdict is Verdict.DUPLICATE
    assert tx.committed(other, events(2), version=6).verdict is Verdict.OLD
    assert tx.committed(other, events(2), version=8).verdict is Verdict.COMMITTED


def test_a_discard_after_a_commit_that_is_not_finished_drops_nothing_of_it(tx):
    """H5: what a record names is never discarded: whoever gives up after an error may have been committed."""
    table = tx.totals()
    handle = tx.staged(table, events(1))
    tx.disk.fail_always(Call.WRITE, errno.ENOSPC, within="/1/log")
    assert tx.commit([(table, [handle])]).verdict is Verdict.COMMITTED

    tx.engine.discard([handle])
    tx.transactions.reap()

    assert tx.files() == {handle}
    tx.disk.heal()
    assert {row["times"] for row in tx.rows(table).values()} == {1}
    tx.check()


def test_a_version_that_is_new_to_some_tables_only_is_an_error_and_does_nothing(tx):
    """H6: MixedVersions: neither all new nor all known."""
    one, other = tx.totals("one"), tx.totals("other")
    tx.committed(one, events(1), version=3)
    handles = [(one, [tx.staged(one, events(1), version=3)]), (other, [tx.staged(other, events(1), version=3)])]

    with pytest.raises(MixedVersions, match="version 3"):
        tx.commit(handles, version=3)

    assert tx.rows(other) == {}
    assert len(tx.files()) == 2, "stagings stay"
    assert {record.version for record in tx.transactions.commits.of("a")} == {3}


def test_the_handles_of_the_first_attempt_stand_and_those_of_the_second_are_dropped(tx):
    """H7: whatever a later attempt has staged, the first one's rows count."""
    table = tx.totals()
    tx.committed(table, events(1))
    second = tx.staged(table, events(2))

    assert tx.commit([(table, [second])]).verdict is Verdict.DUPLICATE_DIFFERENT

    assert {row["total"] for row in tx.rows(table).values()} == {1}
    assert tx.files() == set()


def test_other_rows_of_a_version_are_an_answer_and_a_warning_and_no_exception(tx, caplog):
    """H8: a replay of a plan that is not deterministic must not wedge its query."""
    table = tx.totals()
    assert tx.committed(table, events(1)).verdict is Verdict.COMMITTED
    with caplog.at_level("WARNING"):
        assert tx.committed(table, events(1)).verdict is Verdict.DUPLICATE
        assert not caplog.records
        assert tx.committed(table, events(2)).verdict is Verdict.DUPLICATE_DIFFERENT

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with table.transaction("a", 1) as again:
        again.put(events(3))
    assert again.verdict == "duplicate-different"
    assert not again.is_new


@pytest.mark.parametrize("given", [{"checksum": 77}, {"rows": 12}, {"checksum": 77, "rows": 12}])
def test_a_retry_whose_handles_are_gone_is_compared_by_what_it_says(tx, given):
    """H8: nothing that is unknown makes two attempts different."""
    table = tx.totals()
    handle = tx.staged(table, events(1))
    assert tx.commit([(table, [handle])], **given).verdict is Verdict.COMMITTED

    for again in (handle, "f" * 32):
        same = Verdict.COMMITTED if again == handle else Verdict.DUPLICATE  # the answer of that very commit was lost
        assert tx.commit([(table, [again])], **given).verdict is same
        assert tx.commit([(table, [again])]).verdict is same
        assert tx.commit([(table, [again])], checksum=1).verdict is Verdict.DUPLICATE_DIFFERENT
        assert tx.commit([(table, [again])], rows=1).verdict is Verdict.DUPLICATE_DIFFERENT


def test_a_version_before_the_last_is_old_and_its_rows_are_dropped(tx):
    """H9: it means that a checkpoint was lost; whoever asks is told, and nothing is applied."""
    table = tx.totals()
    tx.committed(table, events(1), version=9)

    assert tx.committed(table, events(2), version=3).verdict is Verdict.OLD

    assert {row["total"] for row in tx.rows(table).values()} == {1}
    assert tx.files() == set()


def test_a_commit_without_rows_moves_the_version(tx):
    """H10: no handle at all is a valid commit."""
    table = tx.totals()

    assert tx.commit([(table, [])], version=4).verdict is Verdict.COMMITTED
    tx.crash()

    table = tx.db.table("t")
    assert tx.commit([(table, [])], version=4).verdict is Verdict.DUPLICATE
    assert tx.committed(table, events(1), version=4).verdict is Verdict.DUPLICATE_DIFFERENT
    assert tx.committed(table, events(1), version=90).verdict is Verdict.COMMITTED, "versions may have gaps"
    with table.transaction("empty", 1):
        pass
    assert {record.version for record in tx.transactions.commits.of("empty")} == {1}
    tx.check()


def test_a_column_that_was_dropped_since_refuses_the_commit_and_stagings_stay(tx):
    """H11: SchemaChanged: values are never silently left out."""
    table = tx.db.create_table("t", PLAIN, buckets=2)
    handle = tx.staged(table, plain(1))
    partial = tx.staged(table, [{"k": 1, "n": 5}], columns=["n"])
    tx.db.table("t").drop_column("s")

    with pytest.raises(SchemaChanged, match="'s'"):
        tx.commit([(table, [handle])])

    assert tx.files() == {handle, partial}
    assert tx.commit([(table, [partial])]).verdict is Verdict.COMMITTED
    table.refresh()
    assert list(tx.rows(table).values()) == [{"k": 1, "n": 5}]


def test_columns_that_were_renamed_added_and_widened_since_are_mapped_by_id(tx):
    """H11: a transaction is a put at the moment of its commit."""
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("a", "int"), kolk.Column("b", "string")], "k")
    table = tx.db.create_table("t", schema, buckets=2)
    handle = tx.staged(table, [{"k": k, "a": 1, "b": "x"} for k in range(4)])
    partial = tx.staged(table, [{"k": 2, "a": 7}], columns=["a"])
    table.alter(
        [
            kolk.RenameColumn("a", "b2"),
            kolk.RenameColumn("b", "a"),
            kolk.WidenColumn("b2", "bigint"),
            kolk.AddColumn(kolk.Column("c", "int", default=3)),
        ]
    )

    assert tx.commit([(table, [handle, partial])]).verdict is Verdict.COMMITTED

    expected = {(k,): {"k": k, "b2": 7 if k == 2 else 1, "a": "x", "c": 3} for k in range(4)}
    assert tx.rows(table) == expected
    tx.crash()
    assert tx.rows(tx.db.table("t")) == expected


@pytest.mark.parametrize("makes", [True, False])
def test_rows_of_a_partition_that_was_dropped_since_do_what_a_put_would_do(tx, makes):
    """H11: it is made anew, or the put's error."""
    options = {} if makes else {"table.dynamic-partition.enabled": "false"}
    table = tx.db.create_table("t", DAYS, partition_by=["day"], options=options)
    for day in "ab":
        table.add_partition(day=day)
    handle = tx.staged(table, [{"day": day, "k": 1, "n": 1} for day in "ab"])
    table.drop_partition(day="a")

    if makes:
        assert tx.commit([(table, [handle])]).verdict is Verdict.COMMITTED
        assert len(tx.rows(table)) == 2
    else:
        with pytest.raises(PartitionNotFound):
            tx.commit([(table, [handle])])
        assert tx.rows(table) == {}
        assert tx.files() == {handle}


def test_a_table_that_was_made_anew_is_another_one(tx):
    """H11: what was staged for the one that is gone cannot be committed to the other."""
    table = tx.totals()
    tx.committed(table, events(1), version=1)
    handle = tx.staged(table, events(2), version=2)
    tx.db.drop_table("t")
    again = tx.totals()

    with pytest.raises(TableNotFound):
        tx.commit([(table, [handle])], version=2)
    with pytest.raises(StagingGone, match="not for this commit"):
        tx.commit([(again, [handle])], version=2)

    assert tx.rows(again) == {}
    assert tx.committed(again, events(3), version=1).verdict is Verdict.COMMITTED
    assert [record.tables for record in tx.transactions.commits.all()] == [(again.info.id,)]


BAD = {
    "overflow": (TOTALS, {"merge_engine": "aggregation"}, {**events(1, [3])[0], "total": 2**63 - 1}, AggregateOverflow),
    "null": (
        kolk.Schema(
            [kolk.Column("k", "int"), kolk.Column("n", "int", nullable=False), kolk.Column("s", "string")], "k"
        ),
        {},
        {"k": 3, "s": "x"},
        InvalidRows,
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_merged_fails_before_the_record_and_the_version_is_not_used(tx, what):
    """H13: after the record nothing may fail for data."""
    schema, how, row, error = BAD[what]
    table = tx.db.create_table("t", schema, buckets=3, **how)
    good = {"overflow": events(1), "null": [{"k": k, "n": 1, "s": "s"} for k in range(12)]}[what]
    tx.committed(table, good, version=1)
    before = tx.rows(table)
    columns = ["s"] if what == "null" else None
    keys = range(12, 30) if what == "null" else [3]
    rows = [*good, row] if what == "overflow" else [{**row, "k": k} for k in keys]
    handle = tx.staged(table, rows, version=2, columns=columns)

    with pytest.raises(error):
        tx.commit([(table, [handle])], version=2)

    assert tx.rows(table) == before
    assert tx.files() == {handle}
    assert {record.version for record in tx.transactions.commits.of("a")} == {1}
    assert tx.committed(table, good, version=2).verdict is Verdict.COMMITTED
    tx.check()


def test_deletes_that_a_table_does_not_take_fail_before_the_record(tx):
    """H13: the same for deletes."""
    table = tx.db.create_table("t", PLAIN, options={"table.delete.behavior": "disable"})
    put(table, 1)
    one = table.transaction("a", 1)
    one.put(plain(2, [9]))
    one.delete([1])

    with pytest.raises(DeletesDisabled):
        one.commit()

    assert len(tx.rows(table)) == 6
    assert tx.transactions.commits.all() == []
    assert tx.files() == set()


def test_a_share_that_no_frame_holds_fails_before_the_record(tx, monkeypatch):
    """H13: also for its size."""
    monkeypatch.setattr("kolk.tablet.tablet.BODY_BYTES_MAX", 10_000)
    table = tx.db.create_table("t", PLAIN, buckets=2)
    handle = tx.staged(table, [{"k": k, "n": 1, "s": "x" * 100} for k in range(1_000)])

    with pytest.raises(TooLarge, match="log frame"):
        tx.commit([(table, [handle])])

    assert tx.transactions.commits.all() == []
    assert tx.committed(table, plain(1)).verdict is Verdict.COMMITTED
    tx.check()


def test_the_rows_that_a_truncation_removes_always_fit_into_frames(tx, monkeypatch):
    """H13: they are written after the record, so their frames are as small as they have to be."""
    monkeypatch.setattr("kolk.tablet.tablet._TRUNCATE_PAGE_BYTES", 5_000)
    monkeypatch.setattr("kolk.tablet.tablet.BODY_BYTES_MAX", 20_000)
    table = tx.db.create_table("t", PLAIN)
    for k in range(20):
        table.put([{"k": k, "n": 1, "s": "x" * 3_000}])

    with table.transaction("a", 1) as one:
        one.truncate()
        one.put(plain(2, [1]))

    assert tx.rows(table) == {(1,): {"k": 1, "n": 2, "s": "s2"}}
    tx.check()


def test_a_commit_that_no_record_holds_is_refused_before_anything_happens(tx, monkeypatch):
    """H13: its record is small enough also once it says where all buckets end."""
    monkeypatch.setattr("kolk.engine.commits.RECORD_BYTES_MAX", 500)
    table = tx.db.create_table("t", PLAIN, buckets=16)
    with pytest.raises(TooLarge, match="too large for one record"):
        tx.committed(table, plain(1, range(100)))

    assert tx.rows(table) == {}
    monkeypatch.undo()
    assert tx.committed(table, plain(1, range(100))).verdict is Verdict.COMMITTED
    tx.check()


def test_a_commit_clears_what_is_staged_for_its_own_tables_and_versions_up_to_it_only(tx):
    """H14: not what waits for other tables, later versions or other applications."""
    one, other = tx.totals("one"), tx.totals("other")
    earlier = tx.staged(one, events(1), version=1)
    unsealed = tx.staged(one, events(1), version=2, is_sealed=False)
    attempt = tx.staged(one, events(1), version=2)
    kept = {
        tx.staged(other, events(1), version=1),
        tx.staged(one, events(1), version=3),
        tx.staged(one, events(1), app="b", version=1),
    }
    handle = tx.staged(one, events(1), version=2)

    tx.commit([(one, [handle])], version=2)

    assert tx.files() == kept
    assert kept.isdisjoint({earlier, unsealed, attempt, handle})


def test_offsets_of_a_scan_never_cut_a_transaction_and_its_changes_have_one_time(tx):
    """H16: a scan sees whole transactions, and so do those who go on from it."""
    table = tx.totals()
    tx.committed(table, events(1), version=1)
    scan = table.scan()
    tx.clock.advance(seconds=5)
    tx.committed(table, events(2), version=2)

    assert {row["times"] for row in scan.to_arrow().to_pylist()} == {1}
    changes = [row for batch in table.changelog(start=scan.offsets) for row in batch.to_pylist()]
    assert {row["times"] for row in changes if row["_change_type"] == "+U"} == {2}
    assert len(changes) == 24
    assert len({row["_commit_timestamp"] for row in changes}) == 1


def test_an_application_is_remembered_for_a_year_and_one_that_is_a_uuid_for_a_week(tx):
    """H17: an application that is forgotten would have its last version applied twice."""
    table = tx.totals()
    shot = "0f8fad5b-d9cb-469f-a165-70867728950e"
    tx.committed(table, events(1), app="job", version=7)
    tx.committed(table, events(1), app=shot, version=7)

    tx.clock.advance(seconds=7 * DAY - 1)
    tx.engine.reap()
    assert tx.committed(table, events(1), app=shot, version=7).verdict is Verdict.DUPLICATE
    tx.clock.advance(seconds=2)
    tx.engine.reap()
    assert [record.app for record in tx.transactions.commits.all()] == ["job"]
    tx.clock.advance(seconds=358 * DAY - 10)
    tx.engine.reap()
    tx.reopen()
    table = tx.db.table("t")
    assert tx.committed(table, events(1), app="job", version=7).verdict is Verdict.DUPLICATE
    tx.clock.advance(seconds=20)
    tx.engine.reap()
    assert tx.transactions.commits.all() == []
    tx.reopen()
    assert tx.transactions.commits.all() == []


def test_new_applications_are_refused_when_there_are_too_many_and_none_is_forgotten(transaction_bench):
    """H17: old ones are never evicted early."""
    tx = transaction_bench(txn_apps_max=2)
    table = tx.totals()
    for app in "ab":
        tx.committed(table, events(1), app=app)

    with pytest.raises(TooManyStagings, match="2 applications"):
        tx.committed(table, events(1), app="c")

    assert tx.committed(table, events(1), app="a").verdict is Verdict.DUPLICATE
    assert tx.committed(table, events(1), app="b", version=2).verdict is Verdict.COMMITTED


def test_the_checksum_depends_neither_on_order_nor_on_how_rows_are_cut(tx):
    """H18: it is of the input rows, so the same work cut otherwise is the same."""
    table = tx.totals()
    rows = events(1) + events(2) + events(3)
    assert tx.committed(table, rows).verdict is Verdict.COMMITTED

    pieces = [tx.staged(table, list(reversed(rows[start::5]))) for start in range(5)]
    assert tx.commit([(table, pieces)]).verdict is Verdict.DUPLICATE
    once_less = tx.staged(table, rows[1:])
    assert tx.commit([(table, [once_less])]).verdict is Verdict.DUPLICATE_DIFFERENT


def test_commits_over_the_same_buckets_are_in_one_order_everywhere(tx):
    """H38: all participants' locks are held, so that two commits never apply in opposite order in two buckets."""
    tables = [tx.db.create_table(name, PLAIN, buckets=4) for name in ("one", "other")]
    done = threading.Event()
    failed = []

    def noting(work, *args):
        try:
            work(*args)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    def commits(app):
        for version in range(12):
            order = tables if app % 2 else tables[::-1]
            handles = [(each, [tx.staged(each, plain(version, range(8)), f"a{app}", version)]) for each in order]
            tx.commit(handles, f"a{app}", version)

    def puts():
        n = 0
        while not done.is_set():
            put(tables[n % 2], 1_000 + (n := n + 1), [n % 8])

    def scans():
        while not done.is_set():
            tables[0].scan().to_arrow()
            tables[1].scan().to_arrow()

    others = [threading.Thread(target=noting, args=(each,)) for each in (puts, scans)]
    writers = [threading.Thread(target=noting, args=(commits, app)) for app in range(4)]
    for thread in (*others, *writers):
        thread.start()
    for thread in writers:
        thread.join(60)
    done.set()
    for thread in others:
        thread.join(60)

    assert not any(thread.is_alive() for thread in (*others, *writers)), "nobody waits for ever"
    assert failed == []
    found = tx.check()
    assert sorted(found) == list(range(1, 49)), "each is there"
    assert {len(each) for each in found.values()} == {8}


def test_a_scan_sees_all_of_a_transaction_or_nothing_of_it(tx):
    """H16: every row of the table is of the same version, in all buckets."""
    table = tx.db.create_table("t", PLAIN, buckets=5)
    tx.committed(table, plain(0, range(40)), version=0)
    done, seen, torn = threading.Event(), set(), []

    def scans():
        while not done.is_set():
            found = {row["n"] for row in table.scan().to_arrow().to_pylist()}
            seen.update(found)
            if len(found) != 1:
                torn.append(found)

    readers = [threading.Thread(target=scans) for _ in range(2)]
    for reader in readers:
        reader.start()
    for version in range(1, 25):
        tx.committed(table, plain(version, range(40)), version=version)
    done.set()
    for reader in readers:
        reader.join()

    assert torn == []
    assert len(seen) > 2


# --- kinds of writes


def test_a_table_is_loaded_anew_in_one_step(tx):
    """Every bucket takes part, also those without new rows, and sums begin anew."""
    table = tx.totals(buckets=6)
    tx.committed(table, events(5, range(30)), version=1)
    scan = table.scan()

    with table.transaction("a", 2) as two:
        two.truncate()
        two.put(events(1, range(2)))
        two.put(events(2, range(1)))

    expected = {
        (0,): {"k": 0, "total": 3, "most": 0, "last": "l2", "names": "1,2", "times": 2},
        (1,): {"k": 1, "total": 1, "most": 1, "last": "l1", "names": "1", "times": 1},
    }
    assert tx.rows(table) == expected
    assert len(scan.to_arrow()) == 30
    assert two.offsets["t"].keys() == {str(bucket) for bucket in range(6)}
    assert tx.replayed(table) == expected
    with table.transaction("a", 2) as again:
        again.truncate()
        again.put(events(1, range(2)))
    assert again.verdict == "duplicate-different"
    tx.crash()
    table = tx.db.table("t")
    assert tx.rows(table) == expected
    assert sum(tablet.estimate() for tablet in tx.engine._tablets.opened()) == 2
    tx.check()


def test_a_log_table_is_written_in_a_transaction_but_never_truncated_by_one(tx):
    log, keyed = tx.db.create_table("log", EVENTS, buckets=3), tx.totals("keyed")
    with tx.db.transaction("a", 1) as one:
        one.put([{"k": k, "n": 1} for k in range(10)], table="log")
        one.put(events(1), table=keyed)
        one.put([{"k": k, "n": 2} for k in range(10)], table=log)

    assert one.verdict == "committed"
    assert sum(one.offsets["log"].values()) == 20
    with pytest.raises(InvalidArgument, match="truncated"), log.transaction("a", 2) as two:
        two.truncate()
    tx.crash()
    log = tx.db.table("log")
    found = [row["n"] for batch in log.changelog(start="earliest") for row in batch.to_pylist()]
    assert sorted(found) == [1] * 10 + [2] * 10
    assert tx.transactions.commits.csn == 1
    tx.check()


def test_writes_of_all_kinds_are_merged_in_their_order(tx):
    table = tx.db.create_table("t", PLAIN, buckets=2)
    put(table, 1)
    with table.transaction("a", 1) as one:
        one.delete([0, 1])
        one.put([{"k": 1, "n": 5}], columns=["n"])
        one.put(plain(2, [2]))
        one.delete([2], columns=["s"])
        one.put([{"_change_type": "+U", "k": 3, "n": 9, "s": "c"}, {"_change_type": "-D", "k": 4, "n": 1, "s": "s1"}])
        one.put(plain(7, [9]))
        one.delete([9])
        one.put([])

    assert one.verdict == "committed"
    expected = {
        1: {"k": 1, "n": 5, "s": None},
        2: {"k": 2, "n": 2, "s": None},
        3: {"k": 3, "n": 9, "s": "c"},
        5: {"k": 5, "n": 1, "s": "s1"},
    }
    assert tx.rows(table) == {(k,): row for k, row in expected.items()}
    tx.check()
    tx.crash()
    assert tx.rows(tx.db.table("t")) == {(k,): row for k, row in expected.items()}


def test_states_retractions_and_partial_columns_are_merged_in_a_transaction(tx):
    counted = kolk.Column("times", "bigint", agg="count_rows")
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("total", "bigint", agg="sum"), counted], "k")
    table = tx.db.create_table("t", schema, buckets=2, merge_engine="aggregation")
    rows = [{"k": k, "total": 10} for k in range(4)]
    with table.transaction("a", 1) as one:
        one.put(rows)
        one.put(table.preaggregate(rows + rows), mode="merge_state")
        one.put([{"k": 1, "total": 5, "_change_type": "-D"}])
        one.put([{"k": 2, "total": 1}], columns=["total"])
        one.put([{"k": 3, "total": 0, "times": 0}], mode="overwrite")

    found = {key[0]: (row["total"], row["times"]) for key, row in tx.rows(table).items()}
    assert found == {0: (30, 3), 1: (25, 2), 2: (31, 3), 3: (0, 0)}
    tx.check()


@pytest.mark.parametrize("image", ["full", "wal"])
@pytest.mark.parametrize("engine", ["default", "first_row"])
def test_a_transaction_leaves_what_the_same_puts_would(tx, engine, image):
    options = {"table.changelog.image": image}
    tables = [tx.db.create_table(name, PLAIN, buckets=2, merge_engine=engine, options=options) for name in "ab"]
    for n in range(3):
        put(tables[0], n, range(n, n + 5))
        with tables[1].transaction("a", n) as one:
            for k in range(n, n + 5):
                one.put(plain(n, [k]))

    assert tx.rows(tables[0]) == tx.rows(tables[1])
    tx.crash()
    assert tx.rows(tx.db.table("a")) == tx.rows(tx.db.table("b"))


def test_rows_too_many_for_one_put_become_several_frames_of_one_group(transaction_bench):
    tx = transaction_bench(put_rows_max=10)
    table = tx.totals(buckets=1)
    for n in range(1, 5):
        tx.staged(table, events(n, range(8)))
    handles = sorted(tx.files())

    assert tx.commit([(table, handles)]).verdict is Verdict.COMMITTED

    [frames] = [[h for _, h in headers(tx, table)]]
    assert len(frames) == 4
    assert {row["total"] for row in tx.rows(table).values()} == {10}
    assert {row["names"] for row in tx.rows(table).values()} == {"1,2,3,4"}
    tx.check()
    with pytest.raises(TooLarge):
        tx.staged(table, events(1, range(11)))


def test_partitions_are_made_by_a_commit_and_deletes_make_none(tx):
    table = tx.db.create_table("t", DAYS, partition_by=["day"], buckets=2, bucket_key=["k"])
    with table.transaction("a", 1) as one:
        one.put([{"day": day, "k": k, "n": 1} for day in "abc" for k in range(5)])
        one.delete([{"day": "z", "k": 1}, {"day": "a", "k": 1}])

    assert {each.name for each in table.partitions()} == {"day=a", "day=b", "day=c"}
    assert len(tx.rows(table)) == 14
    with table.transaction("a", 2) as two:
        two.truncate()
        two.put([{"day": "c", "k": 1, "n": 2}])
    assert len(tx.rows(table)) == 1
    assert len(two.offsets["t"]) == 6
    tx.check()


def test_a_thousand_handles_are_one_commit(tx):
    table = tx.totals(buckets=2)
    handles = [tx.staged(table, [{**events(1, [n % 7])[0], "names": str(n)}]) for n in range(1_000)]

    assert tx.commit([(table, handles)]).verdict is Verdict.COMMITTED

    rows = tx.rows(table)
    assert sum(row["total"] for row in rows.values()) == 1_000
    assert rows[3,]["names"] == ",".join(str(n) for n in range(3, 1_000, 7)), "in the order of the handles"
    assert tx.files() == set()
    assert len({header.tag for _, header in headers(tx, table)}) == 1


# --- handles


def test_a_handle_is_sealed_once_and_takes_nothing_afterwards(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1), is_sealed=False)
    [(staging, _, _)] = tx.transactions.stagings.listed()
    with pytest.raises(StagingGone, match="not sealed"):
        tx.commit([(table, [handle])])

    seal = tx.engine.seal(staging, 1)

    assert tx.engine.seal(staging, 1) == seal
    assert seal.rows == 12
    for other in (replace(staging, version=2), replace(staging, app="b"), replace(staging, action=Action.DELETE)):
        with pytest.raises(InvalidArgument):
            tx.engine.seal(other, 1)
    with pytest.raises(InvalidArgument, match="sealed"):
        tx.engine.stage(staging, 1, _batch(table))
    tx.commit([(table, [handle])])
    with pytest.raises(StagingGone):
        tx.engine.stage(staging, 1, _batch(table))
    with pytest.raises(StagingGone):
        tx.engine.seal(staging, 1)
    assert tx.files() == set()


def _batch(table):
    return put_write(table.schema, events(1), None, MergeMode.ACCUMULATE).rows


@pytest.mark.parametrize("wrong", [{"app": "b"}, {"version": 2}])
def test_handles_of_another_commit_are_refused_and_stay(tx, wrong):
    table = tx.totals()
    handle = tx.staged(table, events(1))

    with pytest.raises(StagingGone, match="not for this commit"):
        tx.commit([(table, [handle])], **({"app": "a", "version": 1} | wrong))

    assert tx.files() == {handle}
    with pytest.raises(InvalidArgument, match="twice"):
        tx.commit([(table, [handle, handle])])


def test_another_principal_neither_commits_nor_discards_what_is_staged(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1))
    request = CommitRequest(app="a", version=1, handles={table.info.id: (handle,)})

    with pytest.raises(PermissionDenied):
        tx.transactions.commit(request, "stranger")
    tx.transactions.discard([handle], "stranger")

    assert tx.files() == {handle}
    assert tx.transactions.commit(request, "").verdict is Verdict.COMMITTED


def test_an_old_commit_drops_nobody_elses_handles(tx):
    table = tx.totals()
    tx.committed(table, events(1), app="a", version=5)
    others = tx.staged(table, events(1), app="b", version=1)
    later = tx.staged(table, events(1), app="a", version=9)

    assert tx.commit([(table, [others, later])], app="a", version=5).verdict is Verdict.DUPLICATE_DIFFERENT

    assert tx.files() == {others, later}


def test_a_refused_commit_does_not_unpin_what_another_one_uses(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1))
    with tx.transactions.stagings.pinned([handle]):
        with pytest.raises(StagingGone):
            tx.commit([(table, [handle])], app="b")

        tx.engine.discard([handle])

        assert tx.files() == {handle}
    tx.engine.discard([handle])
    assert tx.files() == set()


def test_stagings_go_when_nobody_comes_back(tx):
    table = tx.totals()
    unsealed, sealed = tx.staged(table, events(1), is_sealed=False), tx.staged(table, events(1))
    [(staging, *_)] = [each for each in tx.transactions.stagings.listed() if not each[2]]

    tx.clock.advance(seconds=599)
    tx.engine.stage(staging, 1, _batch(table))
    tx.clock.advance(seconds=599)
    tx.engine.reap()
    assert tx.files() == {unsealed, sealed}
    tx.clock.advance(seconds=2)
    tx.engine.reap()
    assert tx.files() == {sealed}
    for number in (0, 2):
        with pytest.raises(StagingGone, match="all of them"):
            tx.engine.stage(staging, number, _batch(table))
    tx.clock.advance(seconds=DAY)
    tx.engine.reap()
    assert tx.files() == set()
    with pytest.raises(StagingGone):
        tx.commit([(table, [sealed])])
    assert tx.transactions.stagings.bytes == 0


def test_what_is_staged_has_a_limit_for_each_application_and_for_all(transaction_bench):
    tx = transaction_bench(txn_app_bytes_max=20_000, txn_staging_bytes_max=30_000)
    table = tx.totals()
    rows = events(1, range(100))
    first = tx.staged(table, rows, app="a")
    size = tx.transactions.stagings.bytes

    for app, limit in (("a", 20_000), ("b", 30_000)):
        while tx.transactions.stagings.bytes + 2 * size < limit:
            tx.staged(table, rows, app=app)
        tx.staged(table, rows, app=app)
        with pytest.raises(TooManyStagings):
            tx.staged(table, rows, app=app)

    assert tx.commit([(table, [first])], app="a").verdict is Verdict.COMMITTED
    assert tx.staged(table, rows, app="a", version=2)
    before = tx.transactions.stagings.bytes
    tx.reopen()
    assert 0 < tx.transactions.stagings.bytes <= before


def test_a_handle_that_went_in_between_is_noticed_by_the_client(tx):
    table = tx.totals()
    one = table.transaction("a", 1)
    one.put(events(1))
    tx.clock.advance(seconds=601)
    tx.engine.reap()

    with pytest.raises(StagingGone):
        one.put(events(2))
    with pytest.raises(StagingGone):
        one.commit()

    assert tx.rows(table) == {}


def test_rows_that_a_server_forgot_are_noticed_by_the_client(tx):
    """A process that begins anew does not know which handles the one before had."""
    table = tx.totals()
    one = table.transaction("a", 1)
    one.put(events(1))
    [staging] = [each[0] for each in tx.transactions.stagings.listed()]
    tx.transactions.stagings.discard([staging.handle])
    tx.transactions.stagings._gone.clear()

    with pytest.raises(StagingGone):
        one.put(events(2))
    with pytest.raises(StagingGone):
        one.commit()

    assert tx.rows(table) == {}
    assert tx.files() == set()


def test_a_handle_that_is_discarded_while_rows_come_is_gone_for_them(tx):
    """A late attempt writes on while the commit of another one clears it: its file is never closed under it."""
    table = tx.db.create_table("t", PLAIN)
    failed, rows = [], plain(1, range(1_000))

    def stage(n):
        try:
            for _ in range(20):
                tx.staged(table, rows, version=n)
        except KolkError as error:
            failed.append(error)

    late = [threading.Thread(target=stage, args=(0,)) for _ in range(3)]
    for thread in late:
        thread.start()
    for version in range(1, 15):
        tx.committed(table, plain(version), version=version)
    for thread in late:
        thread.join()

    assert all(isinstance(error, StagingGone) for error in failed), failed
    tx.check()


def test_a_restart_keeps_what_is_sealed_and_removes_the_rest(tx):
    table = tx.totals()
    sealed = tx.staged(table, events(1))
    tx.staged(table, events(2), is_sealed=False)
    assert {(each.state, each.rows, len(each.handles)) for each in tx.db.transactions()} == {
        ("sealed", 12, 1),
        ("staging", 12, 1),
    }

    tx.crash()

    assert tx.files() == {sealed}
    tx.clock.advance(seconds=DAY - 1)
    tx.engine.reap()
    assert tx.commit([(tx.db.table("t"), [sealed])]).verdict is Verdict.COMMITTED
    tx.check()


def test_what_was_left_of_a_commit_that_is_done_is_cleared_at_the_next_start(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1))
    data = (tx.path / "staging" / f"{handle}.rows").read_bytes()
    tx.commit([(table, [handle])])
    (tx.path / "staging" / f"{handle}.rows").write_bytes(data)

    tx.reopen()

    assert tx.files() == set()
    assert tx.committed(tx.db.table("t"), events(1)).verdict is Verdict.DUPLICATE


def test_names_and_numbers_that_cannot_be_are_refused(tx):
    table = tx.totals()
    for app in ("", "x" * 257, "a\nb", 5):
        with pytest.raises(InvalidArgument):
            table.transaction(app, 1)
    for version in (-1, True, 2**63, "1", 1.0):
        with pytest.raises(InvalidArgument):
            table.transaction("a", version)
    for handle in ("../x", "g" * 32, "A" * 32):
        with pytest.raises(InvalidArgument):
            tx.commit([(table, [handle])])
        staging = Staging(handle=handle, app="a", version=1, table=table.info.id, schema_id=1)
        with pytest.raises(InvalidArgument):
            tx.engine.stage(staging, 0, _batch(table))
    app = "ä/%2F ,'\"💥" + "x" * 200
    assert tx.committed(table, events(1), app=app, version=2**63 - 1).verdict is Verdict.COMMITTED
    tx.reopen()
    assert tx.committed(tx.db.table("t"), events(1), app=app, version=2**63 - 1).verdict is Verdict.DUPLICATE
