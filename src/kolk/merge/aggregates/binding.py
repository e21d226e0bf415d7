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
from kolk.merge.aggregates.texts import ListAgg
from kolk.model.schema import Column, Schema

Builder = Callable[[Column, Schema, dict[str, Any]], Aggregator]

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
