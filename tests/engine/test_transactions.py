"""What a transaction promises, rule by rule: those of ``exactly-once`` by name, and what follows from them."""

import errno
import threading

import pytest
from tests.engine.transaction_bench import DAY, DAYS, PLAIN, events, plain, put

import kolk
from kolk.errors import (
    MixedVersions,
    PartitionNotFound,
    SchemaChanged,
    StagingGone,
    TableNotFound,
    TooManyStagings,
)
from kolk.model.ids import PlainTag, TransactionTag
from kolk.model.transaction import Verdict
from kolk.testing.faults import Call

# --- rules


def test_h1_every_put_beside_transactions_has_a_frame_of_its_own(tx):
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

    tags = [header.tag for _, header in tx.headers(table)]
    assert len(tags) == len(set(tags)) == 8
    assert sum(isinstance(tag, PlainTag) for tag in tags) == 4
    tx.check()


def test_h2_a_transaction_that_changes_nothing_is_in_the_log_of_every_participant(tx):
    """H2: a share without changes still writes a frame, without rows and without an offset."""
    table = tx.db.create_table("t", PLAIN, buckets=3)
    put(table, 1, range(12))
    ends = table.describe()["offsets"]

    result = tx.committed(table, plain(1, range(12)))

    assert result.verdict is Verdict.COMMITTED
    assert table.describe()["offsets"] == ends
    frames = [header for _, header in tx.headers(table) if isinstance(header.tag, TransactionTag)]
    assert [frame.rows for frame in frames] == [0, 0, 0]
    assert sum(batch.num_rows for batch in table.changelog(start="earliest")) == 12
    put(table, 2, range(12))
    tx.crash()
    table = tx.db.table("t")
    assert tx.committed(table, plain(1, range(12))).verdict is Verdict.DUPLICATE
    assert {row["n"] for row in tx.rows(table).values()} == {2}
    tx.check()


def test_h4_the_version_of_one_table_says_nothing_of_another(tx):
    """H4: last is per application and table: two tables written under one version are both committed."""
    one, other = tx.totals("one"), tx.totals("other")
    assert tx.committed(one, events(1), version=5).verdict is Verdict.COMMITTED
    assert tx.committed(other, events(1), version=5).verdict is Verdict.COMMITTED
    assert tx.committed(other, events(1), version=5).verdict is Verdict.DUPLICATE
    assert tx.committed(one, events(1), app="b", version=5).verdict is Verdict.COMMITTED

    assert {row["times"] for row in tx.rows(one).values()} == {2}
    assert {row["times"] for row in tx.rows(other).values()} == {1}


def test_h4_the_versions_of_a_table_count_whatever_other_tables_were_committed_with_it(tx):
    """H4: a commit of two tables makes the version of each of them."""
    one, other = tx.totals("one"), tx.totals("other")
    handles = [(one, [tx.staged(one, events(1), version=7)]), (other, [tx.staged(other, events(1), version=7)])]
    assert tx.commit(handles, version=7).verdict is Verdict.COMMITTED

    assert tx.committed(one, events(2), version=7).verdict is Verdict.DUPLICATE
    assert tx.committed(other, events(2), version=6).verdict is Verdict.OLD
    assert tx.committed(other, events(2), version=8).verdict is Verdict.COMMITTED


def test_h5_a_discard_after_a_commit_that_is_not_finished_drops_nothing_of_it(tx):
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


def test_h6_a_version_that_is_new_to_some_tables_only_is_an_error_and_does_nothing(tx):
    """H6: MixedVersions: neither all new nor all known."""
    one, other = tx.totals("one"), tx.totals("other")
    tx.committed(one, events(1), version=3)
    handles = [(one, [tx.staged(one, events(1), version=3)]), (other, [tx.staged(other, events(1), version=3)])]

    with pytest.raises(MixedVersions, match="version 3"):
        tx.commit(handles, version=3)

    assert tx.rows(other) == {}
    assert len(tx.files()) == 2, "stagings stay"
    assert {record.version for record in tx.transactions.commits.of("a")} == {3}


