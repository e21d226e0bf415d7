"""What a frame changes, and that the sum of all frames is that of the rows."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kolk
from kolk.codec.checksum import added
from kolk.merge.changed import changed_columns, sum_of_changes, sum_of_rows
from kolk.merge.changes import OP, change_schema
from kolk.model.change import SYMBOLS

SCHEMA = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("n", "int", default=7),
        kolk.Column("f", "double"),
        kolk.Column("l", "array<double>"),
        kolk.Column("s", "string"),
    ],
    "k",
)
ROW = {"k": 1, "n": 7, "f": math.nan, "l": [math.nan], "s": None}


def frame(*changes):
    rows = [{OP.name: SYMBOLS.index(sign), **row} for sign, row in changes]
    return pa.RecordBatch.from_pylist(rows, schema=change_schema(SCHEMA))


def names(*changes):
    found = changed_columns(frame(*changes), SCHEMA)
    return {column.name for column in SCHEMA.columns if column.id in found}


@pytest.mark.parametrize(
    ("change", "changed"),
    [({}, set()), ({"n": 8}, {"n"}), ({"f": 1.0}, {"f"}), ({"l": None, "s": ""}, {"l", "s"}), ({"n": None}, {"n"})],
)
def test_an_update_changes_the_columns_that_differ(change, changed):
    assert names(("-U", ROW), ("+U", {**ROW, **change})) == changed


@pytest.mark.parametrize("sign", ["+I", "-D"])
def test_a_row_that_comes_or_goes_changes_what_somebody_has_set(sign):
    assert names((sign, {"k": 1, "n": 7})) == set()
    assert names((sign, {"k": 1})) == set()
    assert names((sign, {"k": 1, "n": 8, "s": ""}), (sign, {"k": 2, "n": 7, "f": math.nan})) == {"n", "s", "f"}


def test_an_update_without_the_row_before_it_says_nothing():
    assert names(("+U", ROW)) == set()


KEYS = st.integers(0, 5)
ROWS = st.builds(
    lambda n, f, s: {"n": n, "f": f, "l": None, "s": s},
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from([None, 0.0, math.nan]),
    st.sampled_from([None, "", "short", "long" * 500]),
)


@given(st.lists(st.lists(st.tuples(KEYS, st.one_of(st.none(), ROWS)), max_size=4), max_size=8))
def test_the_sum_of_all_frames_is_that_of_the_rows(frames):
    table, total = {}, 0
    for puts in frames:
        changes = []
        for key, row in puts:
            before = table.pop(key, None)
            after = None if row is None else {"k": key, **row}
            if after is not None:
                table[key] = after
            shown = {(True, True): ("-U", "+U"), (True, False): ("-D",), (False, True): ("+I",)}
            signs = shown.get((before is not None, after is not None), ())
            changes += [(sign, before if sign.startswith("-") else after) for sign in signs]
        if changes:
            total = added(total, sum_of_changes(frame(*changes), SCHEMA, SCHEMA))

    rows = pa.RecordBatch.from_pylist(list(table.values()), schema=SCHEMA.arrow)
    assert total == sum_of_rows(rows, SCHEMA)


@pytest.mark.parametrize("length", [10, 10_000])
def test_rows_that_have_each_others_values_have_another_sum(length):
    texts = ["a" * length, "b" * length]
    one, other = (
        [{"k": key, "s": text} for key, text in zip((1, 2), order, strict=True)] for order in (texts, texts[::-1])
    )

    sums = {sum_of_rows(pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow), SCHEMA) for rows in (one, other)}

    assert len(sums) == 2
