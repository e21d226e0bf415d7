"""A clock that moves when told to: no test of Kolk, or of its users, needs to sleep."""

_START_MS = 1_700_000_000_000


class ManualClock:
    """A ``Clock`` that stands still until it is moved. For one thread to move and any to read."""

    def __init__(self, now_ms: int = _START_MS) -> None:
        self._now_us = now_ms * 1_000
        self._passed_us = 0

    def now_ms(self) -> int:
        """What the wall clock says."""
        return self._now_us // 1_000

    def monotonic(self) -> float:
        """The seconds that were advanced so far."""
        return self._passed_us / 1_000_000

    def advance(self, *, ms: float = 0, seconds: float = 0) -> None:
        """Let time pass, on both clocks."""
        passed_us = round(ms * 1_000 + seconds * 1_000_000)
        assert passed_us >= 0, "time does not pass backwards; jump() moves the wall clock"
        self._now_us += passed_us
        self._passed_us += passed_us

    def jump(self, ms: int) -> None:
        """Set the wall clock forward or back, as an administrator or NTP does; no time passes."""
        self._now_us += ms * 1_000
