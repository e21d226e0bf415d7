"""The requests about scans, one by one over real sockets: what is answered, what is refused, and what is left."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.server.scan_wire import LARGE, SCHEMA, SECONDS, SMALL, TTL, Caller, gone, ids

import kolk
from kolk.errors import InvalidArgument, KolkError, TableNotFound, TooManyScans
from kolk.storage.view import View
from kolk.wire import messages as m


@pytest.fixture
def table(caller):
    table = caller.db.create_table("t", SCHEMA, buckets=2)
    table.put([{"id": n, "v": f"v{n}"} for n in range(10)])
    return table


# --- opening


def test_a_scan_that_fits_is_one_answer(wire, caller, table):
    """V1, C7: id, offsets, all rows, and that there are no more; it needs no close."""
    record, found = caller.open(table)

    assert record.scan
    assert sum(record.offsets.values()) == 10
    assert record.first.last
    assert sorted(found) == list(range(10))
    assert wire.counts.open == 0


def test_an_empty_table_is_answered_without_a_scan(wire, caller):
    """N6, C4: offsets, no id, no rows, no place."""
    table = caller.db.create_table("empty", SCHEMA)

    record, found = caller.open(table)

    assert (record.scan, record.offsets, record.first, found) == ("", {"0": 0}, None, [])
    assert (wire.counts.open, wire.counts.opened) == (0, 1)


def test_one_row_a_page_down_to_the_last(caller, table):
    """V2, C1, C2, C3: the same id all along, numbers from 0; offsets in the first answer only. After the end the last
    page can be had again: upstream knows the id no more."""
    record, found = caller.open(table, SMALL)
    token, seq = record.first.token, 0
    part = record.first
    while not part.last:
        part, more = caller.next(record.scan, seq, table, SMALL, token=token if seq == 0 else "")
        assert len(more) == 1
        found += more
        seq += 1

    assert sorted(found) == list(range(10))
    assert seq == 9
    assert caller.next(record.scan, seq - 1, table, SMALL)[1] == found[-1:]


@pytest.mark.parametrize("limit", [1, 3, 10, 100])
def test_a_limit_holds_over_pages(wire, caller, table, limit):
    """N5, V12, R2, B11: in the order of the keys of each bucket; the last row is the last page."""
    whole = caller.open(table)[1]
    record, found = caller.open(table, SMALL, limit=limit)

    if not record.first.last:
        found += caller.rest(record.scan, table, record.first.token, SMALL)

    assert found == whole[:limit]
    assert wire.counts.open == 0


@pytest.mark.parametrize("page_bytes", [SMALL, 400, LARGE, 2**31 - 1])
def test_a_page_is_as_large_as_asked_for_or_as_allowed(wired, page_bytes):
    """V10: measured on the rows as they came over the wire."""
    wire = wired(scan_page_bytes_max=5_000)
    db = wire.connect()
    table = db.create_table("t", SCHEMA, buckets=2)
    table.put([{"id": n, "v": "x" * (n % 50)} for n in range(500)])
    service = db._link.service
    record, rows = service.scan_page(m.OpenScan(table=table.info.id, page_bytes=page_bytes))
    part, scan, seq = m.as_record(record, m.ScanRecord).first, record["scan"], 0
    sizes, found = [rows.size], ids(rows, table)
    while not part.last:
        call = m.NextPage(scan=scan, cursor="c", seq=seq, page_bytes=page_bytes, token="" if seq else part.token)
        record, rows = service.scan_page(call)
        part, seq = m.as_record(record, m.ScanPart), seq + 1
        sizes.append(rows.size)
        found += ids(rows, table)

    assert sorted(found) == list(range(500))
    assert len(sizes) == 500 if page_bytes == SMALL else max(sizes) <= min(page_bytes, 5_000)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"names": ["nope"]}, "no column"),
        ({"where": "nope = 1"}, "nope"),
        ({"where": "id ="}, "id ="),
        ({"buckets": ["7"]}, "bucket"),
        ({"nonce": "n" * 201}, "nonce"),
        ({"ttl_seconds": -1.0}, "ttl"),
        ({"ttl_seconds": 1e9}, "ttl"),
        ({"resume": "nonsense"}, "resume token"),
    ],
    ids=str,
)
def test_what_cannot_be_opened_is_refused_and_takes_nothing(wire, caller, table, request_, message):
    """N7, N8: with a name, and no view is left."""
    with pytest.raises(KolkError, match=message) as error:
        caller.open(table, **request_)

    assert not isinstance(error.value, kolk.errors.InternalError)
    assert (wire.counts.open, wire.counts.views) == (0, 0)


def test_a_table_that_is_none_or_has_no_rows_by_key_is_not_scanned(caller, table):
    """N8, I7: a log table says where to read it instead."""
    log = caller.db.create_table("log", kolk.Schema([kolk.Column("id", "bigint")]))

    with pytest.raises(InvalidArgument, match="log table"):
        caller.open(log)
    with pytest.raises(TableNotFound):
        caller.service.scan_page(m.OpenScan(table=999, page_bytes=1))


def test_too_many_are_refused_over_the_wire_with_all_there_is_to_know(wired):
    """N4, S9, S10: which cap, when to retry; what failed is counted as nothing but a refusal."""
    wire = wired(scans_per_bucket_max=2)
    db = wire.connect(timeout=1)
    caller = Caller(db)
    table = db.create_table("t", SCHEMA)
    table.put([{"id": n, "v": "x"} for n in range(3)])
    first, _ = caller.open(table, SMALL)
    caller.open(table, SMALL)

    with pytest.raises(TooManyScans, match="bucket 0 of t has 2 scans") as error:
        caller.open(table, SMALL)

    assert (error.value.cap, error.value.retry_after) == ("scans_per_bucket_max", TTL)
    assert (wire.counts.open, wire.counts.views, wire.counts.opened) == (2, 2, 2)
    assert caller.close(first.scan)
    caller.open(table, SMALL)


# --- going on


def test_the_last_call_can_be_made_again(caller, table):
    """N1: a lost answer costs nothing. Upstream destroys the session."""
    record, found = caller.open(table, SMALL)
    one = caller.next(record.scan, 0, table, SMALL, token=record.first.token)

    assert caller.next(record.scan, 0, table, SMALL) == one
    assert caller.next(record.scan, 0, table, LARGE) == one
    two = caller.next(record.scan, 1, table, SMALL)
    assert two[1] != one[1]
    assert found + one[1] + two[1] == caller.rest(record.scan, table)[:3]


def test_a_wrong_number_is_told_and_leaves_the_scan_alone(caller, table):
    """N2, V8, V9, C14: upstream destroys the session."""
    record, _ = caller.open(table, SMALL)
    caller.next(record.scan, 0, table, SMALL)

    for seq in (2, 5):
        with pytest.raises(InvalidArgument, match="out of order"):
            caller.next(record.scan, seq, table, SMALL)
    with pytest.raises(InvalidArgument, match="begin it with call 0"):
        caller.next(record.scan, 1, table, SMALL, cursor="other")

    assert sorted(caller.rest(record.scan, table)) == list(range(10))


def test_another_connection_reads_the_same(wire, caller, table):
    """N3: a scan belongs to who opened it, not to the connection; both can read on by turns."""
    other = Caller(wire.connect())
    record, found = caller.open(table, SMALL)

    for seq in range(9):
        reader = (caller, other)[seq % 2]
        part, more = reader.next(record.scan, seq, table, SMALL, token="" if seq else record.first.token)
        found += more

    assert part.last
    assert other.rest(record.scan, table) == found


def test_calls_at_once_on_one_cursor_get_the_same_page(wire, caller, table):
    """N3, S6: the second waits; nobody is refused and nothing breaks."""
    others = [Caller(wire.connect()) for _ in range(6)]
    record, _ = caller.open(table, SMALL)
    caller.next(record.scan, 0, table, SMALL)

    with ThreadPoolExecutor(6) as threads:
        pages = list(threads.map(lambda each: each.next(record.scan, 1, table, SMALL), others))

    assert all(page == pages[0] for page in pages)
    assert len(caller.rest(record.scan, table)) == 10


def test_a_stream_begins_at_a_token(caller, table):
    """V1: one request, all pages that are left."""
    record, found = caller.open(table, SMALL)
    stream = caller.service.scan_stream(
        m.ReadScan(scan=record.scan, token=record.first.token), caller.service._retry.deadline()
    )

    while True:
        batch, page = stream.next(SECONDS)
        found += batch["id"].to_pylist()
        if page.part.last:
            break

    assert stream.next(SECONDS) is None
    assert sorted(found) == list(range(10))


def test_a_scan_that_is_gone_says_why(wire, caller, table):
    """V2, V5, C12, C13, N13: one error for all of it."""
    closed, idle = caller.open(table, SMALL)[0].scan, caller.open(table, SMALL)[0].scan
    assert caller.close(closed)
    wire.clock.advance(seconds=TTL, ms=1)

    for scan, reason in ((closed, "closed"), (idle, "ttl"), ("0" * 32, "unknown"), ("nonsense", "unknown")):
        assert gone(lambda scan=scan: caller.next(scan, 0, table)) == reason
        assert gone(lambda scan=scan: caller.service._act(m.JoinScan(scan=scan))) == reason
        stream = caller.service.scan_stream(m.ReadScan(scan=scan), caller.service._retry.deadline())
        assert gone(lambda stream=stream: stream.next(SECONDS)) == reason


def test_the_time_of_a_scan_is_exact_over_the_wire(wire, caller, table):
    """N11, S3, S4: alive at its ttl, gone just after; only what is served lengthens it."""
    record, _ = caller.open(table, SMALL)
    wire.clock.advance(seconds=TTL)
    caller.next(record.scan, 0, table, SMALL)
    wire.clock.advance(seconds=TTL)
    with pytest.raises(InvalidArgument):
        caller.next(record.scan, 7, table, SMALL)
    with pytest.raises(InvalidArgument):
        caller.next(record.scan, 0, table, SMALL, cursor="new", token="nonsense")
    caller.service._act(m.ListScans())

    wire.clock.advance(ms=1)

    assert gone(lambda: caller.next(record.scan, 1, table, SMALL)) == "ttl"


def test_a_table_that_is_dropped_takes_its_rows_back(caller, table):
    """V6, R1: whoever reads on is told so, by page, by stream, and when joining."""
    record, _ = caller.open(table, SMALL)
    caller.db.drop_table("t")

    assert gone(lambda: caller.next(record.scan, 0, table)) == "revoked"
    assert gone(lambda: caller.service._act(m.JoinScan(scan=record.scan))) == "revoked"
    assert not caller.close(record.scan)


def test_a_bucket_that_is_led_elsewhere_takes_its_rows_back(wire, caller, table):
    """V7, N12."""
    record, _ = caller.open(table, SMALL)
    for tablet in wire.engine._tablets.opened():
        tablet.fence(tablet.log.leader_epoch + 1)

    assert gone(lambda: caller.next(record.scan, 0, table)) == "revoked"
    assert wire.counts.revoked == 1


def test_a_partition_that_goes_is_told_in_its_place(caller):
    """N19."""
    schema = kolk.Schema([kolk.Column("day", "int"), kolk.Column("id", "bigint")], primary_key=["day", "id"])
    table = caller.db.create_table("days", schema, partition_by=["day"])
    for day in (1, 2):
        table.put([{"day": day, "id": 10 * day + n} for n in range(3)])
    record, found = caller.open(table, SMALL)
    table.drop_partition(day=1)

    told, none = caller.next(record.scan, 0, table, token=record.first.token)
    last, rest = caller.next(record.scan, 1, table)

    assert (told.event.kind, told.event.partition, none) == ("dropped", "day=1", [])
    assert (found, rest, last.last) == ([10], [20, 21, 22], True)


# --- the end


def test_closing_twice_is_no_error(wire, caller, table):
    """V3, V4, C6: whether there was one is the answer; upstream echoes the id."""
    record, _ = caller.open(table, SMALL)

    assert [caller.close(record.scan) for _ in range(3)] == [True, False, False]
    assert not caller.close("0" * 32)
    assert not caller.close("")
    assert (wire.counts.open, wire.counts.views) == (0, 0)


def test_closing_waits_for_no_page_and_harms_none(wire, caller, table, monkeypatch):
    """S15, N3, N15: the page in the making comes whole."""
    other = Caller(wire.connect())
    record, _ = caller.open(table, SMALL)
    inside, go_on = threading.Event(), threading.Event()
    take = View.take

    def taken(view, after, rows):
        found = take(view, after, rows)
        inside.set()
        assert go_on.wait(SECONDS)
        return found

    monkeypatch.setattr(View, "take", taken)
    with ThreadPoolExecutor(1) as threads:
        page = threads.submit(caller.next, record.scan, 0, table)
        assert inside.wait(SECONDS)
        assert other.close(record.scan)
        assert (wire.counts.open, wire.counts.views) == (0, 0)
        go_on.set()
        assert sorted(page.result(SECONDS)[1]) == list(range(10))

    assert gone(lambda: caller.next(record.scan, 1, table)) == "closed"


def test_an_open_that_is_asked_for_twice_is_one(wire, caller, table):
    """C9: a lost answer to an open leaves no orphan; the same first page comes again, to its end and after it."""
    for page_bytes in (SMALL, LARGE):
        request = {"page_bytes": page_bytes, "nonce": f"n{page_bytes}"}
        assert caller.open(table, **request) == caller.open(table, **request)
    assert wire.counts.opened == 2


def test_an_open_that_is_given_up_leaves_nothing(wire, caller, table):
    """N20: ended by its nonce, whether it has arrived or not."""
    caller.open(table, SMALL, nonce="arrived")
    assert caller.close(nonce="arrived")
    assert not caller.close(nonce="under way")

    assert gone(lambda: caller.open(table, SMALL, nonce="under way")) == "closed"
    assert (wire.counts.open, wire.counts.views) == (0, 0)
