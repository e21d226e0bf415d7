"""The points at which an owner, or its server, can die: which steps each action has, and how often."""

from collections.abc import Sequence
from typing import Any

import pytest

from kolk.testing.faults import Step

RECORDS = (Step.BEFORE_RECORD, Step.AFTER_RECORD)
FRAMES = (
    Step.BEFORE_APPEND, Step.HALF_APPEND, Step.AFTER_APPEND, Step.BEFORE_SYNC, Step.AFTER_SYNC, Step.BEFORE_WATERMARK,
    Step.AFTER_WATERMARK, Step.BEFORE_APPLY, Step.AFTER_APPLY,
)  # fmt: skip
# How many records and frames each action writes. A bucket is undone with the rows that come back, with those that
# go, if there are any, and with a mark.
WRITES = {
    "recover": (2, 9),
    "change columns": (2, 9),
    "resume": (3, 7),
    "evict": (5, 9),
    "write": (0, 6),
    "commit": (1, 0),
    "rest": (2, 8),
    "release": (3, 8),
    "work together": (2, 12),
    "begin tasks": (3, 0),
    "try tasks again": (2, 11),
    "seal tasks": (0, 3),
    "commit tasks": (1, 2),
}
Point = tuple[str, Step, int]


def points(action: str, frames: Sequence[Step] = FRAMES) -> list[Point]:
    """Every time that an action comes to a step of a record, or to one of these steps of a frame."""
    return [
        (action, step, occurrence)
        for steps, count in zip((RECORDS, frames), WRITES[action], strict=True)
        for step in steps
        for occurrence in range(1, count + 1)
    ]


def named(points: Sequence[Point]) -> Any:
    """A test for each of them."""
    return pytest.mark.parametrize(
        ("action", "step", "occurrence"), points, ids=lambda part: str(getattr(part, "value", part)).replace(" ", "-")
    )
