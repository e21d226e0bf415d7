"""The small durable tables, which fail on purpose: refused, lost, or written without anybody being told."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from kolk.errors import DiskFull, Stopped
from kolk.storage.meta import Meta, MetaChange, Record


class Outcome(Enum):
    """What becomes of a write to a ``FailingMeta``."""

    REFUSED = "refused"
    """The disk is full, and nothing was written."""
    LOST = "lost"
    """Nothing was written, and nobody is told so."""
    WRITTEN = "written"
    """It was written, and nobody is told so."""


class FailingMeta(Meta):
    """The real small tables, some of whose writes fail when told to. Thread-safe as ``Meta``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Each replaced whole, by the one who tests.
        self._coming: list[Outcome | None] = []
        self._broken = False

    def fail_next(self, outcome: Outcome, *, after: int = 0) -> None:
        """Let one write fail so, after ``after`` good ones."""
        self._coming = [*[None] * after, outcome]

    def break_down(self) -> None:
        """From the next failure on nothing can be read or written, until ``heal``."""
        self._broken = True

    def heal(self) -> None:
        """Let everything succeed again."""
        self._coming, self._broken = [], False

    @property
    def is_due(self) -> bool:
        """Whether a failure is still to come."""
        return bool(self._coming)

    def get(self, key: str) -> Record | None:
        """See ``Meta``."""
        self._check()
        return super().get(key)

    def list(self, prefix: str) -> list[Record]:
        """See ``Meta``."""
        self._check()
        return super().list(prefix)

    def write(self, changes: Sequence[MetaChange], *, syncs: bool = True) -> None:
        """See ``Meta``."""
        self._check()
        outcome = self._coming.pop(0) if self._coming else None
        if outcome is Outcome.REFUSED:
            raise DiskFull("the disk is full, as told")
        if outcome is not Outcome.LOST:
            super().write(changes, syncs=syncs)
        if outcome is not None:
            raise Stopped("the catalog failed, as told")

    def _check(self) -> None:
        if self._broken and not self._coming:
            raise Stopped("the catalog is broken, as told")
