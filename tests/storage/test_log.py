"""A bucket's log on a disk that works: what is appended is read back, whole and in order."""

import errno
import sys
import threading
from bisect import bisect_left
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.config import Durability
from kolk.errors import Closed, Corrupted, OffsetOutOfRange
from kolk.model.ids import PlainTag, TransactionTag
from kolk.runtime.disk import OsDisk
from kolk.storage.index import INDEX_INTERVAL_BYTES, SparseIndex
from kolk.storage.log import Log, PendingFrame
from kolk.storage.log_reader import LogReader
from kolk.storage.segment import Extent, Segment
from kolk.testing.disk import LossyDisk

FOLDER = "log"


def frame(rows=1, *, ts=1_000, body=None, seq=0, more=False) -> PendingFrame:
    content = body or bytes([rows % 251]) * 20
    return PendingFrame(
        tag=PlainTag(99, seq),
        schema_id=1,
        rows=rows,
        body=pa.py_buffer(content) if rows else None,
        timestamp_ms=ts,
        more=more,
    )


def open_log(disk, *, segment_bytes=300, durability=Durability.MACHINE) -> Log:
    return Log.open(disk, FOLDER, durability, segment_bytes)


def filled(disk=None, *, frames=12, **options) -> Log:
    """A log of frames of two rows each, one sync per append, over several segments."""
    log = open_log(disk or LossyDisk(), **options)
    for number in range(frames):
        log.append([frame(2, ts=1_000 + number, seq=number)])
        log.sync()
    return log


def everything(log, offset=None):
    return list(log.frames(log.start if offset is None else offset))


def contents(frames):
    return [(frame.header, frame.body.to_pybytes()) for frame in frames]


def segments(disk):
    return [name for name in disk.list(FOLDER) if name.endswith(".log")]


class CountingDisk(LossyDisk):
    """A disk that counts what is read from it."""

    def __init__(self):
        super().__init__()
        self.reads = []

    def _pread(self, path, file, offset, length):
        data = super()._pread(path, file, offset, length)
        self.reads.append(len(data))
        return data


def test_an_empty_log_starts_and_ends_at_zero():
    log = open_log(LossyDisk())

    assert (log.start, log.end, log.bytes) == (0, 0, 0)
    assert everything(log) == []
    assert log.offset_at(0) == 0


def test_frames_are_read_back_as_they_were_appended():
    log = open_log(LossyDisk())
    headers = log.append([frame(3, ts=5, body=b"three", seq=1), frame(2, ts=6, body=b"two", seq=2)])

    read = everything(log)

    assert [frame.header for frame in read] == headers
    assert [frame.body.to_pybytes() for frame in read] == [b"three", b"two"]
    assert [header.tag for header in headers] == [PlainTag(99, 1), PlainTag(99, 2)]


def test_offsets_count_rows_and_frames_without_rows_take_none():
    log = open_log(LossyDisk())

    headers = log.append([frame(3), frame(0), frame(0), frame(2)])

    assert [(header.base_offset, header.end_offset) for header in headers] == [(0, 3), (3, 3), (3, 3), (3, 5)]
    assert log.end == 5


def test_commit_timestamps_never_go_back():
    disk = LossyDisk()
    log = open_log(disk)
    log.append([frame(ts=100), frame(ts=50)])
    log.sync()

    headers = open_log(disk).append([frame(ts=10)])

    assert [header.timestamp_ms for header in headers] == [100]


def test_reading_from_the_middle_of_a_frame_gives_that_frame():
    log = open_log(LossyDisk())
    log.append([frame(10, seq=1), frame(10, seq=2), frame(10, seq=3)])

    assert [frame.header.tag.seq for frame in log.read(15)] == [2, 3]
    assert [frame.header.tag.seq for frame in log.read(20)] == [3]


def test_a_position_before_the_start_or_after_the_end_is_refused_by_name():
    log = filled()
    log.trim(10)
    start = log.start

    with pytest.raises(OffsetOutOfRange, match=f"starts at {start}"):
        log.read(start - 1)
    with pytest.raises(OffsetOutOfRange, match="ends at 24"):
        log.read(25)
    assert start > 0
    assert log.read(24) == []


