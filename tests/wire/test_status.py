"""Errors as bytes: the one that arrives is the one that was sent."""

import inspect

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk import errors
from kolk.errors import (
    ColumnLockConflict,
    InternalError,
    InvalidRows,
    KolkError,
    LeaseLost,
    PartialPut,
    PartitionDropped,
    Unavailable,
    UnknownOrExpiredScan,
)
from kolk.model.ids import PlainTag
from kolk.wire.status import decode_error, encode_error

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, KolkError) and kind is not PartialPut
]
MESSAGES = st.text(st.characters(codec="utf-8"), max_size=200)
TAGS = st.builds(PlainTag, st.integers(0, 2**128 - 1), st.integers(0, 2**63 - 1))
PLAIN_ERRORS = st.builds(lambda kind, text: kind(text), st.sampled_from(CLASSES), MESSAGES)


def test_every_code_is_the_code_of_one_class():
    codes = [kind.code for kind in [*CLASSES, PartialPut]]

    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@given(message=MESSAGES, retriable=st.booleans())
def test_an_error_arrives_as_it_was_sent(kind, message, retriable):
    error = kind(message)
    error.retriable = retriable

    arrived = decode_error(encode_error(error))

    assert type(arrived) is kind
    assert str(arrived) == message
    assert arrived.retriable is retriable


@given(message=MESSAGES, partition=MESSAGES, unread=st.none() | st.integers(0, 2**63 - 1))
def test_a_partition_that_was_dropped_arrives_with_its_name_and_what_was_not_read(message, partition, unread):
    arrived = decode_error(encode_error(PartitionDropped(message, partition, unread)))

    assert isinstance(arrived, PartitionDropped)
    assert (str(arrived), arrived.partition, arrived.unread) == (message, partition, unread)


@pytest.mark.parametrize("kind", [LeaseLost, UnknownOrExpiredScan])
@given(message=MESSAGES, reason=MESSAGES)
def test_what_is_gone_arrives_with_the_reason(kind, message, reason):
    arrived = decode_error(encode_error(kind(message, reason)))

    assert (type(arrived), str(arrived), arrived.reason) == (kind, message, reason)


@given(
    message=MESSAGES,
    owner=st.none() | MESSAGES,
    columns=st.none() | st.lists(MESSAGES, max_size=3).map(tuple),
    seconds=st.none() | st.floats(allow_nan=False),
)
def test_whose_columns_they_are_arrives_with_the_conflict(message, owner, columns, seconds):
    arrived = decode_error(encode_error(ColumnLockConflict(message, owner, columns, seconds)))

    assert isinstance(arrived, ColumnLockConflict)
    assert (str(arrived), arrived.retriable) == (message, True)
    assert (arrived.owner, arrived.columns, arrived.seconds_left) == (owner, columns, seconds)


@given(
    acknowledged=st.dictionaries(MESSAGES, st.integers(0, 2**63 - 1), max_size=4),
    failed=st.dictionaries(MESSAGES, PLAIN_ERRORS, min_size=1, max_size=4),
    tag=TAGS,
)
def test_a_put_that_failed_in_part_arrives_with_all_that_a_retry_needs(acknowledged, failed, tag):
    arrived = decode_error(encode_error(PartialPut(acknowledged, failed, tag)))

    assert isinstance(arrived, PartialPut)
    assert arrived.acknowledged == acknowledged
    assert arrived.tag == tag
    assert {bucket: (type(error), str(error)) for bucket, error in arrived.failed.items()} == {
        bucket: (type(error), str(error)) for bucket, error in failed.items()
    }
    assert arrived.retriable is all(error.retriable for error in failed.values())


def test_an_error_of_a_newer_server_becomes_the_root_with_its_message():
    arrived = decode_error(msgspec.msgpack.encode({"code": 9_999, "message": "from the future", "retriable": True}))

    assert type(arrived) is KolkError
    assert str(arrived) == "from the future"
    assert arrived.retriable


def test_a_field_of_a_newer_server_is_passed_over():
    encoded = msgspec.msgpack.encode({"code": InvalidRows.code, "message": "no", "hint": [1, 2]})

    assert type(decode_error(encoded)) is InvalidRows


def test_an_error_made_of_a_class_of_a_user_arrives_as_the_class_it_is_made_of():
    class Mine(Unavailable):
        """Not ours."""

    assert type(decode_error(encode_error(Mine("x")))) is Unavailable


@given(garbage=st.binary(max_size=100))
def test_garbage_becomes_an_internal_error(garbage):
    assert isinstance(decode_error(garbage), KolkError)


@given(error=PLAIN_ERRORS, data=st.data())
def test_a_damaged_error_is_still_one_of_ours(error, data):
    encoded = bytearray(encode_error(error))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))

    assert isinstance(decode_error(bytes(encoded)), KolkError)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff", b"\x82\xa4code\x01\xa7message\xa2\xff\xfe"],
    ids=["nothing", "deep", "long", "no UTF-8"],
)
def test_a_bomb_becomes_an_internal_error(garbage):
    assert isinstance(decode_error(garbage), InternalError)


def test_failures_within_failures_without_end_become_an_internal_error():
    encoded = encode_error(InvalidRows("at the bottom"))
    for _ in range(5_000):
        status = {"code": PartialPut.code, "message": "", "failed": {"0": encoded}, "writer": bytes(16)}
        encoded = msgspec.msgpack.encode(status)

    assert isinstance(decode_error(encoded), KolkError)


@pytest.mark.parametrize("seq", [-1, -(2**63), 2**64 - 1])
def test_a_tag_that_no_put_can_have_does_not_break_the_client(seq):
    failed = {"0": encode_error(InvalidRows("no"))}
    status = {"code": PartialPut.code, "message": "", "failed": failed, "writer": b"\xff" * 40, "seq": seq}

    assert isinstance(decode_error(msgspec.msgpack.encode(status)), KolkError)
