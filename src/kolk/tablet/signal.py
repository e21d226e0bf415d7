"""How a follower learns, without polling, that some bucket has published more."""

import threading


class Signal:
    """A counter that people wait on. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Read this, look at what you wait for, then ``wait`` with it: nothing is missed in between."""
        return self._count

    def notify(self) -> None:
        """Something was published, or closed."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Until the count is no longer ``seen``, or for so long."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, seconds)
