"""Transactions over a real server: the same API, and a server that is restarted in between costs nothing but rows that
were not sealed, which is told."""

import uuid

import pyarrow as pa
import pytest

import kolk
from kolk.client import staging as pieces
from kolk.errors import (
    DifferentRows,
    InvalidArgument,
    InvalidRows,
    MixedVersions,
    OldVersion,
    StagingGone,
    TableNotFound,
)
from kolk.model.transaction import CommitRequest, Staging, Verdict

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")
EVENTS = kolk.Schema([kolk.Column("n", "bigint")])


@pytest.fixture(params=["network"])
def form(request):
    return request.param


@pytest.fixture
def table(timed):
    return timed.db.create_table("t", SCHEMA, buckets=3)


def rows(*ids, v="x"):
    return [{"id": id, "v": v} for id in ids]


def shown(table):
    return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def test_rows_of_a_transaction_are_seen_together_when_its_block_ends(timed, table):
    with table.transaction("app", 1) as tx:
        tx.put(rows(1, 2, 3))
        tx.delete([2])
        assert shown(table) == {}

    assert shown(table) == {1: "x", 3: "x"}
    assert (tx.verdict, tx.is_new, sum(tx.offsets["t"].values())) == ("committed", True, 4)


def test_a_job_may_choose_that_other_rows_or_an_old_version_stop_it(timed, table):
    """H8, H9: an answer unless it says so; nothing else is different, and what is stopped can be asked why."""
    choices = {"on_different": "fail", "on_old": "fail"}

    def commit(version, v, **options):
        with table.transaction("app", version, **options) as tx:
            tx.put(rows(1, v=v))
        return tx.verdict

    assert [commit(2, "a", **choices), commit(2, "a", **choices)] == ["committed", "duplicate"]
    for version, v, error, verdict in ((2, "b", DifferentRows, "duplicate-different"), (1, "a", OldVersion, "old")):
        option = {"on_different": "fail"} if error is DifferentRows else {"on_old": "fail"}
        for options in (choices, option):
            tx = timed.db.transaction("app", version, **options)
            tx.put(rows(1, v=v), table="t")
            with pytest.raises(error, match="'app'"):
                tx.commit()
            assert (tx.verdict, tx.is_new) == (verdict, False)
        other = {"on_old": "fail"} if error is DifferentRows else {"on_different": "fail"}
        assert [commit(version, v, **other), commit(version, v)] == [verdict, verdict]

    assert shown(table) == {1: "a"}
    assert timed.db.transactions()[0].version == 2
    assert commit(3, "c", **choices) == "committed"


@pytest.mark.parametrize("word", ["", "drop", None, True])
def test_a_choice_that_there_is_not_is_refused_before_anything_is_staged(table, word):
    for option in ("on_different", "on_old"):
        with pytest.raises(InvalidArgument, match=f"{option} is one of answer, fail"):
            table.transaction("app", 1, **{option: word})


def test_a_version_is_committed_once_and_an_older_one_never(timed, table):
    verdicts = []
    for version, v in ((2, "a"), (2, "a"), (2, "b"), (1, "c"), (3, "d")):
        with table.transaction("app", version) as tx:
            tx.put(rows(1, v=v))
        verdicts.append(tx.verdict)

    assert verdicts == ["committed", "duplicate", "duplicate-different", "old", "committed"]
    assert shown(table) == {1: "d"}
    assert timed.db.status()["transactions"] == {
        "handles": 0,
        "staged_bytes": 0,
        "apps": 1,
        "pending": 0,
        "committed": 2,
        "duplicates": 2,
        "different": 1,
        "old": 1,
    }


def test_several_tables_are_written_in_one_transaction(timed, table):
    other = timed.db.create_table("web.other", SCHEMA, buckets=2)

    with timed.db.transaction("app", 1) as tx:
        tx.put(rows(1), table="t")
        tx.put(rows(2), table=other)
        tx.put(rows(3), table="web.other")

    assert (shown(table), shown(other)) == ({1: "x"}, {2: "x", 3: "x"})
    assert set(tx.offsets) == {"t", "web.other"}


def test_a_transaction_of_one_table_takes_no_rows_of_another_by_its_name_or_its_handle(timed, table):
    other = timed.db.create_table("other", SCHEMA)

    with table.transaction("app", 1) as tx:
        tx.put(rows(1), table="t")
        for stranger in ("other", "nowhere", other):
            with pytest.raises(InvalidArgument, match="is one of t; db"):
                tx.put(rows(2), table=stranger)

    assert (shown(table), shown(other)) == ({1: "x"}, {})


