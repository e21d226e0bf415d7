"""What a disk does, asked of the real one and of its twin in memory alike; and what only the real one can show."""

import errno
import os
import resource
import subprocess

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import DiskFull
from kolk.runtime.disk import IOV_MAX, Disk, OsDisk
from kolk.testing.disk import LossyDisk


@pytest.fixture(params=["os", "lossy"])
def disk(request) -> Disk:
    return OsDisk() if request.param == "os" else LossyDisk()


@pytest.fixture
def folder(disk, tmp_path) -> str:
    path = f"{tmp_path}/data"
    disk.make_folder(path)
    return path


def appended(disk, path, *parts):
    file = disk.open_append(path)
    file.write(parts)
    file.close()


def content(disk, path):
    return disk.read(path, 0, disk.size(path))


def test_a_folder_is_made_with_those_above_it_and_may_exist(disk, folder):
    disk.make_folder(f"{folder}/a/b/c")
    disk.make_folder(f"{folder}/a/b/c")

    assert disk.exists(f"{folder}/a/b/c")
    assert disk.list(f"{folder}/a") == ["b"]


def test_a_folder_lists_its_names_in_order(disk, folder):
    for name in ("b", "c", "a"):
        appended(disk, f"{folder}/{name}", b"x")

    assert disk.list(folder) == ["a", "b", "c"]


def test_a_missing_folder_cannot_be_listed(disk, folder):
    with pytest.raises(FileNotFoundError):
        disk.list(f"{folder}/nothing")


def test_a_missing_file_cannot_be_read(disk, folder):
    assert not disk.exists(f"{folder}/nothing")
    with pytest.raises(FileNotFoundError):
        disk.open_reader(f"{folder}/nothing")
    with pytest.raises(FileNotFoundError):
        disk.size(f"{folder}/nothing")


def test_parts_of_any_kind_are_appended_in_order(disk, folder):
    file = disk.open_append(f"{folder}/file")

    file.write([b"bytes ", memoryview(b"view "), pa.py_buffer(b"buffer"), b""])
    file.write([b"!"])
    file.sync()

    assert file.size == 18
    assert content(disk, f"{folder}/file") == b"bytes view buffer!"


def test_a_file_opened_again_is_appended_to(disk, folder):
    appended(disk, f"{folder}/file", b"one")

    file = disk.open_append(f"{folder}/file")
    file.write([b"two"])

    assert file.size == 6
    assert content(disk, f"{folder}/file") == b"onetwo"


def test_after_a_truncate_the_file_grows_from_there(disk, folder):
    file = disk.open_append(f"{folder}/file")
    file.write([b"good, bad"])

    file.truncate(4)
    file.write([b"!"])

    assert content(disk, f"{folder}/file") == b"good!"


def test_a_read_past_the_end_is_short(disk, folder):
    appended(disk, f"{folder}/file", b"0123456789")

    with disk.open_reader(f"{folder}/file") as reader:
        assert reader.size == 10
        assert reader.pread(7, 100).to_pybytes() == b"789"
        assert reader.pread(10, 1).to_pybytes() == b""
    assert disk.read(f"{folder}/file", 2, 3) == b"234"


def test_an_open_reader_outlives_the_name_of_its_file(disk, folder):
    appended(disk, f"{folder}/file", b"still here")

    with disk.open_reader(f"{folder}/file") as reader:
        disk.remove(f"{folder}/file")

        assert reader.pread(0, 100).to_pybytes() == b"still here"
    assert not disk.exists(f"{folder}/file")


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(disk, folder):
    disk.replace(f"{folder}/file", b"a long old content")

    disk.replace(f"{folder}/file", b"new")

    assert content(disk, f"{folder}/file") == b"new"
    assert disk.list(folder) == ["file"]


def test_an_overwrite_changes_the_start_of_a_file(disk, folder):
    disk.overwrite(f"{folder}/hint", b"11112222")

    disk.overwrite(f"{folder}/hint", b"3333")

    assert content(disk, f"{folder}/hint") == b"33332222"


def test_removing_what_is_not_there_is_no_error(disk, folder):
    disk.remove(f"{folder}/nothing")
    disk.remove_tree(f"{folder}/nothing")


def test_a_tree_is_removed_with_all_in_it(disk, folder):
    disk.make_folder(f"{folder}/a/b")
    appended(disk, f"{folder}/a/b/file", b"x")
    appended(disk, f"{folder}/after", b"x")

    disk.remove_tree(f"{folder}/a")

    assert disk.list(folder) == ["after"]


