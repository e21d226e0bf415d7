"""The machine's time zone, by name: what a table that is cut by time is in, unless it says otherwise.

It is looked up once, when such a table is made, and kept with the table: a folder that moves to another machine must
not get other days. What is no IANA name is passed over.
"""

import os
import zoneinfo
from collections.abc import Iterator
from pathlib import Path

FALLBACK = "UTC"
_LOCALTIME = Path("/etc/localtime")
_FOLDER = "zoneinfo"


def system_zone() -> str:
    """The name that ``TZ`` or the system's configuration gives; UTC if neither says one."""
    return next((name for name in _candidates() if _is_zone(name)), FALLBACK)


def _candidates() -> Iterator[str]:
    yield os.environ.get("TZ", "").lstrip(":")
    try:
        parts = _LOCALTIME.resolve(strict=True).parts
    except OSError:
        return
    if _FOLDER in parts:
        yield "/".join(parts[parts.index(_FOLDER) + 1 :])


def _is_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return False
    return True
