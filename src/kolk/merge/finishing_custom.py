"""What readers make of the states of users' functions: their ``finish``, over the columns of a table or a batch.

States stay as they are in the store, because they have to be merged further; to finish them is for those who read.
Columns of Kolk's own functions, and of functions without ``finish``, are left alone.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import pyarrow as pa

from kolk.errors import InvalidArgument, InvalidRows
from kolk.merge.aggregates.custom import explained, python_values
from kolk.model.conversion import array_of, converted
from kolk.model.functions import Function
from kolk.model.schema import Column, Schema, data_type

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def finished(rows: Rows, schema: Schema) -> Rows:
    """The rows with the finished values of every column whose function has a ``finish``; nulls stay null.

    A column is of the type that the function names as ``output``, or else of what Arrow makes of the values.
    UnknownAggregate if the schema has a function that is not registered here.
    """
    if not isinstance(rows, pa.Table | pa.RecordBatch) or not isinstance(schema, Schema):
        raise InvalidArgument("finished takes an Arrow table or batch, and the schema of the table that it is of")
    schema.check_known()
    for name in rows.schema.names:
        column = schema.column(name) if name in schema.names else None
        function = None if column is None else column.function
        if column is None or function is None or not hasattr(function.implementation, "finish"):
            continue
        given: Any = rows.column(name)
        states = given if isinstance(rows, pa.RecordBatch) else given.combine_chunks()
        values = _finished(python_values(states, name), function, column)
        rows = rows.set_column(rows.schema.get_field_index(name), name, _array(values, function, column))
    return rows


def _finished(states: Sequence[Any], function: Function, column: Column) -> list[Any]:
    with explained(function.name, column.name, "finish"):
        return [None if state is None else function.implementation.finish(state) for state in states]


def _array(values: Sequence[Any], function: Function, column: Column) -> pa.Array:
    wanted = getattr(function.implementation, "output", None)
    if wanted is not None:
        type = data_type(wanted)
        return converted(array_of(values, type, column.name), type, column.name)
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRows(
            f"what the aggregate function {function.name!r} made of the column {column.name!r} has no Arrow type:"
            f" {error}; name one as its output"
        ) from error
