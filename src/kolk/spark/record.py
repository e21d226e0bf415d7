"""What became of a table's partitions between two places in their record, in order.

Whoever has kept offsets has kept a place there too. Before it goes on it must know which partitions were made since, to
be read from their beginning, and which were dropped, with what it had not read of them.
"""

from collections.abc import Generator, Iterable, Mapping

from kolk.client.table import Table
from kolk.errors import OffsetOutOfRange
from kolk.model.partition import PARTITIONS, PartitionEvent
from kolk.model.predicate import Predicate

_WAITS_MAX = 30


def events_since(
    table: Table, log: Mapping[str, int], place: int, there: Iterable[str], where: Predicate | None
) -> Generator[PartitionEvent, None, None]:
    """The events of partitions that a predicate selects, up to a place in their record, for somebody who has read these
    offsets: what is dropped says how much of it is unread. ``there`` names the buckets that there are now."""
    # Nothing but events is wanted: every bucket is at its stop, those of new partitions at their beginning.
    stops = dict.fromkeys(there, 0) | dict(log) | {PARTITIONS: place}
    pages = table.link.service.open_changes(table.info.id, log, stops, where)
    at, waits = log[PARTITIONS], 0
    try:
        while at < place:
            found = pages.next(1.0)
            if isinstance(found, PartitionEvent):
                at = found.position
                if at <= place:  # else one of those that are read is dropped later, which is told before its time
                    yield found
            elif found is not None and found[0] == PARTITIONS:
                at = found[1].next_offset
            waits = waits + 1 if found is None else 0
            if waits > _WAITS_MAX:
                raise OffsetOutOfRange(f"the record of partitions has no event {at}")
    finally:
        pages.close()
