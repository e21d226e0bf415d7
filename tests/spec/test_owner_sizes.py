"""Undo of what is large, or of what the database could not compute: it restores, and so it always can."""

import pytest
from tests.spec.owned import PLAIN, open_rack

import kolk
from kolk.errors import UnknownAggregate
from kolk.model import functions
from kolk.model.ids import UndoTag

LARGE = 3_000_000
TEXTS = kolk.Schema([kolk.Column("k", "int"), kolk.Column("a", "string"), kolk.Column("b", "string")], "k")


class Longest:
    types = "string"

    def init(self):
        return ""

    def accumulate(self, state, value):
        return max(state, value, key=len)

    merge = accumulate


@pytest.fixture
def rack(folder):
    with open_rack(folder) as rack:
        yield rack


def test_a_row_that_grew_too_large_for_a_put_is_still_restored(rack):
    """What was committed, and what others have written since, are within the limit each, and not together."""
    t = rack.create(schema=TEXTS, buckets=1)
    t.put([{"k": 1, "a": "x" * LARGE}], columns=["a"])
    t.begin(columns=["a"]).put({1: {"a": "small"}})
    t.put([{"k": 1, "b": "y" * LARGE}], columns=["b"])

    t.begin(columns=["a"])

    assert {name: len(value) for name, value in t.rows()[1].items()} == {"a": LARGE, "b": LARGE}
    t.rack.reopen()
    assert len(t.rows()[1]["a"]) == LARGE


def test_rows_that_others_have_made_large_are_restored_in_several_frames(rack, monkeypatch):
    """As many as a frame holds: else what is small in its owner's history could never be taken back."""
    monkeypatch.setattr("kolk.tablet.merged.BODY_BYTES_MAX", 1_000_000)
    monkeypatch.setattr("kolk.merge.undo._PAGE_BYTES", 200_000)
    t = rack.create(schema=TEXTS, buckets=1)
    t.put([{"k": key, "a": "kept"} for key in range(0, 1_000, 2)], columns=["a"])
    t.begin(columns=["a"]).put({key: {"a": "lost"} for key in range(1_000)})
    for start in range(0, 1_000, 100):
        t.put([{"k": key, "b": "y" * 2_000} for key in range(start, start + 100)], columns=["b"])

    t.begin(columns=["a"])

    rows = t.rows()
    assert [rows[key].get("a") for key in range(1_000)] == ["kept", None] * 500
    assert all(len(row["b"]) == 2_000 for row in rows.values())
    assert sum(isinstance(tag, UndoTag) for tag in t.frames()) > 5
    t.check(rows)


def test_rows_are_taken_back_also_where_their_functions_are_unknown(rack, monkeypatch):
    """Nothing is computed: what stood there is put back."""
    monkeypatch.setattr(functions, "_registered", {})
    kolk.register_aggregate("longest", Longest)
    schema = kolk.Schema(
        [kolk.Column("k", "int"), kolk.Column("l", "string", agg="longest"), kolk.Column("n", "int", agg="max")], "k"
    )
    t = rack.create(schema=schema, buckets=1)
    t.put([{"k": 1, "l": "abc", "n": 1}])
    a = t.begin(columns=["n"])
    a.put({1: {"n": 5}})
    monkeypatch.setattr(functions, "_registered", {})

    with pytest.raises(UnknownAggregate):
        t.put([{"k": 1, "l": "abcd"}], columns=["l"])
    t.begin(columns=["n"])

    kolk.register_aggregate("longest", Longest)
    t.check({1: {"l": "abc", "n": 1}})


def test_a_history_of_many_keys_and_few_bytes_is_undone_whole(rack):
    """More keys than are read at once, some of them gone, some changed, some new."""
    p = rack.create(schema=PLAIN, buckets=1)
    p.put([{"k": key, "a": 1, "b": None, "at": None} for key in range(1_000)])
    a = p.begin(columns=["a"])
    a.put({key: {"a": 2} for key in range(500, 1_500)})
    a.delete(range(300))

    p.begin(columns=["a"])

    p.check({key: {"a": 1} for key in range(1_000)})
