"""Where changes begin or end, as the options ``start`` and ``stop`` say it: a word, a moment, or offsets of buckets.

Batches and streams read it by the same function, so that what one of them understands the other does too. It only
reads: whether a table has such a bucket, and its log such an offset, finds out who has the table.
"""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kolk.errors import InvalidArgument

FULL, EARLIEST, LATEST = "full", "earliest", "latest"
_LIKE = '{"0": 17}'


@dataclass(frozen=True, slots=True)
class Moment:
    """The first change that was committed then or later."""

    ms: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """The place in each bucket's log, as ``scan.offsets`` has them."""

    by_bucket: Mapping[str, int]


Place = str | Moment | Offsets
"""A word is one of those that were allowed."""


def place_of(option: str, text: str, words: tuple[str, ...]) -> Place:
    """What an option says, which may be one of these words."""
    text = text.strip()
    if text.lower() in words:
        return text.lower()
    return _offsets(option, text) if text.startswith("{") else _moment(option, text, words)


def _offsets(option: str, text: str) -> Offsets:
    """Offsets by bucket, or all that a query keeps in its checkpoint, of which they are a part."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _no_offsets(option, text, str(error)) from None
    given: Any = found.get("log", found)
    if not isinstance(given, dict) or not all(type(offset) is int and offset >= 0 for offset in given.values()):
        raise _no_offsets(option, text, "each is a whole number")
    return Offsets(given)


def _no_offsets(option: str, text: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{option} is offsets by bucket as JSON, such as {_LIKE}, not {text[:100]!r} ({why})")


def _moment(option: str, text: str, words: tuple[str, ...]) -> Moment:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{option} is {', '.join(words)}, a time such as 2026-11-15T08:00:00Z, or offsets such as {_LIKE}, not"
            f" {text[:100]!r}"
        ) from None
    if found.tzinfo is None:
        raise InvalidArgument(f"the time of {option} needs a time zone: {text}Z, or {text}+05:30")
    return Moment(int(found.timestamp() * 1_000))
