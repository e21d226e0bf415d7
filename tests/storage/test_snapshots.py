"""The snapshots of a bucket on a disk that fails: whole or not there, and none is harmed by another.

Checkpoints are folders of a few made-up files: what RocksDB has in them is none of the store's business.
"""

import errno
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import Corrupted, DiskFull
from kolk.model.snapshot import Snapshot
from kolk.storage.snapshots import FolderSnapshots
from kolk.testing.disk import Crash, LossyDisk, PowerCut

HOME = "snapshots/1/0/0"
SEEDS = range(3)
IO_ERROR = OSError(errno.EIO, "input/output error")
every_crash = pytest.mark.parametrize("mode", Crash)

ONE = {"000008.sst": b"a" * 700, "000009.sst": b"b" * 900, "CURRENT": b"MANIFEST-1\n", "MANIFEST-1": b"first" * 150}
TWO = {"000009.sst": b"b" * 900, "000010.sst": b"c" * 1100, "CURRENT": b"MANIFEST-2\n", "MANIFEST-2": b"second" * 120}
THREE = {"000011.sst": b"d" * 300, "000009.sst": b"b" * 900, "CURRENT": b"MANIFEST-3\n", "MANIFEST-3": b"third" * 99}


def write(disk, folder, files):
    """A checkpoint; one that was there before goes."""
    disk.remove_tree(folder)
    disk.make_folder(folder)
    for name, data in files.items():
        file = disk.open_append(f"{folder}/{name}")
        file.write([data])
        file.sync()
    disk.sync_folder(folder)


class Shelf:
    """A store on a disk, and what should be in it."""

    def __init__(self, disk=None, known=None):
        self.disk = LossyDisk() if disk is None else disk
        self.store = FolderSnapshots(self.disk, Path(HOME))
        self.known = {} if known is None else known

    def publish(self, id, files, check=lambda: None):
        write(self.disk, "checkpoint", files)
        facts = Snapshot(id=id, offset=10 * id, rows=id, schema_id=1, taken_ms=1_000 + id)
        snapshot = self.store.publish(facts, "checkpoint", self.known, check)
        self.known[id] = snapshot
        return snapshot

    def restored(self, snapshot):
        """The files of a snapshot, checked against what is written down of them."""
        self.disk.remove_tree("restored")
        self.disk.make_folder("restored")
        self.store.restore(snapshot, "restored")
        return contents(self.disk, "restored")


def contents(disk, folder):
    return {name: disk.read(f"{folder}/{name}", 0, disk.size(f"{folder}/{name}")) for name in disk.list(folder)}


def shelf_of(*checkpoints, disk=None):
    shelf = Shelf(disk)
    for id, files in enumerate(checkpoints, 1):
        shelf.publish(id, files)
    return shelf


def check_found(disk, expected):
    """What a start finds: those of these snapshots that are there are whole, and there is nothing else. Their
    numbers."""
    shelf = Shelf(disk)
    stored = shelf.store.load()
    assert stored.broken == frozenset()
    for id, snapshot in stored.good.items():
        assert (snapshot.id, snapshot.offset, snapshot.rows) == (id, 10 * id, id)
        assert shelf.restored(snapshot) == expected[id]
    assert names_in(disk) == {
        *(f"{HOME}/{id}.manifest" for id in stored.good),
        *(f"{HOME}/{id}/{file.name}" for id, each in stored.good.items() for file in each.files),
    }
    return set(stored.good)


def names_in(disk):
    if not disk.exists(HOME):
        return set()
    files = {f"{HOME}/{name}" for name in disk.list(HOME)}
    for name in disk.list(HOME):
        if name.isdigit():
            files |= {f"{HOME}/{name}/{each}" for each in disk.list(f"{HOME}/{name}")}
            files.remove(f"{HOME}/{name}")
    return files


# --- what it does


def test_a_snapshot_is_there_once_it_is_published_and_comes_back_as_it_was():
    shelf = shelf_of(ONE)

    stored = Shelf(shelf.disk).store.load()

    assert stored.good == shelf.known
    assert shelf.restored(stored.good[1]) == ONE
    assert stored.good[1].size_bytes == stored.good[1].new_bytes == sum(map(len, ONE.values()))
    assert shelf.store.folder(stored.good[1]) == Path(HOME) / "1"
    assert contents(shelf.disk, f"{HOME}/1") == ONE


def test_there_are_none_before_the_first_and_looking_makes_no_folder():
    shelf = Shelf()

    assert shelf.store.load().good == {}
    shelf.store.remove(1)

    assert not shelf.disk.exists("snapshots")


