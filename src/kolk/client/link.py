"""What all objects of one connection share: the way to the service, open until it is closed or nobody is left.

A notebook that runs ``db = kolk.connect(...)`` again drops the first connection without closing it; the link notices
and lets go by itself. It is closed once, whoever asks first.
"""

import weakref
from collections.abc import Callable

from kolk.client.service import Service
from kolk.client.tags import Tags
from kolk.errors import Closed
from kolk.runtime.rng import Rng


class Link:
    """A connection's way to its database. Thread-safe."""

    def __init__(self, service: Service, release: Callable[[], None], rng: Rng) -> None:
        self.tags = Tags(rng)
        self._service = service
        self._closing = weakref.finalize(self, release)

    @property
    def service(self) -> Service:
        """The service; Closed once the connection is."""
        if not self._closing.alive:
            raise Closed("this database is closed; call kolk.connect again")
        return self._service

    def close(self) -> None:
        """Let go. Idempotent."""
        self._closing()
