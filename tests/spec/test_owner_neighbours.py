"""Owners beside the others: transactions, truncation, writers that fail halfway, disks that do."""

import errno
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.spec.owned import TTL, hurried, open_rack

from kolk.errors import ColumnLockConflict, CommitMismatch, DiskFull, InvalidArgument, KolkError, PartialPut
from kolk.model.ids import PlainTag
from kolk.testing.faults import Call, FailingDisk

KEYS = range(8)


def every(**values):
    return {key: values for key in KEYS}


def listed(**values):
    return [{"k": key, **values} for key in KEYS]


@pytest.fixture
def rack(folder, form):
    with open_rack(folder, form) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


# --- transactions


def test_h12_a_transaction_never_writes_columns_that_are_owned(t):
    """H12: not even those of its own job; the version is not used, and a retry goes through once they are free."""
    a = t.begin()
    a.put(every(pv=1))

    for _ in range(2):
        with pytest.raises(ColumnLockConflict), t.table.transaction("app", 1) as tx:
            tx.put(listed(pv=10), columns=["pv"])
    with t.table.transaction("app", 1) as tx:
        tx.put(listed(title="x"), columns=["title"])
    a.commit()
    a.rest()
    with t.table.transaction("app", 2) as tx:
        tx.put(listed(pv=10), columns=["pv"])

    t.check(every(pv=11, title="x"))


def test_h12_a_transaction_waits_for_dirt_and_not_for_an_owner_whose_time_is_up(t):
    """H12: expired and dirty refuses it, expired and clean does not."""
    a = t.begin()
    a.put(every(pv=1))
    t.rack.clock.advance(seconds=TTL)
    with pytest.raises(ColumnLockConflict), t.table.transaction("app", 1) as tx:
        tx.put(listed(pv=10), columns=["pv"])
    a.commit()

    with t.table.transaction("app", 1) as tx:
        tx.put(listed(pv=10), columns=["pv"])

    t.check(every(pv=11))


def test_h39_nothing_removes_whole_rows_of_a_table_that_somebody_owns_columns_of(t):
    """H39: truncate and overwrite are refused, and leave every bucket as it is; afterwards they are not."""
    a = t.begin()
    a.put(every(pv=1))
    a.commit()

    with pytest.raises(ColumnLockConflict):
        t.table.truncate()
    with pytest.raises(ColumnLockConflict):
        _overwrite(t)
    t.check(every(pv=1))

    t.rack.clock.advance(seconds=TTL)
    t.table.truncate()
    t.check({})
    _overwrite(t)
    t.check(every(title="x"))


def test_a_commit_that_was_decided_is_applied_whoever_owns_the_columns_by_then(folder, form):
    """Roll forward looks at no locks: they were free when it was decided. An owner whose time was up has it again
    after a restart, and must not keep the bucket closed for ever."""
    disk = FailingDisk()
    with open_rack(folder, form, disk=disk) as rack:
        t = rack.create(buckets=2)
        a = t.begin()
        a.put(every(pv=1))
        a.commit()
        rack.clock.advance(seconds=TTL)
        t.put([{"k": 0, "pv": 1}], columns=["pv"])
        disk.fail_always(Call.WRITE, errno.EIO, within="/1/log")
        with t.table.transaction("app", 1) as tx:
            tx.put(listed(pv=10), columns=["pv"])
        disk.heal()

        rack.reopen()

        t.check(every(pv=11) | {0: {"pv": 12}})
        assert t.begin().record.fence == 2


# --- a disk that fails


def test_a_put_that_failed_in_some_buckets_is_put_again_or_not_committed(folder, form):
    """Its rows are there once: the writer goes on with the same put, or another writer takes it back."""
    disk = FailingDisk()
    with open_rack(folder, form, disk=disk) as rack:
        t = rack.create(buckets=2)
        w = t.table.writer("a", ["pv"])
        w.put(listed(pv=1))
        disk.fail_always(Call.WRITE, errno.ENOSPC, within="/1/log")
        with hurried(rack.db), pytest.raises(PartialPut) as caught:
            w.put(listed(pv=10))
        disk.heal()

        with pytest.raises(CommitMismatch):
            w.put(listed(pv=10))
        with pytest.raises(CommitMismatch):
            w.commit()
        with pytest.raises(CommitMismatch):
            w.put(listed(pv=10), tag=PlainTag(0, 7))
        w.put(listed(pv=10), tag=caught.value.tag)
        with pytest.raises(InvalidArgument):
            w.put(listed(pv=10), tag=caught.value.tag)
        w.commit()

        t.check(every(pv=11))
        w.close()


def test_a_put_that_failed_everywhere_is_no_put(folder, form):
    disk = FailingDisk()
    with open_rack(folder, form, disk=disk) as rack:
        t = rack.create(buckets=1)
        w = t.table.writer("a", ["pv"])
        disk.fail_always(Call.WRITE, errno.ENOSPC)
        with hurried(rack.db), pytest.raises(DiskFull):
            w.put(listed(pv=10))
        disk.heal()
        w.put(listed(pv=10))
        w.commit()
        w.close()

        t.check(every(pv=10))