def test_nothing_that_starts_at_or_after_the_published_end_is_shown():
    log = open_log(LossyDisk())
    log.append([frame(2, seq=1), frame(0, seq=2), frame(2, seq=3), frame(0, seq=4)])

    def seen(**asked):
        return [frame.header.tag.seq for frame in log.read(0, also=lambda header: True, **asked)]

    assert seen(until=2) == [1]
    assert seen(until=4) == [1, 2, 3]
    assert seen() == [1, 2, 3, 4]
    assert log.read(4, until=4) == []


def test_frames_without_rows_do_not_pile_up_in_a_read():
    log = open_log(LossyDisk())
    log.append([frame(2, seq=0)])
    for seq in range(1, 2_001):
        log.append([frame(0, seq=seq)])
    log.append([frame(2, seq=2_001), frame(2, seq=2_002)])

    assert [frame.header.tag.seq for frame in log.read(0, limit_bytes=300)] == [0, 2_001, 2_002]
    assert [frame.header.tag.seq for frame in log.read(2, limit_bytes=1)] == [2_001]
    wanted = log.read(2, limit_bytes=1, also=lambda header: header.tag.seq == 700)
    assert [frame.header.tag.seq for frame in wanted] == [700, 2_001]
    assert [frame.header.tag.seq for frame in log.frames(0)] == list(range(2_003))


def test_frames_without_rows_at_the_start_of_a_segments_range_are_read_from_the_segment_before():
    disk = LossyDisk()
    log = open_log(disk, segment_bytes=100)
    log.append([frame(5, seq=1)])
    log.append([frame(5, seq=2), frame(0, seq=3)])
    log.append([frame(5, seq=4)])

    assert segments(disk)[-1].startswith(f"{10:020}")
    assert [frame.header.tag.seq for frame in log.frames(10)] == [3, 4]
    assert [frame.header.tag.seq for frame in log.read(10)] == [4]


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 1_500), st.integers(100, 2_000))
def test_pages_of_any_size_neither_miss_nor_repeat_a_frame(rows, limit_bytes, segment_bytes):
    log = open_log(LossyDisk(), segment_bytes=segment_bytes)
    for seq, count in enumerate(rows):
        log.append([frame(count, seq=seq)])

    seen, offset = [], 0
    while page := log.read(offset, limit_bytes=limit_bytes):
        seen += [frame.header.tag.seq for frame in page]
        offset = page[-1].header.end_offset
        if offset == log.end:
            break

    assert seen == [seq for seq, count in enumerate(rows) if count]
    assert [frame.header.tag.seq for frame in log.frames(0)] == list(range(len(rows)))


def test_many_small_frames_cost_one_read():
    disk = CountingDisk()
    log = open_log(disk, segment_bytes=2**20)
    log.append([frame(seq=seq) for seq in range(1_000)])
    disk.reads.clear()

    assert len(everything(log)) == 1_000

    assert len(disk.reads) == 2, "one to find the place, one for all frames"


def test_a_read_deep_inside_looks_at_little_else():
    disk = CountingDisk()
    log = open_log(disk, segment_bytes=2**30)
    for seq in range(50):
        log.append([frame(10, body=bytes(100_000), seq=seq)])
    disk.reads.clear()

    (found,) = log.read(255, limit_bytes=1)

    assert found.header.tag.seq == 25
    assert sum(disk.reads) < 110_000


def test_bodies_share_the_memory_of_the_read_and_are_aligned():
    log = open_log(LossyDisk())
    log.append([frame(body=b"x" * 13, seq=seq) for seq in range(3)])

    read = everything(log)

    addresses = [frame.body.address for frame in read]
    assert [b - a for a, b in pairwise(addresses)] == [112, 112]
    assert all(address % 8 == 0 for address in addresses)


def test_an_arrow_batch_comes_back_equal():
    batch = pa.record_batch({"kind": pa.array([0, 2], pa.int8()), "page": ["/", "/a"], "pv": [1, None]})
    log = open_log(LossyDisk())
    log.append([frame(2, body=batch.serialize().to_pybytes())])

    (found,) = everything(log)

    assert pa.ipc.read_record_batch(found.body, batch.schema).equals(batch)


