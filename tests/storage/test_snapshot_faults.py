"""The snapshots of a bucket on a disk that fails: whole or not there, and none is harmed by another."""

import errno
from contextlib import suppress

import pytest
from tests.storage.shelf import (
    HOME,
    IO_ERROR,
    ONE,
    SEEDS,
    THREE,
    TWO,
    Shelf,
    check_found,
    contents,
    every_crash,
    facts,
    shelf_of,
    write,
)

from kolk.errors import DiskFull
from kolk.model.snapshot import Snapshot
from kolk.testing.disk import Crash, LossyDisk, PowerCut

# --- power cuts


def _steps_of(action):
    """How many steps an action takes, from a shelf with two snapshots on."""
    shelf = shelf_of(ONE, TWO)
    before = shelf.disk.steps
    action(shelf)
    return shelf.disk.steps - before


def _publish_third(shelf):
    shelf.publish(3, THREE)


def _remove_first(shelf):
    shelf.store.remove(1)


def _publish_and_remove(shelf):
    shelf.publish(3, THREE)
    shelf.store.remove(1)
    shelf.store.remove(2)
    shelf.publish(4, TWO)


ACTIONS = [
    pytest.param(_publish_third, {1, 2}, id="publish"),
    pytest.param(_remove_first, {2}, id="remove"),
    pytest.param(_publish_and_remove, set(), id="both"),
]


@every_crash
@pytest.mark.parametrize(("action", "kept"), ACTIONS)
def test_a_power_cut_at_any_step_leaves_each_snapshot_whole_or_not_there(action, kept, mode):
    expected = {1: ONE, 2: TWO, 3: THREE, 4: TWO}
    for step in range(_steps_of(action) + 1):
        for seed in SEEDS:
            shelf = shelf_of(ONE, TWO, disk=LossyDisk(seed))
            shelf.disk.power_off_after(step)
            with suppress(PowerCut):
                action(shelf)

            found = check_found(shelf.disk.crash(mode), expected)

            assert kept <= found


@every_crash
def test_what_was_published_survives_a_power_cut_and_what_was_removed_stays_away(mode):
    for seed in SEEDS:
        shelf = shelf_of(ONE, TWO, THREE, disk=LossyDisk(seed))
        shelf.store.remove(1)

        assert check_found(shelf.disk.crash(mode), {2: TWO, 3: THREE}) == {2, 3}


@every_crash
def test_a_power_cut_while_a_start_clears_up_changes_nothing(mode):
    """Of a publication that was cut, of a removal that was, and in the middle of clearing these away."""
    for first in range(0, _steps_of(_publish_and_remove), 3):
        for step in range(8):
            shelf = shelf_of(ONE, TWO)
            shelf.disk.power_off_after(first)
            with pytest.raises(PowerCut):
                _publish_and_remove(shelf)
            found = shelf.disk.crash(Crash.TORN)
            before = set(Shelf(found.crash(Crash.KEEP)).store.load().good)
            found.power_off_after(step)
            with suppress(PowerCut):
                Shelf(found).store.load()

            assert check_found(found.crash(mode), {1: ONE, 2: TWO, 3: THREE, 4: TWO}) == before


# --- failures

