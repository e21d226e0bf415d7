"""A data folder's format: an older one is brought up to the present one under the lock, and no crash leaves a third."""

import os
from pathlib import Path

import pytest

from kolk.errors import Corrupted, DiskFull, FolderInUse, UnknownFormat
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.migrations import FORMAT, MIGRATIONS, migrate


@pytest.fixture
def path(tmp_path):
    """A folder that the first version of Kolk has written."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "FORMAT").write_text("kolk 1\n")
    (folder / "meta.sqlite").write_bytes(b"")
    return folder


def named(path: Path) -> str:
    return (path / "FORMAT").read_text()


class Crash(BaseException):
    """The end of the process."""


class CrashingDisk(OsDisk):
    """A disk whose process ends before, within or after the n-th replacement of a file."""

    def __init__(self, where: str, left: int = 1) -> None:
        self._where = where
        self._left = left

    def replace(self, path: str, data: bytes) -> None:
        self._left -= 1
        if self._left == 0 and self._where == "within":
            Path(path + ".tmp").write_bytes(data[:3])
        if self._left or self._where == "after":
            super().replace(path, data)
        if self._left == 0:
            raise Crash


# --- which format


def test_a_new_folder_is_of_the_present_format(tmp_path):
    Folder(tmp_path / "new").close()

    assert named(tmp_path / "new") == f"kolk {FORMAT}\n"


def test_a_folder_of_an_older_format_is_brought_up_to_the_present_one(path):
    Folder(path).close()

    assert named(path) == f"kolk {FORMAT}\n"
    Folder(path).close()


def test_a_folder_of_the_present_format_is_not_written_to(path):
    Folder(path).close()
    before = os.stat(path / "FORMAT")

    Folder(path, CrashingDisk("before")).close()

    assert os.stat(path / "FORMAT").st_ino == before.st_ino


def test_a_newer_format_is_refused_by_name_and_left_as_it_is(path):
    (path / "FORMAT").write_text(f"kolk {FORMAT + 1}\n")

    with pytest.raises(UnknownFormat, match=rf"format {FORMAT + 1}.*reads up to {FORMAT}: upgrade Kolk"):
        Folder(path)

    assert named(path) == f"kolk {FORMAT + 1}\n"


@pytest.mark.parametrize(
    "text", ["", "kolk", "kolk x", "kolk 0", "kolk 01", "kolk -1", "kolk ²", "kolk " + "9" * 5_000]
)
def test_a_file_that_names_no_format_is_damage(path, text):
    (path / "FORMAT").write_text(text)

    with pytest.raises(Corrupted, match="does not name a Kolk format"):
        Folder(path)

    assert named(path) == text


def test_there_is_a_step_away_from_every_older_format():
    assert sorted(MIGRATIONS) == list(range(1, FORMAT))


# --- the lock


def test_nothing_is_migrated_in_a_folder_that_somebody_else_has_open(path):
    holder = Folder(path)
    (path / "FORMAT").write_text("kolk 1\n")

    with pytest.raises(FolderInUse):
        Folder(path)
    assert named(path) == "kolk 1\n"

    holder.close()
    Folder(path).close()
    assert named(path) == f"kolk {FORMAT}\n"


def test_the_lock_is_held_while_a_folder_is_migrated(path):
    refused = []

    class Looking(OsDisk):
        def replace(self, name: str, data: bytes) -> None:
            with pytest.raises(FolderInUse):
                Folder(path)
            refused.append(name)
            super().replace(name, data)

    Folder(path, Looking()).close()

    assert refused == [str(path / "FORMAT")]


# --- crashes and failures


@pytest.mark.parametrize(("where", "after"), [("before", 1), ("within", 1), ("after", FORMAT)])
def test_a_crash_leaves_the_old_format_or_the_new_one_and_a_folder_that_opens(path, where, after):
    with pytest.raises(Crash):
        Folder(path, CrashingDisk(where))
    assert named(path) == f"kolk {after}\n"

    Folder(path).close()

    assert named(path) == f"kolk {FORMAT}\n"


def test_a_disk_without_room_for_it_leaves_the_old_format_and_no_lock(path):
    class Full(OsDisk):
        def replace(self, name: str, data: bytes) -> None:
            raise DiskFull("full")

    with pytest.raises(DiskFull):
        Folder(path, Full())

    assert named(path) == "kolk 1\n"
    Folder(path).close()


def test_the_number_is_written_after_the_step_that_it_stands_for(path):
    """A step that was interrupted is done again, and finds what it did the first time."""
    seen = []

    def step(folder, disk):
        seen.append((named(folder), (folder / "made").exists()))
        (folder / "made").touch()
        if len(seen) == 1:
            raise Crash

    steps = dict.fromkeys(range(1, FORMAT), step)
    with pytest.raises(Crash):
        migrate(path, OsDisk(), 1, steps)
    assert named(path) == "kolk 1\n"

    migrate(path, OsDisk(), 1, steps)

    assert seen[:2] == [("kolk 1\n", False), ("kolk 1\n", True)]
    assert named(path) == f"kolk {FORMAT}\n"