def test_h7_the_handles_of_the_first_attempt_stand_and_those_of_the_second_are_dropped(tx):
    """H7: whatever a later attempt has staged, the first one's rows count."""
    table = tx.totals()
    tx.committed(table, events(1))
    second = tx.staged(table, events(2))

    assert tx.commit([(table, [second])]).verdict is Verdict.DUPLICATE_DIFFERENT

    assert {row["total"] for row in tx.rows(table).values()} == {1}
    assert tx.files() == set()


def test_h8_other_rows_of_a_version_are_an_answer_and_a_warning_and_no_exception(tx, caplog):
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
def test_h8_a_retry_whose_handles_are_gone_is_compared_by_what_it_says(tx, given):
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


def test_h9_a_version_before_the_last_is_old_and_its_rows_are_dropped(tx):
    """H9: it means that a checkpoint was lost; whoever asks is told, and nothing is applied."""
    table = tx.totals()
    tx.committed(table, events(1), version=9)

    assert tx.committed(table, events(2), version=3).verdict is Verdict.OLD

    assert {row["total"] for row in tx.rows(table).values()} == {1}
    assert tx.files() == set()


def test_h10_a_commit_without_rows_moves_the_version(tx):
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


def test_h11_a_column_that_was_dropped_since_refuses_the_commit_and_stagings_stay(tx):
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


def test_h11_columns_that_were_renamed_added_and_widened_since_are_mapped_by_id(tx):
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
def test_h11_rows_of_a_partition_that_was_dropped_since_do_what_a_put_would_do(tx, makes):
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


def test_h11_a_table_that_was_made_anew_is_another_one(tx):
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


def test_h14_a_commit_clears_what_is_staged_for_its_own_tables_and_versions_up_to_it_only(tx):
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


def test_h16_offsets_of_a_scan_never_cut_a_transaction_and_its_changes_have_one_time(tx):
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


@pytest.mark.parametrize("name", ["job", "0f8fad5b-d9cb-469f-a165-70867728950e"], ids=["a name", "a query id of Spark"])
def test_h17_an_application_is_remembered_for_a_year_and_one_that_was_drawn_for_one_write_for_a_week(tx, name):
    """H17: an application that is forgotten would have its last version applied twice."""
    table = tx.totals()
    shot = "0f8fad5bd9cb469fa16570867728950e"
    tx.committed(table, events(1), app=name, version=7)
    tx.committed(table, events(1), app=shot, version=7)

    tx.clock.advance(seconds=7 * DAY - 1)
    tx.engine.reap()
    assert tx.committed(table, events(1), app=shot, version=7).verdict is Verdict.DUPLICATE
    tx.clock.advance(seconds=2)
    tx.engine.reap()
    assert [record.app for record in tx.transactions.commits.all()] == [name]
    tx.clock.advance(seconds=358 * DAY - 10)
    tx.engine.reap()
    tx.reopen()
    table = tx.db.table("t")
    assert tx.committed(table, events(1), app=name, version=7).verdict is Verdict.DUPLICATE
    tx.clock.advance(seconds=3_601)  # after a restart the clock is believed in an hour
    tx.engine.reap()
    assert tx.transactions.commits.all() == []
    tx.reopen()
    assert tx.transactions.commits.all() == []


def test_h17_new_applications_are_refused_when_there_are_too_many_and_none_is_forgotten(transaction_bench):
    """H17: old ones are never evicted early."""
    tx = transaction_bench(txn_apps_max=2)
    table = tx.totals()
    for app in "ab":
        tx.committed(table, events(1), app=app)

    with pytest.raises(TooManyStagings, match="2 applications"):
        tx.committed(table, events(1), app="c")

    assert tx.committed(table, events(1), app="a").verdict is Verdict.DUPLICATE
    assert tx.committed(table, events(1), app="b", version=2).verdict is Verdict.COMMITTED


