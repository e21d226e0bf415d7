"""Puts that change nothing: their frames take no offset, and neither memory nor the disk without end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tablet.test_tablet import abandon, frames, put, rows, upsert

from kolk.errors import DiskFull
from kolk.model.ids import OwnerTag, PlainTag, TransactionTag
from kolk.runtime.clock import WatchedClock
from kolk.runtime.disk import OsDisk
from kolk.storage.kv import Kv
from kolk.storage.log import Log, PendingFrame
from kolk.tablet import recovery, thinning
from kolk.tablet.changelog import read_changelog
from kolk.tablet.dedup import Dedup, Writer
from kolk.tablet.thinning import needed
from kolk.testing.clock import ManualClock
from kolk.testing.disk import LossyDisk


class BatchKv(Kv):
    """Counts what it is given to write."""

    batches = 0

    def apply(self, writes, records, *, clear=False):
        type(self).batches += 1
        super().apply(writes, records, clear=clear)


def test_a_replay_of_many_puts_that_changed_nothing_goes_portion_by_portion(bench, monkeypatch):
    monkeypatch.setattr(recovery, "_REPLAY_FRAMES", 100)
    bench.kv = BatchKv
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    for seq in range(1, 350):
        put(tablet, upsert((1, 1)), seq)
    abandon(tablet)
    BatchKv.batches = 0

    again = bench.open()

    assert BatchKv.batches == 4
    assert put(again, upsert((1, 9)), 349) == 1, "the retry of an acknowledged put"
    assert rows(again) == [{"id": 1, "n": 1, "s": None}]
    again.close()


def test_a_changelog_passes_over_puts_that_changed_nothing(bench):
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    for seq in range(1, 200):
        put(tablet, upsert((1, 1)), seq)
    put(tablet, upsert((1, 2)), 200)

    page = read_changelog(tablet, 1)

    assert page.batch is not None
    assert page.batch.column("n").to_pylist() == [1, 2]
    assert len(tablet.read_log(1, tablet.end, 1)) == 1
    tablet.close()


# --- on disk


def test_puts_that_change_nothing_do_not_grow_the_log_without_end(bench, monkeypatch):
    monkeypatch.setattr(thinning, "ROWLESS_BYTES", 3_000)
    tablet = bench.open()
    put(tablet, upsert((1, 1, "x" * 5_000)), 0)  # more than a segment, so the next frames have one of their own
    largest = 0
    for seq in range(1, 1_000):
        put(tablet, upsert((1, 1, "x" * 5_000)), seq, writer=seq % 3)
        largest = max(largest, tablet.log.rowless_bytes)

    assert 0 < largest < 4_000
    assert tablet.end == 1
    put(tablet, upsert((1, 2)), 0, writer=4)
    assert read_changelog(tablet, 1).batch.column("n").to_pylist() == [1, 2]
    tablet.close()


@pytest.mark.parametrize("is_kv_lost", [False, True])
def test_what_is_remembered_of_a_writer_outlives_a_thinned_log(bench, monkeypatch, is_kv_lost):
    monkeypatch.setattr(thinning, "ROWLESS_BYTES", 3_000)
    tablet = bench.open()
    put(tablet, upsert((1, 1, "x" * 5_000)), 0)
    for seq in range(1, 300):
        put(tablet, upsert((1, 1, "x" * 5_000)), seq, writer=seq % 3)
    expected = tablet._dedup._writers
    assert len(frames(tablet)) < 60
    abandon(tablet)
    if is_kv_lost:
        bench.disk.remove_tree(str(bench.folder / "kv"))

    again = bench.open()

    assert again._dedup._writers == expected
    assert put(again, upsert((1, 9)), 298, writer=1) == 1
    assert rows(again)[0]["n"] == 1
    again.close()


def test_a_log_that_cannot_be_thinned_for_lack_of_space_goes_on(bench, monkeypatch):
    monkeypatch.setattr(thinning, "ROWLESS_BYTES", 1_000)
    bench.disk = CrowdedDisk()
    tablet = bench.open()
    put(tablet, upsert((1, 1, "x" * 5_000)), 0)
    bench.disk.is_full = True

    for seq in range(1, 50):
        put(tablet, upsert((1, 1, "x" * 5_000)), seq)

    assert len(frames(tablet)) == 50
    tablet.close()


class CrowdedDisk(OsDisk):
    """A disk that may have no room for another file."""

    is_full = False

    def replace(self, path, data):
        if self.is_full:
            raise DiskFull("no space")
        super().replace(path, data)


tags = st.one_of(
    st.builds(PlainTag, st.integers(0, 2), st.integers(0, 40)),
    st.builds(TransactionTag, st.integers(1, 9), st.just(0)),
    st.builds(OwnerTag, st.integers(1, 2), st.integers(1, 3), st.just(0), st.integers(0, 3), st.integers(0, 9)),
)


@given(st.lists(tags, unique=True, max_size=60))
def test_a_replay_of_the_needed_frames_remembers_what_a_replay_of_all_does(tags):
    log = Log.open(LossyDisk(), "log")
    for tag in tags:
        log.append([PendingFrame(tag=tag, schema_id=0, rows=0, body=None, timestamp_ms=5)])
    every = list(log.frames(0))

    some = needed(every)

    assert [frame for frame in every if frame in some] == some, "they stay in order"
    assert remembered(some) == remembered(every)
    assert [each for each in every if not isinstance(each.header.tag, PlainTag)] == [
        each for each in some if not isinstance(each.header.tag, PlainTag)
    ]


def remembered(frames) -> dict[int, Writer]:
    dedup = Dedup({}, WatchedClock(ManualClock()))
    for frame in frames:
        writers: dict[int, Writer] = {}
        recovery._note(frame.header, writers, dedup)
        dedup.remember(writers, 5)
    return dict(dedup._writers)
