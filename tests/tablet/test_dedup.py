"""What a bucket remembers of its writers."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tablet.test_tablet import put, upsert

from kolk.errors import StaleTag
from kolk.model.ids import PlainTag
from kolk.runtime.clock import WatchedClock
from kolk.tablet.dedup import (
    KEPT_PER_WRITER,
    WRITER_IDLE_MS_MAX,
    WRITERS_DOUBTED_MAX,
    WRITERS_MAX,
    Dedup,
    Writer,
)
from kolk.testing.clock import ManualClock


def dedup_at(now_ms, records=None):
    """The memory of a bucket in a process that has just begun."""
    return Dedup(records or {}, WatchedClock(ManualClock(now_ms)))


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
    dedup = dedup_at(5)
    records: dict[bytes, bytes | None] = {}
    for number, seqs in writers.items():
        for seq in seqs:
            known = dedup.writer(PlainTag(number, seq))
            records |= dedup.remember({number: known.after(seq, seq + 1, now_ms=5)}, now_ms=5)

    again = dedup_at(5, {name: value for name, value in records.items() if value is not None})

    for number in writers:
        assert again.writer(PlainTag(number, 0)) == dedup.writer(PlainTag(number, 0))


def test_the_longest_idle_writers_go_when_there_are_too_many():
    dedup = dedup_at(0)
    first = dedup.remember({0: Writer().after(0, 1, now_ms=0)}, now_ms=0)
    records = dedup.remember({n: Writer().after(0, 1, now_ms=0) for n in range(1, WRITERS_MAX + 1)}, now_ms=0)

    assert records[next(iter(first))] is None
    assert dedup.writer(PlainTag(0, 0)) == Writer()


def test_of_many_writers_that_look_idle_the_longest_idle_go_however_short_processes_live():
    now_ms = 2 * WRITER_IDLE_MS_MAX
    dedup = dedup_at(now_ms)
    idle = {n: Writer().after(0, 1, now_ms=n) for n in range(WRITERS_DOUBTED_MAX)}

    kept = dedup.remember(idle, now_ms)
    records = dedup.remember({7_000_000: Writer().after(0, 1, now_ms)}, now_ms)

    assert None not in kept.values()
    assert [name for name, value in records.items() if value is None] == [next(iter(kept))]


def test_a_replay_of_times_that_are_still_to_come_takes_nobody_for_idle(bench):
    tablet, now_ms = bench.open(), bench.clock.now_ms()
    many = {n: Writer().after(0, 1, now_ms) for n in range(100, 101 + WRITERS_DOUBTED_MAX)}
    records = dedup_at(now_ms).remember(many, now_ms)
    tablet._kv.apply([], records)
    tablet.flush()
    bench.clock.jump(30 * 86_400_000)
    put(tablet, upsert((1, 1)), 0)
    bench.clock.jump(-30 * 86_400_000)
    shutil.copytree(bench.folder, bench.folder.with_name("copied"))
    tablet.close()
    bench.folder = bench.folder.with_name("copied")

    tablet = bench.open()

    assert tablet.end == 1
    assert len(tablet._kv.records(b"w")) == len(many) + 1
    tablet.close()


def test_a_forgotten_put_says_what_to_do():
    writer = Writer()
    for seq in range(KEPT_PER_WRITER + 1):
        writer = writer.after(seq, seq, now_ms=0)

    with pytest.raises(StaleTag, match="read the rows back"):
        writer.end_of(0)
