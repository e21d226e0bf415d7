"""Locks of columns: who may have them, for how long, and who is held to them; what the field asks of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.spec.owned import PLAIN, TTL

import kolk
from kolk.errors import (
    ColumnLockConflict,
    EpochClosed,
    Fenced,
    InvalidArgument,
    InvalidRows,
    LockExpired,
    TableNotFound,
)


@pytest.fixture
def t(rack):
    return rack.create(buckets=1)


def in_another_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(10)


# --- locks, as the field asks for them


def test_the_first_to_ask_has_the_columns_and_others_do_not(t):
    """Lock tests: first acquire ok, overlap = conflict naming owner, columns and time, disjoint = ok."""
    t.begin("a", ["pv"])

    with pytest.raises(ColumnLockConflict) as caught:
        t.begin("b", ["pv", "top"])
    assert (caught.value.owner, caught.value.columns) == ("a", ("pv",))
    assert caught.value.seconds_left == pytest.approx(TTL)
    t.begin("b", ["top"])

    assert set(t.locks()) == {"a", "b"}
    assert t.engine.owners.totals().conflicts == 1


def test_all_columns_conflict_with_any(t):
    """Lock tests: all-columns conflicts with any, in both directions."""
    t.begin("a", ["pv"])
    with pytest.raises(ColumnLockConflict):
        t.begin("b", None)
    t.service.release_owner(t.table.info.id, "a")
    t.begin("b", None)

    with pytest.raises(ColumnLockConflict):
        t.begin("a", ["pv"])


def test_the_same_owner_is_always_let_in_and_may_change_its_columns(t):
    """Lock tests: same owner = renewal with a new fence; ours: other columns are no conflict but a change."""
    one = t.begin("a", ["pv"])
    two = t.begin("a", ["top"])

    assert (one.record.number, one.record.fence) == (two.record.number, two.record.fence - 1)
    t.put([{"k": 1, "pv": 1}], columns=["pv"])
    two.put({1: {"top": 1}})


def test_owners_of_other_tables_are_independent(rack, t):
    """Lock tests: other table independent."""
    other = rack.create("u")
    t.begin("a", ["pv"])
    other.begin("b", ["pv"])
    other.begin("a", ["top"])


def test_a_released_lock_is_free(t):
    """Lock tests: release frees; idempotent."""
    a = t.begin("a", ["pv"])
    assert a.release()
    assert not a.release()
    t.begin("b", ["pv"])


def test_renewing_extends_and_a_lock_that_is_gone_cannot_be_renewed(t):
    """Lock tests: renew extends / unknown fails / expired fails."""
    a = t.begin()
    t.rack.clock.advance(seconds=TTL - 1)
    assert a.renew() == TTL
    t.rack.clock.advance(seconds=TTL - 1)
    a.put({1: {"pv": 1}})
    t.rack.clock.advance(seconds=2)

    with pytest.raises(LockExpired):
        a.renew()
    with pytest.raises(LockExpired):
        a.put({1: {"pv": 1}})
    a.release()
    with pytest.raises(Fenced):
        a.renew()


def test_an_expired_lock_is_reclaimed(t):
    """Lock tests: expired lock is reclaimed; its writes are refused even if nobody else took it."""
    t.begin("a", ["pv"])
    t.rack.clock.advance(seconds=TTL)

    t.begin("b", ["pv"]).put({1: {"pv": 1}})

    assert set(t.locks()) == {"b"}


def test_writes_are_held_to_the_columns_of_their_owner(t):
    """Lock tests: no lock → allowed; lock and no owner → denied; right owner → ok; uncovered column → denied."""
    t.put([{"k": 1, "pv": 1}], columns=["pv"])
    a = t.begin("a", ["pv", "top"])

    for columns in (["pv"], ["top", "title"]):
        with pytest.raises(ColumnLockConflict):
            t.put([{"k": 1, "pv": 1, "top": 1, "title": "x"}], columns=columns)
    with pytest.raises(ColumnLockConflict):
        t.put([{"k": 1, "pv": 1, "top": 1, "note": "n", "title": "x"}])
    with pytest.raises(InvalidRows):
        a.put({1: {"title": "x"}}, columns=("title",))
    t.put([{"k": 1, "title": "x"}], columns=["title"])
    a.put({1: {"top": 1}}, columns=("top",))
    with pytest.raises(ColumnLockConflict):
        t.table.delete([1])
    with pytest.raises(InvalidRows, match="whole"):
        a.delete([1], whole=True)

    t.check({1: {"pv": 1, "title": "x", "top": 1}})


def test_an_owner_of_all_columns_writes_any_and_deletes_whole_rows(t):
    """Lock tests: all-columns lock covers any subset."""
    a = t.begin("a", None)
    a.put([{"k": 1, "pv": 1, "top": 1, "note": "n", "title": "x"}])
    a.put({2: {"pv": 1}}, columns=("pv",))
    a.delete([1], whole=True)

    t.check({2: {"pv": 1}})


def test_an_owner_whose_columns_were_all_dropped_is_in_nobodys_way(rack):
    """It owns nothing then: whole rows are put, deleted and truncated, and all columns may be somebody else's."""
    t = rack.create("p", PLAIN)
    a = t.begin("a", ["a"])
    a.put({1: {"a": 1}, 2: {"a": 1}})
    with pytest.raises(ColumnLockConflict):
        t.table.truncate()
    t.table.drop_column("a")

    whole = [{"k": key, "b": "x", "at": None} for key in (1, 2, 3)]
    t.put(whole)
    t.table.delete([3])
    with t.table.transaction("app", 1) as tx:
        tx.truncate()
        tx.put(whole[:2])
    t.table.truncate()
    t.put(whole[:2])
    b = t.begin("b", None)
    b.put([{"k": 2, "b": "y", "at": None}])
    b.commit()
    a.rest()

    assert set(t.locks()) == {"b"}
    assert t.rows() == {1: {"b": "x"}, 2: {"b": "y"}}


