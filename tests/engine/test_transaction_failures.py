"""Disks, catalogs and files that fail under a transaction: it happens as a whole, or not at all, and nobody is served
rows of half of it."""

import errno
import shutil

import pytest
from tests.engine.transaction_bench import DAYS, PLAIN, events

import kolk
from kolk.errors import Corrupted, DiskFull, KolkError, MetaBehindLog, StagingGone, Stopped
from kolk.model.transaction import Verdict
from kolk.tablet.tablet import Tablet
from kolk.testing.faults import Call
from kolk.testing.meta import Outcome

FULL, BROKEN = errno.ENOSPC, errno.EIO


def times(tx, table):
    """How often each row was put."""
    return {row["times"] for row in tx.rows(table).values()}


# --- before the record: nothing happened


@pytest.mark.parametrize("number", [FULL, BROKEN])
@pytest.mark.parametrize("call", [Call.CREATE, Call.WRITE, Call.SYNC, Call.SYNC_FOLDER])
def test_a_disk_that_fails_while_rows_are_staged_or_sealed_leaves_nothing(tx, call, number):
    table = tx.totals()
    if call is Call.SYNC_FOLDER or (call is Call.SYNC and number is FULL):
        expected = Stopped
    else:
        expected = DiskFull if number is FULL else Stopped
    tx.disk.fail_next(call, number, within="/staging")

    with pytest.raises((expected, Stopped)):
        tx.staged(table, events(1))

    assert tx.files() == set()
    assert tx.transactions.stagings.listed() == []
    assert tx.transactions.stagings.bytes == 0
    assert tx.committed(table, events(1)).verdict is Verdict.COMMITTED
    assert times(tx, table) == {1}


def test_a_put_that_could_not_be_staged_takes_the_rows_before_it_along(tx):
    """Nothing of a handle that failed is ever committed, also if whoever uses it goes on."""
    table = tx.totals()
    one = table.transaction("a", 1)
    one.put(events(1))
    tx.disk.fail_next(Call.WRITE, FULL, within="/staging")
    with pytest.raises(DiskFull):
        one.put(events(2))

    with pytest.raises(StagingGone):
        one.put(events(3))
    with pytest.raises(StagingGone):
        one.commit()

    assert tx.rows(table) == {}
    assert tx.transactions.commits.all() == []


def test_a_record_that_is_refused_leaves_everything_as_it_was(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1))
    tx.meta.fail_next(Outcome.REFUSED)

    with pytest.raises(DiskFull):
        tx.commit([(table, [handle])])

    assert tx.rows(table) == {}
    assert tx.files() == {handle}
    assert tx.commit([(table, [handle])]).verdict is Verdict.COMMITTED
    assert times(tx, table) == {1}
    tx.check()


# --- the record: nobody knows


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.WRITTEN])
def test_a_record_of_unknown_outcome_stops_its_buckets_until_that_is_known(tx, outcome, is_broken):
    table, other = tx.totals(), tx.totals("other")
    handle = tx.staged(table, events(1))
    if is_broken:
        tx.meta.break_down()
    tx.meta.fail_next(outcome)

    with pytest.raises(Stopped):
        tx.commit([(table, [handle])])
    tx.db._link.service.transactions.stagings.reap()
    if is_broken:
        with pytest.raises(Stopped):
            tx.engine.discard([handle])
        with pytest.raises(Stopped):
            tx.rows(table)
        with pytest.raises(Stopped):
            tx.committed(other, events(1), app="b")
        tx.meta.heal()
    else:
        tx.engine.discard([handle])

    is_committed = outcome is Outcome.WRITTEN
    assert tx.committed(other, events(1), app="b").verdict is Verdict.COMMITTED
    assert times(tx, table) == ({1} if is_committed else set())
    again = tx.committed(table, events(1))
    assert again.verdict is (Verdict.DUPLICATE if is_committed else Verdict.COMMITTED)
    assert times(tx, table) == {1}
    tx.check()
    tx.crash()
    tx.check()
    assert times(tx, tx.db.table("t")) == {1}


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.WRITTEN])
def test_what_became_of_a_record_is_decided_at_the_next_start_too(tx, outcome):
    table = tx.totals()
    handle = tx.staged(table, events(1))
    tx.meta.break_down()
    tx.meta.fail_next(outcome)
    with pytest.raises(Stopped):
        tx.commit([(table, [handle])])

    tx.crash()

    table = tx.db.table("t")
    again = tx.committed(table, events(1))
    assert again.verdict is (Verdict.DUPLICATE if outcome is Outcome.WRITTEN else Verdict.COMMITTED)
    assert times(tx, table) == {1}
    tx.check()


# --- after the record: it happened


