"""What is found where something that must always be true is not: in words, with the next step, and never endless."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from kolk.model.ids import BucketId

_SHOWN_MAX = 3


class Law(Enum):
    """What must be true of a database at every moment, also after a crash."""

    LOGS = "logs"
    """The logs can be read, and the KV is not ahead of its log."""
    COMMITS = "commits"
    """Versions grow; a commit is in all its buckets once, whole and in the order of the commits, or is pending."""
    CATALOG = "catalog"
    """No log has a commit, an owner or a fence that the catalog does not know."""
    UNCOMMITTED = "uncommitted"
    """A column with changes that are not committed has one owner, and nobody else changes it."""
    EPOCHS = "epochs"
    """Fences, tickets and epochs of an owner grow, and it writes nothing before what it left was taken back."""
    UNDO = "undo"
    """The log reaches back to the first change of every owner that is not committed."""
    ROWS = "rows"
    """The rows, and what is kept beside them, are what the log makes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A law that does not hold, where, and what to do about it."""

    law: Law
    found: str
    next_step: str


def place_of(table: str, bucket: BucketId) -> str:
    """A bucket for people."""
    return f"bucket {bucket.name} of {table}"


def build_anew(bucket: BucketId) -> str:
    """What to do about rows that are not what the log makes."""
    return f"with the database closed, move tables/{bucket.folder}/kv away: it is built anew; then look again"


class Faults:
    """Takes in faults, of which there may be as many as there are frames; the first few of each law are kept. Confined
    to one caller."""

    def __init__(self) -> None:
        self.found: list[Fault] = []
        self.counts: Counter[Law] = Counter()

    def add(self, law: Law, found: str, next_step: str) -> None:
        """One more."""
        self.counts[law] += 1
        if self.counts[law] <= _SHOWN_MAX:
            self.found.append(Fault(law, found, next_step))
