"""Leases: snapshots that stay, with the log after them, for as long as somebody says that he needs them."""

import itertools
import threading
from datetime import timedelta

import pytest
from tests.spec.cut import SCHEMA as BY_DAY
from tests.spec.kept import churn, follow, numbers, pass_time, present, read_slowly, same_rows
from tests.spec.replica import by_key
from tests.spec.scanned import SCHEMA, ids, rows

from kolk.errors import (
    Closed,
    InvalidArgument,
    PartitionNotFound,
    SnapshotNotFound,
    TableNotFound,
)

TTL = 600.0


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


def test_a_lease_that_is_closed_can_be_closed_again_after_its_database(small, table):
    lease = table.lease()
    lease.close()
    small.db.close()
    lease.close()


def test_what_ends_the_block_of_a_lease_is_told_and_not_that_it_could_not_be_closed(small, table):
    def fail():
        small.db.close()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), table.lease():
        fail()


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


@pytest.mark.parametrize(("ttl", "shown"), [("8d", "8d"), (0.5, "500ms"), ("0s", "0d")])
def test_a_time_that_no_lease_lives_for_is_told_as_people_write_it(small, table, ttl, shown):
    with pytest.raises(InvalidArgument, match=f"a lease lives for 1s to 7d after it was last renewed, not {shown};"):
        table.lease(ttl=ttl)
