"""The row codec: every row comes back as it was, and equal rows are equal bytes."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.row import RowCodec
from kolk.errors import Corrupted
from kolk.model.schema import Column, Schema
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import batches, schemas

GOLDEN = Path(__file__).parent.parent / "golden" / "rows.json"
SMALL = Schema([Column("id", "bigint"), Column("name", "string"), Column("on", "boolean")], ["id"])


def small_batch() -> pa.RecordBatch:
    columns = {"id": [1, 2, 3], "name": ["a", None, ""], "on": [True, None, False]}
    return pa.record_batch(columns, SMALL.arrow)


@given(st.data())
def test_decoding_an_encoded_batch_gives_the_batch_back(data):
    schema = data.draw(schemas(max_values=10))
    batch = data.draw(batches(schema))
    codec = RowCodec(schema)

    decoded = codec.decode(codec.encode(batch))

    decoded.validate(full=True)
    assert decoded.schema == schema.arrow
    assert plain_rows(decoded) == plain_rows(batch)


@given(st.data())
def test_rows_survive_the_way_through_python_bytes_in_any_order_and_slice(data):
    schema = data.draw(schemas())
    batch = data.draw(batches(schema, min_rows=1))
    codec = RowCodec(schema)
    order = data.draw(st.permutations(range(batch.num_rows)))
    start = data.draw(st.integers(0, batch.num_rows))

    values = codec.encode(batch).to_pylist()
    shuffled = pa.array([values[place] for place in order], pa.binary()).slice(start)

    rows = plain_rows(batch)
    assert plain_rows(codec.decode(shuffled)) == [rows[place] for place in order][start:]


@given(st.data())
def test_equal_rows_are_equal_bytes_whatever_stands_beneath_their_nulls(data):
    schema = data.draw(schemas())
    batch = data.draw(batches(schema, min_rows=2))
    values = RowCodec(schema).encode(batch).to_pylist()
    rows = plain_rows(batch)

    for place in range(1, len(rows)):
        assert (rows[0] == rows[place]) == (values[0] == values[place])


@given(st.data())
def test_a_projection_decodes_the_named_columns_in_the_named_order(data):
    schema = data.draw(schemas(min_values=1))
    batch = data.draw(batches(schema))
    names = data.draw(st.lists(st.sampled_from(schema.names), unique=True, min_size=1))
    codec = RowCodec(schema)

    decoded = codec.decode(codec.encode(batch), names)

    assert decoded.schema.names == names
    assert plain_rows(decoded) == [{name: row[name] for name in names} for row in plain_rows(batch)]


@given(st.data())
def test_one_row_is_decoded_as_among_others(data):
    schema = data.draw(schemas())
    codec = RowCodec(schema)
    values = codec.encode(data.draw(batches(schema)))
    names = data.draw(st.none() | st.lists(st.sampled_from(schema.names), unique=True, min_size=1))

    for place, value in enumerate(values.to_pylist()):
        one = codec.decode_one(value, names)
        one.validate(full=True)
        assert one.schema == codec.decode(values, names).schema
        assert plain_rows(one) == plain_rows(codec.decode(values.slice(place, 1), names))


@pytest.mark.parametrize("change", [lambda value: value[:-1], lambda value: value + b"x", lambda value: value[:3],
                                    lambda value: b"\xff\xff" + value[2:]])  # fmt: skip
def test_one_row_that_is_not_what_was_written_is_refused(change):
    codec = RowCodec(Schema([Column("id", "int"), Column("name", "string")], "id"))
    value = codec.encode(pa.record_batch({"id": pa.array([1], pa.int32()), "name": ["ada"]}))[0].as_py()

    with pytest.raises(Corrupted):
        codec.decode_one(change(value))


def test_the_bytes_of_a_row_are_those_of_the_format():
    golden = json.loads(GOLDEN.read_text())

    values = RowCodec(SMALL).encode(small_batch())

    assert [value.hex() for value in values.to_pylist()] == golden["small"]
    assert plain_rows(RowCodec(SMALL).decode(values)) == plain_rows(small_batch())


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_row_that_is_too_short_is_refused(cut):
    values = [value[:-cut] for value in RowCodec(SMALL).encode(small_batch()).to_pylist()]

    with pytest.raises(Corrupted, match="stored row"):
        RowCodec(SMALL).decode(pa.array(values, pa.binary()))


def test_a_row_of_another_schema_is_refused():
    values = RowCodec(SMALL).encode(small_batch())
    newer = Schema(SMALL.columns, ["id"], id=2)

    with pytest.raises(Corrupted, match="another schema"):
        RowCodec(newer).decode(values)


def test_a_row_whose_lengths_do_not_add_up_is_refused():
    value = bytearray(RowCodec(SMALL).encode(small_batch()).to_pylist()[0])
    value[12] += 1  # the low byte of the name's length

    with pytest.raises(Corrupted, match="add up"):
        RowCodec(SMALL).decode(pa.array([bytes(value)], pa.binary()))


def test_a_row_of_fixed_columns_only_is_decoded_from_a_slice():
    schema = Schema([Column("id", "bigint"), Column("x", "double")], ["id"])
    batch = pa.record_batch({"id": np.arange(5), "x": np.arange(5.0)}, schema.arrow)
    values = RowCodec(schema).encode(batch)

    assert RowCodec(schema).decode(values.slice(2, 2)).equals(batch.slice(2, 2))
