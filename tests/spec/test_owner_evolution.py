"""Owners of tables that are altered under them: columns added, dropped, renamed and widened, and some together."""

import pytest
from tests.spec.owned import open_rack

import kolk
from kolk.errors import ColumnLockConflict, InvalidArgument, InvalidRows


@pytest.fixture
def rack(folder):
    with open_rack(folder) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(schema=plain("a", "b", "c"), buckets=1)


def plain(*names):
    return kolk.Schema([kolk.Column("k", "int"), *(kolk.Column(name, "int") for name in names)], "k")


def test_the_owner_of_all_columns_has_those_that_come_later(t):
    """And they are taken back with the others, also of rows whose first image lacks them."""
    t.put([{"k": 1, "a": 1, "b": 1, "c": 1}])
    a = t.begin(columns=None)
    a.put([{"k": 1, "a": 5, "b": 5, "c": 5}, {"k": 2, "a": 5, "b": 5, "c": 5}])
    t.table.add_column("d", "int", default=7)
    a.put([{"k": 1, "d": 9}, {"k": 3, "d": 9}], columns=("d",))
    with pytest.raises(ColumnLockConflict):
        t.put([{"k": 1, "d": 1}], columns=["d"])

    t.begin(columns=None)

    assert t.rows() == {1: {"a": 1, "b": 1, "c": 1, "d": 7}}


def test_the_owner_of_some_columns_does_not_have_those_that_come_later(t):
    a = t.begin(columns=["a", "b", "c"])
    a.put({1: {"a": 5, "b": 5, "c": 5}})
    t.table.add_column("d", "int")
    with pytest.raises(InvalidRows, match="'a' does not own d"):
        a.put({1: {"d": 9}}, columns=("d",))
    t.put([{"k": 1, "d": 1}], columns=["d"])

    t.begin(columns=["a", "b", "c"])

    assert t.rows() == {1: {"d": 1}}


def test_a_column_of_the_name_of_one_that_was_dropped_is_another_one(t):
    """Nobody owns it because of its name, and no old image comes back into it."""
    t.put([{"k": 1, "a": 1, "b": 1, "c": 1}])
    a = t.begin(columns=["a"])
    a.put({1: {"a": 5}})
    t.table.drop_column("a")
    t.table.add_column("a", "string")

    with pytest.raises(InvalidRows, match="does not own a"):
        a.put([{"k": 1, "a": "mine"}])
    t.put([{"k": 1, "a": "text"}], columns=["a"])
    assert t.locks()["a"].columns == ()
    t.begin(columns=["a"])

    assert t.rows() == {1: {"a": "text", "b": 1, "c": 1}}


def test_columns_that_swapped_their_names_are_taken_back_by_their_ids(t):
    t.put([{"k": 1, "a": 1, "b": 2}], columns=["a", "b"])
    a = t.begin(columns=["a"])
    a.put({1: {"a": 5}})
    t.table.alter([kolk.RenameColumn("a", "x"), kolk.RenameColumn("b", "a"), kolk.RenameColumn("x", "b")])
    t.put([{"k": 1, "a": 9}], columns=["a"])
    with pytest.raises(ColumnLockConflict):
        t.put([{"k": 1, "b": 9}], columns=["b"])

    t.begin(columns=["b"])

    assert t.rows() == {1: {"a": 9, "b": 1}}
    assert t.locks()["a"].columns == ("b",)


def test_h22_a_column_that_is_chosen_by_an_owned_one_is_written_with_it(rack):
    """It comes after the owner, who has the column that decides, and not this one: neither is written before the owner
    has both."""
    by = "max_by(by = 'at')"
    schema = kolk.Schema(
        [kolk.Column("k", "int"), kolk.Column("at", "int", agg="max"), kolk.Column("n", "int", agg="sum")], "k"
    )
    t = rack.create(schema=schema, buckets=1)
    a = t.begin(columns=["at"])
    a.put({1: {"at": 1}})
    a.commit()
    t.table.add_column("v", "int", agg=by)

    with pytest.raises(InvalidRows):
        a.put({1: {"at": 2}}, 1)
    with pytest.raises(InvalidRows, match="does not own v"):
        a.put({1: {"at": 2, "v": 2}}, 1, columns=("at", "v"))
    with pytest.raises(ColumnLockConflict):
        t.put([{"k": 1, "at": 9, "v": 9}], columns=["at", "v"])
    with pytest.raises(InvalidArgument, match="decides"):
        t.begin(columns=["at"])
    b = t.begin(columns=["at", "v"])
    b.put({1: {"at": 9, "v": 9}}, 1)
    t.begin(columns=["at", "v"])

    assert t.rows() == {1: {"at": 1}}


def test_a_column_that_is_never_null_stays_with_the_owner_of_all_when_one_more_comes(rack):
    """What it inserts can be taken back from rows that others have columns in only as a whole."""
    schema = kolk.Schema(
        [kolk.Column("k", "int"), kolk.Column("a", "int", nullable=False), kolk.Column("b", "int")], "k"
    )
    t = rack.create(schema=schema, buckets=1)
    a = t.begin(columns=["a", "b"])
    a.put({1: {"a": 1, "b": 1}})
    a.commit()
    a.put({1: {"a": 5, "b": 5}, 2: {"a": 5, "b": 5}}, 1)
    t.table.add_column("c", "int")
    with pytest.raises(InvalidRows, match="NOT NULL"):
        t.put([{"k": 1, "c": 3}, {"k": 2, "c": 3}], columns=["c"])
    with pytest.raises(InvalidArgument, match="NOT NULL"):
        t.begin(columns=["a", "b"])

    t.begin(columns=None)

    assert t.rows() == {1: {"a": 1, "b": 1}}


@pytest.mark.parametrize(
    ("type", "default"),
    [("double", float("nan")), ("timestamp(9)", "2020-01-01T00:00:00.123456789"), ("decimal(10, 2)", "1.50"),
     ("boolean", True), ("string", "")],
)  # fmt: skip
def test_a_default_of_any_type_is_nobodys_value(rack, type, default):
    """A row that an owner made goes whole, whatever the others began with."""
    last = kolk.Column("d", type, default=default)
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("a", "int"), last], "k")
    t = rack.create(schema=schema, buckets=1)
    t.begin(columns=["a"]).put({1: {"a": 1}})

    t.begin(columns=["a"])

    assert t.rows() == {}
    b = t.begin("b", ["d"])
    b.put({1: {"d": None}})
    b.commit()
    b.delete([1], 1)
    t.begin("b", ["d"])
    assert t.rows() == {}


def test_a_writer_goes_on_over_every_kind_of_change(t):
    """The handle is older than the table; what it names is found by id, and its commits count what was written."""
    with t.table.writer("w", ["a", "b"]) as w:
        w.put([{"k": 1, "a": 1, "b": 1}])
        other = t.rack.db.table("t")
        other.alter([kolk.RenameColumn("a", "z"), kolk.WidenColumn("b", "bigint"), kolk.DropColumn("c")])
        w.put([{"k": 1, "a": 2, "b": 2}])
        w.commit()
        other.drop_column("b")
        w.put([{"k": 1, "a": 3, "b": 3}])
        w.delete([1])

    assert t.rows() == {1: {"z": 2}}
