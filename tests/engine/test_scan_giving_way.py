"""Shared scans whose readers nobody counts: kept for those who come late, and never in anybody's way."""

import pytest
from tests.engine.scan_bench import ME

import kolk
from kolk.engine.sessions import LINGER_SECONDS
from kolk.errors import InvalidArgument, TooManyScans, UnknownOrExpiredScan

TTL, LINGER = 600.0, 100.0
CAPS = {
    "scans_per_bucket_max": {"scans_per_bucket_max": 3},
    "scans_max": {"scans_max": 3},
    "scan_views_max": {"scan_views_max": 6},
}
each_cap = pytest.mark.parametrize("cap", CAPS)


def shared(bench, nonce, **more):
    given = {"is_shared": True, "nonce": nonce, "ttl_seconds": TTL, "linger_seconds": LINGER} | more
    return bench.open(**given).id


def test_read_to_its_end_by_parts_it_is_kept_for_its_linger_only(scanned):
    scan = shared(scanned, "n")
    scanned.clock.advance(seconds=TTL - 1)
    scanned.ids(scan, cursor="0", only=["0"])
    scanned.clock.advance(seconds=LINGER + 1)
    scanned.ids(scan, cursor="1", only=["1"])  # not all was read before

    scanned.clock.advance(seconds=LINGER)
    assert len(scanned.ids(scan, cursor="again")) == 10
    scanned.clock.advance(seconds=LINGER, ms=1)

    with pytest.raises(UnknownOrExpiredScan):
        scanned.call(scan, cursor="late")
    assert scanned.views_open == 0


def test_somebody_who_still_takes_it_has_the_whole_time(scanned):
    scan = shared(scanned, "n")
    with scanned.sessions.followed(scan):
        scanned.ids(scan)
        scanned.clock.advance(seconds=TTL)
        assert scanned.sessions.is_open(scan)
        scanned.sessions.reap()
        assert scanned.sessions.is_open(scan)
    scanned.sessions.reap()
    assert not scanned.sessions.is_open(scan)


@each_cap
def test_what_was_read_gives_its_place_to_who_comes_the_longest_unused_first(scan_bench, cap):
    bench = scan_bench(**CAPS[cap])
    scans = [shared(bench, f"n{number}") for number in range(3)]
    for scan in (scans[1], scans[0], scans[2]):
        bench.ids(scan)
        bench.clock.advance(seconds=1)

    bench.open()

    assert [bench.sessions.is_open(scan) for scan in scans] == [True, False, True]
    assert (bench.counts.open, bench.counts.refused, bench.views_open) == (3, 0, 6)
    with pytest.raises(UnknownOrExpiredScan, match="another moment"):
        shared(bench, "n1")


@each_cap
def test_what_nobody_has_read_for_a_moment_gives_way_after_what_was_read(scan_bench, cap):
    bench = scan_bench(**CAPS[cap])
    left, read, used = (shared(bench, nonce) for nonce in ("left", "read", "used"))
    bench.clock.advance(seconds=LINGER_SECONDS, ms=1)
    bench.ids(read)
    bench.call(used, page_bytes=1)

    bench.open()
    bench.open()

    assert [bench.sessions.is_open(scan) for scan in (left, read, used)] == [False, False, True]
    with pytest.raises(TooManyScans):
        bench.open()
    assert bench.sessions.is_open(used)


@each_cap
def test_who_is_reading_gives_no_place_away(scan_bench, cap):
    bench = scan_bench(**CAPS[cap])
    scans = [shared(bench, f"n{number}") for number in range(3)]
    for scan in scans:
        bench.ids(scan)

    with (
        bench.sessions.followed(scans[0]),
        bench.sessions.use(scans[1], ME),
        bench.sessions.followed(scans[2]),
        pytest.raises(TooManyScans),
    ):
        bench.open()

    assert all(bench.sessions.is_open(scan) for scan in scans)


def test_a_shared_scan_that_does_not_say_so_gives_no_place_away(scan_bench):
    bench = scan_bench(scans_max=1)
    scan = shared(bench, "n", linger_seconds=None)
    bench.ids(scan)
    bench.clock.advance(seconds=TTL - 1)

    with pytest.raises(TooManyScans):
        bench.open()


@pytest.mark.parametrize("request_", [{"is_shared": False}, {"linger_seconds": 0.0}])
def test_a_linger_that_means_nothing_is_refused(scanned, request_):
    with pytest.raises(InvalidArgument, match="linger"):
        shared(scanned, "n", **request_)


def test_the_readers_of_a_log_agree_on_its_ends_by_a_nonce(scanned):
    schema = kolk.Schema([kolk.Column("id", "bigint")])
    log = scanned.db.create_table("web.log", schema, buckets=2)
    log.put([{"id": n} for n in range(10)])

    first = scanned.open(table=log, is_shared=True, nonce="n")
    log.put([{"id": n} for n in range(10)])
    again = scanned.open(table=log, is_shared=True, nonce="n")
    other = scanned.open(table=log, is_shared=True, nonce="m")

    assert first.id == again.id == ""
    assert sum(first.offsets.values()) == 10
    assert again.offsets == first.offsets
    assert sum(other.offsets.values()) == 20
    with pytest.raises(InvalidArgument, match="log table"):
        scanned.open(table=log)
