"""The two files of a backup as text: what is written is read back, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.backup import BackupHead, decode_backup, decode_files, encode_backup, encode_files
from kolk.errors import Corrupted, UnknownFormat
from kolk.model.backup import BackupFile

COUNTS = st.integers(0, 2**53)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
DIGESTS = st.text("0123456789abcdef", min_size=40, max_size=40)
HEADS = st.builds(
    BackupHead,
    format=st.integers(1, 9),
    taken_ms=COUNTS,
    source=TEXTS,
    nonce=TEXTS,
    tables=COUNTS,
    buckets=COUNTS,
    files=COUNTS,
    size_bytes=COUNTS,
    mixed=st.lists(TEXTS, max_size=3),
    digest=DIGESTS,
)
PARTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
PATHS = st.sampled_from(["meta.sqlite", "tokens.json"]) | st.builds(
    lambda top, parts: "/".join([top, *parts]), st.sampled_from(["snapshots", "tables"]), st.lists(PARTS, min_size=1)
)
FILES = st.builds(BackupFile, PATHS, st.integers(0, 10**17), DIGESTS)


@given(HEADS)
def test_a_head_is_read_back(head):
    assert decode_backup("BACKUP", encode_backup(head)) == head


def test_the_files_of_a_backup_are_as_they_always_were():
    head = BackupHead(
        format=2,
        taken_ms=1_700_000_000_000,
        source="/data",
        nonce="n",
        tables=1,
        buckets=2,
        files=3,
        size_bytes=4,
        mixed=["web.pages"],
        digest="ab" * 20,
    )
    assert encode_backup(head) == (
        b"kolk-backup 1\n"
        b'{"format":2,"taken_ms":1700000000000,"source":"/data","nonce":"n","tables":1,"buckets":2,"files":3,'
        b'"size_bytes":4,"mixed":["web.pages"],"digest":"abababababababababababababababababababab"}\n'
        b"ba245946\n"
    )
    assert encode_files([BackupFile("meta.sqlite", 7, "cd" * 20)]) == b"cd" * 20 + b" 7 meta.sqlite\n"


@given(st.lists(FILES))
def test_a_list_of_files_is_read_back(files):
    assert decode_files("FILES", encode_files(files)) == files


@given(HEADS, st.data())
def test_a_head_with_a_changed_byte_is_refused(head, data):
    encoded = bytearray(encode_backup(head))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))

    with pytest.raises(Corrupted):
        decode_backup("BACKUP", bytes(encoded))


@pytest.mark.parametrize("data", [b"", b"\n", b"kolk 2\n", b"kolk-backup\n", b"kolk-backup 0\n", b"kolk-backup 01\n"])
def test_what_is_no_head_is_refused(data):
    with pytest.raises(Corrupted):
        decode_backup("BACKUP", data)


def test_a_newer_head_is_refused_by_its_number():
    with pytest.raises(UnknownFormat, match="backup format 12, and this version of Kolk reads up to 1"):
        decode_backup("BACKUP", b"kolk-backup 12\nanything\n")


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/passwd", "tables/../x", "tables//x", "tables/", "x", "FORMAT", "tables/.x", "tables/a b", "LOCK"],
)
def test_a_path_that_leads_elsewhere_is_refused(path):
    with pytest.raises(Corrupted):
        decode_files("FILES", f"{'0' * 40} 1 {path}\n".encode())
