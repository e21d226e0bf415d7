"""The records of a lease: bytes that every later version must read, and that are read as nothing else."""

import json
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.lease import (
    LeaseHead,
    TableHead,
    decode_chunk,
    decode_head,
    decode_table_head,
    encode_chunk,
    encode_head,
    encode_table_head,
)
from kolk.errors import Corrupted, UnknownFormat
from kolk.model.ids import BucketId, TableId
from kolk.model.lease import CHUNK_BUCKETS, CHUNK_PARTITIONS, HOLDER_MAX, NUMBER_MAX, Pinned, chunk_of
from kolk.storage.meta import RECORD_BYTES_MAX

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "leases.json").read_text())
TABLE = TableId(7)
HEAD = LeaseHead(
    generation=300,
    holder=0x0123456789ABCDEF0123456789ABCDEF,
    principal="spärk",
    created_ms=1_700_000_000_000,
    ttl_ms=600_000,
    left_ms=599_999,
    digest=bytes(range(16)),
    tables=2,
    pins=5,
)
DAY_ONE, DAY_TWO = (33, "day=2026-11-15"), (35, "day=2026-11-17")
PINS = {
    BucketId(TABLE, DAY_ONE[0], 256, DAY_ONE[1]): Pinned(4, 1_000),
    BucketId(TABLE, DAY_ONE[0], 257, DAY_ONE[1]): Pinned(4, 990),
    BucketId(TABLE, DAY_TWO[0], 511, DAY_TWO[1]): Pinned(200, 0),
}
CHUNK = (2, 1)

NUMBERS = st.integers(0, NUMBER_MAX) | st.integers(0, 300)
HEADS = st.builds(
    LeaseHead,
    generation=NUMBERS,
    holder=st.integers(0, HOLDER_MAX),
    principal=st.text(max_size=20),
    created_ms=NUMBERS,
    ttl_ms=NUMBERS,
    left_ms=NUMBERS,
    digest=st.binary(min_size=16, max_size=16),
    tables=NUMBERS,
    pins=NUMBERS,
)
TABLE_HEADS = st.builds(
    TableHead, position=st.none() | NUMBERS, is_consistent=st.booleans(), chunks=NUMBERS, pins=NUMBERS
)


@st.composite
def chunks(draw):
    """A chunk and some pins of it."""
    chunk = (draw(st.integers(0, 3) | st.just(10**12)), draw(st.integers(0, 3) | st.just(10**9)))
    partitions = draw(
        st.dictionaries(st.integers(0, CHUNK_PARTITIONS - 1), st.text(max_size=8), min_size=1, max_size=5)
    )
    pins = {}
    for partition, name in partitions.items():
        numbers = draw(st.sets(st.integers(0, CHUNK_BUCKETS - 1), min_size=1, max_size=6))
        for number in numbers:
            bucket = BucketId(TABLE, chunk[0] * CHUNK_PARTITIONS + partition, chunk[1] * CHUNK_BUCKETS + number, name)
            pins[bucket] = Pinned(draw(NUMBERS), draw(NUMBERS))
    return chunk, pins


def names(pins):
    return {bucket: bucket.partition_name for bucket in pins}


def sealed(key, body, format=1):
    """A record as the format has it, whatever the body is."""
    data = bytes([format]) + body
    return crc32(key.encode() + b"\0" + data).to_bytes(4, "little") + data


# --- what is written is read


def test_the_records_are_those_of_the_format():
    """S1, S2: byte for byte."""
    without = TableHead(position=None, is_consistent=False, chunks=1, pins=2)
    cut = TableHead(position=36, is_consistent=True, chunks=1, pins=3)

    assert encode_head("lease/a", HEAD).hex() == GOLDEN["lease/a"]
    assert encode_table_head("lease/a/000000000001", without).hex() == GOLDEN["lease/a/000000000001"]
    assert encode_table_head("lease/a/000000000007", cut).hex() == GOLDEN["lease/a/000000000007"]
    key = "lease/a/000000000007/000000000002-000000000001"
    assert encode_chunk(key, CHUNK, PINS).hex() == GOLDEN[key]


def test_the_records_of_the_format_are_read():
    key = "lease/a/000000000007/000000000002-000000000001"
    found = decode_chunk(key, TABLE, CHUNK, bytes.fromhex(GOLDEN[key]))

    assert found == PINS
    assert names(found) == names(PINS)
    assert decode_head("lease/a", bytes.fromhex(GOLDEN["lease/a"])) == HEAD


@given(HEADS)
def test_a_head_comes_back(head):
    assert decode_head("k", encode_head("k", head)) == head


@given(TABLE_HEADS)
def test_a_table_comes_back(table):
    assert decode_table_head("k", encode_table_head("k", table)) == table


@given(chunks())
def test_the_pins_of_a_chunk_come_back_with_the_names_of_their_partitions(drawn):
    chunk, pins = drawn

    found = decode_chunk("k", TABLE, chunk, encode_chunk("k", chunk, pins))

    assert found == pins
    assert names(found) == names(pins)
    assert all(chunk_of(bucket) == chunk for bucket in found)


