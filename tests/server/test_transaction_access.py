"""Who may stage, seal, commit, see and discard; what no client sends, or only one that means harm; and the limits."""

import uuid

import msgspec
import pyarrow as pa
import pytest
from tests.server.scan_wire import SCHEMA, Caller

import kolk
from kolk.errors import (
    Busy,
    DiskFull,
    InvalidArgument,
    InvalidInput,
    InvalidRows,
    KolkError,
    NotFound,
    PermissionDenied,
    SchemaChanged,
    StagingGone,
    TableNotFound,
    TooLarge,
    TooManyStagings,
)
from kolk.model.transaction import CommitRequest, Staging, Verdict
from kolk.server.admission import PutBudget
from kolk.wire import messages as m
from kolk.wire import transactions as t
from kolk.wire.rows import encode_rows, encode_schema

ROWS = pa.RecordBatch.from_pylist([{"id": 1, "v": "x"}], schema=SCHEMA.arrow)


@pytest.fixture
def guarded(wire):
    """Two who may write to the table, one who may read it, one who may look after it, and one of another table."""
    owner = Caller(wire.connect(token=wire.token("owner", "*=all")))
    table = owner.db.create_table("a.t", SCHEMA, buckets=2)
    owner.db.create_table("b.t", SCHEMA)
    grants = {"one": "a.*=write", "two": "a.*=write", "reader": "a.*=read", "operator": "a.*=alter"}
    grants["stranger"] = "b.*=all"
    callers = {name: Caller(wire.connect(token=wire.token(name, grant))) for name, grant in grants.items()}
    return table, callers | {"owner": owner}


@pytest.fixture
def table(caller):
    return caller.db.create_table("t", SCHEMA, buckets=2)


def about(table, **changes):
    given = {"handle": uuid.uuid4().hex, "app": "app", "version": 1, "table": table.info.id, "schema_id": 1}
    return Staging(**given | changes)


def sealed(caller, table, **changes):
    staging = about(table, **changes)
    caller.service.stage(staging, 0, ROWS)
    caller.service.seal(staging, 1)
    return staging


def commit(caller, staging):
    request = CommitRequest(app=staging.app, version=staging.version, handles={staging.table: (staging.handle,)})
    return caller.service.commit_transaction(request).verdict


# --- who may


def test_who_may_not_write_a_table_may_not_stage_seal_or_commit_for_it(guarded):
    table, callers = guarded
    staging = sealed(callers["one"], table)
    for name, error in (("reader", PermissionDenied), ("operator", PermissionDenied), ("stranger", TableNotFound)):
        service = callers[name].service
        for attempt in (
            lambda service=service: service.stage(about(table), 0, ROWS),
            lambda service=service: service.keep_staged(staging),
            lambda service=service: service.seal(staging, 1),
            lambda name=name: commit(callers[name], staging),
        ):
            with pytest.raises(error):
                attempt()


def test_a_commit_takes_the_right_to_write_to_every_table(guarded):
    table, callers = guarded
    other = callers["owner"].db.table("b.t")
    staging = sealed(callers["one"], table)
    request = CommitRequest(app="app", version=1, handles={table.info.id: (staging.handle,), other.info.id: ()})

    with pytest.raises(TableNotFound):
        callers["one"].service.commit_transaction(request)

    assert commit(callers["one"], staging) is Verdict.COMMITTED


def test_what_one_has_staged_another_can_neither_add_to_nor_seal_nor_commit_nor_discard(guarded):
    table, callers = guarded
    one, two = callers["one"], callers["two"]
    staging = about(table)
    one.service.stage(staging, 0, ROWS)

    with pytest.raises(InvalidArgument, match="something else"):
        two.service.stage(staging, 1, ROWS)
    with pytest.raises(InvalidArgument, match="something else"):
        two.service.keep_staged(staging)
    with pytest.raises(InvalidArgument, match="something else"):
        two.service.seal(staging, 1)
    one.service.seal(staging, 1)
    with pytest.raises(InvalidArgument, match="something else"):
        two.service.seal(staging, 1)
    with pytest.raises(PermissionDenied, match="somebody else's"):
        commit(two, staging)
    assert two.service.discard([staging.handle]) == 0
    assert commit(one, staging) is Verdict.COMMITTED


