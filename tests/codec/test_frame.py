"""The log frame: its bytes are fixed for ever, and no damage goes unnoticed."""

import json
import random
import struct
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    FrameHeader,
    Verdict,
    decode_header,
    encode_frame,
    find_headers,
    glimpse,
    padded,
    verify,
)
from kolk.errors import Corrupted, TooLarge, UnknownFormat
from kolk.model.ids import OwnerTag, PlainTag, SystemTag, SystemWork, TransactionTag, UndoTag

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "frames.json").read_text())
WRITER = 0xF0E1D2C3B4A5968778695A4B3C2D1E0F


def header(tag, rows, base, body, *, at=(1_700_000_000_123, 2, 0, 9_000), more=False, information=b""):
    timestamp_ms, schema_id, leader_epoch, synced = at
    return FrameHeader(
        tag=tag,
        more=more,
        rows=rows,
        base_offset=base,
        timestamp_ms=timestamp_ms,
        schema_id=schema_id,
        leader_epoch=leader_epoch,
        synced=synced,
        body_length=len(body),
        information=padded(information),
    )


def case(tag, rows, base, body, **more):
    return header(tag, rows, base, body, **more), body


CASES = {
    "plain": case(PlainTag(WRITER, 7), 3, 4711, b"three rows."),
    "plain without rows": case(PlainTag(WRITER, 8), 0, 4714, b""),
    "transaction, more to come": case(
        TransactionTag(12, 0), 1, 0, b"12345678", at=(1, 0, 1, 0), more=True, information=b"app=etl"
    ),
    "transaction": case(TransactionTag(12, 1), 1, 1, b"x", at=(1, 0, 1, 0)),
    "owner": case(OwnerTag(1, 2, 3, 4, 5), 2, 10, b"abc", at=(5, 3, 2, 96)),
    "owner, sealed": case(OwnerTag(1, 2, 3, 4, 6, sealed=True), 0, 12, b"", at=(5, 3, 2, 96)),
    "undo": case(UndoTag(1, 3, done=False), 2, 2**40, b"abcd", at=(6, 3, 2, 104), more=True),
    "undo, done": case(UndoTag(1, 3, done=True), 0, 2**40 + 2, b"", at=(6, 3, 2, 104)),
    "system truncate": case(SystemTag(SystemWork.TRUNCATE), 1, 2**62, b"z" * 16, at=(7, 3, 2, 0)),
    "system ttl": case(SystemTag(SystemWork.TTL), 1, 2**62 + 1, b"z" * 17, at=(7, 3, 2, 0)),
}


def encoded(head, body):
    return b"".join(map(bytes, encode_frame(head, body or None)))


def with_crc(frame):
    """The frame with its checksum made right again: what a writer would have to have written."""
    return struct.pack("<II", len(frame), crc32(frame[8:])) + frame[8:]


i64 = st.integers(-(2**63), 2**63 - 1)
positive = st.integers(0, 2**63 - 1)
tags = st.one_of(
    st.builds(PlainTag, st.integers(0, 2**128 - 1), positive),
    st.builds(TransactionTag, i64, i64),
    st.builds(OwnerTag, i64, i64, i64, i64, i64, st.booleans()),
    st.builds(UndoTag, i64, i64, st.booleans()),
    st.builds(SystemTag, st.sampled_from(SystemWork)),
)


@st.composite
def frames(draw):
    body = draw(st.binary(max_size=200))
    rows = draw(st.integers(1, 2**32 - 1)) if body else 0
    at = draw(st.tuples(i64, st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), positive))
    return case(
        draw(tags),
        rows,
        draw(positive),
        body,
        at=at,
        more=draw(st.booleans()),
        information=draw(st.binary(max_size=50)),
    )


def test_every_kind_of_tag_has_golden_bytes():
    assert CASES.keys() == GOLDEN.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_frame_is_written_as_it_always_was(name):
    head, body = CASES[name]

    assert encoded(head, body).hex() == GOLDEN[name]


@pytest.mark.parametrize("name", CASES)
def test_a_frame_that_was_ever_written_can_be_read(name):
    head, body = CASES[name]
    frame = bytes.fromhex(GOLDEN[name])

    assert verify(memoryview(frame), 0) is Verdict.INTACT
    assert decode_header(frame) == head
    assert frame[head.header_length :][: head.body_length] == body


