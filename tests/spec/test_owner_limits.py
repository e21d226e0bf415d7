"""What an owner may ask for, and how much of it is kept: in the catalog, in memory, in each bucket."""

import shutil

import pytest
from tests.spec.owned import PLAIN, TTL, Owned, open_rack

import kolk
from kolk.errors import ColumnLockConflict, Fenced, InvalidArgument, OwnerRolledBack, TooLarge, TooManyOwners


@pytest.fixture
def rack(folder):
    with open_rack(folder) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=1)


# --- what is asked for


@pytest.mark.parametrize("text", ["x" * 257, "x" * 1_000_000, "a\nb", "\ud800", 7])
@pytest.mark.parametrize("what", ["stream", "attempt"])
def test_streams_and_tokens_that_no_record_holds_are_refused(t, what, text):
    a = t.begin()

    with pytest.raises(InvalidArgument, match=what):
        t.begin(**{what: text})

    a.put({1: {"pv": 1}})


@pytest.mark.parametrize("name", ["Zähler", "計數器", "a/b/../c", "50%", "🚀", "ö" * 256])
def test_an_owner_may_have_any_name_that_can_be_printed(t, name):
    """Names come from outside: they are told apart, found again after a restart, and hurt nobody."""
    a = t.begin(name, stream=name, attempt=name)
    a.put({1: {"pv": 1}})
    a.commit()
    t.rack.reopen()

    again = t.begin(name, stream=name, attempt="next")

    assert (again.record.number, again.record.committed) == (a.record.number, 0)
    assert set(t.locks()) == {name}
    assert again.release()
    assert not t.engine._meta.list("owner/")


@pytest.mark.parametrize("epoch", [-1, 2**62 + 1, 2**70, "1", True, 1.0])
def test_an_epoch_that_is_none_is_neither_committed_nor_resumed(t, epoch):
    a = t.begin()
    with pytest.raises(InvalidArgument):
        a.commit(epoch, {})
    with pytest.raises(InvalidArgument):
        a.commit_tasks(epoch, {})
    with pytest.raises(InvalidArgument):
        t.begin(resume_epoch=epoch)

    a.put({1: {"pv": 1}}, 2**62)
    a.commit(2**62)
    t.rack.reopen()
    assert t.begin().record.committed == 2**62


def test_a_column_named_twice_is_one(rack):
    schema = kolk.Schema(
        [kolk.Column("k", "int"), kolk.Column("a", "int", nullable=False), kolk.Column("b", "int")], "k"
    )
    t = rack.create("u", schema)
    with pytest.raises(InvalidArgument, match="NOT NULL"):
        t.begin(columns=["a", "a"])

    t.begin(columns=["b", "b"])

    assert t.locks()["a"].columns == ("b",)


def test_h32_beside_an_owner_of_all_columns_nobody_makes_rows(rack):
    """Its undo is exact, so also whether a row is there is its own; beside one of some columns keys are everybody's."""
    p = rack.create("p", PLAIN, buckets=1)
    a = p.begin(columns=None)
    with pytest.raises(ColumnLockConflict):
        p.put([{"k": 1}], columns=[])
    with pytest.raises(ColumnLockConflict), p.table.transaction("app", 1) as tx:
        tx.put([{"k": 1}], columns=[])
    a.rest()
    p.begin(columns=["a"]).put({2: {"a": 1}})

    p.put([{"k": 1}], columns=[])
    p.begin(columns=["a"])

    p.check({1: {}})


# --- what is kept


def test_owners_that_are_gone_are_forgotten_by_the_buckets_and_by_the_engine(t):
    """Thousands of jobs, each under a name of its own, leave nothing behind once they are released."""
    for number in range(20):
        a = t.begin(f"job-{number}")
        a.put({1: {"pv": 1}})
        a.commit()
        a.release()
    last = t.begin("last")
    last.put({1: {"pv": 1}})

    assert list(views(t)) == [last.record.number]
    assert set(t.engine.owners._records) == {(t.table.info.id, "last")}
    assert len(t.engine.owners._mutexes) <= 2
    t.rack.reopen()
    assert list(views(t)) == [last.record.number]


def test_calls_in_the_name_of_owners_that_are_not_there_leave_nothing(t):
    """Whether they never were, as only one that means harm says, or come too late."""
    late = t.begin("late").record
    t.engine.release_owner(t.table.info.id, "late")
    id = t.table.info.id

    for number in (late.number, *range(1_000, 1_020)):
        for call in (
            lambda number=number: t.engine.commit_owner(id, number, 1, 0, {}, b""),
            lambda number=number: t.engine.commit_tasks(id, number, 1, 0, {}, b""),
            lambda number=number: t.engine.begin_task(id, number, 1, 0, 0),
        ):
            with pytest.raises(Fenced):
                call()
        t.engine.rest_owner(id, number, 1)

    assert len(t.engine.owners._mutexes) == 0


def test_an_owner_that_rests_is_forgotten_by_its_buckets_and_goes_on_all_the_same(t):
    """What it has committed is in its record; its counts begin anew with its fence."""
    a = t.begin("a")
    a.put({1: {"pv": 1}}, 7)
    a.commit(7)
    a.rest()
    b = t.begin("b")
    b.put({1: {"pv": 10}}, 0)
    assert list(views(t)) == [b.record.number]
    b.commit(0)
    b.release()

    a = t.begin("a")
    a.put({1: {"pv": 100}}, 7)
    a.put({1: {"pv": 100}}, 8)
    t.begin("a")

    t.check({1: {"pv": 11}})


