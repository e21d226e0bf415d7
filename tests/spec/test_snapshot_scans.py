"""Scans of snapshots: what they show does not change, however long the reading takes and whatever it goes through."""

import datetime
import itertools

import pytest
from tests.spec.cut import SCHEMA as BY_DAY
from tests.spec.kept import churn, follow, numbers, present, read_slowly, same_rows
from tests.spec.replica import by_key
from tests.spec.scanned import SCHEMA, ids, rows

import kolk
from kolk.errors import (
    InvalidArgument,
    PartitionDropped,
    SnapshotNotFound,
    TableNotFound,
    TooManyScans,
    UnknownOrExpiredScan,
)

network_only = pytest.mark.parametrize("form", ["network"], indirect=True)


def lose_all(db):
    """Take every scan from under its reader, as a server does that has no room."""
    for scan in db.scans():
        db.close_scan(scan.id)


# --- what is shown


def test_a_scan_of_snapshots_takes_one_if_there_is_none(table):
    assert table.snapshots() == []

    scan = table.scan(source="snapshot")

    assert ids(scan.to_arrow()) == list(range(60))
    assert numbers(table) == {"0": [1], "1": [1], "2": [1]}
    assert scan.consistent


def test_a_scan_of_snapshots_shows_the_newest_one_and_not_the_rows_of_now(table):
    """X2: twice, and the second time with another snapshot."""
    table.take_snapshot()
    table.put(rows([60]))
    assert ids(table.scan(source="snapshot").to_arrow()) == list(range(60))

    table.take_snapshot()

    assert ids(table.scan(source="snapshot").to_arrow()) == list(range(61))


def test_an_empty_table_has_snapshots_too(small):
    table = small.db.create_table("t", SCHEMA, buckets=3)

    scan = table.scan(source="snapshot")

    assert scan.to_arrow() == table.schema.arrow.empty_table()
    assert scan.offsets == {"0": 0, "1": 0, "2": 0}
    table.put(rows(range(5)))
    assert follow(table, [], scan.offsets) == present(table)


def test_the_snapshots_of_a_table_are_none_then_of_all_buckets_then_of_those_that_changed(table):
    """X6: testGetKvSnapshot."""
    assert numbers(table) == {}

    first = {each.bucket: each for each in table.take_snapshot()}
    again = {each.bucket: each for each in table.take_snapshot()}
    bucket, end = next(iter(table.put(rows([0], n=5)).offsets.items()))
    later = {each.bucket: each for each in table.take_snapshot()}

    assert again == first
    assert {each.id for each in first.values()} == {1}
    assert sum(each.rows for each in first.values()) == 60
    assert (later[bucket].id, later[bucket].offset) == (2, end)
    assert {name: each for name, each in later.items() if name != bucket} == {
        name: each for name, each in first.items() if name != bucket
    }


def test_the_offsets_of_a_scan_of_snapshots_are_where_its_changelog_goes_on(table):
    with table.scan(source="snapshot") as scan:
        found = read_slowly(scan, churn(table, times=4))

    assert follow(table, found, scan.offsets) == present(table)


@pytest.mark.usefixtures("by_pages")
def test_a_scan_of_snapshots_that_is_read_slowly_shows_its_moment_while_twenty_newer_ones_come_and_go(small, table):
    with table.scan(source="snapshot") as scan:
        found = read_slowly(scan, churn(table))
        assert same_rows(found, rows(range(60)))
    small.clock.advance(seconds=60)
    small.engine.reap()

    # Nobody leased it, but it is there as long as it is read, and not longer.
    assert follow(table, found, scan.offsets) == present(table)
    assert all(len(kept) == 2 for kept in numbers(table).values())


def test_columns_where_limit_and_buckets_mean_the_same_on_snapshots(table):
    table.put(rows(range(30, 40), v="w", n=3))
    table.take_snapshot()
    table.put(rows(range(100), v="later", n=9))

    def scanned(**how):
        return table.scan(source="snapshot", **how)

    assert scanned(columns=["n"]).to_arrow().schema.names == ["n"]
    assert ids(scanned(where="n = 3 AND v = 'w'").to_arrow()) == list(range(30, 40))
    assert ids(scanned(where="id = 35").to_arrow()) == [35]
    assert scanned(limit=7).to_arrow().num_rows == 7
    assert scanned(limit=0).to_arrow().num_rows == 0
    assert scanned(where={"v": "w"}, limit=4, columns=["v"]).to_arrow().to_pylist() == [{"v": "w"}] * 4
    shares = [scanned(buckets=[name]) for name in "012"]
    assert sorted(id for share in shares for id in ids(share.to_arrow())) == list(range(60))
    assert [set(share.offsets) for share in shares] == [{"0"}, {"1"}, {"2"}]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"source": "log"}, "log tables"),
        ({"source": "old"}, "source is"),
        ({"source": "snapshot", "resume": "log"}, "goes on by itself"),
        ({"source": "snapshot", "buckets": ["3"]}, "no bucket"),
        ({"source": "snapshot", "ttl": "0s"}, "ttl"),
        ({"source": "snapshot", "ttl": "2d"}, "ttl"),
    ],
)
def test_what_makes_no_sense_on_snapshots_is_refused(table, how, what):
    with pytest.raises(InvalidArgument, match=what):
        table.scan(**how)


