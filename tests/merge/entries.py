"""What every aggregate function is tried on: the types of its columns, and what is given to them.

Whoever adds a function adds an entry; its laws are in ``test_aggregate_laws.py``, its plain twin in
``kolk.testing.aggregates``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from kolk.model.kinds import Kind
from kolk.model.schema import Column
from kolk.model.types import DataType
from kolk.testing.strategies import values_of

HELD_ELSEWHERE = {
    "array_agg", "collect", "top_n", "bottom_n", "histogram", "merge_map", "sum_map", "min_map", "max_map", "avg",
    "rbm32", "rbm64", "hll", "theta", "cpc", "kll",
}  # fmt: skip
"""In test_lists, test_maps, test_records, test_bitmaps and test_sketches, each beside its own oracle."""

INTEGERS = ("tinyint", "smallint", "int", "bigint")
DECIMALS = ("decimal(1, 0)", "decimal(4, 2)", "decimal(18, 9)", "decimal(19, 0)", "decimal(38, 0)", "decimal(38, 38)")
TIMES = (
    "date",
    *(f"time({digits})" for digits in (0, 3, 6, 9)),
    *(f"timestamp({digits})" for digits in range(10)),
    *(f"timestamp_ltz({digits})" for digits in (0, 3, 6, 9)),
)
TEXTS = ("char(1)", "char(7)", "string")
ORDERED = (*INTEGERS, *DECIMALS, "float", "double", *TEXTS, *TIMES)
OTHERS = ("boolean", "bytes", "binary(1)", "binary(7)", "array<int>", "map<int, string>", "row<x int, y array<double>>")
ANY = (*ORDERED, *OTHERS)
WIDTHS = ("binary(1)", "binary(7)")


def small(type: DataType) -> st.SearchStrategy[Any]:
    """Numbers of which some fit together, and those at the edge of what there is."""
    whole = st.integers(-3, 3)
    if type.is_floating:
        return st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]) | st.floats(-1e6, 1e6, width=32)
    if type.kind is Kind.DECIMAL:
        precision, scale = type.arguments
        most = 10**precision - 1
        units = st.integers(max(-3, -most), min(3, most)) | st.sampled_from([most, -most, most // 2, 0])
        return units.map(lambda each: Decimal((int(each < 0), tuple(map(int, str(abs(each)))), -scale)))
    bits = {Kind.TINYINT: 7, Kind.SMALLINT: 15, Kind.INT: 31, Kind.BIGINT: 63}[type.kind]
    return whole | st.sampled_from([2**bits - 1, -(2**bits), 2 ** (bits - 1), -(2 ** (bits - 1))])


def words(type: DataType) -> st.SearchStrategy[str]:
    """Texts with delimiters in them, empty ones, and those of several bytes a character."""
    longest = type.arguments[0] if type.arguments else 6
    return st.text(st.sampled_from("ab,|é\U00010000\0"), max_size=longest)


def few(type: DataType) -> st.SearchStrategy[Any]:
    """Values of which some are equal."""
    if type.is_floating:
        return small(type)
    return st.lists(values_of(type), min_size=1, max_size=3).flatmap(st.sampled_from) | values_of(type)


def _overflows(type: DataType) -> st.SearchStrategy[dict[str, str]]:
    if type.is_floating:
        return st.just({})
    modes = ["error", "saturate"] if type.kind is Kind.DECIMAL else ["error", "wrap", "saturate"]
    return st.sampled_from(modes).map(lambda mode: {"overflow": mode})


def _none(_: DataType) -> st.SearchStrategy[dict[str, str]]:
    return st.just({})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a function is tried on."""

    types: tuple[str, ...]
    values: Callable[[DataType], st.SearchStrategy[Any]] = few
    parameters: Callable[[DataType], st.SearchStrategy[dict[str, str]]] = _none
    by: tuple[str, ...] = ()
    """The types of a column that decides."""
    is_exact: Callable[[Column], bool] = lambda _: True
    """Whether neither order nor cuts matter; otherwise they nearly do not."""


def _is_exact_sum(column: Column) -> bool:
    return not column.type.is_floating


def _is_exact_product(column: Column) -> bool:
    return not column.type.is_floating and (column.type.kind is not Kind.DECIMAL or not column.type.arguments[1])


NUMBERS = (*INTEGERS, *DECIMALS, "float", "double")
ENTRIES = {
    "sum": Entry(types=NUMBERS, values=small, parameters=_overflows, is_exact=_is_exact_sum),
    "product": Entry(types=NUMBERS, values=small, parameters=_overflows, is_exact=_is_exact_product),
    "max": Entry(types=ORDERED),
    "min": Entry(types=ORDERED),
    "last_value": Entry(types=ANY),
    "last_value_ignore_nulls": Entry(types=ANY),
    "first_value": Entry(types=ANY),
    "first_value_ignore_nulls": Entry(types=ANY),
    "listagg": Entry(
        types=TEXTS,
        values=words,
        parameters=lambda _: st.fixed_dictionaries(
            {"delimiter": st.sampled_from([",", "|", "é", "; "]), "distinct": st.sampled_from(["true", "false"])}
        ),
    ),
    "bool_and": Entry(types=("boolean",)),
    "bool_or": Entry(types=("boolean",)),
    "bit_and": Entry(types=(*INTEGERS, *WIDTHS)),
    "bit_or": Entry(types=(*INTEGERS, *WIDTHS)),
    "bit_xor": Entry(types=(*INTEGERS, *WIDTHS)),
    "count": Entry(types=("bigint",), parameters=lambda _: st.sampled_from(ANY).map(lambda type: {"input": type})),
    "count_rows": Entry(types=("bigint",)),
    "max_by": Entry(types=ANY, by=ORDERED, parameters=lambda _: st.just({"by": "t"})),
    "min_by": Entry(types=ANY, by=ORDERED, parameters=lambda _: st.just({"by": "t"})),
}  # fmt: skip
