"""Who may own columns, see owners and release them; what no client sends, or only one that means harm; and what a
server that is full, busy or about to stop does."""

import logging
import threading
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
from tests.faults.relay import Relay, lost_answer
from tests.server.scan_wire import Caller

import kolk
from kolk import errors
from kolk.errors import (
    Busy,
    ColumnLockConflict,
    DiskFull,
    Fenced,
    InvalidArgument,
    InvalidInput,
    KolkError,
    NotFound,
    PermissionDenied,
    SchemaChanged,
    TableNotFound,
    TooLarge,
    Unreachable,
)
from kolk.model.ids import OwnerTag
from kolk.model.owner import Claim, ticket_of
from kolk.model.write import Action, Write
from kolk.wire import messages as m
from kolk.wire import owners as o
from kolk.wire.rows import encode_rows, write_fields

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("n", "bigint", agg="sum")], "id")
ROWS = pa.RecordBatch.from_pylist([{"id": 1, "n": 1}], schema=SCHEMA.arrow)
WRITE = Write(action=Action.UPSERT, rows=ROWS, columns=("n",), schema_id=1)
CLAIM = Claim(owner="job", columns=["n"], ttl_seconds=60.0)


@pytest.fixture
def guarded(wire):
    """One who may write to the table, one who may read it, one who may look after it, and one of another table."""
    owner = Caller(wire.connect(token=wire.token("owner", "*=all")))
    table = owner.db.create_table("a.t", SCHEMA, buckets=2)
    owner.db.create_table("b.t", SCHEMA)
    grants = {"writer": "a.*=write", "reader": "a.*=read", "operator": "a.*=alter", "stranger": "b.*=all"}
    callers = {name: Caller(wire.connect(token=wire.token(name, grant))) for name, grant in grants.items()}
    return table, callers | {"owner": owner}


@pytest.fixture
def table(caller):
    return caller.db.create_table("t", SCHEMA, buckets=2)


def tag(record, seq=1, epoch=0, ticket=0):
    return OwnerTag(record.number, record.fence, ticket, epoch, seq)


def calls(service, id, record):
    """Everything that one asks for who writes."""
    who = (id, record.number, record.fence)
    return [
        lambda: service.begin_owner(id, CLAIM),
        lambda: service.put_owned(id, WRITE, tag(record)),
        lambda: service.commit_owner(*who, 0, {}, b""),
        lambda: service.renew_owner(*who),
        lambda: service.begin_task(*who, 0, 1),
        lambda: service.seal_task(*who, 1, ticket_of(1, 1), {}, b""),
        lambda: service.commit_tasks(*who, 0, {}, b""),
        lambda: service.rest_owner(*who),
        lambda: service.release_owner(id, "job", record.fence, number=record.number),
    ]


# --- who may


def test_who_may_not_write_a_table_may_do_nothing_in_an_owners_name(guarded):
    table, callers = guarded
    id, record = table.info.id, callers["writer"].service.begin_owner(table.info.id, CLAIM)

    for name, error in (("reader", PermissionDenied), ("operator", PermissionDenied), ("stranger", TableNotFound)):
        for call in calls(callers[name].service, id, record):
            with pytest.raises(error):
                call()
    callers["writer"].service.put_owned(id, WRITE, tag(record))


def test_who_may_write_a_table_may_go_on_in_any_owners_name(guarded):
    table, callers = guarded
    id, first = table.info.id, callers["owner"].service.begin_owner(table.info.id, CLAIM)

    record = callers["writer"].service.begin_owner(id, CLAIM)
    callers["writer"].service.put_owned(id, WRITE, tag(record))

    assert (record.number, record.fence) == (first.number, first.fence + 1)
    with pytest.raises(Fenced):
        callers["owner"].service.put_owned(id, WRITE, tag(first))
    assert callers["writer"].service.release_owner(id, "job", record.fence, number=record.number)


