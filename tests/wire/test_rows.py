"""Rows as bytes: what is written is read, and what nobody vouches for is looked at before it is decoded."""

import contextlib
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidInput, InvalidRows, TooLarge
from kolk.testing.strategies import batches, schemas
from kolk.wire.rows import check_schema, encode_rows, encode_schema, peek, read_rows

ANY_BATCH = schemas(min_key=0).flatmap(batches)
INTS = pa.schema([("n", pa.int64())])
ROWS_MAX = 1_000


@given(batch=ANY_BATCH)
def test_rows_that_are_read_are_those_that_were_written(batch):
    read = read_rows(encode_rows(batch), batch.schema, rows_max=ROWS_MAX)

    read.validate(full=True)
    assert read.equals(batch) or read.serialize().equals(_plain(batch).serialize())


@given(batch=ANY_BATCH, data=st.data())
def test_a_slice_of_rows_is_read_as_the_slice_alone(batch, data):
    start = data.draw(st.integers(0, batch.num_rows))
    piece = batch.slice(start, data.draw(st.integers(0, batch.num_rows - start)))

    read = read_rows(encode_rows(piece), batch.schema, rows_max=ROWS_MAX)

    assert read.num_rows == piece.num_rows
    assert read.equals(piece) or read.serialize().equals(_plain(piece).serialize())


@given(batch=ANY_BATCH, shift=st.integers(0, 16))
def test_rows_are_read_wherever_the_transport_puts_them(batch, shift):
    encoded = encode_rows(batch).to_pybytes()
    moved = pa.py_buffer(bytes(shift) + encoded).slice(shift)

    assert read_rows(moved, batch.schema, rows_max=ROWS_MAX).serialize().to_pybytes() == encoded


@given(batch=ANY_BATCH)
def test_a_look_at_rows_agrees_with_arrow(batch):
    encoded = encode_rows(batch)

    seen = peek(encoded)

    message = pa.ipc.read_message(encoded)
    assert seen.rows == batch.num_rows
    assert seen.columns == sum(_nodes(field.type) for field in batch.schema)
    assert seen.body_bytes == (message.body.size if message.body is not None else 0)
    assert not seen.is_compressed


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_rows_are_refused_before_they_unfold(codec):
    options = pa.ipc.IpcWriteOptions(compression=codec)
    rows = pa.record_batch([pa.array([0] * 100_000, pa.int64())], schema=INTS)
    message = _message(rows, options)
    before = pa.total_allocated_bytes()

    assert peek(message).is_compressed
    with pytest.raises(InvalidRows, match="compressed"):
        read_rows(message, INTS, rows_max=10**6)
    assert pa.total_allocated_bytes() <= before


def test_more_rows_than_allowed_are_refused_before_they_are_decoded():
    with pytest.raises(TooLarge):
        read_rows(encode_rows(_ints(ROWS_MAX + 1)), INTS, rows_max=ROWS_MAX)


def test_a_schema_is_no_rows():
    with pytest.raises(InvalidRows):
        peek(INTS.serialize())


def test_a_dictionary_is_no_rows():
    column = pa.array(["a", "b"]).dictionary_encode()
    batch = pa.record_batch([column], names=["d"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    kinds = [message for message in pa.ipc.MessageReader.open_stream(sink.getvalue()) if message.type == "dictionary"]

    with pytest.raises(InvalidRows):
        peek(kinds[0].serialize())


@given(batch=ANY_BATCH, data=st.data())
def test_rows_that_are_cut_off_are_refused(batch, data):
    encoded = encode_rows(batch).to_pybytes()
    kept = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(InvalidRows):
        read_rows(pa.py_buffer(encoded[:kept]), batch.schema, rows_max=ROWS_MAX)


@given(batch=ANY_BATCH, data=st.data())
def test_damaged_rows_are_refused_or_valid_after_the_full_check(batch, data):
    encoded = bytearray(encode_rows(batch).to_pybytes())
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))

    try:
        read = read_rows(pa.py_buffer(bytes(encoded)), batch.schema, rows_max=ROWS_MAX)
    except InvalidInput:
        return
    try:
        read.validate(full=True)
    except pa.ArrowInvalid:
        return
    assert read.num_rows <= ROWS_MAX


