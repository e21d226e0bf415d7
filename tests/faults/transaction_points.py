"""The points at which a process can die in a transaction: which steps it has, and how often each is reached."""

from typing import Any

import pytest
from tests.faults.campaign import IS_FULL

from kolk.testing.faults import Step

Steps = dict[Step, tuple[int, list[int]]]
"""How often each step is reached, and at which of these times a process dies, unless at all of them."""

# Of each of the two tables a file: the magic bytes, the head, two batches and the seal.
STAGING: Steps = {
    Step.BEFORE_STAGE: (10, [3]),
    Step.HALF_STAGE: (10, [4]),
    Step.AFTER_STAGE: (10, [5]),
    Step.BEFORE_SEAL: (2, [1]),
    Step.AFTER_SEAL: (2, [2]),
    Step.BEFORE_RECORD: (1, [1]),
}
# Six buckets, each with two frames, which are synced together. The first watermark is that of the commit's number.
COMMITTING: Steps = {
    Step.AFTER_RECORD: (2, [1, 2]),
    Step.BEFORE_WATERMARK: (7, [1]),
    Step.AFTER_WATERMARK: (7, [2]),
    Step.BEFORE_APPEND: (12, [3]),
    Step.HALF_APPEND: (12, [1, 2]),
    Step.AFTER_APPEND: (12, [1, 12]),
    Step.BEFORE_SYNC: (6, [4]),
    Step.AFTER_SYNC: (6, [1]),
    Step.BEFORE_APPLY: (6, [4]),
    Step.AFTER_APPLY: (6, [3]),
    Step.BEFORE_UNSTAGE: (2, [1]),
    Step.AFTER_UNSTAGE: (2, [1]),
}


def points(steps: Steps) -> list[tuple[Step, int]]:
    """With KOLK_FULL=1 every time that a step is reached."""
    return [
        (step, occurrence)
        for step, (count, some) in steps.items()
        for occurrence in (range(1, count + 1) if IS_FULL else some)
    ]


def named(points: list[tuple[Step, int]]) -> Any:
    return pytest.mark.parametrize(("step", "occurrence"), points, ids=lambda part: getattr(part, "value", part))
