"""Who may take, lease, see and end snapshots and leases; and what no client sends, or only one that means harm."""

import math

import msgspec
import pytest
from tests.server.scan_wire import SCHEMA, Caller

from kolk.errors import (
    AlreadyExists,
    Corrupted,
    InvalidArgument,
    InvalidInput,
    KolkError,
    LeaseExists,
    LeaseLost,
    NotFound,
    PermissionDenied,
    SnapshotNotFound,
    TableNotFound,
    TooLarge,
)
from kolk.model.lease_state import LeaseState
from kolk.wire import keeping as k
from kolk.wire import messages as m

HOLDER = b"h" * 16
TTL = 600.0


@pytest.fixture
def guarded(wire):
    """Two who may read the table, one who may look after it, one who may only write, and one of another table."""
    owner = Caller(wire.connect(token=wire.token("owner", "*=all")))
    table = owner.db.create_table("a.t", SCHEMA, buckets=2)
    table.put([{"id": n, "v": "x"} for n in range(9)])
    owner.db.create_table("b.t", SCHEMA)
    grants = {"one": "read", "two": "read", "operator": "alter", "writer": "write", "looker": "describe"}
    tokens = {name: wire.token(name, f"a.*={grant}") for name, grant in grants.items()}
    tokens["stranger"] = wire.token("stranger", "b.*=all")
    callers = {name: Caller(wire.connect(token=token)) for name, token in tokens.items()}
    return table, callers | {"owner": owner}


def acquire(caller, table, id="job", snapshots=None, **more):
    wanted = [k.LeaseTable(table.info.id, snapshots)]
    call = k.AcquireLease(**{"lease": id, "holder": HOLDER, "ttl_seconds": TTL, "tables": wanted} | more)
    return m.as_record(caller.service._act(call), LeaseState)


def lost(ask):
    with pytest.raises(LeaseLost) as error:
        ask()
    return error.value.reason, str(error.value)


# --- who may


def test_who_may_not_read_a_table_may_not_lease_it(guarded):
    """X8: acquire without READ is refused, with READ it is not; who may not see the table is not told of it."""
    table, callers = guarded

    for name in ("writer", "operator", "looker"):
        with pytest.raises(PermissionDenied):
            acquire(callers[name], table)
    with pytest.raises(TableNotFound):
        acquire(callers["stranger"], table)
    assert callers["owner"].db.leases() == []

    assert acquire(callers["one"], table).tables["a.t"].snapshots == {"0": 1, "1": 1}


def test_one_table_that_may_not_be_read_fails_all_of_a_lease(guarded):
    """X8: before anything is kept."""
    table, callers = guarded
    other = callers["owner"].db.table("b.t")
    wanted = [k.LeaseTable(table.info.id), k.LeaseTable(other.info.id)]

    with pytest.raises(TableNotFound):
        callers["one"].service._act(k.AcquireLease(lease="job", holder=HOLDER, ttl_seconds=TTL, tables=wanted))

    assert callers["owner"].db.leases() == []
    assert {each.leases for each in table.take_snapshot()} == {0}


def test_releasing_is_for_the_owner_and_an_unknown_lease_is_released_by_anybody(guarded):
    """X9: what is nobody's, and what is somebody else's, changes nothing and tells nothing."""
    table, callers = guarded
    state = acquire(callers["one"], table)

    for name in ("two", "owner", "operator", "stranger"):
        service = callers[name].service
        assert service.release_lease("job", state.generation, {"a.t": None}) is None
        assert service.release_lease("nobody", 1, {"a.t": None}) is None

    assert callers["one"].db.describe_lease("job").tables["a.t"].snapshots == {"0": 1, "1": 1}
    left = callers["one"].service.release_lease("job", state.generation, {"a.t": ["0"]})
    assert left.tables["a.t"].snapshots == {"1": 1}


