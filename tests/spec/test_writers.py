"""A writer in a job's hands: what it knows, what it says when asked for what cannot be, and how it ends."""

import pytest
from tests.spec.owned import PLAIN, TTL, open_rack

import kolk
from kolk.errors import (
    Closed,
    CommitMismatch,
    CommitPointGone,
    InvalidArgument,
    LockExpired,
    OwnerRolledBack,
    SchemaChanged,
    TableNotFound,
)


@pytest.fixture
def rack(folder, form):
    with open_rack(folder, form) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


# --- commits


@pytest.mark.parametrize("state", ["text", None, 7, bytearray(b"x"), b"x" * 65_537])
def test_a_state_that_no_commit_keeps_is_refused_and_the_epoch_stays_open(t, state):
    with t.table.writer("a", ["pv"]) as w:
        w.put([{"k": 1, "pv": 1}])
        with pytest.raises(InvalidArgument, match="bytes"):
            w.commit(user_state=state)
        assert (w.committed, w.epoch) == (None, 0)

        w.commit(user_state=b"x" * 65_536)

        assert w.committed == 0
    t.check({1: {"pv": 1}})


def test_a_commit_whose_answer_was_lost_has_the_state_that_was_committed_then(t):
    """Made again with another state it is acknowledged, and the writer knows what stands."""
    with t.table.writer("a", ["pv"]) as w:
        w.put([{"k": 1, "pv": 1}])
        known = w._record
        t.service.commit_owner(known.table, known.number, known.fence, 0, w._seqs[0], b"first")

        w.commit(user_state=b"second")

        assert (w.committed, w.epoch, w.user_state) == (0, 1, b"first")
        w.commit(0, b"third")
        assert (w.epoch, w.user_state) == (1, b"first")
    with t.table.writer("a", ["pv"]) as w:
        assert (w.committed, w.user_state) == (0, b"first")


# --- a lock whose time is up


def late(t, learns):
    """A writer with something uncommitted, which has learnt that its time is up: from a put, or by renewing."""
    w = t.table.writer("a", ["pv"], ttl=TTL)
    w.put([{"k": 1, "pv": 1}])
    w._ticker.stop()  # its process sleeps
    t.rack.clock.advance(seconds=TTL + 1)
    if learns == "by renewing":
        w.turn()
    with pytest.raises(LockExpired):
        w.put([{"k": 1, "pv": 10}])
    return w


@pytest.mark.parametrize("learns", ["by renewing", "from a put"])
def test_a_writer_whose_time_is_up_commits_if_nobody_took_its_place(t, learns):
    w = late(t, learns)

    w.commit(user_state=b"just in time")

    assert (w.committed, w.user_state) == (0, b"just in time")
    with pytest.raises(LockExpired):
        w.put([{"k": 1, "pv": 10}])
    w.close()
    with pytest.raises(Closed):
        w.commit()
    with t.table.writer("a", ["pv"]) as w:
        assert w.user_state == b"just in time"
    t.check({1: {"pv": 1}})


@pytest.mark.parametrize("learns", ["by renewing", "from a put"])
def test_a_writer_whose_place_was_taken_does_not_commit(t, learns):
    w = late(t, learns)
    with t.table.writer("b", ["pv"]):
        with pytest.raises(OwnerRolledBack):
            w.commit()
        w.close()

    t.check({})


# --- the end


def test_a_writer_of_a_table_that_was_dropped_ends_without_an_error(t):
    """Its owner went with the table; one of the new table of that name is another one."""
    with t.table.writer("a", ["pv"]) as w, t.table.writer("b", ["top"]) as b:
        w.put([{"k": 1, "pv": 1}])
        t.rack.db.drop_table("t")
        t.rack.create("t").begin("a")
        with pytest.raises(TableNotFound):
            w.put([{"k": 1, "pv": 1}])
        b.release()

    assert set(t.locks()) == {"a"}


# --- a table that is altered


@pytest.fixture
def p(rack):
    return rack.create("p", PLAIN, buckets=1)


