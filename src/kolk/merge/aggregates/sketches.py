"""What the sketches of DataSketches share: how a value is hashed, and how bytes of none are refused.

``hll``, ``theta``, ``cpc`` and ``kll`` each have a module. Their bytes are DataSketches' own, so that Java, C++, Spark,
Druid, Pinot and others read them and write them. The same value counts as the same there and here: integers and
booleans are hashed as 64-bit integers, floats and doubles as doubles, texts as their UTF-8 bytes; an empty text counts
for nothing, as everywhere in DataSketches. Bytes that are UTF-8 count as that text, which is what others make of bytes
too; other bytes cannot be given to the library, and count as a text of their own that only Kolk makes of them. Hashes
are made with DataSketches' default seed; a sketch of another is refused.

No byte from outside reaches the library before it was looked at: it was not made to read what was meant to harm it.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import datasketches
import pyarrow as pa

from kolk.errors import InvalidRows

LIBRARY: Any = datasketches  # which has no types
SEED_HASH = 0x93CC
"""What is stored of the default seed, 9001."""
_TYPES: Any = pa.types
_HASHED = (
    _TYPES.is_boolean,
    _TYPES.is_integer,
    _TYPES.is_floating,
    _TYPES.is_string,
    _TYPES.is_large_string,
    _TYPES.is_binary,
    _TYPES.is_large_binary,
    _TYPES.is_fixed_size_binary,
)


class Updatable(Protocol):
    """A sketch of the library that values are put into."""

    def update(self, value: Any) -> None:
        """Put one into it."""
        ...


def hashable(inputs: pa.Array) -> list[Any]:
    """Values as the library hashes them. There are no nulls among them."""
    if len(inputs) and not any(is_kind(inputs.type) for is_kind in _HASHED):
        raise InvalidRows(f"a sketch counts booleans, numbers, texts and bytes, not values of {inputs.type}")
    if pa.types.is_boolean(inputs.type):
        return inputs.cast(pa.int8()).to_pylist()
    values = inputs.to_pylist()
    return values if not values or not isinstance(values[0], bytes) else [_text(value) for value in values]


def put_all(sketch: Updatable, values: Iterable[Any]) -> None:
    """One by one: the library takes no arrays. Values that stand there twice are put in once."""
    update = sketch.update
    for value in dict.fromkeys(values):
        update(value)


def corrupt(name: str, reason: str) -> InvalidRows:
    """What is said of bytes that are no sketch, or not one for this column."""
    return InvalidRows(f"these bytes are not {name} sketch that can be put here: {reason}")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"\0bytes:{value.hex()}"