def test_a_lease_is_ended_by_its_owner_or_by_who_may_alter_all_its_tables(guarded):
    """X10: an unknown one needs nothing."""
    table, callers = guarded
    acquire(callers["one"], table)

    for name in ("two", "writer", "looker", "stranger"):
        assert not callers[name].db.drop_lease("job")
        assert not callers[name].db.drop_lease("nobody")
    assert callers["operator"].db.drop_lease("job")
    state = acquire(callers["one"], table)
    assert not callers["operator"].service.drop_lease("job", state.generation)
    assert callers["one"].db.drop_lease("job")
    both = callers["owner"].db.lease(["a.t", "b.t"])
    assert not callers["operator"].db.drop_lease(both.id)
    assert not callers["stranger"].db.drop_lease(both.id)
    assert callers["owner"].db.drop_lease(both.id)
    both.close()


def test_whoever_may_read_no_more_goes_on_with_nothing_but_lets_go(wire, guarded):
    """X10: after the grant was removed."""
    table, _ = guarded
    state = acquire(Caller(wire.connect(token=wire.token("job", "a.*=read"))), table)
    caller = Caller(wire.connect(token=wire.token("job", "b.*=read")))

    for ask in (
        lambda: caller.service.renew_lease("job", state.generation),
        lambda: caller.service.join_lease("job", 7),
        lambda: acquire(caller, table, generation=state.generation),
        lambda: caller.open(table, source="lease", lease="job"),
    ):
        with pytest.raises((PermissionDenied, TableNotFound)):
            ask()

    assert caller.service.release_lease("job", state.generation, {"a.t": ["0"]}) is not None
    assert caller.db.drop_lease("job")


def test_snapshots_are_taken_by_who_may_read_and_seen_by_who_may_see_the_table(guarded):
    """X11: the metadata needs DESCRIBE, and then what does not exist is not found."""
    table, callers = guarded

    for name in ("writer", "operator", "looker"):
        with pytest.raises(PermissionDenied):
            callers[name].service.take_snapshot(table.info.id)
    with pytest.raises(TableNotFound):
        callers["stranger"].service.take_snapshot(table.info.id)
    with pytest.raises(TableNotFound):
        callers["stranger"].service.snapshots(table.info.id)
    callers["one"].service.take_snapshot(table.info.id)
    for name in ("one", "writer", "operator", "looker"):
        assert len(callers[name].service.snapshots(table.info.id)) == 2
    with pytest.raises(SnapshotNotFound):
        acquire(callers["one"], table, snapshots={"0": 99})


def test_snapshots_are_scanned_by_who_may_read_the_table(guarded):
    table, callers = guarded
    table.take_snapshot()

    for name in ("writer", "operator", "looker"):
        with pytest.raises(PermissionDenied):
            callers[name].open(table, source="snapshot")
    with pytest.raises(TableNotFound):
        callers["stranger"].open(table, source="snapshot")
    assert sorted(callers["one"].open(table, source="snapshot")[1]) == list(range(9))


# --- whose it is


def test_a_lease_is_bound_to_who_began_it(guarded):
    """Nobody else goes on with it, or is told that it is there."""
    table, callers = guarded
    state = acquire(callers["one"], table)

    for name in ("two", "owner", "operator"):
        caller = callers[name]
        unknown = lost(lambda caller=caller: caller.service.renew_lease("nobody", 1))
        for ask in (
            lambda caller=caller: caller.service.renew_lease("job", state.generation),
            lambda caller=caller: caller.service.join_lease("job", 7),
        ):
            assert lost(ask) == (unknown[0], unknown[1].replace("nobody", "job"))
    for name in ("two", "owner"):
        caller = callers[name]
        assert lost(lambda caller=caller: caller.open(table, source="lease", lease="job"))[0] == "unknown"
        with pytest.raises(LeaseExists) as error:
            acquire(caller, table, generation=state.generation)
        assert "one" not in str(error.value).split()

    callers["one"].service.renew_lease("job", state.generation)