def test_a_log_table_has_no_snapshots(small):
    """X5, of snapshots: the log is all there is."""
    table = small.db.create_table("l", kolk.Schema([kolk.Column("n", "int")]))

    for ask in (
        table.take_snapshot,
        table.snapshots,
        lambda: table.scan(source="snapshot"),
        lambda: table.lease(),
    ):
        with pytest.raises(InvalidArgument, match="log table"):
            ask()


def test_a_dropped_table_has_no_snapshots(small, table):
    table.take_snapshot()
    small.db.drop_table("t")

    for ask in (table.take_snapshot, table.snapshots, lambda: table.scan(source="snapshot"), table.lease):
        with pytest.raises(TableNotFound):
            ask()


# --- several readers


def test_a_shared_scan_of_snapshots_is_read_by_several(small, table):
    scan = table.scan(source="snapshot", shared=True)
    table.put(rows(range(60), n=7))
    other = small.connect()
    try:
        joined = other.table("t").join_scan(scan.id, buckets=["1"])
        part = joined.to_arrow()
        assert joined.offsets == scan.offsets

        assert set(part["n"].to_pylist()) == {0}
        assert ids(scan.to_arrow()) == list(range(60))
    finally:
        other.close()


def test_a_nonce_stands_for_one_scan_of_snapshots_and_never_for_another(small, table):
    first = table.scan(source="snapshot", nonce="n")
    table.put(rows([100]))
    table.take_snapshot()

    again = table.scan(source="snapshot", nonce="n")

    assert (again.id, again.offsets) == (first.id, first.offsets)
    assert ids(again.to_arrow()) == ids(first.to_arrow()) == list(range(60))
    small.db.close_scan(first.id)
    with pytest.raises(UnknownOrExpiredScan):
        table.scan(source="snapshot", nonce="n").to_arrow()


def test_a_reader_goes_on_from_a_token_of_a_shared_scan_of_snapshots(table):
    scan = table.scan(source="snapshot", shared=True)
    first = next(iter(scan))

    rest = table.join_scan(scan.id, token=scan.token).to_arrow()

    assert sorted(first["id"].to_pylist() + rest["id"].to_pylist()) == list(range(60))


def test_scans_of_snapshots_count_like_others(bench):
    small = bench(scans_max=2, scan_page_rows=4, scan_page_bytes_max=420)
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(60)))
    live, kept = table.scan(), table.scan(source="snapshot")

    with small.hurried(), pytest.raises(TooManyScans) as refused:
        table.scan(source="snapshot")
    assert refused.value.cap == "scans_max"

    assert {each.table for each in small.db.scans()} == {"t"}
    kept.close()
    assert ids(table.scan(source="snapshot").to_arrow()) == list(range(60))
    live.close()


def test_scans_of_one_bucket_are_counted_whatever_they_show(bench):
    small = bench(scans_per_bucket_max=2, scan_page_rows=4, scan_page_bytes_max=420)
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(60)))
    open_ = [table.scan(), table.scan(source="snapshot")]

    with small.hurried(), pytest.raises(TooManyScans) as refused:
        table.scan(source="snapshot")

    assert refused.value.cap == "scans_per_bucket_max"
    for each in open_:
        each.close()


# --- what is lost goes on


@network_only
@pytest.mark.usefixtures("by_pages")
def test_a_scan_of_snapshots_that_nobody_read_for_its_time_goes_on_by_itself(small, table):
    table.take_snapshot()

    def idle():
        while True:
            small.clock.advance(seconds=120)
            small.engine.reap()
            table.put(rows(range(60), n=5))
            yield

    with table.scan(source="snapshot", ttl="60s") as scan:
        found = read_slowly(scan, idle())

    assert small.engine.scans.sessions.counts().expired > 3
    assert same_rows(found, rows(range(60)))
    assert follow(table, found, scan.offsets) == present(table)