def test_to_release_what_one_does_not_write_takes_the_right_to_alter_the_table(guarded):
    table, callers = guarded
    id, record = table.info.id, callers["writer"].service.begin_owner(table.info.id, CLAIM)
    callers["writer"].service.put_owned(id, WRITE, tag(record))

    for name in ("writer", "reader"):
        with pytest.raises(PermissionDenied):
            callers[name].db.release_lock("a.t", "job")
    with pytest.raises(PermissionDenied):
        callers["writer"].service.release_owner(id, "job", record.fence, number=record.number, keep=True)
    with pytest.raises(TableNotFound):
        callers["stranger"].service.release_owner(id, "job")

    assert callers["operator"].db.release_lock("a.t", "job")
    assert not callers["operator"].db.release_lock("a.t", "job")
    with pytest.raises(Fenced):
        callers["writer"].service.put_owned(id, WRITE, tag(record, 2))
    assert table.scan().to_arrow().num_rows == 0


def test_one_sees_the_owners_of_tables_that_one_sees(guarded):
    table, callers = guarded
    callers["writer"].service.begin_owner(table.info.id, CLAIM)

    seen = {name: [lock.owner for lock in caller.db.locks()] for name, caller in callers.items()}

    assert seen.pop("stranger") == []
    assert set(map(tuple, seen.values())) == {("job",)}


def test_a_number_and_a_fence_are_of_one_table(guarded):
    table, callers = guarded
    record = callers["owner"].service.begin_owner(table.info.id, CLAIM)
    other = callers["owner"].db.table("b.t").info.id

    _, put, *others = calls(callers["owner"].service, other, record)
    for call in (put, *others[:-2]):
        with pytest.raises(Fenced):
            call()
    assert others[-2]() is None
    assert others[-1]() is False


def test_a_name_that_was_taken_anew_is_not_released_by_a_call_that_comes_late(caller, table):
    """Its fence begins anew, its number does not."""
    id, first = table.info.id, caller.service.begin_owner(table.info.id, CLAIM)
    assert caller.service.release_owner(id, "job", first.fence, number=first.number)
    second = caller.service.begin_owner(id, CLAIM)

    assert second.fence == first.fence
    assert not caller.service.release_owner(id, "job", first.fence, number=first.number)
    caller.service.put_owned(id, WRITE, tag(second))


def test_very_many_owners_are_listed_in_pieces(caller, monkeypatch):
    monkeypatch.setattr("kolk.server.owners._NAMES_PER_ANSWER", 4)
    for table in ("a", "b"):
        id = caller.db.create_table(table, SCHEMA, buckets=1).info.id
        caller.service.begin_owner(id, CLAIM)
    names = [f"c{number}" for number in range(5)]
    wide = kolk.Schema([kolk.Column("id", "int"), *(kolk.Column(name, "int") for name in names)], "id")
    id = caller.db.create_table("c", wide, buckets=1).info.id
    for name in names:
        caller.service.begin_owner(id, replace(CLAIM, owner=name, columns=[name]))

    listed = [(lock.table, lock.owner) for lock in caller.db.locks()]

    assert listed == [("a", "job"), ("b", "job"), *(("c", name) for name in names)]


def test_a_conflict_says_whose_the_columns_are_and_is_told_at_once(wire, caller, table):
    """It is not tried again until the deadline: whoever asks decides whether to wait."""
    caller.service.begin_owner(table.info.id, CLAIM)
    other = Caller(wire.connect())

    for call in (
        lambda: other.service.begin_owner(table.info.id, replace(CLAIM, owner="other")),
        lambda: other.db.table("t").put({"id": 1, "n": 1}),
    ):
        with pytest.raises(ColumnLockConflict) as caught:
            call()
        assert (caught.value.owner, caught.value.columns) == ("job", ("n",))
        assert caught.value.seconds_left == pytest.approx(60.0)
        assert caught.value.retriable
        assert not getattr(caught.value, "__notes__", [])


# --- what no client sends


def begin(into, **changes):
    return {"op": "begin_owner", "table": into.info.id, "owner": "job", "columns": ["n"], "ttl_seconds": 60.0} | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": ""},
        {"owner": "a\0b"},
        {"owner": "x" * 257},
        {"owner": None},
        {"columns": []},
        {"columns": ["n", "n", "no"]},
        {"columns": ["id"]},
        {"columns": "n"},
        {"columns": ["n"] * 1_601},
        {"ttl_seconds": 0.0},
        {"ttl_seconds": float("nan")},
        {"ttl_seconds": float("inf")},
        {"ttl_seconds": "60"},
        {"stream": "x" * 257},
        {"attempt": "x" * 257},
        {"resume_epoch": -1},
        {"resume_epoch": 2**63},
        {"undo": "sometimes"},
        {"undo": "none"},
        {"reset": 1},
        {"table": 2**63 - 1},
    ],
    ids=lambda changes: f"{next(iter(changes))} {str(next(iter(changes.values())))[:20]}",
)
def test_a_beginning_that_no_client_sends_is_refused_by_name_and_leaves_nothing(wire, caller, table, changes):
    with pytest.raises((InvalidInput, NotFound)):
        raw_act(caller, msgspec.msgpack.encode(begin(table, **changes)))

    assert caller.db.locks() == []
    assert wire.engine._meta.list("owner/") == []


