"""Backups, snapshots, expiry and trimming beside transactions, also such that are not finished."""

import errno
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count

import pytest
from tests.engine.transaction_bench import EVENTS, PLAIN, events, plain, put

import kolk
from kolk.engine.restore import restore
from kolk.errors import KolkError, MixedVersions
from kolk.model.ids import PlainTag
from kolk.model.transaction import Verdict
from kolk.testing.faults import Call
from kolk.testing.soundness import check_sound

FULL, BROKEN = errno.ENOSPC, errno.EIO
TAG = PlainTag(77, 0)


# --- backups, snapshots, retention


def restored(tx):
    """The database that a backup of now becomes."""
    tx.db.backup(tx.path.with_name("backup"))
    reopened(tx)


def reopened(tx):
    """The database that the backup that was made becomes."""
    target = tx.path.with_name("restored")
    restore(tx.path.with_name("backup"), target)
    tx.close()
    tx.path = target
    tx.open_engine()


def test_what_was_committed_before_a_backup_is_known_after_it(tx):
    table, log = tx.totals(), tx.db.create_table("log", EVENTS, buckets=2)
    tx.committed(table, events(1), version=4)
    tx.committed(log, [{"k": 1, "n": 1}], version=6)
    tx.staged(table, events(9), version=9)

    restored(tx)

    table, log = tx.db.table("t"), tx.db.table("log")
    assert tx.times(table) == {1}
    assert tx.committed(table, events(1), version=4).verdict is Verdict.DUPLICATE
    assert tx.committed(table, events(2), version=4).verdict is Verdict.DUPLICATE_DIFFERENT
    assert tx.committed(log, [{"k": 1, "n": 1}], version=6).verdict is Verdict.DUPLICATE
    assert tx.committed(table, events(1), version=5).verdict is Verdict.COMMITTED
    assert tx.times(table) == {2}
    assert tx.files() == set()


@pytest.mark.parametrize("moment", ["between", "after"])
def test_commits_while_a_backup_is_made_are_in_it_and_known_or_neither(tx, moment):
    one, other = tx.totals("one"), tx.totals("other")
    tx.committed(one, events(1), version=1)
    cuts = tx.engine.backups._cuts
    place, nonce = tx.path.with_name("backup"), "n"
    steps = {"between": 1, "after": 2}[moment]
    rows_cut, count = cuts._cut_rows, [0]

    def cut_rows(info, cut, lease):
        yield from rows_cut(info, cut, lease)
        count[0] += 1
        if count[0] == steps:
            handles = [(each, [tx.staged(each, events(2), version=2)]) for each in (one, other)]
            assert tx.commit(handles, version=2).verdict is Verdict.COMMITTED
            assert tx.committed(one, events(3), app="b").verdict is Verdict.COMMITTED

    cuts._cut_rows = cut_rows
    while tx.engine.backups.advance(place, nonce, "").info is None:
        pass
    reopened(tx)

    one, other = tx.db.table("one"), tx.db.table("other")
    has_it = {"between": (False, True), "after": (False, False)}[moment]
    assert tx.times(one) == {1}
    assert tx.times(other) == ({1} if has_it[1] else set())
    handles = [(each, [tx.staged(each, events(2), version=2)]) for each in (one, other)]
    if moment == "between":
        with pytest.raises(MixedVersions):
            tx.commit(handles, version=2)
    else:
        assert tx.commit(handles, version=2).verdict is Verdict.COMMITTED
        assert tx.times(one) == {2}
    assert tx.committed(one, events(3), app="b").verdict is Verdict.COMMITTED


@contextmanager
def committing(tx, commit):
    """Within the block something is committed whenever this thread is about to look at buckets, unless everybody who
    commits has to wait; then it is later."""
    tablets, gate, here = tx.engine._tablets, tx.engine.backups._cuts._gate, threading.current_thread()
    use, asked = tablets.use, threading.Event()

    def use_after_a_commit(info, buckets):
        if threading.current_thread() is here:
            done = pool.submit(commit)
            while not (done.done() or gate._is_alone):
                asked.wait(0.001)
        return use(info, buckets)

    with ThreadPoolExecutor(1) as pool:
        tablets.use = use_after_a_commit
        try:
            yield
        finally:
            tablets.use = use