def test_h17_names_that_were_drawn_for_one_write_take_no_room_of_applications_and_the_oldest_go_first(
    transaction_bench,
):
    """H17 is about applications: nobody comes back under a name that was drawn for one write."""
    tx = transaction_bench(txn_apps_max=3)
    table = tx.totals()

    for shot in range(3, 0, -1):  # the first in time are the last by name
        tx.committed(table, events(1), app=f"{shot:032x}")
    tx.clock.advance(seconds=3_601)
    for app in "abc":
        tx.committed(table, events(1), app=app)
    tx.reopen()
    table = tx.db.table("t")
    for shot in (4, 5):
        assert tx.committed(table, events(1), app=f"{shot:032x}").verdict is Verdict.COMMITTED

    assert tx.transactions.counts().apps == 3
    for _ in range(2):
        known = {record.app for record in tx.transactions.commits.all()}
        assert known == {"a", "b", "c", f"{1:032x}", f"{4:032x}", f"{5:032x}"}
        tx.reopen()
    table = tx.db.table("t")
    assert tx.committed(table, events(1), app=f"{4:032x}").verdict is Verdict.DUPLICATE
    with pytest.raises(TooManyStagings, match="3 applications"):
        tx.committed(table, events(1), app="d")


def test_h17_a_name_that_was_drawn_within_the_hour_stays_and_the_next_is_refused_until_it_may_go(transaction_bench):
    """H17: the call that drew a name may still ask what became of its commit."""
    tx = transaction_bench(txn_apps_max=2)
    table = tx.totals()
    for shot in (1, 2):
        tx.committed(table, events(1), app=f"{shot:032x}")
    tx.clock.advance(seconds=3_600)

    with pytest.raises(TooManyStagings, match="without a name") as refused:
        tx.committed(table, events(1), app=f"{3:032x}")

    assert refused.value.retriable
    assert tx.committed(table, events(1), app=f"{1:032x}").verdict is Verdict.DUPLICATE
    assert tx.committed(table, events(1), app="job").verdict is Verdict.COMMITTED
    tx.clock.advance(seconds=1)
    assert tx.committed(table, events(1), app=f"{3:032x}").verdict is Verdict.COMMITTED
    tx.check()


def test_h17_a_commit_that_is_not_finished_is_not_forgotten_for_another_one(transaction_bench):
    """H17: its record is all that its buckets have of it."""
    tx = transaction_bench(txn_apps_max=2)
    table, other = tx.totals(), tx.totals("other")
    tx.disk.fail_always(Call.WRITE, errno.ENOSPC, within=f"/tables/{table.info.id}/")
    tx.committed(table, events(1), app=f"{1:032x}")
    assert tx.transactions.counts().pending == 1
    tx.committed(other, events(1), app=f"{2:032x}")
    tx.clock.advance(seconds=3_601)

    tx.committed(other, events(1), app=f"{3:032x}")

    assert {record.app for record in tx.transactions.commits.all()} == {f"{1:032x}", f"{3:032x}"}
    tx.disk.heal()
    assert tx.times(table) == {1}


def test_h18_the_checksum_depends_neither_on_order_nor_on_how_rows_are_cut(tx):
    """H18: it is of the input rows, so the same work cut otherwise is the same."""
    table = tx.totals()
    rows = events(1) + events(2) + events(3)
    assert tx.committed(table, rows).verdict is Verdict.COMMITTED

    pieces = [tx.staged(table, list(reversed(rows[start::5]))) for start in range(5)]
    assert tx.commit([(table, pieces)]).verdict is Verdict.DUPLICATE
    once_less = tx.staged(table, rows[1:])
    assert tx.commit([(table, [once_less])]).verdict is Verdict.DUPLICATE_DIFFERENT


def test_h38_commits_over_the_same_buckets_are_in_one_order_everywhere(tx):
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


def test_h16_a_scan_sees_all_of_a_transaction_or_nothing_of_it(tx):
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
