"""Leases: snapshots that stay, with the log after them, for as long as somebody says that he needs them."""

import gc
import itertools
import math
import threading
import weakref
from datetime import timedelta

import pytest
from tests.spec.cut import SCHEMA as BY_DAY
from tests.spec.kept import follow, numbers, present, read_slowly, same_rows
from tests.spec.replica import by_key
from tests.spec.scanned import SCHEMA, ids, rows

import kolk
from kolk.errors import (
    Closed,
    InvalidArgument,
    InvalidName,
    KolkError,
    LeaseExists,
    LeaseLost,
    PartitionNotFound,
    SnapshotNotFound,
    TableNotFound,
    TooLarge,
    TooManyLeases,
)

network_only = pytest.mark.parametrize("form", ["network"], indirect=True)
TTL = 600.0


@pytest.fixture
def table(small):
    made = small.db.create_table("t", SCHEMA, buckets=3)
    made.put(rows(range(60)))
    return made


def churn(table, *, times=20):
    """Rows come, change and go, and with each time there is a snapshot more."""
    for turn in range(times):
        table.put(rows(range(turn, 60, 7), n=turn + 1))
        table.delete([turn, 59 - turn])
        table.put(rows([1_000 + turn]))
        table.take_snapshot()
        yield turn


def pass_time(small, seconds):
    """Let time go by, and the server notice."""
    small.clock.advance(seconds=seconds)
    small.engine.reap()


def reason(ask):
    with pytest.raises(LeaseLost) as lost:
        ask()
    return lost.value.reason


# --- what a lease keeps


@pytest.mark.usefixtures("by_pages")
def test_a_lease_shows_its_state_while_twenty_newer_snapshots_come_and_go(small, table):
    with table.lease() as lease:
        assert lease.consistent
        found = read_slowly(table.scan(source=lease), churn(table, times=20))
        list(churn(table, times=1))

        assert same_rows(found, rows(range(60)))
        assert same_rows(table.scan(source=lease).to_arrow().to_pylist(), rows(range(60)))
        assert follow(table, found, lease.offsets["t"]) == present(table)
        assert table.scan(source=lease).offsets == lease.offsets["t"]
    pass_time(small, 120)
    assert all(len(kept) == 2 for kept in numbers(table).values()), numbers(table)


def test_a_lease_takes_a_snapshot_where_there_is_none(small, table):
    with table.lease() as lease:
        assert lease.snapshots == {"t": {"0": 1, "1": 1, "2": 1}}
        assert lease.unavailable == {}
        assert ids(table.scan(source=lease).to_arrow()) == list(range(60))
    assert small.db.leases() == []


def test_a_lease_is_of_the_newest_snapshots_and_does_not_take_new_ones(table):
    table.take_snapshot()
    table.put(rows([60]))

    with table.lease() as lease:
        assert ids(table.scan(source=lease).to_arrow()) == list(range(60))


def test_two_leases_keep_what_each_of_them_began_with(small, table):
    """X1: testKvSnapshotLease."""
    one = table.lease(lease_id="one")
    table.put(rows(range(60), n=1))
    table.take_snapshot()
    two = table.lease(lease_id="two")
    list(churn(table, times=4))

    assert numbers(table) == {name: [1, 2, 5, 6] for name in "012"}
    assert set(table.scan(source=one).to_arrow()["n"].to_pylist()) == {0}
    assert set(table.scan(source=two).to_arrow()["n"].to_pylist()) == {1}

    one.release("t", ["0"])
    assert one.snapshots == {"t": {"1": 1, "2": 1}}
    assert set(one.offsets["t"]) == {"1", "2"}
    pass_time(small, 120)
    assert numbers(table)["0"] == [2, 5, 6]
    one.release("t", ["1", "2"])
    assert [each.id for each in small.db.leases()] == ["two"]
    two.close()
    pass_time(small, 120)
    assert numbers(table) == {name: [5, 6] for name in "012"}
    assert not small.db.drop_lease("nobody")


def test_snapshots_of_a_bucket_that_rests_go_when_their_lease_ends(small, table):
    """Idle-bucket reclaim: nobody writes, and nothing new is taken."""
    lease = table.lease()
    list(churn(table, times=3))
    assert all(1 in kept for kept in numbers(table).values())

    lease.close()

    assert numbers(table) == {name: [3, 4] for name in "012"}


def test_snapshots_of_a_bucket_that_rests_go_when_their_lease_expires(small, table):
    """Idle-bucket reclaim, of a holder who is gone."""
    table.lease(ttl=TTL).detach()
    list(churn(table, times=3))

    pass_time(small, TTL)

    assert numbers(table) == {name: [3, 4] for name in "012"}