def test_a_handle_that_is_kept_outlives_the_time_of_one_that_is_not(wire, caller, table):
    kept, left = about(table), about(table)
    for staging in (kept, left):
        caller.service.stage(staging, 0, ROWS)

    wire.clock.advance(seconds=599)
    caller.service.keep_staged(kept)
    wire.clock.advance(seconds=599)
    wire.engine.reap()

    with pytest.raises(StagingGone):
        caller.service.keep_staged(left)
    caller.service.seal(kept, 1)
    caller.service.keep_staged(kept)  # a turn that was under way
    assert commit(caller, kept) is Verdict.COMMITTED


def test_a_commit_that_comes_too_late_drops_its_own_handles_and_nobody_elses(guarded):
    table, callers = guarded
    one, two = callers["one"], callers["two"]
    assert commit(one, sealed(one, table)) is Verdict.COMMITTED
    later = sealed(one, table, app="other")

    mine = sealed(two, table)
    request = CommitRequest(app="app", version=1, handles={table.info.id: (mine.handle, later.handle)})
    verdict = two.service.commit_transaction(request).verdict

    assert verdict in (Verdict.DUPLICATE, Verdict.DUPLICATE_DIFFERENT)
    with pytest.raises(StagingGone):
        commit(two, about(table, handle=mine.handle, version=2))
    assert commit(one, later) is Verdict.COMMITTED


def test_who_may_alter_a_table_discards_what_anybody_has_staged_for_it(guarded):
    table, callers = guarded
    staging = sealed(callers["one"], table)

    assert callers["reader"].service.discard([staging.handle]) == 0
    assert callers["operator"].service.discard([staging.handle, uuid.uuid4().hex]) == 1

    with pytest.raises(StagingGone):
        commit(callers["one"], staging)


def test_one_sees_the_transactions_of_tables_that_one_sees(guarded):
    table, callers = guarded
    sealed(callers["one"], table)
    assert commit(callers["two"], sealed(callers["two"], table, app="done")) is Verdict.COMMITTED

    seen = {name: [one.app for one in caller.db.transactions()] for name, caller in callers.items()}

    assert seen["stranger"] == []
    assert all(apps == ["app", "done"] for name, apps in seen.items() if name != "stranger")
    assert callers["reader"].db.transactions()[0].principal == "one"


def test_a_new_token_of_the_same_name_goes_on_as_far_as_it_may_write(guarded, wire):
    table, callers = guarded
    staging = sealed(callers["one"], table)
    renewed = Caller(wire.connect(token=wire.token("one", "a.*=read")))

    with pytest.raises(PermissionDenied):
        commit(renewed, staging)
    again = Caller(wire.connect(token=wire.token("one", "a.*=write")))
    assert commit(again, staging) is Verdict.COMMITTED


# --- what no client sends


def call(caller, head, rows=ROWS):
    message = m.join(head, encode_rows(rows) if isinstance(rows, pa.RecordBatch) else rows)
    return caller.service._sent(message)


def stage(into, **changes):
    fields = {"handle": uuid.uuid4().hex, "app": "app", "version": 1, "table": into.info.id, "schema_id": 1}
    return t.Stage(**fields | {"number": 0, "schema": encode_schema(ROWS.schema)} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"handle": "../../../../../../etc/passwd-xxxx"[:32]},
        {"handle": "A" * 32},
        {"handle": "0" * 31},
        {"app": ""},
        {"app": "a\0b"},
        {"app": "x" * 257},
        {"version": 2**63},
        {"version": -1},
        {"number": 2**63 - 1},
        {"schema_id": 60_000},
        {"action": "sideways"},
        {"mode": "x" * 100_000},
        {"columns": [10**9]},
        {"columns": [0]},
        {"columns": []},
        {"schema": b""},
        {"schema": b"\xff" * 100},
        {"table": 2**63 - 1},
    ],
    ids=lambda changes: f"{next(iter(changes))} {str(next(iter(changes.values())))[:20]}",
)
def test_a_head_that_no_client_sends_is_refused_by_name_and_leaves_no_file(wire, caller, table, changes):
    with pytest.raises((InvalidInput, NotFound, SchemaChanged)):
        call(caller, stage(table, **changes))

    assert caller.db.status()["transactions"]["handles"] == 0
    assert list((wire.folder / "staging").iterdir()) == []


