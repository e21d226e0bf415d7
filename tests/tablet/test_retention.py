"""How far a log may be trimmed."""

from hypothesis import given
from hypothesis import strategies as st

from kolk.tablet.retention import Holder, HolderKind, log_floor

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
