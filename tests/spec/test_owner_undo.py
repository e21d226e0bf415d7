"""Undo: what an owner has not committed is taken back, and nothing else is touched."""

import pytest
from tests.spec.owned import PLAIN, open_rack

import kolk
from kolk.model.ids import UndoTag

KEYS = range(6)


@pytest.fixture
def rack(folder):
    with open_rack(folder, log_segment_bytes=1) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


@pytest.fixture
def p(rack):
    return rack.create(schema=PLAIN, buckets=1)


def every(keys=KEYS, **values):
    return {key: values for key in keys}


# --- what comes back


def test_the_first_image_of_a_key_is_what_comes_back(t):
    """F1, F2, F3, the worked example: +I goes, the first -U comes back, +U says nothing, -D comes back."""
    t.put([{"k": 1, "pv": 10}, {"k": 3, "pv": 2}], columns=["pv"])
    a = t.begin()
    a.put({1: {"pv": 5}})
    a.put({2: {"pv": 7}})
    a.put({1: {"pv": 3}})
    a.delete([3])
    assert t.rows() == {1: {"pv": 18}, 2: {"pv": 7}}

    t.begin()

    t.check({1: {"pv": 10}, 3: {"pv": 2}})


@pytest.mark.parametrize(
    ("column", "values"),
    [("pv", (1, 2, 4)), ("top", (5, 9, 7)), ("note", ("a", "b", "c")), ("title", ("x", "y", None))],
)
def test_every_function_is_taken_back_by_its_image(t, column, values):
    """No function is inverted: sum, max, listagg and last_value alike."""
    a = t.begin(columns=(column,))
    a.put({1: {column: values[0]}})
    a.commit()
    before = t.rows()
    a.put({1: {column: values[1]}}, 1)
    a.put({1: {column: values[2]}, 2: {column: values[1]}}, 1)

    t.begin(columns=(column,))

    t.check(before)


def test_h32_all_columns_are_taken_back_exactly_also_rows_without_a_value(p):
    """H32: under a lock of all columns undo is exact."""
    a = p.begin(columns=None)
    a.put([{"k": 1, "a": None, "b": None, "at": None}, {"k": 2, "a": 1, "b": None, "at": None}])
    a.commit()
    a.delete([1, 2], 1, whole=True)
    a.put([{"k": 3, "a": None, "b": None, "at": None}], 1)

    p.begin(columns=None)

    p.check({1: {}, 2: {"a": 1}})


def test_h32_undo_never_makes_a_row_without_values(p):
    """H32: under a lock of some columns such a row counts as absent; the zombie row of the field."""
    p.put([{"k": 1, "b": "x"}], columns=["b"])
    a = p.begin(columns=["a"])
    a.put({1: {"a": 5}, 2: {"a": 5}})
    p.table.delete([1], columns=["b"])
    p.put([{"k": 2, "b": None}], columns=["b"])

    p.begin(columns=["a"])

    p.check({})


def test_what_others_wrote_stays(p):
    """G2, G3: others' columns are as they are now, also in rows that the owner made, or removed."""
    p.put([{"k": 1, "a": 1, "b": "old", "at": None}])
    a = p.begin(columns=["a"])
    a.put({1: {"a": 5}, 2: {"a": 5}, 3: {"a": 5}})
    p.put([{"k": 1, "b": "new"}, {"k": 2, "b": "theirs"}], columns=["b"])
    a.put({4: {"a": 5}})
    a.delete([4])
    p.put([{"k": 4, "b": "again"}], columns=["b"])

    p.begin(columns=["a"])

    p.check({1: {"a": 1, "b": "new"}, 2: {"b": "theirs"}, 4: {"b": "again"}})


def test_an_own_delete_then_anothers_insert_gets_the_own_columns_back(p):
    """Own -D then another's +I: own columns come back into their row."""
    p.put([{"k": 1, "a": 1}], columns=["a"])
    a = p.begin(columns=["a"])
    a.delete([1])
    assert p.rows() == {}
    p.put([{"k": 1, "b": "new"}], columns=["b"])

    p.begin(columns=["a"])

    p.check({1: {"a": 1, "b": "new"}})


def test_defaults_are_nobodys(rack):
    """A row that an owner made goes, with the defaults of the other columns; where others wrote, the own is default."""
    schema = kolk.Schema(
        [kolk.Column("k", "int"), kolk.Column("a", "int", nullable=False, default=0), kolk.Column("b", "int"),
         kolk.Column("c", "int", default=7)],
        "k",
    )  # fmt: skip
    p = rack.create(schema=schema)
    a = p.begin(columns=["a"])
    a.put({1: {"a": 5}, 2: {"a": 5}})
    p.put([{"k": 2, "b": 1}], columns=["b"])

    a = p.begin(columns=["a"])

    p.check({2: {"a": 0, "b": 1, "c": 7}})
    b = p.begin("b", columns=["c"])
    b.put({2: {"c": None}})
    b.commit()
    a.put({2: {"a": 9}}, 1)
    p.begin(columns=["a"])
    p.check({2: {"a": 0, "b": 1}})