def test_why_a_lease_ended_is_told_to_its_owner_alone(wire, guarded):
    table, callers = guarded
    state = acquire(callers["one"], table)
    gone = acquire(callers["one"], table, "gone")
    callers["one"].db.drop_lease("gone")
    wire.clock.advance(seconds=TTL)
    wire.engine.reap()

    for name in ("two", "stranger", "owner"):
        service = callers[name].service
        for id, generation in (("job", state.generation), ("gone", gone.generation)):
            assert lost(lambda: service.renew_lease(id, generation))[0] == "unknown"  # noqa: B023
            assert lost(lambda: service.join_lease(id, 5))[0] == "unknown"  # noqa: B023
            assert lost(lambda: service.lease(id))[0] == "unknown"  # noqa: B023
    assert lost(lambda: callers["one"].service.renew_lease("job", state.generation))[0] == "expired"
    assert lost(lambda: callers["one"].service.lease("gone"))[0] == "dropped"


def test_another_connection_of_the_same_principal_goes_on(wire, guarded):
    table, _ = guarded
    token = wire.token("job", "a.*=read")
    first, second = Caller(wire.connect(token=token)), Caller(wire.connect(token=token))
    state = acquire(first, table)

    second.service.renew_lease("job", state.generation)
    record, rows = second.open(table, source="lease", lease="job", generation=state.generation)

    assert sorted(rows) == list(range(9))
    assert record.pins == {"0": 1, "1": 1}


def test_leases_show_to_their_owners_and_to_those_who_see_all_their_tables(guarded):
    table, callers = guarded
    acquire(callers["one"], table)
    both = callers["owner"].db.lease(["a.t", "b.t"], lease_id="both")

    seen = {name: [each.id for each in caller.db.leases()] for name, caller in callers.items()}

    assert seen.pop("stranger") == []
    assert sorted(seen.pop("owner")) == ["both", "job"]
    assert set(map(tuple, seen.values())) == {("job",)}
    assert callers["two"].db.describe_lease("job").principal == "one"
    for name in ("two", "stranger"):
        assert lost(lambda name=name: callers[name].db.describe_lease("both"))[0] == "unknown"
    both.close()


def test_a_table_that_is_dropped_takes_nothing_from_the_list_of_leases(guarded):
    table, callers = guarded
    both = callers["owner"].db.lease(["a.t", "b.t"], lease_id="both")
    acquire(callers["one"], table)

    callers["owner"].db.drop_table("a.t")

    assert [each.id for each in callers["stranger"].db.leases()] == ["both"]
    assert callers["stranger"].db.drop_lease("both")
    both.close()
    assert callers["one"].db.leases() == []


def test_a_lease_that_cannot_be_read_shows_to_and_is_ended_by_who_may_do_that_with_everything(wired, tmp_path):
    wire = wired()
    owner = Caller(wire.connect(token=wire.token("owner", "*=all")))
    table = owner.db.create_table("a.t", SCHEMA)
    owner.db.create_table("b.t", SCHEMA)
    acquire(owner, table)
    wire.engine._leases._book._freeze("bad", "for this test")
    partly = Caller(wire.connect(token=wire.token("partly", "a.*=all")))
    looker = Caller(wire.connect(token=wire.token("looker", "*=describe")))

    assert [each.id for each in partly.db.leases()] == ["job"]
    assert [each.id for each in looker.db.leases()] == ["job", "bad"]
    assert not partly.db.drop_lease("bad")
    assert not looker.db.drop_lease("bad")
    for caller in (partly, looker, owner):
        with pytest.raises(Corrupted):
            caller.service.join_lease("bad", 5)
    assert owner.db.drop_lease("bad")
    assert not owner.db.drop_lease("bad")


# --- what means harm


