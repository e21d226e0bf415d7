"""Scans: the whole table at one moment."""

import threading

import pytest

import kolk
from kolk.errors import Closed, InvalidArgument, PartitionDropped, UnknownOrExpiredScan

embedded_only = pytest.mark.parametrize("form", ["embedded"], indirect=True)


def rows(n: int, value: int = 0) -> list[dict]:
    return [{"page": f"/{i:05}", "pv": value, "title": None} for i in range(n)]


def test_a_scan_returns_every_row_once(pages):
    pages.put(rows(1000))

    table = pages.scan().to_arrow()

    assert sorted(table.column("page").to_pylist()) == [f"/{i:05}" for i in range(1000)]
    assert table.schema == pages.schema.arrow


def test_a_scan_sees_no_write_made_after_it_opened(pages):
    pages.put(rows(1000, value=1))
    with pages.scan() as scan:
        pages.put(rows(1000, value=2))
        pages.delete([f"/{i:05}" for i in range(500)])
        pages.put(rows(2000, value=3))

        seen = scan.to_arrow()

    assert seen.num_rows == 1000
    assert set(seen.column("pv").to_pylist()) == {1}


@embedded_only  # it reaches into the engine
def test_a_view_pinned_before_writes_survives_flush_and_compaction(pages):
    pages.put(rows(20_000, value=1))
    with pages.scan() as scan:
        pages.put(rows(10_000, value=2))
        pages.delete([f"/{i:05}" for i in range(15_000, 20_000)])
        for tablet in pages._service._tablets.opened():
            tablet._kv.flush()
            tablet._kv.compact()

        seen = scan.to_arrow()

    assert seen.num_rows == 20_000
    assert set(seen.column("pv").to_pylist()) == {1}


def test_the_offsets_of_a_scan_are_where_its_changelog_goes_on(pages):
    pages.put(rows(100, value=1))
    scan = pages.scan()
    state = {row["page"]: row for row in scan.to_arrow().to_pylist()}
    pages.put(rows(50, value=2))
    pages.delete(["/00099"])

    for batch in pages.changelog(start=scan.offsets):
        for change in batch.to_pylist():
            row = {name: change[name] for name in pages.schema.names}
            if change["_change_type"] in ("+I", "+U"):
                state[row["page"]] = row
            elif change["_change_type"] == "-D":
                del state[row["page"]]

    assert state == {row["page"]: row for row in pages.scan().to_arrow().to_pylist()}


def test_a_scan_of_several_buckets_is_one_cut_while_writers_run(pages):
    """Each put sets all rows to one value; a bucket taken at another moment would show another value."""
    keys = rows(64)
    pages.put(keys)
    started, stop = threading.Event(), threading.Event()

    def write() -> None:
        value = 0
        while not stop.is_set():
            value += 1
            with lock:
                pages.put([{**row, "pv": value} for row in keys])
            started.set()

    # Puts are atomic per bucket only, so the writer holds a lock over each; scans open under it now and then, and
    # without it they are compared by their offsets alone.
    lock = threading.Lock()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert started.wait(30)
        for _ in range(20):
            with lock:
                scan = pages.scan()
            with scan:
                assert len(set(scan.to_arrow().column("pv").to_pylist())) == 1
    finally:
        stop.set()
        writer.join()


def test_a_scan_of_an_empty_table_has_the_schema_and_the_offsets(pages):
    with pages.scan() as scan:
        assert scan.offsets == {"0": 0, "1": 0, "2": 0, "3": 0}
        assert scan.to_arrow().schema == pages.schema.arrow


def test_a_scan_projects_and_limits(pages):
    pages.put(rows(100))

    with pages.scan(columns=["pv", "page"], limit=7) as scan:
        table = scan.to_arrow()

    assert table.column_names == ["pv", "page"]
    assert table.num_rows == 7
    assert pages.scan(limit=0).to_arrow().num_rows == 0
    with pytest.raises(InvalidArgument, match="there is no column"):
        pages.scan(columns=["nope"])


def test_a_scan_estimates_the_rows_that_it_will_show(pages):
    pages.put(rows(1000))
    told = []

    pages.scan(limit=7, on_progress=lambda *progress: told.append(progress)).to_arrow()

    assert told[-1] == (7, 7)
    assert 900 < pages.scan().estimate < 1100
    assert pages.scan(where="pv = 0").estimate is None
    assert pages.scan(limit=7, where="pv = 0").estimate is None


def test_a_scan_becomes_pandas_and_polars(pages):
    pages.put(rows(3))

    assert list(pages.scan().to_pandas()["pv"]) == [0, 0, 0]
    assert pages.scan().to_polars().shape == (3, 3)


def test_a_closed_scan_says_so_and_never_looks_finished(pages):
    pages.put(rows(10))
    scan = pages.scan()
    scan.close()
    scan.close()

    with pytest.raises(Closed, match="scan is closed"):
        scan.to_arrow()


@embedded_only  # over the network such a small table has arrived before it is dropped
def test_a_scan_of_a_dropped_table_fails_again_and_again(db, pages):
    pages.put(rows(10))
    scan = pages.scan()
    db.drop_table("web.pages")

    for _ in range(2):
        with pytest.raises(UnknownOrExpiredScan, match="dropped"):
            scan.to_arrow()


def test_a_closed_engine_reopens_in_the_same_process_although_views_were_open(folder, config):
    db = kolk.connect(folder, config=config)
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "int")], "id"))
    table.put([{"id": n} for n in range(100)])
    scan = table.scan()
    next(iter(scan))
    db.close()

    with kolk.connect(folder, config=config) as again:
        assert again.table("t").scan().to_arrow().num_rows == 100
    with pytest.raises(Closed):
        table.put({"id": 1})


def test_a_scan_that_was_interrupted_does_not_go_on_with_a_hole(pages, monkeypatch):
    pages.put(rows(10))
    scan = pages.scan()

    def interrupted(*arguments) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(scan._pages, "next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scan.to_arrow()

    with pytest.raises(Closed, match="failed"):
        scan.to_arrow()


def test_a_connection_lives_as_long_as_anything_made_of_it(folder, config):
    scan = kolk.connect(folder, config=config).create_table("t", kolk.Schema([kolk.Column("id", "int")], "id")).scan()

    assert scan.to_arrow().num_rows == 0
    table = kolk.connect(folder, config=config).table("t")
    table.put({"id": 1})
    del scan, table
    with kolk.connect(folder, config=kolk.EngineConfig(durability="machine")) as db:  # so the others were let go
        assert db.table("t").get_one(id=1) == {"id": 1}


@embedded_only  # a server may have read ahead
def test_what_was_read_when_a_partition_went_is_there_at_the_second_call(db):
    schema = kolk.Schema([kolk.Column("day", "int"), kolk.Column("id", "int")], primary_key=["day", "id"])
    table = db.create_table("t", schema, partition_by=["day"])
    for day in (1, 2, 3):  # in the order in which they are scanned
        table.put([{"day": day, "id": 0}])
    with table.scan() as scan:
        table.drop_partition(day=2)

        with pytest.raises(PartitionDropped):
            scan.to_arrow()
        left = scan.to_arrow()

    assert left["day"].to_pylist() == [1, 3]