def test_a_link_is_another_name_of_the_same_file_and_outlives_the_first(disk, folder):
    appended(disk, f"{folder}/a", b"one")

    disk.link(f"{folder}/a", f"{folder}/b")
    same = disk.identity(f"{folder}/a") == disk.identity(f"{folder}/b")
    disk.remove(f"{folder}/a")

    assert same
    assert content(disk, f"{folder}/b") == b"one"
    assert disk.list(folder) == ["b"]


def test_a_link_takes_no_name_that_is_taken_and_gives_none_to_what_is_not_there(disk, folder):
    appended(disk, f"{folder}/a", b"one")
    appended(disk, f"{folder}/b", b"two")

    with pytest.raises(FileExistsError):
        disk.link(f"{folder}/a", f"{folder}/b")
    with pytest.raises(FileNotFoundError):
        disk.link(f"{folder}/c", f"{folder}/d")
    assert (content(disk, f"{folder}/b"), disk.list(folder)) == (b"two", ["a", "b"])


def test_a_file_that_was_written_to_is_known_from_what_it_was(disk, folder):
    appended(disk, f"{folder}/a", b"one")
    before = disk.identity(f"{folder}/a")

    assert disk.identity(f"{folder}/a") == before
    appended(disk, f"{folder}/a", b"two")
    assert disk.identity(f"{folder}/a") != before


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV])
def test_where_there_are_no_links_the_other_name_is_that_of_a_copy(tmp_path, monkeypatch, number):
    def refuse(path, to):
        raise OSError(number, os.strerror(number), to)

    (tmp_path / "a").write_bytes(b"one")
    monkeypatch.setattr(os, "link", refuse)

    OsDisk().link(f"{tmp_path}/a", f"{tmp_path}/b")

    assert (tmp_path / "b").read_bytes() == b"one"
    assert not (tmp_path / "a").samefile(tmp_path / "b")


def test_what_cannot_be_looked_at_is_an_error_and_not_absent(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="symbolic links"):
        OsDisk().exists(f"{tmp_path}/loop/folder")
    assert not OsDisk().exists(f"{tmp_path}/none")
    assert not OsDisk().exists(f"{tmp_path}/file/none")


def test_closing_twice_is_no_error(disk, folder):
    file = disk.open_append(f"{folder}/file")
    reader = disk.open_reader(f"{folder}/file")

    for thing in (file, file, reader, reader):
        thing.close()


def test_more_parts_than_one_call_takes_are_all_written(tmp_path):
    parts = [b"%d," % number for number in range(3 * IOV_MAX + 1)]

    appended(OsDisk(), f"{tmp_path}/file", *parts)

    assert (tmp_path / "file").read_bytes() == b"".join(parts)


@given(st.lists(st.binary(max_size=40), max_size=30), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_short_writes_are_continued_where_they_stopped(tmp_path_factory, parts, takes):
    path = tmp_path_factory.mktemp("short") / "file"
    takes = iter(takes * 1_000)
    real = os.writev

    def writev(fd, views):
        return real(fd, [b"".join(views)[: next(takes)]])

    file = OsDisk().open_append(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "writev", writev)
        file.write(parts)

    assert path.read_bytes() == b"".join(parts)
    assert file.size == len(b"".join(parts))
    file.close()


def test_a_full_disk_is_named_with_what_to_do():
    file = OsDisk().open_append("/dev/full")

    with pytest.raises(DiskFull, match=r"/dev/full; free some, then retry"):
        file.write([b"x"])
    file.close()


def test_any_other_error_comes_through_as_it_is(tmp_path):
    file = OsDisk().open_append(f"{tmp_path}/file")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match="too large") as raised:
            file.write([b"x" * 6_000, b"y" * 6_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert raised.value.errno == errno.EFBIG
    assert file.size == 10_000, "the part that got through is known"
    file.close()


def test_a_replace_that_fails_leaves_the_old_content_and_no_litter(tmp_path):
    disk = OsDisk()
    disk.replace(f"{tmp_path}/file", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            disk.replace(f"{tmp_path}/file", b"x" * 2_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert disk.list(str(tmp_path)) == ["file"]
    assert content(disk, f"{tmp_path}/file") == b"old"


@pytest.mark.root
def test_a_disk_that_really_runs_full_says_so_after_a_short_write(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        file = OsDisk().open_append(f"{tmp_path}/file")
        with pytest.raises(DiskFull):
            file.write([b"x" * 50_000, b"y" * 50_000])
        assert 50_000 < file.size < 100_000

        file.truncate(10_000)
        file.write([b"z" * 10_000])

        assert (tmp_path / "file").stat().st_size == 20_000
        file.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_only_the_owner_may_look_at_the_files(tmp_path):
    disk = OsDisk()
    disk.make_folder(f"{tmp_path}/data")
    appended(disk, f"{tmp_path}/data/file", b"x")

    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data" / "file").stat().st_mode & 0o777 == 0o600