def test_what_a_crash_left_of_an_ended_lease_goes_without_a_new_snapshot(small, table):
    """Idle-bucket reclaim: the lease was ended, and the process with it, before its snapshots were removed."""
    lease = table.lease()
    list(churn(table, times=3))
    small.engine._snapshots.freeze()
    lease.close()
    assert numbers(table) == {name: [1, 3, 4] for name in "012"}
    small.reopen()

    small.engine.reap()

    assert numbers(small.db.table("t")) == {name: [3, 4] for name in "012"}


def test_named_snapshots_are_leased_and_those_that_do_not_exist_come_back(table):
    """L6: registerWithNotExistSnapshotId, and it is said so."""
    table.take_snapshot()

    with table.lease(snapshots={"0": 1, "1": 7, "2": 2**63 - 1}) as lease:
        assert lease.snapshots == {"t": {"0": 1}}
        assert lease.unavailable == {"t": {"1": 7, "2": 2**63 - 1}}
        with pytest.raises(SnapshotNotFound, match="bucket 1"):
            table.scan(source=lease, buckets=["1"])
        assert table.scan(source=lease).offsets.keys() == {"0"}


def test_a_lease_of_nothing_that_exists_is_none(small, table):
    """L6: a lease that would keep nothing is not begun."""
    with pytest.raises(SnapshotNotFound, match="ask for the latest"):
        table.lease(snapshots={"0": 1})

    assert small.db.leases() == []


def test_a_lease_may_keep_several_tables(small, table):
    other = small.db.create_table("u", SCHEMA)
    other.put(rows(range(5)))

    with small.db.lease(["t", "u"]) as lease:
        other.put(rows(range(5), n=3))
        assert ids(other.scan(source=lease).to_arrow()) == list(range(5))
        assert set(lease.offsets) == {"t", "u"}
        lease.release("t")
        with pytest.raises(SnapshotNotFound, match="keeps nothing of t"):
            table.scan(source=lease)
        assert set(other.scan(source=lease).to_arrow()["n"].to_pylist()) == {0}


def test_tables_are_added_to_a_lease(small, table):
    other = small.db.create_table("u", SCHEMA)

    with table.lease() as lease:
        lease.add(["u"])
        lease.add({"t": {"0": 1}})

        assert lease.snapshots == {"t": {"0": 1, "1": 1, "2": 1}, "u": {"0": 1}}
        assert other.scan(source=lease).offsets == {"0": 0}
        assert small.db.describe_lease(lease.id).tables.keys() == {"t", "u"}


def test_releasing_what_is_not_kept_changes_nothing(small, table):
    with table.lease() as lease:
        lease.release("t", ["0"])
        lease.release("t", ["0"])
        lease.release("t", ["77", "day=1/0"])
        lease.release("nothing")

        assert lease.snapshots == {"t": {"1": 1, "2": 1}}
        lease.release("t")
        assert small.db.leases() == []
        lease.release("t")
        with pytest.raises(Closed):
            table.scan(source=lease)


def test_closing_a_lease_twice_is_closing_it_once(small, table):
    lease = table.lease()
    lease.close()
    lease.close()

    assert small.db.leases() == []
    with pytest.raises(Closed):
        lease.renew()
    assert not lease.is_lost


def test_leases_are_listed_with_what_they_keep(small, table):
    lease = table.lease(ttl="10m", lease_id="a")
    small.clock.advance(seconds=60)
    table.lease(ttl="1h", lease_id="b").detach()

    first, second = small.db.leases()

    assert (first.id, first.ttl_seconds, first.pins, first.tables) == ("a", TTL, 3, ("t",))
    assert second.expires - second.created == timedelta(hours=1)
    assert second.created - first.created == timedelta(seconds=60)
    assert first.pinned_bytes == sum(each.size_bytes for each in table.snapshots()) > 0
    assert first.is_readable
    assert {each.leases for each in table.snapshots()} == {2}
    assert small.db.describe_lease("a").tables["t"].snapshots == lease.snapshots["t"]
    lease.close()


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


# --- what is refused


def test_a_lease_id_that_is_none_is_refused(small, table):
    for id in ("", " a", "a/b", "../x", "a" * 129, "é", "-a", "a\n", 5, b"a"):
        with pytest.raises(InvalidArgument, match="lease id is"):
            table.lease(lease_id=id)
        with pytest.raises(InvalidArgument, match="lease id is"):
            small.db.join_lease(id)


def test_lease_ids_are_words(table):
    for id in ("a", "A.b_c:d-e", "9", "x" * 128):
        with table.lease(lease_id=id) as lease:
            assert lease.id == id


