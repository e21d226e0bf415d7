"""Leases as their holders see them: tables and buckets by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kolk.model.ids import TableId
from kolk.model.partition import PARTITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTable:
    """What a lease keeps of one table, by bucket; see ``TablePins``."""

    table: TableId
    snapshots: Mapping[str, int]
    offsets: Mapping[str, int]
    position: int | None
    is_consistent: bool

    @property
    def start(self) -> dict[str, int]:
        """Where the changelog goes on after these snapshots."""
        return {**self.offsets, **({} if self.position is None else {PARTITIONS: self.position})}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """A lease at the moment of an answer. ``unavailable`` is what was asked for and does not exist."""

    id: str
    generation: int
    principal: str
    created: datetime
    expires: datetime
    ttl_seconds: float
    tables: Mapping[str, LeasedTable]
    unavailable: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