def test_a_table_that_is_named_twice_keeps_nothing_for_ever(guarded):
    table, callers = guarded
    wanted = [k.LeaseTable(table.info.id), k.LeaseTable(table.info.id, {"0": 1})]

    with pytest.raises(InvalidArgument, match="named twice"):
        callers["one"].service._act(k.AcquireLease(lease="job", holder=HOLDER, ttl_seconds=TTL, tables=wanted))

    assert {each.leases for each in table.take_snapshot()} == {0}


HOSTILE = [
    {"op": "acquire_lease", "lease": "a", "holder": b"h", "ttl_seconds": 5.0, "tables": []},
    {"op": "acquire_lease", "lease": "a", "holder": HOLDER, "ttl_seconds": "soon", "tables": []},
    {"op": "acquire_lease", "lease": "a" * 129, "holder": HOLDER, "ttl_seconds": 5.0, "tables": []},
    {"op": "acquire_lease", "lease": "a", "holder": HOLDER, "ttl_seconds": 5.0, "tables": [{"table": -1}]},
    {"op": "acquire_lease", "lease": "a", "holder": HOLDER, "ttl_seconds": 5.0, "tables": {"table": 1}},
    {"op": "acquire_lease", "lease": "a", "holder": HOLDER, "ttl_seconds": 5.0, "tables": [{"table": 1}] * 10_001},
    {
        "op": "acquire_lease",
        "lease": "a",
        "holder": HOLDER,
        "ttl_seconds": 5.0,
        "tables": [{"table": 1, "snapshots": {str(n): 1 for n in range(20_001)}}],
    },
    {
        "op": "acquire_lease",
        "lease": "a",
        "holder": HOLDER,
        "ttl_seconds": 5.0,
        "tables": [{"table": 1, "snapshots": {"0": -1}}],
    },
    {
        "op": "acquire_lease",
        "lease": "a",
        "holder": HOLDER,
        "ttl_seconds": 5.0,
        "tables": [{"table": 1, "snapshots": {"0": 2**63}}],
    },
    {"op": "acquire_lease", "lease": "a", "holder": HOLDER, "ttl_seconds": 5.0, "tables": [], "generation": -1},
    {"op": "renew_lease", "lease": "a"},
    {"op": "renew_lease", "lease": "a", "generation": 2**63},
    {"op": "renew_lease", "lease": 5, "generation": 1},
    {"op": "join_lease", "lease": "a", "holder": b""},
    {"op": "release_lease", "lease": "a", "generation": 1, "buckets": {str(n): None for n in range(10_001)}},
    {"op": "release_lease", "lease": "a", "generation": 1, "buckets": {"t": ["0"] * 20_001}},
    {"op": "release_lease", "lease": "a", "generation": 1, "buckets": {"t": 5}},
    {"op": "drop_lease", "lease": None},
    {"op": "drop_lease", "lease": "a", "generation": "x"},
    {"op": "lease"},
    {"op": "take_snapshot", "table": "t"},
    {"op": "snapshots", "table": -5},
]


@pytest.mark.parametrize("message", HOSTILE, ids=lambda message: str(message)[:60])
def test_what_is_illegal_is_not_even_a_message(message):
    with pytest.raises(InvalidArgument):
        m.decode_action(msgspec.msgpack.encode(message))


@pytest.mark.parametrize("field", [{"pins": {"0": -1}}, {"position": -1}, {"generation": -1}, {"lease": "x" * 129}])
def test_a_scan_of_what_cannot_be_is_not_even_a_message(field):
    given = {"op": "open_scan", "table": 1, "page_bytes": 1} | field

    with pytest.raises(InvalidArgument):
        m.decode_call(msgspec.msgpack.encode(given))


