"""What can be asked of bitmaps and sketches: ``kolk.functions`` shows these functions, and says how they are called.

Each takes an Arrow array or chunked array (or one value, which stands for as many rows as the other argument has) and
returns an Arrow array; null in, null out. Bytes from anywhere are checked first: InvalidRows if they are not what they
should be.
"""

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from operator import and_, or_, sub, xor
from typing import Any

import numpy as np
import pyarrow as pa

from kolk.errors import InvalidArgument, TooLarge
from kolk.merge.aggregates.states import Codec, libraries
from kolk.merge.finishing import share_of

with libraries():
    from kolk.merge.aggregates import cpc, hll, kll, theta
    from kolk.merge.aggregates.bitmaps import Bitmaps32, Bitmaps64

VALUES_MAX = 2**27
"""How many integers one call takes out of bitmaps: they may hold more than there is memory for."""

States = Any
"""An Arrow array or chunked array of bytes, or bytes."""
Lists = Any
"""An Arrow array or chunked array of lists."""

_32, _64 = Bitmaps32(), Bitmaps64()
_BOUNDS = pa.struct([pa.field("lower", pa.float64()), pa.field("upper", pa.float64())])


# --- bitmaps of 32 bits, as rbm32 keeps them


def rb_build(lists: Lists) -> pa.Array:
    """The bitmap of each list of integers from 0 to 2^32 - 1; nulls within a list are passed over."""
    return _built(lists, _32)


def rb_cardinality(bitmaps: States) -> pa.Array:
    """How many integers each has."""
    return _each(lambda state: len(_32.read(state)), bitmaps, pa.int64())


def rb_contains(bitmaps: States, value: int) -> pa.Array:
    """Whether each has this integer."""
    wanted = _number("value", value, 0, 2**32 - 1)
    return _each(lambda state: wanted in _32.read(state), bitmaps, pa.bool_())


def rb_to_array(bitmaps: States) -> pa.Array:
    """The integers of each, ascending, as list<int64>. TooLarge if they are more than ``VALUES_MAX``."""
    return _lists([_or_none(_32.read, state) for state in _column(bitmaps).to_pylist()], pa.int64())


def rb_or(one: States, other: States) -> pa.Array:
    """What either has."""
    return _combined(_32, or_, one, other)


def rb_and(one: States, other: States) -> pa.Array:
    """What both have; an empty bitmap if that is nothing."""
    return _combined(_32, and_, one, other)


def rb_xor(one: States, other: States) -> pa.Array:
    """What one of them has and the other has not."""
    return _combined(_32, xor, one, other)


def rb_andnot(one: States, other: States) -> pa.Array:
    """What the first has and the second has not."""
    return _combined(_32, sub, one, other)


# --- bitmaps of 64 bits, as rbm64 keeps them


def rb64_build(lists: Lists) -> pa.Array:
    """The bitmap of each list of integers from 0 to 2^64 - 1; nulls within a list are passed over."""
    return _built(lists, _64)


def rb64_cardinality(bitmaps: States) -> pa.Array:
    """How many integers each has."""
    return _each(lambda state: len(_64.read(state)), bitmaps, pa.int64())


def rb64_contains(bitmaps: States, value: int) -> pa.Array:
    """Whether each has this integer."""
    wanted = _number("value", value, 0, 2**64 - 1)
    return _each(lambda state: wanted in _64.read(state), bitmaps, pa.bool_())


def rb64_to_array(bitmaps: States) -> pa.Array:
    """The integers of each, ascending, as list<uint64>. TooLarge if they are more than ``VALUES_MAX``."""
    return _lists([_or_none(_64.read, state) for state in _column(bitmaps).to_pylist()], pa.uint64())


def rb64_or(one: States, other: States) -> pa.Array:
    """What either has."""
    return _combined(_64, or_, one, other)


def rb64_and(one: States, other: States) -> pa.Array:
    """What both have; an empty bitmap if that is nothing."""
    return _combined(_64, and_, one, other)


def rb64_xor(one: States, other: States) -> pa.Array:
    """What one of them has and the other has not."""
    return _combined(_64, xor, one, other)


def rb64_andnot(one: States, other: States) -> pa.Array:
    """What the first has and the second has not."""
    return _combined(_64, sub, one, other)


# --- sketches of distinct values


def hll_build(lists: Lists, lg_k: int = 12) -> pa.Array:
    """The HLL sketch of each list of values; as a column of ``hll(lg_k = ...)`` keeps it."""
    return _built(lists, hll.Hll(_number("lg_k", lg_k, 4, 21)))


def hll_estimate(sketches: States) -> pa.Array:
    """About how many distinct values were put into each."""
    return _each(lambda state: hll.sketch_of(state).get_estimate(), sketches, pa.float64())


def hll_bounds(sketches: States, std_devs: int = 2) -> pa.Array:
    """Between which numbers that is, as struct<lower, upper>: 1, 2 or 3 standard deviations are 68, 95 or 99.7 %."""
    deviations = _number("std_devs", std_devs, 1, 3)

    def bounds(state: bytes) -> dict[str, float]:
        sketch = hll.sketch_of(state)
        return {"lower": sketch.get_lower_bound(deviations), "upper": sketch.get_upper_bound(deviations)}

    return _each(bounds, sketches, _BOUNDS)


def theta_build(lists: Lists, lg_k: int = 12) -> pa.Array:
    """The theta sketch of each list of values; as a column of ``theta(lg_k = ...)`` keeps it."""
    return _built(lists, theta.Theta(_number("lg_k", lg_k, 5, 26)))


def theta_estimate(sketches: States) -> pa.Array:
    """About how many distinct values were put into each."""
    return _each(lambda state: theta.sketch_of(state).get_estimate(), sketches, pa.float64())


