"""Rows fall into the buckets that Spark would give them."""

import json
from decimal import Context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.bucketing import bucket_of, hash_rows
from kolk.codec.key import KEY_BYTES_MAX
from kolk.errors import TooLarge
from kolk.model.schema import Column, Schema
from kolk.model.types import Kind
from kolk.testing.strategies import batches, data_types, schemas

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "spark_xxhash64.json").read_text(encoding="utf-8"))
PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
MASK = 2**64 - 1
TICKS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
BYTES = (Column("k", "bytes"),)


def is_hashable(type):
    if type.kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ):
        return type.arguments[0] <= 6
    return type.kind not in (Kind.FLOAT, Kind.DOUBLE)


@st.composite
def hashable_batches(draw, **limits):
    schema = draw(schemas(max_key=0, min_values=1, value_types=data_types(max_depth=0).filter(is_hashable)))
    return schema, draw(batches(schema, **limits))


def xxh64(data, seed):
    """XXH64 as its specification tells it, one byte string at a time."""
    one, two, three, four, five = PRIMES

    def rotate(value, by):
        value &= MASK
        return (value << by | value >> (64 - by)) & MASK

    def word(at, size):
        return int.from_bytes(data[at : at + size], "little")

    def round(lane, value):
        return rotate(lane + value * two, 31) * one & MASK

    at, result = 0, seed + five
    if len(data) >= 32:
        lanes = [seed + one + two, seed + two, seed, seed - one]
        while at + 32 <= len(data):
            lanes = [round(lane, word(at + 8 * place, 8)) for place, lane in enumerate(lanes)]
            at += 32
        result = sum(rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            result = (result ^ round(0, lane)) * one + four & MASK
    result = result + len(data) & MASK
    while at + 8 <= len(data):
        result, at = rotate(result ^ round(0, word(at, 8)), 27) * one + four & MASK, at + 8
    if at + 4 <= len(data):
        result, at = rotate(result ^ word(at, 4) * one & MASK, 23) * two + three & MASK, at + 4
    while at < len(data):
        result, at = rotate(result ^ data[at] * five & MASK, 11) * one & MASK, at + 1
    result = (result ^ result >> 33) * two & MASK
    result = (result ^ result >> 29) * three & MASK
    return result ^ result >> 32


def hashed_bytes(type, value):
    """What Spark feeds to the hash for one value; times and dates are numbers in Arrow's unit."""
    match type.kind:
        case Kind.CHAR | Kind.STRING:
            return value.encode()
        case Kind.BINARY | Kind.BYTES:
            return value
        case Kind.BOOLEAN | Kind.TINYINT | Kind.SMALLINT | Kind.INT | Kind.DATE:
            return int(value).to_bytes(4, "little", signed=True)
        case Kind.TIMESTAMP | Kind.TIMESTAMP_LTZ:
            return (value * TICKS[type.unit] // 1_000).to_bytes(8, "little", signed=True)
        case Kind.TIME:
            return (value * TICKS[type.unit]).to_bytes(8, "little", signed=True)
        case Kind.DECIMAL:
            unscaled = int(value.scaleb(type.arguments[1], Context(prec=38)))
            if type.arguments[0] <= 18:
                return unscaled.to_bytes(8, "little", signed=True)
            magnitude = unscaled if unscaled >= 0 else ~unscaled
            return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
        case _:
            return value.to_bytes(8, "little", signed=True)


def expected_hash(columns, row):
    result = 42
    for column, value in zip(columns, row, strict=True):
        if value is not None:
            result = xxh64(hashed_bytes(column.type, value), result)
    return result - 2**64 if result >= 2**63 else result


def python_rows(batch):
    numbers = [
        array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())
        if pa.types.is_temporal(array.type)
        else array
        for array in batch.columns
    ]
    return list(zip(*(array.to_pylist() for array in numbers), strict=True))


def golden_array(type, values):
    """An array from the golden file's values: numbers are unscaled and in Arrow's unit, bytes are hex."""
    arrow = type.arrow
    if pa.types.is_decimal(arrow):
        data = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
        validity = np.packbits([value is not None for value in values], bitorder="little")
        return pa.Array.from_buffers(arrow, len(values), [pa.py_buffer(validity), pa.py_buffer(data)])
    if pa.types.is_binary(arrow) or pa.types.is_fixed_size_binary(arrow):
        values = [None if value is None else bytes.fromhex(value) for value in values]
    return pa.array(values, arrow)


def golden_batch(case):
    schema = Schema([Column(f"c{place}", name) for place, name in enumerate(case["types"])])
    values = zip(*(row["values"] for row in case["rows"]), strict=True)
    arrays = [golden_array(column.type, each) for column, each in zip(schema.columns, values, strict=True)]
    return schema, pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: ", ".join(case["types"]))
