"""What no lease may be: of a strange id or time, of what there is not, one too many, or too large."""

import math
from datetime import timedelta

import pytest
from tests.spec.scanned import SCHEMA

import kolk
from kolk.errors import (
    InvalidArgument,
    InvalidName,
    KolkError,
    TableNotFound,
    TooLarge,
    TooManyLeases,
)

TTL = 600.0


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
