"""Values as text and as JSON, a column at a time.

One rule for all formats that are text, and `put` reads every one of them back as the same value:

===================  =====================================  =====================================
type                 JSON                                   CSV
===================  =====================================  =====================================
boolean              true, false                            true, false
integers             number, exact (64 bits)                the digits
float, double        number; "NaN", "Infinity", "-Infinity"  the same, without quotes
decimal              string: JSON readers would round it    the digits
string, char         string                                 quoted where needed
bytes, binary        string, base64                         base64
date, time           string, ISO 8601                       ISO 8601
timestamp            string, ISO 8601; with a Z for an      ISO 8601
                     instant (timestamp_ltz)
array, row           array, object                          the same as JSON text
map                  object, its names the keys as text     the same as JSON text
null                 null                                   nothing; an empty text is ""
===================  =====================================  =====================================
"""

import binascii
import math
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_ENCODER = msgspec.json.Encoder()


def json_lines(batch: pa.RecordBatch) -> bytes:
    """One JSON object per row, each with a line feed after it."""
    names = batch.schema.names
    columns = [json_values(column) for column in batch.columns]
    return _ENCODER.encode_lines([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])


def json_values(array: pa.Array) -> list[Any]:
    """The values of a column as what JSON has."""
    kind = array.type
    if pt.is_floating(kind):
        return [value if value is None or math.isfinite(value) else _unusual(value) for value in _floats(array)]
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_string(kind):
        return array.to_pylist()
    if pt.is_nested(kind):
        return _nested(array)
    return texts(array).to_pylist()


def texts(array: pa.Array) -> pa.Array:
    """The values of a column as text; nulls stay nulls."""
    kind = array.type
    if pt.is_string(kind):
        return array
    if pt.is_floating(kind):
        shown = [None if v is None else repr(v) if math.isfinite(v) else _unusual(v) for v in _floats(array)]
        return pa.array(shown, pa.string())
    if pt.is_decimal(kind):
        return pa.array([None if value is None else f"{value:f}" for value in array.to_pylist()], pa.string())
    if pt.is_binary(kind) or pt.is_fixed_size_binary(kind):
        encoded = [None if v is None else binascii.b2a_base64(v, newline=False).decode() for v in array.to_pylist()]
        return pa.array(encoded, pa.string())
    if pt.is_timestamp(kind):
        return pc.replace_substring(array.cast(pa.string()), " ", "T")
    if pt.is_nested(kind):
        encoded = [None if value is None else _ENCODER.encode(value).decode() for value in _nested(array)]
        return pa.array(encoded, pa.string())
    return array.cast(pa.string())


def csv_lines(batch: pa.RecordBatch) -> bytes:
    """One line per row. Only text that needs quotes has them, and an empty text has, which tells it from a null."""
    columns = [_quoted(texts(column)) if _needs_quotes(column.type) else texts(column) for column in batch.columns]
    lines = pc.binary_join_element_wise(*columns, ",", null_handling="replace", null_replacement="")
    return "".join(f"{line}\n" for line in lines.to_pylist()).encode()


def _needs_quotes(kind: pa.DataType) -> bool:
    """Whether a value may be empty or hold what CSV is made of."""
    return pt.is_string(kind) or pt.is_binary(kind) or pt.is_nested(kind)


def _quoted(array: pa.Array) -> pa.Array:
    needed = pc.match_substring_regex(array, '[",\r\n]|^$|^ | $')
    quotes = pa.scalar('"')
    return pc.if_else(
        needed, pc.binary_join_element_wise(quotes, pc.replace_substring(array, '"', '""'), quotes, ""), array
    )


def _nested(array: pa.Array) -> list[Any]:
    """Arrays, maps and rows, of members that are as JSON has them."""
    is_there = array.is_valid().to_pylist()
    if pt.is_struct(array.type):
        names = [field.name for field in array.type]
        members = [json_values(member) for member in array.flatten()]
        rows = zip(*members, strict=True)
        return [
            dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, is_there, strict=True)
        ]
    offsets = array.offsets.to_pylist()
    if pt.is_map(array.type):
        pairs = list(zip(texts(array.keys).to_pylist(), json_values(array.items), strict=True))
        return [dict(pairs[offsets[n] : offsets[n + 1]]) if there else None for n, there in enumerate(is_there)]
    items = json_values(array.values)
    return [items[offsets[n] : offsets[n + 1]] if there else None for n, there in enumerate(is_there)]


def _floats(array: pa.Array) -> list[float | None]:
    """A float32 as the shortest number that is read back as itself: 0.1, not 0.10000000149011612."""
    if pt.is_float64(array.type):
        return array.to_pylist()
    return [None if text is None else float(text) for text in array.cast(pa.string()).to_pylist()]


def _unusual(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
