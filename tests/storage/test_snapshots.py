"""The snapshots of a bucket as files: what is shared, what is damaged, and that none is harmed by another."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.shelf import HOME, IO_ERROR, ONE, THREE, TWO, Shelf, check_found, contents, facts, names_in, shelf_of

from kolk.errors import Corrupted
from kolk.model.snapshot import Snapshot
from kolk.storage.snapshots import FolderSnapshots
from kolk.testing.disk import LossyDisk

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
