"""Exchanges that wait for their next call: opening one costs more than a lookup, but each holds a thread of the server.

So the few that were used last are kept, and only for a while. When one of them turns out to be dead, as after a
restart of the server, so are the others, and all are dropped.
"""

import threading

from kolk.client.streams import Exchange
from kolk.runtime.clock import Clock

_SPARES_MAX = 16
_IDLE_SECONDS = 10.0


class Spares:
    """Idle exchanges. Thread-safe: one lock, which a garbage collection within it may take again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        # Guarded by _lock. The one used last is at the end, with the time of that.
        self._idle: list[tuple[Exchange, float]] = []
        self._closed = False

    def take(self) -> Exchange | None:
        """One that can be used, if there is any."""
        with self._lock:
            return self._idle.pop()[0] if self._idle else None

    def keep(self, exchange: Exchange) -> None:
        """Put one back that has no answer outstanding."""
        with self._lock:
            if not self._closed and len(self._idle) < _SPARES_MAX:
                self._idle.append((exchange, self._clock.monotonic()))
                return
        exchange.end()

    def drop_idle(self) -> None:
        """End those that nobody has used for a while."""
        with self._lock:
            oldest = self._clock.monotonic() - _IDLE_SECONDS
            old = [exchange for exchange, used in self._idle if used < oldest]
            self._idle = [(exchange, used) for exchange, used in self._idle if used >= oldest]
        for exchange in old:
            exchange.end()

    def drop_all(self) -> None:
        """End all: the server that they led to is gone."""
        with self._lock:
            old, self._idle = self._idle, []
        for exchange, _ in old:
            exchange.end()

    def close(self) -> None:
        """End all, and keep none any more."""
        with self._lock:
            self._closed = True
        self.drop_all()
