"""Time, injected: what a wall clock says, and how much time has passed, which are two different things.

Leases and sessions count on ``monotonic``, because a wall clock jumps; commit timestamps are read off
``now_ms``, because people compare them with their own clocks. What is kept for days, across restarts, has no other time
than that of the wall clock, so how old it is says a ``WatchedClock``.
"""

import time
from dataclasses import dataclass
from typing import Protocol

_HOUR_MS = 3_600 * 1_000
_JUMP_MS = _HOUR_MS / 2
"""By how much the two clocks may come apart. So nothing looks older than it is by more than an hour."""


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


@dataclass(frozen=True, slots=True)
class _Steady:
    """Since when the wall clock goes as time passes, and by how much it is ahead of the count of that."""

    since: float
    ahead_ms: float
    has_jumped: bool


class WatchedClock:
    """A clock that knows how far back its wall clock can be believed. A database has one, so that it sees every jump
    between two times that it writes down. Thread-safe: what it knows is one value, replaced whole.

    A wall clock that is put forward, as NTP does that of a board that starts in 1970, makes all that was written before
    look old at once. So nothing counts as old before as much time has passed since the last jump, too. (A machine that
    slept looks the same, and forgets later.) Nobody has watched across a restart, but a process that is restarted often
    never runs for days, and would keep everything for ever: so after a start the wall clock is believed in an hour.
    Whoever waits for the answer to a write has asked again by then.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        now = clock.monotonic()
        self._steady = _Steady(now, clock.now_ms() - now * 1_000, has_jumped=False)

    def now_ms(self) -> int:
        """See ``Clock``."""
        now_ms, now = self._clock.now_ms(), self._clock.monotonic()
        ahead_ms = now_ms - now * 1_000
        if abs(ahead_ms - self._steady.ahead_ms) > _JUMP_MS:
            self._steady = _Steady(now, ahead_ms, has_jumped=True)
        return now_ms

    def monotonic(self) -> float:
        """See ``Clock``."""
        return self._clock.monotonic()

    def has_passed(self, ms: float, since_ms: int) -> bool:
        """Whether a time on the wall clock is longer ago than this, and that can be believed."""
        if self.now_ms() - since_ms <= ms:
            return False
        steady = self._steady
        least_ms = ms if steady.has_jumped else min(ms, _HOUR_MS)
        return (self.monotonic() - steady.since) * 1_000 > least_ms


def pause(seconds: float) -> None:
    """Wait on the wall. Injected like a clock, into the few places that try again after a while."""
    time.sleep(seconds)
