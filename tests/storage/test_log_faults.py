"""A bucket's log on a disk that fails: nothing acknowledged is lost, nothing damaged is shown."""

import errno
from contextlib import suppress

import pytest
from tests.storage.logs import (
    IO_ERROR,
    SEEDS,
    content,
    every_crash,
    everything,
    filled,
    frame,
    last_path,
    open_log,
    seqs,
)

from kolk.config import Durability
from kolk.errors import DiskFull, Stopped, Unavailable
from kolk.storage.log import Log
from kolk.testing.disk import Crash, LossyDisk, PowerCut


def test_a_full_disk_leaves_the_log_as_it_was_and_usable():
    disk = LossyDisk()
    log = filled(disk, 3)
    disk.capacity_bytes = disk.used_bytes + 200

    with pytest.raises(DiskFull):
        log.append([frame(3), frame(4), frame(5)])
    assert (log.end, log.bytes, seqs(log)) == (3, 360, [0, 1, 2])
    assert disk.size(last_path(disk)) == 360

    disk.capacity_bytes = None
    log.append([frame(3)])
    log.sync()
    assert seqs(open_log(disk)) == [0, 1, 2, 3]


@every_crash
def test_what_was_refused_for_lack_of_space_is_not_brought_back_by_a_power_cut(mode):
    for seed in SEEDS:
        disk = LossyDisk(seed)
        log = filled(disk, 3)
        disk.capacity_bytes = disk.used_bytes + 250
        with pytest.raises(DiskFull):
            log.append([frame(3), frame(4), frame(5)])

        assert seqs(open_log(disk.crash(mode))) == [0, 1, 2]


def test_a_full_disk_at_a_new_segment_leaves_the_log_usable():
    disk = LossyDisk()
    log = filled(disk, 3, segment_bytes=300)
    disk.fail_next("create", OSError(errno.ENOSPC, "no space"))

    with pytest.raises(DiskFull):
        log.append([frame(3)])
    assert seqs(log) == [0, 1, 2]

    log.append([frame(3)])
    log.sync()
    assert seqs(open_log(disk)) == [0, 1, 2, 3]


@pytest.mark.parametrize("operation", ["replace", "overwrite"])
def test_an_index_or_watermark_that_cannot_be_written_stops_nothing(operation):
    disk = LossyDisk()
    for after in range(10):
        disk.fail_next(operation, IO_ERROR if after % 2 else OSError(errno.ENOSPC, "no space"))

    log = filled(disk, 10, segment_bytes=200)

    assert seqs(log) == seqs(open_log(disk)) == list(range(10))


def test_a_failed_sync_stops_the_log_and_is_never_retried():
    disk = LossyDisk()
    log = filled(disk, 2)
    log.append([frame(2)])
    disk.fail_next("sync", IO_ERROR)

    for _ in range(3):
        with pytest.raises(Stopped, match=r"a sync failed.*input/output error.*reopen"):
            log.sync()
        with pytest.raises(Stopped):
            log.append([frame(3)])
    for call in (log.clear, log.mark, lambda: log.trim(1)):
        with pytest.raises(Stopped):
            call()
    assert seqs(log) == [0, 1], "what is durable can still be read"


@every_crash
def test_bytes_of_a_failed_sync_are_not_taken_for_safe_by_the_next_open(mode):
    """They can still be read from memory, and the next sync says that all is well; the disk does not have them."""
    disk = LossyDisk()
    log = filled(disk, 2)
    log.append([frame(2)])
    disk.fail_next("sync", IO_ERROR)
    with pytest.raises(Stopped):
        log.sync()

    log = open_log(disk)
    shown = seqs(log)
    log.append([frame(3)])
    log.sync()

    assert shown == [0, 1]
    assert seqs(open_log(disk.crash(mode))) == [0, 1, 3]


def test_a_failed_sync_at_a_new_segment_stops_the_log():
    disk = LossyDisk()
    log = filled(disk, 3, segment_bytes=300)
    disk.fail_next("sync_folder", IO_ERROR, after=1)  # the first is that of the index, which may fail

    with pytest.raises(Stopped):
        log.append([frame(3)])
    with pytest.raises(Stopped):
        log.append([frame(3)])
    assert seqs(open_log(disk)) == [0, 1, 2]


def test_a_log_that_cannot_be_synced_when_it_opens_does_not_open():
    disk = LossyDisk()
    filled(disk, 2)
    disk.fail_next("sync", IO_ERROR)

    with pytest.raises(Stopped):
        open_log(disk)


def test_a_failed_write_is_taken_back_and_stops_the_log():
    disk = LossyDisk()
    log = filled(disk, 2)
    disk.fail_next("append", IO_ERROR)

    with pytest.raises(Stopped, match="a write failed"):
        log.append([frame(2)])
    with pytest.raises(Stopped):
        log.append([frame(2)])
    assert disk.size(last_path(disk)) == 240


