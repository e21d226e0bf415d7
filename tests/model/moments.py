"""Moments as tests write them: an ISO time."""

from datetime import UTC, datetime


def moment(text: str) -> int:
    """The milliseconds of an ISO time, in UTC if it says no offset."""
    found = datetime.fromisoformat(text)
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)
