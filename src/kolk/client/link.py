"""What all objects of one connection share: the way to the service, open until it is closed or nobody is left.

A notebook that runs ``db = kolk.connect(...)`` again drops the first connection without closing it. The link notices,
wherever the garbage collector happens to run, and calls ``forget``, which must not wait for anything.
"""

import weakref
from collections.abc import Callable

from kolk.client.service import Service
from kolk.client.tags import Tags
from kolk.errors import Closed
from kolk.runtime.clock import Clock
from kolk.runtime.rng import Rng


class Link:
    """A connection's way to its database. Thread-safe."""

    def __init__(
        self, service: Service, release: Callable[[], None], forget: Callable[[], None], rng: Rng, clock: Clock
    ) -> None:
        self.tags = Tags(rng)
        self.rng = rng
        self.clock = clock
        self._service = service
        self._release = release
        self._forget = forget
        self._unclosed = weakref.finalize(self, forget)

    @property
    def service(self) -> Service:
        """The service; Closed once the connection is."""
        if not self._unclosed.alive:
            raise Closed("this database is closed; call kolk.connect again")
        return self._service

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return not self._unclosed.alive

    @property
    def place(self) -> str:
        """Where the database is, also after the end; nobody is asked for it."""
        return str(self._service.path)

    def close(self) -> None:
        """Let go. Idempotent; if it is interrupted it can be called again."""
        if self._unclosed.detach() is None:
            return
        try:
            self._release()
        except BaseException:
            self._unclosed = weakref.finalize(self, self._forget)
            raise