def raw_act(caller, body):
    class Encoded(msgspec.Struct):
        pass

    real, m.encode = m.encode, lambda head: body if isinstance(head, Encoded) else real(head)
    try:
        return caller.service._act(Encoded())
    finally:
        m.encode = real


@pytest.mark.parametrize(
    "changes",
    [
        {"action": "sideways"},
        {"mode": "x" * 100_000},
        {"columns": ["no"]},
        {"columns": ["id"]},
        {"schema": b"\xff" * 100},
        {"schema_id": 60_000},
        {"epoch": 2**63 - 1},
        {"seq": 2**63 - 1},
        {"table": 2**63 - 1},
    ],
    ids=lambda changes: f"{next(iter(changes))} {str(next(iter(changes.values())))[:20]}",
)
def test_a_put_that_no_client_sends_is_refused_by_name_and_writes_nothing(caller, table, changes):
    record = caller.service.begin_owner(table.info.id, CLAIM)
    fields = {"table": table.info.id, "number": record.number, "fence": record.fence, "epoch": 0, "seq": 1}
    head = o.PutOwned(**fields | write_fields(WRITE) | changes)

    with pytest.raises((InvalidInput, NotFound, SchemaChanged)):
        caller.service._sent(m.join(head, encode_rows(ROWS)))

    assert {both["end"] for both in table.describe()["offsets"].values()} == {0}


def test_no_put_says_that_a_task_is_through(caller, table):
    """Only a seal does, which looks whether all of it is there."""
    record = caller.service.begin_owner(table.info.id, CLAIM)
    head = o.PutOwned(table=table.info.id, number=record.number, fence=1, epoch=0, seq=1, **write_fields(WRITE))
    fields = msgspec.msgpack.decode(m.encode(head)) | {"sealed": True}
    caller.service._sent(m.framed(msgspec.msgpack.encode(fields), encode_rows(ROWS)))

    caller.service.put_owned(table.info.id, WRITE, tag(record, 2))


def test_more_rows_than_a_put_takes_are_refused(wired):
    caller = Caller(wired(put_rows_max=10).connect())
    table = caller.db.create_table("t", SCHEMA)
    record = caller.service.begin_owner(table.info.id, CLAIM)
    many = pa.RecordBatch.from_pylist([{"id": n, "n": 1} for n in range(11)], schema=SCHEMA.arrow)

    with pytest.raises(TooLarge):
        caller.service.put_owned(table.info.id, replace(WRITE, rows=many), tag(record))


# --- a server that is full, busy, or about to stop


def full(server, used, share):
    used[0] = share
    server._disk._seen = (float("-inf"), 0.0)


def test_a_full_disk_refuses_puts_and_lets_owners_come_commit_and_go(serve, connect, hurry):
    used = [0.1]
    server = serve(disk_used=lambda: used[0])
    db = connect(server)
    table = db.create_table("t", SCHEMA)
    w = table.writer("job", ["n"])
    w.put({"id": 1, "n": 1})
    full(server, used, 0.99)

    hurry(db, 0.5)
    with pytest.raises(DiskFull):
        w.put({"id": 1, "n": 1})
    hurry(db, 10)
    w.commit()
    w.close()
    again = table.writer("job", ["n"])
    full(server, used, 0.1)

    again.put({"id": 1, "n": 5})
    again.commit()
    again.close()
    assert table.get_one(id=1) == {"id": 1, "n": 6}