def test_a_full_segment_is_followed_by_one_named_after_its_first_offset():
    disk = LossyDisk()
    log = filled(disk, frames=6, segment_bytes=200)

    assert segments(disk) == [f"{base:020}.log" for base in (0, 4, 8)]
    assert [frame.header.base_offset for frame in everything(log)] == [0, 2, 4, 6, 8, 10]


def test_frames_without_rows_never_make_two_segments_of_one_name():
    disk = LossyDisk()
    log = open_log(disk, segment_bytes=100)

    for seq in range(10):
        log.append([frame(0, seq=seq)])
    log.append([frame(1, seq=10)])
    log.append([frame(1, seq=11)])

    assert segments(disk) == [f"{0:020}.log", f"{1:020}.log"]
    assert contents(everything(log)) == contents(everything(open_log(disk)))
    assert [frame.header.tag.seq for frame in everything(log)] == list(range(12))


@pytest.mark.parametrize("durability", Durability)
def test_a_log_is_the_same_after_it_was_closed_and_opened_again(durability):
    disk = LossyDisk()
    log = filled(disk, durability=durability)
    before = contents(everything(log)), log.start, log.end, log.bytes
    log.close()

    again = open_log(disk, durability=durability)

    assert (contents(everything(again)), again.start, again.end, again.bytes) == before