@pytest.mark.parametrize("is_log", [False, True])
def test_a_table_that_is_taken_in_groups_has_each_commit_whole_and_known_or_neither(tx, monkeypatch, is_log):
    for module in ("taking", "backup_cut"):
        monkeypatch.setattr(f"kolk.engine.{module}.CUT_BUCKETS_MAX", 2)
    rows, versions = [{"k": k, "n": 1} for k in range(12)] if is_log else events(1), count(1)
    table = tx.db.create_table("t", EVENTS, buckets=5, bucket_key=["k"]) if is_log else tx.totals(buckets=5)

    with committing(tx, lambda: tx.committed(table, rows, version=next(versions))):
        info = tx.db.backup(tx.path.with_name("backup"))
    reopened(tx)

    table, [record] = tx.db.table("t"), tx.transactions.commits.all()
    assert info.mixed == ("t",)
    if is_log:
        changes = Counter(row["k"] for batch in table.changelog() for row in batch.to_pylist())
        assert changes == dict.fromkeys(range(12), record.version)
    else:
        assert tx.times(table) == {record.version}
    assert tx.committed(table, rows, version=record.version).verdict is Verdict.DUPLICATE


@pytest.mark.parametrize("is_known", ["open", "resting", "reopened"])
def test_what_was_written_without_rows_since_a_snapshot_is_in_a_backup(transaction_bench, is_known):
    """It takes no offset, so the snapshot stands where the log ends. Also of a bucket of which only its state is known,
    and of one that nobody has looked at since the start."""
    tx = transaction_bench(buckets_open_max=1 if is_known == "resting" else 512)
    table, other = (tx.db.create_table(name, PLAIN) for name in ("t", "other"))
    put(table, 1)
    table.take_snapshot()
    table.put(plain(1), tag=TAG)
    assert tx.committed(table, plain(1)).verdict is Verdict.COMMITTED
    put(other, 1)
    if is_known == "reopened":
        tx.reopen()

    restored(tx)

    table = tx.db.table("t")
    put(table, 2)
    table.put(plain(1), tag=TAG)
    assert {row["n"] for row in tx.rows(table).values()} == {2}
    check_sound(tx.path)


def test_a_bucket_is_copied_once_for_what_was_written_without_rows(tx):
    table = tx.db.create_table("t", PLAIN, buckets=2)
    for version in range(2):
        tx.committed(table, plain(1), version=version)
        table.take_snapshot()
    before = table.snapshots()

    for name in ("a", "b"):
        tx.db.backup(tx.path.with_name(name))

    assert before != table.snapshots()
    after = table.snapshots()
    tx.db.backup(tx.path.with_name("c"))
    assert after == table.snapshots()


def test_a_commit_without_rows_in_a_bucket_that_is_not_copied_is_in_a_backup_or_not_known(tx):
    """One bucket is copied, for its rows change; the other's rows stay the same, and it has a part in the commit."""
    table = tx.db.create_table("t", PLAIN, buckets=2)
    put(table, 0)
    table.take_snapshot()
    key, versions = 0, count(1)
    put(table, 9, [key])

    def commit():
        version = next(versions)
        rows = [*plain(version, [key]), *plain(0, [other for other in range(6) if other != key])]
        tx.committed(table, rows, version=version)

    with committing(tx, commit):
        tx.db.backup(tx.path.with_name("backup"))
    reopened(tx)

    table, [record] = tx.db.table("t"), tx.transactions.commits.all()
    assert tx.rows(table)[key,]["n"] == record.version
    check_sound(tx.path)


