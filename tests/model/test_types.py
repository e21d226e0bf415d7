"""Column types: their text and their Arrow form, there and back."""

import contextlib
import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidSchema
from kolk.model.types import LENGTH_MAX, DataType, Kind

PLAIN = (
    *(Kind.BOOLEAN, Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT, Kind.FLOAT, Kind.DOUBLE),
    *(Kind.STRING, Kind.BYTES, Kind.DATE),
)
TEMPORAL = (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)

decimals = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: DataType(Kind.DECIMAL, (precision, scale)))
)
temporals = st.builds(lambda kind, digits: DataType(kind, (digits,)), st.sampled_from(TEMPORAL), st.integers(0, 9))
sized = st.builds(
    lambda kind, length: DataType(kind, (length,)),
    st.sampled_from((Kind.CHAR, Kind.BINARY)),
    st.integers(1, LENGTH_MAX),
)
data_types = st.one_of(st.sampled_from(PLAIN).map(DataType), decimals, temporals, sized)
gaps = st.text(" \t\n", max_size=3)


@given(data_types)
def test_a_type_is_read_back_from_its_text(data_type):
    assert DataType.parse(str(data_type)) == data_type


@given(data_types, gaps, st.booleans())
def test_neither_case_nor_spaces_matter_in_the_text_of_a_type(data_type, gap, upper):
    text = str(data_type).replace("(", f"{gap}({gap}").replace(",", f"{gap},{gap}").replace(")", f"{gap}){gap}")

    assert DataType.parse(gap + (text.upper() if upper else text)) == data_type


@given(data_types)
def test_the_arrow_form_of_a_type_is_kept_by_the_way_there_and_back(data_type):
    assert DataType.from_arrow(data_type.arrow).arrow == data_type.arrow


@given(data_types)
def test_a_type_is_read_back_from_arrow_unless_arrow_knows_less_of_it(data_type):
    """Arrow has no char, and only 0, 3, 6 or 9 digits of a second."""
    read = DataType.from_arrow(data_type.arrow)

    if data_type.kind is Kind.CHAR:
        assert read == DataType(Kind.STRING)
    elif data_type.kind in TEMPORAL:
        assert read == DataType(data_type.kind, (-(-data_type.arguments[0] // 3) * 3,))
    else:
        assert read == data_type


@given(st.text(max_size=100))
def test_any_text_is_a_type_or_an_invalid_schema_and_nothing_else(text):
    with contextlib.suppress(InvalidSchema):
        data_type = DataType.parse(text)

        assert DataType.parse(str(data_type)) == data_type


def test_arguments_left_out_take_their_defaults():
    written = ("decimal", "decimal(5)", "char", "binary", "time", "timestamp", "timestamp_ltz")

    read = [str(DataType.parse(text)) for text in written]

    assert read == [
        *("decimal(10, 0)", "decimal(5, 0)", "char(1)", "binary(1)"),
        *("time(6)", "timestamp(6)", "timestamp_ltz(6)"),
    ]


@pytest.mark.parametrize(
    ("alias", "kind"),
    [
        ("bool", Kind.BOOLEAN),
        ("integer", Kind.INT),
        ("long", Kind.BIGINT),
        ("varbinary", Kind.BYTES),
        ("text", Kind.STRING),
    ],
)
def test_common_other_names_are_understood(alias, kind):
    assert DataType.parse(alias) == DataType(kind)


@pytest.mark.parametrize(
    "text", ["", "varchar(10)", "array int", "int int", "decimal(1, 2, 3)", "int()", "ınt", "ſtring"]
)
def test_an_unknown_type_is_refused_with_the_list_of_types(text):
    with pytest.raises(InvalidSchema, match=r"unknown column type .*; the types are boolean, tinyint, .*timestamp_ltz"):
        DataType.parse(text)


@pytest.mark.parametrize("text", [f"char({'9' * 5000})", "int" + " " * 100_000 + "x"])
def test_a_very_long_type_text_is_refused_in_few_words(text):
    with pytest.raises(InvalidSchema) as caught:
        DataType.parse(text)

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int(3)", "int takes 0 arguments, got 1"),
        ("char(1, 2)", "char takes 1 arguments, got 2"),
        ("decimal(0, 0)", "decimal(0, 0): precision is 1 to 38 and scale 0 to precision"),
        ("decimal(39, 0)", "decimal(39, 0): precision is 1 to 38 and scale 0 to precision"),
        ("decimal(5, 6)", "decimal(5, 6): precision is 1 to 38 and scale 0 to precision"),
        ("timestamp(10)", "timestamp(10): the digits of a second are 0 to 9"),
        ("char(0)", "char(0): the length is 1 to 65535"),
        ("binary(65536)", "binary(65536): the length is 1 to 65535"),
    ],
)
def test_arguments_out_of_range_are_refused_with_the_range(text, message):
    with pytest.raises(InvalidSchema) as caught:
        DataType.parse(text)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arrow", "text"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "bytes"),
        (pa.binary_view(), "bytes"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.date64(), "date"),
        (pa.decimal32(5, 2), "decimal(5, 2)"),
        (pa.decimal64(12, 0), "decimal(12, 0)"),
        (pa.timestamp("us", "Europe/Amsterdam"), "timestamp_ltz(6)"),
        (pa.time32("s"), "time(0)"),
    ],
)
def test_an_arrow_type_with_the_same_values_is_taken_for_ours(arrow, text):
    assert str(DataType.from_arrow(arrow)) == text


@pytest.mark.parametrize(
    "arrow",
    [
        *(pa.uint8(), pa.uint64(), pa.float16(), pa.null(), pa.decimal256(40, 2), pa.duration("s")),
        *(pa.list_(pa.uint32()), pa.struct([("a", pa.null())]), pa.map_(pa.float64(), pa.int32()), pa.struct([])),
        *(pa.decimal128(5, -2), pa.binary(0), pa.binary(LENGTH_MAX + 1)),
    ],
    ids=str,
)
def test_an_arrow_type_that_no_column_holds_is_refused(arrow):
    with pytest.raises(InvalidSchema):
        DataType.from_arrow(arrow)


def test_the_refusal_of_an_arrow_type_says_what_to_do():
    with pytest.raises(InvalidSchema) as caught:
        DataType.from_arrow(pa.uint32())

    assert str(caught.value) == (
        "no column type holds the Arrow type uint32; cast it first (unsigned integers to bigint)"
    )


@pytest.mark.parametrize(
    ("digits", "unit", "tick"),
    [
        (0, "s", 1),
        (1, "ms", 100),
        (2, "ms", 10),
        (3, "ms", 1),
        (4, "us", 100),
        (6, "us", 1),
        (7, "ns", 100),
        (9, "ns", 1),
    ],
)
def test_digits_of_a_second_choose_the_unit_and_its_step(digits, unit, tick):
    data_type = DataType(Kind.TIMESTAMP, (digits,))

    assert (data_type.unit, data_type.tick) == (unit, tick)


def test_only_float_and_double_are_floating():
    floating = {kind for kind in PLAIN if DataType(kind).is_floating}

    assert floating == {Kind.FLOAT, Kind.DOUBLE}


def test_a_type_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DataType(Kind.INT).kind = Kind.BIGINT
