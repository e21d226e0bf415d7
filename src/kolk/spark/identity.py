"""What Spark tells a task of where it stands: which query, which batch, which partition.

Spark gives a sink no such parameter, but tasks carry the properties of the job that they are of. Their names are not
documented; they are in this module alone, and a test of each release of Spark holds them. Elsewhere a place is a value.
"""

from dataclasses import dataclass

from pyspark import TaskContext

QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task stands. ``query`` and ``batch`` are None outside of streaming queries, and where Spark Connect does
    not tell them. The same when the task is tried again, and all but ``partition`` when its batch is."""

    partition: int = 0
    query: str | None = None
    batch: int | None = None

    @staticmethod
    def here() -> "Place":
        """That of the task that this is called in; the first partition of nothing outside of one."""
        task = TaskContext.get()
        if task is None:
            return Place()
        batch = task.getLocalProperty(_BATCH_ID)
        return Place(task.partitionId(), task.getLocalProperty(QUERY_ID), None if batch is None else int(batch))