def test_a_failed_write_that_cannot_be_taken_back_stops_the_log():
    disk = LossyDisk()
    log = filled(disk, 2)
    disk.fail_next("append", OSError(errno.ENOSPC, "no space"))
    disk.fail_next("truncate", IO_ERROR)

    with pytest.raises(Stopped, match="could not be taken back"):
        log.append([frame(2)])
    with pytest.raises(Stopped):
        log.sync()
    assert seqs(open_log(disk)) == [0, 1]


def test_a_segment_that_cannot_be_deleted_stops_the_log_and_leaves_no_gap():
    disk = LossyDisk()
    log = filled(disk, 9, segment_bytes=300)
    expected = everything(log)
    disk.fail_next("remove", IO_ERROR)

    with pytest.raises(Stopped):
        log.trim(6)

    assert everything(open_log(disk)) == expected


@pytest.mark.parametrize("look", [lambda log: log.read(0), lambda log: log.offset_at(1_001)])
def test_a_log_that_cannot_be_read_says_so_and_goes_on(look):
    disk = LossyDisk()
    log = filled(disk, 3)
    disk.fail_next("read", IO_ERROR)

    with pytest.raises(Unavailable, match=r"cannot be read.*input/output error.*check the disk"):
        look(log)

    log.append([frame(3)])
    log.sync()
    assert seqs(log) == [0, 1, 2, 3]


def crowded(disk) -> Log:
    """A log whose last segment has frames without rows alone."""
    log = filled(disk, 3, segment_bytes=300)
    for seq in range(3, 30):
        log.append([frame(seq, rows=0)])
        log.sync()
    assert len(log.segments) == 2
    return log


def every_fifth(frames):
    return [found for found in frames if found.header.tag.seq % 5 == 0]


THINNED = [0, 1, 2, 5, 10, 15, 20, 25]


def test_a_thinned_log_has_what_was_needed_and_goes_on():
    disk = LossyDisk()
    log = crowded(disk)
    before = log.bytes

    log.thin(every_fifth)

    assert seqs(log) == THINNED
    assert log.bytes < before / 2
    log.append([frame(30, rows=0), frame(31)])
    log.sync()
    assert seqs(log) == seqs(open_log(disk)) == [*THINNED, 30, 31]
    assert [found.header.tag.seq for found in log.read(3)] == [31]


@every_crash
def test_a_power_cut_while_a_log_is_thinned_leaves_all_frames_or_those_that_were_needed(mode):
    outcomes = set()
    for seed in SEEDS:
        for steps in range(12):
            disk = LossyDisk(seed)
            log = crowded(disk)
            is_through = False
            disk.power_off_after(steps)
            with suppress(PowerCut):
                log.thin(every_fifth)
                log.append([frame(30, rows=0)])
                log.sync()
                is_through = True
            found = seqs(open_log(disk.crash(mode)))
            outcomes.add(len(found))
            assert found == [*THINNED, 30] or (not is_through and found in (list(range(30)), THINNED))

    assert {30, len(THINNED) + 1} <= outcomes


@pytest.mark.parametrize("operation", ["replace", "create", "sync_folder"])
def test_a_disk_that_fails_while_a_log_is_thinned_stops_it_and_loses_nothing(operation):
    for after in range(2):
        disk = LossyDisk()
        log = crowded(disk)
        disk.fail_next(operation, IO_ERROR, after=after)
        with suppress(Stopped):
            log.thin(every_fifth)

        disk.heal()
        assert seqs(open_log(disk)) in (list(range(30)), THINNED)


def test_a_log_that_was_interrupted_while_it_was_thinned_takes_nothing_more():
    class Interrupted(LossyDisk):
        at: str | None = None

        def open_append(self, path):
            if path == self.at:
                raise KeyboardInterrupt
            return super().open_append(path)

    disk = Interrupted()
    log = crowded(disk)
    disk.at = last_path(disk)
    with pytest.raises(KeyboardInterrupt):
        log.thin(every_fifth)

    with pytest.raises(Stopped, match="reopen"):
        log.append([frame(30)])
    disk.at = None
    assert seqs(open_log(disk)) == THINNED


def test_a_full_disk_leaves_a_log_that_was_to_be_thinned_as_it_was():
    disk = LossyDisk()
    log = crowded(disk)
    disk.fail_next("replace", OSError(errno.ENOSPC, "no space"), after=1)

    with pytest.raises(DiskFull):
        log.thin(every_fifth)

    log.append([frame(30)])
    log.sync()
    assert seqs(log) == seqs(open_log(disk)) == list(range(31))


def test_a_copy_of_a_segment_under_another_name_outlives_its_thinning():
    disk = LossyDisk()
    log = crowded(disk)
    disk.link(last_path(disk), "kept")
    before = content(disk, "kept")

    log.thin(every_fifth)

    assert content(disk, "kept") == before


