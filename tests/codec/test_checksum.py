"""The checksum of rows: the same for the same rows, however they come, and another one for others."""

from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kolk
from kolk.codec.checksum import added, checksum_of

SCHEMA = kolk.Schema(
    [kolk.Column("k", "bigint"), kolk.Column("x", "double"), kolk.Column("y", "double"), *(
        kolk.Column(name, "string") for name in "st"
    )]
)  # fmt: skip
TEXTS = st.none() | st.text(max_size=20)
NUMBERS = st.none() | st.sampled_from([0.0, 1.0, -1.0, 2.0, -2.0])
ROWS = st.lists(st.tuples(st.integers(-2, 2), NUMBERS, NUMBERS, TEXTS, TEXTS), max_size=12)


def checksum(rows):
    names = SCHEMA.arrow.names
    batch = pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=SCHEMA.arrow)
    return checksum_of(batch, SCHEMA.columns)


@given(rows=ROWS, other=ROWS, data=st.data())
def test_rows_have_the_same_checksum_exactly_if_they_are_the_same_in_any_order(rows, other, data):
    shuffled = data.draw(st.permutations(rows))

    assert checksum(shuffled) == checksum(rows)
    assert (checksum(other) == checksum(rows)) == (Counter(other) == Counter(rows))


@given(rows=ROWS, cuts=st.lists(st.integers(0, 12)))
def test_rows_have_the_same_checksum_however_they_are_cut(rows, cuts):
    total = 0
    for start, stop in pairwise([0, *sorted(cuts), len(rows)]):
        total = added(total, checksum(rows[start:stop]))

    assert total == checksum(rows)


@pytest.mark.parametrize(
    ("rows", "others"),
    [
        ([(1, 1.0, 2.0, "a", "b")], [(1, -1.0, -2.0, "a", "b")]),
        ([(1, 1.0, 2.0, "a", "b")], [(1, 2.0, 1.0, "a", "b")]),
        ([(1, 1.0, 2.0, "ab", "")], [(1, 1.0, 2.0, "a", "b")]),
        ([(1, 1.0, 2.0, "ab", "")], [(1, 1.0, 2.0, "ab", None)]),
        ([(1, 0.0, 2.0, "", "")], [(1, None, 2.0, "", "")]),
        ([(1, 1.0, 2.0, "a", "")], [(1, 1.0, 2.0, "a\0", "")]),
        ([(1, 1.0, 2.0, "", ""), (2, 2.0, 1.0, "", "")], [(1, 2.0, 2.0, "", ""), (2, 1.0, 1.0, "", "")]),
        ([(1, 1.0, 2.0, "x" * 70_000 + "a" * 8, "")], [(1, 1.0, 2.0, "x" * 69_999 + "a" * 8 + "x", "")]),
        ([(1, 1.0, 2.0, "", "")], [(1, 1.0, 2.0, "", "")] * 2),
        ([(0, None, None, None, None)], []),
    ],
    ids=["two signs", "columns", "lengths", "null", "zero", "a zero byte", "between rows", "long", "twice", "no row"],
)
def test_rows_that_are_nearly_the_same_have_other_checksums(rows, others):
    assert checksum(rows) != checksum(others)


def test_many_rows_in_one_batch_have_the_checksum_of_their_pieces():
    rows = [(n, float(n), None, f"s{n % 7}", "") for n in range(40_000)]

    assert checksum(rows) == added(checksum(rows[:123]), checksum(rows[123:]))
    assert 0 <= checksum(rows) < 2**63