def test_many_epochs_of_one_who_has_let_go_do_not_slow_down_a_replay(t, folder, tmp_path):
    """A bucket that opens after a crash does its frames again; of what was committed it keeps nothing on the way."""
    a = t.begin()
    for epoch in range(100):
        a.put({1: {"pv": 1}}, epoch)
        a.commit(epoch)
    a.rest()
    shutil.copytree(folder, tmp_path / "crashed")

    with open_rack(tmp_path / "crashed") as rack:
        again = Owned(rack, "t")
        assert [len(view.epochs) for view in views(again).values()] == [1]
        again.check({1: {"pv": 100}})


def test_epochs_that_are_not_committed_have_a_limit(t, monkeypatch):
    """A bucket names each of them with every put."""
    monkeypatch.setattr("kolk.tablet.owning._EPOCHS_MAX", 5)
    a = t.begin()
    for epoch in range(5):
        a.put({1: {"pv": 1}}, epoch)
    a.put({1: {"pv": 1}}, 4)

    with pytest.raises(TooLarge, match="commit first"):
        a.put({1: {"pv": 1}}, 5)

    a.commit(1)
    for epoch in (5, 6):
        a.put({1: {"pv": 1}}, epoch)
    with pytest.raises(TooLarge):
        a.put({1: {"pv": 1}}, 7)
    t.begin()
    t.check({1: {"pv": 2}})


def views(t):
    info = t.table.info
    with t.engine._tablets.use_one(info, info.bucket_ids[0]) as tablet:
        return tablet.owners()


# --- how many are remembered


def ended(t, name, columns=("pv",)):
    """An owner that has committed and let go."""
    a = t.begin(name, columns)
    a.commit(0, {})
    a.rest()


def test_a_table_remembers_so_many_owners_and_no_more(folder, form):
    """Those that are known come and go as before; a new one is told which of them it may be time to release."""
    with open_rack(folder, form, owners_per_table_max=3) as rack:
        t, u = rack.create("t"), rack.create("u")
        ended(t, "old")
        rack.clock.advance(seconds=1)
        ended(t, "older no more")
        b = t.begin("b", ["top"])
        b.put({1: {"top": 1}})
        rack.clock.advance(seconds=TTL)

        with pytest.raises(TooManyOwners, match=r"owners_per_table_max.*'old', 'older no more'$") as caught:
            t.begin("new", ["top"])
        assert not caught.value.retriable
        assert set(t.locks()) == {"b"}  # a begin that is refused takes nobody's columns
        t.begin("old", reset=True)
        u.begin("new")
        assert rack.engine.status()["owners"]["remembered"] == 4

        assert rack.db.release_lock("t", "older no more")
        t.begin("new", ["top"])


def test_a_database_remembers_so_many_owners_and_no_more(folder, form):
    with open_rack(folder, form, owners_max=2) as rack:
        t, u = rack.create("t"), rack.create("u")
        ended(t, "a")
        u.begin("a")
        rack.reopen()

        with pytest.raises(TooManyOwners, match="owners_max"):
            t.begin("b")
        t.begin("a")
        rack.db.drop_table("u")
        t.begin("b", ["top"])


def test_an_owner_that_has_let_go_is_forgotten_after_a_year(t):
    """Also one whose time was up with everything committed; after a restart as before."""
    ended(t, "a")
    b = t.begin("b", ["top"])
    b.commit(0, {})
    t.rack.clock.advance(seconds=TTL)
    t.put([{"k": 1, "top": 1}], columns=["top"])
    t.rack.clock.advance(seconds=365 * 86_400 - TTL)
    t.engine.reap()
    assert t.engine.owners.totals().remembered == 2
    t.rack.clock.advance(seconds=1)

    t.engine.reap()

    assert t.engine.owners.totals().remembered == 0
    assert not t.engine._meta.list("owner/")
    t.rack.reopen()
    assert t.begin("a").record.committed == -1


@pytest.mark.parametrize("is_reopened", [False, True], ids=["in use", "while nothing runs"])
def test_an_owner_that_has_let_go_is_not_forgotten_because_the_clock_is_put_forward(t, is_reopened):
    ended(t, "a")
    t.rack.clock.jump(2 * 365 * 86_400_000)
    if is_reopened:
        t.rack.reopen()

    t.engine.reap()

    assert t.begin("a").record.committed == 0


def test_an_owner_is_not_forgotten_while_it_has_something_to_hear_or_columns(t):
    """One that was taken back has to be told, however late; one that comes back has its year anew."""
    told = t.begin("told", ["pv"])
    told.put({1: {"pv": 1}}, 5)
    t.rack.clock.advance(seconds=TTL)
    t.begin("other", ["pv"]).rest()
    ended(t, "back", ["top"])
    t.rack.clock.advance(seconds=200 * 86_400)
    ended(t, "back", ["top"])
    idle = t.begin("idle", ["note"])
    idle.commit(0, {})
    t.rack.clock.advance(seconds=200 * 86_400)

    for _ in range(2):
        t.engine.reap()

    assert t.engine.owners.totals().remembered == 3
    with pytest.raises(OwnerRolledBack):
        t.begin("told", ["pv"], resume_epoch=5)
    assert (t.begin("back", ["top"]).record.committed, t.begin("idle", ["note"]).record.committed) == (0, 0)
