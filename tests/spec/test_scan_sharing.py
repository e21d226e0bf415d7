"""Scans that several read, and what can be seen and done about those that are open."""

import gc

import pytest

import kolk
from kolk.errors import InvalidArgument, UnknownOrExpiredScan

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")
pytestmark = pytest.mark.usefixtures("by_pages")


@pytest.fixture
def table(small):
    table = small.db.create_table("web.t", SCHEMA, buckets=3)
    table.put([{"id": n, "v": "v"} for n in range(60)])
    return table


def ids(table):
    return table["id"].to_pylist()


def open_scans(database):
    return database.db.status()["scans"]["open"]


def test_a_planner_opens_and_workers_read(small, table):
    """Each some buckets, from connections of their own; all of one moment."""
    planner = table.scan(shared=True)
    workers = [small.connect().table("web.t") for _ in range(3)]
    table.put([{"id": n, "v": "later"} for n in range(90)])

    parts = [worker.join_scan(planner.id, buckets=[f"{n}"]).to_arrow() for n, worker in enumerate(workers)]

    assert sorted(id for part in parts for id in ids(part)) == list(range(60))
    assert {v for part in parts for v in part["v"].to_pylist()} == {"v"}
    assert workers[0].join_scan(planner.id).offsets == planner.offsets
    assert open_scans(small) == 1
    planner.close()
    assert open_scans(small) == 0


def test_a_task_that_is_tried_again_reads_the_same(small, table):
    """From the start, or from the token of the last batch that the first try had."""
    planner = table.scan(shared=True)
    first = table.join_scan(planner.id)
    batches = iter(first)
    had = [*ids(next(batches)), *ids(next(batches))]

    again = table.join_scan(planner.id, token=first.token)
    whole = ids(table.join_scan(planner.id).to_arrow())

    assert had + ids(again.to_arrow()) == whole
    assert had + [id for batch in batches for id in ids(batch)] == whole
    assert ids(table.join_scan(planner.id, token=first.token).to_arrow()) == []


def test_a_bucket_that_a_scan_does_not_have_is_no_empty_one(table):
    planner = table.scan(shared=True, buckets=["0", "1"])

    for wrong in (["2"], ["0", "nope"]):
        with pytest.raises(InvalidArgument, match="no bucket"):
            table.join_scan(planner.id, buckets=wrong).to_arrow()


def test_a_shared_scan_does_not_end_with_one_of_its_readers(small, table):
    """Not even with the one who opened it, when he has read to the end; it does when he closes it."""
    with table.scan(shared=True) as scan:
        whole = ids(scan.to_arrow())
        table.join_scan(scan.id).to_arrow()
        with table.join_scan(scan.id) as joined:
            next(iter(joined))

        assert ids(table.join_scan(scan.id).to_arrow()) == whole
        assert open_scans(small) == 1

    assert open_scans(small) == 0
    with pytest.raises(UnknownOrExpiredScan):
        table.join_scan(scan.id)


def test_a_shared_scan_that_nobody_has_any_more_is_given_up(small, table):
    scan = table.scan(shared=True)
    scan.to_arrow()
    del scan
    gc.collect()

    table.scan(limit=1).to_arrow()

    assert open_scans(small) == 0


def test_whoever_has_the_nonce_gets_the_same_scan(small, table):
    other = small.connect().table("web.t")
    one = table.scan(nonce="job-7")
    table.put([{"id": 1_000, "v": "later"}])

    two = other.scan(nonce="job-7")

    assert two.id == one.id
    assert two.offsets == one.offsets
    assert ids(two.to_arrow()) == ids(one.to_arrow())
    one.close()
    two.close()
    assert open_scans(small) == 1
    with pytest.raises(InvalidArgument, match="another scan"):
        other.scan(nonce="job-7", limit=3)


def test_a_nonce_whose_scan_is_gone_gives_no_other(small, table):
    scan = table.scan(nonce="job-7")
    small.db.close_scan(scan.id)
    with pytest.raises(UnknownOrExpiredScan, match="another moment"):
        table.scan(nonce="job-7")

    small.reopen()

    with pytest.raises(UnknownOrExpiredScan, match="another moment"):
        small.db.table("web.t").scan(nonce="job-7")


def test_a_shared_scan_is_not_mended(table):
    with pytest.raises(InvalidArgument, match="other readers"):
        table.scan(shared=True, resume="log")


# --- to look after them


def test_open_scans_are_listed(small, table):
    small.clock.advance(seconds=1)
    scan = table.scan(ttl="30s")
    next(iter(scan))
    small.clock.advance(seconds=5)

    (info,) = small.db.scans()

    assert (info.id, info.table, info.views) == (scan.id, "web.t", 3)
    assert (info.is_shared, info.is_drained) == (False, False)
    assert info.rows >= scan.rows > 0
    assert info.size_bytes > 0
    assert (info.last_use - info.opened).total_seconds() == 0
    assert (info.expires - info.last_use).total_seconds() == 30
    scan.close()
    assert small.db.scans() == []


def test_a_scan_is_ended_by_its_id(small, table):
    scan = table.scan()
    next(iter(scan))

    assert small.db.close_scan(scan.id)
    assert not small.db.close_scan(scan.id)
    assert not small.db.close_scan("0" * 32)

    with pytest.raises(UnknownOrExpiredScan, match="closed"):
        scan.to_arrow()


def test_what_became_of_scans_is_counted(small, table):
    before = small.db.status()["scans"]
    with table.scan() as scan:
        next(iter(scan))
    table.scan().to_arrow()
    table.scan(limit=0)
    left = table.scan()
    next(iter(left))
    small.db.drop_table("web.t")

    after = small.db.status()["scans"]

    assert after["opened"] - before["opened"] == 4
    assert (after["open"], after["views"]) == (0, 0)
    assert after["revoked"] in (1, 2)  # over the network the one that was read lingers, and is taken back too
    assert after["rows"] >= 60
    assert after["size_bytes"] > 0


def test_scans_that_are_dropped_without_a_close_take_no_places(bench):
    """Of a client that opens more, over the network; within a process at once."""
    database = bench(scans_max=2, scan_page_rows=4, scan_page_bytes_max=420)
    table = database.db.create_table("t", SCHEMA)
    table.put([{"id": n, "v": "v"} for n in range(60)])

    for _ in range(10):
        assert next(iter(table.scan())).num_rows
        gc.collect()

    assert open_scans(database) <= 1


def test_a_dashboard_meets_no_cap(bench):
    """It scans again and again, reads to the end, and never closes."""
    database = bench(scans_max=2, scans_per_bucket_max=1, scan_views_max=8)
    table = database.db.create_table("t", SCHEMA, buckets=2)
    table.put([{"id": n, "v": "v"} for n in range(60)])
    kept = []

    for _ in range(50):
        kept.append(table.scan())
        assert kept[-1].to_arrow().num_rows == 60

    assert open_scans(database) == 0