def test_a_backup_waits_for_a_commit_that_is_not_finished(tx):
    table = tx.totals()
    tx.disk.fail_always(Call.WRITE, FULL, within=f"/{table.info.id}/0/1/log")
    tx.committed(table, events(1))
    with pytest.raises(KolkError):
        tx.db.backup(tx.path.with_name("none"))
    tx.disk.heal()

    restored(tx)

    table = tx.db.table("t")
    assert tx.times(table) == {1}
    assert tx.committed(table, events(1)).verdict is Verdict.DUPLICATE
    assert tx.transactions.commits.pending() == []


def test_snapshots_and_leases_show_whole_transactions_and_lead_on(tx):
    table = tx.totals()
    for version in range(3):
        tx.committed(table, events(1), version=version)
        table.take_snapshot()
        tx.committed(table, events(1), app="b", version=version)
    with table.lease() as lease:
        with table.scan(source=lease) as scan:
            assert {row["times"] for row in scan.to_arrow().to_pylist()} == {5}
        changes = [row for batch in table.changelog(start=lease.offsets["t"]) for row in batch.to_pylist()]
    assert {row["times"] for row in changes} == {5, 6}
    tx.close()
    for kv in (tx.path / "tables").rglob("kv"):
        shutil.rmtree(kv)
    tx.open_engine()
    table = tx.db.table("t")
    assert tx.times(table) == {6}
    assert tx.committed(table, events(1), app="b", version=2).verdict is Verdict.DUPLICATE
    tx.check()


def test_the_log_is_trimmed_beside_a_commit_that_is_not_finished(transaction_bench):
    tx = transaction_bench(log_segment_bytes=1)
    table = tx.totals(options={"table.log.max-bytes": "1"})
    for version in range(4):
        tx.committed(table, events(1), version=version)
        table.take_snapshot()
    tx.disk.fail_always(Call.CREATE, FULL, within=f"/{table.info.id}/0/1/log")
    tx.committed(table, events(1), version=4)
    assert tx.transactions.commits.pending() != []

    tx.engine.tick()
    tx.crash()

    table = tx.db.table("t")
    tx.engine.tick()
    assert tx.times(table) == {5}
    assert all(each["start"] > 0 for each in table.describe()["offsets"].values())
    assert tx.committed(table, events(1), version=4).verdict is Verdict.DUPLICATE
    tx.check(table)


def test_rows_expire_beside_a_commit_that_is_not_finished(tx):
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("at", "timestamp_ltz(3)"), kolk.Column("n", "int")], "k")
    options = {"table.kv.ttl": "1h", "table.kv.ttl.column": "at"}
    table = tx.db.create_table("t", schema, buckets=2, options=options)
    now = time_of(tx)
    table.put([{"k": k, "at": now, "n": 0} for k in range(10)])
    tx.clock.advance(seconds=4_000)
    tx.disk.fail_always(Call.WRITE, FULL, within="/1/log")
    later = time_of(tx)
    tx.committed(table, [{"k": k, "at": later, "n": 1} for k in range(5)])

    tx.engine.tick()
    tx.disk.heal()
    tx.engine.tick()

    assert {key[0]: row["n"] for key, row in tx.rows(table).items()} == dict.fromkeys(range(5), 1)
    tx.check()
    tx.crash()
    tx.check()


def test_a_commit_that_is_finished_later_ends_where_it_did(tx):
    """Whoever asks again, and follows the table from there on, misses nothing that came in between."""
    table = tx.totals()
    handles = [(table, [tx.staged(table, events(1))])]
    tx.disk.fail_always(Call.WRITE, FULL, within="/1/log")
    known = tx.commit(handles).offsets[table.info.id]
    for row in events(2):
        with suppress(KolkError):  # of the bucket that has stopped
            table.put([row])
    tx.disk.heal()

    tx.engine.reap()

    ends = tx.commit(handles).offsets[table.info.id]
    assert (len(known), len(ends)) == (2, 3)
    assert known.items() < ends.items()
    assert all(table.describe()["offsets"][bucket]["end"] > end for bucket, end in known.items())
    check_sound(tx.path)


def time_of(tx):
    return datetime.fromtimestamp(tx.clock.now_ms() / 1_000, UTC)