def test_a_lock_spans_partitions_also_those_that_come_later(rack):
    """Lock tests: a partitioned table's lock spans partitions."""
    schema = kolk.Schema([kolk.Column("day", "int"), kolk.Column("k", "int"), kolk.Column("a", "int")], ["day", "k"])
    t = rack.create(schema=schema, partition_by=["day"])
    with t.table.writer("a", ["a"]) as w:
        w.put([{"day": 1, "k": 1, "a": 1}])
        w.commit()
        w.put([{"day": day, "k": day, "a": 9} for day in (1, 2, 3)])
        with pytest.raises(ColumnLockConflict):
            t.put([{"day": 4, "k": 1, "a": 1}])
        t.table.drop_partition(day=3)

    t.check({1: {"day": 1, "a": 1}})


def test_jobs_one_after_the_other_add_up_and_jobs_on_other_columns_run_beside(t):
    """Lock tests: job 2 on the same columns fails, sequential jobs aggregate right, others run concurrently."""
    with t.table.writer("one", ["pv"]) as one, t.table.writer("other", ["top"]) as other:
        one.put([{"k": 1, "pv": 10}])
        other.put([{"k": 1, "top": 3}])
        with pytest.raises(ColumnLockConflict):
            t.table.writer("two", ["pv"])
        one.commit()
        other.commit()
    with t.table.writer("two", ["pv"]) as two:
        two.put([{"k": 1, "pv": 5}])
        two.commit()

    t.check({1: {"pv": 15, "top": 3}})


def test_locks_commits_and_state_survive_a_restart(t):
    """Lock tests, new: a restart keeps locks and commit points, enforces at once, and gives one time of grace."""
    a = t.begin("a", ["pv"])
    a.put({1: {"pv": 1}})
    a.commit(0, state=b"here")
    a.put({1: {"pv": 2}}, 1)
    t.rack.clock.advance(seconds=TTL - 1)

    t.rack.reopen()

    with pytest.raises(ColumnLockConflict):
        t.put([{"k": 1, "pv": 1}], columns=["pv"])
    t.rack.clock.advance(seconds=TTL - 1)
    a.put({1: {"pv": 3}}, 1)
    again = t.begin("a", ["pv"])
    assert (again.record.committed, again.record.state) == (0, b"here")
    t.check({1: {"pv": 1}})


def test_a_dropped_table_takes_its_owners_with_it(t):
    """Table drop: its locks are gone, and a table of its name begins anew."""
    a = t.begin("a", ["pv"])
    a.put({1: {"pv": 1}}, 9)
    a.commit(9)
    info = t.table.info
    t.rack.db.drop_table("t")

    assert not t.engine._meta.list("owner/")
    with pytest.raises(TableNotFound):
        t.service.renew_owner(info.id, 1, 1)
    t = t.rack.create(buckets=1)
    assert t.begin("a", ["pv"]).record.committed == -1


def test_owners_of_tables_that_a_crash_dropped_halfway_are_swept(t, folder):
    """The catalog's record went, and the process before the owner's did."""
    t.begin("a", ["pv"])
    t.engine._catalog.drop(t.table.info)
    t.rack.reopen()

    assert not t.engine._meta.list("owner/")


def test_one_that_renews_is_not_held_up_by_one_that_begins(t):
    """An undo may last long; the locks of others must not run out meanwhile."""
    a, b = t.begin("a", ["pv"]), t.begin("b", ["top"])
    a.put({1: {"pv": 1}})
    b.put({1: {"top": 1}})

    seen = []
    t.begin("a", ["pv"], on_progress=lambda done, all: seen.append((done, all, in_another_thread(b.renew))))
    assert in_another_thread(b.commit) is b

    assert seen == [(0, 1, TTL), (1, 1, TTL)]
    t.check({1: {"top": 1}})


def test_an_epoch_that_is_no_number_and_a_tag_that_is_none_are_refused(t):
    a = t.begin()
    for epoch in (-1, 2**63, "1", None, True):
        with pytest.raises(InvalidArgument):
            a.put({1: {"pv": 1}}, epoch)
    for seq in (-1, 2**80, "x"):
        with pytest.raises(InvalidArgument):
            a.put({1: {"pv": 1}}, 0, seq=seq)
    a.put({1: {"pv": 1}}, 3)
    with pytest.raises(EpochClosed):
        a.put({1: {"pv": 1}}, 2)


def test_a_user_state_has_a_limit(t):
    a = t.begin()
    a.commit(0, state=b"x" * 65_536)
    with pytest.raises(InvalidArgument):
        a.commit(1, state=b"x" * 65_537)
    assert t.begin().record.state == b"x" * 65_536
