"""Decimals of another scale, and of text: the same number, or an error.

Arrow alone does not keep that promise, as of version 26. It multiplies modulo 2^128, and what has gone around may be in
range again; it reads more digits than it has room for in the same way; and an exponent far below zero ends the process.
"""

import re
from decimal import Context, Decimal, Inexact, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

_DIGITS_MAX = 38
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def rescaled(array: pa.Array, wanted: pa.Decimal128Type) -> pa.Array:
    """Decimals of any type as those of another; ArrowInvalid where it cannot hold them."""
    if array.type.bit_width < wanted.bit_width:  # to compare with: Arrow is wrong on the way back to so few bits
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    found = array.cast(wanted)
    more = wanted.scale - array.type.scale
    if more > 0 and array.type.precision + more > wanted.precision and not found.cast(array.type).equals(array):
        raise pa.ArrowInvalid(f"Decimal value does not fit in precision {wanted.precision}")
    return found


def read_decimals(texts: pa.Array, wanted: pa.Decimal128Type) -> pa.Array:
    """Numbers as people write them; ArrowInvalid or ValueError for what is none, or has no place in the type."""
    whole = wanted.precision - wanted.scale
    plain = rf"^[+-]?0*[0-9]{{0,{whole}}}(\.[0-9]{{0,{_DIGITS_MAX - whole}}})?$"
    if pc.all(pc.match_substring_regex(texts, plain)).as_py() is not False:
        return texts.cast(wanted)  # of so few digits it is exact
    unit, context = Decimal((0, (1,), -wanted.scale)), Context(prec=wanted.precision, traps=[Inexact, InvalidOperation])
    return pa.array([None if text is None else _read(text, unit, context) for text in texts.to_pylist()], wanted)


def _read(text: str, unit: Decimal, context: Context) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    try:
        return Decimal(text).quantize(unit, context=context)
    except ArithmeticError:
        raise ValueError(text) from None
