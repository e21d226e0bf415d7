"""Spans of time as people write them, ``"7d"``, a number of seconds, a timedelta, and moments as they see them.

Text is a whole number and a unit, as Fluss writes its options, with or without a space between. Nothing here knows
what time it is.
"""

import datetime
import re

from kolk.errors import InvalidArgument
from kolk.model.shown import shown

_UNITS_MS = {"ms": 1, "s": 1_000, "sec": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHOWN = ("d", "h", "min", "s", "ms")
_TEXT = re.compile(rf"([0-9]{{1,15}})\s*({'|'.join(sorted(_UNITS_MS, key=len, reverse=True))})")
DURATION_MS_MAX = 10_000 * 365 * _UNITS_MS["d"]
Duration = str | float | datetime.timedelta
"""What stands for a span of time in an argument; a number is seconds."""


def milliseconds(text: str) -> int | None:
    """How long ``7d`` is; None if the text is no duration, or is one beyond all sense."""
    match = _TEXT.fullmatch(text.strip().lower())
    found = None if match is None else int(match[1]) * _UNITS_MS[match[2]]
    return None if found is None or found > DURATION_MS_MAX else found


def duration_text(ms: int) -> str:
    """The shortest text that ``milliseconds`` reads back."""
    unit = next(unit for unit in _SHOWN if ms % _UNITS_MS[unit] == 0)
    return f"{ms // _UNITS_MS[unit]}{unit}"


def seconds_of(given: object, what: str) -> float:
    """The seconds of an argument named ``what``."""
    seconds: float | None = None
    if isinstance(given, str):
        found = milliseconds(given)
        seconds = None if found is None else found / 1_000
    elif isinstance(given, datetime.timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, int | float) and not isinstance(given, bool):
        seconds = float(given) if 0 <= given <= DURATION_MS_MAX else None  # some integers fit into no float
    if seconds is None or not 0 <= seconds <= DURATION_MS_MAX / 1_000:
        raise InvalidArgument(f"{what} is a duration such as 5 (seconds), '10m' or a timedelta, not {shown(given)}")
    return seconds


def moment(ms: int) -> datetime.datetime:
    """A wall clock's milliseconds as people see them."""
    return datetime.datetime.fromtimestamp(ms / 1_000, datetime.UTC)