def test_a_row_that_comes_back_has_no_defaults_that_it_did_not_have(rack):
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("a", "int"), kolk.Column("c", "int", default=7)], "k")
    p = rack.create(schema=schema)
    p.put([{"k": 1, "a": 1, "c": None}])
    p.begin(columns=["a"]).delete([1])
    assert p.rows() == {}

    p.begin(columns=["a"])

    p.check({1: {"a": 1}})


@pytest.mark.parametrize("behavior", ["ignore", "disable", "allow"])
def test_undo_does_not_ask_what_clients_may_delete(rack, behavior):
    """Undo bypasses the delete behaviour."""
    t = rack.create(options={"table.delete.behavior": behavior})
    a = t.begin()
    a.put(every(pv=1))

    t.begin()

    t.check({})


@pytest.mark.parametrize("options", [{"table.merge-engine": "first_row"}, {"table.merge-engine": "versioned",
                                      "table.merge-engine.versioned.ver-column": "a"}])  # fmt: skip
def test_whole_rows_of_other_merge_engines_are_taken_back(rack, options):
    p = rack.create(schema=PLAIN, options=options)
    rows = [{"k": key, "a": 5, "b": "x", "at": None} for key in KEYS]
    p.put(rows[:2])
    p.begin(columns=None).put([row | {"a": 9} for row in rows])

    p.begin(columns=None)

    p.check({key: {"a": 5, "b": "x"} for key in (0, 1)})


# --- where an undo begins and ends


def test_h30_what_was_undone_is_not_undone_again(t):
    """H30: fence 1 writes 5 and 6 and dies; fence 2 writes 5, commits it and dies: fence 1's 6 must not count."""
    one = t.begin()
    one.put(every(pv=1), 5)
    one.put(every(pv=1), 6)
    two = t.begin()
    two.put(every(pv=10), 5)
    two.commit(5)

    t.begin()
    t.rack.reopen()
    t.begin()

    t.check(every(pv=10))
    done = [tag for tag in t.frames() if isinstance(tag, UndoTag) and tag.done]
    assert [tag.fence for tag in done] == [2]


def test_two_rounds_of_undo_give_the_same(t):
    """G5: the second finds nothing to do, and writes nothing."""
    t.put([{"k": key, "pv": 1} for key in KEYS], columns=["pv"])
    t.begin().put(every(range(9), pv=5))
    t.begin()
    ends = t.table.describe()["offsets"]

    t.begin()

    assert t.table.describe()["offsets"] == ends
    t.check(every(pv=1))


def test_nothing_to_undo_writes_nothing(t):
    """F5: and a bucket that nobody has looked at since is not opened for it."""
    a = t.begin()
    a.put(every(pv=1))
    a.commit()
    frames = len(t.frames())

    t.begin()

    assert len(t.frames()) == frames


def test_closed_buckets_without_dirt_stay_closed(rack):
    """A begin opens what it must, and a commit too."""
    t = rack.create("many", buckets=40)
    a = t.begin()
    a.put(every(range(200), pv=1))
    a.commit()
    engine = t.engine
    for bucket in list(engine._tablets._entries):
        engine._tablets._rest(bucket)

    a = t.begin()
    a.put({1: {"pv": 1}}, 1)
    a.commit(1)

    assert len(engine._tablets._entries) == 1


def test_a_long_history_is_undone_in_parts(t, monkeypatch):
    """Several turns over the keys give what one gives."""
    monkeypatch.setattr("kolk.tablet.undoing.UNDO_BYTES", 200)
    t.put([{"k": key, "pv": 1} for key in range(30)], columns=["pv"])
    a = t.begin()
    for _ in range(3):
        a.put(every(range(60), pv=5))

    t.begin()

    t.check(every(range(30), pv=1))
    assert sum(isinstance(tag, UndoTag) for tag in t.frames()) > 3


def test_progress_is_told(t):
    t.begin().put(every(pv=1))
    seen = []

    t.begin(on_progress=lambda done, all: seen.append((done, all)))

    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert t.engine.status()["owners"]["undone_rows"] == len(KEYS)


def test_h25_columns_change_only_after_the_undo_with_the_old_ones(t):
    """H25: what was written in columns that are given up is taken back too."""
    a = t.begin(columns=["pv", "top"])
    a.put(every(pv=1, top=1))
    a.commit()
    a.put(every(pv=5, top=5), 1)

    b = t.begin(columns=["top", "note"])

    t.check(every(pv=1, top=1))
    b.put(every(top=9, note="n"), 1)
    t.begin(columns=["pv"])
    t.check(every(pv=1, top=1))