def test_a_time_that_makes_no_sense_is_refused(small, table):
    senseless = (0, -1, 0.5, "0s", "999ms", "8d", 1e12, 1e308, math.nan, math.inf, -math.inf, "soon", True, [5])
    for ttl in (*senseless, None):
        with pytest.raises(InvalidArgument):
            table.lease(ttl=ttl)
    assert small.db.leases() == []
    with table.lease() as lease:
        for ttl in senseless:
            with pytest.raises(InvalidArgument):
                lease.renew(ttl)
            with pytest.raises(InvalidArgument):
                small.db.join_lease(lease.id, ttl)
        lease.renew()
        assert not lease.is_lost


def test_a_time_that_no_client_sends_is_refused_all_the_same(small, table):
    service = small.db._link.service
    with table.lease(lease_id="a") as lease:
        for seconds in (math.nan, math.inf, -math.inf, -1.0, 1e300):
            with pytest.raises(InvalidArgument):
                service.acquire_lease("b", 1, {table.info.id: None}, seconds)
            with pytest.raises(InvalidArgument):
                service.renew_lease("a", lease.state.generation, seconds)
            with pytest.raises(InvalidArgument):
                service.join_lease("a", 1, seconds)
        lease.renew()


def test_times_from_a_second_to_a_week_are_fine(table):
    for ttl in (1, "1s", 1.5, timedelta(days=7), "7d"):
        with table.lease(ttl=ttl) as lease:
            lease.renew()


def test_a_bucket_that_there_is_not_is_refused(small, table):
    with table.lease(lease_id="a") as lease:
        for bucket in ("3", "-1", "01", "x", "", "0/0", "9" * 30):
            with pytest.raises(InvalidArgument, match="no bucket"):
                table.lease(snapshots={bucket: 1})
            with pytest.raises(InvalidArgument, match="no bucket"):
                lease.add({"t": {bucket: 1}})
        assert [each.id for each in small.db.leases()] == ["a"]


def test_a_lease_asks_for_something(small, table):
    with pytest.raises(InvalidArgument, match="at least one"):
        small.db.lease([])
    with pytest.raises(InvalidArgument, match="at least one"):
        table.lease(snapshots={})
    with pytest.raises((InvalidArgument, KolkError)):
        table.lease(snapshots={"0": -1})


def test_tables_that_are_not_there_are_not_leased(small, table):
    with pytest.raises(TableNotFound):
        small.db.lease(["t", "nothing"])
    with pytest.raises((InvalidName, InvalidArgument)):
        small.db.lease(["a b"])
    small.db.create_table("l", kolk.Schema([kolk.Column("n", "int")]))
    with pytest.raises(InvalidArgument, match="log table"):
        small.db.lease(["t", "l"])
    with table.lease() as lease, pytest.raises(InvalidArgument, match="log table"):
        lease.add(["l"])
    assert small.db.leases() == []


def test_a_log_table_is_neither_leased_nor_released(small):
    """X5: testKvSnapshotLeaseForLogTable; what a lease never kept it lets go of without a word."""
    table = small.db.create_table("l", kolk.Schema([kolk.Column("n", "int")]))
    keyed = small.db.create_table("t", SCHEMA)

    with pytest.raises(InvalidArgument, match="log table"):
        table.lease()
    with keyed.lease() as lease:
        lease.release("l")
        with pytest.raises(InvalidArgument, match="log table"):
            table.scan(source=lease)


def test_there_are_only_so_many_leases(bench):
    small = bench(leases_max=2)
    table = small.db.create_table("t", SCHEMA)
    kept = [table.lease(ttl=TTL), table.lease(ttl=TTL)]

    with pytest.raises(TooManyLeases, match="leases_max"):
        table.lease()
    kept[0].close()

    kept[0] = table.lease(ttl=TTL)
    for each in kept:
        each.detach()
    small.clock.advance(seconds=TTL)
    table.lease().close()


def test_a_lease_keeps_only_so_much(bench):
    small = bench(lease_pins_max=2)
    table = small.db.create_table("t", SCHEMA, buckets=3)
    table.take_snapshot()

    with pytest.raises(TooLarge, match="lease_pins_max"):
        table.lease()
    with table.lease(snapshots={"0": 1, "1": 1}) as lease, pytest.raises(TooLarge):
        lease.add(["t"])
    assert {each.leases for each in table.snapshots()} == {0}


# --- tables and partitions that go


def test_a_table_that_is_dropped_leaves_its_leases_and_release_still_succeeds(small, table):
    """Drop table with live lease."""
    other = small.db.create_table("u", SCHEMA)
    other.put(rows(range(5)))
    lease = small.db.lease(["t", "u"])
    alone = table.lease(lease_id="alone")

    small.db.drop_table("t")

    assert [(each.id, each.tables) for each in small.db.leases()] == [(lease.id, ("u",))]
    lease.release("t")
    lease.release("t", ["0"])
    alone.release("t")
    alone.close()
    lease.renew()
    assert lease.snapshots.keys() == {"u"}
    with pytest.raises(TableNotFound):
        table.scan(source=lease)
    small.db.create_table("t", SCHEMA)
    with pytest.raises(SnapshotNotFound):
        small.db.table("t").scan(source=lease)
    lease.close()


