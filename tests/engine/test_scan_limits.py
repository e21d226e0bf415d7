"""How many scans there may be: caps that nobody passes, what is told to who comes too late, and what scans hold."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engine.scan_bench import ME, SCHEMA, TTL

import kolk
from kolk.engine.sessions import LINGER_SECONDS
from kolk.errors import TooManyScans, UnknownOrExpiredScan
from kolk.tablet.retention import HolderKind

CAPS = {
    "scans_per_bucket_max": {"scans_per_bucket_max": 3},
    "scans_max": {"scans_max": 3},
    "scan_views_max": {"scan_views_max": 6},
}
each_cap = pytest.mark.parametrize("cap", CAPS)


def refused(bench, **request):
    with pytest.raises(TooManyScans) as error:
        bench.open(**request)
    return error.value


@each_cap
def test_a_scan_too_many_is_refused_with_the_cap_and_when_to_retry(scan_bench, cap):
    """S9, S10, N4: and nothing is changed by it; the counts are as before."""
    bench = scan_bench(**CAPS[cap])
    for _ in range(3):
        bench.open()
        bench.clock.advance(seconds=1)

    error = refused(bench)

    assert error.cap == cap
    assert cap in str(error)
    assert error.retriable
    assert error.retry_after == TTL - 3
    assert (bench.counts.open, bench.counts.views, bench.counts.refused) == (3, 6, 1)
    assert bench.views_open == 6


@each_cap
def test_as_soon_as_one_ends_there_is_room_for_one(scan_bench, cap):
    """S9, S10, N4."""
    bench = scan_bench(**CAPS[cap])
    first, *_ = [bench.open() for _ in range(3)]
    refused(bench)

    bench.scans.end(first.id, ME)

    bench.open()
    refused(bench)


@each_cap
def test_concurrent_opens_cannot_pass_a_cap(scan_bench, cap):
    """S9, S10: 16 at once, of which 3 come in."""
    bench = scan_bench(**CAPS[cap])

    def one(_):
        try:
            return bench.open().id
        except TooManyScans:
            return None

    with ThreadPoolExecutor(16) as threads:
        opened = [scan for scan in threads.map(one, range(16)) if scan is not None]

    assert len(opened) == 3
    assert (bench.counts.open, bench.counts.refused, bench.views_open) == (3, 13, 6)


@each_cap
def test_who_is_overdue_keeps_nobody_out(scan_bench, cap):
    """S8: their time is up, whether somebody has looked after them or not."""
    bench = scan_bench(**CAPS[cap])
    for _ in range(3):
        bench.open()
    bench.clock.advance(seconds=TTL, ms=1)

    bench.open()

    assert (bench.counts.open, bench.counts.expired, bench.views_open) == (1, 3, 2)


@each_cap
def test_whose_rows_were_taken_back_keeps_nobody_out(scan_bench, cap):
    """S11: nor do those of a table that is gone, before anybody has noticed."""
    bench = scan_bench(**CAPS[cap])
    for _ in range(3):
        bench.open()
    for tablet in bench.tablets:
        tablet._refuse(kolk.errors.Stopped("a disk failed"))
        tablet._refusal = None  # recovered, with the bucket and its places

    bench.open()

    assert (bench.counts.open, bench.counts.revoked) == (1, 3)


@each_cap
def test_who_lingers_keeps_nobody_out(scan_bench, cap):
    """S9, S10: read sessions take no place, and the oldest go first where views run short."""
    bench = scan_bench(**CAPS[cap])
    read = [bench.open().id for _ in range(3)]
    for scan in read:
        bench.ids(scan)

    for _ in range(3):
        bench.open()

    assert refused(bench).cap == cap
    assert bench.counts.views == (6 if cap == "scan_views_max" else 12)
    assert bench.views_open == bench.counts.views


def test_who_lingers_goes_for_those_only_who_come_in(scan_bench):
    """S10: a scan that is refused has cost nobody his last page."""
    bench = scan_bench(scan_views_max=4, scans_max=1)
    read = bench.open()
    bench.ids(read.id)
    other = bench.open()
    assert refused(bench).cap == "scans_max"
    bench.call(read.id)

    bench.scans.end(other.id, ME)
    third = bench.open()  # there is room beside the one that was read
    bench.call(read.id)
    bench.ids(third.id)
    bench.open()  # and now there is not: the oldest goes

    with pytest.raises(UnknownOrExpiredScan, match="read to its end"):
        bench.call(read.id)
    bench.call(third.id)


def test_when_to_retry_is_told_by_those_who_take_the_places(scan_bench):
    """N4: not by one that lingers, nor by one of another table, whose end would help nobody."""
    bench = scan_bench(scans_per_bucket_max=1)
    other = bench.db.create_table("web.other", SCHEMA)
    other.put([{"id": 1, "v": "", "n": 0}])
    bench.open(table=other)
    lingering = bench.open()
    bench.ids(lingering.id)
    bench.clock.advance(seconds=LINGER_SECONDS - 1)
    bench.open()

    assert refused(bench).retry_after == TTL


def test_who_waits_for_a_page_in_the_making_may_retry_at_once(scan_bench):
    """N4: never after a negative time."""
    bench = scan_bench(scans_max=1)
    opened = bench.open()

    with bench.sessions.use(opened.id, ME):
        bench.clock.advance(seconds=2 * TTL)
        assert refused(bench).retry_after == 0


def test_a_scan_that_can_never_fit_is_not_worth_a_retry(scan_bench):
    """N17: it says what helps instead."""
    bench = scan_bench(scan_views_max=1)

    error = refused(bench)

    assert not error.retriable
    assert "some buckets at a time" in str(error)
    bench.open(buckets=("0",))


def test_a_table_scan_is_one_however_many_buckets_it_has(scan_bench):
    """N17: upstream counts buckets, and a table with more of them than the cap is never read."""
    bench = scan_bench(rows=200, buckets=16, scans_max=2)

    one, two = bench.open(), bench.open()

    assert (bench.counts.open, bench.counts.views) == (2, 32)
    assert sorted(bench.ids(one.id)) == list(range(200))
    assert sorted(bench.ids(two.id)) == list(range(200))


def test_empty_tables_are_scanned_whatever_the_caps(scan_bench):
    """S1, N6: upstream refuses them at the cap."""
    bench = scan_bench(scans_max=1)
    empty = bench.db.create_table("web.empty", SCHEMA)
    bench.open()

    assert bench.open(table=empty).id == ""


def test_a_dashboard_that_never_closes_meets_no_cap(scan_bench):
    """S9, S10: it reads to the end, which is enough."""
    bench = scan_bench(scans_max=2, scan_views_max=20)

    for _ in range(100):
        assert len(bench.ids(bench.open().id)) == 10
        bench.clock.advance(seconds=1)

    assert bench.counts.opened == 100
    assert bench.views_open <= 20


def test_a_scan_that_nobody_has_any_more_frees_its_place(scan_bench):
    """Within a process scans have no ttl: they last as long as somebody has them."""
    bench = scan_bench(scans_max=1, scan_page_rows=2)
    scan = bench.table.scan()
    next(iter(scan))
    bench.clock.advance(seconds=10**6)
    bench.engine.reap()
    assert bench.counts.open == 1

    del scan
    gc.collect()

    assert bench.counts.open == 0
    assert bench.views_open == 0


def test_a_scan_that_belongs_to_nobody_is_given_up_in_its_time(scan_bench):
    """One with a nonce is for all who know it, so it ends with none of them, also within a process."""
    bench = scan_bench(scans_max=1)
    with bench.table.scan(nonce="n") as scan:
        assert scan.to_arrow().num_rows == 10
    del scan
    gc.collect()
    assert bench.counts.open == 1

    bench.clock.advance(seconds=600, ms=1)

    assert bench.counts.open == 0


def test_an_open_scan_holds_the_log_from_its_offsets_on(scanned):
    """Whoever reads it may want what came after; also of buckets in which it found nothing."""
    scanned.table.delete([{"id": id} for id in scanned.ids(scanned.open(buckets=("1",)).id)])
    scanned.clock.advance(seconds=TTL)
    scanned.engine.reap()
    opened = scanned.open()
    held = {tablet.bucket.name: scanned.sessions.holders(tablet.bucket) for tablet in scanned.tablets}

    for name, (holder,) in held.items():
        assert (holder.kind, holder.offset) == (HolderKind.SCAN, opened.offsets[name])
        assert holder.expires_ms == scanned.clock.now_ms() + TTL * 1_000
        assert opened.id in holder.owner
    scanned.scans.end(opened.id, ME)
    assert [scanned.sessions.holders(tablet.bucket) for tablet in scanned.tablets] == [[], []]


def test_what_is_counted_is_what_happened(scanned):
    expired, closed, read, shared = (scanned.open(is_shared=n == 3) for n in range(4))
    scanned.ids(read.id)
    scanned.ids(shared.id)
    scanned.scans.end(closed.id, ME)
    scanned.clock.advance(seconds=TTL, ms=1)
    scanned.db.drop_table("web.t")

    counts = scanned.db.status()["scans"]

    assert counts.pop("size_bytes") > 0
    assert counts == {
        "open": 0, "views": 0, "opened": 4, "expired": 1, "revoked": 1, "refused": 0, "rows": 20
    }  # fmt: skip
    assert scanned.db.scans() == []
    assert expired.id
