"""Who may scan, read on, see and end scans: sessions belong to who opened them."""

import pytest
from tests.server.scan_wire import SCHEMA, SECONDS, SMALL, Caller, gone

from kolk.errors import PermissionDenied, TableNotFound
from kolk.wire import messages as m


@pytest.fixture
def guarded(wire):
    """Two who may read the table, one who may look after it, and one who may see another table only."""
    owner = Caller(wire.connect(token=wire.token("owner", "*=all")))
    table = owner.db.create_table("a.t", SCHEMA)
    table.put([{"id": n, "v": "x"} for n in range(3)])
    owner.db.create_table("b.t", SCHEMA)
    grants = {"one": "read", "two": "read", "operator": "alter", "writer": "write"}
    tokens = {name: wire.token(name, f"a.*={grant}") for name, grant in grants.items()}
    tokens["stranger"] = wire.token("stranger", "b.*=all")
    callers = {name: Caller(wire.connect(token=token)) for name, token in tokens.items()}
    return table, callers | {"owner": owner}


def test_who_may_not_read_a_table_may_not_scan_it(wire, guarded):
    """N9, B13: who may not even see it is not told that it is there."""
    table, callers = guarded

    with pytest.raises(PermissionDenied):
        callers["writer"].open(table)
    with pytest.raises(TableNotFound):
        callers["stranger"].open(table)
    assert callers["one"].open(table)[1] == [0, 1, 2]
    assert wire.counts.views == 1


def test_a_scan_is_bound_to_who_opened_it(guarded):
    """N9: upstream takes the id of a scan for leave to read it."""
    table, callers = guarded
    record, _ = callers["one"].open(table, SMALL, nonce="n")
    token = record.first.token

    for name in ("two", "owner", "stranger"):
        other = callers[name]
        assert gone(lambda other=other: other.next(record.scan, 0, table, token=token)) == "unknown"
        assert gone(lambda other=other: other.service._act(m.JoinScan(scan=record.scan))) == "unknown"
        ticket = m.ReadScan(scan=record.scan)
        stream = other.service.scan_stream(ticket, other.service._retry.deadline())
        assert gone(lambda stream=stream: stream.next(SECONDS)) == "unknown"
    assert callers["two"].open(table, SMALL, nonce="n")[0].scan != record.scan
    assert not callers["two"].close(record.scan)
    for name in ("two", "owner", "stranger"):
        callers[name].close(nonce="n")

    assert callers["one"].rest(record.scan, table) == [0, 1, 2]


def test_another_connection_of_the_same_principal_reads_on(wire, guarded):
    """N9: sessions belong to the principal, not to the connection."""
    table, _ = guarded
    token = wire.token("job", "a.*=read")
    planner, worker = Caller(wire.connect(token=token)), Caller(wire.connect(token=token))
    record, _ = planner.open(table, SMALL)

    assert worker.rest(record.scan, table) == [0, 1, 2]


def test_scans_show_to_those_who_see_the_table_and_are_ended_by_those_who_alter_it(guarded):
    table, callers = guarded
    record, _ = callers["one"].open(table, SMALL)

    seen = {name: [info.id for info in each.db.scans()] for name, each in callers.items()}

    assert seen.pop("stranger") == []
    assert set(map(tuple, seen.values())) == {(record.scan,)}
    assert not callers["writer"].close(record.scan)
    assert callers["operator"].close(record.scan)
    assert gone(lambda: callers["one"].next(record.scan, 0, table)) == "closed"
