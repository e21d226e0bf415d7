"""Handles: what is staged, by whom, for how long and how much of it; and that it is all there, or gone."""

import gc
import threading
from dataclasses import replace

import pytest
from tests.engine.transaction_bench import DAY, PLAIN, events, plain

from kolk.client.writes import put_write
from kolk.errors import (
    InvalidArgument,
    KolkError,
    PermissionDenied,
    StagingGone,
    TimedOut,
    TooLarge,
    TooManyStagings,
)
from kolk.model.options import MergeMode
from kolk.model.transaction import CommitRequest, Staging, Verdict
from kolk.model.write import Action

# --- handles


def test_a_handle_is_sealed_once_and_takes_nothing_afterwards(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1), is_sealed=False)
    [(staging, _, _)] = tx.transactions.stagings.listed()
    with pytest.raises(StagingGone, match="not sealed"):
        tx.commit([(table, [handle])])

    seal = tx.engine.seal(staging, 1)

    assert tx.engine.seal(staging, 1) == seal
    assert seal.rows == 12
    for other in (replace(staging, version=2), replace(staging, app="b"), replace(staging, action=Action.DELETE)):
        with pytest.raises(InvalidArgument):
            tx.engine.seal(other, 1)
    with pytest.raises(InvalidArgument, match="sealed"):
        tx.engine.stage(staging, 1, _batch(table))
    tx.commit([(table, [handle])])
    with pytest.raises(StagingGone):
        tx.engine.stage(staging, 1, _batch(table))
    with pytest.raises(StagingGone):
        tx.engine.seal(staging, 1)
    assert tx.files() == set()


def _batch(table):
    return put_write(table.schema, events(1), None, MergeMode.ACCUMULATE).rows


@pytest.mark.parametrize("wrong", [{"app": "b"}, {"version": 2}])
def test_handles_of_another_commit_are_refused_and_stay(tx, wrong):
    table = tx.totals()
    handle = tx.staged(table, events(1))

    with pytest.raises(StagingGone, match="not for this commit"):
        tx.commit([(table, [handle])], **({"app": "a", "version": 1} | wrong))

    assert tx.files() == {handle}
    with pytest.raises(InvalidArgument, match="twice"):
        tx.commit([(table, [handle, handle])])


def test_another_principal_neither_commits_nor_discards_what_is_staged(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1))
    request = CommitRequest(app="a", version=1, handles={table.info.id: (handle,)})

    with pytest.raises(PermissionDenied):
        tx.transactions.commit(request, "stranger")
    tx.transactions.discard([handle], "stranger")

    assert tx.files() == {handle}
    assert tx.transactions.commit(request, "").verdict is Verdict.COMMITTED


def test_an_old_commit_drops_nobody_elses_handles(tx):
    table = tx.totals()
    tx.committed(table, events(1), app="a", version=5)
    others = tx.staged(table, events(1), app="b", version=1)
    later = tx.staged(table, events(1), app="a", version=9)

    assert tx.commit([(table, [others, later])], app="a", version=5).verdict is Verdict.DUPLICATE_DIFFERENT

    assert tx.files() == {others, later}


def test_a_refused_commit_does_not_unpin_what_another_one_uses(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1))
    with tx.transactions.stagings.pinned([handle]):
        with pytest.raises(StagingGone):
            tx.commit([(table, [handle])], app="b")

        tx.engine.discard([handle])

        assert tx.files() == {handle}
    tx.engine.discard([handle])
    assert tx.files() == set()


def test_stagings_go_when_nobody_comes_back(tx):
    table = tx.totals()
    unsealed, sealed = tx.staged(table, events(1), is_sealed=False), tx.staged(table, events(1))
    [(staging, *_)] = [each for each in tx.transactions.stagings.listed() if not each[2]]

    tx.clock.advance(seconds=599)
    tx.engine.stage(staging, 1, _batch(table))
    tx.clock.advance(seconds=599)
    tx.engine.reap()
    assert tx.files() == {unsealed, sealed}
    tx.clock.advance(seconds=2)
    tx.engine.reap()
    assert tx.files() == {sealed}
    for number in (0, 2):
        with pytest.raises(StagingGone, match="all of them"):
            tx.engine.stage(staging, number, _batch(table))
    tx.clock.advance(seconds=DAY)
    tx.engine.reap()
    assert tx.files() == set()
    with pytest.raises(StagingGone):
        tx.commit([(table, [sealed])])
    assert tx.transactions.stagings.bytes == 0