def test_a_writer_goes_on_in_the_version_of_its_handle_also_when_that_is_altered(p):
    """Its columns are its own by their ids: renamed, moved or widened they have their new names, dropped they go."""
    table = p.table
    with table.writer("w", ["a", "b"]) as w:
        w.put([{"k": 1, "a": 1, "b": "x"}])
        table.alter([kolk.RenameColumn("a", "z"), kolk.WidenColumn("z", "bigint"), kolk.MoveColumn("b", first=True)])

        w.put([{"k": 1, "z": 2**40, "b": "y"}])
        w.put([{"k": 2, "z": 5, "b": "y"}])
        w.put([{"k": 2, "b": "z"}], columns=["b"])
        table.drop_column("b")
        w.put([{"k": 1, "z": 7}])
        w.delete([2])
        w.commit()

    p.check({1: {"z": 7}})


def test_a_writer_of_all_columns_has_those_too_that_its_handle_adds(p):
    table = p.table
    with table.writer("w") as w:
        w.put([{"k": 1, "a": 1, "b": "x", "at": None}])
        table.alter([kolk.DropColumn("at"), kolk.DropColumn("b"), kolk.AddColumn(kolk.Column("c", "int"))])
        w.put([{"k": 2, "a": 1, "c": 1}])
        w.delete([1])
        w.commit()

    p.check({2: {"a": 1, "c": 1}})


def test_a_writer_whose_columns_were_all_dropped_is_told_and_makes_no_empty_rows(p):
    table = p.table
    with table.writer("w", ["a"]) as w:
        table.drop_column("a")

        for call in (lambda: w.put([{"k": 1}]), lambda: w.put([{"k": 1}], columns=[]), lambda: w.delete([1])):
            with pytest.raises(InvalidArgument, match="dropped"):
                call()

    p.check({})


def test_a_handle_that_is_too_old_for_the_columns_it_names_is_told_before_anything_is_put(p):
    """The name is another column by now; what the old handle puts would be passed over."""
    old = p.table
    p.table.drop_column("a")
    p.table.add_column("a", "int")

    with pytest.raises(SchemaChanged, match="refresh"):
        old.writer("w", ["a", "b"])

    assert not p.locks()
    old.refresh()
    with old.writer("w", ["a", "b"]) as w:
        w.put([{"k": 1, "a": 1, "b": "x"}])
        w.commit()
    p.check({1: {"a": 1, "b": "x"}})


@pytest.mark.parametrize("columns", [7, ["nowhere"], [7], ["a", "a"], [], ["k"]])
def test_columns_that_no_writer_can_have_are_refused(p, columns):
    with pytest.raises(InvalidArgument):
        p.table.writer("w", columns)

    assert not p.locks()


# --- epochs that were decided elsewhere


class Killed(Exception):
    """What ends a job in the middle."""


def test_a_state_that_was_saved_before_the_commit_keeps_its_epoch(t):
    """The checkpoint has the state of the epoch, and the job dies before it comes to commit it."""
    w = t.table.writer("a", ["pv"])
    w.put([{"k": 1, "pv": 1}])
    w.commit()
    w.put([{"k": 1, "pv": 2}], epoch=7)
    saved = w.state(7)
    w.put([{"k": 1, "pv": 50}], epoch=8)
    w.detach()

    with t.table.writer(state=saved) as w:
        assert (w.owner, w.committed, w.epoch) == ("a", 7, 8)
        t.put([{"k": 1, "top": 1}], columns=["top"])  # it has its own columns, and no others
        w.put([{"k": 1, "pv": 4}])
        w.commit()

    t.check({1: {"pv": 7, "top": 1}})


def test_a_state_goes_on_after_the_last_commit_with_the_same_columns_and_the_same_undo(t):
    with t.table.writer("a", ["top"], undo="none") as w:
        w.commit(3)
        state = w.state()

    with t.table.writer(state=state) as w:
        assert (w.owner, w.committed) == ("a", 3)
        assert [(lock.columns, lock.undo) for lock in t.rack.db.locks()] == [(("top",), "none")]


def test_a_state_of_all_columns_has_all_of_them_and_columns_that_are_named_win(t):
    with t.table.writer("a") as w:
        w.commit()
        state = w.state()

    with t.table.writer(state=state):
        assert t.locks()["a"].columns is None
    with t.table.writer("other", ["pv", "top"], state=state, resume_epoch=5) as w:
        assert (w.owner, w.committed, t.locks()["a"].columns) == ("a", 0, ("pv", "top"))


