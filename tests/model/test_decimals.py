"""Decimals of another scale, and of text: the same number, or none."""

import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kolk.cli.parsing import Misfit, parse
from kolk.errors import InvalidRows, InvalidSchema
from kolk.model.conversion import array_of, converted
from kolk.model.schema import Column
from kolk.model.types import DataType

HUGE = "400000000000000000000"  # which times 10^18 is 59717633079061536536625392568231788544 more than 2^128
NUMBERS = st.builds(lambda digits, number: number % 10**digits, st.integers(1, 38), st.integers(0, 10**38))
TYPES = st.builds(lambda precision, scale: (precision, scale % (precision + 1)), st.integers(1, 38), st.integers(0, 38))


def decimal(units: int, scale: int) -> Decimal:
    """So many units of a scale; arithmetic of decimals would round them."""
    return Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -scale))


def fits(value: Decimal, type: DataType) -> bool:
    precision, scale = type.arguments
    numerator, denominator = value.as_integer_ratio()
    units, rest = divmod(abs(numerator) * 10**scale, denominator)
    return not rest and units < 10**precision


@pytest.mark.parametrize(
    ("type", "array"),
    [
        ("decimal(38, 18)", pa.array([None, Decimal(HUGE)])),
        ("decimal(38, 18)", pa.array([Decimal("-" + HUGE), Decimal(1)])),
        ("decimal(38, 38)", pa.array([4])),
        ("decimal(38, 38)", pa.array([4], pa.uint8())),
        ("decimal(38, 38)", pa.array([Decimal(4)], pa.decimal32(1, 0))),
        ("decimal(38, 38)", pa.array([Decimal(4)], pa.decimal64(1, 0))),
        ("decimal(38, 38)", pa.array([Decimal(4)]).dictionary_encode()),
        ("array<decimal(38, 38)>", pa.array([[4]])),
    ],
)
def test_a_number_that_a_larger_scale_has_no_room_for_is_refused(type, array):
    with pytest.raises(InvalidRows, match=r"is a decimal\(38"):
        converted(array, DataType.parse(type), "c")


@pytest.mark.parametrize("source", [pa.decimal32(9, 0), pa.decimal64(9, 0), pa.decimal128(9, 0), pa.decimal256(9, 0)])
@pytest.mark.parametrize("wanted", ["decimal(38, 30)", "decimal(20, 19)", "decimal(11, 10)", "decimal(9, 0)"])
def test_a_decimal_of_any_width_that_fits_is_taken(source, wanted):
    found = converted(pa.array([Decimal(1), None, Decimal(-7)], source), DataType.parse(wanted), "c")

    assert found.to_pylist() == [1, None, -7]


@example(int(HUGE), 0, (38, 18), None)
@given(NUMBERS, st.integers(-5, 38), TYPES, st.sampled_from([pa.decimal128(38, 0), pa.decimal256(76, 0), None]))
def test_a_decimal_of_another_scale_is_the_same_number_or_refused(units, scale, arguments, source):
    type = DataType.parse(f"decimal({arguments[0]}, {arguments[1]})")
    value = decimal(units, scale)
    if source is None:
        given = array_of([value], type, "c")
    else:
        given = pa.array([value], pa.decimal256(76, scale) if source.bit_width == 256 else pa.decimal128(38, scale))

    if fits(value, type):
        assert converted(given, type, "c").to_pylist() == [value]
    else:
        with pytest.raises(InvalidRows):
            converted(given, type, "c")


@example(int(HUGE), 0, (38, 18), "{}")
@example(2**128 + 1, 0, (38, 2), "{}")
@example(1, 77, (38, 2), "{:f}")
@given(NUMBERS, st.integers(-80, 80), TYPES, st.sampled_from(["{}", "{:f}", "{:e}", "+{}", "000{}", "{:f}00"]))
def test_the_text_of_a_decimal_is_that_number_or_refused_by_a_file_and_by_a_default(units, scale, arguments, form):
    type = DataType.parse(f"decimal({arguments[0]}, {arguments[1]})")
    text = form.format(decimal(abs(units), scale))
    value = Decimal(text)

    if fits(value, type):
        assert parse(pa.array([None, text]), "c", type).to_pylist() == [None, value]
        assert Decimal(Column("c", type, default=text).default) == value
    else:
        with pytest.raises(Misfit):
            parse(pa.array([None, text]), "c", type)
        with pytest.raises(InvalidSchema, match="has no value"):
            Column("c", type, default=text)


@pytest.mark.parametrize("text", ["1_0", "NaN", "inf", "٣", ".", "", "-", "1e", "1e5.0", "0x1", "1 0", "--1"])
def test_what_is_no_decimal_is_refused(text):
    type = DataType.parse("decimal(38, 2)")

    with pytest.raises(InvalidSchema):
        Column("c", type, default=text)
    if text:
        with pytest.raises(Misfit):
            parse(pa.array(["1e0", text]), "c", type)


DEFAULTS = """
import sys
from decimal import Decimal
import kolk
made = {"text": str, "decimal": Decimal}[sys.argv[1]](sys.argv[2])
try:
    kolk.Column("c", "decimal(38, 18)", default=made)
except kolk.errors.InvalidSchema as error:
    print("refused")
"""
FILE = """
import sys
import pyarrow as pa
from kolk.cli.parsing import Misfit, parse
from kolk.model.types import DataType
try:
    parse(pa.array(["1", sys.argv[2]]), "c", DataType.parse("decimal(38, 18)"))
except Misfit as misfit:
    print("refused" if misfit.place == 1 else misfit)
"""


@pytest.mark.parametrize(("source", "form"), [(DEFAULTS, "text"), (DEFAULTS, "decimal"), (FILE, "")])
@pytest.mark.parametrize("number", ["1E-1000000000", "1E1000000000"])
def test_a_huge_exponent_is_refused_at_once(source, form, number):
    done = subprocess.run(
        [sys.executable, "-c", source, form, number],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "refused\n", "")