OPERATIONS = ["append", "sync", "create", "link", "replace", "remove", "sync_folder", "make_folder", "read"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("mode", [Crash.DROP, Crash.KEEP, Crash.TORN])
def test_a_publication_that_fails_at_any_step_harms_no_other_and_the_next_one_succeeds(operation, mode):
    """Upstream's #543: whoever discards what failed must not delete what others share with it."""
    for after in range(100):
        shelf = shelf_of(ONE, TWO, disk=LossyDisk(after))
        write(shelf.disk, "checkpoint", THREE)
        shelf.disk.fail_next(operation, IO_ERROR, after=after)
        try:
            shelf.store.publish(Snapshot(**facts(3)), "checkpoint", shelf.known, lambda: None)
        except OSError:
            pass
        else:
            break
        shelf.disk.heal()

        found = Shelf(shelf.disk)
        found.known = dict(found.store.load().good)
        assert {1, 2} <= found.known.keys() <= {1, 2, 3}
        assert check_found(shelf.disk.crash(mode), {1: ONE, 2: TWO, 3: THREE}) >= found.known.keys()
        following = max(found.known) + 1
        shelf.known = found.known
        shelf.publish(following, THREE)
        assert check_found(shelf.disk.crash(mode), {1: ONE, 2: TWO, 3: THREE, 4: THREE}) == {*found.known}
    assert after < 99


@every_crash
@pytest.mark.parametrize("operation", ["remove", "sync_folder"])
def test_a_removal_that_fails_is_tried_again_and_never_leaves_a_half(operation, mode):
    """The name of the manifest may come back as long as its end is not durable: so its files must be there."""
    for after in range(6):
        for step in range(8):
            shelf = shelf_of(ONE, TWO, disk=LossyDisk(step))
            shelf.disk.fail_next(operation, IO_ERROR, after=after)
            with suppress(OSError):
                shelf.store.remove(1)
            shelf.disk.power_off_after(step)
            with suppress(PowerCut, OSError):
                shelf.store.remove(1)

            assert check_found(shelf.disk.crash(mode), {1: ONE, 2: TWO}) >= {2}


def test_an_ambiguous_publication_is_told_as_it_turned_out():
    """T4, T6: the manifest has its name, and nobody could say whether it keeps it."""
    shelf = shelf_of(ONE)
    write(shelf.disk, "checkpoint", TWO)
    for after in range(20):
        shelf.disk.fail_next("sync_folder", IO_ERROR, after=after)
        try:
            shelf.store.publish(Snapshot(**facts(2)), "checkpoint", shelf.known, lambda: None)
        except OSError:
            if shelf.disk.exists(f"{HOME}/2.manifest"):
                break
        shelf.disk.heal()
    shelf.disk.heal()
    assert check_found(shelf.disk.crash(Crash.DROP), {1: ONE}) == {1}, "so it really may be lost"

    stored = Shelf(shelf.disk).store.load()

    assert set(stored.good) == {1, 2}
    assert check_found(shelf.disk.crash(Crash.DROP), {1: ONE, 2: TWO}) == {1, 2}, "and now it may not"


@pytest.mark.parametrize("operation", ["read", "sync_folder", "remove"])
def test_an_error_of_the_disk_while_looking_is_an_error_and_not_no_snapshot(operation):
    shelf = shelf_of(ONE, TWO)
    shelf.disk.make_folder(f"{HOME}/9")
    shelf.disk.replace(f"{HOME}/9/x", b"what a crash left")
    shelf.disk.fail_next(operation, IO_ERROR)

    with pytest.raises(OSError, match="input/output error"):
        Shelf(shelf.disk).store.load()

    shelf.disk.heal()
    assert Shelf(shelf.disk).store.load().good == shelf.known


@pytest.mark.parametrize("call", ["list", "exists", "size", "read"])
def test_no_call_that_fails_makes_the_answer_empty(call):
    class Blind(LossyDisk):
        is_blind = False

    def fail(disk, *args):
        if disk.is_blind:
            raise PermissionError(errno.EACCES, "permission denied")
        return getattr(LossyDisk, call)(disk, *args)

    setattr(Blind, call, fail)
    shelf = shelf_of(ONE, TWO, disk=Blind())
    shelf.disk.is_blind = True

    with pytest.raises(PermissionError):
        Shelf(shelf.disk).store.load()


def test_a_full_disk_refuses_the_snapshot_and_gets_its_space_back():
    shelf = shelf_of(ONE, TWO)
    write(shelf.disk, "checkpoint", THREE)
    used = shelf.disk.used_bytes
    room = 0
    while True:
        shelf.disk.capacity_bytes = used + room
        try:
            shelf.store.publish(Snapshot(**facts(3)), "checkpoint", shelf.known, lambda: None)
        except DiskFull:
            shelf.disk.capacity_bytes = None
            assert check_found(shelf.disk, {1: ONE, 2: TWO}) == {1, 2}
            shelf.disk.remove_tree("restored")
            assert shelf.disk.used_bytes == used
            room += 97
        else:
            break

    shelf.disk.capacity_bytes = None
    assert check_found(shelf.disk, {1: ONE, 2: TWO, 3: THREE}) == {1, 2, 3}
    assert room > sum(map(len, THREE.values())) - len(THREE["000009.sst"])


def test_whoever_is_told_to_stop_in_the_middle_leaves_nothing():
    class Stop(Exception):
        pass

    for files in range(len(THREE)):
        shelf, left = shelf_of(ONE, TWO), iter(range(files))

        def check(left=left):
            if next(left, None) is None:
                raise Stop

        with pytest.raises(Stop):
            shelf.publish(3, THREE, check)

        assert check_found(shelf.disk, {1: ONE, 2: TWO}) == {1, 2}


@pytest.mark.parametrize("operation", ["append", "sync", "create", "sync_folder", "read"])
def test_a_restoration_that_fails_raises_and_can_be_done_again(operation):
    for after in range(100):
        shelf = shelf_of(ONE)
        shelf.disk.make_folder("restored")
        shelf.disk.fail_next(operation, IO_ERROR, after=after)
        try:
            shelf.store.restore(shelf.known[1], "restored")
        except OSError:
            shelf.disk.heal()
            shelf.store.restore(shelf.known[1], "restored")
            assert contents(shelf.disk, "restored") == ONE
        else:
            break
    assert 0 < after < 99


@every_crash
def test_what_was_restored_survives_a_power_cut(mode):
    shelf = shelf_of(ONE, TWO)
    shelf.disk.make_folder("restored")

    shelf.store.restore(shelf.known[2], "restored")

    assert contents(shelf.disk.crash(mode), "restored") == TWO
