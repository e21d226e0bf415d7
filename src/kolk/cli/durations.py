"""Moments and spans of time as people write them: ``30d``, ``-10m``, ``2026-11-15T12:00``."""

import datetime
import re

from kolk.cli.failures import Misuse

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def seconds_of(text: str) -> int:
    """How long ``30d`` is: a whole number of s, m, h, d or w."""
    match = re.fullmatch(r"([0-9]{1,9})\s*([smhdw])", text.strip())
    if match is None:
        raise Misuse(f"{text!r} is no duration; write a number and s, m, h, d or w, such as 30d")
    return int(match[1]) * _SECONDS[match[2]]


def moment_of(text: str, now_ms: int) -> datetime.datetime:
    """The moment of an ISO 8601 time, in this machine's zone if it names none, or so long ago: ``-10m``."""
    try:
        if text.startswith("-"):
            ago = datetime.timedelta(seconds=seconds_of(text[1:]))
            return datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC) - ago
        return datetime.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise Misuse(
            f"{text!r} is no place to start; write earliest, latest, offsets such as"
            """ '{"0": 12}', a time such as 2026-11-15T12:00 or 2026-11-15T12:00Z, or how long ago, such as -10m"""
        ) from None


def span(seconds: float, units: int = 2) -> str:
    """A length of time for people, in so many units: ``3 d 4 h``."""
    left, parts = int(seconds), list[str]()
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _SECONDS[unit])
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:units])


def from_now(seconds: float) -> str:
    """A moment so long after now, or before it if that is negative, as people tell it: ``in 6 d``, ``3 m ago``."""
    return f"in {span(seconds, units=1)}" if seconds > 0 else f"{span(-seconds, units=1)} ago"
