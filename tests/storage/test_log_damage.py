"""A bucket's log that finds its files damaged: what is torn is cut off, what was durable is missed, loudly."""

import struct
from zlib import crc32

import pyarrow as pa
import pytest
from tests.storage.logs import (
    FOLDER,
    IO_ERROR,
    SEEDS,
    SYNCED,
    content,
    every_crash,
    everything,
    filled,
    frame,
    last_path,
    open_log,
    seqs,
    set_content,
)

from kolk.errors import Corrupted, Stopped, UnknownFormat
from kolk.model.ids import PlainTag
from kolk.storage.log import PendingFrame
from kolk.testing.disk import Crash, LossyDisk


def three_segments():
    disk = LossyDisk()
    log = filled(disk, 9, segment_bytes=300)
    assert len([name for name in disk.list(FOLDER) if name.endswith(".log")]) == 3
    return disk, everything(log)


def test_flipped_bit_in_segment_is_refused_not_skipped():
    """Each byte of each file of a log of three segments, one bit at a time."""
    disk, expected = three_segments()
    harmless = 0
    for name in disk.list(FOLDER):
        for position in range(disk.size(f"{FOLDER}/{name}")):
            rotten = disk.crash(Crash.KEEP)
            rotten.flip(f"{FOLDER}/{name}", position, position % 8)
            try:
                log = open_log(rotten, segment_bytes=300)
                assert everything(log) == expected
                assert [log.offset_at(ts) for ts in (1_000, 1_004, 1_008)] == [0, 4, 8]
            except Corrupted:
                assert name.endswith(".log"), "only what holds rows is worth refusing for"
            else:
                assert not name.endswith(".log")
                harmless += 1
    assert harmless > 100, "index and watermark are only hints"


@pytest.mark.parametrize("bit", range(8))
def test_a_frame_that_lies_about_its_rows_leads_to_no_other(bit):
    disk = LossyDisk()
    log = open_log(disk)
    log.append([frame(seq, rows=3) for seq in range(4)])
    disk.flip(last_path(disk), 12, bit)

    for offset in range(3):
        with pytest.raises(Corrupted):
            log.read(offset, limit_bytes=1)


def test_a_segment_that_does_not_lead_to_the_next_is_refused_when_it_is_read():
    disk, _ = three_segments()
    path = f"{FOLDER}/{0:020}.log"
    data = bytearray(content(disk, path))
    data[240 + 12] += 1
    struct.pack_into("<I", data, 240 + 4, crc32(data[240 + 8 :]))
    set_content(disk, path, bytes(data))

    with pytest.raises(Corrupted, match="ends at offset 4, not 3"):
        everything(open_log(disk))


@pytest.mark.parametrize("offset", range(9))
def test_a_flipped_bit_on_the_way_to_a_frame_leads_to_no_other(offset):
    disk, expected = three_segments()
    for position in range(360):
        rotten = disk.crash(Crash.KEEP)
        log = open_log(rotten, segment_bytes=300)
        rotten.flip(f"{FOLDER}/{offset // 3 * 3:020}.log", position, position % 8)

        try:
            (found,) = log.read(offset, limit_bytes=1)
        except Corrupted:
            continue
        assert (found.header, found.body.to_pybytes()) == expected[offset]


def test_a_flipped_bit_is_refused_also_where_every_index_is_lost():
    disk, expected = three_segments()
    for name in disk.list(FOLDER):
        if name.endswith(".index"):
            disk.remove(f"{FOLDER}/{name}")
    for position in range(disk.size(f"{FOLDER}/{0:020}.log")):
        rotten = disk.crash(Crash.KEEP)
        rotten.flip(f"{FOLDER}/{0:020}.log", position, position % 8)

        with pytest.raises(Corrupted, match=r"00\.log"):
            everything(open_log(rotten, segment_bytes=300))
    assert everything(open_log(disk, segment_bytes=300)) == expected


def test_damage_behind_the_watermark_is_refused_though_nothing_follows_it():
    disk = LossyDisk()
    filled(disk, 3)
    disk.flip(last_path(disk), disk.size(last_path(disk)) - 9, 0)

    with pytest.raises(Corrupted, match=r"byte 240 .*checksum.* 360 bytes were durable"):
        open_log(disk)


def test_damage_is_refused_for_what_a_later_frame_says_though_the_watermark_is_lost():
    disk = LossyDisk()
    filled(disk, 3)
    disk.remove(SYNCED)
    disk.flip(last_path(disk), 130, 0)

    with pytest.raises(Corrupted, match=r"byte 120 .*intact frame at byte 240"):
        open_log(disk)


