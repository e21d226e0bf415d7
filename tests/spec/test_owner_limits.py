"""What an owner may ask for, and how much of it is kept: in the catalog, in memory, in each bucket."""

import pytest
from tests.spec.owned import PLAIN, open_rack

import kolk
from kolk.errors import ColumnLockConflict, InvalidArgument


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
