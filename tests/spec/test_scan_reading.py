"""What a scan shows, whatever it is asked for and whatever happens meanwhile."""

import threading

import pyarrow.compute as pc
import pytest
from tests.spec.cut import EVENTS
from tests.spec.scanned import SCHEMA, ids, rows

import kolk
from kolk.errors import InvalidArgument, PartitionDropped

DAYS = kolk.Schema([kolk.Column("day", "int"), kolk.Column("id", "bigint")], primary_key=["day", "id"])


@pytest.fixture
def table(db):
    return db.create_table("t", SCHEMA, buckets=3)


def test_a_whole_table_is_scanned(table):
    """I1, B5, B6: every bucket, each to its end, and nothing is left open."""
    table.put(rows(range(50)))

    assert ids(table.scan().to_arrow()) == list(range(50))


def test_the_scans_of_all_buckets_add_up_to_the_table(table):
    """I2."""
    table.put(rows(range(30)))

    counts = [table.scan(buckets=[name]).to_arrow().num_rows for name in "012"]

    assert sum(counts) == 30
    assert all(counts)
    assert table.scan(buckets=["0", "2"]).to_arrow().num_rows == counts[0] + counts[2]
    with pytest.raises(InvalidArgument, match="bucket"):
        table.scan(buckets=["3"])


def test_an_empty_table_is_scanned_at_once(table, db):
    """I3, C4, B9: again and again, it takes no place, and closing it is fine."""
    with table.scan() as scan:
        assert [list(scan), list(scan)] == [[], []]
        assert scan.id == ""

    scan.close()
    assert db.status()["scans"]["open"] == 0


def test_what_is_written_after_the_first_page_is_not_seen(small, by_pages):
    """I4: nor what is deleted, nor what comes back."""
    table = small.db.create_table("t", SCHEMA, buckets=3)
    table.put(rows(range(20)))
    scan = table.scan()
    batches = iter(scan)
    first = next(batches)
    assert first.num_rows < 20

    table.put(rows(range(40), v="later"))
    table.delete([{"id": n} for n in range(10)])

    found = [*first.to_pylist(), *(row for batch in batches for row in batch.to_pylist())]
    assert sorted(row["id"] for row in found) == list(range(20))
    assert {row["v"] for row in found} == {"v"}


def test_columns_are_chosen_by_name(table):
    """I5, I6: in the order in which they are named; those that there are not are told."""
    table.put(rows(range(10)))

    assert table.scan(columns=["id"]).to_arrow().column_names == ["id"]
    assert table.scan(columns=["n", "id"]).to_arrow().column_names == ["n", "id"]
    assert len(set(table.scan(columns=["id"]).to_arrow()["id"].to_pylist())) == 10
    with pytest.raises(InvalidArgument, match="no column"):
        table.scan(columns=["id", "nope"])


def test_a_log_table_is_scanned_by_its_last_rows(timed):
    """I7, R3, V13, B12: with a limit only, and with columns."""
    log = timed.db.create_table("log", EVENTS, partition_by=["day"])
    assert log.scan(limit=3).to_arrow().num_rows == 0
    for n in range(10):
        log.put([{"day": f"{n % 2}", "n": n}])
        timed.clock.advance(ms=1)

    assert log.scan(limit=1).to_arrow()["n"].to_pylist() == [9]
    assert log.scan(["n"], limit=5).to_arrow().to_pydict() == {"n": [5, 6, 7, 8, 9]}
    assert log.scan(limit=100).to_arrow().num_rows == 10
    assert log.scan(limit=0).to_arrow().num_rows == 0
    with pytest.raises(InvalidArgument, match="log table"):
        log.scan()


def test_all_partitions_are_scanned(db):
    """I8, I9: together, and one by one; what comes later is not seen."""
    table = db.create_table("days", DAYS, partition_by=["day"], buckets=2)
    for day in range(3):
        table.put([{"day": day, "id": 10 * day + n} for n in range(4)])
    scan = table.scan()
    table.put([{"day": 7, "id": 70}])

    assert ids(scan.to_arrow()) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    for day in range(3):
        alone = table.scan(buckets=[f"day={day}/0", f"day={day}/1"]).to_arrow()
        assert set(alone["day"].to_pylist()) == {day}
        assert alone.num_rows == 4


@pytest.mark.parametrize("limit", [1, 5, 9, 20])
def test_a_limit_is_kept(table, db, limit):
    """B4, B7, V12, R2, C5: exactly, over all buckets, and nothing is asked for beyond it."""
    table.put(rows(range(9)))
    before = db.status()["scans"]["rows"]

    found = table.scan(limit=limit).to_arrow()

    assert found.num_rows == min(limit, 9)
    assert db.status()["scans"]["rows"] - before == min(limit, 9)
    assert db.status()["scans"]["open"] == 0


