"""Pages of a scan: as large as was asked for, the same when asked for again, and never a row too many or too few."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.scan_bench import ME, ScanBench, ids_of, sent, table_of

import kolk
from kolk.errors import Corrupted, InvalidArgument
from kolk.storage.kv import Pin

SIZES = [1, 300, 1_000, 5_000, 2**20]
WHERES = {
    None: lambda id: True,
    "n IN (0, 3, 6, 9)": lambda id: id % 10 in (0, 3, 6, 9),
    "id < 30": lambda id: id < 30,
    "id = 77": lambda id: id == 77,
    "v = 'nobody'": lambda id: False,
}


@pytest.fixture(scope="module")
def small_chunks(tmp_path_factory):
    bench = ScanBench(
        tmp_path_factory.mktemp("chunks") / "data", rows=0, buckets=3, scan_page_rows=64, scans_per_bucket_max=1_000
    )
    bench.table.put([{"id": n, "v": "x", "n": n % 10} for n in range(300)])
    yield bench
    bench.close()


def shown(page):
    """A page as its reader sees it: all of it but the padding of its columns."""
    rows = None if page.batch is None else page.batch.to_pylist()
    return rows, page.runs, page.token, page.is_last, page.event


def all_sizes(pages):
    return [len(sent(page)) for page in pages]


def test_a_page_of_one_byte_holds_one_row(scanned):
    """V2, N5: there is always progress, and after the last row there is no empty page."""
    pages = scanned.pages(scanned.open().id, page_bytes=1)

    assert [page.batch.num_rows for page in pages] == [1] * 10
    assert sorted(ids_of(pages)) == list(range(10))
    assert [page.is_last for page in pages] == [False] * 9 + [True]


@pytest.mark.parametrize("page_bytes", SIZES)
@pytest.mark.parametrize("names", [None, ("id",), ("v", "id")])
def test_a_page_is_never_larger_than_asked_for_unless_it_is_one_row(scan_bench, page_bytes, names):
    """V10: measured on the bytes that are sent, which upstream overshoots by a row."""
    bench = scan_bench(rows=0, buckets=3)
    bench.table.put([{"id": n, "v": None if n % 7 else "x" * (n % 90), "n": n or None} for n in range(500)])

    pages = bench.pages(bench.open(names=names).id, page_bytes=page_bytes)

    assert sorted(ids_of(pages)) == list(range(500))
    for page in pages:
        assert len(sent(page)) <= page_bytes or page.batch.num_rows == 1


def test_pages_stay_within_their_size_where_nulls_come_late(scan_bench):
    """V10: one null gives a column a bit for every row of the page, also for those that were measured before it."""
    columns = [kolk.Column("id", "bigint"), *(kolk.Column(f"c{n}", "smallint") for n in range(40))]
    bench = scan_bench(rows=0)
    table = bench.db.create_table("web.wide", kolk.Schema(columns, primary_key=["id"]))
    names = [column.name for column in columns[1:]]
    table.put([{"id": id} | dict.fromkeys(names, None if id % 5_000 == 4_999 else 1) for id in range(20_000)])

    for page_bytes in (300_000, 500_000, 700_000):
        pages = bench.pages(bench.open(table=table).id, page_bytes=page_bytes)
        assert table_of(pages).num_rows == 20_000
        assert max(all_sizes(pages)) <= page_bytes


def test_a_row_that_is_larger_than_a_page_comes_alone(scan_bench):
    bench = scan_bench(rows=0, buckets=1)
    bench.table.put([{"id": n, "v": "x" * (100_000 if n == 3 else 10), "n": 0} for n in range(6)])

    pages = bench.pages(bench.open().id, page_bytes=10_000)

    assert [page.batch["id"].to_pylist() for page in pages] == [[0, 1, 2], [3], [4, 5]]


def test_pages_are_filled(scan_bench):
    """A page that is not the last has room for a few rows more at most."""
    bench = scan_bench(rows=3_000, buckets=1)

    pages = bench.pages(bench.open().id, page_bytes=10_000)

    for page in pages[:-1]:
        assert len(sent(page)) > 9_000


def test_no_page_is_larger_than_the_database_allows(scan_bench):
    """V10: whatever is asked for."""
    bench = scan_bench(rows=2_000, scan_page_bytes_max=4_000)

    pages = bench.pages(bench.open().id, page_bytes=2**31 - 1)

    assert max(all_sizes(pages)) <= 4_000
    assert sorted(ids_of(pages)) == list(range(2_000))


@pytest.mark.parametrize("page_bytes", SIZES)
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("limit", [None, 1, 20, 1_000])
def test_where_limit_and_projection_hold_over_pages_of_any_size(small_chunks, page_bytes, where, limit):
    """K4, N5, V12, R2: together, and with pages in which nothing is wanted."""
    bench = small_chunks
    wanted = [id for id in bench.ids(bench.open().id) if WHERES[where](id)][:limit]

    pages = bench.pages(bench.open(where=where, limit=limit, names=("id", "n")).id, page_bytes=page_bytes)

    assert ids_of(pages) == wanted
    assert all(page.batch is None or page.batch.schema.names == ["id", "n"] for page in pages)
    assert sum(count for page in pages for _, count in page.runs) == len(wanted)


@pytest.mark.parametrize("limit", [1, 5, 10])
def test_a_limit_that_is_reached_is_the_end(scanned, limit):
    """K4, N5, B4, B7: also if it is just the number of rows; nobody asks once more for nothing."""
    whole = scanned.ids(scanned.open().id)

    for page_bytes in (1, 2**20):
        pages = scanned.pages(scanned.open(limit=limit).id, page_bytes=page_bytes)
        assert ids_of(pages) == whole[:limit]
        assert len(pages) == (limit if page_bytes == 1 else 1)


def test_rows_come_in_the_order_of_their_keys_bucket_by_bucket(scan_bench):
    """B11: so that the first rows of a limit are the first by key, of a table with one bucket."""
    bench = scan_bench(rows=0, buckets=1)
    bench.put([5, 3, 9, -1, 7])

    assert bench.ids(bench.open(limit=3).id) == [-1, 3, 5]


# --- again


@pytest.mark.parametrize("page_bytes", SIZES)
@pytest.mark.parametrize("where", [None, "n IN (1, 4)"])
def test_the_last_page_can_be_asked_for_again_and_is_the_same(scan_bench, page_bytes, where):
    """N1: upstream refuses it and destroys the session. Whatever size is named the second time."""
    bench = scan_bench(rows=0, buckets=2)
    bench.table.put([{"id": n, "v": "x" * (n % 50), "n": n % 5 or None} for n in range(300)])
    opened = bench.open(where=where)
    seq, is_last = 0, False

    while not is_last:
        page = bench.call(opened.id, seq, page_bytes=page_bytes)
        for size in (page_bytes, 1, 2**20):
            again = bench.call(opened.id, seq, page_bytes=size)
            assert shown(again) == shown(page)
            assert len(sent(again)) <= page_bytes or again.batch.num_rows == 1
        seq, is_last = seq + 1, page.is_last


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    lengths=st.lists(st.none() | st.integers(0, 300), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=5),
    replays=st.lists(st.booleans(), min_size=1, max_size=5),
    limit=st.none() | st.integers(1, 70),
    chosen=st.booleans(),
)
def test_whatever_is_replayed_the_pages_are_the_whole(pages_bench, lengths, sizes, replays, limit, chosen):
    """N1, N5: a reader who loses answers, with pages of changing size, sees every row once."""
    bench = pages_bench
    bench.table.truncate()
    rows = [{"id": n, "v": None if each is None else "x" * each, "n": n % 3} for n, each in enumerate(lengths)]
    bench.table.put(rows)
    expected = bench.ids(bench.open(where="n = 1" if chosen else None, limit=limit).id) if rows else []
    opened = bench.open(where="n = 1" if chosen else None, limit=limit)
    found, seq, is_last = [], 0, not opened.id

    while not is_last:
        size = sizes[seq % len(sizes)]
        page = bench.call(opened.id, seq, page_bytes=size)
        if replays[seq % len(replays)]:
            again = bench.call(opened.id, seq, page_bytes=7)
            assert shown(again) == shown(page)
            assert page.batch is None or page.batch.num_rows == 1 or len(sent(again)) <= size
        assert page.batch is None or page.batch.num_rows == 1 or len(sent(page)) <= size
        found += ids_of([page])
        seq, is_last = seq + 1, page.is_last

    assert found == expected
    bench.scans.end(opened.id, ME)


@pytest.fixture(scope="module")
def pages_bench(tmp_path_factory):
    bench = ScanBench(tmp_path_factory.mktemp("pages") / "data", rows=0, buckets=2, scans_per_bucket_max=100)
    yield bench
    bench.close()


def test_a_call_out_of_order_changes_nothing(scanned):
    """N2, V8: upstream destroys the session; here the number that is wrong is told, with those that are right."""
    opened = scanned.open()
    first = scanned.call(opened.id, 0, page_bytes=1)
    second = scanned.call(opened.id, 1, page_bytes=1)

    for seq in (0, 3, 5, 2**63 - 1):
        with pytest.raises(InvalidArgument, match=r"out of order: the last was 1, so 1 repeats it and 2 goes on"):
            scanned.call(opened.id, seq, page_bytes=1)

    assert shown(scanned.call(opened.id, 1, page_bytes=1)) == shown(second)
    rest = [scanned.call(opened.id, seq, page_bytes=1) for seq in range(2, 10)]
    assert sorted(ids_of([first, second, *rest])) == list(range(10))


def test_a_cursor_begins_with_its_first_call(scanned):
    """C1, C2, V8: with 0; then 1, 2, 3."""
    opened = scanned.open()

    with pytest.raises(InvalidArgument, match="begin it with call 0"):
        scanned.call(opened.id, 1, cursor="new")
    scanned.call(opened.id, 0, cursor="new", page_bytes=1)
    scanned.call(opened.id, 1, cursor="new", page_bytes=1)


def test_cursors_of_one_session_do_not_know_each_other(scanned):
    """N3: a task and its zombie may read beside each other, page by page."""
    opened = scanned.open()
    found = {"a": [], "b": []}

    for seq in range(10):
        for cursor, ids in found.items():
            ids += ids_of([scanned.call(opened.id, seq, cursor=cursor, page_bytes=1)])

    assert found["a"] == found["b"]
    assert sorted(found["a"]) == list(range(10))


def test_a_session_remembers_many_cursors_and_no_more(scanned, monkeypatch):
    monkeypatch.setattr("kolk.engine.session.CURSORS_MAX", 100)
    opened = scanned.open()
    for n in range(100):
        scanned.call(opened.id, cursor=f"c{n}", page_bytes=1)
    scanned.call(opened.id, 1, cursor="c0", page_bytes=1)

    scanned.call(opened.id, 0, cursor="one too many", page_bytes=1)

    scanned.call(opened.id, 2, cursor="c0", page_bytes=1)
    with pytest.raises(InvalidArgument, match="forgotten"):
        scanned.call(opened.id, 1, cursor="c1", page_bytes=1)


def test_a_scan_is_read_again_from_its_start_and_from_every_token(scan_bench):
    bench = scan_bench(rows=200, buckets=3)
    opened = bench.open()
    pages = bench.pages(opened.id, page_bytes=1_000)
    whole = ids_of(pages)
    bench.put(range(200), v="changed")

    assert bench.ids(opened.id, cursor="again") == whole
    seen = 0
    for n, page in enumerate(pages):
        seen += page.batch.num_rows
        assert bench.ids(opened.id, cursor=f"from {n}", token=page.token, page_bytes=3_000) == whole[seen:]


def test_a_token_counts_what_a_limit_allows(scanned):
    """K4: reading on from a token, the limit is still that of the scan."""
    opened = scanned.open(limit=6)
    pages = scanned.pages(opened.id, page_bytes=1)

    assert scanned.ids(opened.id, cursor="on", token=pages[3].token) == ids_of(pages)[4:]
    assert scanned.ids(opened.id, cursor="end", token=pages[-1].token) == []


def test_a_token_is_good_for_its_own_scan(scanned):
    one, two = scanned.open(), scanned.open()
    token = scanned.call(one.id, page_bytes=1).token

    with pytest.raises(InvalidArgument, match="another scan"):
        scanned.call(two.id, token=token)


def test_a_token_outlives_a_restart(scanned):
    """N13: it says where to go on in a new scan, of the same and nothing else."""
    opened = scanned.open()
    page = scanned.call(opened.id, page_bytes=1)
    whole = scanned.ids(opened.id, cursor="all")
    scanned.reopen()

    again = scanned.open(resume=page.token)

    assert again.resumed is not None
    found = scanned.scans.read(again.id, ME, again.start, scanned.scans.room(2**20))[0]
    assert ids_of([found]) == whole[1:]
    with pytest.raises(InvalidArgument, match="something else"):
        scanned.open(resume=page.token, buckets=("0",))


def test_a_token_is_good_for_other_columns_and_up_to_another_limit(scanned):
    """Whoever divides a scan counts rows by a column of their key, and others read just those rows."""
    opened = scanned.open()
    whole = scanned.ids(opened.id, cursor="all")
    third = scanned.call(scanned.open(limit=3, names=("id",)).id, page_bytes=2**20)

    again = scanned.open(resume=third.token, limit=5)

    found = scanned.scans.read(again.id, ME, again.start, scanned.scans.room(2**20))[0]
    assert found.is_last
    assert ids_of([found]) == whole[3:5]


def test_some_buckets_are_read_alone(scan_bench):
    """I2, K2: each row is in one of them."""
    bench = scan_bench(rows=30, buckets=3)
    opened = bench.open()

    found = [bench.ids(opened.id, cursor=name, only=[name], page_bytes=1) for name in ("2", "0", "1")]

    assert sorted(id for ids in found for id in ids) == list(range(30))
    assert bench.ids(opened.id, cursor="two", only=["0", "2"]) == found[1] + found[0]
    alone = bench.open(buckets=("1",))
    assert list(alone.offsets) == ["1"]
    assert bench.ids(alone.id) == found[2]
    with pytest.raises(InvalidArgument, match="no bucket '0'"):
        bench.ids(alone.id, cursor="other", only=["0"])


# --- what goes wrong


def test_an_iterator_that_fails_is_an_error_and_no_end(scanned, monkeypatch):
    """N16, S7: a failed iterator looks just like an exhausted one; the call can be made again."""
    opened = scanned.open()

    def failed(pin, rows):
        raise pin._translate(OSError("Corruption: block checksum mismatch"))

    with monkeypatch.context() as patched:
        patched.setattr(Pin, "take", failed)
        with pytest.raises(Corrupted):
            scanned.call(opened.id)

    assert len(scanned.ids(opened.id)) == 10


def test_an_end_that_is_not_the_last_row_is_noticed(scan_bench):
    """N16, S7: also in the middle of a page."""
    bench = scan_bench(rows=300, buckets=1)
    opened = bench.open()
    session = bench.sessions._open[opened.id]
    view = session.cut._views[0][1]
    view._pin._values = iter(list(view._pin._values)[:100])

    with pytest.raises(Corrupted, match="before the last row"):
        bench.pages(opened.id)


def test_a_partition_that_goes_is_told_once_and_the_others_are_read(scan_bench):
    """N19: what was read before stays; the place after it is the next partition."""
    bench = scan_bench(rows=0)
    schema = kolk.Schema([kolk.Column("day", "int"), kolk.Column("id", "bigint")], primary_key=["day", "id"])
    table = bench.db.create_table("web.days", schema, partition_by=["day"], buckets=2)
    for day in (1, 2, 3):
        table.put([{"day": day, "id": 10 * day + n} for n in range(5)])
    opened = bench.open(table=table)
    first = bench.call(opened.id, 0, page_bytes=1)
    table.drop_partition(day=1)

    pages = [first, *(bench.call(opened.id, seq) for seq in (1, 2))]

    assert pages[1].event.partition == "day=1"
    assert pages[1].batch is None
    assert pages[2].is_last
    assert sorted(ids_of(pages[2:])) == [*range(20, 25), *range(30, 35)]
    again = bench.pages(opened.id, cursor="again", page_bytes=1)
    assert [page.event.partition for page in again if page.event] == ["day=1"]
    assert bench.views_open == 4


def test_a_scan_shows_the_columns_of_its_moment(scanned):
    """N14: whatever becomes of the table; one that is opened afterwards shows the new ones."""
    opened = scanned.open()
    first = scanned.call(opened.id, 0, page_bytes=1)
    scanned.db.execute("ALTER TABLE web.t ADD COLUMN w STRING")
    scanned.db.execute("ALTER TABLE web.t DROP COLUMN n")
    scanned.db.table("web.t").put([{"id": 100, "v": "new", "w": "w"}])

    pages = [first, *(scanned.call(opened.id, seq, page_bytes=1) for seq in range(1, 10))]

    assert sorted(ids_of(pages)) == list(range(10))
    assert {tuple(page.batch.schema.names) for page in pages} == {("id", "v", "n")}
    newer = scanned.open(table=scanned.db.table("web.t"))
    assert table_of(scanned.pages(newer.id)).schema.names == ["id", "v", "w"]
    older = scanned.open()
    assert {"id": 100, "v": "new", "n": None} in table_of(scanned.pages(older.id)).to_pylist()
