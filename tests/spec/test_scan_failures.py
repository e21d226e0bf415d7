"""Scans that fail, are refused, interrupted or left alone: it is told, it stays told, and nothing is left behind."""

import pytest
from tests.spec.scanned import SCHEMA, ids, rows

import kolk
from kolk.errors import Closed, TooManyScans, UnknownOrExpiredScan

network_only = pytest.mark.parametrize("form", ["network"], indirect=True)


@pytest.fixture
def table(db):
    return db.create_table("t", SCHEMA, buckets=3)


def test_a_scan_that_failed_fails_again(small, by_pages):
    """N18, C12, C13: upstream's looks finished afterwards."""
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(40)))
    scan = table.scan()
    next(iter(scan))
    assert small.db.close_scan(scan.id)

    for read in (lambda: list(scan), scan.to_arrow, lambda: list(scan)):
        with pytest.raises(UnknownOrExpiredScan, match="closed") as error:
            read()
        assert error.value.reason == "closed"


def test_a_scan_whose_bucket_is_led_elsewhere_fails(small, by_pages):
    """N12, C11, V7: it never goes on at another moment by itself."""
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(40)))
    scan = table.scan()
    next(iter(scan))
    for tablet in small.engine._tablets.opened():
        tablet.fence(tablet.log.leader_epoch + 1)

    with pytest.raises(UnknownOrExpiredScan, match="epoch") as error:
        scan.to_arrow()
    assert error.value.reason == "revoked"


def test_a_scan_does_not_outlive_the_server(small, by_pages):
    """N13: strict is the default; what is lost is told."""
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(40)))
    scan = table.scan()
    id, _ = scan.id, next(iter(scan))
    small.reopen()

    with pytest.raises(UnknownOrExpiredScan) as error:
        small.db.table("t").join_scan(id)
    assert error.value.reason == "unknown"


@network_only  # within a process scans last as long as somebody has them
def test_a_reader_that_waits_too_long_has_lost_its_scan(small, by_pages):
    """N11, C12."""
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(40)))
    scan, quick = table.scan(), table.scan(ttl="2s")
    next(iter(scan))
    small.clock.advance(seconds=60)
    next(iter(scan))
    with pytest.raises(UnknownOrExpiredScan) as error:
        next(iter(quick)), next(iter(quick))
    assert error.value.reason == "ttl"
    small.clock.advance(seconds=60, ms=1)

    with pytest.raises(UnknownOrExpiredScan, match="ask for a longer ttl"):
        next(iter(scan))


def test_a_scan_too_many_is_refused_until_there_is_room(bench):
    """N4, C9, C10: a client of a server tries again for as long as its calls may take."""
    database = bench(scans_max=1)
    table = database.db.create_table("t", SCHEMA)
    table.put(rows(range(5)))
    other = table.scan(shared=True)
    if hasattr(table._service, "_retry"):
        table._service._retry._seconds = 4.0

    with pytest.raises(TooManyScans, match="scans_max"):
        table.scan()

    other.close()
    assert table.scan().to_arrow().num_rows == 5


@network_only
def test_a_client_waits_for_a_place(bench):
    """C9: upstream tries three times, and sleeps inside of the caller's poll."""
    database = bench(scans_max=1)
    table = database.db.create_table("t", SCHEMA)
    table.put(rows(range(5)))
    other, service = table.scan(shared=True), table._service
    pause, tries = service._retry._pause, []

    def until_there_is_room(seconds):
        tries.append(seconds)
        if len(tries) == 3:
            other.close()
        pause(0)

    service._retry._pause = until_there_is_room

    assert table.scan().to_arrow().num_rows == 5
    assert len(tries) == 3


def test_a_scan_that_was_closed_is_closed(table, db):
    """C6, C8, B8: at once, and with everything it had."""
    table.put(rows(range(50)))
    scan = table.scan(shared=True)
    assert db.status()["scans"]["open"] == 1

    scan.close()
    scan.close()

    assert (db.status()["scans"]["open"], db.status()["scans"]["views"]) == (0, 0)
    with pytest.raises(Closed):
        list(scan)


@network_only
def test_an_open_that_is_interrupted_leaves_nothing(timed, monkeypatch):
    """N20: the answer never came to the caller, so that nobody could close the scan."""
    table = timed.db.create_table("t", SCHEMA)
    table.put(rows(range(5)))
    service = table._service
    call = service._call

    def interrupted(message, deadline):
        call(message, deadline)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(service, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.scan()

    assert timed.db.status()["scans"]["views"] == 0


@network_only
def test_a_lost_answer_is_asked_for_again(small, by_pages, monkeypatch):
    """N1, C15: an open that is sent twice is one scan, and a page that is sent twice is one page."""
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(40)))
    service = table._service
    call, lost = service._call, []

    def lossy(message, deadline):
        found = call(message, deadline)
        if len(lost) % 2 == 0:
            lost.append(message)
            raise kolk.errors.Unreachable("the answer was lost")
        lost.append(None)
        return found

    monkeypatch.setattr(service, "_call", lossy)

    assert ids(table.scan().to_arrow()) == list(range(40))
    assert small.db.status()["scans"]["opened"] == 1
    assert len(lost) > 10


def test_a_progress_that_fails_loses_no_row(small, by_pages):
    """N18: whoever is told of the progress may fail; the rows are there at the second call."""
    table = small.db.create_table("t", SCHEMA)
    table.put(rows(range(40)))
    told = []

    def progress(rows, estimate):
        told.append(rows)
        if len(told) == 3:
            raise ZeroDivisionError

    scan = table.scan(on_progress=progress)
    with pytest.raises(ZeroDivisionError):
        scan.to_arrow()

    assert ids(scan.to_arrow()) == list(range(40))
    assert told[-1] == 40
    assert told == sorted(told)


def test_a_table_with_more_buckets_than_scans_may_be_is_one_scan(bench):
    """N17: also of all its buckets twice."""
    database = bench(scans_max=2)
    table = database.db.create_table("t", SCHEMA, buckets=16)
    table.put(rows(range(200)))

    with table.scan() as one, table.scan() as two:
        assert ids(one.to_arrow()) == ids(two.to_arrow()) == list(range(200))