def test_one_of_a_bucket_that_never_had_anything_has_no_files():
    shelf = Shelf()

    shelf.store.publish(Snapshot(id=1, offset=0, rows=0, schema_id=1, taken_ms=5), "", {}, lambda: None)

    found = Shelf(shelf.disk).store.load().good[1]
    assert (found.files, found.size_bytes, names_in(shelf.disk)) == ((), 0, {f"{HOME}/1.manifest"})
    assert shelf.restored(found) == {}
    shelf.store.remove(1)
    assert names_in(shelf.disk) == set()


def test_the_diary_and_the_lock_of_rocksdb_are_not_kept():
    shelf = shelf_of({**ONE, "LOG": b"x", "LOG.old.7": b"y", "LOCK": b""})

    assert shelf.restored(shelf.known[1]) == ONE


def test_a_file_is_linked_if_an_earlier_snapshot_has_its_content_whatever_it_is_called():
    renamed = {"000099.sst": ONE["000008.sst"], "CURRENT": ONE["CURRENT"]}

    shelf = shelf_of(ONE, renamed)

    assert shelf.known[2].new_bytes == 0
    identity = shelf.disk.identity
    assert identity(f"{HOME}/2/000099.sst") == identity(f"{HOME}/1/000008.sst") != identity("checkpoint/000099.sst")
    assert shelf.restored(shelf.known[2]) == renamed


def test_a_file_of_the_same_name_and_another_content_is_copied():
    other = {**ONE, "000008.sst": b"z" * len(ONE["000008.sst"])}

    shelf = shelf_of(ONE, other)

    assert shelf.known[2].new_bytes == len(other["000008.sst"])
    assert shelf.restored(shelf.known[1]) == ONE
    assert shelf.restored(shelf.known[2]) == other


def test_a_file_that_changes_its_content_and_keeps_name_inode_size_and_time_is_looked_at_again():
    """A small file of RocksDB may come back as the same inode, within one tick of the clock of the file system."""

    class Coarse(LossyDisk):
        def identity(self, path):
            return (0, self.size(path))

    shelf = shelf_of(ONE, {**ONE, "CURRENT": b"MANIFEST-7\n"}, disk=Coarse())

    assert shelf.restored(shelf.known[2])["CURRENT"] == b"MANIFEST-7\n"


def test_a_file_that_was_not_touched_is_not_read_again():
    shelf = shelf_of(ONE)
    shelf.disk.link("checkpoint/000009.sst", "kept.sst")
    shelf.disk.remove_tree("checkpoint")
    shelf.disk.make_folder("checkpoint")
    shelf.disk.link("kept.sst", "checkpoint/000009.sst")
    shelf.disk.fail_next("read", IO_ERROR)

    snapshot = shelf.store.publish(Snapshot(**facts(2)), "checkpoint", shelf.known, lambda: None)

    assert [file.name for file in snapshot.files] == ["000009.sst"]


def facts(id):
    return {"id": id, "offset": 10 * id, "rows": id, "schema_id": 1, "taken_ms": 5}


def test_damage_in_the_buckets_own_files_does_not_reach_a_snapshot():
    shelf = shelf_of(ONE)

    shelf.disk.flip("checkpoint/000008.sst", 5, 3)

    assert shelf.restored(shelf.known[1]) == ONE


def test_removing_one_takes_nothing_from_another():
    """R1, K5: the same file in three of them, and whichever goes first."""
    for order in ([1, 2, 3], [3, 2, 1], [2, 1, 3], [2, 3, 1]):
        shelf = shelf_of(ONE, TWO, THREE)
        left = dict(shelf.known)
        for id in order:
            shelf.store.remove(id)
            del left[id]
            assert Shelf(shelf.disk).store.load().good == left
            for snapshot in left.values():
                assert shelf.restored(snapshot) == [ONE, TWO, THREE][snapshot.id - 1]
        assert names_in(shelf.disk) == set()


def test_removing_what_is_not_there_is_no_error():
    """R2: numbers that never were, and one a second time."""
    shelf = shelf_of(ONE, TWO)

    for id in (-1, 0, 1, 1, 3, 2**63):
        shelf.store.remove(id)

    assert set(Shelf(shelf.disk).store.load().good) == {2}


def test_a_snapshot_whose_files_have_gone_meanwhile_is_copied_from_the_checkpoint():
    shelf = shelf_of(ONE)
    shelf.store.remove(1)

    snapshot = shelf.publish(2, TWO)

    assert snapshot.new_bytes == snapshot.size_bytes
    assert shelf.restored(snapshot) == TWO


def test_what_is_not_ours_is_left_alone():
    shelf = shelf_of(ONE)
    strangers = ["lost+found/note", "07/x", "²", "notes.txt", "07.manifest", "-3.manifest"]
    for name in strangers:
        shelf.disk.make_folder(f"{HOME}/{name}".rpartition("/")[0])
        shelf.disk.replace(f"{HOME}/{name}", b"mine")

    stored = Shelf(shelf.disk).store.load()

    assert (set(stored.good), stored.broken) == ({1}, frozenset())
    assert all(shelf.disk.exists(f"{HOME}/{name}") for name in strangers)


