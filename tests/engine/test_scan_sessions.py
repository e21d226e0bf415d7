"""Scan sessions: how they begin, how long they live, why they end, and what is left of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engine.scan_bench import ME, TTL, ids_of

from kolk.engine.sessions import LINGER_SECONDS
from kolk.errors import Closed, InvalidArgument, UnknownOrExpiredScan
from kolk.storage.view import View

SECONDS = 30


@pytest.fixture
def paused(monkeypatch):
    """Pages stop in the middle of their making: ``inside`` is set when one is there, and ``go_on`` lets it go."""

    class Pause:
        inside, go_on = threading.Event(), threading.Event()

    take = View.take

    def taken(view, after, rows):
        found = take(view, after, rows)
        Pause.inside.set()
        assert Pause.go_on.wait(SECONDS)
        return found

    monkeypatch.setattr(View, "take", taken)
    yield Pause
    Pause.go_on.set()


@pytest.fixture
def beside():
    with ThreadPoolExecutor(16) as threads:
        yield threads.submit


def gone(bench, scan, principal=ME):
    """Why a scan is gone, as its reader is told."""
    with pytest.raises(UnknownOrExpiredScan) as error:
        bench.call(scan, principal=principal)
    return error.value.reason


# --- beginning


def test_an_empty_table_takes_no_session(scan_bench):
    """S1, K1, N6: it is answered by its offsets alone, and takes no place."""
    bench = scan_bench(rows=0)

    opened = bench.open()

    assert opened.id == ""
    assert opened.offsets == {"0": 0, "1": 0}
    assert (bench.counts.open, bench.counts.views, bench.counts.opened) == (0, 0, 1)
    assert bench.views_open == 0


def test_the_offsets_of_a_table_that_was_emptied_are_those_of_its_log(scanned):
    """K1: empty is not new."""
    scanned.table.truncate()

    opened = scanned.open()

    assert opened.id == ""
    assert sum(opened.offsets.values()) == 20
    assert scanned.views_open == 0


def test_a_limit_of_no_rows_takes_no_session(scanned):
    """N5: a limit of 0 is none, not no limit."""
    assert scanned.open(limit=0).id == ""
    assert scanned.views_open == 0


def test_a_session_is_counted_while_it_is_there(scanned):
    """S2, B5: as one, however many buckets; the views are counted too."""
    opened = scanned.open()
    assert (scanned.counts.open, scanned.counts.views, scanned.views_open) == (1, 2, 2)

    assert scanned.scans.end(opened.id, ME)

    assert (scanned.counts.open, scanned.counts.views, scanned.views_open) == (0, 0, 0)
    assert scanned.sessions._per_bucket == {}


def test_what_an_open_answers_is_what_the_scan_shows(scanned):
    """K2, V1: the rows are those of the offsets, and both are of one moment."""
    opened = scanned.open()
    scanned.put(range(100, 110))

    (page,) = scanned.pages(opened.id)

    assert sorted(ids_of([page])) == list(range(10))
    assert sum(opened.offsets.values()) == 10


def test_a_scan_shows_nothing_of_what_came_after_it(scanned):
    """K3, N21: and everything that was acknowledged before."""
    opened = scanned.open()
    scanned.put([100, 101])
    scanned.table.delete([{"id": 0}])

    assert sorted(scanned.ids(opened.id)) == list(range(10))
    assert sorted(scanned.ids(scanned.open().id)) == [*range(1, 10), 100, 101]


def test_two_scans_do_not_know_each_other(scanned):
    """K5."""
    one, two = scanned.open(), scanned.open()

    first = scanned.call(one.id, page_bytes=1)
    assert len(scanned.ids(two.id)) == 10
    assert scanned.scans.end(two.id, ME)

    rest = scanned.pages(one.id, cursor="other", token=first.token)
    assert sorted(ids_of([first, *rest])) == list(range(10))


# --- time


def test_a_session_is_alive_at_its_ttl_and_gone_just_after(scanned):
    """S8, N11: exactly, and before anybody has looked after it: a late call does not revive it."""
    opened, other = scanned.open(), scanned.open()

    scanned.clock.advance(seconds=TTL)
    scanned.call(opened.id)
    scanned.clock.advance(ms=1)

    assert gone(scanned, other.id) == "ttl"
    assert scanned.counts.expired == 1
    scanned.call(opened.id)


def test_idle_sessions_are_given_up_without_a_call(scanned):
    """S8: their views go, and whoever comes late is told why."""
    opened = scanned.open()
    scanned.clock.advance(seconds=TTL, ms=1)

    scanned.engine.reap()

    assert (scanned.counts.open, scanned.counts.expired, scanned.views_open) == (0, 1, 0)
    assert gone(scanned, opened.id) == "ttl"


def test_looking_at_a_session_does_not_lengthen_its_life(scanned):
    """S3: neither does listing it, nor asking whose it is."""
    opened = scanned.open()
    scanned.clock.advance(seconds=TTL)

    scanned.sessions.listed()
    scanned.sessions.table_of(opened.id, ME)
    scanned.sessions.holders(next(iter(scanned.tablets)).bucket)
    scanned.clock.advance(ms=1)

    assert gone(scanned, opened.id) == "ttl"


def test_a_page_lengthens_the_life_of_its_session(scanned):
    """S4: so does joining it."""
    opened = scanned.open()
    for _ in range(3):
        scanned.clock.advance(seconds=TTL)
        scanned.call(opened.id, page_bytes=1)
        scanned.clock.advance(seconds=TTL)
        scanned.scans.join(opened.id, ME)

    assert scanned.counts.open == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"seq": 5},
        {"seq": 1, "cursor": "nobody"},
        {"token": "nonsense", "cursor": "new"},
        {"page_bytes": 0},
        {"page_bytes": -1},
        {"principal": "somebody"},
        {"only": ["nope"], "cursor": "new"},
    ],
    ids=str,
)
def test_calls_that_are_wrong_do_not_lengthen_the_life_of_a_session(scanned, wrong):
    """N11, N7: an orphan is not kept alive by whoever asks for nonsense."""
    opened = scanned.open()
    scanned.call(opened.id, page_bytes=1)
    scanned.clock.advance(seconds=TTL)

    with pytest.raises((InvalidArgument, UnknownOrExpiredScan)):
        scanned.call(opened.id, **{"page_bytes": 1} | wrong)
    scanned.clock.advance(ms=1)

    assert gone(scanned, opened.id) == "ttl"


def test_the_wall_clock_may_jump(scanned):
    """S8: life is measured by a clock that nobody sets."""
    opened = scanned.open()
    scanned.clock.jump(10**9)

    assert len(scanned.ids(opened.id)) == 10


def test_a_scan_may_name_its_own_ttl_within_bounds(scanned):
    opened = scanned.open(ttl_seconds=5.0)
    scanned.clock.advance(seconds=5, ms=1)
    assert gone(scanned, opened.id) == "ttl"

    for wrong in (0.0, -1.0, float("nan"), float("inf"), 86_401.0):
        with pytest.raises(InvalidArgument, match="ttl"):
            scanned.open(ttl_seconds=wrong)
    assert scanned.views_open == 0


def test_a_shared_scan_waits_longer_for_its_readers(scanned):
    opened = scanned.open(is_shared=True)
    scanned.clock.advance(seconds=600)
    assert len(scanned.ids(opened.id)) == 10

    scanned.clock.advance(seconds=600, ms=1)
    assert gone(scanned, opened.id) == "ttl"


# --- in use


def test_a_session_in_use_does_not_expire(scanned, paused, beside):
    """S5: in use means that a page is being made, however long that takes; its time begins anew afterwards."""
    opened = scanned.open()
    page = beside(scanned.call, opened.id)
    assert paused.inside.wait(SECONDS)

    scanned.clock.advance(seconds=10 * TTL)
    scanned.engine.reap()
    assert scanned.counts.open == 1
    paused.go_on.set()

    assert len(ids_of([page.result(SECONDS)])) == 10
    scanned.clock.advance(seconds=LINGER_SECONDS)
    scanned.call(opened.id)


@pytest.mark.parametrize("how", ["closed", "all"])
def test_the_end_of_a_session_waits_for_the_page_in_the_making(scanned, paused, beside, how):
    """S14, S15, N3, N15: its place is free at once, its views when the page is done. Upstream does not wait."""
    opened = scanned.open()
    page = beside(scanned.call, opened.id)
    assert paused.inside.wait(SECONDS)

    if how == "closed":
        assert scanned.scans.end(opened.id, ME)
    else:
        scanned.sessions.close()
    assert scanned.counts.open == 0
    assert scanned.views_open == 2
    paused.go_on.set()

    assert sorted(ids_of([page.result(SECONDS)])) == list(range(10))
    assert scanned.views_open == 0
    assert gone(scanned, opened.id) == ("closed" if how == "closed" else "revoked")


def test_a_tablet_that_is_fenced_while_a_page_is_made_ends_the_scan(scanned, paused, beside):
    """N15, V7: no crash; the page in the making fails, or is whole."""
    opened = scanned.open()
    page = beside(scanned.call, opened.id)
    assert paused.inside.wait(SECONDS)

    for tablet in scanned.tablets:
        tablet.fence(tablet.log.leader_epoch + 1)
    paused.go_on.set()

    with pytest.raises(UnknownOrExpiredScan, match="led at epoch") as error:
        page.result(SECONDS)
    assert error.value.reason == "revoked"
    assert scanned.views_open == 0


def test_of_many_calls_at_once_on_one_cursor_each_gets_the_same_page(scanned, beside):
    """S5, S6, N3: upstream lets one win and destroys the session; here the others wait, and the page is replayed."""
    opened = scanned.open()
    first = scanned.call(opened.id, 0, page_bytes=1)

    calls = [beside(scanned.call, opened.id, 1, page_bytes=1) for _ in range(16)]

    ((ids, token),) = {(*ids_of([page]), page.token) for page in (call.result(SECONDS) for call in calls)}
    assert [ids] != ids_of([first])
    rest = scanned.pages(opened.id, cursor="rest", token=token)
    assert len(ids_of(rest)) == 8


def test_many_readers_at_once_all_read_everything(scan_bench, beside):
    """N3: also beside the one quick pass."""
    bench = scan_bench(rows=500, buckets=3)
    opened = bench.open()

    found = [beside(bench.ids, opened.id, cursor=f"c{n}", page_bytes=2_000 + n) for n in range(16)]

    for each in found:
        assert sorted(each.result(SECONDS)) == list(range(500))


# --- the end


def test_a_session_that_was_read_to_its_end_lingers_and_takes_no_place(scanned):
    """V2, N1: upstream drops it with its last page; here that page can be asked for again for 10 s."""
    opened = scanned.open()
    (page,) = scanned.pages(opened.id)
    assert (scanned.counts.open, scanned.counts.views) == (0, 2)

    scanned.clock.advance(seconds=LINGER_SECONDS)
    assert ids_of([scanned.call(opened.id)]) == ids_of([page])
    scanned.clock.advance(seconds=LINGER_SECONDS, ms=1)

    assert gone(scanned, opened.id) == "closed"
    assert scanned.views_open == 0
    assert scanned.counts.expired == 0


def test_a_short_ttl_is_the_longest_that_a_read_session_lingers(scanned):
    opened = scanned.open(ttl_seconds=2.0)
    scanned.pages(opened.id)
    scanned.clock.advance(seconds=2, ms=1)

    assert gone(scanned, opened.id) == "closed"


def test_reading_some_buckets_to_their_end_is_not_the_end_of_a_scan(scanned):
    opened = scanned.open()

    some = scanned.ids(opened.id, only=["0"])

    assert scanned.counts.open == 1
    scanned.clock.advance(seconds=TTL)
    assert sorted(some + scanned.ids(opened.id, cursor="d", only=["1"])) == list(range(10))


def test_a_shared_scan_ends_with_none_of_its_readers(scanned):
    opened = scanned.open(is_shared=True)
    for n in range(3):
        assert len(scanned.ids(opened.id, cursor=f"c{n}")) == 10
        assert scanned.counts.open == 1


def test_ending_is_done_once_and_may_be_asked_for_again(scanned):
    """V3, V4, S2: the second time there is nothing to end, which is no error."""
    opened = scanned.open()

    assert [scanned.scans.end(opened.id, ME) for _ in range(3)] == [True, False, False]

    assert (scanned.counts.open, scanned.counts.views) == (0, 0)
    assert gone(scanned, opened.id) == "closed"


def test_a_scan_that_never_was_is_unknown(scanned):
    """V5: one error, with the reason, for all that is gone; upstream has two."""
    assert gone(scanned, "0" * 32) == "unknown"
    assert gone(scanned, "") == "unknown"
    assert not scanned.scans.end("0" * 32, ME)


def test_a_scan_of_somebody_else_is_unknown(scanned):
    """N9: nobody is told that it is there."""
    opened = scanned.open()

    assert gone(scanned, opened.id, "somebody") == "unknown"
    with pytest.raises(UnknownOrExpiredScan):
        scanned.scans.join(opened.id, "somebody")
    assert not scanned.scans.end(opened.id, "somebody")
    assert len(scanned.ids(opened.id)) == 10


def test_why_a_scan_ended_is_remembered_for_as_many_as_may_be(scanned, monkeypatch):
    """S12: so many are enough to tell those who come late; the oldest are forgotten first."""
    monkeypatch.setattr("kolk.engine.sessions._ENDED_MAX", 3)
    opened = [scanned.open().id for _ in range(5)]
    for scan in opened:
        scanned.scans.end(scan, ME)

    assert [gone(scanned, scan) for scan in opened] == ["unknown", "unknown", "closed", "closed", "closed"]


# --- taken back


def dropped(bench):
    bench.db.drop_table("web.t")


def fenced(bench):
    for tablet in bench.tablets:
        tablet.fence(tablet.log.leader_epoch + 1)


def stopped(bench):
    for tablet in bench.tablets:
        tablet.close()


@pytest.mark.parametrize("how", [dropped, fenced, stopped], ids=lambda how: how.__name__)
def test_a_tablet_takes_its_rows_back(scanned, how):
    """S11, S12, S13, R1, V6, V7: when it is dropped, closed or led by another; the scan is told why."""
    first, second = scanned.open(), scanned.open()
    scanned.call(first.id, page_bytes=1)

    how(scanned)

    assert scanned.views_open == 0
    assert (scanned.counts.open, scanned.counts.revoked) == (0, 2)
    for opened in (first, second):
        assert gone(scanned, opened.id) == "revoked"


@pytest.mark.parametrize("how", [dropped, fenced, stopped], ids=lambda how: how.__name__)
def test_a_reader_who_comes_before_anybody_noticed_is_told_the_same(scanned, how):
    """V6, V7, N12."""
    opened = scanned.open()

    how(scanned)

    assert gone(scanned, opened.id) == "revoked"
    assert scanned.counts.revoked == 1


def test_a_leader_that_is_not_followed_keeps_its_scans(scanned):
    """V7: the same epoch again, or an older one, is no news."""
    opened = scanned.open()

    for tablet in scanned.tablets:
        tablet.fence(tablet.log.leader_epoch)
        tablet.fence(-1)

    assert len(scanned.ids(opened.id)) == 10


def test_a_table_that_is_led_elsewhere_is_not_scanned(scanned):
    """N8: there is no follower to ask yet; a tablet that was fenced serves nobody."""
    fenced(scanned)

    with pytest.raises(Exception, match="led at epoch"):
        scanned.open()
    assert scanned.views_open == 0


def test_all_scans_end_with_the_database_which_can_be_opened_again(scanned):
    """S13, N13: nothing keeps RocksDB open, and after a restart nobody knows the scan."""
    one, two = scanned.open(), scanned.open(is_shared=True)
    scanned.call(one.id, page_bytes=1)

    scanned.reopen()

    assert gone(scanned, one.id) == "unknown"
    assert gone(scanned, two.id) == "unknown"
    assert scanned.counts.open == 0


def test_a_closed_database_says_so(scanned):
    opened = scanned.open()
    scanned.close()

    assert gone(scanned, opened.id) == "revoked"
    with pytest.raises(Closed):
        scanned.db.scans()
