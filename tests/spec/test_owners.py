"""Owners: what a frame says of its writer, in which order a put is judged, and who may have which columns."""

import pytest
from tests.spec.owned import PLAIN, open_rack

import kolk
from kolk.errors import (
    Fenced,
    InvalidArgument,
    InvalidRows,
    StaleTag,
)
from kolk.model.ids import OwnerTag, PlainTag


@pytest.fixture
def rack(folder, form):
    with open_rack(folder, form) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=1)


# --- shared ground


def test_h1_each_put_has_a_frame_and_a_tag_of_its_own(t):
    """H1: one frame, one tag."""
    a, b = t.begin("a", ["pv"]), t.begin("b", ["top"])

    a.put({1: {"pv": 1}})
    b.put({1: {"top": 1}}, epoch=7)
    t.put([{"k": 1, "title": "x"}], columns=["title"])

    first, second, third = t.frames()
    assert first == OwnerTag(a.record.number, 1, 0, 0, 1)
    assert second == OwnerTag(b.record.number, 1, 0, 7, 1)
    assert isinstance(third, PlainTag)


def test_h2_a_put_that_changes_nothing_leaves_a_frame_and_its_retry_does_nothing(t):
    """H2: a no-op is remembered, also after a restart."""
    a = t.begin("a", ["top"])
    a.put({1: {"top": 5}}, seq=1)
    a.put({1: {"top": 4}}, seq=2)

    t.rack.reopen()
    a.put({1: {"top": 3}}, seq=2)
    a.commit(0, {"0": 2})

    assert [tag.seq for tag in t.frames()] == [1, 2]
    t.check({1: {"top": 5}})


def test_h3_a_retry_of_an_undone_put_is_fenced_and_not_acknowledged(t):
    """H3: the fence is looked at before it is asked whether the put arrived."""
    a = t.begin()
    a.put({1: {"pv": 1}}, seq=1)
    t.begin()

    with pytest.raises(Fenced):
        a.put({1: {"pv": 1}}, seq=1)

    t.check({})


def test_h3_a_held_back_retry_of_a_put_that_stands_is_answered_as_it_was(t):
    """H3: within one fence nothing is taken back, so what arrived is told, also when its epoch is over."""
    a = t.begin()
    ends = a.put({1: {"pv": 1}}, 5, seq=1)
    a.put({1: {"pv": 2}}, 6, seq=2)

    assert a.put({1: {"pv": 1}}, 5, seq=1) == ends
    a.commit(5, {"0": 1})
    assert a.put({1: {"pv": 1}}, 5, seq=1) == ends

    t.check({1: {"pv": 3}})


def test_h3_columns_are_judged_before_the_retry(t):
    """H3: a put beyond its columns is refused, whatever its count says."""
    a = t.begin()
    a.put({1: {"pv": 1}}, seq=1)

    with pytest.raises(InvalidRows, match="top"):
        a.put({1: {"top": 1}}, seq=1, columns=("top",))


def test_h3_a_retry_older_than_what_is_remembered_is_no_guess(t):
    """H3: neither acknowledged nor done again."""
    a = t.begin()
    for seq in range(1, 9):
        a.put({seq: {"pv": 1}}, seq=seq)

    with pytest.raises(StaleTag):
        a.put({1: {"pv": 1}}, seq=1)


def test_h3_a_late_put_within_the_remembered_ones_is_done_and_the_last_stays_the_last(t):
    """H3: counts of one bucket may come out of order; the commit names the greatest."""
    a = t.begin()
    a.put({1: {"pv": 1}}, seq=1)
    a.put({1: {"pv": 4}}, seq=3)
    a.put({1: {"pv": 2}}, seq=2)

    a.commit(0, {"0": 3})

    t.check({1: {"pv": 7}})


# --- who may begin


def test_h21_a_table_whose_changelog_lacks_what_was_replaced_has_no_owners(rack):
    """H21: the table needs changelog.image=FULL."""
    t = rack.create(schema=PLAIN, options={"table.changelog.image": "wal"})

    with pytest.raises(InvalidArgument, match="image"):
        t.begin(columns=["a"])


def test_h21_a_log_table_has_no_owners(rack):
    """H21: nor has a table without rows."""
    t = rack.create(schema=kolk.Schema([kolk.Column("a", "int")]))

    with pytest.raises(InvalidArgument, match="log table"):
        t.begin(columns=["a"])


def test_h22_a_column_goes_with_the_one_that_decides_about_it(rack):
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