def test_a_client_that_is_slow_keeps_what_it_has_staged(tx):
    table = tx.totals()
    slow, dead = table.transaction("slow", 1), tx.staged(table, events(1), app="dead", is_sealed=False)
    slow.put(events(1))
    [staged] = slow._open.values()

    for _ in range(60):
        tx.clock.advance(seconds=60)
        staged._ticker.tick()
        tx.engine.reap()

    assert tx.files() == {staged.handle}
    with pytest.raises(StagingGone):
        tx.commit([(table, [dead])], app="dead")
    slow.put(events(2))
    assert slow.commit().verdict is Verdict.COMMITTED
    assert tx.times(table) == {2}


def test_keeping_a_handle_that_is_gone_does_not_begin_it_anew(tx):
    table = tx.totals()
    one = table.transaction("a", 1)
    one.put(events(1))
    [staged] = one._open.values()
    tx.clock.advance(seconds=601)
    tx.engine.reap()

    staged.turn()

    assert tx.files() == set()
    with pytest.raises(StagingGone):
        tx.engine.keep_staged(staged._staging)
    with pytest.raises(StagingGone):
        one.put(events(1))


@pytest.mark.parametrize("end", ["commit", "rollback", "another kind of write", "nobody has it any more"])
def test_what_is_over_is_kept_no_longer(tx, end):
    table = tx.db.create_table("t", PLAIN)
    one = table.transaction("a", 1)
    one.put(plain(1))
    ticker = next(iter(one._open.values()))._ticker
    assert not ticker._stopped.is_set()

    match end:
        case "commit":
            one.commit()
        case "rollback":
            one.rollback()
        case "another kind of write":
            one.put([{"k": 1, "n": 1}], columns=["n"])
        case _:
            del one
            gc.collect()

    assert ticker._stopped.is_set()


def test_what_is_staged_has_a_limit_for_each_application_and_for_all(transaction_bench):
    tx = transaction_bench(txn_app_bytes_max=20_000, txn_staging_bytes_max=30_000)
    table = tx.totals()
    rows = events(1, range(100))
    first = tx.staged(table, rows, app="a")
    size = tx.transactions.stagings.bytes

    for app, limit in (("a", 20_000), ("b", 30_000)):
        while tx.transactions.stagings.bytes + 2 * size < limit:
            tx.staged(table, rows, app=app)
        tx.staged(table, rows, app=app)
        with pytest.raises(TooManyStagings):
            tx.staged(table, rows, app=app)

    assert tx.commit([(table, [first])], app="a").verdict is Verdict.COMMITTED
    assert tx.staged(table, rows, app="a", version=2)
    before = tx.transactions.stagings.bytes
    tx.reopen()
    assert 0 < tx.transactions.stagings.bytes <= before


def test_a_transaction_that_is_too_large_to_be_merged_is_refused_before_anything_happens(transaction_bench):
    tx = transaction_bench(txn_bytes_max=20_000)
    table = tx.totals()
    put = events(1, range(100))

    large, wide = table.transaction("a", 1), table.transaction("a", 1)
    while tx.transactions.stagings.bytes <= 20_000:
        large.put(put)

    with pytest.raises(TooLarge, match="txn_bytes_max"):
        large.commit()
    for mode in ("accumulate", "overwrite") * 20:  # many handles, each of which is small
        wide.put([{"k": 1, "total": 1}], columns=["total"], mode=mode)
        wide.put(put)
    with pytest.raises(TooLarge, match="txn_bytes_max"):
        wide.commit()

    assert tx.rows(table) == {}
    assert tx.files() == set()
    with table.transaction("a", 1) as one:
        one.put(put)
    assert one.verdict == "committed"


def test_a_handle_that_has_more_than_a_transaction_may_takes_no_more(transaction_bench):
    tx = transaction_bench(txn_bytes_max=20_000)
    table = tx.totals()
    other = tx.staged(table, events(1, range(100)))
    before = tx.transactions.stagings.bytes
    large = table.transaction("a", 1)
    while tx.transactions.stagings.bytes - before <= 20_000:
        large.put(events(1, range(100)))

    with pytest.raises(TooLarge, match=r"under one handle.*txn_bytes_max"):
        large.put(events(1, range(100)))
    large.rollback()

    assert tx.commit([(table, [other])]).verdict is Verdict.COMMITTED, "what others have staged for it does not count"


def test_a_handle_that_went_in_between_is_noticed_by_the_client(tx):
    table = tx.totals()
    one = table.transaction("a", 1)
    one.put(events(1))
    tx.clock.advance(seconds=601)
    tx.engine.reap()

    with pytest.raises(StagingGone):
        one.put(events(2))
    with pytest.raises(StagingGone):
        one.commit()

    assert tx.rows(table) == {}