def test_messages_that_make_no_sense_are_answered_by_name_and_leave_nothing(wire, guarded):
    """Whatever the numbers: an error that says what is wrong, and no pin that stays."""
    table, callers = guarded
    table.take_snapshot()
    one, number = callers["one"], table.info.id
    most = 2**63 - 1
    asked = [
        k.AcquireLease(lease=id, holder=HOLDER, ttl_seconds=ttl, tables=tables, generation=generation)
        for id, ttl, tables, generation in [
            ("", TTL, [k.LeaseTable(number)], 0),
            ("../../etc", TTL, [k.LeaseTable(number)], 0),
            ("a\x00b", TTL, [k.LeaseTable(number)], 0),
            ("a", math.nan, [k.LeaseTable(number)], 0),
            ("a", math.inf, [k.LeaseTable(number)], 0),
            ("a", -1e308, [k.LeaseTable(number)], 0),
            ("a", 1e308, [k.LeaseTable(number)], 0),
            ("a", TTL, [], 0),
            ("a", TTL, [k.LeaseTable(most)], 0),
            ("a", TTL, [k.LeaseTable(number, {})], 0),
            ("a", TTL, [k.LeaseTable(number, {"0": most})], 0),
            ("a", TTL, [k.LeaseTable(number, {"x" * 10_000: 1})], 0),
            ("a", TTL, [k.LeaseTable(number, {"9" * 5_000: 1})], 0),
            ("a", TTL, [k.LeaseTable(number, {f"day={n}/0": 1 for n in range(9)})], 0),
            ("a", TTL, [k.LeaseTable(number)], most),
        ]
    ]
    asked += [
        k.JoinLease(lease="", holder=HOLDER),
        k.JoinLease(lease="a", holder=HOLDER, ttl_seconds=math.nan),
        k.RenewLease(lease="a", generation=most, ttl_seconds=-math.inf),
        k.GetLease(lease="\ud7ff" * 100),
        k.TakeSnapshot(table=most),
        k.ListSnapshots(table=most),
    ]
    expected = (InvalidInput, NotFound, AlreadyExists)
    for action in asked:
        with pytest.raises(KolkError) as error:
            one.service._act(action)
        assert isinstance(error.value, expected), (action, error.value)
        assert len(str(error.value)) < 1_000
    for action in (
        k.ReleaseLease(lease="a", generation=most, buckets={"x" * 1_000: ["y" * 1_000]}),
        k.DropLease(lease="\x00", generation=most),
        k.DropLease(lease="\x00"),
    ):
        assert not one.service._act(action)

    assert wire.engine.leases() == []
    assert {each.leases for each in table.take_snapshot()} == {0}


def test_scans_of_what_makes_no_sense_are_answered_by_name(guarded):
    table, callers = guarded
    table.take_snapshot()
    one, most = callers["one"], 2**63 - 1
    for request in (
        {"source": "soon"},
        {"source": "lease"},
        {"source": "lease", "lease": "nobody", "generation": most},
        {"source": "snapshot", "pins": {"0": most}},
        {"source": "snapshot", "pins": {"77": 1}},
        {"source": "snapshot", "pins": {"day=1/0": 1}},
        {"source": "snapshot", "pins": {"0": 1}, "buckets": ["1"]},
        {"source": "snapshot", "pins": {}, "buckets": ["0"]},
        {"source": "snapshot", "ttl_seconds": math.nan},
        {"source": "snapshot", "resume": "garbage"},
    ):
        with pytest.raises((InvalidInput, NotFound)):
            one.open(table, **request)
    # What is not partitioned has no record of partitions; whoever names a place there means nothing by it.
    assert one.open(table, source="snapshot", pins={"0": 1, "1": 1}, position=most)[0].pins == {"0": 1, "1": 1}
    assert {each.leases for each in table.take_snapshot()} == {0}


def test_a_lease_of_very_many_buckets_that_do_not_exist_is_refused_at_once(guarded):
    table, callers = guarded

    with pytest.raises((InvalidArgument, TooLarge)):
        acquire(callers["one"], table, snapshots={str(n): 1 for n in range(20_000)})


def test_the_protocol_is_one_above_the_last_that_was_released():
    assert m.PROTOCOL == 6
