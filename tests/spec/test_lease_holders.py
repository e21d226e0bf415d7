"""Who holds a lease, and for how long: it is renewed, lost, joined and fenced."""

import gc
import threading
import weakref
from datetime import timedelta

import pytest
from tests.spec.kept import churn, pass_time, same_rows
from tests.spec.scanned import SCHEMA, ids, rows

import kolk
from kolk.errors import (
    LeaseExists,
    LeaseLost,
    SnapshotNotFound,
)

network_only = pytest.mark.parametrize("form", ["network"], indirect=True)
TTL = 600.0


def reason(ask):
    with pytest.raises(LeaseLost) as lost:
        ask()
    return lost.value.reason


# --- how long


def test_a_lease_is_renewed_in_the_background(small, table):
    lease = table.lease(ttl=TTL)
    for _ in range(5):
        pass_time(small, TTL / 2)
        assert lease._ticker.tick()

    assert not lease.is_lost
    assert len(small.db.leases()) == 1
    lease.close()


def test_the_background_keeps_to_the_time_that_was_named_last(small, table):
    """A lease whose time was made shorter is renewed more often."""
    lease = table.lease(ttl="1d")
    lease.renew("1m")
    for _ in range(5):
        pass_time(small, 30)
        assert lease._ticker.tick()

    assert len(small.db.leases()) == 1
    assert not lease.is_lost
    lease.close()


def test_a_renewal_answers_when_the_lease_expires(small, table):
    lease = table.lease(ttl=TTL)
    small.clock.advance(seconds=100)
    before = lease.state.expires

    lease.renew("20m")

    assert lease.state.ttl_seconds == 1_200
    assert lease.state.expires - before == timedelta(seconds=100 + 1_200 - TTL)
    lease.close()


def test_a_lease_that_is_not_renewed_is_lost_and_its_scan_goes_on(small, table):
    """Renew after expiry: an error, and never a new empty lease."""
    told = []
    lease = table.lease(ttl=TTL, on_lost=told.append)
    scan = table.scan(source=lease, ttl="1d")
    first = next(iter(scan)).to_pylist()

    pass_time(small, TTL)
    list(churn(table, times=4))

    assert small.db.leases() == []
    assert reason(lambda: table.scan(source=lease)) == "expired"
    assert lease.is_lost
    assert reason(lease.renew) == "expired"
    assert reason(lease.check) == "expired"
    lease.turn()
    assert [lost.reason for lost in told] == ["expired"]
    assert same_rows(first + scan.to_arrow().to_pylist(), rows(range(60)))
    assert small.db.leases() == []
    lease.close()


def test_the_background_tells_once_that_a_lease_is_lost(small, table):
    told = []
    lease = table.lease(ttl=TTL, on_lost=told.append)
    small.db.drop_lease(lease.id)

    for _ in range(3):
        small.clock.advance(seconds=TTL / 2)
        lease._ticker.tick()

    assert [lost.reason for lost in told] == ["dropped"]
    assert lease.is_lost
    lease.close()


def test_one_who_cannot_renew_for_its_time_has_lost_it(small, table, monkeypatch):
    """What the server thinks nobody knows; but nobody can promise any more that the snapshots are there."""
    told = []
    lease = table.lease(ttl=TTL, on_lost=told.append)

    def fail(*_):
        raise kolk.errors.Unreachable("no server")

    monkeypatch.setattr(type(lease._link.service), "renew_lease", fail)
    for _ in range(2):
        small.clock.advance(seconds=TTL / 3)
        lease.turn()
    assert not lease.is_lost
    small.clock.advance(seconds=TTL / 3)
    lease.turn()

    assert [lost.reason for lost in told] == ["expired"]
    monkeypatch.undo()
    lease.close()


def test_a_lease_that_is_forgotten_is_renewed_no_more(small, table):
    lease = table.lease(ttl=TTL)
    ticker, forgotten = lease._ticker, weakref.ref(lease)

    del lease
    gc.collect()

    assert forgotten() is None
    ticker._thread.join(10)
    assert not ticker._thread.is_alive()
    small.clock.advance(seconds=TTL / 2)
    assert not ticker.tick()
    pass_time(small, TTL / 2)
    assert small.db.leases() == []


def test_a_closed_lease_leaves_no_thread_behind(table):
    before = set(threading.enumerate())
    lease = table.lease()
    lease.renew("1m")
    lease.close()

    left = [thread for thread in set(threading.enumerate()) - before if thread.name == "kolk-lease"]
    for thread in left:
        thread.join(10)
    assert not any(thread.is_alive() for thread in left)


def test_a_lost_lease_may_be_closed_by_who_is_told(small, table):
    closed = []
    lease = table.lease(ttl=TTL, on_lost=lambda _: closed.append(lease.close()))
    small.db.drop_lease(lease.id)

    lease.turn()

    assert closed == [None]


def test_a_wall_clock_that_jumps_ends_no_lease(small, table):
    lease = table.lease(ttl=TTL)

    small.clock.jump(10 * 365 * 86_400_000)
    small.engine.reap()
    lease.renew()
    small.clock.jump(-20 * 365 * 86_400_000)
    small.engine.reap()

    lease.renew()
    assert len(small.db.leases()) == 1
    lease.close()


