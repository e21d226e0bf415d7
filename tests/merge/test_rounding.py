"""Decimals of more digits than a column's, rounded to it."""

from decimal import ROUND_HALF_UP, Decimal, localcontext

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kolk.merge.aggregates.arithmetic import Product, rounded
from kolk.merge.groups import Groups
from kolk.model.types import DataType

nines = st.tuples(st.integers(1, 70), st.integers(0, 4)).map(lambda lengths: int("9" * lengths[0] + "5" * lengths[1]))
halves = st.tuples(st.integers(0, 40), st.integers(0, 30)).map(
    lambda lengths: (10 ** lengths[0] * 10 - 5) * 10 ** lengths[1]
)


@given(st.integers(0, 40), st.integers(0, 40), st.lists(st.integers(-(10**75) + 1, 10**75 - 1) | nines | halves))
def test_decimals_are_rounded_half_away_from_zero_however_many_digits_they_have(scale, wanted, units):
    with localcontext(prec=120):
        values = [sign * Decimal(each).scaleb(-scale) for each in units for sign in (1, -1)]
        step = Decimal(1).scaleb(-min(wanted, scale))
        expected = [value.quantize(step, ROUND_HALF_UP) for value in values]

    assert rounded(pa.array(values, pa.decimal256(75, scale)), wanted).to_pylist() == expected


def test_a_product_of_large_decimals_is_rounded_rightly():
    type = DataType.parse("decimal(37, 14)")
    factors = [Decimal("9999999999999999999999.99999999999999"), Decimal("0.01")]

    (found,) = Product(type).merge(pa.array(factors, type.arrow), Groups(np.array([0]), 2)).to_pylist()

    assert found == Decimal("100000000000000000000.00000000000000")