@network_only
@pytest.mark.usefixtures("by_pages")
@pytest.mark.parametrize("limit", [None, 17])
def test_a_scan_of_snapshots_goes_on_by_itself_when_the_server_is_restarted(small, table, limit):
    table.take_snapshot()
    scan = table.scan(source="snapshot", limit=limit)
    found, after = [], itertools.count()
    for batch in scan:
        found += batch.to_pylist()
        if next(after) in (0, 3):
            table.put(rows(range(60), n=5))
            small.restart()

    assert next(after) >= 4
    assert len(by_key(table, found)) == (limit or 60)
    assert {row["n"] for row in found} == {0}
    if limit is None:
        assert follow(table, found, scan.offsets) == present(table)


@network_only
@pytest.mark.usefixtures("by_pages")
def test_a_restart_between_opening_and_the_first_page_loses_nothing(small, table):
    table.take_snapshot()
    scan = table.scan(source="snapshot", where="id >= 20", columns=["id"])
    small.restart()
    table.put(rows(range(60, 90)))

    assert ids(scan.to_arrow()) == list(range(20, 60))


@network_only
@pytest.mark.usefixtures("by_pages")
def test_a_scan_of_snapshots_may_be_lost_any_number_of_times(small):
    """However long it takes: only losses without a page in between are counted."""
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(1_000)))
    table.take_snapshot()
    losses = itertools.count()

    def idle():
        for _ in losses:
            small.clock.advance(seconds=120)
            small.engine.reap()
            yield

    found = read_slowly(table.scan(source="snapshot"), idle())

    assert next(losses) > 100
    assert same_rows(found, rows(range(1_000)))


@network_only
@pytest.mark.usefixtures("by_pages")
def test_when_the_snapshot_is_gone_the_reader_is_told_what_to_do(small, table):
    scan = table.scan(source="snapshot")
    next(iter(scan))
    small.clock.advance(seconds=120)
    small.engine.reap()
    list(churn(table, times=4))

    with pytest.raises(SnapshotNotFound, match=r"is gone.*scan the newest one, and lease") as told:
        scan.to_arrow()
    with pytest.raises(SnapshotNotFound) as again:
        scan.to_arrow()

    assert str(again.value) == str(told.value)


def test_a_scan_of_snapshots_that_somebody_closed_does_not_go_on(small, table):
    scan = table.scan(source="snapshot")
    next(iter(scan))

    lose_all(small.db)

    with pytest.raises(UnknownOrExpiredScan) as lost:
        scan.to_arrow()
    assert lost.value.reason == "closed"


def test_a_table_that_is_dropped_takes_its_snapshots_from_under_the_reader(small, table):
    scan = table.scan(source="snapshot")
    next(iter(scan))

    small.db.drop_table("t")

    with pytest.raises((TableNotFound, UnknownOrExpiredScan)):
        scan.to_arrow()


# --- altered tables


@pytest.mark.usefixtures("by_pages")
def test_a_snapshot_is_shown_in_the_version_of_the_handle(small, table):
    """X3: testScanSnapshotDuringSchemaChange."""
    table.take_snapshot()
    old = small.db.table("t")
    table.alter([kolk.AddColumn(kolk.Column("extra", "int", default=7)), kolk.RenameColumn("n", "count")])
    middle = small.db.table("t")
    table.drop_column("v")
    new = small.db.table("t")

    assert ids(middle.scan(source="snapshot", where="extra = 7").to_arrow()) == list(range(60))
    # A column that was dropped is empty for whoever still knows it, as in the living rows.
    assert same_rows(old.scan(source="snapshot").to_arrow().to_pylist(), rows(range(60), v=None))
    shown = new.scan(source="snapshot").to_arrow().to_pylist()
    assert same_rows(shown, [{"id": id, "count": 0, "extra": 7} for id in range(60)])
    assert follow(new, shown, new.scan(source="snapshot").offsets) == present(new)
    assert table.snapshots()[0].schema_id == old.schema.id


def test_a_column_that_was_widened_is_shown_wide_of_an_old_snapshot(small):
    table = small.db.create_table("w", kolk.Schema([kolk.Column("id", "int"), kolk.Column("n", "int")], "id"))
    table.put([{"id": 1, "n": 2**31 - 1}])
    table.take_snapshot()
    old = small.db.table("w")
    table.widen_column("n", "bigint")
    table.put([{"id": 1, "n": 2**40}])

    assert old.scan(source="snapshot").to_arrow().to_pylist() == [{"id": 1, "n": 2**31 - 1}]
    assert table.scan(source="snapshot").to_arrow().schema == table.schema.arrow
    assert table.scan(source="snapshot").to_arrow().to_pylist() == [{"id": 1, "n": 2**31 - 1}]


# --- partitions


