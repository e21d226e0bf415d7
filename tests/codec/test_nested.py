"""Arrays, maps and rows as bytes: they come back as they were, and equal values are equal bytes."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec import buffers
from kolk.codec.row import RowCodec
from kolk.errors import Corrupted, TooLarge
from kolk.model.nested import bounds_of, list_array, row_array
from kolk.model.schema import Column, Schema
from kolk.model.types import NESTING_MAX
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import batches, data_types, schemas

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "rows.json").read_text())
NESTED = data_types().filter(lambda type: type.is_nested)
GOLDEN_COLUMNS = [
    Column("id", "int"),
    Column("tags", "array<string>"),
    Column("bits", "array<boolean not null>"),
    Column("attrs", "map<string, bigint>"),
    Column("pos", "row<x double, y tinyint, name string>"),
    Column("deep", "array<map<int, array<row<a int>>>>"),
]
GOLDEN_ROWS = [
    {
        "id": 1,
        "tags": ["a", None, ""],
        "bits": [True] * 9,
        "attrs": [("k", 1), ("j", None)],
        "pos": {"x": 1.5, "y": None, "name": "n"},
        "deep": [[(7, [{"a": 1}, None])], None, []],
    },
    {"id": 2, "tags": [], "bits": [], "attrs": [], "pos": {"x": None, "y": None, "name": None}, "deep": []},
    {"id": 3, "tags": None, "bits": None, "attrs": None, "pos": None, "deep": None},
]


def codec_of(type: str) -> RowCodec:
    return RowCodec(Schema([Column("c", type)]))


def encode(type: str, array) -> list[bytes]:
    column = Column("c", type)
    array = array if isinstance(array, pa.Array) else pa.array(array, column.type.arrow)
    return codec_of(type).encode(pa.RecordBatch.from_arrays([array], schema=pa.schema([column.arrow]))).to_pylist()


def decode(type: str, values: list[bytes]) -> list:
    batch = codec_of(type).decode(pa.array(values, pa.binary()))
    batch.validate(full=True)
    return batch.column(0).to_pylist()


@given(st.data())
def test_nested_columns_come_back_as_they_were(data):
    schema = data.draw(schemas(max_key=1, min_values=1, max_values=2, value_types=NESTED))
    batch = data.draw(batches(schema))
    codec = RowCodec(schema)

    decoded = codec.decode(codec.encode(batch))

    decoded.validate(full=True)
    assert decoded.schema.equals(schema.arrow, check_metadata=True)
    assert plain_rows(decoded) == plain_rows(batch)


@given(st.data())
def test_a_row_has_the_same_bytes_alone_among_others_and_made_anew(data):
    """Its neighbours, its slice, what nulls hide and what lists leave out have no part in it."""
    schema = data.draw(schemas(max_key=0, min_values=1, max_values=2, value_types=NESTED))
    batch = data.draw(batches(schema, min_rows=1))
    codec = RowCodec(schema)

    together = codec.encode(batch).to_pylist()

    assert [codec.encode(batch.slice(place, 1))[0].as_py() for place in range(batch.num_rows)] == together
    assert codec.encode(batch.take(pa.array(range(batch.num_rows)))).to_pylist() == together
    assert codec.encode(codec.decode(pa.array(together, pa.binary()))).to_pylist() == together


@given(st.data())
def test_nested_values_are_equal_exactly_when_their_bytes_are(data):
    schema = data.draw(schemas(max_key=0, min_values=1, max_values=1, value_types=NESTED))
    batch = data.draw(batches(schema, min_rows=2, max_rows=6))
    values = RowCodec(schema).encode(batch).to_pylist()
    rows = plain_rows(batch)

    for one in range(len(rows)):
        for other in range(one):
            assert (rows[one] == rows[other]) == (values[one] == values[other])


def test_the_bytes_of_nested_values_are_those_of_the_format():
    schema = Schema(GOLDEN_COLUMNS, ["id"])

    values = RowCodec(schema).encode(pa.RecordBatch.from_pylist(GOLDEN_ROWS, schema.arrow))

    assert [value.hex() for value in values.to_pylist()] == GOLDEN["nested"]
    assert RowCodec(schema).decode(values).to_pylist() == GOLDEN_ROWS


@pytest.mark.parametrize(
    ("type", "value", "laid_out"),
    [
        ("array<int>", [1, None], "02000000 02 01000000 00000000"),
        ("array<string>", ["ab", "", None], "03000000 04 02000000 00000000 00000000 6162"),
        ("array<boolean>", [True] * 8 + [None], "09000000 0001 010101010101010100"),
        ("map<string, tinyint>", [("a", 1), ("bc", None)], "02000000 02 01000000 02000000 616263 0100"),
        ("row<a tinyint, b string, c smallint>", {"a": 1, "b": "x", "c": None}, "04 01 0000 01000000 78"),
        ("array<array<tinyint>>", [[1], None, []], "03000000 02 06000000 00000000 04000000 01000000 00 01 00000000"),
    ],
)
def test_a_nested_value_is_laid_out_as_the_docstring_says(type, value, laid_out):
    head = "0100 00"
    length = len(bytes.fromhex(laid_out)).to_bytes(4, "little").hex()

    assert encode(type, [value])[0].hex() == (head + length + laid_out).replace(" ", "")


def test_what_a_null_hides_and_what_no_list_holds_is_not_stored():
    type = Column("c", "array<string>").type.arrow
    texts = pa.array(["junk", "a", "hidden", "b", "rest"])
    hidden = list_array(type, np.array([1, 2, 3, 4]), [texts], pa.py_buffer(b"\x05"))

    values = encode("array<string>", hidden)

    assert values == encode("array<string>", [["a"], None, ["b"]])
    assert encode("array<string>", hidden.slice(1)) == values[1:]


def test_what_a_null_row_hides_is_not_stored():
    type = Column("c", "row<a int, b array<int>>").type.arrow
    fields = [pa.array([1, 2], pa.int32()), pa.array([[1], [2]], pa.list_(pa.int32()))]

    assert encode("row<a int, b array<int>>", row_array(type, 2, fields, pa.py_buffer(b"\x02"))) == encode(
        "row<a int, b array<int>>", [None, {"a": 2, "b": [2]}]
    )


def test_null_empty_and_a_list_of_null_are_three_things():
    values = [None, [], [None], [[]], [[], None]]

    encoded = encode("array<array<int>>", values)

    assert len(set(encoded)) == len(values)
    assert decode("array<array<int>>", encoded) == values


def test_a_batch_of_no_rows_or_of_nulls_only_is_fine():
    for type in ("array<string>", "map<int, row<a array<int>>>", "row<a int>", "array<row<a binary(3)>>"):
        assert decode(type, encode(type, [])) == []
        assert decode(type, encode(type, [None, None])) == [None, None]


def test_the_deepest_types_come_back():
    for opening, wrap in (("array<", lambda value: [value]), ("map<int, ", lambda value: [(1, value)])):
        type, value = opening * NESTING_MAX + "int" + ">" * NESTING_MAX, 5
        for _ in range(NESTING_MAX):
            value = wrap(value)

        assert decode(type, encode(type, [value, None, value])) == [value, None, value]


@pytest.mark.parametrize(
    "type", ["array<int>", "array<string>", "map<string, array<int>>", "row<a int, b array<string>>"]
)
def test_stored_bytes_that_are_cut_or_changed_are_refused_or_another_value_but_never_a_crash(type):
    value = {
        "array<int>": [1, None, 3],
        "array<string>": ["a", None, "bc"],
        "map<string, array<int>>": [("a", [1]), ("b", None)],
        "row<a int, b array<string>>": {"a": 1, "b": ["x", None]},
    }[type]
    stored = encode(type, [value])[0]
    refused = 0

    for place in range(7, len(stored)):
        for flipped in (1, 0x80, 0xFF):
            damaged = bytearray(stored)
            damaged[place] ^= flipped
            try:
                codec_of(type).decode(pa.array([bytes(damaged), stored], pa.binary()))
            except Corrupted:
                refused += 1

    assert refused > 10


def test_a_null_that_has_bytes_is_refused():
    stored = bytearray(encode("array<int>", [[1]])[0])
    stored[2] = 1  # the null bits

    with pytest.raises(Corrupted, match="does not add up"):
        decode("array<int>", [bytes(stored)])


@pytest.mark.parametrize("type", ["array<boolean>", "array<row<a boolean>>", "array<array<boolean>>", "array<string>"])
def test_values_that_outgrow_a_batch_when_encoded_are_refused_before_they_are_made(type, monkeypatch):
    monkeypatch.setattr(buffers, "BATCH_BYTES_MAX", 1_000)
    column = Column("c", type)
    inner = pa.nulls(2_000, column.type.fields[0].type.arrow)
    array = list_array(column.type.arrow, bounds_of(np.array([2_000])), [inner], None)

    with pytest.raises(TooLarge, match="put fewer rows at once"):
        encode(type, array)
