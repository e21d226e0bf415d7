"""Trying again: under one deadline, less and less often, and only what says that it can help."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from kolk.errors import ColumnLockConflict, KolkError, PartialPut, TimedOut, Unreachable
from kolk.runtime.clock import Clock
from kolk.runtime.rng import Rng

T = TypeVar("T")
_PAUSE_SECONDS_MIN = 0.02
_PAUSE_SECONDS_MAX = 1.0
_ATTEMPT_SECONDS_MIN = 0.5
LEAVE_DOUBT = (Unreachable, TimedOut, PartialPut)
"""Failures after which a put may have been applied, all of it or a part."""


@contextmanager
def doubted(lost: Sequence[KolkError], *decisive: type[KolkError]) -> Iterator[None]:
    """For a put: ``lost`` gets the failures within the block after which it may have been applied (``LEAVE_DOUBT``).

    If it is refused after one of those, the refusal says nothing about the attempt before, and whoever believes it puts
    again what is there. So what is raised is the doubt. What is ``decisive`` tells the truth whatever was before.
    """
    try:
        yield
    except (*LEAVE_DOUBT, *decisive):
        raise
    except KolkError as error:
        if not lost:
            raise
        if isinstance(lost[-1], PartialPut):
            raise lost[-1] from error
        raise type(lost[-1])(
            f"{lost[-1]}; sent again, it was refused ({error}), which does not tell whether it was applied the first"
            " time: put it again with the same data and tag=error.tag"
        ) from error


class Deadline:
    """A moment on the monotonic clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._at = clock.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """How long until then; 0 when it is past."""
        return max(self._at - self._clock.monotonic(), 0.0)


class Retry:
    """Repeats calls that fail with a retriable error. Stateless but for its parts; thread-safe."""

    def __init__(self, clock: Clock, rng: Rng, seconds: float, pause: Callable[[float], object]) -> None:
        self._clock = clock
        self._rng = rng
        self._seconds = seconds
        self._pause = pause

    def deadline(self, seconds: float | None = None) -> Deadline:
        """The moment by which a call that starts now must have ended."""
        return Deadline(self._clock, self._seconds if seconds is None else min(seconds, self._seconds))

    def long_deadline(self, seconds: float) -> Deadline:
        """The same for a call that may take so long, however little the others may."""
        return Deadline(self._clock, max(seconds, self._seconds))

    def run(self, attempt: Callable[[Deadline], T], deadline: Deadline | None = None) -> T:
        """The first success; else the last error, once it cannot be retried or the deadline is past.

        The first retry comes at once, because the most common failure is a connection that a restarted server has
        forgotten.
        """
        deadline = deadline or self.deadline()
        pause = 0.0
        tries = 0
        while True:
            tries += 1
            try:
                return attempt(deadline)
            except KolkError as error:
                # Half to full length, so that clients that failed together do not come back together.
                wait = pause * (0.5 + 0.5 * self._rng.fraction())
                # An attempt at the very end would time out, and hide what is really the matter.
                least = wait + min(_ATTEMPT_SECONDS_MIN, self._seconds / 8)
                # Whose columns somebody has, he may have for hours: whoever asks decides whether to wait.
                is_last = isinstance(error, TimedOut | ColumnLockConflict)
                if not error.retriable or is_last or deadline.seconds_left <= least:
                    if tries > 1:
                        error.add_note(f"tried {tries} times")
                    raise
            if wait:
                self._pause(wait)
            pause = min(max(pause * 2, _PAUSE_SECONDS_MIN), _PAUSE_SECONDS_MAX)