def test_hashes_and_buckets_are_those_of_spark(case):
    schema, batch = golden_batch(case)

    assert hash_rows(batch, schema.columns).tolist() == [row["hash"] for row in case["rows"]]
    for place, buckets in enumerate(GOLDEN["buckets"]):
        found = bucket_of(batch, schema.columns, buckets).tolist()
        assert found == [row["buckets"][place] for row in case["rows"]]


def test_spark_has_hashed_every_kind_of_type_that_may_be_a_bucket_key():
    hashed = {Column("c", name).type.kind for case in GOLDEN["cases"] for name in case["types"]}

    assert hashed == set(Kind) - {Kind.FLOAT, Kind.DOUBLE, Kind.ARRAY, Kind.MAP, Kind.ROW}


@pytest.mark.parametrize("type", ["float", "double", "timestamp(7)", "timestamp_ltz(9)", "array<int>", "row<a int>"])
def test_a_type_that_spark_does_not_hash_alike_never_gets_here(type):
    column = Column("k", type)

    with pytest.raises(AssertionError, match="refused as a bucket key"):
        hash_rows(pa.record_batch([pa.nulls(1, column.type.arrow)], ["k"]), (column,))


@given(hashable_batches())
def test_the_hash_of_many_rows_is_the_hash_of_each(case):
    schema, batch = case

    hashes = hash_rows(batch, schema.columns)

    assert hashes.tolist() == [expected_hash(schema.columns, row) for row in python_rows(batch)]


@given(st.lists(st.integers(0, 200), max_size=40), st.integers(0, 3))
def test_texts_of_any_lengths_are_hashed_side_by_side(lengths, offset):
    data = [np.random.default_rng(length).bytes(length) for length in lengths]
    batch = pa.record_batch([pa.array([b"junk"] * offset + data, pa.binary()).slice(offset)], ["k"])

    hashes = hash_rows(batch, BYTES)

    assert hashes.tolist() == [expected_hash(BYTES, (each,)) for each in data]


def test_a_batch_of_many_blocks_is_hashed_like_its_parts():
    numbers = pa.record_batch({"k": np.random.default_rng(1).integers(-(2**63), 2**63, 50_000)})
    columns = (Column("k", "bigint"),)

    buckets = bucket_of(numbers, columns, 7)

    parts = [bucket_of(numbers.slice(start, 999), columns, 7) for start in range(0, 50_000, 999)]
    assert buckets.dtype == np.int32
    assert buckets.tolist() == np.concatenate(parts).tolist()


@given(hashable_batches(), st.integers(1, 4096))
def test_every_row_has_a_bucket_within_the_table(case, buckets):
    schema, batch = case

    found = bucket_of(batch, schema.columns, buckets)

    assert len(found) == batch.num_rows
    assert all(0 <= bucket < buckets for bucket in found.tolist())


def test_the_longest_bucket_key_value_is_hashed_and_one_byte_more_is_refused():
    longest = b"x" * KEY_BYTES_MAX

    hashes = hash_rows(pa.record_batch({"k": [longest]}), BYTES)

    assert hashes.tolist() == [expected_hash(BYTES, (longest,))]
    with pytest.raises(TooLarge, match="65,536"):
        hash_rows(pa.record_batch({"k": [longest + b"x"]}), BYTES)


def test_an_empty_batch_has_no_buckets():
    batch = pa.record_batch({"k": pa.array([], pa.int64())})

    assert bucket_of(batch, (Column("k", "bigint"),), 4).tolist() == []
