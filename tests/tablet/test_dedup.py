"""What a bucket remembers of its writers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import StaleTag
from kolk.model.ids import PlainTag
from kolk.tablet.dedup import KEPT_PER_WRITER, WRITERS_MAX, Dedup, Writer


@given(st.lists(st.integers(0, 30), unique=True))
def test_a_put_is_known_refused_or_new_and_never_taken_twice(seqs):
    writer = Writer()
    applied: list[int] = []
    for place, seq in enumerate(seqs):
        try:
            end = writer.end_of(seq)
        except StaleTag:
            continue
        assert end is None
        writer = writer.after(seq, place, now_ms=0)
        applied.append(seq)

    for seq in applied:
        try:
            assert writer.end_of(seq) is not None
        except StaleTag:
            assert seq not in sorted(applied)[-KEPT_PER_WRITER:]
    assert len(writer.kept) <= KEPT_PER_WRITER


@given(st.dictionaries(st.integers(0, 2**128 - 1), st.lists(st.integers(0, 2**40), max_size=8), max_size=5))
def test_writers_come_back_from_their_records(writers):
    dedup = Dedup({})
    records: dict[bytes, bytes | None] = {}
    for number, seqs in writers.items():
        for seq in seqs:
            known = dedup.writer(PlainTag(number, seq))
            records |= dedup.remember({number: known.after(seq, seq + 1, now_ms=5)}, now_ms=5)

    again = Dedup({name: value for name, value in records.items() if value is not None})

    for number in writers:
        assert again.writer(PlainTag(number, 0)) == dedup.writer(PlainTag(number, 0))


def test_the_longest_idle_writers_go_when_there_are_too_many():
    dedup = Dedup({})
    first = dedup.remember({0: Writer().after(0, 1, now_ms=0)}, now_ms=0)
    records = dedup.remember({n: Writer().after(0, 1, now_ms=0) for n in range(1, WRITERS_MAX + 1)}, now_ms=0)

    assert records[next(iter(first))] is None
    assert dedup.writer(PlainTag(0, 0)) == Writer()


def test_a_forgotten_put_says_what_to_do():
    writer = Writer()
    for seq in range(KEPT_PER_WRITER + 1):
        writer = writer.after(seq, seq, now_ms=0)

    with pytest.raises(StaleTag, match="read the rows back"):
        writer.end_of(0)
