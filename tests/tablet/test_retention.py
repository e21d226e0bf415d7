"""How far a log may be trimmed."""

from itertools import accumulate
from operator import and_

from hypothesis import given
from hypothesis import strategies as st

from kolk.storage.segment import Segment
from kolk.tablet.retention import Holder, HolderKind, bytes_from, log_floor, outlived

holders = st.lists(
    st.builds(
        Holder,
        kind=st.sampled_from(HolderKind),
        owner=st.just("somebody"),
        offset=st.integers(0, 100),
        expires_ms=st.none() | st.integers(0, 100),
    )
)


@given(holders, st.integers(0, 100))
def test_nothing_that_a_live_holder_needs_is_ever_below_the_floor(held, now_ms):
    for is_log_table in (True, False):
        floor = log_floor(is_log_table=is_log_table, end=100, holders=held, now_ms=now_ms)

        live = [holder for holder in held if holder.expires_ms is None or holder.expires_ms > now_ms]
        assert all(floor <= holder.offset for holder in live)


def test_a_primary_key_table_without_a_snapshot_keeps_its_whole_log():
    lease = Holder(kind=HolderKind.LEASE, owner="job", offset=50)

    assert log_floor(is_log_table=False, end=100, holders=[], now_ms=0) == 0
    assert log_floor(is_log_table=False, end=100, holders=[lease], now_ms=0) == 0


def test_a_snapshot_lets_the_log_below_it_go_unless_somebody_holds_it():
    snapshot = Holder(kind=HolderKind.SNAPSHOT, owner="snapshot 1", offset=80)
    follower = Holder(kind=HolderKind.FOLLOWER, owner="dashboard", offset=60, expires_ms=10)

    assert log_floor(is_log_table=False, end=100, holders=[snapshot, follower], now_ms=5) == 60
    assert log_floor(is_log_table=False, end=100, holders=[snapshot, follower], now_ms=10) == 80


def test_a_log_table_may_go_up_to_its_end():
    assert log_floor(is_log_table=True, end=100, holders=[], now_ms=0) == 100


def segments_of(shapes):
    """Segments one after the other, of so many rows and bytes each, a millisecond apart."""
    made, base = [], 0
    for place, (rows, size) in enumerate(shapes):
        made.append(Segment(base=base, end=base + rows, size=size, last_timestamp_ms=place))
        base += rows
    return made


shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99)), min_size=1, max_size=6)


@given(shapes, st.integers(0, 10), st.integers(1, 10))
def test_by_age_exactly_what_is_old_goes(shapes, now_ms, ttl_ms):
    segments = segments_of(shapes)

    below = outlived(segments, now_ms=now_ms, ttl_ms=ttl_ms, bytes_max=None)

    assert [segment.end <= below for segment in segments] == [
        segment.last_timestamp_ms <= now_ms - ttl_ms for segment in segments
    ]


@given(shapes, st.integers(0, 10), st.integers(1, 10), st.integers(0, 20))
def test_what_has_a_time_that_is_still_to_come_goes_once_it_is_known_for_so_long(shapes, now_ms, ttl_ms, known_ms):
    segments = segments_of(shapes)
    ahead = {segment: known_ms for segment in segments if segment.last_timestamp_ms > now_ms}

    below = outlived(segments, now_ms=now_ms, ttl_ms=ttl_ms, bytes_max=None, known_ms=ahead)

    old = [ahead.get(segment, now_ms - segment.last_timestamp_ms) >= ttl_ms for segment in segments]
    assert [segment.end <= below for segment in segments] == list(accumulate(old, and_))


@given(shapes, st.integers(1, 400))
def test_by_size_no_more_goes_than_must_and_the_last_segment_stays(shapes, bytes_max):
    segments = segments_of(shapes)

    below = outlived(segments, now_ms=0, ttl_ms=None, bytes_max=bytes_max)

    kept = [segment for segment in segments if segment.end > below]
    gone = [segment for segment in segments if segment.end <= below]
    assert kept
    assert len(kept) == 1 or sum(segment.size for segment in kept) <= bytes_max
    assert not gone or sum(segment.size for segment in [gone[-1], *kept]) > bytes_max


def test_a_holder_keeps_whole_segments():
    segments = segments_of([(10, 100), (10, 200), (10, 300)])

    assert bytes_from(segments, 0) == 600
    assert bytes_from(segments, 10) == 500
    assert bytes_from(segments, 19) == 500
    assert bytes_from(segments, 30) == 0
    assert bytes_from(segments, 5, below=20) == 300
