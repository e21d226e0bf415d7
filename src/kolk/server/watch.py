"""What an operator sees of the requests that are served: counts, times and events. Never what is in them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kolk.errors import AccessDenied, Busy, InternalError, KolkError, PermissionDenied
from kolk.runtime.clock import Clock
from kolk.server.events import Events
from kolk.server.metrics import Metrics

_OK = "ok"


@dataclass(slots=True, eq=False)
class Served:
    """One request while it is served; whoever serves it fills in what it learns."""

    method: str
    started: float
    principal: str = ""
    table: str = ""
    rows: int = 0
    size_bytes: int = 0
    wait_seconds: float = 0.0
    error: KolkError | None = None

    def fail(self, error: Exception) -> KolkError:
        """The error that the client is told. What nobody foresaw is named, but its text may quote rows and stays."""
        if not isinstance(error, KolkError):
            inside = InternalError(f"the server failed with a {type(error).__name__}; its log tells where")
            inside.__cause__ = error
            error = inside
        self.error = error
        return error


class Watch:
    """Counts and logs requests. Thread-safe."""

    def __init__(self, metrics: Metrics, events: Events, clock: Clock) -> None:
        self._metrics = metrics
        self._events = events
        self._clock = clock

    def seconds_since(self, served: Served) -> float:
        """How long a request has been served."""
        return self._clock.monotonic() - served.started

    @contextmanager
    def request(self, method: str, principal: str) -> Iterator[Served]:
        """Watch one request to its end."""
        served = Served(method, self._clock.monotonic(), principal)
        try:
            yield served
        finally:
            self._count(served)

    @contextmanager
    def stream(self, kind: str) -> Iterator[None]:
        """Count a stream as open."""
        with self._metrics.stream(kind):
            yield

    def sent(self, served: Served, rows: int, size_bytes: int) -> None:
        """A stream, or a page of a scan, brought some rows."""
        if served.method != "Follow":
            self._metrics.scanned(served.table, rows=rows, size_bytes=size_bytes)
        else:
            self._metrics.followed(served.table, rows)

    def refused(self, error: AccessDenied) -> None:
        """Somebody without a good token was turned away, or everybody is because tokens cannot be checked."""
        self._metrics.auth_failed("unauthenticated")
        self._events.rate_limited("security.unauthenticated", error=error.__cause__ or error, reason=str(error))

    def _count(self, served: Served) -> None:
        error, seconds = served.error, self.seconds_since(served)
        self._metrics.called(served.method, _OK if error is None else type(error).__name__, seconds)
        if error is not None:
            self._tell(served, error)
        elif served.method in ("Put", "PutOwned"):
            self._metrics.put(
                served.table,
                rows=served.rows,
                size_bytes=served.size_bytes,
                seconds=seconds,
                wait_seconds=served.wait_seconds,
            )
        elif served.method == "Get":
            self._metrics.got(served.table, served.rows)
        elif served.method == "DropTable":
            self._metrics.forget(served.table)

    def _tell(self, served: Served, error: KolkError) -> None:
        if isinstance(error, InternalError):
            name, level = "request.failed", logging.ERROR
        elif isinstance(error, AccessDenied):
            name, level = "security.denied", logging.WARNING
            self._metrics.auth_failed("denied")
        elif isinstance(error, Busy):
            name, level = "request.busy", logging.WARNING
            self._metrics.busy(served.method)
        else:
            return
        table = error.table if isinstance(error, PermissionDenied) else served.table
        self._events.rate_limited(
            name, level, error=error, method=served.method, principal=served.principal, table=table
        )
