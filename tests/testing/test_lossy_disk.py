"""The lossy disk keeps the promises of a real disk and no others: these tests are its teeth."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import DiskFull
from kolk.testing.disk import Crash, LossyDisk, PowerCut
from kolk.testing.sectors import SECTOR_BYTES

SEEDS = range(60)
every_mode = pytest.mark.parametrize("mode", Crash)
some_mode = pytest.mark.parametrize("mode", [Crash.PREFIX, Crash.TORN])


def content(disk, path="file"):
    return disk.read(path, 0, disk.size(path))


def with_file(seed=0, *, synced=b"", unsynced=b"") -> LossyDisk:
    disk = LossyDisk(seed)
    file = disk.open_append("file")
    disk.sync_folder("")
    file.write([synced])
    file.sync()
    file.write([unsynced])
    return disk


@every_mode
def test_synced_bytes_survive_every_power_cut(mode):
    for seed in SEEDS:
        found = with_file(seed, synced=b"a" * 700, unsynced=b"b" * 2_000).crash(mode)

        assert content(found)[:700] == b"a" * 700


def test_unsynced_bytes_are_lost_kept_or_kept_in_part():
    found = {mode: [content(with_file(seed, unsynced=b"b" * 4_000).crash(mode)) for seed in SEEDS] for mode in Crash}

    assert set(found[Crash.DROP]) == {b""}
    assert set(found[Crash.KEEP]) == {b"b" * 4_000}
    assert all(data == b"b" * len(data) for data in found[Crash.PREFIX])
    assert len(set(map(len, found[Crash.PREFIX]))) > 10


def test_a_torn_write_loses_whole_sectors_anywhere():
    torn = [content(with_file(seed, unsynced=b"b" * 4_000).crash(Crash.TORN)) for seed in SEEDS]

    sectors = [data[at : at + SECTOR_BYTES] for data in torn for at in range(0, len(data), SECTOR_BYTES)]
    assert all(set(sector) in ({0}, {ord("b")}) for sector in sectors)
    assert any(data.startswith(b"\0") and data.rstrip(b"\0").endswith(b"b") for data in torn), "order is not kept"


def test_bytes_written_over_synced_ones_are_old_or_new_by_sector():
    results = set()
    for seed in SEEDS:
        disk = with_file(seed, synced=b"a" * 1_024)
        disk.overwrite("file", b"b" * 1_024)
        results |= {content(disk.crash(Crash.TORN)), content(disk.crash(Crash.PREFIX))}

    old, new = b"a" * 512, b"b" * 512
    assert results == {old + old, old + new, new + old, new + new}


@some_mode
def test_a_new_name_is_kept_or_lost_until_its_folder_is_synced(mode):
    def is_kept(seed, *, synced):
        disk = LossyDisk(seed)
        disk.open_append("file").sync()
        if synced:
            disk.sync_folder("")
        return disk.crash(mode).exists("file")

    assert {is_kept(seed, synced=False) for seed in SEEDS} == {True, False}
    assert {is_kept(seed, synced=True) for seed in SEEDS} == {True}


@some_mode
def test_a_removed_name_may_come_back_until_its_folder_is_synced(mode):
    def comes_back(seed, *, synced):
        disk = with_file(seed, synced=b"a")
        disk.remove("file")
        if synced:
            disk.sync_folder("")
        return disk.crash(mode).exists("file")

    assert {comes_back(seed, synced=False) for seed in SEEDS} == {True, False}
    assert {comes_back(seed, synced=True) for seed in SEEDS} == {False}


@every_mode
def test_a_replaced_file_has_its_new_content_after_any_power_cut(mode):
    for seed in SEEDS:
        disk = with_file(seed, synced=b"old")
        disk.replace("file", b"new")

        assert content(disk.crash(mode)) == b"new"


@every_mode
def test_a_power_cut_in_the_middle_of_a_replace_leaves_the_old_or_the_new(mode):
    found = set()
    for seed in SEEDS:
        for steps in range(4):
            disk = with_file(seed, synced=b"old")
            disk.power_off_after(steps)
            with pytest.raises(PowerCut):
                disk.replace("file", b"new")
            found.add(content(disk.crash(mode)))

    assert found <= {b"old", b"new"}
    assert b"old" in found


@every_mode
def test_after_a_sync_that_failed_the_bytes_can_be_read_but_no_later_sync_saves_them(mode):
    disk = LossyDisk()
    file = disk.open_append("file")
    disk.sync_folder("")
    file.write([b"a" * 512])
    disk.fail_next("sync", OSError(errno.EIO, "input/output error"))

    with pytest.raises(OSError, match="input/output"):
        file.sync()
    file.write([b"b" * 512])
    file.sync()

    assert content(disk) == b"a" * 512 + b"b" * 512
    assert content(disk.crash(mode)) == bytes(512) + b"b" * 512


def test_a_crash_leaves_the_disk_it_was_called_on_alone():
    disk = with_file(unsynced=b"b")

    disk.crash(Crash.DROP)

    assert content(disk) == b"b"


def test_the_same_seed_tears_alike():
    first, second = (content(with_file(7, unsynced=b"b" * 9_000).crash(Crash.TORN)) for _ in range(2))

    assert first == second


def test_a_failure_comes_once_and_when_it_was_asked_for():
    disk = with_file()
    file = disk.open_append("file")
    disk.fail_next("append", OSError(errno.EIO, "input/output error"), after=1)

    file.write([b"one"])
    with pytest.raises(OSError, match="input/output"):
        file.write([b"two"])
    file.truncate(3)
    file.write([b"three"])

    assert content(disk) == b"onethree"


def test_a_failing_append_leaves_a_part_of_it_behind():
    sizes = set()
    for seed in SEEDS:
        disk = LossyDisk(seed)
        disk.fail_next("append", OSError(errno.ENOSPC, "no space"))
        with pytest.raises(DiskFull, match="file"):
            disk.open_append("file").write([b"x" * 100])
        sizes.add(disk.size("file"))

    assert len(sizes) > 10
    assert max(sizes) <= 100


def test_an_operation_that_does_not_exist_cannot_be_made_to_fail():
    with pytest.raises(AssertionError, match="sync_folder"):
        LossyDisk().fail_next("fsync", OSError())


@pytest.mark.parametrize("operation", ["create", "truncate", "overwrite", "replace", "remove", "sync_folder", "read"])
def test_every_operation_can_fail(operation):
    disk = with_file(synced=b"a")
    calls = {
        "create": lambda: disk.open_append("other"),
        "truncate": lambda: disk.open_append("file").truncate(0),
        "overwrite": lambda: disk.overwrite("file", b"b"),
        "replace": lambda: disk.replace("file", b"b"),
        "remove": lambda: disk.remove("file"),
        "sync_folder": lambda: disk.sync_folder(""),
        "read": lambda: disk.read("file", 0, 1),
    }
    disk.fail_next(operation, OSError(errno.EIO, "input/output error"))

    with pytest.raises(OSError, match="input/output"):
        calls[operation]()

    assert content(disk) == b"a"


def test_a_full_disk_takes_what_fits_and_then_says_so():
    disk = LossyDisk(capacity_bytes=1_000)
    file = disk.open_append("file")
    file.write([b"a" * 900])

    with pytest.raises(DiskFull):
        file.write([b"b" * 200])
    assert content(disk) == b"a" * 900 + b"b" * 100

    file.truncate(500)
    file.write([b"c" * 500])
    assert disk.used_bytes == 1_000


def test_nothing_works_without_power():
    disk = with_file(synced=b"a")
    disk.power_off_after(0)

    for _ in range(2):
        with pytest.raises(PowerCut):
            disk.sync_folder("")
    with pytest.raises(PowerCut):
        disk.size("file")

    assert content(disk.crash(Crash.DROP)) == b"a"


@given(st.integers(0, 7), st.integers(0, 99))
def test_a_flipped_bit_is_the_only_difference(bit, position):
    disk = with_file(synced=bytes(100))

    disk.flip("file", position, bit)

    for data in (content(disk), content(disk.crash(Crash.DROP))):
        assert data == bytes(position) + bytes([1 << bit]) + bytes(99 - position)