def test_an_undo_that_the_disk_stops_is_done_by_the_next_begin(folder, form):
    """Nobody has the columns meanwhile, and what was restored before is not restored twice."""
    disk = FailingDisk()
    with open_rack(folder, form, disk=disk) as rack:
        t = rack.create(buckets=2)
        t.put(listed(pv=1), columns=["pv"])
        a = t.begin()
        a.put(every(pv=10))
        disk.fail_always(Call.WRITE, errno.ENOSPC, within="/1/log")
        with hurried(rack.db), pytest.raises(KolkError):
            t.begin()
        disk.heal()

        with pytest.raises(ColumnLockConflict):
            t.put(listed(pv=1), columns=["pv"])
        with pytest.raises(ColumnLockConflict):
            t.begin("b")
        t.begin()

        t.check(every(pv=1))


def test_an_eviction_that_a_crash_stops_leaves_nobody_with_the_old_fence(folder, form):
    """The old owner, alive again with the grace of the restart, must not go on upon changes half taken back."""
    disk = FailingDisk()
    with open_rack(folder, form, disk=disk) as rack:
        t = rack.create(buckets=2)
        a = t.begin("a")
        a.put(every(pv=1), 0)
        rack.clock.advance(seconds=TTL)
        disk.fail_always(Call.WRITE, errno.ENOSPC, within="/1/log")
        with hurried(rack.db), pytest.raises(KolkError):
            t.begin("b")
        disk.heal()
        rack.reopen()

        with pytest.raises(KolkError):
            a.put(every(pv=1), 0)
        with pytest.raises(KolkError):
            a.commit(0)
        rack.clock.advance(seconds=TTL)
        t.begin("b")

        t.check({})


# --- many at once


def test_writers_of_other_columns_go_on_while_one_begins_again_and_again(t):
    """Fencing, undo and puts side by side: the sums of the others are whole."""
    rounds, errors = 12, []

    def other(owner, column):
        with t.table.writer(owner, [column]) as w:
            for _ in range(rounds):
                w.put(listed(**{column: 1 if column == "pv" else 5}))
                w.commit()

    def restless():
        for _ in range(rounds):
            w = t.table.writer("restless", ["note"])
            w.put(listed(note="n"))

    def plain():
        for number in range(rounds):
            t.put(listed(title=str(number)), columns=["title"])

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(other, "sum", "pv"), pool.submit(other, "max", "top"), pool.submit(restless)]
        calls.append(pool.submit(plain))
        errors = [call.exception() for call in calls]
    assert errors == [None] * 4
    t.begin("restless", ["note"])

    t.check(every(pv=rounds, top=5, title=str(rounds - 1)))


def test_of_many_who_begin_at_once_the_last_one_writes(t):
    """H11 of the field, turned: one record, as many fences as beginnings, one of them current."""
    with ThreadPoolExecutor(6) as pool:
        grips = [call.result() for call in [pool.submit(t.begin) for _ in range(6)]]

    assert sorted(grip.record.fence for grip in grips) == list(range(1, 7))
    written = 0
    for grip in grips:
        try:
            grip.put({1: {"pv": 1}})
            written += 1
        except KolkError:
            assert grip.record.fence < 6
    assert written == 1


def test_owners_of_many_tables_begin_at_once(rack):
    """H12 of the field: their numbers are all different."""
    tables = [rack.create(f"t{number}", buckets=1) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        grips = [call.result() for call in [pool.submit(each.begin) for each in tables]]

    assert len({grip.record.number for grip in grips}) == 6


def test_first_puts_after_a_lapse_all_go_through(t):
    """Of those who find columns free at the same moment none is turned away."""
    for _ in range(5):
        a = t.begin()
        a.put(every(pv=1), a.record.committed + 1)
        a.commit(a.record.committed + 1)
        t.rack.clock.advance(seconds=TTL)
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(t.put, listed(pv=1), columns=["pv"]) for _ in range(4)]
            assert [call.exception() for call in calls] == [None] * 4


def test_a_table_dropped_beside_a_begin_leaves_no_owner(t):
    """Drop beside begin: the begin fails, or the drop takes its lock too."""
    a = t.begin()
    a.put(every(pv=1))

    def drop(done, all):
        if done == 1:
            pool.submit(t.rack.db.drop_table, "t")
            while any(info.name.table == "t" for info in t.engine.tables()):
                pass

    with ThreadPoolExecutor(1) as pool, pytest.raises(KolkError):
        t.begin(on_progress=drop)

    assert not t.engine._meta.list("owner/")
    assert not t.rack.db.locks()


def test_a_table_altered_beside_a_begin_is_undone_as_it_is_then(t):
    a = t.begin()
    a.put(every(pv=1))

    def alter(done, all):
        if done == 1:
            t.table.rename_column("pv", "views")

    t.begin(on_progress=alter)

    assert t.rows() == {}
    assert t.locks()["a"].columns == ("views",)


def _overwrite(t):
    with t.table.transaction("app", 1) as tx:
        tx.truncate()
        tx.put(listed(title="x"), columns=["title"])