class InterruptedDisk(LossyDisk):
    """A disk whose user presses Ctrl-C just after an append has gone through."""

    interrupt = False

    def _append(self, path, file, data):
        super()._append(path, file, data)
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt


def test_an_interrupted_append_is_taken_back_by_the_next_call():
    disk = InterruptedDisk()
    log = filled(disk, 2)
    disk.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        log.append([frame(2), frame(3)])

    log.append([frame(4)])
    log.sync()

    assert seqs(log) == seqs(open_log(disk)) == [0, 1, 4]


def test_frames_that_a_killed_process_did_not_sync_are_synced_before_they_are_served():
    disk = LossyDisk()
    filled(disk, 3, sync=False)

    assert seqs(open_log(disk)) == [0, 1, 2]
    assert seqs(open_log(disk.crash(Crash.DROP))) == [0, 1, 2]


# The power goes.


def survivors(durability):
    """How many of ten acknowledged frames each of many power cuts leaves."""
    for seed in SEEDS:
        disk = LossyDisk(seed)
        filled(disk, 10, durability=durability)
        for mode in Crash:
            found = seqs(open_log(disk.crash(mode), durability=durability))
            assert found == list(range(len(found)))
            yield len(found)


def test_with_durability_machine_no_power_cut_loses_an_acknowledged_frame():
    assert set(survivors(Durability.MACHINE)) == {10}


def test_with_durability_process_a_power_cut_can_lose_acknowledged_frames():
    """So the lossy disk has teeth: the test above would fail without the sync."""
    assert len(set(survivors(Durability.PROCESS))) > 3


def script(log):
    """Everything a log does; yields what must be there from now on: (start, acknowledged seqs)."""
    for seq in range(5):
        log.append([frame(seq), frame(seq + 100, rows=0)])
        log.sync()
        yield 0, seq
    log.append([frame(5, more=True), frame(6, more=True)])
    log.append([frame(7)])
    log.sync()
    yield 0, 7
    mark = log.mark()
    log.append([frame(99, more=True)])
    log.rollback(mark)
    log.trim(3)
    yield log.start, 7
    log.append([frame(8)])
    log.sync()
    yield log.start, 8
    log.clear()
    yield log.start, None
    log.append([frame(9)])
    log.sync()
    yield log.start, 9


@every_crash
@pytest.mark.parametrize(("segment_bytes", "times"), [(250, [1_103, 1_200]), (2**20, [1_200, 1_200])])
def test_what_stands_without_rows_at_the_end_of_a_log_outlives_its_clearing(mode, segment_bytes, times):
    """Rows of that end may be kept elsewhere that lack it."""

    def cleared(disk):
        log = open_log(disk, segment_bytes=segment_bytes)
        for seq in range(4):
            log.append([frame(seq), frame(seq + 100, rows=0)])
        log.append([frame(200, rows=0)])
        log.sync()
        yield
        log.clear()

    counted = LossyDisk()
    list(cleared(counted))
    for step in range(counted.steps):
        disk = LossyDisk(step)
        disk.power_off_after(step)
        promised = []
        with pytest.raises(PowerCut):
            promised.extend(cleared(disk))

        log = open_log(disk.crash(mode), segment_bytes=segment_bytes)

        if promised:
            assert log.end == 4
            assert list(dict.fromkeys(seqs(log)))[-2:] == [103, 200], "perhaps twice"
    log = open_log(counted, segment_bytes=segment_bytes)
    assert (log.start, seqs(log)) == (4, [103, 200])
    assert [found.header.timestamp_ms for found in log.frames(4)] == times, "they do not go back"


def rows_of(log):
    return [found.header.tag.seq for found in log.read(log.start, limit_bytes=2**40) if found.header.rows]


def steps_of_script():
    disk = LossyDisk()
    for _ in script(open_log(disk, segment_bytes=250)):
        pass
    return disk.steps


@every_crash
def test_a_power_cut_before_any_step_loses_nothing_acknowledged(mode):
    steps = steps_of_script()
    assert steps > 80
    for step in range(steps):
        for seed in range(4):
            disk = LossyDisk(seed * 1_000 + step)
            disk.power_off_after(step)
            promises = [(0, None)]
            with pytest.raises(PowerCut):
                promises.extend(script(open_log(disk, segment_bytes=250)))
            start, acknowledged = promises[-1]

            log = open_log(disk.crash(mode), segment_bytes=250)

            found = rows_of(log)
            assert log.start >= start
            assert 99 not in found
            assert found == list(range(log.start, log.end)), "dense, and each row where it always was"
            assert (5 in found) == (6 in found) == (7 in found) or log.start > 5
            if acknowledged is not None:
                assert log.end > acknowledged
            log.append([frame(500)])
            log.sync()
            assert rows_of(open_log(log._disk, segment_bytes=250))[-1] == 500
