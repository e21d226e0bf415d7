"""What people say to select rows, text or a dict, as a predicate for a table.

A dict names columns and what they equal: a value, several of which any will do, or None for null. All of it must hold.
Values become the column's type by the rules of ``put``: exactly, or not at all.
"""

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import pyarrow as pa

from kolk.errors import InvalidArgument, InvalidInput
from kolk.model.conversion import array_of, converted
from kolk.model.names import no_column
from kolk.model.predicate import Predicate
from kolk.model.schema import Column, Schema
from kolk.model.terms import IsNull, Node, all_of, matching
from kolk.model.where import VALUES_MAX

Where = str | Mapping[str, Any]
_SEVERAL = (list, tuple, Set, np.ndarray, pa.Array, pa.ChunkedArray)


def predicate_of(where: Where | None, schema: Schema) -> Predicate | None:
    """The predicate that is meant; None for every row."""
    if where is None:
        return None
    if isinstance(where, Mapping):
        return Predicate(all_of([_term(name, value, schema) for name, value in where.items()]))
    if not isinstance(where, str):
        raise InvalidArgument(f"where is text or a dict of columns and their values, not a {type(where).__name__}")
    return Predicate.parse(where, schema)


def _term(name: object, value: Any, schema: Schema) -> Node:
    if name not in schema.names:
        raise InvalidArgument(no_column(name, schema.names))
    column = schema.column(str(name))
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]  # numpy's own form of one value
    if value is None:
        return IsNull(column.name, column.type)
    if column.type.is_nested:
        raise InvalidArgument(f"the column {name!r} is a {column.type.shown}; where can only ask whether it is null")
    values = list(value) if isinstance(value, _SEVERAL) else [value]
    if len(values) > VALUES_MAX:
        raise InvalidArgument(f"where takes at most {VALUES_MAX:,} values of {name!r}, not {len(values):,}")
    return matching(column, _array(values, column))


def _array(values: list[Any], column: Column) -> pa.Array:
    try:
        return converted(array_of(values, column.type, column.name), column.type, column.name)
    except InvalidInput as error:
        raise InvalidArgument(str(error)) from error
