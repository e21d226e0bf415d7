"""Sums, products, counts, and bits: functions that make a new number of a group's numbers.

Integers and decimals are exact: what is computed is what the numbers say, and only the result has to fit its column. If
it does not, it is an error, or wraps around, or stops at the greatest or least value, as the column says. Floats are
IEEE's: NaN and infinity stay what they are. Nulls are passed over.
"""

from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kolk.codec.buffers import Mask, fixed_values, null_mask, slot_type, valid_mask
from kolk.errors import AggregateOverflow
from kolk.merge.aggregates.aggregator import SelfMerging, Subtracting, Unchecked
from kolk.merge.groups import Groups, fold, live, spread
from kolk.model.kinds import Kind
from kolk.model.types import DataType

_LOW_BITS, _LOW = 32, 0xFFFFFFFF
_DIGITS, _WIDE_DIGITS = 38, 76
_DIGITS_IN_32_BITS = 9
_ROOMY = Context(prec=4 * _WIDE_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)


@dataclass(frozen=True, slots=True)
class Sum(Subtracting, SelfMerging):
    """The sum of a group's numbers; null where all are."""

    type: DataType
    overflow: str = "error"

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Add them up."""
        if groups.are_single:
            return states
        if self.type.kind is Kind.DECIMAL:
            return narrowed(fold(groups, _decimal_sum, _widened(states)), self.type, self.overflow)
        missing = null_mask(states)
        values = fixed_values(states, np.dtype(slot_type(self.type)))
        if self.type.is_floating:
            # -0.0 is the number that changes nothing: 0.0 would make 0.0 of a sum of -0.0.
            wide = values.astype(np.float64) if missing is None else np.where(missing, -0.0, values).astype(np.float64)
            with np.errstate(all="ignore"):
                total = groups.reduce(np.add, wide).astype(values.dtype)
        else:
            total = _integer_sum(values if missing is None else np.where(missing, 0, values), groups, self)
        return as_array(total, self.type, None if missing is None else ~groups.any(~missing))

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """The difference; null stays null, and without anything to take back the state stays what it is."""
        if self.type.kind is Kind.DECIMAL:
            less = pc.subtract(_widened(states), _widened(removed))
            found = narrowed(less, self.type, self.overflow)
        else:
            slot = np.dtype(slot_type(self.type))
            left, right = fixed_values(pc.fill_null(states, 0), slot), fixed_values(pc.fill_null(removed, 0), slot)
            if self.type.is_floating:
                with np.errstate(all="ignore"):
                    found = as_array(left - right, self.type, None)
            else:
                found = as_array(_integer_difference(left, right, self), self.type, None)
        return pc.if_else(pc.and_(states.is_valid(), removed.is_valid()), found, states)

    @property
    def roomy(self) -> "Sum":
        """Sums of small integers in 64 bits, of all others that have limits in 38 digits."""
        if self.overflow == "wrap" or self.type.is_floating:
            return self
        if self.type.kind is Kind.DECIMAL:
            return replace(self, type=DataType(Kind.DECIMAL, (_DIGITS, self.type.arguments[1])))
        is_largest = self.type.kind is Kind.BIGINT
        return replace(self, type=DataType(Kind.DECIMAL, (_DIGITS, 0)) if is_largest else DataType(Kind.BIGINT))

    def fitted(self, states: pa.Array) -> pa.Array:
        """Sums of ``roomy`` as those of the column."""
        return narrowed(states, self.type, self.overflow)


@dataclass(frozen=True, slots=True)
class Product(SelfMerging):
    """The product of a group's numbers; null where all are. Decimals are rounded to their scale, half away from 0."""

    type: DataType
    overflow: str = "error"

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Multiply them."""
        if groups.are_single:
            return states
        if self.type.kind is Kind.DECIMAL:
            return self._decimals(states, groups)
        missing = null_mask(states)
        values = fixed_values(states, np.dtype(slot_type(self.type)))
        values = values if missing is None else np.where(missing, 1, values).astype(values.dtype)
        with np.errstate(all="ignore"):
            if self.type.is_floating:
                total = groups.reduce(np.multiply, values.astype(np.float64)).astype(values.dtype)
            else:
                total = self._integer_product(values.astype(np.int64), groups).astype(values.dtype)
        return as_array(total, self.type, None if missing is None else ~groups.any(~missing))

    def _integer_product(self, values: NDArray[np.int64], groups: Groups) -> NDArray[np.int64]:
        wrapped = groups.reduce(np.multiply, values)
        if self.overflow == "wrap":
            return wrapped
        about = groups.reduce(np.multiply, values.astype(np.float64))
        least, most = _range(self.type)
        # Floats say how large a product is within a millionth; only what is close to the edge is computed exactly.
        is_far = np.abs(about) < most * (1 - 1e-6)
        for place in np.flatnonzero(~is_far).tolist():
            exact = 1
            for value in values[groups.starts[place] : groups.ends[place]].tolist():
                exact *= value
                exact = max(min(exact, 1 << 200), -1 << 200) if value else 0
                if not exact:
                    break
            if not least <= exact <= most:
                if self.overflow == "error":
                    raise _does_not_fit("product", self.type)
                exact = most if exact > 0 else least
            wrapped[place] = exact
        return wrapped

    def _decimals(self, states: pa.Array, groups: Groups) -> pa.Array:
        """In pairs, where nothing on the way can be too large; one by one where it can, though the product may not."""
        precision, scale = self.type.arguments
        sizes = np.abs(pc.fill_null(states.cast(pa.float64()), 1).to_numpy())
        with np.errstate(over="ignore"):
            is_far = groups.reduce(np.multiply, np.maximum(sizes, 1)) < 10.0 ** (precision - scale) * (1 - 1e-6)
        if is_far.all():
            return fold(groups, self._decimal_product, states)
        rows = pa.array(np.repeat(is_far, groups.counts))
        some = fold(Groups.of_counts(groups.counts[is_far]), self._decimal_product, states.filter(rows))
        found = spread(some, is_far).to_pylist()
        for place in np.flatnonzero(~is_far).tolist():
            found[place] = self._exact(states[groups.starts[place] : groups.ends[place]].drop_null().to_pylist())
        return pa.array(found, self.type.arrow)

    def _exact(self, values: list[Decimal]) -> Decimal | None:
        """The product of some decimals, rounded once."""
        if not values:
            return None
        precision, scale = self.type.arguments
        most = Decimal((0, (9,) * precision, -scale))
        product = reduce(_ROOMY.multiply, values)
        if product.copy_abs() <= most + 1:
            product = product.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, _ROOMY)
        if product.copy_abs() <= most:
            return product
        if self.overflow == "error":
            raise _does_not_fit("product", self.type)
        return most.copy_sign(product)

    def _decimal_product(self, left: pa.Array, right: pa.Array) -> pa.Array:
        precision, scale = self.type.arguments
        if 2 * precision + 1 <= _WIDE_DIGITS:
            wide = pa.decimal256(precision, scale)
            exact = rounded(pc.multiply(left.cast(wide), right.cast(wide)), scale)
        else:
            exact = _largest_product(left, right, scale)
        found = narrowed(exact, self.type, self.overflow)
        return pc.if_else(left.is_null(), right, pc.if_else(right.is_null(), left, found))


@dataclass(frozen=True, slots=True)
class Count(Subtracting, Unchecked):
    """How many inputs are not null; or with ``rows`` how many there are."""

    rows: bool = False

    def accumulate(self, inputs: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Count them."""
        if self.rows or not inputs.null_count:
            return pa.array(groups.counts)
        valid = valid_mask(inputs)
        return pa.array(groups.reduce(np.add, valid.astype(np.int64)))

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Add the counts up."""
        return COUNTS.merge(states, groups)

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """The difference."""
        return COUNTS.remove(states, removed)


@dataclass(frozen=True, slots=True)
class Bits(Subtracting, SelfMerging):
    """All bits of a group's numbers, or of its bytes, by one of numpy's functions; booleans are one bit."""

    type: DataType
    ufunc: np.ufunc

    def merge(self, states: pa.Array, groups: Groups, by: pa.Array | None = None) -> pa.Array:
        """Combine them."""
        if groups.are_single:
            return states
        given, left, present = live(states, groups)
        slots = fixed_values(given, np.dtype(slot_type(self.type)))
        return spread(self._array(left.reduce(self.ufunc, self._numbers(slots))), present)

    def remove(self, states: pa.Array, removed: pa.Array) -> pa.Array:
        """Combined once more: only exclusive or can take back, and it is its own inverse."""
        count = len(states)
        both = pa.concat_arrays([states, removed]).take(pa.array(np.arange(2 * count).reshape(2, count).T.ravel()))
        found = self.merge(both, Groups(np.arange(0, 2 * count, 2), 2 * count))
        return pc.if_else(states.is_valid(), found, states)

    def _numbers(self, slots: NDArray[Any]) -> NDArray[Any]:
        if self.type.kind is not Kind.BINARY:
            return slots
        return np.frombuffer(slots.tobytes(), np.uint8).reshape(len(slots), self.type.arguments[0])

    def _array(self, numbers: NDArray[Any]) -> pa.Array:
        if self.type.kind is Kind.BINARY:
            data = pa.py_buffer(np.ascontiguousarray(numbers))
            return pa.Array.from_buffers(self.type.arrow, len(numbers), [None, data])
        return as_array(numbers, self.type, None)


def as_array(values: NDArray[Any], type: DataType, missing: Mask | None) -> pa.Array:
    """Numbers of a column's slots as an array of its type; with nulls, where they are missing."""
    if type.kind is Kind.BOOLEAN:
        return pa.array(values.astype(np.bool_), mask=missing)
    return pa.array(values, type.arrow, mask=missing, from_pandas=False)