def test_a_partition_that_is_dropped_leaves_its_leases_and_release_still_succeeds(small):
    """Drop partition with live lease; and made anew it is another one, which comes through the changelog."""
    days = small.db.create_table("d", BY_DAY, buckets=2, partition_by=["day"])
    days.put([{"day": str(day), "key": key, "value": 0} for day in range(3) for key in range(9)])
    lease = days.lease()
    assert lease.consistent

    days.drop_partition(day="1")
    days.put([{"day": day, "key": 1, "value": 7} for day in "129"])
    days.take_snapshot()

    lease.renew()
    assert lease.snapshots["d"].keys() == {"day=0/0", "day=0/1", "day=2/0", "day=2/1"}
    shown = days.scan(source=lease).to_arrow().to_pylist()
    assert {(row["day"], row["value"]) for row in shown} == {("0", 0), ("2", 0)}
    lost = [{"day": "1", "key": key, "value": 0} for key in range(9)]
    assert follow(days, shown + lost, lease.offsets["d"]) == present(days)
    with pytest.raises(SnapshotNotFound):
        days.scan(source=lease, buckets=["day=1/0"])
    lease.release("d", ["day=1/0", "day=0/0"])
    assert lease.snapshots["d"].keys() == {"day=0/1", "day=2/0", "day=2/1"}
    lease.close()


def test_where_chooses_among_the_partitions_of_a_lease(small):
    days = small.db.create_table("d", BY_DAY, partition_by=["day"])
    days.put([{"day": str(day), "key": 1, "value": day} for day in range(4)])
    with days.lease() as lease:
        scan = days.scan(source=lease, where="day >= '2'")

        assert sorted(scan.to_arrow()["value"].to_pylist()) == [2, 3]
        assert {name for name in scan.offsets if "=" in name} == {"day=2/0", "day=3/0"}


def test_a_table_without_partitions_says_that_there_is_nothing_to_lease(small):
    small.db.create_table("d", BY_DAY, partition_by=["day"])
    small.db.create_table("t", SCHEMA)

    for tables in (["d"], ["t", "d"]):
        with pytest.raises(InvalidArgument, match="d has no partitions yet"):
            small.db.lease(tables)
    with pytest.raises(PartitionNotFound):
        small.db.table("d").lease(snapshots={"day=1/0": 1})
    assert {each.leases for each in small.db.table("t").snapshots()} == {0}


def test_a_partition_that_went_takes_no_consistency_from_the_others(small):
    days = small.db.create_table("d", BY_DAY, buckets=2, partition_by=["day"])
    days.put([{"day": str(day), "key": key, "value": 0} for day in range(3) for key in range(9)])
    days.take_snapshot()
    days.drop_partition(day="1")

    with days.lease() as lease:
        assert lease.consistent
        assert days.scan(source=lease).consistent


def test_buckets_of_several_moments_are_said_to_be_so(table):
    table.take_snapshot()
    changed = next(iter(table.put(rows([0], n=1)).offsets))
    table.take_snapshot()

    mixed = {name: 1 for name in "012"}
    with table.lease(snapshots=mixed) as lease:
        assert not lease.consistent
        assert not table.scan(source=lease).consistent
    with table.lease(snapshots=mixed | {changed: 2}) as lease:
        assert lease.consistent
    with table.lease() as lease:
        assert lease.consistent


def test_what_is_truncated_is_still_leased(table):
    with table.lease() as lease:
        table.truncate()
        table.put(rows([3]))
        found = table.scan(source=lease).to_arrow().to_pylist()

        assert same_rows(found, rows(range(60)))
        assert follow(table, found, lease.offsets["t"]) == by_key(table, rows([3]))


# --- many at once


def test_many_leases_come_and_go_side_by_side(small, table):
    """X7: testConcurrentKvSnapshotLeaseOperations."""
    table.take_snapshot()
    wrong = []

    def live(number):
        try:
            for turn in range(5):
                lease = table.lease(lease_id=f"{number}.{turn}")
                for _ in range(3):
                    lease.renew()
                lease.release("t", ["0"])
                lease.close()
        except BaseException as error:  # noqa: BLE001 - raised by the test
            wrong.append(error)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for turn in itertools.count():
        table.put(rows([turn % 60], n=turn))
        table.take_snapshot()
        if not any(thread.is_alive() for thread in threads):
            break

    assert wrong == []
    assert small.db.leases() == []
    assert {each.leases for each in table.snapshots()} == {0}
    assert len(present(table)) == 60
