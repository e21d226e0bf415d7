"""A snapshot's manifest and the record of a cut: bytes that every later version must read, and damage that it sees."""

import json
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.cut import decode_cut, encode_cut
from kolk.codec.snapshot import decode_snapshot, encode_snapshot
from kolk.errors import Corrupted
from kolk.model.ids import BucketId, TableId
from kolk.model.snapshot import Snapshot, SnapshotFile

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "snapshots.json").read_text())
SNAPSHOT = Snapshot(
    id=7,
    offset=4711,
    rows=42,
    schema_id=3,
    taken_ms=1_700_000_000_000,
    files=(
        SnapshotFile("000008.sst", 22_229_268, "00112233445566778899aabbccddeeff01234567"),
        SnapshotFile("CURRENT", 16, "ff" * 20),
    ),
    new_bytes=16,
)
EMPTY = Snapshot(id=1, offset=0, rows=None, schema_id=1, taken_ms=0)
CUT = {
    BucketId(TableId(7), 12, 0, "day=2"): 5,
    BucketId(TableId(7), 12, 1, "day=2"): 4,
    BucketId(TableId(7), 3, 0, "day=1"): 9,
}
NUMBERS = st.integers(0, 2**63 - 1)
FILE_NAMES = st.sampled_from(["000008.sst", "CURRENT", "MANIFEST-000005", "OPTIONS-000007", "000004.log"])
SNAPSHOTS = st.builds(
    Snapshot,
    id=NUMBERS,
    offset=NUMBERS,
    rows=st.none() | NUMBERS,
    schema_id=NUMBERS,
    taken_ms=NUMBERS,
    files=st.lists(st.builds(SnapshotFile, FILE_NAMES, NUMBERS, st.text())).map(tuple),
    new_bytes=NUMBERS,
)


def test_a_manifest_is_that_of_the_format():
    assert encode_snapshot(SNAPSHOT).decode() == GOLDEN["manifest"]
    assert encode_snapshot(EMPTY).decode() == GOLDEN["empty"]
    assert decode_snapshot("7", GOLDEN["manifest"].encode()) == SNAPSHOT
    assert decode_snapshot("1", GOLDEN["empty"].encode()) == EMPTY


def test_the_record_of_a_cut_is_that_of_the_format():
    assert encode_cut(CUT).decode() == GOLDEN["cut"]
    assert decode_cut(TableId(7), GOLDEN["cut"].encode()) == CUT
    assert decode_cut(TableId(7), b"[]") == {}


@given(SNAPSHOTS)
def test_a_snapshot_comes_back_from_its_manifest(snapshot):
    assert decode_snapshot("x", encode_snapshot(snapshot)) == snapshot


@given(st.dictionaries(st.builds(BucketId, st.just(TableId(7)), NUMBERS, NUMBERS), NUMBERS))
def test_a_cut_comes_back_from_its_record(cut):
    assert decode_cut(TableId(7), encode_cut(cut)) == cut


@given(SNAPSHOTS, st.data())
def test_a_manifest_of_which_anything_is_changed_or_missing_is_damaged(snapshot, data):
    record = bytearray(encode_snapshot(snapshot))
    place = data.draw(st.integers(0, len(record) - 1))
    if data.draw(st.booleans()):
        record[place] ^= data.draw(st.integers(1, 255))
    else:
        del record[place : data.draw(st.integers(place + 1, len(record)))]

    with pytest.raises(Corrupted, match=r"the manifest there/7\.manifest"):
        decode_snapshot("there/7.manifest", bytes(record))


def _signed(fields):
    body = msgspec.json.encode(fields)
    return f"{zlib.crc32(body):08x} ".encode() + body + b"\n"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([], "cannot be read"),
        ({}, "cannot be read"),
        ({"version": 1, "id": "7"}, "cannot be read"),
        (json.loads(GOLDEN["empty"][9:]) | {"version": 2}, "upgrade Kolk"),
        (json.loads(GOLDEN["empty"][9:]) | {"files": [["a", 1]]}, "cannot be read"),
        (json.loads(GOLDEN["empty"][9:]) | {"files": [["", 1, ""]]}, "none of RocksDB's"),
        (json.loads(GOLDEN["empty"][9:]) | {"files": [["../LOCK", 1, ""]]}, "none of RocksDB's"),
    ],
)
def test_a_manifest_that_is_none_or_a_later_one_is_refused(fields, why):
    with pytest.raises(Corrupted, match=why):
        decode_snapshot("7", _signed(fields))


@pytest.mark.parametrize("record", [b"", b"{}", b"\xff", b"[[1]]", b"[[1,[0]]]", b'[[1,["0",5]]]', b"[[1,[0,5,1]]]"])
def test_a_record_of_a_cut_that_is_none_is_refused(record):
    with pytest.raises(Corrupted, match="table 7"):
        decode_cut(TableId(7), record)