def test_a_version_that_is_new_to_one_table_only_is_refused_and_nothing_is_done(timed, table):
    other = timed.db.create_table("other", SCHEMA)
    with table.transaction("app", 5) as tx:
        tx.put(rows(1))

    tx = timed.db.transaction("app", 5)
    tx.put(rows(2), table=table)
    tx.put(rows(2), table=other)
    with pytest.raises(MixedVersions, match="nothing was done"):
        tx.commit()

    assert (shown(table), shown(other)) == ({1: "x"}, {})
    assert timed.db.status()["transactions"]["handles"] == 0


def test_a_table_is_loaded_anew_in_one_step(timed, table):
    table.put(rows(1, 2, 3))

    with table.transaction("load", 1) as tx:
        tx.truncate()
        tx.put(rows(3, 4, v="new"))

    assert shown(table) == {3: "new", 4: "new"}


def test_partial_updates_and_rows_of_a_log_table_are_staged_as_they_are_put(timed):
    table = timed.db.create_table(
        "wide", kolk.Schema([kolk.Column(name, "int") for name in ("id", "a", "b")], "id"), buckets=2
    )
    events = timed.db.create_table("events", EVENTS, buckets=2)
    table.put({"id": 1, "a": 1, "b": 1})

    with timed.db.transaction("app", 1) as tx:
        tx.put({"id": 1, "a": 2}, columns=["a"], table=table)
        tx.put({"n": 7}, table=events)

    assert table.get_one(id=1) == {"id": 1, "a": 2, "b": 1}
    assert [row["n"] for batch in events.changelog() for row in batch.to_pylist()] == [7]


def test_a_block_that_fails_leaves_nothing_behind(timed, table):
    tx = table.transaction("app", 1)

    def work():
        with tx:
            tx.put(rows(1))
            assert timed.db.status()["transactions"]["handles"] == 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()

    assert shown(table) == {}
    assert timed.db.transactions() == []
    with pytest.raises(InvalidArgument, match="over"):
        tx.put(rows(1))


def test_rows_that_do_not_fit_are_refused_when_they_are_staged(timed, table):
    service = timed.db._link.service
    staging = staged(table)
    wrong = pa.RecordBatch.from_pydict({"id": ["text"], "v": ["x"]})

    with pytest.raises(InvalidRows, match="expected rows of"):
        service.stage(staging, 0, wrong)

    assert timed.db.transactions() == []


def test_many_and_large_rows_go_in_pieces(timed, table, monkeypatch):
    monkeypatch.setattr(pieces, "_STAGED_ROWS", 7)
    monkeypatch.setattr(pieces, "_STAGED_BYTES", 1_000)

    with table.transaction("app", 1) as tx:
        tx.put(rows(*range(100)) + rows(100, v="y" * 5_000))

    assert len(shown(table)) == 101


def test_what_is_staged_and_what_was_committed_is_listed(timed, table):
    with table.transaction("a", 7) as tx:
        tx.put(rows(1, 2))
    timed.clock.advance(seconds=1)
    other = table.transaction("b", 1)
    other.put(rows(3))

    done, staging = timed.db.transactions()

    assert (done.app, done.version, done.tables, done.state, done.rows) == ("a", 7, ("t",), "done", 2)
    assert (staging.app, staging.state, staging.rows, staging.principal) == ("b", "staging", 1, "anonymous")
    assert timed.db.discard(staging.handles) == 1
    with pytest.raises(StagingGone):
        other.commit()


def test_very_many_transactions_are_listed_in_pieces(timed, table, monkeypatch):
    monkeypatch.setattr("kolk.server.transactions._PER_ANSWER", 3)
    for app in "abcdefg":
        with table.transaction(app, 1) as tx:
            tx.put(rows(1))
        table.transaction(app, 2).put(rows(2))

    listed = timed.db.transactions()

    assert [(one.app, one.version) for one in listed] == [(app, version) for app in "abcdefg" for version in (1, 2)]


# --- a server that is restarted


def staged(table, **changes):
    about = {"handle": uuid.uuid4().hex, "app": "app", "version": 1, "table": table.info.id, "schema_id": 1}
    return Staging(**about | changes)


