"""A log that was trimmed knows since when it has everything, so that a quiet one is not taken for one with a gap."""

from dataclasses import replace

import pytest
from tests.storage.logs import FOLDER, every_crash, frame

from kolk.config import Durability
from kolk.storage.log import Log
from kolk.storage.trimmed import Trimmed
from kolk.testing.disk import LossyDisk


def timed(disk, **options):
    """A segment for each frame, committed at 1,000, 2,000 and so on."""
    log = Log.open(disk, FOLDER, segment_bytes=1, **options)
    for seq in range(5):
        log.append([replace(frame(seq), timestamp_ms=1_000 * (seq + 1))])
    log.sync()
    return log


@pytest.mark.parametrize("durability", Durability)
def test_a_log_knows_since_when_it_lacks_nothing_also_after_it_is_opened_again(durability):
    disk = LossyDisk()
    log = timed(disk, durability=durability)
    assert not log.may_lack(0), "nothing was trimmed"
    log.trim(2)

    for opened in (log, Log.open(disk, FOLDER, durability)):
        assert [time for time in range(0, 6_000, 500) if opened.may_lack(time)] == [0, 500, 1_000, 1_500, 2_000]
        assert opened.offset_at(2_001) == opened.start == 2, "though nothing older is there to compare with"


def test_an_emptied_log_knows_it_too():
    disk = LossyDisk()
    timed(disk).clear()

    again = Log.open(disk, FOLDER)

    assert (again.may_lack(5_000), again.may_lack(5_001)) == (True, False)


@pytest.mark.parametrize("rows", [1, 0])
def test_the_times_of_an_emptied_log_do_not_go_back_when_it_is_opened_again(rows):
    disk = LossyDisk()
    timed(disk).clear()
    again = Log.open(disk, FOLDER, segment_bytes=1)

    (header,) = again.append([replace(frame(9, rows), timestamp_ms=4_000)])
    again.sync()
    again.clear()

    assert header.timestamp_ms == 5_000
    assert again.may_lack(4_500), "the frame of 5,000 is gone"


def test_a_log_that_was_trimmed_without_a_note_takes_what_is_before_its_first_frame_for_lost():
    """As older Kolks did; the note of one that was trimmed again since is worth nothing either."""
    for is_old in (False, True):
        disk = LossyDisk()
        log = timed(disk)
        log.trim(1)
        note = disk.read(f"{FOLDER}/trimmed", 0, 32)
        log.trim(2)
        disk.remove(f"{FOLDER}/trimmed")
        if is_old:
            disk.replace(f"{FOLDER}/trimmed", note)

        again = Log.open(disk, FOLDER)

        assert [time for time in range(0, 6_000, 500) if again.may_lack(time)] == [*range(0, 3_001, 500)]


@every_crash
def test_a_crash_in_the_middle_of_a_trim_never_makes_a_log_claim_what_it_lacks(mode):
    disk = LossyDisk()
    timed(disk)
    disk.replace(f"{FOLDER}/trimmed", Trimmed(3, 3_000).encode())  # and then it crashed
    disk.remove(f"{FOLDER}/{0:020}.log")

    again = Log.open(disk.crash(mode), FOLDER)

    assert all(again.may_lack(time) for time in range(0, 1_001, 500)) or again.start == 0
    assert not again.may_lack(3_001)