def theta_union(one: States, other: States) -> pa.Array:
    """The sketch of what either was made of; nothing that they know is dropped."""
    return _pairs(lambda a, b: theta.write(theta.union([theta.read(a), theta.read(b)])), one, other)


def theta_intersect(one: States, other: States) -> pa.Array:
    """The sketch of what both were made of."""
    return _pairs(lambda a, b: theta.write(theta.intersection(theta.read(a), theta.read(b))), one, other)


def theta_anotb(one: States, other: States) -> pa.Array:
    """The sketch of what the first was made of and the second was not."""
    return _pairs(lambda a, b: theta.write(theta.difference(theta.read(a), theta.read(b))), one, other)


def cpc_build(lists: Lists, lg_k: int = 11) -> pa.Array:
    """The CPC sketch of each list of values; as a column of ``cpc(lg_k = ...)`` keeps it."""
    return _built(lists, cpc.Cpc(_number("lg_k", lg_k, 4, 26)))


def cpc_estimate(sketches: States) -> pa.Array:
    """About how many distinct values were put into each."""
    return _each(lambda state: cpc.sketch_of(state).get_estimate(), sketches, pa.float64())


# --- sketches of quantiles


def kll_build(lists: Lists, k: int = 200) -> pa.Array:
    """The KLL sketch of each list of numbers; as a column of ``kll(k = ...)`` keeps it."""
    return _built(lists, kll.Kll(_number("k", k, 8, 65_535)))


def kll_quantile(sketches: States, q: float | Sequence[float]) -> pa.Array:
    """About which number this share of them is not above, 0.5 the median; for several shares a list. Null of none."""
    several = q if isinstance(q, Iterable) and getattr(q, "ndim", 1) else None  # a number of numpy has no dimension
    shares = [share_of(q)] if several is None else [share_of(share) for share in several]

    def quantiles(state: bytes) -> list[float] | None:
        sketch = kll.sketch_of(state)
        return None if sketch.is_empty() else [sketch.get_quantile(share, True) for share in shares]

    found = _each(quantiles, sketches, pa.list_(pa.float64()))
    if several is not None:
        return found
    return pa.array([None if each is None else each[0] for each in found.to_pylist()], pa.float64())


def kll_rank(sketches: States, value: float) -> pa.Array:
    """About which share of the numbers is not above this one, from 0 to 1. Null of none."""
    try:
        wanted = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"value is a number, not {value!r}") from None

    def rank(state: bytes) -> float | None:
        sketch = kll.sketch_of(state)
        return None if sketch.is_empty() else sketch.get_rank(wanted, True)

    return _each(rank, sketches, pa.float64())


# --- columns


def _column(values: Any) -> pa.Array:
    if isinstance(values, bytes):
        return pa.array([values], pa.binary())
    if isinstance(values, pa.Scalar):
        values = pa.array([values.as_py()], values.type)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        raise InvalidArgument(f"give an Arrow array, not a {type(values).__name__}; pa.array(...) makes one")
    if pa.types.is_null(values.type):
        return values.cast(pa.binary())
    if not any(is_kind(values.type) for is_kind in (pa.types.is_binary, pa.types.is_large_binary)):
        raise InvalidArgument(f"give a column of bytes, not of {values.type}")
    return values


def _or_none(function: Callable[[bytes], Any], state: bytes | None) -> Any:
    return None if state is None else function(state)


def _each(function: Callable[[bytes], Any], states: States, type: pa.DataType) -> pa.Array:
    return pa.array([_or_none(function, state) for state in _column(states).to_pylist()], type)


def _pairs(function: Callable[[bytes, bytes], bytes], one: States, other: States) -> pa.Array:
    left, right = _column(one).to_pylist(), _column(other).to_pylist()
    if isinstance(one, bytes | pa.Scalar):
        left *= len(right)
    elif isinstance(other, bytes | pa.Scalar):
        right *= len(left)
    if len(left) != len(right):
        raise InvalidArgument(f"the columns have {len(left):,} and {len(right):,} rows; give as many of both")
    found = (None if a is None or b is None else function(a, b) for a, b in zip(left, right, strict=True))
    return pa.array(found, pa.binary())


def _combined(codec: Bitmaps32 | Bitmaps64, how: Callable[[Any, Any], Any], one: States, other: States) -> pa.Array:
    return _pairs(lambda a, b: codec.canonical(how(codec.read(a), codec.read(b))), one, other)


def _lists(bitmaps: Sequence[Any], type: pa.DataType) -> pa.Array:
    counts = [0 if bitmap is None else len(bitmap) for bitmap in bitmaps]
    if sum(counts) > VALUES_MAX:
        raise TooLarge(
            f"the bitmaps hold {sum(counts):,} integers, over {VALUES_MAX:,}; take them out of fewer at once"
        )
    parts = [np.asarray(bitmap.to_array(), type.to_pandas_dtype()) for bitmap in bitmaps if bitmap is not None]
    flat = np.concatenate(parts) if parts else np.zeros(0, type.to_pandas_dtype())
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    missing = pa.array([bitmap is None for bitmap in bitmaps], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, type), mask=missing)


def _built(lists: Lists, codec: Codec) -> pa.Array:
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.combine_chunks()
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not isinstance(lists, pa.Array) or not any(is_kind(lists.type) for is_kind in kinds):
        raise InvalidArgument("give an Arrow array of lists, such as pa.array([[1, 2], [3]])")
    found = (codec.build(codec.values(each.values.drop_null())) if each.is_valid else None for each in lists)
    return pa.array(found, pa.binary())


def _number(name: str, value: int, least: int, most: int) -> int:
    if not isinstance(value, Integral) or not least <= value <= most:
        raise InvalidArgument(f"{name} is a number from {least:,} to {most:,}, not {value!r}")
    return int(value)