def test_the_first_rows_by_key_come_first(db):
    """B11: of a table with one bucket."""
    table = db.create_table("one", SCHEMA)
    table.put(rows([5, 3, 8, 1, 9]))

    assert table.scan(["id"], limit=3).to_arrow()["id"].to_pylist() == [1, 3, 5]


def test_where_limit_and_columns_go_together(small):
    table = small.db.create_table("t", SCHEMA, buckets=2)
    table.put([{"id": n, "v": "x", "n": n % 10} for n in range(200)])

    found = table.scan(["id"], limit=7, where="n IN (2, 3) AND id >= 100").to_arrow()

    assert found.column_names == ["id"]
    assert found.num_rows == 7
    assert all(id >= 100 and id % 10 in (2, 3) for id in found["id"].to_pylist())
    assert ids(table.scan(where={"n": 4}).to_arrow()) == list(range(4, 200, 10))
    assert table.scan(where="n > 100").to_arrow().num_rows == 0


def test_acknowledged_writes_are_in_every_later_scan(table):
    """N21: whoever has an answer to his put can scan what he put."""
    for n in range(20):
        table.put(rows([n]))
        assert ids(table.scan().to_arrow()) == list(range(n + 1))


def test_a_scan_and_the_changes_after_it_are_the_table(small):
    """N10: while writers update, delete and insert again."""
    table = small.db.create_table("t", SCHEMA, buckets=3)
    table.put(rows(range(40)))
    stop = threading.Event()

    def write(seed):
        n = seed
        while not stop.is_set():
            n += 7
            table.put(rows([n % 40, (n * 3) % 40], n=n))
            table.delete([{"id": (n * 5) % 40}])

    writers = [threading.Thread(target=write, args=[seed]) for seed in range(2)]
    for writer in writers:
        writer.start()
    try:
        scans = []
        for _ in range(6):
            with table.scan() as scan:
                scans.append((scan.to_arrow().to_pylist(), scan.offsets))
    finally:
        stop.set()
        for writer in writers:
            writer.join()

    final = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    for found, offsets in scans:
        state = {row["id"]: row for row in found}
        for batch in table.changelog(start=offsets):
            for change in batch.to_pylist():
                row = {name: change[name] for name in SCHEMA.names}
                if change["_change_type"] in ("+I", "+U"):
                    state[row["id"]] = row
                else:
                    assert state.get(row["id"]) == row
                    if change["_change_type"] == "-D":
                        del state[row["id"]]
        assert state == final


def test_a_scan_keeps_its_columns_while_the_table_gets_others(small, by_pages):
    """N14: rows that were written in another version come in the one that the scan asked for."""
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(20)))
    scan = table.scan()
    first = next(iter(scan))
    small.db.execute("ALTER TABLE t ADD COLUMN w STRING")
    newer = small.db.table("t")
    newer.put([{"id": 100, "v": "v", "n": 0, "w": "w"}])

    rest = scan.to_arrow()

    assert rest.column_names == ["id", "v", "n"]
    assert first.num_rows + rest.num_rows == 20
    assert newer.scan().to_arrow().filter(pc.field("id") == 100).to_pylist() == [
        {"id": 100, "v": "v", "n": 0, "w": "w"}
    ]
    assert newer.scan(limit=1).to_arrow()["w"].to_pylist() == [None]


def test_a_partition_that_goes_in_the_middle_is_told_once(small, by_pages):
    """N19: and the others are read."""
    table = small.db.create_table("days", DAYS, partition_by=["day"])
    for day in (1, 2, 3):
        table.put([{"day": day, "id": 100 * day + n} for n in range(60)])
    scan = table.scan()
    first = next(iter(scan))
    table.drop_partition(day=2)

    with pytest.raises(PartitionDropped) as error:
        scan.to_arrow()
    left = scan.to_arrow()

    assert error.value.partition == "day=2"
    assert sorted([*first["id"].to_pylist(), *left["id"].to_pylist()]) == [*range(100, 160), *range(300, 360)]


def test_a_partition_that_goes_is_told_to_who_asked(small, by_pages):
    """N19."""
    table = small.db.create_table("days", DAYS, partition_by=["day"])
    for day in (1, 2):
        table.put([{"day": day, "id": 100 * day + n} for n in range(60)])
    told = []
    scan = table.scan(on_partition=told.append)
    table.drop_partition(day=2)

    assert ids(scan.to_arrow()) == [*range(100, 160)]
    assert [event.partition for event in told] == ["day=2"]