@pytest.fixture
def days(small):
    made = small.db.create_table("d", BY_DAY, buckets=2, partition_by=["day"])
    made.put([{"day": str(day), "key": key, "value": 0} for day in range(3) for key in range(20)])
    return made


def test_partitions_that_come_after_the_snapshot_come_through_the_changelog(days):
    with days.scan(source="snapshot") as scan:
        days.put([{"day": "9", "key": 1, "value": 1}])
        days.drop_partition(day="1")
        days.put([{"day": "1", "key": 1, "value": 1}])
        with pytest.raises(PartitionDropped) as dropped:
            scan.to_arrow()
        found = scan.to_arrow().to_pylist()

    assert dropped.value.partition == "day=1"
    left = [row for row in found if row["day"] != "1"]
    assert {row["day"] for row in left} == {"0", "2"}
    assert len(left) == 40
    assert follow(days, left, scan.offsets) == present(days)


@network_only
@pytest.mark.usefixtures("by_pages")
@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_scan_that_goes_on_shows_no_partition_that_was_made_anew(small, days, is_made_anew):
    """What stands under the old name is another partition, whose snapshots have the same numbers."""
    days.take_snapshot()
    told = []
    scan = days.scan(source="snapshot", on_partition=told.append)
    found = next(iter(scan)).to_pylist()
    days.drop_partition(day="1")
    if is_made_anew:
        days.put([{"day": "1", "key": key, "value": 9} for key in range(20)])
        days.take_snapshot()
    small.clock.advance(seconds=120)
    small.engine.reap()

    found += scan.to_arrow().to_pylist()

    assert {row["day"] for row in found} == {"0", "2"}
    assert {row["value"] for row in found} == {0}
    assert [(event.kind, event.partition) for event in told] == [("dropped", "day=1")]
    assert follow(days, found, scan.offsets) == present(days)


@network_only
@pytest.mark.usefixtures("by_pages")
def test_a_scan_that_has_read_a_partition_is_not_told_that_it_went(small, days):
    days.take_snapshot()
    told, found = [], []
    scan = days.scan(source="snapshot", on_partition=told.append)
    for batch in scan:
        found += batch.to_pylist()
        if {row["day"] for row in found} >= {"1"} and not told and len(found) < 60:
            days.drop_partition(day="0", if_exists=True)
            small.clock.advance(seconds=120)
            small.engine.reap()

    assert len(found) == 60
    assert told == []
    assert follow(days, found, scan.offsets) == present(days)


def test_a_partitioned_table_without_partitions_has_an_empty_snapshot(small):
    table = small.db.create_table("d", BY_DAY, partition_by=["day"])

    scan = table.scan(source="snapshot")

    assert scan.to_arrow().num_rows == 0
    table.put([{"day": "1", "key": 1, "value": 1}])
    assert follow(table, [], scan.offsets) == present(table)


# --- rows that go


def test_what_is_truncated_after_the_snapshot_is_still_in_it(table):
    with table.scan(source="snapshot") as scan:
        table.truncate()
        table.put(rows([3]))

        found = scan.to_arrow().to_pylist()

    assert same_rows(found, rows(range(60)))
    assert follow(table, found, scan.offsets) == present(table) == by_key(table, rows([3]))


def test_rows_that_expired_after_the_snapshot_are_still_in_it(small):
    schema = kolk.Schema([kolk.Column("id", "int"), kolk.Column("at", "timestamp_ltz(3)")], "id")
    table = small.db.create_table("t", schema, options={"table.kv.ttl": "1h", "table.kv.ttl.column": "at"})
    now = datetime.datetime.fromtimestamp(small.clock.now_ms() / 1_000, datetime.UTC)
    table.put([{"id": n, "at": now} for n in range(20)])
    table.take_snapshot()
    small.clock.advance(seconds=2 * 3_600)
    small.engine.tick()
    assert table.scan().to_arrow().num_rows == 0

    with table.scan(source="snapshot") as scan:
        found = scan.to_arrow().to_pylist()

    assert len(found) == 20
    assert follow(table, found, scan.offsets) == {}


def test_a_damaged_snapshot_is_said_to_be_one(small, folder, table):
    table.take_snapshot()
    for path in (folder / "snapshots").rglob("*.sst"):
        data = bytearray(path.read_bytes())
        for place in range(20, len(data) // 2):
            data[place] ^= 0xFF
        path.write_bytes(data)

    with pytest.raises(kolk.errors.KolkError):
        table.scan(source="snapshot").to_arrow()
    assert ids(table.scan().to_arrow()) == list(range(60))


def test_a_live_scan_knows_nothing_of_snapshots(table):
    table.take_snapshot()
    table.put(rows([60]))

    with table.scan() as scan:
        assert ids(scan.to_arrow()) == list(range(61))
