"""What is written as text is read back as the same value; what is not a value is refused by its row."""

import json
import math
import tempfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kolk.cli.inputs import InputFormat, Shape, opened
from kolk.cli.parsing import Misfit, parse, parse_json
from kolk.cli.values import csv_lines, json_lines, json_values
from kolk.model.types import DataType
from kolk.testing.strategies import batches, schemas

ARROW_CANNOT_READ = b"1677-09-21T00:12:43"
"""The first second of nanoseconds, which Arrow writes, but of which it reads only whole seconds."""


def read_back(data: bytes, format: InputFormat, schema, rows):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        file.write_bytes(data)
        with opened(str(file), format) as source:
            pieces = list(source.pieces(Shape(known=schema.names, wanted=schema.columns), rows=rows))
    return pa.concat_tables(pieces).combine_chunks()


@given(st.data())
def test_any_rows_survive_json_lines(data):
    schema = data.draw(schemas())
    batch = data.draw(batches(schema, min_rows=1))

    assume(ARROW_CANNOT_READ not in json_lines(batch))
    back = read_back(json_lines(batch), InputFormat.JSON, schema, rows=3)

    assert [field.type for field in back.schema] == [column.type.arrow for column in schema.columns]
    assert json_lines(back.to_batches()[0]) == json_lines(batch)


@given(st.data())
def test_any_rows_survive_csv(data):
    schema = data.draw(schemas())
    batch = data.draw(batches(schema, min_rows=1))
    header = ",".join(schema.names).encode() + b"\n"

    assume(ARROW_CANNOT_READ not in csv_lines(batch))
    back = read_back(header + csv_lines(batch), InputFormat.CSV, schema, rows=3)

    assert [field.type for field in back.schema] == [column.type.arrow for column in schema.columns]
    assert json_lines(back.to_batches()[0]) == json_lines(batch)


@given(st.data())
def test_every_line_is_valid_json(data):
    schema = data.draw(schemas())
    batch = data.draw(batches(schema, min_rows=1))

    def refuse(constant):
        raise ValueError(constant)

    for line in json_lines(batch).splitlines():
        json.loads(line, parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "type", "written"),
    [
        (2**63 - 1, pa.int64(), 2**63 - 1),
        (0.1, pa.float32(), 0.1),
        (math.nan, pa.float64(), "NaN"),
        (-math.inf, pa.float64(), "-Infinity"),
        (Decimal("0.0000001"), pa.decimal128(10, 7), "0.0000001"),
        (b"\x00hi", pa.binary(), "AGhp"),
        (0, pa.timestamp("ms", "UTC"), "1970-01-01T00:00:00.000Z"),
        (0, pa.timestamp("s"), "1970-01-01T00:00:00"),
        (0, pa.date32(), "1970-01-01"),
        (1, pa.time64("us"), "00:00:00.000001"),
        ([1, None], pa.list_(pa.int32()), [1, None]),
        ([("k", 1.5)], pa.map_(pa.string(), pa.float64()), {"k": 1.5}),
        ({"a": Decimal("1.10")}, pa.struct([("a", pa.decimal128(5, 2))]), {"a": "1.10"}),
    ],
)
def test_a_value_has_one_form_in_json(value, type, written):
    assert json_values(pa.array([value, None], type)) == [written, None]


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("1.5", "bigint"),
        ("300", "tinyint"),
        ("1e400", "double"),
        ("1e300", "float"),
        ("1.234", "decimal(5, 2)"),
        ("yes", "boolean"),
        ("15.11.2026", "date"),
        ("2026-11-15T12:00:00Z", "timestamp(3)"),
        ("2026-11-15T12:00:00", "timestamp_ltz(3)"),
        ("2026-11-15T12:00:00.1234", "timestamp(3)"),
        ("25:00:00", "time(3)"),
        ("a", "bytes"),
        ("{", "array<int>"),
        ('["a"]', "array<int>"),
        ('{"b": 1}', "row<a int>"),
    ],
)
def test_text_that_a_type_cannot_hold_is_refused_with_its_place(text, type):
    fitting = pa.array([None, None, text, text], pa.string())

    with pytest.raises(Misfit) as caught:
        parse(fitting, "c", DataType.parse(type))

    assert caught.value.place == 2
    assert "c" in str(caught.value)


@pytest.mark.parametrize(("value", "type"), [(5, "string"), (True, "bigint"), ({}, "int"), ("x", "row<a int>")])
def test_json_of_another_kind_is_refused(value, type):
    with pytest.raises(Misfit):
        parse_json([value], "c", DataType.parse(type))


def test_infinity_is_taken_where_it_is_meant():
    array = parse(pa.array(["Infinity", "-inf"]), "c", DataType.parse("float"))

    assert array.to_pylist() == [math.inf, -math.inf]