def test_a_put_whose_answer_was_lost_and_that_is_refused_then_is_not_taken_for_one_that_failed(serve, connect, hurry):
    """It has been applied the first time. Who would put it again under another count would count it twice."""
    used = [0.1]
    server = serve(disk_used=lambda: used[0])
    table = connect(server).create_table("t", SCHEMA)

    def is_there():
        if table.get_one(id=1) is None:
            return False
        full(server, used, 0.99)
        return True

    with Relay(server.url) as relay:
        db = connect(relay.url)
        w = db.table("t").writer("job", ["n"])
        hurry(db, 3)
        with pytest.raises(Unreachable) as caught, lost_answer(relay, is_there):
            w.put({"id": 1, "n": 1})
        full(server, used, 0.1)
        hurry(db, 10)

        assert isinstance(caught.value.__cause__, DiskFull)
        with pytest.raises(errors.CommitMismatch):
            w.put({"id": 1, "n": 1})
        w.put({"id": 1, "n": 1}, tag=caught.value.tag)
        w.commit()
        w.close()

    assert table.get_one(id=1) == {"id": 1, "n": 1}


def test_an_owner_goes_on_when_its_server_is_stopped_and_started_again(serve, connect):
    first = serve()
    db = connect(first, timeout=30)
    table = db.create_table("t", SCHEMA, buckets=2)
    w = table.writer("job", ["n"])
    w.put([{"id": id, "n": 1} for id in range(8)])
    port = int(first.url.rpartition(":")[2])

    restart = threading.Thread(target=lambda: (first.close(), serve(port=port)))
    restart.start()
    puts = 1
    while restart.is_alive() or puts < 20:
        w.put([{"id": id, "n": 1} for id in range(8)])
        puts += 1
    w.commit()
    w.close()

    assert table.scan().to_arrow()["n"].to_pylist() == [puts] * 8


def test_a_beginning_is_refused_as_busy_while_the_server_stops(wire, caller, table, hurry):
    wire.server._streams._draining = True
    hurry(caller.db, 0.5)

    with pytest.raises(Busy, match="shutting down"):
        caller.service.begin_owner(table.info.id, CLAIM)


# --- what an operator sees


def test_how_far_a_long_undo_is_stands_in_the_log(wire, caller, caplog):
    table = caller.db.create_table("t", SCHEMA, buckets=30)
    rows = pa.RecordBatch.from_pylist([{"id": id, "n": 1} for id in range(500)], schema=SCHEMA.arrow)
    record = caller.service.begin_owner(table.info.id, CLAIM)
    caller.service.put_owned(table.info.id, replace(WRITE, rows=rows), tag(record))
    caplog.set_level(logging.INFO, "kolk.server.owners")

    caller.service.begin_owner(table.info.id, CLAIM)

    said = [record.getMessage() for record in caplog.records if record.name == "kolk.server.owners"]
    assert [line.split(" taken back in ")[1] for line in said] == [f"{done} of 30 buckets" for done in range(0, 31, 3)]


def test_who_is_being_taken_back_is_shown_as_such(wire, caller, table):
    record = caller.service.begin_owner(table.info.id, CLAIM)
    caller.service.put_owned(table.info.id, WRITE, tag(record))
    seen = []

    wire.engine.begin_owner(table.info.id, CLAIM, lambda done, all: seen.append(caller.db.locks()[0].is_recovering))

    assert seen == [True, True]
    assert not caller.db.locks()[0].is_recovering


def test_puts_of_owners_are_counted_like_all_others(serve, connect):
    server = serve(http_port=0)
    table = connect(server).create_table("t", SCHEMA)
    with table.writer("job", ["n"]) as w:
        w.put([{"id": id, "n": 1} for id in range(7)])
        w.commit()

    lines = server._health._metrics().decode().splitlines()

    assert [line for line in lines if line.startswith("kolk_put_rows_total") and line.endswith(" 7.0")]


def test_every_error_of_owners_crosses_the_wire():
    from kolk.wire.status import decode_error, encode_error

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and 80 <= getattr(kind, "code", 0) < 90]
    assert len(kinds) == 10
    for kind in kinds:
        found = decode_error(encode_error(kind("why")))
        assert (type(found), str(found), isinstance(found, KolkError)) == (kind, "why", True)


def test_a_word_that_says_nothing_about_undo_is_refused(table):
    with pytest.raises(InvalidArgument, match="always, none"):
        table.writer("job", ["n"], undo="perhaps")
