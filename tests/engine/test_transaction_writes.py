"""What a transaction writes, of every kind of table and write, and what it refuses before anything happens."""

import pytest
from tests.engine.transaction_bench import DAYS, EVENTS, PLAIN, TOTALS, events, plain, put

import kolk
from kolk.errors import (
    AggregateOverflow,
    DeletesDisabled,
    InvalidArgument,
    InvalidRows,
    TooLarge,
)
from kolk.model.transaction import Verdict

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
def test_h13_what_cannot_be_merged_fails_before_the_record_and_the_version_is_not_used(tx, what):
    """H13: after the record nothing may fail for data."""
    schema, how, row, error = BAD[what]
    table = tx.db.create_table("t", schema, buckets=3, **how)
    good = {"overflow": events(1), "null": [{"k": k, "n": 1, "s": "s"} for k in range(12)]}[what]
    tx.committed(table, good, version=1)
    before = tx.rows(table)
    columns = ["s"] if what == "null" else None
    keys = range(12, 30) if what == "null" else [3]
    others = [each for each in good if each["k"] != row["k"]]  # it is what is stored that it cannot be added to
    rows = [*others, row] if what == "overflow" else [{**row, "k": k} for k in keys]
    handle = tx.staged(table, rows, version=2, columns=columns)

    with pytest.raises(error):
        tx.commit([(table, [handle])], version=2)

    assert tx.rows(table) == before
    assert tx.files() == {handle}
    assert {record.version for record in tx.transactions.commits.of("a")} == {1}
    assert tx.committed(table, good, version=2).verdict is Verdict.COMMITTED
    tx.check()


def test_h13_deletes_that_a_table_does_not_take_fail_before_the_record(tx):
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


def test_h13_a_share_that_no_frame_holds_fails_before_the_record(tx, monkeypatch):
    """H13: also for its size."""
    monkeypatch.setattr("kolk.tablet.merged.BODY_BYTES_MAX", 10_000)
    table = tx.db.create_table("t", PLAIN, buckets=2)
    handle = tx.staged(table, [{"k": k, "n": 1, "s": "x" * 100} for k in range(1_000)])

    with pytest.raises(TooLarge, match="log frame"):
        tx.commit([(table, [handle])])

    assert tx.transactions.commits.all() == []
    assert tx.committed(table, plain(1)).verdict is Verdict.COMMITTED
    tx.check()


def test_h13_the_rows_that_a_truncation_removes_always_fit_into_frames(tx, monkeypatch):
    """H13: they are written after the record, so their frames are as small as they have to be."""
    monkeypatch.setattr("kolk.tablet.tablet._TRUNCATE_PAGE_BYTES", 5_000)
    monkeypatch.setattr("kolk.tablet.merged.BODY_BYTES_MAX", 20_000)
    table = tx.db.create_table("t", PLAIN)
    for k in range(20):
        table.put([{"k": k, "n": 1, "s": "x" * 3_000}])

    with table.transaction("a", 1) as one:
        one.truncate()
        one.put(plain(2, [1]))

    assert tx.rows(table) == {(1,): {"k": 1, "n": 2, "s": "s2"}}
    tx.check()


def test_h13_a_commit_that_no_record_holds_is_refused_before_anything_happens(tx, monkeypatch):
    """H13: its record is small enough also once it says where all buckets end."""
    monkeypatch.setattr("kolk.engine.commits.RECORD_BYTES_MAX", 500)
    table = tx.db.create_table("t", PLAIN, buckets=16)
    with pytest.raises(TooLarge, match="too large for one record"):
        tx.committed(table, plain(1, range(100)))

    assert tx.rows(table) == {}
    monkeypatch.undo()
    assert tx.committed(table, plain(1, range(100))).verdict is Verdict.COMMITTED
    tx.check()


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

    [frames] = [[h for _, h in tx.headers(table)]]
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
    assert len({header.tag for _, header in tx.headers(table)}) == 1