@given(garbage=st.binary(max_size=200))
def test_garbage_is_refused(garbage):
    with pytest.raises(InvalidRows):
        read_rows(pa.py_buffer(garbage), INTS, rows_max=ROWS_MAX)


@pytest.mark.parametrize("number", [-(2**63), -1, 2**31, 2**62, 2**63 - 1])
def test_extreme_numbers_anywhere_in_the_header_are_refused_or_harmless(number):
    encoded = encode_rows(_ints(8)).to_pybytes()
    header = struct.unpack_from("<I", encoded, 4)[0]

    for place in range(0, header, 4):
        damaged = bytearray(encoded)
        struct.pack_into("<q", damaged, 8 + min(place, header - 8), number)
        try:
            read = read_rows(pa.py_buffer(bytes(damaged)), INTS, rows_max=ROWS_MAX)
        except InvalidInput:
            continue
        assert read.num_rows <= ROWS_MAX


def test_rows_shorter_than_their_header_says_are_told_so():
    encoded = encode_rows(_ints(8))

    with pytest.raises(InvalidRows, match="not as long as their header says"):
        peek(encoded.slice(0, encoded.size - 8))


@given(schema=schemas(min_key=0))
def test_a_schema_is_known_by_its_own_bytes(schema):
    arrow = pa.schema([column.arrow for column in schema.columns])

    check_schema(encode_schema(arrow), arrow)


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([]),
        pa.schema([("m", pa.int64())]),
        pa.schema([("n", pa.int32())]),
        pa.schema([("n", pa.int64()), ("n", pa.int64())]),
        pa.schema([("n", pa.null())]),
        pa.schema([("n", pa.dictionary(pa.int8(), pa.int64()))]),
        pa.schema([("n", pa.run_end_encoded(pa.int32(), pa.int64()))]),
        pa.schema([(f"c{number}", pa.int64()) for number in range(5_000)]),
        pa.schema([("n" * 1_000_000, pa.int64())]),
    ],
    ids=["none", "name", "type", "twice", "null", "dictionary", "run-end", "many", "long name"],
)
def test_another_schema_is_refused(other):
    with pytest.raises(InvalidInput) as caught:
        check_schema(encode_schema(other), INTS)

    assert len(str(caught.value)) < 2_000


@given(garbage=st.binary(max_size=100))
def test_a_schema_of_garbage_is_refused(garbage):
    with pytest.raises(InvalidInput):
        check_schema(garbage, INTS)


@given(data=st.data())
def test_a_damaged_schema_is_refused_or_equal(data):
    encoded = bytearray(encode_schema(pa.schema([("name", pa.int64()), ("other", pa.list_(pa.string()))])))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))

    with contextlib.suppress(InvalidInput):
        check_schema(bytes(encoded), pa.schema([("name", pa.int64()), ("other", pa.list_(pa.string()))]))


def test_a_schema_whose_names_are_no_text_is_refused():
    encoded = encode_schema(pa.schema([("name", pa.int64())])).replace(b"name", b"\xff\xfe\xfd\xfc")

    with pytest.raises(InvalidRows):
        check_schema(encoded, INTS)


def test_a_type_nested_without_end_is_refused():
    deep = pa.int64()
    for _ in range(500):
        deep = pa.list_(deep)

    with pytest.raises(InvalidRows):
        check_schema(pa.schema([("n", deep)]).serialize().to_pybytes(), INTS)


def _ints(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(count), pa.int64())], schema=INTS)


def _message(rows: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> pa.Buffer:
    """The rows as an Arrow message, written with options."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    _, batch = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return batch.serialize()


def _nodes(type: pa.DataType) -> int:
    """How many nodes a column has: itself and all that is within it."""
    return 1 + sum(_nodes(type.field(place).type) for place in range(type.num_fields))


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in buffers of their own. NaN equals nothing, so bytes are compared where values are not equal."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