def rounded(values: pa.Array, scale: int) -> pa.Array:
    """Decimals of 75 digits at most, with so many behind the point; what is left of them is rounded half away from 0.

    Arrow 26 divides decimals of 256 bits wrongly, by one, if the divisor has more than 32 bits: that takes ``round``
    away, and is why digits are cut off a few at a time.
    """
    if values.type.scale <= scale:
        return values
    half = pa.scalar(Decimal((0, (5,), -scale - 1)), pa.decimal256(scale + 1, scale + 1))
    is_negative = pc.less(values, pa.scalar(Decimal(0), values.type))
    values = pc.add(values, pc.if_else(is_negative, pc.negate(half), half))
    while values.type.scale > scale:
        fewer = max(scale, values.type.scale - _DIGITS_IN_32_BITS)
        values = values.cast(pa.decimal256(_WIDE_DIGITS, fewer), safe=False)
    return values


def narrowed(values: pa.Array, type: DataType, overflow: str) -> pa.Array:
    """Numbers of more digits as those of a column; AggregateOverflow if they do not fit, unless they may saturate."""
    try:
        return values.cast(type.arrow)
    except pa.ArrowInvalid:
        if overflow == "error":
            raise _does_not_fit("result", type) from None
    if type.kind is Kind.DECIMAL:
        most = Decimal((0, (9,) * type.arguments[0], -type.arguments[1]))
        limits = (most.copy_negate(), most)  # a minus would round
    else:
        limits = _range(type)
    least, most = (pa.scalar(limit, values.type) for limit in limits)
    return pc.min_element_wise(pc.max_element_wise(values, least, skip_nulls=False), most, skip_nulls=False).cast(
        type.arrow
    )