def test_it_all_works_on_a_real_disk(tmp_path):
    folder = f"{tmp_path}/bucket/log"
    with Log.open(OsDisk(), folder, segment_bytes=1_000) as log:
        for seq in range(100):
            log.append([frame(2, ts=seq, seq=seq), frame(0, ts=seq, seq=seq)])
            log.sync()
        log.trim(50)
        before = contents(everything(log))

    with Log.open(OsDisk(), folder, segment_bytes=1_000) as again:
        assert contents(everything(again)) == before
        assert 0 < again.start <= 50
        assert again.offset_at(60) == 120
        again.clear()
        assert again.start == again.end == 200
    with Log.open(OsDisk(), folder) as empty:
        assert empty.start == empty.end == 200


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40), st.integers(0, 120))
def test_the_offset_at_a_time_is_the_first_of_that_time_or_later(steps, asked):
    log = open_log(LossyDisk(), segment_bytes=400)
    bases, times, now = [], [], 0
    for rows, passed in steps:
        now += passed
        (header,) = log.append([frame(rows, ts=now)])
        bases.append(header.base_offset)
        times.append(now)

    expected = [*bases, log.end][bisect_left(times, asked)]

    assert log.offset_at(asked) == expected
    assert log.offset_at(asked, until=expected // 2) == min(expected, expected // 2)


def test_opening_reads_the_tail_and_of_sealed_segments_only_their_summaries():
    """test_unclean_restart_time_bounded_by_tail"""
    disk = CountingDisk()
    log = open_log(disk, segment_bytes=10_000)
    for seq in range(500):
        log.append([frame(2, body=bytes(400), seq=seq)])
    disk.reads.clear()

    open_log(disk, segment_bytes=10_000)

    sealed = len(segments(disk)) - 1
    assert sealed > 20
    assert sum(disk.reads) < sealed * 100 + 15_000


@pytest.mark.parametrize("damage", ["missing", "empty", "summary", "entries"])
def test_a_lost_or_damaged_index_is_made_again_from_the_segment(damage):
    disk = LossyDisk()
    before = contents(everything(filled(disk)))
    path = f"{FOLDER}/{0:020}.index"
    intact = disk.read(path, 0, 10_000)
    if damage == "missing":
        disk.remove(path)
    elif damage == "empty":
        disk.replace(path, b"")
    else:
        disk.flip(path, 20 if damage == "summary" else 60, 3)

    log = open_log(disk)

    assert contents(everything(log)) == before
    if damage != "entries":
        assert disk.read(path, 0, 10_000) == intact


def test_an_index_from_before_its_segment_grew_is_not_believed():
    """A crash can take a new segment's name away after the index of the old one was written."""
    disk = LossyDisk()
    log = filled(disk, frames=3, segment_bytes=300)
    log.append([frame(2, seq=3)])
    disk.remove(f"{FOLDER}/{6:020}.log")
    disk.remove(f"{FOLDER}/synced")

    log = open_log(disk, segment_bytes=500)
    disk.fail_next("replace", OSError(errno.EIO, "input/output error"))
    for seq in range(3, 9):
        log.append([frame(2, seq=seq)])

    assert [frame.header.tag.seq for frame in everything(open_log(disk))] == list(range(9))


def test_trimming_deletes_whole_segments_below_an_offset_and_never_the_last():
    disk = LossyDisk()
    log = filled(disk, frames=6, segment_bytes=200)

    log.trim(7)
    assert (log.start, segments(disk)) == (4, [f"{4:020}.log", f"{8:020}.log"])

    log.trim(10**9)
    assert (log.start, log.end, segments(disk)) == (8, 12, [f"{8:020}.log"])
    assert [name for name in disk.list(FOLDER) if name.endswith(".index")] == []


def test_what_is_trimmed_stays_trimmed():
    disk = LossyDisk()
    log = filled(disk)
    log.trim(9)

    again = open_log(disk)

    assert again.start == log.start > 0
    assert contents(everything(again)) == contents(everything(log))


@pytest.mark.parametrize("rows", [[2, 2, 2], [], [0, 0], [2, 0, 0]])
def test_clearing_makes_the_start_the_end_now_and_after_reopening(rows):
    disk = LossyDisk()
    log = filled(disk, frames=4)
    log.clear()
    for count in rows:
        log.append([frame(count)])
    log.sync()
    end = log.end

    log.clear()

    assert log.start == log.end == end == 8 + sum(rows)
    again = open_log(disk)
    assert again.start == again.end == end
    assert again.append([frame(1)])[0].base_offset == end


def test_a_read_that_is_overtaken_by_a_trim_finishes_or_says_what_is_trimmed():
    class TrimmingDisk(LossyDisk):
        """A disk on which somebody trims the log just before a segment is opened."""

        before_open = staticmethod(lambda: None)

        def open_reader(self, path):
            self.before_open()
            return super().open_reader(path)

    disk = TrimmingDisk()
    log = filled(disk, frames=6, segment_bytes=200)
    disk.before_open = lambda: log.trim(8)

    with pytest.raises(OffsetOutOfRange, match="starts at 8"):
        log.read(0)
    assert [frame.header.base_offset for frame in log.read(8)] == [8, 10]


def test_a_segment_that_somebody_deleted_is_not_taken_for_trimmed():
    disk = LossyDisk()
    log = filled(disk, frames=6, segment_bytes=200)
    disk.remove(f"{FOLDER}/{4:020}.log")

    with pytest.raises(Corrupted, match="gone"):
        everything(log)


def test_the_frames_of_an_unfinished_group_can_be_taken_back():
    disk = LossyDisk()
    log = filled(disk, frames=2, segment_bytes=10_000)
    mark = log.mark()
    log.append([frame(2, more=True)])
    log.append([frame(2, more=True)])

    log.rollback(mark)

    assert log.end == 4
    assert log.append([frame(1, seq=77)])[0].base_offset == 4
    log.sync()
    assert [frame.header.rows for frame in everything(open_log(disk))] == [2, 2, 1]


def test_a_group_is_never_in_two_segments():
    disk = LossyDisk()
    log = open_log(disk, segment_bytes=100)
    log.append([frame(2)])
    mark = log.mark()
    for _ in range(5):
        log.append([frame(2, more=True)])
    assert len(segments(disk)) == 2

    log.rollback(mark)

    assert log.end == log.mark().end == 2
    assert [frame.header.rows for frame in everything(open_log(disk))] == [2]


def test_the_index_forgets_what_was_taken_back():
    log = open_log(LossyDisk(), segment_bytes=2**20)
    log.append([frame(1, seq=1)])
    mark = log.mark()
    log.append([frame(1, body=bytes(6_000), more=True), frame(1, body=bytes(6_000), more=True), frame(1, more=True)])
    log.rollback(mark)

    log.append([frame(1, body=bytes(5_000 + seq), seq=seq) for seq in range(2, 9)])

    for offset in range(8):
        assert [frame.header.tag.seq for frame in log.read(offset)] == list(range(offset + 1, 9))


def test_a_group_that_begins_where_a_segment_is_full_stays_in_it():
    disk = LossyDisk()
    log = open_log(disk, segment_bytes=100)

    log.append([frame(2), frame(2, more=True)])
    log.append([frame(2, more=True)])
    log.append([frame(2)])
    log.append([frame(2)])

    assert segments(disk) == [f"{0:020}.log", f"{8:020}.log"]
    assert len(everything(open_log(disk))) == 5


def test_a_mark_stands_between_groups():
    log = open_log(LossyDisk())
    log.append([frame(2, more=True)])

    with pytest.raises(AssertionError):
        log.mark()


def test_information_and_leader_epoch_are_kept():
    log = Log.open(LossyDisk(), FOLDER, leader_epoch=5)
    told = PendingFrame(
        tag=TransactionTag(1, 0), schema_id=3, rows=1, body=b"x", timestamp_ms=1, information=b"app=etl"
    )
    log.append([told])

    (found,) = everything(log)

    assert found.header.information.rstrip(b"\0") == b"app=etl"
    assert (found.header.leader_epoch, found.header.schema_id) == (5, 3)


def test_a_closed_log_refuses_and_closes_again():
    log = filled(frames=1)
    log.close()
    log.close()

    for call in (lambda: log.append([frame()]), log.sync, log.clear, lambda: log.trim(1), log.mark):
        with pytest.raises(Closed):
            call()


def test_what_crashes_left_behind_is_swept_out():
    disk = LossyDisk()
    before = contents(everything(filled(disk)))
    disk.replace(f"{FOLDER}/{999:020}.index", b"of a segment that is gone")
    disk.overwrite(f"{FOLDER}/{0:020}.index.tmp", b"half")

    log = open_log(disk)

    assert f"{999:020}.index" not in disk.list(FOLDER)
    assert f"{0:020}.index.tmp" not in disk.list(FOLDER)
    assert contents(everything(log)) == before


def test_a_group_taken_back_while_a_reader_looks_does_not_trip_it():
    empty = Segment(base=5, end=5, size=0, last_timestamp_ms=10)
    unpublished = Extent((), Segment(base=5, end=6, size=300, last_timestamp_ms=20))
    reader = LogReader(LossyDisk(), FOLDER, empty, SparseIndex())
    reader.index(empty).add(5, 20, 0)

    reader.cut(empty)

    assert reader.offset_at(unpublished, 15, until=5) == 5
    assert reader.read(unpublished, 5, 1000, until=5) == []


def test_who_looks_into_an_index_keeps_what_he_sees():
    index = SparseIndex()
    for number in range(3):
        index.add(number, number, number * INDEX_INTERVAL_BYTES)

    shorter = index.before(INDEX_INTERVAL_BYTES)

    assert shorter.before_offset(9).offset == 0
    assert index.before_offset(9).offset == 2


@pytest.fixture
def hurried_threads():
    """Threads that change places after every few instructions, so that a race shows itself."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hurried_threads")
def test_readers_may_run_beside_the_writer(tmp_path):
    log = Log.open(OsDisk(), f"{tmp_path}/log", Durability.PROCESS, segment_bytes=20_000)
    published, done, faults = [0], threading.Event(), []

    def follow():
        offset = 0
        try:
            while not (done.is_set() and offset == published[0]):
                for found in log.read(offset, limit_bytes=5_000, until=published[0]):
                    assert found.header.base_offset == offset
                    assert found.body.to_pybytes() == b"%08d" % offset
                    offset = found.header.end_offset
                assert log.offset_at(offset, until=published[0]) <= published[0]
        except BaseException as fault:
            faults.append(fault)
            raise

    readers = [threading.Thread(target=follow) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(3_000):
        if number % 10 == 0:
            mark = log.mark()
            log.append([frame(1, body=b"never published", more=True)])
            log.rollback(mark)
        log.append([frame(1, ts=number, body=b"%08d" % number)])
        published[0] = log.end
    done.set()
    for reader in readers:
        reader.join()

    assert faults == []
    log.close()
