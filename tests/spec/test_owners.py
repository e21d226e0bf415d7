"""Owners, embedded: what a frame says of its writer, in which order a put is judged, and who may have which columns."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.spec.owned import PLAIN, TTL, open_rack

import kolk
from kolk.errors import (
    ColumnLockConflict,
    EpochClosed,
    Fenced,
    InvalidArgument,
    InvalidRows,
    LockExpired,
    StaleTag,
    TableNotFound,
)
from kolk.model.ids import OwnerTag, PlainTag


@pytest.fixture
def rack(folder):
    with open_rack(folder) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=1)


def in_another_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(10)


# --- shared ground


def test_each_put_has_a_frame_and_a_tag_of_its_own(t):
    """H1: one frame, one tag."""
    a, b = t.begin("a", ["pv"]), t.begin("b", ["top"])

    a.put({1: {"pv": 1}})
    b.put({1: {"top": 1}}, epoch=7)
    t.put([{"k": 1, "title": "x"}], columns=["title"])

    first, second, third = t.frames()
    assert first == OwnerTag(a.record.number, 1, 0, 0, 1)
    assert second == OwnerTag(b.record.number, 1, 0, 7, 1)
    assert isinstance(third, PlainTag)


def test_a_put_that_changes_nothing_leaves_a_frame_and_its_retry_does_nothing(t):
    """H2: a no-op is remembered, also after a restart."""
    a = t.begin("a", ["top"])
    a.put({1: {"top": 5}}, seq=1)
    a.put({1: {"top": 4}}, seq=2)

    t.rack.reopen()
    a.put({1: {"top": 3}}, seq=2)
    a.commit(0, {"0": 2})

    assert [tag.seq for tag in t.frames()] == [1, 2]
    t.check({1: {"top": 5}})


def test_a_retry_of_an_undone_put_is_fenced_and_not_acknowledged(t):
    """H3: the fence is looked at before it is asked whether the put arrived."""
    a = t.begin()
    a.put({1: {"pv": 1}}, seq=1)
    t.begin()

    with pytest.raises(Fenced):
        a.put({1: {"pv": 1}}, seq=1)

    t.check({})


def test_a_held_back_retry_of_a_put_that_stands_is_answered_as_it_was(t):
    """H3: within one fence nothing is taken back, so what arrived is told, also when its epoch is over."""
    a = t.begin()
    ends = a.put({1: {"pv": 1}}, 5, seq=1)
    a.put({1: {"pv": 2}}, 6, seq=2)

    assert a.put({1: {"pv": 1}}, 5, seq=1) == ends
    a.commit(5, {"0": 1})
    assert a.put({1: {"pv": 1}}, 5, seq=1) == ends

    t.check({1: {"pv": 3}})


def test_columns_are_judged_before_the_retry(t):
    """H3: a put beyond its columns is refused, whatever its count says."""
    a = t.begin()
    a.put({1: {"pv": 1}}, seq=1)

    with pytest.raises(InvalidRows, match="top"):
        a.put({1: {"top": 1}}, seq=1, columns=("top",))


def test_a_retry_older_than_what_is_remembered_is_no_guess(t):
    """H3: neither acknowledged nor done again."""
    a = t.begin()
    for seq in range(1, 9):
        a.put({seq: {"pv": 1}}, seq=seq)

    with pytest.raises(StaleTag):
        a.put({1: {"pv": 1}}, seq=1)


def test_a_late_put_within_the_remembered_ones_is_done_and_the_last_stays_the_last(t):
    """H3: counts of one bucket may come out of order; the commit names the greatest."""
    a = t.begin()
    a.put({1: {"pv": 1}}, seq=1)
    a.put({1: {"pv": 4}}, seq=3)
    a.put({1: {"pv": 2}}, seq=2)

    a.commit(0, {"0": 3})

    t.check({1: {"pv": 7}})


# --- who may begin


def test_a_table_whose_changelog_lacks_what_was_replaced_has_no_owners(rack):
    """H21: the table needs changelog.image=FULL."""
    t = rack.create(schema=PLAIN, options={"table.changelog.image": "wal"})

    with pytest.raises(InvalidArgument, match="image"):
        t.begin(columns=["a"])


def test_a_log_table_has_no_owners(rack):
    """H21: nor has a table without rows."""
    t = rack.create(schema=kolk.Schema([kolk.Column("a", "int")]))

    with pytest.raises(InvalidArgument, match="log table"):
        t.begin(columns=["a"])


def test_a_column_goes_with_the_one_that_decides_about_it(rack):
    """H22: a set of columns is closed under max_by and its like."""
    by = "max_by(by = 'at')"
    schema = kolk.Schema(
        [kolk.Column("k", "int"), kolk.Column("v", "int", agg=by), kolk.Column("at", "int", agg="max")], "k"
    )
    t = rack.create(schema=schema)

    for some in (["v"], ["at"]):
        with pytest.raises(InvalidArgument, match="decides"):
            t.begin(columns=some)

    a = t.begin(columns=["v", "at"])
    a.put({1: {"v": 1, "at": 5}}).keys()
    a.commit()
    a.put({1: {"v": 2, "at": 9}}, 1)
    t.begin(columns=["v", "at"])
    t.check({1: {"v": 1, "at": 5}})


@pytest.mark.parametrize("columns", [[], ["nowhere"], ["k"], "pv"], ids=["none", "unknown", "of the key", "text"])
def test_columns_that_cannot_be_owned_are_refused(t, columns):
    with pytest.raises(InvalidArgument):
        t.begin(columns=columns)

    assert not t.locks()


def test_a_column_that_is_never_null_is_not_owned_beside_others(rack):
    """What its owner inserts could not be taken back from a row that others have columns in."""
    schema = kolk.Schema(
        [kolk.Column("k", "int"), kolk.Column("a", "int", nullable=False), kolk.Column("b", "int")], "k"
    )
    t = rack.create(schema=schema)

    with pytest.raises(InvalidArgument, match="NOT NULL"):
        t.begin(columns=["a"])

    a = t.begin(columns=["a", "b"])
    a.put({1: {"a": 1, "b": 1}})
    t.begin(columns=None)
    t.check({})


@pytest.mark.parametrize("name", ["", "x" * 300, "a\nb", None, 7])
def test_names_that_cannot_be_owners_are_refused(t, name):
    """H10 of the field: names that are none."""
    with pytest.raises(InvalidArgument):
        t.begin(name)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e9])
def test_times_that_are_none_are_refused(t, ttl):
    with pytest.raises(InvalidArgument):
        t.begin(ttl=ttl)


def test_an_owner_of_all_columns_by_name_puts_and_deletes(rack):
    """All columns named are as good as all columns, and go on when there is one more."""
    t = rack.create(schema=PLAIN)
    with t.table.writer("a", ["a", "b", "at"]) as w:
        w.put([{"k": 1, "a": 1, "b": "x", "at": None}])
        w.put([{"k": 2, "a": 2, "b": "y", "at": None}])
        w.delete([2])
        t.table.add_column("more", "int")
        w.put([{"k": 1, "a": 5, "b": "x", "at": None}])
        w.commit()

    t.check({1: {"a": 5, "b": "x"}})


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
    assert t.engine.owners.counts["conflicts"] == 1


def test_all_columns_conflict_with_any(t):
    """Lock tests: all-columns conflicts with any, in both directions."""
    t.begin("a", ["pv"])
    with pytest.raises(ColumnLockConflict):
        t.begin("b", None)
    t.engine.release_owner(t.table.info.id, "a")
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
        t.engine.renew_owner(info.id, 1, 1)
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