def _does_not_fit(what: str, type: DataType) -> AggregateOverflow:
    return AggregateOverflow(
        f"the {what} does not fit a {type.shown}; nothing was written. Widen the column"
        " (ALTER TABLE ... ALTER COLUMN ... TYPE ...), or make it with overflow = wrap or saturate"
    )


def _range(type: DataType) -> tuple[int, int]:
    found = np.iinfo(slot_type(type))
    return int(found.min), int(found.max)


def _integer_sum(values: NDArray[Any], groups: Groups, function: Sum) -> NDArray[Any]:
    """Exact sums: in 64 bits if they cannot overflow there, else the upper and lower halves by themselves."""
    least, most = _range(function.type)
    wide = values.astype(np.int64)
    size = int(np.abs(wide.astype(np.float64)).max(initial=0.0)) * int(groups.counts.max(initial=0))
    if function.overflow == "wrap" or size < 2**62:
        total = groups.reduce(np.add, wide)
        if function.overflow != "wrap":
            _check_range(total, least, most, function)
            total = np.clip(total, least, most)
        return total.astype(values.dtype)
    high, low = groups.reduce(np.add, wide >> _LOW_BITS), groups.reduce(np.add, wide & _LOW)
    return _joined(high, low, function)


def _integer_difference(left: NDArray[Any], right: NDArray[Any], function: Sum) -> NDArray[Any]:
    wide, less = left.astype(np.int64), right.astype(np.int64)
    if function.overflow == "wrap":
        return (wide - less).astype(left.dtype)
    high, low = (wide >> _LOW_BITS) - (less >> _LOW_BITS), (wide & _LOW) - (less & _LOW)
    return _joined(high, low, function).astype(left.dtype)


