"""The laws of the key codec: key order is tuple order, and what goes in comes out."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.key import KEY_BYTES_MAX, ROW_PREFIX, KeyCodec, group_starts, sort_order
from kolk.errors import Corrupted, InvalidArgument, InvalidRows, TooLarge
from kolk.model.schema import Column, Schema
from kolk.testing.strategies import Keys, batches, data_types, schemas

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "keys.json").read_text(encoding="utf-8"))
TEXT_KEY = Schema([Column("k", "string")], "k")
PAIR_KEY = Schema([Column("a", "string"), Column("b", "string")], ["a", "b"])

SMALL_BYTES = st.lists(st.sampled_from(b"\x00\x01\xff"), max_size=20).map(bytes)
FEW_BYTES = st.sampled_from([b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"a" * 8, b"a" * 8 + b"\x00", b"a" * 9])
REPETITIVE = st.builds(lambda head, tail: head * 9 + tail, SMALL_BYTES, SMALL_BYTES)
KEY_LISTS = st.one_of(
    *(st.lists(each, max_size=30) for each in (SMALL_BYTES, FEW_BYTES, REPETITIVE)),
    *(st.lists(st.binary(min_size=width, max_size=width), max_size=30) for width in (1, 5, 8, 9, 17, 40)),
)


@st.composite
def keyed_batches(draw, keys=Keys.ANY, **limits):
    schema = draw(schemas(**limits))
    return schema, draw(batches(schema, keys=keys))


def comparable(array):
    """Values that Python orders as the column is ordered; times as their numbers, strings by code point."""
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array.to_pylist()


def tuples(batch, names):
    return list(zip(*(comparable(batch.column(name)) for name in names), strict=True))


def binary(values, offset=0):
    """An array of these values that is a slice when ``offset`` is not 0."""
    return pa.array([b"junk"] * offset + values, pa.binary()).slice(offset)


def raw_array(type, values):
    """An array from the golden file's values: numbers are unscaled and in Arrow's unit, bytes are hex."""
    arrow = type.arrow
    if pa.types.is_decimal(arrow):
        data = b"".join(value.to_bytes(16, "little", signed=True) for value in values)
        return pa.Array.from_buffers(arrow, len(values), [None, pa.py_buffer(data)])
    if pa.types.is_binary(arrow) or pa.types.is_fixed_size_binary(arrow):
        values = [bytes.fromhex(value) for value in values]
    return pa.array(values, arrow)


@given(keyed_batches(min_values=0, max_values=1))
def test_keys_sort_as_the_tuples_they_are_made_of(case):
    schema, batch = case
    rows = tuples(batch, schema.primary_key)

    keys = KeyCodec(schema).encode(batch).to_pylist()

    by_key = sorted(range(len(rows)), key=lambda row: (keys[row], row))
    by_tuple = sorted(range(len(rows)), key=lambda row: (rows[row], row))
    assert by_key == by_tuple


@given(keyed_batches(keys=Keys.REPEATED))
def test_equal_keys_are_equal_bytes_and_no_others_are(case):
    schema, batch = case
    rows = tuples(batch, schema.primary_key)

    keys = KeyCodec(schema).encode(batch).to_pylist()

    assert len(set(keys)) == len(set(rows))
    assert len(set(zip(keys, rows, strict=True))) == len(set(rows))


@given(keyed_batches())
def test_decoding_gives_back_the_key_columns_in_key_order(case):
    schema, batch = case
    codec = KeyCodec(schema)

    decoded = codec.decode(codec.encode(batch))

    decoded.validate(full=True)
    assert decoded.schema == pa.schema([column.arrow for column in schema.key_columns])
    assert decoded.equals(batch.select(schema.primary_key))


@given(keyed_batches(), st.integers(0, 3))
def test_decoding_respects_the_offset_of_sliced_keys(case, skipped):
    schema, batch = case
    codec = KeyCodec(schema)
    skipped = min(skipped, batch.num_rows)

    decoded = codec.decode(codec.encode(batch).slice(skipped))

    assert decoded.equals(batch.select(schema.primary_key).slice(skipped))


@given(keyed_batches())
def test_every_key_starts_with_the_row_prefix(case):
    schema, batch = case

    keys = KeyCodec(schema).encode(batch).to_pylist()

    assert all(key.startswith(ROW_PREFIX) for key in keys)


@given(st.data())
def test_keys_start_with_a_prefix_exactly_when_their_first_columns_are_equal(data):
    schema, batch = data.draw(keyed_batches(keys=data.draw(st.sampled_from(Keys)), min_key=2))
    count = data.draw(st.integers(1, len(schema.primary_key) - 1))
    codec = KeyCodec(schema)

    prefixes = codec.encode_prefix(batch.select(schema.primary_key[:count]), count).to_pylist()

    keys, rows = codec.encode(batch).to_pylist(), tuples(batch, schema.primary_key[:count])
    for prefix, wanted in zip(prefixes, rows, strict=True):
        assert [key.startswith(prefix) for key in keys] == [row == wanted for row in rows]


@given(keyed_batches())
def test_a_key_is_the_row_prefix_and_what_its_columns_take_one_by_one(case):
    schema, batch = case
    codec = KeyCodec(schema)

    columns = [codec.encode_column(place, batch.column(name)) for place, name in enumerate(schema.primary_key)]

    assert [ROW_PREFIX + b"".join(row) for row in zip(*columns, strict=True)] == codec.encode(batch).to_pylist()


@pytest.mark.parametrize("count", [-1, 0, 2, 3])
def test_a_prefix_is_neither_empty_nor_the_whole_key(count):
    batch = pa.record_batch({"a": ["x"], "b": ["y"]})

    with pytest.raises(InvalidArgument, match="1 to 1 columns"):
        KeyCodec(PAIR_KEY).encode_prefix(batch, count)


@given(keyed_batches())
def test_a_list_of_keys_holds_the_same_bytes(case):
    schema, batch = case
    codec = KeyCodec(schema)
    keys = codec.encode(batch)

    listed = codec.to_list(keys)

    assert listed == [key.as_py() for key in keys]


def test_a_list_of_keys_keeps_trailing_nul_bytes():
    codec = KeyCodec(Schema([Column("k", "bigint")], "k"))

    listed = codec.to_list(codec.encode(pa.record_batch({"k": [-(2**63)]})))

    assert listed == [ROW_PREFIX + bytes(8)]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: ", ".join(case["types"]))
def test_the_layout_on_disk_has_not_changed(case):
    schema = Schema(
        [Column(f"c{place}", name) for place, name in enumerate(case["types"])],
        [f"c{place}" for place in range(len(case["types"]))],
    )
    values = zip(*(row["values"] for row in case["rows"]), strict=True)
    arrays = [raw_array(column.type, each) for column, each in zip(schema.columns, values, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    codec = KeyCodec(schema)
    golden = [bytes.fromhex(row["key"]) for row in case["rows"]]

    assert codec.encode(batch).to_pylist() == golden
    assert codec.decode(binary(golden)).equals(batch)


@pytest.mark.parametrize("texts", [[], [""], ["", ""], ["\0"], ["", "\0", "\0\0"]])
def test_empty_texts_and_batches_have_keys_too(texts):
    batch = pa.record_batch([pa.array(texts, pa.string()), pa.array(texts, pa.string())], ["a", "b"])
    codec = KeyCodec(PAIR_KEY)

    keys = codec.encode(batch)

    assert len(set(keys.to_pylist())) == len(set(texts))
    assert codec.decode(keys).to_pylist() == batch.to_pylist()


@given(data_types(for_key=True))
def test_a_null_in_a_key_column_is_refused_by_its_name(type):
    schema = Schema([Column("first", "int"), Column("second", type)], ["first", "second"])
    batch = pa.record_batch([pa.array([1], pa.int32()), pa.nulls(1, type.arrow)], ["first", "second"])

    with pytest.raises(InvalidRows, match="'second'"):
        KeyCodec(schema).encode(batch)


def test_the_longest_key_fits_and_one_byte_more_is_refused():
    codec = KeyCodec(TEXT_KEY)
    longest = "x" * (KEY_BYTES_MAX - 1)

    keys = codec.encode(pa.record_batch({"k": [longest]}))

    assert len(keys[0].as_py()) == KEY_BYTES_MAX
    with pytest.raises(TooLarge, match="65,536"):
        codec.encode(pa.record_batch({"k": ["", longest + "x"]}))


def test_the_escapes_of_nuls_count_towards_the_longest_key():
    codec = KeyCodec(PAIR_KEY)

    with pytest.raises(TooLarge):
        codec.encode(pa.record_batch({"a": ["\0" * (KEY_BYTES_MAX // 2)], "b": [""]}))


def test_a_batch_whose_keys_outgrow_an_arrow_array_is_refused():
    width = 60_000
    rows = 2**31 // width + 1
    # 2 GiB of address space, but no memory: the batch is refused before a byte of it is touched.
    data = pa.py_buffer(np.zeros(rows * width, np.uint8))
    array = pa.Array.from_buffers(pa.binary(width), rows, [None, data])

    with pytest.raises(TooLarge, match="fewer rows"):
        KeyCodec(Schema([Column("k", f"binary({width})")], "k")).encode(pa.record_batch([array], ["k"]))


@pytest.mark.parametrize(
    ("types", "key"),
    [
        (["int"], b""),
        (["int"], b"\x01\x80\x00\x00"),
        (["int"], b"\x01\x80\x00\x00\x00\x00"),
        (["int"], b"\x02\x80\x00\x00\x00"),
        (["string", "int"], b"\x01abc"),
        (["string", "int"], b"\x01abc\x00"),
        (["string", "int"], b"\x01abc\x00\x00\x80\x00\x00"),
        (["string", "int"], b"\x01abc\x00\x00\x80\x00\x00\x00\x00"),
        (["string"], b"\x01\xff"),
    ],
)
def test_bytes_that_are_no_key_of_the_table_are_refused(types, key):
    names = [f"c{place}" for place in range(len(types))]
    codec = KeyCodec(Schema([Column(name, type) for name, type in zip(names, types, strict=True)], names))
    sound = codec.encode(
        pa.record_batch(
            [raw_array(column.type, [0 if "int" in str(column.type) else "x"]) for column in codec.schema.columns],
            names,
        )
    )

    with pytest.raises(Corrupted):
        codec.decode(binary([*sound.to_pylist(), key, *sound.to_pylist()]))


@given(KEY_LISTS, st.integers(0, 2), st.sampled_from([1, 100]))
def test_sorting_is_stable_and_by_bytes(keys, offset, times):
    # Long lists are sorted another way than short ones.
    keys = keys * times

    order = sort_order(binary(keys, offset))

    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(len(keys)), key=lambda row: keys[row])


@pytest.mark.parametrize("shared", [b"", b"12345", b"x" * 20, b"x" * 300, b"x" * 300 + b"\0"])
@pytest.mark.parametrize("tail", [b"%d", b"%08d", b"%d" + b"y" * 50 + b"%d", b"\0" * 40 + b"%d"])
@pytest.mark.parametrize("distinct", [2_500, 5_000])
def test_many_keys_that_are_long_alike_sort_stably_too(shared, tail, distinct):
    numbers = np.random.default_rng(7).permutation(5_000) % distinct
    keys = [shared + (tail % ((number,) * tail.count(b"d"))) for number in numbers]

    order = sort_order(binary(keys))

    assert order.tolist() == sorted(range(len(keys)), key=lambda row: keys[row])


@given(KEY_LISTS, st.integers(0, 2))
def test_a_group_starts_where_the_key_differs_from_the_one_before(keys, offset):
    keys = sorted(keys)

    starts = group_starts(binary(keys, offset))

    assert starts.dtype == np.int64
    assert starts.tolist() == [row for row in range(len(keys)) if row == 0 or keys[row] != keys[row - 1]]
