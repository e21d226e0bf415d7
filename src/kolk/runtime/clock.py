"""Time, injected: what a wall clock says, and how much time has passed, which are two different things.

Leases and sessions count on ``monotonic``, because a wall clock jumps; commit timestamps are read off
``now_ms``, because people compare them with their own clocks.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. Thread-safe."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC. It may jump, also back."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. It never goes back."""
        ...


class SystemClock:
    """The machine's clocks. Thread-safe."""

    def now_ms(self) -> int:
        """See ``Clock``."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """See ``Clock``."""
        return time.monotonic()


def pause(seconds: float) -> None:
    """Wait on the wall. Injected like a clock, into the few places that try again after a while."""
    time.sleep(seconds)
