"""Nonces: opening a scan twice gives one scan, and never two moments that look like one."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engine.scan_bench import ME, TTL

from kolk.engine import nonces
from kolk.errors import InvalidArgument, TooManyScans, UnknownOrExpiredScan

LOST = "another one would show another moment"


def test_opening_again_with_the_same_nonce_opens_nothing(scanned):
    """A lost answer leaves no orphan: upstream opens a second session."""
    one = scanned.open(nonce="n")
    scanned.put([100])

    two = scanned.open(nonce="n")

    assert two == one
    assert scanned.counts.open == 1
    assert scanned.open(nonce="other").id != one.id
    assert scanned.open(nonce="n", principal="somebody").id != one.id


def test_of_many_who_open_at_once_one_does(scanned):
    with ThreadPoolExecutor(16) as threads:
        opened = list(threads.map(lambda _: scanned.open(nonce="n", is_shared=True).id, range(16)))

    assert len(set(opened)) == 1
    assert (scanned.counts.open, scanned.counts.opened) == (1, 1)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_nonce_whose_scan_is_gone_is_refused(scanned, is_shared):
    """With the reason, and again and again: nobody mixes two moments by accident."""
    closed = scanned.open(nonce="closed", is_shared=is_shared)
    scanned.scans.end(closed.id, ME)
    scanned.open(nonce="idle", is_shared=is_shared)
    scanned.clock.advance(seconds=10 * TTL, ms=1)

    for _ in range(2):
        for nonce, reason in (("closed", "closed"), ("idle", "ttl")):
            with pytest.raises(UnknownOrExpiredScan, match=LOST) as error:
                scanned.open(nonce=nonce, is_shared=is_shared)
            assert error.value.reason == reason
    assert scanned.views_open == 0


def test_a_nonce_of_a_scan_whose_rows_were_taken_back_is_refused_by_its_reader(scanned):
    opened = scanned.open(nonce="n")
    for tablet in scanned.tablets:
        tablet.fence(tablet.log.leader_epoch + 1)
    scanned.engine.reap()

    with pytest.raises(UnknownOrExpiredScan, match=LOST) as error:
        scanned.open(nonce="n")
    assert error.value.reason == "revoked"
    assert not scanned.scans.end(opened.id, ME)


def test_the_nonce_of_a_shared_scan_is_refused_after_a_restart(scanned):
    """The planner's scan is gone with the server; a worker that comes late must not get another one."""
    scanned.open(nonce="shared", is_shared=True)
    scanned.open(nonce="own")
    scanned.reopen()

    with pytest.raises(UnknownOrExpiredScan, match=LOST):
        scanned.open(nonce="shared", is_shared=True)
    assert scanned.open(nonce="own").id


def test_the_nonce_of_a_shared_scan_without_rows_is_remembered_too(scan_bench):
    """N6: what was empty stays empty for all who know the nonce."""
    bench = scan_bench(rows=0)
    one = bench.open(nonce="n", is_shared=True)
    bench.put([1])

    assert bench.open(nonce="n", is_shared=True) == one
    bench.reopen()
    with pytest.raises(UnknownOrExpiredScan, match=LOST):
        bench.open(nonce="n", is_shared=True)


def test_a_nonce_is_for_one_scan(scanned):
    scanned.open(nonce="n")

    for other in ({"limit": 3}, {"names": ("id",)}, {"where": "id = 1"}, {"buckets": ("0",)}):
        with pytest.raises(InvalidArgument, match="another scan"):
            scanned.open(nonce="n", **other)


def test_a_nonce_has_its_length(scanned):
    with pytest.raises(InvalidArgument, match="200"):
        scanned.open(nonce="n" * 201)


def test_an_open_that_failed_may_be_tried_again_with_its_nonce(scan_bench):
    """N4: also if somebody else with this nonce waited for it."""
    bench = scan_bench(scans_max=1)
    other = bench.open()
    for is_shared in (False, True):
        with pytest.raises(TooManyScans):
            bench.open(nonce="n", is_shared=is_shared)
    bench.scans.end(other.id, ME)

    assert bench.open(nonce="n", is_shared=True).id


def test_opening_again_is_a_use(scanned):
    opened = scanned.open(nonce="n")
    scanned.clock.advance(seconds=TTL)
    assert scanned.open(nonce="n") == opened
    scanned.clock.advance(seconds=TTL)

    assert len(scanned.ids(opened.id)) == 10


def test_a_scan_is_closed_by_its_nonce(scanned):
    """N20: a reader that was interrupted before it had the id."""
    scanned.open(nonce="n")

    assert scanned.scans.nonces.close("n", ME)
    assert not scanned.scans.nonces.close("n", ME)
    assert scanned.counts.open == 0


def test_a_scan_that_is_closed_before_it_is_opened_is_never_opened(scanned):
    """N20: the request to open may still be under way when its reader gives up."""
    assert not scanned.scans.nonces.close("n", ME)

    with pytest.raises(UnknownOrExpiredScan, match=LOST) as error:
        scanned.open(nonce="n")
    assert error.value.reason == "closed"
    assert scanned.views_open == 0