def test_a_state_is_of_an_epoch_that_is_there_whole_and_can_be_gone_back_to(t):
    w = t.table.writer("a", ["pv"])
    w.put([{"k": 1, "pv": 1}], epoch=5)
    w.commit(5)
    with pytest.raises(InvalidArgument):
        w.state(4)
    with pytest.raises(InvalidArgument):
        w.state(-1)
    w._unsure = (6, 9)  # a put that is in doubt
    with pytest.raises(CommitMismatch):
        w.state(6)
    w.close()

    with pytest.raises(Closed):
        w.state(6)
    assert '"epoch": 5' in w.state()


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_state_from_before_what_is_committed_is_not_gone_on_from(t, epochs):
    """Also one from before the first commit: what came after it would be written twice."""
    states = []
    with t.table.writer("a", ["pv"]) as w:
        for _ in range(epochs):
            states.append(w.state())
            w.put([{"k": 1, "pv": 1}])
            w.commit()

    with pytest.raises(CommitPointGone):
        t.table.writer(state=states[-1])

    assert not t.locks()
    t.check({1: {"pv": epochs}})


@pytest.mark.parametrize("state", ["", "no", "[]", "{}", 7, '{"owner": "a", "table": 1, "epoch": 1}'])
def test_a_text_that_is_no_state_is_refused(t, state):
    with pytest.raises(InvalidArgument, match="state"):
        t.table.writer(state=state)


def test_a_state_is_of_its_own_table_and_not_of_one_that_was_made_anew(t):
    with t.table.writer("a", ["pv"]) as w:
        state = w.state()
    t.rack.db.drop_table("t")
    t = t.rack.create("t")

    with pytest.raises(InvalidArgument, match="another table"):
        t.table.writer(state=state)


def _detach_and_fail(w):
    w.detach()
    raise Killed


def test_a_writer_that_is_detached_leaves_everything_as_it_is_for_who_begins_next(t):
    """The job's own checkpoint has the epoch: an error before its commit must not lose it."""
    w = t.table.writer("a", ["pv"])
    w.put([{"k": 1, "pv": 1}])
    checkpoint = w.epoch
    w.put([{"k": 1, "pv": 10}], epoch=checkpoint + 1)

    with pytest.raises(Killed), w:
        _detach_and_fail(w)
    w.detach()
    w.close()
    with pytest.raises(Closed):
        w.put([{"k": 1, "pv": 1}])
    with pytest.raises(Closed):
        w.commit()
    t.check({1: {"pv": 11}})

    with t.table.writer("a", ["pv"], resume_epoch=checkpoint) as w:
        t.check({1: {"pv": 1}})
        assert (w.committed, w.epoch) == (0, 1)
    t.check({1: {"pv": 1}})


def test_a_writer_that_is_detached_does_not_renew(t):
    w = t.table.writer("a", ["pv"], ttl=TTL)
    w.detach()
    t.rack.clock.advance(seconds=TTL - 1)
    w.turn()
    t.rack.clock.advance(seconds=2)

    t.put([{"k": 1, "pv": 1}], columns=["pv"])


def test_detaching_a_writer_that_was_closed_changes_nothing(t):
    w = t.table.writer("a", ["pv"])
    w.put([{"k": 1, "pv": 1}])
    w.close()
    w.detach()

    assert not t.locks()
    t.check({})


def test_a_job_over_two_tables_that_fails_between_its_commits_has_the_epoch_in_both(rack, t):
    """H35: the first commit decides; the second writer must not take back what was decided, however the job ends."""
    u = rack.create("u", buckets=2)

    def run(fails=False):
        first = t.table.writer("job", ["pv"])
        second = u.table.writer("job", ["pv"], resume_epoch=first.committed)
        try:
            for epoch in range(first.epoch, 2):
                first.put([{"k": 1, "pv": 1 + epoch}])
                second.put([{"k": 1, "pv": 1 + epoch}])
                first.commit()
                if fails:
                    raise Killed
                second.commit()
            first.close()
            second.close()
        finally:
            first.detach()
            second.detach()

    with pytest.raises(Killed):
        run(fails=True)
    run()

    t.check({1: {"pv": 3}})
    u.check({1: {"pv": 3}})
    assert not rack.db.locks()
