"""The catalog's record of a table, and the bucket's own records: bytes that every later version must read."""

import json
from pathlib import Path

import pytest
from hypothesis import given

from kolk.codec.table import decode_table, encode_table
from kolk.errors import Corrupted
from kolk.model.ids import TableId
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.runtime.clock import WatchedClock
from kolk.tablet.dedup import Dedup, Writer
from kolk.tablet.records import APPLIED, applied_offset, state_records
from kolk.testing.clock import ManualClock
from kolk.testing.strategies import schemas

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "records.json").read_text())
TABLE = TableInfo(
    id=TableId(7),
    spec=TableSpec.make(
        "web.pages",
        Schema(
            [Column("page", "string"), Column("pv", "bigint"), Column("at", "timestamp(3)", nullable=False)], ["page"]
        ),
        buckets=4,
        merge_engine="first_row",
    ),
    created_ms=1_700_000_000_000,
)


def test_a_tables_record_is_that_of_the_format():
    assert json.loads(encode_table(TABLE)) == GOLDEN["table"]
    assert decode_table(TableId(7), json.dumps(GOLDEN["table"]).encode()) == TABLE


@given(schemas(max_key=2))
def test_a_table_comes_back_from_its_record(schema):
    info = TableInfo(id=TableId(1), spec=TableSpec.make("t", schema), created_ms=5)

    assert decode_table(info.id, encode_table(info)) == info


@pytest.mark.parametrize("record", [b"", b"{}", b"[]", b"\xff", b'{"schema": {"columns": 5}}'])
def test_a_record_that_is_none_is_refused(record):
    with pytest.raises(Corrupted, match="table 1"):
        decode_table(TableId(1), record)


def test_a_buckets_own_records_are_those_of_the_format():
    writer = Writer().after(3, 10, now_ms=1_700_000_000_000).after(4, 12, now_ms=1_700_000_000_001)

    records = Dedup({}, WatchedClock(ManualClock())).remember({5: writer}, now_ms=1_700_000_000_001)

    assert {name.hex(): value.hex() for name, value in records.items()} == GOLDEN["writer"]
    assert state_records(4711, None)[APPLIED].hex() == GOLDEN["applied"]
    assert applied_offset({APPLIED: bytes.fromhex(GOLDEN["applied"])}) == 4711
    assert applied_offset({}) == 0