def test_rows_that_unfold_lie_or_lack_are_refused_as_those_of_a_put(caller, table):
    plain = encode_rows(ROWS)
    packed = ROWS.serialize()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(ROWS)
    *_, zipped = pa.ipc.MessageReader.open_stream(sink.getvalue())

    for rows in (plain.slice(0, plain.size // 2), pa.py_buffer(b""), pa.py_buffer(bytes(64)), zipped.serialize()):
        with pytest.raises(InvalidRows):
            call(caller, stage(table), rows)
    with pytest.raises(InvalidRows):
        call(caller, stage(table), ROWS.select(["id"]))
    call(caller, stage(table), packed)


def test_more_rows_than_a_put_takes_are_refused(wired):
    wire = wired(put_rows_max=10)
    caller = Caller(wire.connect())
    table = caller.db.create_table("t", SCHEMA)
    many = pa.RecordBatch.from_pylist([{"id": n, "v": ""} for n in range(11)], schema=SCHEMA.arrow)

    with pytest.raises(TooLarge):
        call(caller, stage(table), many)


@pytest.mark.parametrize(
    "fields",
    [
        {"tables": []},
        {"tables": [[1, []], [1, []]]},
        {"tables": [[1, ["x" * 32]]]},
        {"tables": [[1, ["0" * 32, "0" * 32]]]},
        {"tables": [[1, ["0" * 32] * 10_001]]},
        {"tables": [[2**63 - 1, []]]},
        {"tables": {}},
        {"app": "\n"},
        {"version": 2**64 - 1},
        {"rows": -1},
        {"checksum": "no"},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_a_commit_that_no_client_sends_is_refused_by_name(caller, table, fields):
    given = {"op": "commit", "app": "app", "version": 1, "tables": [{"table": table.info.id, "handles": []}]} | fields
    if isinstance(given["tables"], list):
        given["tables"] = [
            {"table": table.info.id if one[0] == 1 else one[0], "handles": one[1]} if isinstance(one, list) else one
            for one in given["tables"]
        ]

    with pytest.raises((InvalidInput, NotFound)):
        raw_act(caller, msgspec.msgpack.encode(given))

    assert caller.db.transactions() == []


def raw_act(caller, body):
    class Encoded(msgspec.Struct):
        pass

    real, m.encode = m.encode, lambda head: body if isinstance(head, Encoded) else real(head)
    try:
        return caller.service._act(Encoded())
    finally:
        m.encode = real


# --- limits


def test_bytes_handles_and_open_files_have_limits_that_end_with_a_commit(wired, hurry):
    wire = wired(txn_app_bytes_max=6_500, txn_staging_bytes_max=10_000, txn_open_max=3, txn_handles_max=4)
    caller = Caller(wire.connect())
    table = caller.db.create_table("t", SCHEMA)
    hurry(caller.db, 0.5)
    large = pa.RecordBatch.from_pylist([{"id": 1, "v": "x" * 5_000}], schema=SCHEMA.arrow)
    first = about(table)
    caller.service.stage(first, 0, large)

    with pytest.raises(TooManyStagings, match="txn_app_bytes_max"):
        caller.service.stage(first, 1, large)
    with pytest.raises(TooManyStagings, match="txn_staging_bytes_max"):
        caller.service.stage(about(table, app="b"), 0, large)
    caller.service.stage(about(table), 0, ROWS)
    with pytest.raises(TooManyStagings, match="txn_open_max"):
        caller.service.stage(about(table), 0, ROWS)
    caller.service.seal(first, 1)
    caller.service.stage(about(table), 0, ROWS)
    handles = [handle for one in caller.db.transactions() for handle in one.handles]
    for one in caller.db.transactions():
        if one.app == "b":
            caller.db.discard(one.handles)
    sealed(caller, table)
    with pytest.raises(TooManyStagings, match="txn_handles_max"):
        caller.service.stage(about(table), 0, ROWS)

    assert len(handles) == 4
    assert commit(caller, first) is Verdict.COMMITTED
    assert caller.db.status()["transactions"]["handles"] == 0, "what else the application staged for it went, too"
    caller.service.stage(about(table, version=2), 0, large)


def test_applications_have_a_limit_that_no_retry_waits_for(wired):
    wire = wired(txn_apps_max=1)
    caller = Caller(wire.connect())
    table = caller.db.create_table("t", SCHEMA)
    assert commit(caller, sealed(caller, table)) is Verdict.COMMITTED

    with pytest.raises(TooManyStagings, match="txn_apps_max") as refused:
        commit(caller, sealed(caller, table, app="other"))

    assert not refused.value.retriable
    assert commit(caller, sealed(caller, table, version=2)) is Verdict.COMMITTED


def test_what_nobody_comes_back_for_goes(wire, caller, table):
    open_one, waiting = about(table), sealed(caller, table, app="b")
    caller.service.stage(open_one, 0, ROWS)

    wire.clock.advance(seconds=601)
    wire.engine.reap()
    with pytest.raises(StagingGone):
        caller.service.stage(open_one, 1, ROWS)
    assert [one.state for one in caller.db.transactions()] == ["sealed"]
    wire.clock.advance(seconds=86_400)
    wire.engine.reap()

    with pytest.raises(StagingGone):
        commit(caller, waiting)
    assert list((wire.folder / "staging").iterdir()) == []


def test_commits_wait_for_their_turn_and_not_among_puts():
    budget = PutBudget(kolk.ServerConfig(puts_bytes_max=100, puts_wait_seconds=0.01), "commit")

    with budget.take(10_000), pytest.raises(Busy, match="the commit waited"):
        budget.take(1).__enter__()


def test_a_full_disk_refuses_to_stage_and_to_commit(serve, connect, hurry):
    used = [0.1]
    server = serve(disk_used=lambda: used[0])
    db = connect(server)
    table = db.create_table("t", SCHEMA)
    tx = table.transaction("app", 1)
    tx.put({"id": 1, "v": "x"})
    used[0] = 0.99
    server._disk._seen = (float("-inf"), 0.0)
    hurry(db, 0.5)

    with pytest.raises(DiskFull):
        table.transaction("app", 1).put({"id": 2, "v": "x"})
    with pytest.raises(DiskFull):
        tx.commit()
    used[0] = 0.1
    server._disk._seen = (float("-inf"), 0.0)

    with table.transaction("app", 1) as again:
        again.put({"id": 1, "v": "x"})
    assert again.is_new


def test_figures_tell_what_is_staged_and_what_became_of_commits(serve, connect):
    server = serve(http_port=0)
    table = connect(server).create_table("t", SCHEMA)
    for v in "aab":
        with table.transaction("app", 1) as tx:
            tx.put({"id": 1, "v": v})
    table.transaction("app", 2).put({"id": 1, "v": "c"})

    lines = server._health._metrics().decode().splitlines()
    figures = dict(
        line.rsplit(" ", 1) for line in lines if line.startswith(("kolk_commits", "kolk_staged", "kolk_apps"))
    )

    assert float(figures.pop("kolk_staged_bytes")) > 0
    assert {name: float(value) for name, value in figures.items()} == {
        "kolk_staged_handles": 1,
        "kolk_apps": 1,
        "kolk_commits_pending": 0,
        "kolk_commits_total": 1,
        "kolk_commits_duplicate_total": 2,
        "kolk_commits_different_total": 1,
        "kolk_commits_old_total": 0,
    }


def test_every_error_of_transactions_crosses_the_wire():
    from kolk import errors
    from kolk.wire.status import decode_error, encode_error

    for kind in (errors.MixedVersions, StagingGone, TooManyStagings, errors.MetaBehindLog):
        found = decode_error(encode_error(kind("why")))
        assert (type(found), str(found), isinstance(found, KolkError)) == (kind, "why", True)
