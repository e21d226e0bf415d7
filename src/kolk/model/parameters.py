"""The parameters of aggregate functions: what each may be, and its canonical text.

A parameter is kept as text wherever it is stored; ``read`` turns the text into a value, or says what it should be.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kolk.errors import InvalidInput, InvalidSchema
from kolk.model.types import DataType

BOUNDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. ``read`` raises ValueError for a text that it is not; ``says`` is what it should have been."""

    name: str
    read: Callable[[str], Any]
    says: str
    default: str | None = None
    required: bool = False

    def value(self, text: str | None) -> Any:
        """The value of a text, of the default without one, None without either."""
        text = self.default if text is None else text
        return None if text is None else self.read(text)

    def checked(self, text: str) -> str:
        """The text as it is kept; InvalidSchema, saying what it should be."""
        try:
            value = self.read(text)
        except (ValueError, InvalidInput) as error:
            detail = f": {error}" if isinstance(error, InvalidInput) else ""
            raise InvalidSchema(f"its parameter {self.name} is {self.says}, not {text[:60]!r}{detail}") from None
        return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else text


def choice(name: str, *words: str) -> Parameter:
    """One of some words, the first of them by default."""

    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return Parameter(name, read, f"one of {', '.join(words)}", default=words[0])


def flag(name: str) -> Parameter:
    """true or false, which is the default."""

    def read(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"

    return Parameter(name, read, "one of true, false", default="false")


def number(name: str, least: int, most: int, default: int | None = None, *, required: bool = False) -> Parameter:
    """A whole number of a range."""

    def read(text: str) -> int:
        if len(text) > 9 or not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    says = f"a number from {least:,} to {most:,}"
    return Parameter(name, read, says, default=None if default is None else str(default), required=required)


def words(name: str, default: str) -> Parameter:
    """Any text but the empty one."""

    def read(text: str) -> str:
        if not text:
            raise ValueError(text)
        return text

    return Parameter(name, read, "a text of one character at least", default=default)


def column(name: str) -> Parameter:
    """The name of another column of the table, which is there; whether it will do, the schema says."""
    return Parameter(name, str, "the name of a column", required=True)


def type_of_input(*allowed: str) -> Parameter:
    """The type of the values that are given, if it is not the column's own; of these kinds, if any are named."""

    def read(text: str) -> DataType:
        type = DataType.parse(text)
        if allowed and type.kind.value not in allowed:
            raise ValueError(text)
        return type

    says = f"a type, one of {', '.join(allowed)}" if allowed else "a type, such as string"
    return Parameter("input", read, says)


def numbers(name: str) -> Parameter:
    """Numbers in ascending order."""

    def read(text: str) -> tuple[float, ...]:
        found = tuple(float(each) for each in text.split(","))
        if not all(map(math.isfinite, found)) or not 1 <= len(found) <= BOUNDS_MAX:
            raise ValueError(text)
        if any(right <= left for left, right in pairwise(found)):
            raise ValueError(text)
        return found

    return Parameter(name, read, f"1 to {BOUNDS_MAX:,} numbers in ascending order, such as '1, 10, 100'", required=True)
