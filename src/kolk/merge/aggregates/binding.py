"""From the function that a column names to the code that computes it.

The libraries of bitmaps and sketches are imported when a column needs them, so that nobody else has to have them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kolk.merge.aggregates.aggregator import Aggregator
from kolk.merge.aggregates.arithmetic import Bits, Count, Product, Sum
from kolk.merge.aggregates.choosing import Chosen, ChosenBy, Extreme
from kolk.merge.aggregates.custom import custom_aggregator
from kolk.merge.aggregates.histograms import Histogram
from kolk.merge.aggregates.lists import Best, Collected
from kolk.merge.aggregates.maps import MapOf, MergeMap, SumMap
from kolk.merge.aggregates.records import Average
from kolk.merge.aggregates.states import Codec, States, libraries
from kolk.merge.aggregates.texts import ListAgg
from kolk.model.schema import Column, Schema

Builder = Callable[[Column, Schema, dict[str, Any]], Aggregator]


def _bitmap(column: Column, _: Schema, values: dict[str, Any]) -> Aggregator:
    assert column.function is not None
    with libraries():
        from kolk.merge.aggregates.bitmaps import Bitmaps32, Bitmaps64
    codec = Bitmaps32() if column.function.name == "rbm32" else Bitmaps64()
    return States(codec, takes_values=values["input"] is not None)


def _sketch(column: Column, _: Schema, values: dict[str, Any]) -> Aggregator:
    assert column.function is not None
    with libraries():
        from kolk.merge.aggregates.cpc import Cpc
        from kolk.merge.aggregates.hll import Hll
        from kolk.merge.aggregates.kll import Kll
        from kolk.merge.aggregates.theta import Theta
    kinds: dict[str, Callable[[], Codec]] = {
        "hll": lambda: Hll(values["lg_k"]),
        "theta": lambda: Theta(values["lg_k"]),
        "cpc": lambda: Cpc(values["lg_k"]),
        "kll": lambda: Kll(values["k"]),
    }
    return States(kinds[column.function.name](), takes_values=values["input"] is not None)


def _collected(column: Column, _: Schema, values: dict[str, Any]) -> Collected:
    takes_arrays = values["input"] == "array"
    return Collected(
        type=column.type,
        takes_arrays=takes_arrays,
        keeps_nulls=takes_arrays if values["nulls"] is None else values["nulls"] == "keep",
        distinct=values["distinct"],
        max_size=values["max_size"],
    )


def _extreme_of_map(column: Column, *, greatest: bool) -> MapOf:
    return MapOf(column.type, Extreme(column.type.fields[1].type, greatest))


def _best(column: Column, values: dict[str, Any], *, greatest: bool) -> Best:
    return Best(type=column.type, n=values["n"], greatest=greatest, distinct=values["distinct"])


_BUILDERS: dict[str, Builder] = {
    "sum": lambda column, _, values: Sum(column.type, values["overflow"]),
    "product": lambda column, _, values: Product(column.type, values["overflow"]),
    "max": lambda column, *_: Extreme(column.type, greatest=True),
    "min": lambda column, *_: Extreme(column.type, greatest=False),
    "last_value": lambda *_: Chosen(last=True, ignores_nulls=False),
    "last_value_ignore_nulls": lambda *_: Chosen(last=True, ignores_nulls=True),
    # A null that came first cannot be told from nothing at all, so both pass over nulls, as they do in Fluss.
    "first_value": lambda *_: Chosen(last=False, ignores_nulls=True),
    "first_value_ignore_nulls": lambda *_: Chosen(last=False, ignores_nulls=True),
    "listagg": lambda column, _, values: ListAgg(column.type, values["delimiter"], values["distinct"]),
    "bool_and": lambda column, *_: Bits(column.type, np.bitwise_and),
    "bool_or": lambda column, *_: Bits(column.type, np.bitwise_or),
    "bit_and": lambda column, *_: Bits(column.type, np.bitwise_and),
    "bit_or": lambda column, *_: Bits(column.type, np.bitwise_or),
    "bit_xor": lambda column, *_: Bits(column.type, np.bitwise_xor),
    "count": lambda *_: Count(),
    "count_rows": lambda *_: Count(rows=True),
    "rbm32": _bitmap,
    "rbm64": _bitmap,
    "hll": _sketch,
    "theta": _sketch,
    "cpc": _sketch,
    "kll": _sketch,
    "avg": lambda column, *_: Average(column.type),
    "array_agg": _collected,
    "collect": _collected,
    "merge_map": lambda column, *_: MergeMap(column.type),
    "sum_map": lambda column, _, values: SumMap(column.type, Sum(column.type.fields[1].type, values["overflow"])),
    "min_map": lambda column, *_: _extreme_of_map(column, greatest=False),
    "max_map": lambda column, *_: _extreme_of_map(column, greatest=True),
    "histogram": lambda column, _, values: Histogram(type=column.type, input=column.input, bounds=values["bounds"]),
    "top_n": lambda column, _, values: _best(column, values, greatest=True),
    "bottom_n": lambda column, _, values: _best(column, values, greatest=False),
    "max_by": lambda _, schema, values: ChosenBy(schema.column(values["by"]).type, greatest=True),
    "min_by": lambda _, schema, values: ChosenBy(schema.column(values["by"]).type, greatest=False),
}


def aggregator_of(column: Column, schema: Schema) -> Aggregator:
    """The function of a column, bound to it; UnknownAggregate if there is none of its name here."""
    assert column.agg is not None
    function = column.function
    assert function is not None
    if function.implementation is not None:
        column.check_function()
        return custom_aggregator(column, function)
    return _BUILDERS[function.name](column, schema, function.values_of(column.agg))
