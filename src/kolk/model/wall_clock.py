"""Clocks on the wall: what they show in a time zone at a moment, and at which moments they show it.

Zones put their clocks back and forward, mostly by an hour at night, but also by half an hour, over midnight, or by a
whole day. So a clock may show a time twice, or never, and these functions say what that means. A moment is
milliseconds since 1970 in UTC; a *wall* is what a clock shows, as a datetime that says UTC only so that nobody converts
it. Clocks show the years 1 to 9999, and stand still before and after. Nothing here knows what time it is.
"""

import datetime
import difflib
import zoneinfo
from bisect import bisect_left
from datetime import UTC

from kolk.errors import InvalidSchema

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
_MS = datetime.timedelta(milliseconds=1)
_DAY = datetime.timedelta(days=1)
"""Every zone's difference from UTC is smaller."""
_FIRST = datetime.datetime.min.replace(tzinfo=UTC)
_LAST = datetime.datetime.max.replace(microsecond=999_000, tzinfo=UTC)
_NAME_LENGTH_MAX = 100
_NOT_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")
"""What lies among the zone files and differs by machine, or counts leap seconds."""


def zone_named(name: str) -> datetime.tzinfo:
    """The zone of an IANA name; UTC is there on machines without zone data as well."""
    if name == "UTC":
        return UTC
    try:
        if name.startswith(_NOT_ZONES):
            raise zoneinfo.ZoneInfoNotFoundError(name)
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        shown = name[:_NAME_LENGTH_MAX]
        raise InvalidSchema(f"no time zone is named {shown!r}; {_advice(shown)}") from None


def _advice(name: str) -> str:
    known = {zone.lower(): zone for zone in sorted(zoneinfo.available_timezones() - {*_NOT_ZONES})}
    if not known:
        return "this machine has no time zone data, so it knows UTC alone: install the Python package tzdata"
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean {known[near[0]]!r}?" if near else "use an IANA name such as 'Europe/Berlin' or 'UTC'"


def wall_at(zone: datetime.tzinfo, moment_ms: int) -> datetime.datetime:
    """What a clock shows at a moment."""
    near_ms = min(max(moment_ms, _ms(_FIRST + _DAY)), _ms(_LAST - _DAY))  # converting overflows at the very ends
    offset_ms = _offset_ms(_moment(near_ms).astimezone(zone))
    return _moment(min(max(moment_ms + offset_ms, _ms(_FIRST)), _ms(_LAST)))


def reached_ms(zone: datetime.tzinfo, wall: datetime.datetime) -> int:
    """The first moment at which a clock shows this, or more."""
    before, after = _shown_ms(zone, wall)
    if before <= after:
        return before
    return after + bisect_left(range(after, before), wall, key=lambda moment_ms: wall_at(zone, moment_ms))


def passed_ms(zone: datetime.tzinfo, wall: datetime.datetime) -> int:
    """The moment from which on a clock never again shows less than this."""
    before, after = _shown_ms(zone, wall)
    return after if before < after and wall_at(zone, after - 1) < wall else reached_ms(zone, wall)


def is_put_forward(zone: datetime.tzinfo, day: datetime.datetime) -> bool:
    """Whether clocks skip something between this midnight and the next."""
    before, after = (_offset_ms(wall.replace(tzinfo=zone, fold=1)) for wall in (day, min(day, _LAST - _DAY) + _DAY))
    return before < after


def _shown_ms(zone: datetime.tzinfo, wall: datetime.datetime) -> tuple[int, int]:
    """When a clock shows this, by the zone's offset before and after a change near by.

    The two differ around a change only: the second is later where the clock was put back and shows this twice, and
    earlier where it was put forward and never shows this.
    """
    before, after = (_ms(wall) - _offset_ms(wall.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    return before, after


def _offset_ms(local: datetime.datetime) -> int:
    offset = local.utcoffset()
    assert offset is not None, "every zone has an offset"
    return offset // _MS


def _ms(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // _MS


def _moment(ms: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=ms)