@pytest.mark.parametrize("position", range(0, 120, 7))
def test_a_later_frame_is_found_wherever_the_damage_is(position):
    disk = LossyDisk()
    filled(disk, 4)
    disk.remove(SYNCED)
    disk.flip(last_path(disk), 120 + position, 5)

    with pytest.raises(Corrupted):
        open_log(disk)


def test_without_watermark_and_later_frames_damage_cannot_be_told_from_a_torn_tail():
    disk = LossyDisk()
    filled(disk, 3)
    disk.remove(SYNCED)
    disk.flip(last_path(disk), disk.size(last_path(disk)) - 9, 0)

    assert seqs(open_log(disk)) == [0, 1]


def test_truncated_tail_only_drops_unacked():
    """Every length of the last segment: exactly the frames before the cut, if nothing above it was synced."""
    disk = LossyDisk()
    filled(disk, 4, segment_bytes=300)
    log = open_log(disk)
    log.append([frame(4), frame(5, rows=0), frame(6, length=700)])
    log.append([frame(7)])
    whole = content(disk, last_path(disk))
    ends, position = [], 0
    while position < len(whole):
        position += struct.unpack_from("<I", whole, position)[0]
        ends.append(position)
    synced = 120

    for length in range(len(whole) + 1):
        cut = disk.crash(Crash.KEEP)
        set_content(cut, last_path(cut), whole[:length])
        if length < synced:
            with pytest.raises(Corrupted, match="120 bytes of it were durable"):
                open_log(cut)
            continue
        log = open_log(cut, segment_bytes=300)

        intact = sum(end <= length for end in ends)
        assert seqs(log) == list(range(3 + intact))
        assert cut.size(last_path(cut)) == ([0, *ends][intact])
        assert log.append([frame(99)])[0].base_offset == log.end - 1


@pytest.mark.parametrize("tail", [b"\0" * 8, b"\0" * 5_000, b"\xff" * 500, b"garbage!" * 100, b"\1"])
def test_a_tail_of_zeros_or_garbage_is_cut_off(tail):
    """test_zero_filled_tail_object_after_power_cut"""
    disk = LossyDisk()
    filled(disk, 3).close()
    disk.open_append(last_path(disk)).write([tail])

    log = open_log(disk)

    assert seqs(log) == [0, 1, 2]
    assert disk.size(last_path(disk)) == log.bytes == 360


def test_a_tail_that_was_cut_off_does_not_come_back():
    for mode in Crash:
        disk = LossyDisk()
        filled(disk, 3).close()
        disk.open_append(last_path(disk)).write([b"garbage!" * 100])
        log = open_log(disk)
        log.append([frame(3)])
        log.sync()

        assert seqs(open_log(disk.crash(mode))) == [0, 1, 2, 3]


@every_crash
def test_a_torn_pass_of_many_frames_keeps_a_prefix_of_them(mode):
    kept = set()
    for seed in SEEDS:
        disk = LossyDisk(seed)
        log = filled(disk, 2)
        log.append([frame(seq, length=300) for seq in range(2, 12)])

        found = seqs(open_log(disk.crash(mode)))

        assert found == list(range(len(found)))
        assert len(found) >= 2
        kept.add(len(found))
    assert len(kept) > 3 or mode in (Crash.DROP, Crash.KEEP)


@every_crash
def test_an_atomic_group_is_kept_whole_or_not_at_all(mode):
    kept = set()
    for seed in SEEDS:
        disk = LossyDisk(seed)
        log = filled(disk, 2)
        log.append([frame(2), *(frame(seq, more=True, length=300) for seq in range(3, 9))])
        log.append([frame(9)])

        found = seqs(open_log(disk.crash(mode)))

        assert found in ([0, 1], [0, 1, 2], list(range(10)))
        kept.add(len(found))
    assert len(kept) > 1 or mode in (Crash.DROP, Crash.KEEP)


def test_a_group_that_was_durable_and_lost_its_end_is_refused():
    disk = LossyDisk()
    log = filled(disk, 1)
    log.append([frame(1, more=True), frame(2)])
    log.sync()
    set_content(disk, last_path(disk), content(disk, last_path(disk))[:240])

    with pytest.raises(Corrupted, match="360 bytes of it were durable"):
        open_log(disk)


