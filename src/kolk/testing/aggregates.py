"""The aggregate functions one value at a time: what ``kolk.merge.aggregates`` should find for whole columns.

Plain Python over plain values, None for null; times may be numbers or Python's own. ``TableModel`` stands on it.
"""

import math
import struct
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from kolk.errors import AggregateOverflow
from kolk.model.kinds import Kind
from kolk.model.schema import Column

Step = tuple[bool, Any]
"""One thing that happens to a key: whether it is taken back, and the value."""

_EXACT = Context(prec=400)
_BITS = {Kind.TINYINT: 7, Kind.SMALLINT: 15, Kind.INT: 31, Kind.BIGINT: 63}
_NULL_IS_A_VALUE = ("last_value",)
_BY = ("max_by", "min_by")


def order(value: Any) -> Any:
    """What ``max`` and ``min`` compare: NaN is above every number, -0.0 below 0.0."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value))
    return value


def state_of(column: Column, values: Sequence[Any], deciders: Sequence[Any] = ()) -> Any:
    """The state of these inputs, in order."""
    return merged_state(column, [_lifted(column, value) for value in values], deciders)


def merged_state(column: Column, states: Sequence[Any], deciders: Sequence[Any] = ()) -> Any:
    """One state of several, in order; ``deciders`` are the values of the column that decides, if one does."""
    return fitted(column, _joined(column, states, deciders))


def state_after(
    column: Column, old: Any, steps: Sequence[Step], *, are_states: bool = False, is_new: bool = False
) -> Any:
    """A state after a put that takes something back: what comes is merged first, and only the end has to fit."""
    lift = (lambda _, state: state) if are_states else _lifted
    given = [lift(column, value) for is_taken, value in steps if not is_taken]
    state = _joined(column, given if is_new else [old, *given])
    if not any(is_taken for is_taken, _ in steps):
        return fitted(column, state)
    name = _name(column)
    if name in ("last_value", "last_value_ignore_nulls"):
        seen = [step for step in steps if step[1] is not None or name in _NULL_IS_A_VALUE]
        return None if seen and seen[-1][0] else state
    taken = _joined(column, [lift(column, value) for is_taken, value in steps if is_taken])
    if state is None or taken is None:
        return fitted(column, state)
    return fitted(column, _without(name, state, taken))


def fitted(column: Column, value: Any) -> Any:
    """A number as its column holds it; AggregateOverflow if it does not, unless the column says otherwise."""
    kind, limits = column.type.kind, _limits(column)
    if value is None or limits is None:
        return _fitted_text(column, value)
    if kind is Kind.DECIMAL:
        value = value.quantize(Decimal((0, (1,), -column.type.arguments[1])), ROUND_HALF_UP, _EXACT)
    least, most = limits
    overflow = "error" if column.agg is None else column.agg.get("overflow") or "error"
    if least <= value <= most:
        return value
    if overflow == "wrap":
        return (value - least) % (most - least + 1) + least
    if overflow == "saturate":
        return min(max(value, least), most)
    raise AggregateOverflow(f"{value} is no {column.type}")


def _fitted_text(column: Column, value: Any) -> Any:
    if column.type.kind is Kind.CHAR and value is not None and len(value) > column.type.arguments[0]:
        raise AggregateOverflow(f"{value!r} is no {column.type}")
    if column.type.kind is Kind.FLOAT and value is not None:
        try:
            return struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    return value


def _limits(column: Column) -> tuple[Any, Any] | None:
    if column.type.kind is Kind.DECIMAL:
        precision, scale = column.type.arguments
        most = Decimal((0, (9,) * precision, -scale))
        return most.copy_negate(), most
    bits = _BITS.get(column.type.kind)
    return None if bits is None else (-(2**bits), 2**bits - 1)


def _name(column: Column) -> str:
    assert column.function is not None
    return column.function.name


def _lifted(column: Column, value: Any) -> Any:
    """The state of one input."""
    match _name(column):
        case "count":
            return int(value is not None)
        case "count_rows":
            return 1
        case _:
            return value


def _joined(column: Column, states: Sequence[Any], deciders: Sequence[Any] = ()) -> Any:
    name = _name(column)
    if name in _BY:
        return _decided(name, states, deciders)
    if name in _NULL_IS_A_VALUE:
        return states[-1] if states else None
    join, found = _joiner(column), None
    for state in states:
        if state is None:
            continue
        # A text by itself is a list of one, which may have something twice.
        found = join(found, state) if found is not None else _alone(column, state)
    return found


def _alone(column: Column, state: Any) -> Any:
    assert column.agg is not None
    is_list = _name(column) == "listagg" and column.agg.get("distinct") == "true"
    return "".join(_distinct([state], _delimiter(column))) if is_list else state


def _decided(name: str, states: Sequence[Any], deciders: Sequence[Any]) -> Any:
    best: tuple[Any, Any] | None = None
    for state, by in zip(states, deciders, strict=True):
        if by is None:
            continue
        rank = order(by)
        if best is None or (rank >= best[0] if name == "max_by" else rank <= best[0]):
            best = rank, state
    return None if best is None else best[1]


def _joiner(column: Column) -> Callable[[Any, Any], Any]:
    delimiter = _delimiter(column)
    assert column.agg is not None
    is_distinct = column.agg.get("distinct") == "true"
    return {
        "sum": _plus,
        "count": _plus,
        "count_rows": _plus,
        "product": _times,
        "max": lambda left, right: right if order(left) < order(right) else left,
        "min": lambda left, right: right if order(right) < order(left) else left,
        "last_value_ignore_nulls": lambda _, right: right,
        "first_value": lambda left, _: left,
        "first_value_ignore_nulls": lambda left, _: left,
        "listagg": lambda left, right: (
            "".join(_distinct([left, right], delimiter)) if is_distinct else left + delimiter + right
        ),
        "bool_and": lambda left, right: left and right,
        "bool_or": lambda left, right: left or right,
        "bit_and": lambda left, right: _bitwise(left, right, int.__and__),
        "bit_or": lambda left, right: _bitwise(left, right, int.__or__),
        "bit_xor": lambda left, right: _bitwise(left, right, int.__xor__),
    }[_name(column)]


def _plus(left: Any, right: Any) -> Any:
    return _EXACT.add(left, right) if isinstance(left, Decimal) else left + right


def _times(left: Any, right: Any) -> Any:
    return _EXACT.multiply(left, right) if isinstance(left, Decimal) else left * right


def _without(name: str, state: Any, taken: Any) -> Any:
    if name == "bit_xor":
        return _bitwise(state, taken, int.__xor__)
    return _EXACT.subtract(state, taken) if isinstance(state, Decimal) else state - taken


def _bitwise(left: Any, right: Any, of: Callable[[int, int], int]) -> Any:
    if isinstance(left, bytes):
        return bytes(of(one, other) for one, other in zip(left, right, strict=True))
    return of(left, right)


def _delimiter(column: Column) -> str:
    assert column.agg is not None
    return column.agg.get("delimiter") or ","


def _distinct(texts: Sequence[str], delimiter: str) -> list[str]:
    parts = dict.fromkeys(part for text in texts for part in text.split(delimiter))
    return [piece for part in parts for piece in (delimiter, part)][1:]
