"""The writer that people use: its epochs, its state, its time, and its end."""

import gc
import json
import weakref

import pytest
from tests.spec.owned import TTL, open_rack

import kolk
from kolk.errors import Closed, ColumnLockConflict, Fenced, InvalidArgument, LockExpired, OwnerRolledBack


@pytest.fixture
def rack(folder):
    with open_rack(folder) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


def row(pv):
    return [{"k": 1, "pv": pv}]


def test_epochs_go_on_by_themselves_from_one_commit_to_the_next(t):
    with t.table.writer("a", ["pv"]) as w:
        assert (w.owner, w.epoch, w.committed, w.user_state) == ("a", 0, None, b"")
        for number in range(3):
            w.put(row(1))
            w.commit(user_state=b"at %d" % number)
        assert (w.epoch, w.committed) == (3, 2)
    with t.table.writer("a", "pv") as w:
        assert (w.epoch, w.committed, w.user_state) == (3, 2, b"at 2")
        w.put(row(5), epoch=100)
        assert w.epoch == 100
        w.commit()
        assert (w.epoch, w.committed) == (101, 100)

    t.check({1: {"pv": 8}})


def test_what_is_not_committed_when_the_block_ends_is_taken_back(t):
    with t.table.writer("a", ["pv"]) as w:
        w.put(row(1))
        w.commit()
        w.put(row(5))
    t.check({1: {"pv": 1}})

    with pytest.raises(InvalidArgument), t.table.writer("a", ["pv"]) as w:
        w.put([*row(5), {"k": 2, "pv": 5}]) and w.put(row(5), epoch=-1)
    t.check({1: {"pv": 1}})
    assert not t.locks()


def test_a_writer_that_is_closed_writes_no_more(t):
    w = t.table.writer("a", ["pv"])
    w.close()
    w.close()

    for call in (lambda: w.put(row(1)), lambda: w.delete([1]), w.commit):
        with pytest.raises(Closed):
            call()


def test_a_state_lets_another_process_go_on(t):
    """The owner's name and its commit point are in the checkpoint of the job, and win over what else is said."""
    w = t.table.writer("job", ["pv"])
    assert json.loads(w.state())["epoch"] is None
    w.put(row(1))
    w.commit()
    state = w.state()
    w.put(row(50))

    with t.table.writer("another name", ["pv"], state=state) as again:
        assert (again.owner, again.committed) == ("job", 0)
        with pytest.raises(Fenced):
            w.put(row(1))
        again.put(row(1))
        again.commit()

    t.check({1: {"pv": 2}})


def test_an_old_state_is_told_that_its_commit_point_is_gone(t):
    """H24: the job has lost a checkpoint; nothing is silently dropped or counted twice."""
    with t.table.writer("job", ["pv"]) as w:
        w.put(row(1))
        w.commit()
        state = w.state()
        w.put(row(1))
        w.commit()

    with pytest.raises(OwnerRolledBack):
        t.table.writer(state=state, columns=["pv"])
    t.check({1: {"pv": 2}})


def test_a_state_of_a_table_that_was_made_anew_is_refused(t):
    """F33: nothing that is in the new one is meant."""
    w = t.table.writer("job", ["pv"])
    w.put(row(1))
    w.commit()
    state = w.state()
    w.close()
    t.rack.db.drop_table("t")
    again = t.rack.create(buckets=2)

    with pytest.raises(InvalidArgument, match="another table"):
        again.table.writer(state=state, columns=["pv"])


@pytest.mark.parametrize("state", ["", "[]", "{", "7", "null", '{"owner": "a"}', 7])
def test_a_state_that_is_none_is_refused(t, state):
    with pytest.raises(InvalidArgument):
        t.table.writer("a", ["pv"], state=state)
    assert not t.locks()


def test_a_lock_lasts_as_long_as_its_writer_renews_it(t):
    """Every third of its time; when it came too late the writer knows, and says so."""
    w = t.table.writer("a", ["pv"], ttl=TTL)
    for _ in range(4):
        t.rack.clock.advance(seconds=TTL / 3)
        assert w._ticker.tick()
        t.rack.clock.advance(seconds=TTL / 2)
        w.turn()
    w.put(row(1))
    w.commit()
    t.rack.clock.advance(seconds=TTL)
    w.turn()

    with pytest.raises(LockExpired):
        w.put(row(1))
    w.commit()  # which is late, and stands as long as nobody has taken over
    w.close()
    t.check({1: {"pv": 1}})


def test_without_a_word_a_lock_lasts_a_minute(t):
    w = t.table.writer("a", ["pv"])
    w._ticker.stop()

    assert t.locks()["a"].seconds_left == pytest.approx(60)
    t.rack.clock.advance(seconds=59)
    w.put(row(1))
    t.rack.clock.advance(seconds=2)
    with pytest.raises(LockExpired):
        w.put(row(1))


def test_a_writer_that_nobody_has_any_more_renews_no_more(t):
    w = t.table.writer("a", ["pv"], ttl=TTL)
    ticker, gone = w._ticker, weakref.ref(w)
    del w
    gc.collect()

    assert gone() is None
    t.rack.clock.advance(seconds=TTL - 1)
    assert not ticker.tick()
    t.rack.clock.advance(seconds=1)
    t.begin("b")


def test_a_writer_of_some_columns_deletes_its_own_and_the_row_stays_with_others(t):
    t.put([{"k": key, "title": "x"} for key in (1, 2)], columns=["title"])
    with t.table.writer("a", ["pv", "top"]) as w:
        w.put([{"k": key, "pv": 1, "top": 1} for key in (1, 2, 3)])
        w.delete([1, 3])
        w.commit()

    t.check({1: {"title": "x"}, 2: {"pv": 1, "title": "x", "top": 1}})


def test_a_refused_put_leaves_the_writer_as_it_was(t):
    """Nothing of it was written anywhere, so the next one goes on, and the commit has what arrived."""
    with t.table.writer("a", ["pv"]) as w:
        w.put(row(1))
        for wrong in ([{"k": 1, "pv": "text"}], [{"k": None, "pv": 1}]):
            with pytest.raises(kolk.errors.InvalidRows):
                w.put(wrong)
        with pytest.raises(kolk.errors.InvalidRows):
            w.put([{"k": 1, "title": "x"}], columns=["title"])
        with pytest.raises(InvalidArgument):
            w.put(row(1), epoch=-1)
        w.put(row(1))
        w.commit()

    t.check({1: {"pv": 2}})


def test_a_writer_is_refused_columns_that_another_has(t):
    with t.table.writer("a", ["pv"]), pytest.raises(ColumnLockConflict, match="'a' owns"):
        t.table.writer("b", ["pv"])
    with t.table.writer("b", ["pv"]) as b:
        b.put(row(1))