def test_a_sync_in_the_middle_of_a_group_does_not_make_its_beginning_stay():
    disk = LossyDisk()
    log = filled(disk, 1)
    mark = log.mark()
    log.append([frame(1, more=True)])
    log.sync()

    assert seqs(open_log(disk.crash(Crash.DROP))) == [0]
    log.rollback(mark)
    assert seqs(open_log(disk.crash(Crash.DROP))) == [0]
    assert seqs(open_log(disk)) == [0]


def test_frames_before_an_open_group_are_durable_though_they_were_appended_with_it():
    disk = LossyDisk()
    log = open_log(disk)
    log.append([frame(0), frame(1, more=True)])
    log.sync()
    log.append([frame(2)])
    disk.fail_next("sync", IO_ERROR)
    with pytest.raises(Stopped):
        log.sync()

    assert seqs(open_log(disk)) == [0]


@pytest.mark.parametrize("mode", [Crash.DROP, Crash.KEEP])
def test_the_index_forgets_what_was_torn(mode):
    disk = LossyDisk()
    log = filled(disk, 1)
    log.append([frame(1, length=6_000, more=True), frame(2, length=6_000, more=True), frame(3, more=True)])
    log = open_log(disk.crash(mode))
    log.append([frame(seq, length=5_000 + seq) for seq in range(1, 9)])

    for offset in range(9):
        assert [found.header.tag.seq for found in log.read(offset)] == list(range(offset, 9))


def test_rows_that_hold_log_frames_are_not_taken_for_frames_after_the_damage():
    """A backup tool that keeps Kolk's own files in a table, and a power cut in the middle of its put."""
    other = LossyDisk()
    filled(other, 40)
    rows = content(other, last_path(other))
    disk = LossyDisk()
    log = filled(disk, 3)
    body = pa.py_buffer(rows)
    log.append([PendingFrame(tag=PlainTag(7, 3), schema_id=1, rows=1, body=body, timestamp_ms=2_000)])
    set_content(disk, last_path(disk), content(disk, last_path(disk))[:-200])

    assert seqs(open_log(disk)) == [0, 1, 2]


def test_garbage_in_the_watermark_is_ignored():
    disk = LossyDisk()
    filled(disk, 3)
    disk.overwrite(SYNCED, b"\x17" * 32)

    assert seqs(open_log(disk)) == [0, 1, 2]


def test_a_segment_that_was_durable_and_is_gone_is_missed():
    disk, _ = three_segments()
    disk.remove(last_path(disk))

    with pytest.raises(Corrupted, match="offset 6 was durable and is gone"):
        open_log(disk)


def test_a_gap_between_segments_is_refused():
    disk, _ = three_segments()
    disk.remove(f"{FOLDER}/{3:020}.log")

    with pytest.raises(Corrupted, match="gap"):
        open_log(disk)


def test_a_sealed_segment_that_lost_its_last_bytes_is_refused():
    disk, _ = three_segments()
    path = f"{FOLDER}/{0:020}.log"
    set_content(disk, path, content(disk, path)[:-120])

    with pytest.raises(Corrupted, match="the file ends here"):
        open_log(disk)
    disk.remove(f"{FOLDER}/{0:020}.index")
    with pytest.raises(Corrupted, match="gap"):
        open_log(disk)


def later_format(data, position):
    """The frame at ``position`` as a later Kolk might write it, under a right checksum."""
    (length,) = struct.unpack_from("<I", data, position)
    later = bytearray(data[position : position + length])
    later[8] = 2
    struct.pack_into("<I", later, 4, crc32(later[8:]))
    return data[:position] + bytes(later) + data[position + length :]


@pytest.mark.parametrize(("base", "position"), [(0, 0), (0, 240), (6, 0), (6, 240)])
def test_a_frame_of_a_later_format_is_refused_and_never_cut_off(base, position):
    disk, _ = three_segments()
    path = f"{FOLDER}/{base:020}.log"
    set_content(disk, path, later_format(content(disk, path), position))
    disk.remove(f"{FOLDER}/{0:020}.index")
    disk.remove(SYNCED)

    with pytest.raises(UnknownFormat, match="upgrade"):
        open_log(disk)

    assert disk.size(path) == 360


def test_a_flipped_bit_in_the_format_byte_sends_nobody_off_to_upgrade():
    disk, _ = three_segments()
    disk.flip(f"{FOLDER}/{0:020}.log", 8, 1)
    disk.remove(f"{FOLDER}/{0:020}.index")

    with pytest.raises(Corrupted) as raised:
        open_log(disk)

    assert not isinstance(raised.value, UnknownFormat)
