"""Defaults: given as values or text, kept as one text, that stands for one value of the column's type."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kolk.errors import InvalidSchema
from kolk.model.alter_ddl import AlterTable
from kolk.model.clauses import column_text
from kolk.model.ddl import parse
from kolk.model.defaults import DEFAULT_BYTES_MAX, default_values
from kolk.model.evolution import is_wider
from kolk.model.schema import DEFAULTS_BYTES_MAX, Column, Schema
from kolk.model.types import DataType, Kind
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import data_types, values_of

UTC = datetime.UTC
NONE = (Kind.BINARY, Kind.BYTES)
SCALARS = data_types(max_depth=0).filter(lambda type: type.kind not in NONE)
FIRST_SECOND = -(2**63) + 10**9
"""Of what nanoseconds reach, the first second is the one that Arrow writes and cannot read."""


def drawn(data, type: DataType) -> pa.Array:
    array = pa.array([data.draw(values_of(type))], type.arrow)
    assume(not (pa.types.is_timestamp(array.type) and array.cast(pa.int64())[0].as_py() < FIRST_SECOND))
    is_nan = pa.types.is_floating(array.type) and pc.is_nan(array)[0].as_py()
    return pa.array([float("nan")], array.type) if is_nan else array  # as text there is only one


def value_of(column: Column):
    return plain_rows(pa.record_batch({"x": default_values(column.default, column.type, 1)}))[0]["x"]


@given(st.data())
def test_every_value_that_arrow_can_write_is_a_default_and_comes_back(data):
    type = data.draw(SCALARS)
    array = drawn(data, type)
    text = array[0].as_py() if type.kind in (Kind.STRING, Kind.CHAR) else array.cast(pa.string())[0].as_py()

    column = Column("x", type, default=text)

    assert value_of(column) == plain_rows(pa.record_batch({"x": array}))[0]["x"]
    assert Column("x", type, default=column.default) == column


@given(st.data())
def test_a_default_is_read_back_from_the_ddl_that_shows_it(data):
    type = data.draw(SCALARS)
    array = drawn(data, type)
    text = array[0].as_py() if type.kind in (Kind.STRING, Kind.CHAR) else array.cast(pa.string())[0].as_py()
    column = Column("x", type, data.draw(st.booleans()), default=text)

    statement = parse(f"ALTER TABLE t ADD COLUMN {column_text(column)}")

    assert isinstance(statement, AlterTable)
    assert statement.operations[0].column == column


@given(st.data())
def test_a_default_means_the_same_after_its_column_was_widened(data):
    old, new = data.draw(SCALARS), data.draw(SCALARS)
    if not is_wider(old, new):
        return
    array = pa.array([data.draw(values_of(old))], old.arrow)
    text = array[0].as_py() if old.kind is Kind.CHAR else array.cast(pa.string())[0].as_py()
    narrow = Column("x", old, default=text)

    widened = Column("x", new, default=narrow.default)

    assert widened.default == narrow.default
    cast = default_values(narrow.default, old, 1).cast(new.arrow)
    assert value_of(widened) == plain_rows(pa.record_batch({"x": cast}))[0]["x"]


@pytest.mark.parametrize(
    ("type", "value", "text"),
    [
        ("bigint", 0, "0"), ("int", "-5", "-5"), ("int", "+5", "5"), ("float", 0.1, "0.10000000149011612"),
        ("double", 1, "1"), ("double", "NaN", "nan"), ("decimal(6, 2)", 3, "3.00"), ("decimal(6, 2)", "1.5", "1.50"),
        ("decimal(6, 2)", Decimal("1.5"), "1.50"), ("boolean", True, "true"), ("boolean", "FALSE", "false"),
        ("string", " x ", " x "), ("char(2)", "ab", "ab"), ("date", datetime.date(2026, 1, 2), "2026-01-02"),
        ("time(3)", datetime.time(1, 2, 3, 4000), "01:02:03.004"), ("time(0)", "01:02", "01:02:00"),
        ("timestamp", datetime.datetime(2026, 1, 2, tzinfo=UTC).replace(tzinfo=None), "2026-01-02 00:00:00.000000"),
        ("timestamp_ltz(0)", "2026-11-15T12:30:00.000+01:00", "2026-11-15 11:30:00Z"),
        ("timestamp_ltz(3)", datetime.datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00.000Z"),
    ],
)  # fmt: skip
def test_a_default_is_kept_as_one_text_however_it_is_given(type, value, text):
    assert Column("x", type, default=value).default == text


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("bigint", True), ("bigint", 1.5), ("bigint", "1.5"), ("bigint", "9" * 19), ("bigint", "9" * 30),
        ("int", "1_0"), ("int", "0x10"), ("int", "٣"), ("tinyint", 300), ("float", 1e39), ("double", "1e400"),
        ("decimal(4, 1)", "1.55"),
        ("decimal(4, 1)", 12345), ("decimal(4, 1)", 1.5), ("boolean", 1), ("boolean", "yes"), ("string", 5),
        ("string", "\ud800"), ("char(1)", "ab"), ("date", "soon"), ("date", datetime.datetime(2026, 1, 1, tzinfo=UTC)),
        ("timestamp(1)", "2026-11-15 12:30:00.12"), ("timestamp", "2026-11-15 12:30:00Z"),
        ("timestamp_ltz", "2026-11-15 12:30:00"), ("time", "25:00:00"), ("time", datetime.time(1, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_what_is_no_value_of_the_type_is_no_default(type, value):
    with pytest.raises(InvalidSchema, match=r"the column 'x' is a .* has no value"):
        Column("x", type, default=value)


@pytest.mark.parametrize("type", ["bytes", "binary(2)", "array<int>", "map<string, int>", "row<a int>"])
def test_bytes_and_nested_values_have_no_default(type):
    with pytest.raises(InvalidSchema, match="has no default"):
        Column("x", type, default="x")


def test_a_key_has_no_default():
    with pytest.raises(InvalidSchema, match="every row gives its key"):
        Schema([Column("k", "int", default=0)], "k")


def test_defaults_are_short_and_so_are_all_of_a_table_together():
    longest = "x" * DEFAULT_BYTES_MAX
    many = [Column(f"c{n}", "string", default=longest) for n in range(DEFAULTS_BYTES_MAX // DEFAULT_BYTES_MAX)]

    assert Schema(many)
    with pytest.raises(InvalidSchema, match="more than 1,000 bytes"):
        Column("x", "string", default=longest + "x")
    with pytest.raises(InvalidSchema, match="50,000 bytes together"):
        Schema([*many, Column("x", "int", default=0)])


def test_a_type_given_as_text_or_arrow_is_the_same_column():
    assert Column("x", pa.int64(), default=1) == Column("x", DataType.parse("bigint"), default="1")
