"""What became of owners since the start: counted where it happens, by whichever thread it happens in."""

import threading
from dataclasses import replace

from kolk.model.owner import OwnerCounts


class OwnerTally:
    """Counts. Thread-safe: one lock, held for a moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced under _lock, read by anyone.
        self.counts = OwnerCounts()

    def add(self, **amounts: float) -> None:
        """So many more of these."""
        with self._lock:
            sums = {name: getattr(self.counts, name) + amount for name, amount in amounts.items()}
            self.counts = replace(self.counts, **sums)
