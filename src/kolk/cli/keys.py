"""Keys as people type them: a plain value, ``a=1,b=2``, or a JSON object, read by the table's types."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from kolk.cli.parsing import DECODER, Misfit, parse_json
from kolk.errors import InvalidArgument
from kolk.model.schema import Schema


def key_table(keys: Sequence[str], schema: Schema) -> pa.Table:
    """The keys as rows of the key columns."""
    rows = [_key(text, schema.primary_key) for text in keys]
    arrays: list[pa.Array] = []
    for column in schema.key_columns:
        try:
            arrays.append(parse_json([row[column.name] for row in rows], column.name, column.type))
        except Misfit as misfit:
            raise InvalidArgument(f"key {keys[misfit.place]!r}: {misfit}") from None
    return pa.table(arrays, names=list(schema.primary_key))


def _key(text: str, names: Sequence[str]) -> dict[str, Any]:
    found = _object(text)
    if found is not None and set(found) == set(names):
        return found
    if len(names) == 1:
        # Whatever it looks like, it may be the value: there are keys with braces and equals signs.
        return {names[0]: text}
    # A comma ends a value only before the name of a key column: values may have commas too.
    alternatives = "|".join(map(re.escape, names))
    parts = [part.partition("=") for part in re.split(f",(?=(?:{alternatives})=)", text)]
    pairs = {name.strip(): value for name, _, value in parts}
    if found is not None or len(pairs) != len(parts) or set(pairs) != set(names):
        example = ",".join(f"{name}=..." for name in names)
        raise InvalidArgument(f"{text!r} is no key of this table; write {example}")
    return pairs


def _object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = DECODER.decode(text)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None
