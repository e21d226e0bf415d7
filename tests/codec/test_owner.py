"""Owners as bytes: what is written is read back, and what is damaged is refused."""

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.owner import decode_owner, encode_owner, owner_key
from kolk.errors import Corrupted
from kolk.model.ids import TableId
from kolk.model.owner import OwnerRecord, UndoMode

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNTS = st.integers(0, 2**62)
RECORDS = st.builds(
    OwnerRecord,
    table=COUNTS.map(TableId),
    name=TEXTS,
    number=COUNTS,
    columns=st.none() | st.lists(st.integers(0, 5_000), max_size=5).map(tuple),
    fence=COUNTS,
    ttl_seconds=st.floats(0.001, 1e6),
    committed=st.integers(-1, 2**62),
    committed_fence=COUNTS,
    stream=TEXTS,
    undo=st.sampled_from(UndoMode),
    state=st.binary(max_size=100),
    evicted=st.booleans(),
    is_resting=st.booleans(),
    attempt=TEXTS,
    past=st.lists(TEXTS, max_size=4).map(tuple),
    tickets=COUNTS,
)


@given(RECORDS)
def test_a_record_is_read_back_as_it_was(record):
    assert decode_owner(encode_owner(record)) == record


def test_every_field_of_an_owner_is_in_its_record():
    """Else it would be forgotten by a restart."""
    record = OwnerRecord(table=TableId(1), name="a", number=1, columns=None, fence=1, ttl_seconds=1.0)

    assert len(json.loads(encode_owner(record))) == len(fields(OwnerRecord))


@given(TEXTS, TEXTS)
def test_other_names_have_other_keys(one, other):
    keys = {
        owner_key(OwnerRecord(table=TableId(7), name=name, number=1, columns=None, fence=1, ttl_seconds=1.0))
        for name in (one, other)
    }

    assert len(keys) == len({one, other})
    assert all(key.startswith("owner/7/") and key.count("/") == 2 and key.isascii() for key in keys)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"7", b"{}", b'{"table": 1}', b"\xff\xfe"])
def test_a_damaged_record_is_refused(damage):
    with pytest.raises(Corrupted):
        decode_owner(damage)


@pytest.mark.parametrize("name", ["name", "columns", "undo", "state"])
def test_a_record_with_a_field_of_another_kind_is_refused(name):
    record = OwnerRecord(table=TableId(1), name="a", number=1, columns=None, fence=1, ttl_seconds=1.0)
    found = json.loads(encode_owner(record))

    with pytest.raises(Corrupted):
        decode_owner(json.dumps({key: value for key, value in found.items() if key != name}).encode())
    if name != "name":
        with pytest.raises(Corrupted):
            decode_owner(json.dumps(found | {name: 7}).encode())