def test_nonces_are_forgotten_but_not_those_of_open_scans(scan_bench, monkeypatch):
    monkeypatch.setattr(nonces, "NONCES_MAX", 10)
    bench = scan_bench()
    first = bench.open(nonce="first")
    for n in range(30):
        opened = bench.open(nonce=f"n{n}")
        bench.scans.end(opened.id, ME)

    assert bench.open(nonce="first") == first
    assert len(bench.scans.nonces._given) == 10
    assert bench.open(nonce="n0").id


def test_what_is_remembered_of_a_nonce_is_little(scan_bench):
    """A thousand scans of a table with many buckets must not leave their offsets behind."""
    bench = scan_bench(buckets=8, rows=50)
    for n in range(20):
        bench.ids(bench.open(nonce=f"n{n}").id)
    bench.clock.advance(seconds=TTL)
    bench.engine.reap()

    assert not bench.scans.nonces._answers
    empty = bench.open(nonce="empty", where="id = 1", limit=0)
    assert empty.id == ""
    assert (ME, "empty") not in bench.scans.nonces._given


def test_the_answer_of_a_shared_scan_without_rows_is_kept_for_its_time_after_its_last_use(scan_bench):
    """As long as a session would be, and no longer: it has the offsets of every bucket."""
    bench = scan_bench(rows=0)
    one = bench.open(nonce="n", is_shared=True, ttl_seconds=60.0)
    bench.put([1])
    for _ in range(3):
        bench.clock.advance(seconds=60)
        bench.engine.reap()
        assert bench.open(nonce="n", is_shared=True, ttl_seconds=60.0) == one

    bench.clock.advance(seconds=60, ms=1)
    for _ in range(2):
        with pytest.raises(UnknownOrExpiredScan, match=LOST) as error:
            bench.open(nonce="n", is_shared=True, ttl_seconds=60.0)
        assert error.value.reason == "ttl"
        bench.engine.reap()
    assert not bench.scans.nonces._answers
    assert bench.scans.nonces._offsets == 0


def test_the_answers_of_scans_without_rows_have_a_limit_in_all(scan_bench, monkeypatch):
    """Whoever comes too late for one that had to go is told so, and never shown another moment."""
    monkeypatch.setattr(nonces, "OFFSETS_MAX", 20)
    bench = scan_bench(buckets=8, rows=0)
    first = bench.open(nonce="first", is_shared=True)
    bench.open(nonce="second", is_shared=True)
    assert bench.open(nonce="first", is_shared=True) == first
    bench.put([1, 2, 3])
    bench.open(nonce="third", is_shared=True, where="id = 77", limit=0)

    assert bench.open(nonce="first", is_shared=True) == first
    with pytest.raises(UnknownOrExpiredScan, match=LOST):
        bench.open(nonce="second", is_shared=True)
    assert bench.scans.nonces._offsets == 16


def test_old_nonces_leave_the_folder_after_a_day(scanned):
    scanned.open(nonce="n", is_shared=True)
    assert len(scanned.engine._meta.list("scan-nonce/")) == 1

    scanned.clock.advance(seconds=86_400, ms=1)
    scanned.engine.reap()

    assert scanned.engine._meta.list("scan-nonce/") == []


def test_the_records_of_nonces_have_a_limit_for_each_principal(scan_bench, monkeypatch):
    """Also of scans that pin nothing, and across a restart: whoever may read must not fill the folder."""
    monkeypatch.setattr(nonces, "RECORDS_MAX", 3)
    bench = scan_bench()
    for n in range(3):
        bench.open(nonce=f"n{n}", is_shared=True, limit=0)
    bench.reopen()

    for _ in range(2):
        with pytest.raises(TooManyScans, match="that are not shared") as caught:
            bench.open(nonce="n3", is_shared=True, limit=0)

    assert 0 < caught.value.retry_after <= 864
    assert len(bench.engine._meta.list("scan-nonce/")) == 3
    assert bench.open(nonce="n3", is_shared=True, principal="somebody").id
    assert bench.open(nonce="n3").id  # one's own is not recorded


def test_at_their_limit_those_that_nobody_can_mean_any_more_make_room(scan_bench, monkeypatch):
    monkeypatch.setattr(nonces, "RECORDS_MAX", 3)
    bench = scan_bench()
    bench.engine.reap()
    for n in range(3):
        bench.open(nonce=f"n{n}", is_shared=True, limit=0)
    bench.clock.advance(seconds=86_400, ms=1)

    for n in range(3):
        bench.open(nonce=f"new{n}", is_shared=True, limit=0)

    with pytest.raises(TooManyScans):
        bench.open(nonce="new3", is_shared=True, limit=0)


def test_at_their_limit_a_nonce_that_is_known_still_gives_its_scan(scan_bench, monkeypatch):
    monkeypatch.setattr(nonces, "RECORDS_MAX", 1)
    bench = scan_bench()
    first = bench.open(nonce="n", is_shared=True)

    assert bench.open(nonce="n", is_shared=True) == first


def test_a_shared_scan_that_was_not_opened_takes_no_place_among_the_records(scan_bench, monkeypatch):
    monkeypatch.setattr(nonces, "RECORDS_MAX", 1)
    bench = scan_bench()
    for _ in range(3):
        with pytest.raises(InvalidArgument):
            bench.open(nonce="n", is_shared=True, ttl_seconds=-1.0)

    assert bench.open(nonce="n", is_shared=True).id
