"""Arrow's values as Python has them, where it has them.

pyarrow itself raises for most that Python cannot hold, such as the year 0. But of the nanoseconds of a time of a day it
keeps no more than Python's microseconds, and says nothing.
"""

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from kolk.model.nested import list_bounds, row_fields

_FINE = pa.time64("ns")


def as_python(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values, maps as dicts; ValueError if Python has none for one of them."""
    for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
        _check_times(chunk)
    try:
        return array.to_pylist(maps_as_pydicts="strict")
    except (OverflowError, pa.ArrowException) as error:
        raise ValueError(str(error)) from error


def _check_times(array: pa.Array) -> None:
    if str(_FINE) not in str(array.type):
        return
    if array.type != _FINE:
        for part in row_fields(array) if pt.is_struct(array.type) else [list_bounds(array)[1]]:
            _check_times(part)
    elif (array.drop_null().cast(pa.int64()).to_numpy() % 1000).any():
        raise ValueError("a time of a day with nanoseconds")