@given(frames(), st.integers(0, 3))
def test_decoding_is_the_inverse_of_encoding_at_any_position(frame, eights):
    head, body = frame
    data = memoryview(bytes(eights * 8) + encoded(head, body))

    assert verify(data, eights * 8) is Verdict.INTACT
    assert decode_header(data, eights * 8) == head
    seen = glimpse(data, eights * 8)
    assert (seen.length, seen.more, seen.rows) == (head.length, head.more, head.rows)
    assert (seen.base_offset, seen.timestamp_ms, seen.synced) == (head.base_offset, head.timestamp_ms, head.synced)


@given(frames())
def test_a_frame_and_its_body_start_at_multiples_of_eight(frame):
    head, body = frame

    assert len(encoded(head, body)) == head.length
    assert head.length % 8 == 0
    assert head.header_length % 8 == 0


@given(frames(), st.data())
def test_no_single_flipped_bit_goes_unnoticed(frame, data):
    damaged = bytearray(encoded(*frame))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))

    damaged[bit // 8] ^= 1 << bit % 8

    assert verify(memoryview(damaged), 0) is not Verdict.INTACT


@given(frames(), st.data())
def test_a_frame_that_was_cut_is_short(frame, data):
    whole = encoded(*frame)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]

    assert verify(memoryview(cut), 0) is Verdict.SHORT


def test_zeros_are_no_frame():
    assert verify(memoryview(bytes(4096)), 0) is Verdict.NOTHING
    assert find_headers(bytes(4096)) == []


def test_the_body_is_not_copied():
    head, body = CASES["plain"]
    buffer = pa.py_buffer(body)

    pieces = encode_frame(head, buffer)

    assert pieces[1] is buffer


def test_a_whole_frame_of_a_later_format_is_told_from_a_damaged_one():
    frame = bytearray(bytes.fromhex(GOLDEN["plain"]))
    frame[8] = 2
    later = with_crc(bytes(frame))

    assert verify(memoryview(later), 0) is Verdict.INTACT
    with pytest.raises(UnknownFormat, match="format 2"):
        decode_header(later)


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [
        ("plain", 9, 5),  # an unknown tag kind
        ("plain", 10, 2),  # DONE on a plain tag
        ("owner", 10, 2),  # DONE on an owner's tag
        ("undo", 10, 4),  # SEALED on an undo tag
        ("plain", 11, 1),  # a flag that does not exist
        ("plain", 12, 0),  # a body without rows
        ("owner, sealed", 12, 1),  # rows without a body
        ("plain", 23, 0x80),  # a negative base offset
        ("plain", 47, 0x80),  # a negative synced position
        ("plain", 71, 0x80),  # a negative count of puts
        ("plain", 72, 1),  # a slot that plain tags do not use
        ("system ttl", 48, 9),  # system work that does not exist
        ("plain", 88, 97),  # a body that is not aligned
        ("plain", 89, 0x20),  # a header that is too long
        ("plain", 92, 99),  # a body longer than the frame
    ],
)
def test_a_header_that_no_kolk_writes_is_refused_even_under_a_right_checksum(name, position, value):
    frame = bytearray(bytes.fromhex(GOLDEN[name]))
    frame[position] = value

    with pytest.raises(Corrupted):
        decode_header(with_crc(bytes(frame)))


def test_information_is_limited():
    head, body = CASES["plain"]

    with pytest.raises(TooLarge):
        encode_frame(replace(head, information=bytes(HEADER_BYTES_MAX)), body)


def test_the_length_of_a_frame_is_limited():
    class Huge:
        def __len__(self):
            return FRAME_BYTES_MAX

    with pytest.raises(TooLarge, match="put fewer rows"):
        encode_frame(replace(CASES["plain"][0], body_length=FRAME_BYTES_MAX), Huge())


@given(st.lists(frames(), min_size=1, max_size=4), st.binary(max_size=64), st.randoms(use_true_random=False))
def test_headers_are_found_behind_damage(some, noise, rng):
    noise = padded(noise)
    data, expected = noise, []
    for head, body in some:
        expected.append(len(data))
        data += encoded(head, body) + rng.randbytes(8)

    assert set(expected) <= set(find_headers(data))


def test_headers_are_not_found_in_noise():
    rng = random.Random(1)

    assert find_headers(rng.randbytes(2**20)) == []
    assert find_headers(b"".join(struct.pack("<q", value) for value in range(0, 2**17, 8))) == []