def batch(*ids):
    return pa.RecordBatch.from_pylist(rows(*ids), schema=SCHEMA.arrow)


def commit(service, table, *handles):
    return service.commit_transaction(CommitRequest(app="app", version=1, handles={table.info.id: handles}))


def test_rows_that_were_not_sealed_are_gone_after_a_restart_and_the_block_says_so(timed, table):
    for go_on in (lambda tx: tx.put(rows(2)), lambda tx: tx.commit()):
        tx = table.transaction("app", 1)
        tx.put(rows(1))
        timed.restart()
        with pytest.raises(StagingGone, match="stage the rows again"):
            go_on(tx)

    assert shown(table) == {}
    with table.transaction("app", 1) as tx:
        tx.put(rows(1, 2))
    assert (tx.verdict, shown(table)) == ("committed", {1: "x", 2: "x"})


def test_what_was_sealed_is_committed_after_a_restart(timed, table):
    service, staging = timed.db._link.service, staged(table)
    service.stage(staging, 0, batch(1, 2))
    sealed = service.seal(staging, 1)
    timed.restart()

    again = service.seal(staging, 1)
    result = commit(service, table, staging.handle)

    assert again == sealed
    assert result.verdict is Verdict.COMMITTED
    assert shown(table) == {1: "x", 2: "x"}


def test_a_commit_is_known_again_by_its_handles_also_after_a_restart(timed, table):
    service, staging = timed.db._link.service, staged(table)
    service.stage(staging, 0, batch(1, 2))
    service.seal(staging, 1)
    first = commit(service, table, staging.handle)
    timed.restart()

    again = commit(service, table, staging.handle)
    other = commit(service, table, uuid.uuid4().hex)

    assert again == first
    assert (again.verdict, other.verdict) == (Verdict.COMMITTED, Verdict.DUPLICATE)
    assert timed.db.status()["transactions"]["committed"] == 0, "nothing was committed since the restart"


def test_a_transaction_of_a_table_that_was_made_anew_is_refused(timed, table):
    tx = table.transaction("app", 1)
    tx.put(rows(1))
    timed.db.drop_table("t")
    timed.db.create_table("t", SCHEMA)

    with pytest.raises(TableNotFound):
        tx.commit()


# --- an answer that is lost


def test_a_batch_that_is_staged_again_is_kept_once(timed, table):
    service, staging = timed.db._link.service, staged(table)
    for number in (0, 0, 1, 1, 0):
        service.stage(staging, number, batch(number))

    sealed = service.seal(staging, 2)

    assert sealed.rows == 2


def test_a_batch_that_does_not_follow_is_refused_and_so_is_a_seal_of_more_or_fewer(timed, table):
    service, staging = timed.db._link.service, staged(table)
    with pytest.raises(StagingGone):
        service.stage(staging, 1, batch(1))
    service.stage(staging, 0, batch(0))

    for attempt in (
        lambda: service.stage(staging, 2, batch(2)),
        lambda: service.seal(staging, 0),
        lambda: service.seal(staging, 2),
        lambda: service.seal(staged(table), 0),
    ):
        with pytest.raises(StagingGone):
            attempt()
    assert service.seal(staging, 1).rows == 1


def test_a_handle_stands_for_one_thing_and_a_sealed_one_takes_no_more(timed, table):
    service, staging = timed.db._link.service, staged(table)
    service.stage(staging, 0, batch(0))

    with pytest.raises(InvalidArgument, match="something else"):
        service.stage(staged(table, handle=staging.handle, version=2), 1, batch(1))
    service.seal(staging, 1)
    with pytest.raises(InvalidArgument, match="sealed"):
        service.stage(staging, 1, batch(1))
    with pytest.raises(InvalidArgument, match="something else"):
        service.seal(staged(table, handle=staging.handle, app="other"), 1)


def test_a_transaction_of_nothing_is_known_again_too(timed, table):
    """It is committed under a handle of no rows: else nobody could tell a retry from a second attempt."""
    with table.transaction("app", 1) as tx:
        tx.truncate()
    with table.transaction("app", 1) as again:
        again.truncate()

    assert (tx.verdict, again.verdict) == ("committed", "duplicate")
    service, handles = timed.db._link.service, tx._handles[table.info.id]
    assert commit(service, table, *handles).verdict is Verdict.COMMITTED