# --- damage


def _flip_manifest(disk):
    disk.flip(f"{HOME}/2.manifest", 40, 2)


def _cut(name, size):
    def cut(disk):
        file = disk.open_append(f"{HOME}/{name}")
        file.truncate(size)
        file.sync()

    return cut


def _remove(name):
    return lambda disk: disk.remove(f"{HOME}/{name}")


def _other_id(disk):
    disk.replace(f"{HOME}/2.manifest", disk.read(f"{HOME}/1.manifest", 0, 10_000))


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(_flip_manifest, id="a flipped bit in the manifest"),
        pytest.param(_cut("2.manifest", 0), id="an empty manifest"),
        pytest.param(_cut("2.manifest", 60), id="a manifest that is cut off"),
        pytest.param(_other_id, id="the manifest of another"),
        pytest.param(_remove("2/000010.sst"), id="a missing file"),
        pytest.param(_cut("2/000010.sst", 1099), id="a file that is cut off"),
        pytest.param(lambda disk: disk.remove_tree(f"{HOME}/2"), id="a missing folder"),
    ],
)
def test_a_damaged_snapshot_is_told_of_and_the_others_are_good(harm, caplog):
    shelf = shelf_of(ONE, TWO, THREE)

    harm(shelf.disk)
    stored = Shelf(shelf.disk).store.load()

    assert (set(stored.good), stored.broken) == ({1, 3}, frozenset({2}))
    assert "snapshot" in caplog.text
    for id, files in ((1, ONE), (3, THREE)):
        assert shelf.restored(stored.good[id]) == files
    shelf.store.remove(2)
    assert check_found(shelf.disk, {1: ONE, 3: THREE}) == {1, 3}


def test_every_single_bit_of_a_manifest_counts():
    shelf = shelf_of({"CURRENT": b"x"})
    path = f"{HOME}/1.manifest"

    for position in range(shelf.disk.size(path)):
        for bit in (0, 5):
            shelf.disk.flip(path, position, bit)
            assert shelf.store.load().broken == {1}, f"bit {bit} of byte {position}"
            shelf.disk.flip(path, position, bit)
    assert shelf.store.load().good == shelf.known


@pytest.mark.parametrize("name", ["000008.sst", "CURRENT"])
def test_a_flipped_bit_in_a_file_is_found_when_it_is_restored(name):
    shelf = shelf_of(ONE, TWO)

    shelf.disk.flip(f"{HOME}/1/{name}", 3, 1)

    with pytest.raises(Corrupted, match=name):
        shelf.restored(shelf.known[1])
    assert shelf.restored(shelf.known[2]) == TWO


def test_a_file_that_is_missing_when_it_is_restored_is_named():
    shelf = shelf_of(ONE)

    shelf.disk.remove(f"{HOME}/1/000009.sst")

    with pytest.raises(Corrupted, match=r"lacks its file .*000009\.sst"):
        shelf.restored(shelf.known[1])


def test_a_checkpoint_that_changes_while_it_is_copied_becomes_no_snapshot():
    shelf = shelf_of(ONE)
    flips = iter([False, True, False, False])

    def flip_second():
        if next(flips):
            shelf.disk.flip("checkpoint/000010.sst", 0, 0)

    class Late(FolderSnapshots):
        def _copy(self, source, target, file):
            flip_second()
            super()._copy(source, target, file)

    shelf.store = Late(shelf.disk, Path(HOME))
    with pytest.raises(Corrupted, match="not what was kept"):
        shelf.publish(2, {"000009.sst": ONE["000009.sst"], "000007.sst": b"1", "000010.sst": b"22"})

    assert check_found(shelf.disk, {1: ONE}) == {1}


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


# --- any files at all

FILES = st.dictionaries(
    st.sampled_from(["1.sst", "2.sst", "3.sst", "CURRENT", "MANIFEST-1"]), st.binary(max_size=3), min_size=1
)


@given(st.lists(FILES, min_size=1, max_size=6), st.data())
def test_whatever_comes_and_goes_each_snapshot_has_its_own_files(checkpoints, data):
    shelf = Shelf()
    expected = {}
    for id, files in enumerate(checkpoints, 1):
        known = {content for each in expected.values() for content in each.values()}
        snapshot = shelf.publish(id, files)
        assert snapshot.new_bytes == sum(len(content) for content in files.values() if content not in known)
        expected[id] = files
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(expected)))
            shelf.store.remove(gone)
            del expected[gone], shelf.known[gone]
        assert check_found(shelf.disk, expected) == set(expected)