def _joined(high: NDArray[np.int64], low: NDArray[np.int64], function: Sum) -> NDArray[Any]:
    """The sums of upper and lower halves as whole numbers, which must fit their type."""
    high, low = high + (low >> _LOW_BITS), low & _LOW
    edge = 1 << (63 - _LOW_BITS)
    above, below = high >= edge, high < -edge
    if above.any() or below.any():
        if function.overflow == "error":
            raise _does_not_fit("sum", function.type)
        least, most = _range(function.type)
        total = (np.clip(high, -edge, edge - 1) << _LOW_BITS) | low
        return np.where(above, most, np.where(below, least, np.clip(total, least, most)))
    total = (high << _LOW_BITS) | low
    least, most = _range(function.type)
    _check_range(total, least, most, function)
    return np.clip(total, least, most)


def _check_range(total: NDArray[np.int64], least: int, most: int, function: Sum) -> None:
    if function.overflow == "error" and len(total) and (int(total.min()) < least or int(total.max()) > most):
        raise _does_not_fit("sum", function.type)


def _widened(values: pa.Array) -> pa.Array:
    return values.cast(pa.decimal256(38, values.type.scale))


def _largest_product(left: pa.Array, right: pa.Array, scale: int) -> pa.Array:
    """Products of decimals of 38 digits, which Arrow has no type for; one by one."""
    exact, step = Context(prec=2 * _WIDE_DIGITS), Decimal((0, (1,), -scale))
    most = Decimal((0, (9,) * _WIDE_DIGITS, -scale))
    found: list[Decimal | None] = []
    for one, other in zip(left.to_pylist(), right.to_pylist(), strict=True):
        both = None if one is None or other is None else exact.multiply(one, other)
        found.append(None if both is None else max(-most, min(most, both.quantize(step, ROUND_HALF_UP, exact))))
    return pa.array(found, pa.decimal256(_WIDE_DIGITS, scale))


def _decimal_sum(left: pa.Array, right: pa.Array) -> pa.Array:
    total = pc.add(left, right)
    return pc.if_else(left.is_null(), right.cast(total.type), pc.if_else(right.is_null(), left.cast(total.type), total))


COUNTS = Sum(DataType(Kind.BIGINT))
"""How counts are added up."""