@pytest.mark.parametrize("version", [1, 2])
def test_a_run_that_another_one_of_its_version_overtakes_is_told_what_became_of_it(tx, version):
    """The first to commit clears away what others have staged for it: that is no error of theirs."""
    table = tx.totals()
    slow, quick = table.transaction("a", 1), table.transaction("a", version)
    for one in (slow, quick):
        one.put(events(1))
    quick.commit()

    slow.commit()

    assert slow.verdict == ("duplicate" if version == 1 else "old")
    assert tx.times(table) == {1}
    assert tx.files() == set()


def test_rows_that_a_server_forgot_are_noticed_by_the_client(tx):
    """A process that begins anew does not know which handles the one before had."""
    table = tx.totals()
    one = table.transaction("a", 1)
    one.put(events(1))
    [staging] = [each[0] for each in tx.transactions.stagings.listed()]
    tx.transactions.stagings.discard([staging.handle])
    tx.transactions.stagings._gone.clear()

    with pytest.raises(StagingGone):
        one.put(events(2))
    with pytest.raises(StagingGone):
        one.commit()

    assert tx.rows(table) == {}
    assert tx.files() == set()


def test_a_handle_that_is_discarded_while_rows_come_is_gone_for_them(tx):
    """A late attempt writes on while the commit of another one clears it: its file is never closed under it."""
    table = tx.db.create_table("t", PLAIN)
    failed, rows = [], plain(1, range(1_000))

    def stage(n):
        try:
            for _ in range(20):
                tx.staged(table, rows, version=n)
        except KolkError as error:
            failed.append(error)

    late = [threading.Thread(target=stage, args=(0,)) for _ in range(3)]
    for thread in late:
        thread.start()
    for version in range(1, 15):
        tx.committed(table, plain(version), version=version)
    for thread in late:
        thread.join()

    assert all(isinstance(error, StagingGone) for error in failed), failed
    tx.check()


def test_a_restart_keeps_what_is_sealed_and_removes_the_rest(tx):
    table = tx.totals()
    sealed = tx.staged(table, events(1))
    tx.staged(table, events(2), is_sealed=False)
    assert {(each.state, each.rows, len(each.handles)) for each in tx.db.transactions()} == {
        ("sealed", 12, 1),
        ("staging", 12, 1),
    }

    tx.crash()

    assert tx.files() == {sealed}
    tx.clock.advance(seconds=DAY - 1)
    tx.engine.reap()
    assert tx.commit([(tx.db.table("t"), [sealed])]).verdict is Verdict.COMMITTED
    tx.check()


def test_what_was_left_of_a_commit_that_is_done_is_cleared_at_the_next_start(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1))
    data = (tx.path / "staging" / f"{handle}.rows").read_bytes()
    tx.commit([(table, [handle])])
    (tx.path / "staging" / f"{handle}.rows").write_bytes(data)

    tx.reopen()

    assert tx.files() == set()
    assert tx.committed(tx.db.table("t"), events(1)).verdict is Verdict.DUPLICATE


def test_names_and_numbers_that_cannot_be_are_refused(tx):
    table = tx.totals()
    for app in ("", "x" * 257, "a\nb", 5):
        with pytest.raises(InvalidArgument):
            table.transaction(app, 1)
    for version in (-1, True, 2**63, "1", 1.0):
        with pytest.raises(InvalidArgument):
            table.transaction("a", version)
    for handle in ("../x", "g" * 32, "A" * 32):
        with pytest.raises(InvalidArgument):
            tx.commit([(table, [handle])])
        staging = Staging(handle=handle, app="a", version=1, table=table.info.id, schema_id=1)
        with pytest.raises(InvalidArgument):
            tx.engine.stage(staging, 0, _batch(table))
    app = "ä/%2F ,'\"💥" + "x" * 200
    assert tx.committed(table, events(1), app=app, version=2**63 - 1).verdict is Verdict.COMMITTED
    tx.reopen()
    assert tx.committed(tx.db.table("t"), events(1), app=app, version=2**63 - 1).verdict is Verdict.DUPLICATE


def test_rows_after_a_put_whose_outcome_nobody_knows_are_not_taken_for_its_rows(tx, monkeypatch):
    """The batch of the first was staged and its answer lost; another one must not go under its number."""
    table = tx.totals()
    one = table.transaction("a", 1)
    one.put(events(1))
    service, real = one._link.service, one._link.service.stage

    def lost(*given):
        real(*given)
        raise TimedOut("as told")

    with monkeypatch.context() as patched:
        patched.setattr(service, "stage", lost, raising=False)
        with pytest.raises(TimedOut):
            one.put(events(2))

    with pytest.raises(StagingGone, match="run it again"):
        one.put(events(3))
    with pytest.raises(StagingGone, match="run it again"):
        one.commit()
    assert tx.rows(table) == {}
    assert tx.files() == set()