def test_after_a_restart_a_lease_has_a_third_of_its_time_at_least(small, table):
    lease = table.lease(ttl=TTL)
    state = lease.detach()
    pass_time(small, TTL - 1)
    small.reopen()

    small.clock.advance(seconds=TTL / 3 - 1)
    small.engine.reap()
    again = small.db.join_lease(state.id)

    table = small.db.table("t")
    assert again.offsets == {"t": dict(state.tables["t"].start)}
    assert ids(table.scan(source=again).to_arrow()) == list(range(60))
    again.detach()
    pass_time(small, TTL)
    assert reason(lambda: small.db.join_lease(state.id)) == "expired"


@network_only
def test_a_lease_lives_through_a_restart_of_the_server(small, table):
    """X4: testKvSnapshotLeaseAfterCoordinatorServerRestart; each call succeeds with the address of before."""
    lease = table.lease(lease_id="a")
    small.restart()
    lease.renew()
    lease.add(["t"])
    assert [each.id for each in small.db.leases()] == ["a"]
    assert ids(table.scan(source=lease).to_arrow()) == list(range(60))

    small.restart()
    lease.release("t", ["0"])
    assert lease.snapshots == {"t": {"1": 1, "2": 1}}

    small.restart()
    lease.close()
    assert small.db.leases() == []
    assert not lease.is_lost


# --- who holds it


def test_a_lease_is_joined_after_its_holder_died_and_the_old_one_is_fenced(small, table):
    told = []
    old = table.lease(ttl=TTL, lease_id="job", on_lost=told.append)
    table.put(rows([60]))

    new = small.connect().join_lease("job", "1h")

    assert new.offsets == old.offsets
    assert new.state.ttl_seconds == 3_600
    assert reason(old.renew) == "taken"
    assert old.is_lost
    assert [lost.reason for lost in told] == ["taken"]
    old.release("t")
    old.close()
    assert [each.id for each in small.db.leases()] == ["job"]
    assert ids(table.scan(source=new).to_arrow()) == list(range(60))
    new.renew()
    new.close()
    assert small.db.leases() == []


def test_one_who_was_fenced_sees_and_adds_nothing_in_its_name(small, table):
    """Two jobs sharing a lease id: what the other leases under it is not what this one knows."""
    old = table.lease(lease_id="job")
    new = small.db.join_lease("job")
    table.put(rows([60]))
    table.take_snapshot()
    new.add(["t"])
    assert ids(table.scan(source=new).to_arrow()) == list(range(61))

    assert reason(lambda: table.scan(source=old)) == "taken"

    other = small.db.create_table("u", SCHEMA)
    twin = small.db.join_lease("job")
    assert reason(lambda: new.add(["u"])) == "taken"
    assert new.is_lost
    with pytest.raises(SnapshotNotFound):
        other.scan(source=twin)
    twin.close()


def test_two_jobs_do_not_begin_the_same_lease(small, table):
    """Two jobs sharing a lease id: the second is told, and the first keeps what it has."""
    lease = table.lease(lease_id="job")

    with pytest.raises(LeaseExists, match="use another id, or join"):
        table.lease(lease_id="job")
    with pytest.raises(LeaseExists):
        small.connect().lease(["t"], lease_id="job")

    lease.renew()
    lease.close()
    table.lease(lease_id="job").close()


def test_an_old_holder_ends_nothing_of_a_lease_that_was_made_anew(small, table):
    old = table.lease(lease_id="job")
    small.db.drop_lease("job")
    new = table.lease(lease_id="job")

    old.release("t", ["0"])
    assert old.is_lost
    old.close()
    assert reason(lambda: old._link.service.renew_lease("job", old.state.generation)) == "taken"

    new.renew()
    assert new.snapshots["t"].keys() == {"0", "1", "2"}
    new.close()


def test_a_lease_that_is_gone_cannot_be_joined(small, table):
    assert reason(lambda: small.db.join_lease("nobody")) == "unknown"
    table.lease(lease_id="job").close()
    assert reason(lambda: small.db.join_lease("job")) == "dropped"


def test_a_detached_lease_stays_for_whoever_joins_it(small, table):
    lease = table.lease(ttl=TTL)
    state = lease.detach()

    lease.close()
    with lease:
        pass

    assert not lease._ticker.tick()
    with small.db.join_lease(state.id) as again:
        assert again.snapshots == {"t": dict(state.tables["t"].snapshots)}
    assert small.db.leases() == []


def test_an_acquisition_that_is_made_again_is_answered_alike(small, table):
    """The answer was lost; also of what did not exist."""
    table.take_snapshot()
    service, wanted = small.db._link.service, {table.info.id: {"0": 1, "1": 9}}
    first = service.acquire_lease("job", 5, wanted, TTL)
    list(churn(table, times=3))
    again = service.acquire_lease("job", 5, wanted, TTL)

    assert again.tables == first.tables
    assert again.unavailable == first.unavailable == {"t": {"1": 9}}
    assert again.generation == first.generation
    latest = service.acquire_lease("other", 5, {table.info.id: None}, TTL)
    list(churn(table, times=3))
    assert service.acquire_lease("other", 5, {table.info.id: None}, TTL).tables == latest.tables


def test_a_scan_with_a_lease_of_another_database_is_told(small, table, tmp_path):
    lease = table.lease()
    with kolk.connect(tmp_path / "other") as other:
        strange = other.create_table("t", SCHEMA)

        assert reason(lambda: strange.scan(source=lease)) == "unknown"
