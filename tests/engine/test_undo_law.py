"""The law of undo: what is left is what there would be if what was taken back had never been written.

Random histories of several owners, each with columns of its own, one of them without undo, of rivals, of plain writers
and transactions on whatever is free, of rows whose time is up, of columns that are renamed, widened, added and dropped,
of evictions, restarts and kills, against a model (``undo_play``). Rows without any value are the same as none: under a
lock of some columns nobody can tell them apart. In every history the changelog makes the table.
"""

import os
import tempfile
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.engine.undo_play import OWNERS, CrashingRack, Play
from tests.spec.owned import TTL

FULL = os.environ.get("KOLK_FULL") == "1"
EXAMPLES = 300 if FULL else 25
STEPS = 40 if FULL else 25
KEYS = st.integers(0, 5)
VALUES = st.one_of(st.none(), st.integers(0, 9))
ROWS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)
OWNER = st.sampled_from(sorted(OWNERS))
FREE = st.sampled_from(["s", "m", "l", "x", "free"])

OWNED = [
    st.tuples(st.just("put"), OWNER, ROWS, st.booleans()),
    st.tuples(st.just("put"), OWNER, ROWS, st.booleans()),
    st.tuples(st.just("delete"), OWNER, st.sets(KEYS, min_size=1, max_size=2)),
    st.tuples(st.just("commit"), OWNER),
    st.tuples(st.just("begin"), OWNER, st.booleans()),
    st.tuples(st.just("rest"), OWNER),
    st.tuples(st.just("evict"), OWNER),
    st.tuples(st.just("release"), OWNER, st.booleans()),
]
OTHERS = [
    st.tuples(st.just("plain put"), ROWS, st.sampled_from([0, 1, 9])),
    st.tuples(st.just("plain delete"), st.sets(KEYS, min_size=1, max_size=2)),
    st.tuples(st.just("plain put of a column"), FREE, ROWS),
    st.tuples(st.just("transaction"), FREE, ROWS),
    st.tuples(st.just("time passes"), st.sampled_from([TTL / 3, TTL + 1, 3_700.0])),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("close buckets")),
]
CHANGES = [
    st.tuples(st.just("rename"), st.sampled_from(["s", "m", "c", "n", "l", "x", "free", "at"])),
    st.tuples(st.just("widen")),
    st.tuples(st.just("add")),
    st.tuples(st.just("drop"), st.sampled_from(["s", "l", "n"])),
]


@pytest.fixture(scope="module")
def rack():
    with tempfile.TemporaryDirectory() as folder:
        rack = CrashingRack(Path(folder) / "data")
        rack.numbers = count(1)
        yield rack
        rack.close()


def played(rack, steps, engine):
    name = f"t{next(rack.numbers)}"
    game = Play(rack, name, is_summed=engine == "aggregation")
    try:
        for owner in ("a", "b", "c", "d"):
            game.step("begin", owner)
        for step in steps:
            game.step(*step)
            game.check()
        game.finish()
    finally:
        rack.db.drop_table(name)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["default", "aggregation"])
def test_what_is_undone_was_never_written(rack, engine):
    @settings(max_examples=EXAMPLES)
    @example([("put", "a", {1: 1}, False), ("commit", "a"), ("plain put", {1: 1}, 0), ("put", "a", {1: 5}, False),
              ("time passes", 3_700.0), ("begin", "a")])  # fmt: skip
    @example([("put", "a", {1: 1}, False), ("commit", "a"), ("time passes", TTL + 1),
              ("plain put of a column", "s", {1: 1}), ("rest", "a"), ("reopen",),
              ("plain put of a column", "s", {1: 1})])  # fmt: skip
    @given(st.lists(st.one_of(*OWNED, *OTHERS), min_size=5, max_size=STEPS))
    def play(steps):
        played(rack, steps, engine)

    play()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["default", "aggregation"])
def test_what_is_undone_was_never_written_whatever_becomes_of_the_columns(rack, engine):
    @settings(max_examples=EXAMPLES)
    @example([("put", "a", {1: 1}, False), ("drop", "s"), ("put", "a", {1: 2}, False), ("begin", "a", True),
              ("rename", "n"), ("put", "a", {2: 2}, False), ("crash",), ("release", "a", True)])  # fmt: skip
    @given(st.lists(st.one_of(*OWNED, *OTHERS, *CHANGES), min_size=5, max_size=STEPS))
    def play(steps):
        played(rack, steps, engine)

    play()