@pytest.mark.parametrize("how", ["retry", "read", "reap", "crash", "reopen"])
@pytest.mark.parametrize("number", [FULL, BROKEN])
@pytest.mark.parametrize("call", [Call.WRITE, Call.SYNC])
def test_h15_a_bucket_that_fails_after_the_record_stops_and_has_its_share_before_it_serves(tx, call, number, how):
    """H15: the others publish, and the answer is COMMITTED without its offset."""
    table = tx.totals()
    tx.committed(table, events(1), version=1)
    handle = tx.staged(table, events(2), version=2)
    tx.disk.fail_always(call, number, within="/1/log")

    result = tx.commit([(table, [handle])], version=2)

    assert result.verdict is Verdict.COMMITTED
    assert result.offsets[table.info.id].keys() == {"0", "2"}
    assert [record.is_done for record in tx.transactions.commits.all()] == [False]
    with pytest.raises(KolkError):
        tx.rows(table)
    served = {row["times"] for row in table.scan(buckets=["0", "2"]).to_arrow().to_pylist()}
    assert served == {2}, "the others have it"
    # Somebody asks once more while it is so: nothing is taken for finished that is not.
    assert tx.commit([(table, [handle])], version=2).verdict is Verdict.COMMITTED, "it is that very commit"
    assert tx.committed(table, events(2), version=2).verdict is Verdict.DUPLICATE
    with pytest.raises(KolkError):
        tx.committed(table, events(3), version=3)
    tx.engine.reap()
    assert handle in tx.files()

    tx.disk.heal()
    mends = number is FULL and call is Call.WRITE
    if how == "crash" or (not mends and how != "reopen"):
        tx.crash()
    elif how == "reopen":
        tx.reopen()
    elif how == "reap":
        tx.engine.reap()
        assert tx.transactions.commits.pending() == []
    elif how == "retry":
        assert tx.committed(table, events(2), version=2).verdict is Verdict.DUPLICATE
    table = tx.db.table("t")
    assert times(tx, table) == {2}
    assert tx.committed(table, events(2), version=2).verdict is Verdict.DUPLICATE
    assert times(tx, table) == {2}
    assert tx.committed(table, events(3), version=3).verdict is Verdict.COMMITTED
    assert times(tx, table) == {3}
    assert tx.files() == set()
    tx.check()


def test_a_table_is_not_altered_under_a_commit_that_is_not_finished(tx):
    table = tx.db.create_table("t", PLAIN, buckets=2)
    tx.disk.fail_always(Call.WRITE, FULL, within="/1/log")
    rows = [{"k": k, "n": k, "s": "x"} for k in range(8)]
    assert tx.committed(table, rows).verdict is Verdict.COMMITTED

    with pytest.raises(Stopped, match="not in all its buckets") as refused:
        table.drop_column("s")
    assert refused.value.retriable
    tx.disk.heal()
    table.drop_column("s")

    assert tx.rows(table) == {(k,): {"k": k, "n": k} for k in range(8)}
    tx.check(table)


@pytest.mark.parametrize("what", ["partition", "table"])
def test_a_commit_whose_bucket_is_dropped_before_it_has_its_share_is_finished_without_it(tx, what):
    table, kept = tx.db.create_table("t", DAYS, partition_by=["day"]), tx.totals("kept")
    table.put([{"day": day, "k": 1, "n": 1} for day in "ab"])
    tx.disk.fail_always(Call.WRITE, FULL, within=f"/{table.info.id}/2/0/log")
    handles = [(table, [tx.staged(table, [{"day": day, "k": 1, "n": 2} for day in "ab"])])]
    handles.append((kept, [tx.staged(kept, events(1))]))
    assert tx.commit(handles).verdict is Verdict.COMMITTED
    assert tx.transactions.commits.pending() != []

    if what == "partition":
        table.drop_partition(day="b")
    else:
        tx.db.drop_table("t")
    tx.disk.heal()
    tx.engine.reap()

    assert tx.transactions.commits.pending() == []
    assert tx.files() == set()
    if what == "partition":
        assert {key: row["n"] for key, row in tx.rows(table).items()} == {("a", 1): 2}
    tx.crash()
    assert times(tx, tx.db.table("kept")) == {1}
    tx.check()


