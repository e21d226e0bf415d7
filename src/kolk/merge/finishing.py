"""What people want to know of a state: the average of a sum and a count, a quantile of a histogram.

States are what is stored, because they can be merged; these functions are for whoever reads them. They take a column of
states, as a scan or a lookup gives it, and have one value for each; null for a null, and where nothing was counted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from kolk.codec.buffers import fixed_values, valid_mask
from kolk.errors import InvalidArgument
from kolk.model.nested import bits_of, list_bounds, row_fields

_DIGITS_MAX = 38
_MORE_DIGITS = 4
_LOW_WORD = 2**64 - 1


def avg_of(column: Any) -> pa.Array:
    """The averages of ``avg`` states: a decimal's with four more digits behind the point, as far as 38 digits allow,
    rounded half away from 0; any other's as double."""
    states = _array(column)
    if not pt.is_struct(states.type) or [field.name for field in states.type] != ["sum", "count"]:
        raise InvalidArgument(f"avg_of takes states of avg, rows of a sum and a count, not {states.type}")
    sums, counts = row_fields(states)
    counts = pc.if_else(pc.greater(counts, 0), counts, pa.scalar(None, counts.type))
    if not pt.is_decimal(sums.type):
        return pc.divide(sums.cast(pa.float64(), safe=False), counts.cast(pa.float64(), safe=False))
    return _decimal_averages(sums, counts)


def histogram_quantile(column: Any, bounds: Sequence[float], q: float) -> pa.Array:
    """The value below which the share ``q`` of what ``histogram`` states counted is, as double: an estimate.

    Values are taken to be spread evenly between bounds; below the first one from 0 on, if it is positive, else they
    are taken for it; those beyond the last one are taken for it.
    """
    states, edges, share = _array(column), _edges(bounds), share_of(q)
    counts = _counts(states, edges)
    totals = counts.cumsum(axis=1)
    rank = share * totals[:, -1:]
    # The place at which the rank is reached; an empty one holds no value.
    place = np.argmax((totals >= rank) & (counts > 0), axis=1)
    rows = np.arange(len(counts))
    count, reached = counts[rows, place], totals[rows, place]
    lowers, uppers = np.append(min(0.0, edges[0]), edges), np.append(edges, edges[-1])
    with np.errstate(invalid="ignore"):
        within = np.clip((rank[:, 0] - (reached - count)) / count, 0.0, 1.0)
    found = lowers[place] * (1 - within) + uppers[place] * within
    live = valid_mask(states)
    values, missing = np.zeros(len(states)), np.ones(len(states), np.bool_)
    values[live], missing[live] = found, totals[:, -1] == 0
    return pa.array(values, mask=missing)


def share_of(q: object) -> float:
    """A share as people give it, numpy's numbers too."""
    if not isinstance(q, int | float | np.integer | np.floating) or not 0 <= q <= 1:
        raise InvalidArgument(f"q is a share from 0 to 1, not {q!r}")
    return float(q)


def _decimal_averages(sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Quotients of whole numbers as Python has them: Arrow's of wide decimals are not exact, as of version 26."""
    precision = min(sums.type.precision + _MORE_DIGITS, _DIGITS_MAX)
    scale = sums.type.scale + precision - sums.type.precision
    missing = ~(valid_mask(sums) & valid_mask(counts))
    words = fixed_values(sums, np.dtype("V16")).view("<u8").reshape(-1, 2)
    units = (words[:, 1].astype(np.int64).astype(object) << 64) + words[:, 0].astype(object)
    units[missing] = 0
    divisors = counts.fill_null(1).to_numpy().astype(object)
    twice = abs(units) * (2 * 10 ** (precision - sums.type.precision)) + divisors  # the half that rounds up
    found = twice // (2 * divisors) * np.where(units < 0, -1, 1).astype(object)
    words = np.stack([(found & _LOW_WORD).astype(np.uint64), (found >> 64).astype(np.int64).view(np.uint64)], axis=1)
    bits = bits_of(~missing)
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(sums), [bits, pa.py_buffer(words)])


def _edges(bounds: Any) -> NDArray[np.float64]:
    try:
        edges = np.asarray(bounds, np.float64)
    except (TypeError, ValueError, OverflowError):
        edges = np.empty(0)
    if edges.ndim != 1 or not len(edges) or (np.diff(edges) <= 0).any() or not np.isfinite(edges).all():
        raise InvalidArgument("bounds are the numbers that the column was made with, ascending")
    return edges


def _counts(states: pa.Array, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The counts of the states that are not null, a row for each; those below zero count as none."""
    if not pt.is_list(states.type) or not pt.is_int64(states.type.value_type):
        raise InvalidArgument(f"histogram_quantile takes states of histogram, lists of counts, not {states.type}")
    starts, values = list_bounds(states)
    lengths = np.diff(starts)[valid_mask(states)]
    if (lengths != len(edges) + 1).any() or values.null_count:
        raise InvalidArgument(
            f"{len(edges)} bounds go with {len(edges) + 1} counts; these states are of a histogram with other bounds"
        )
    counts = fixed_values(values, np.dtype("i8")).reshape(-1, len(edges) + 1)
    return np.maximum(counts, 0).astype(np.float64)


def _array(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        raise InvalidArgument(f"a column is a pyarrow array, not a {type(column).__name__}")
    return column