@given(chunks(), st.randoms())
def test_the_order_of_pins_does_not_matter(drawn, random):
    chunk, pins = drawn
    items = list(pins.items())
    random.shuffle(items)

    assert encode_chunk("k", chunk, dict(items)) == encode_chunk("k", chunk, pins)


def test_a_partition_is_named_once_in_a_record():
    record = encode_chunk("k", CHUNK, PINS)

    assert record.count(DAY_ONE[1].encode()) == 1


def test_whoever_named_a_bucket_by_its_numbers_alone_does_not_take_the_name_of_its_partition_away():
    bare = BucketId(TABLE, DAY_ONE[0], 256)
    named = BucketId(TABLE, DAY_ONE[0], 257, DAY_ONE[1])

    found = decode_chunk("k", TABLE, CHUNK, encode_chunk("k", CHUNK, {bare: Pinned(1, 1), named: Pinned(1, 1)}))

    assert set(names(found).values()) == {DAY_ONE[1]}


# --- sizes


def test_the_largest_chunk_is_far_below_what_a_record_takes():
    """The greatest numbers, by turns with the least, and names as long as they may be."""
    pins = {
        BucketId(TABLE, partition, bucket, f"{partition:03}" + "é" * 3_213): Pinned(number, number)
        for partition in range(CHUNK_PARTITIONS)
        for bucket in range(CHUNK_BUCKETS)
        for number in [NUMBER_MAX * (bucket % 2)]
    }

    record = encode_chunk("k", (0, 0), pins)

    assert len(pins) == 4_096
    assert len(record) < RECORD_BYTES_MAX / 4
    assert decode_chunk("k", TABLE, (0, 0), record) == pins


def test_usual_pins_take_a_few_bytes_each():
    pins = {BucketId(TABLE, 0, bucket): Pinned(1_000 + bucket % 3, 10**9 + bucket * 37 % 500) for bucket in range(256)}

    assert len(encode_chunk("k", (0, 0), pins)) < 256 * 5


# --- what was damaged is refused


RECORDS = [
    (encode_head("k", HEAD), lambda record: decode_head("k", record)),
    (
        encode_table_head("k", TableHead(position=36, is_consistent=True, chunks=1, pins=3)),
        lambda record: decode_table_head("k", record),
    ),
    (encode_chunk("k", CHUNK, PINS), lambda record: decode_chunk("k", TABLE, CHUNK, record)),
]
KINDS = pytest.mark.parametrize(("record", "decode"), RECORDS, ids=["head", "table", "chunk"])


@KINDS
def test_a_record_that_was_cut_off_is_refused(record, decode):
    for length in range(len(record)):
        with pytest.raises(Corrupted):
            decode(record[:length])


@KINDS
def test_a_record_with_a_flipped_bit_is_refused(record, decode):
    for bit in range(len(record) * 8):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupted):
            decode(bytes(flipped))


@KINDS
def test_a_record_that_goes_on_after_its_end_is_refused(record, decode):
    with pytest.raises(Corrupted):
        decode(record + b"\0")
    with pytest.raises(Corrupted):
        decode(sealed("k", record[5:] + b"\0"))


@KINDS
def test_a_record_of_another_key_is_refused(record, decode):
    """A lease is never read as another, nor a chunk in another's place."""
    with pytest.raises(Corrupted, match="another key"):
        decode(sealed("other", record[5:]))


@KINDS
def test_a_record_of_a_later_format_is_refused_by_name(record, decode):
    with pytest.raises(UnknownFormat, match="format 2"):
        decode(sealed("k", record[5:], format=2))


@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "table", "chunk"])
@given(body=st.binary(max_size=60))
def test_whatever_is_read_would_be_written_just_so(place, body):
    """Also what no crc would catch: there is no second form of anything, so nothing is read by guessing."""
    encode = (
        lambda found: encode_head("k", found),
        lambda found: encode_table_head("k", found),
        lambda found: encode_chunk("k", CHUNK, found),
    )[place]
    record = sealed("k", body)
    try:
        found = RECORDS[place][1](record)
    except Corrupted:
        return

    assert encode(found) == record


@pytest.mark.parametrize(
    "body",
    [
        "00",  # no partition
        "11" + "00000100" * 17,  # more than there is room for
        "0110000100 0000",  # a partition of the next chunk
        "0100000181020000",  # a bucket of the next chunk
        "01000000",  # a partition without a bucket
        "0100000200000000 0000",  # the same bucket twice
        "0100000100 0100",  # a negative snapshot
        "0100000100 0001",  # a negative offset
        "01000002 000202 0102feffffffffffffffff01",  # an offset past the greatest number
    ],
)
def test_pins_that_cannot_be_are_refused(body):
    with pytest.raises(Corrupted):
        decode_chunk("k", TABLE, CHUNK, sealed("k", bytes.fromhex(body)))


def test_pins_of_the_greatest_numbers_are_read():
    """So that the refusals beside it are for what they say."""
    record = sealed("k", bytes.fromhex("0100000100 feffffffffffffffff0102"))

    assert list(decode_chunk("k", TABLE, CHUNK, record).values()) == [Pinned(NUMBER_MAX, 1)]