@pytest.mark.parametrize("harm", ["flip", "cut", "gone", "kind"])
def test_a_bucket_whose_staged_share_is_damaged_refuses_to_serve_and_says_so(tx, harm):
    table, other = tx.totals(), tx.totals("other")
    handle = tx.staged(table, events(1))
    tx.disk.fail_always(Call.WRITE, FULL, within=f"/{table.info.id}/0/1/log")
    tx.commit([(table, [handle])])
    path = tx.path / "staging" / f"{handle}.rows"
    data = bytearray(path.read_bytes())
    copy = tx.path.with_name("copy")
    shutil.copytree(tx.path, copy)
    tx.path, damaged = copy, copy / "staging" / path.name
    head = 8 + 9 + int.from_bytes(data[8:12], "little")
    if harm == "gone":
        damaged.unlink()
    else:
        if harm == "flip":
            data[head + 9 + 200] ^= 1
        elif harm == "kind":
            data[head + 8] = 0
        else:
            del data[-5:]
        damaged.write_bytes(data)
    tx.close()
    tx.open_engine()

    table, other = tx.db.table("t"), tx.db.table("other")
    for _ in range(2):
        with pytest.raises(Corrupted, match="commit 1, version 1 of 'a', cannot be given to bucket 1"):
            tx.rows(table)
        with pytest.raises(Corrupted):
            table.put(events(5))
        tx.engine.reap()
    assert tx.committed(other, events(1), app="b").verdict is Verdict.COMMITTED
    assert len(tx.transactions.commits.pending()) == 1, "it is never taken for finished"
    assert tx.committed(table, events(1)).verdict is Verdict.DUPLICATE
    with pytest.raises(Corrupted):
        tx.committed(table, events(1), version=2)
    # Whoever has a copy of the file is helped by it.
    tx.close()
    damaged.write_bytes(path.read_bytes())
    tx.open_engine()
    assert times(tx, tx.db.table("t")) == {1}
    tx.check()


def test_damaged_rows_refuse_a_commit_before_its_record(tx):
    table = tx.totals()
    handle = tx.staged(table, events(1))
    path = tx.path / "staging" / f"{handle}.rows"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)

    with pytest.raises(Corrupted, match="stage them again"):
        tx.commit([(table, [handle])])

    assert tx.transactions.commits.all() == []
    assert tx.committed(table, events(1)).verdict is Verdict.COMMITTED


@pytest.fixture
def behind(tx):
    """A database whose catalog was replaced by an earlier copy, and that is closed."""
    tx.totals("other")
    tx.committed(tx.totals(), events(1), version=1)
    tx.reopen()
    old = {path.name: path.read_bytes() for path in tx.path.glob("meta.sqlite*")}
    for version in (2, 3):
        tx.committed(tx.db.table("t"), events(version), version=version)
    tx.close()
    for path in tx.path.glob("meta.sqlite*"):
        path.unlink()
    for name, data in old.items():
        (tx.path / name).write_bytes(data)
    return tx


def test_a_database_whose_catalog_is_older_than_its_commits_is_not_opened(behind):
    """MetaBehindLog: a restored backup must not be guessed at."""
    for _ in range(2):
        with pytest.raises(MetaBehindLog, match="commit 3 was made, and the catalog knows 1"):
            kolk.connect(behind.path)

    (behind.path / "csn").unlink()
    behind.open_engine()


def test_a_log_that_is_ahead_of_the_catalog_is_not_served_and_nothing_is_committed_any_more(behind):
    """Also if only the log says so. Else the numbers would come up to it, and it would be served as if nothing were."""
    (behind.path / "csn").write_bytes(b"torn")
    behind.open_engine()
    table, other = behind.db.table("t"), behind.db.table("other")

    for _ in range(2):
        with pytest.raises(MetaBehindLog, match="commit 3, and the catalog knows 1"):
            behind.rows(table)
        with pytest.raises(MetaBehindLog):
            behind.committed(table, events(2), version=2)
        with pytest.raises(MetaBehindLog):
            behind.committed(other, events(1), app="b")

    assert behind.rows(other) == {}


def test_an_interrupt_anywhere_in_a_commit_leaves_all_of_it_or_nothing(tx, monkeypatch):
    """Ctrl-C between any two steps: buckets that may lack their share serve nobody before they have it."""
    table = tx.totals()
    real = Tablet.commit
    for version, at in enumerate(["before", "second", "after"], 1):
        count = [0]

        def commit(tablet, *args, at=at, count=count):
            count[0] += 1
            if at == "before" or (at == "second" and count[0] == 2):
                raise KeyboardInterrupt
            done = real(tablet, *args)
            if at == "after":
                raise KeyboardInterrupt
            return done

        handle = tx.staged(table, events(1), version=version)
        monkeypatch.setattr(Tablet, "commit", commit)
        with pytest.raises(KeyboardInterrupt):
            tx.commit([(table, [handle])], version=version)
        monkeypatch.setattr(Tablet, "commit", real)
        tx.engine.discard([handle])

        table.put(events(1))
        assert times(tx, table) == {2 * version}
        assert tx.committed(table, events(1), version=version).verdict is Verdict.DUPLICATE
        tx.check()
    tx.crash()
    tx.check()
