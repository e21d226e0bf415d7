"""Tasks: an owner that writes with many processes, each of which may fail and be tried again, or run twice.

The rows of a bucket go to one task. Each attempt at a task has a ticket, which grows; the first put of a newer one to a
bucket takes back what the older one wrote there, and the older one may write no more. Once an attempt has said that it
is through (``seal``) it stays: whoever tries the task again is told what it left, and writes nothing. A commit names,
for each bucket, whose rows it is to have; what others have left elsewhere is taken back. Where a task cannot know by
itself that it is through, none is sealed, and the commit that names them comes from somebody who does know.

Which ticket is the current one is in memory. After a restart the frames tell it, bucket by bucket; only what a sealed
task left is forgotten, so that the task cannot be answered for any more, and the run is begun again.
"""

from collections.abc import Mapping
from dataclasses import replace

from kolk.engine.owners import Owners
from kolk.errors import EpochClosed, Fenced, InvalidArgument
from kolk.model.ids import OwnerTag
from kolk.model.owner import MESSAGE_BYTES_MAX, TASKS_MAX, Task, check_epoch, ticket_of
from kolk.model.table import TableInfo


class OwnerTasks:
    """The tasks of owners. Thread-safe: it works under each owner's lock."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def begin(self, info: TableInfo, number: int, fence: int, epoch: int, partition: int) -> Task:
        """A ticket for one more attempt at a task; if the task is through, the one that it was done with, and what it
        left."""
        check_epoch(epoch)
        if not isinstance(partition, int) or not 0 <= partition < TASKS_MAX:
            raise InvalidArgument(f"a task is numbered from 0 to {TASKS_MAX - 1:,}, not {partition!r}"[:500])
        lock = self._owners.current(info.id, number, fence)
        with self._owners.alone(lock.record):
            lock = self._owners.current(info.id, number, fence)
            record = lock.record
            newest = max((task.epoch for task in lock.tasks.values()), default=epoch)
            if epoch < newest or (epoch <= record.committed and fence == record.committed_fence):
                raise EpochClosed(f"epoch {epoch} of {record.name!r} is over")
            if epoch > newest and newest > record.committed:
                raise EpochClosed(f"epoch {newest} of {record.name!r} is not committed, so {epoch} cannot begin")
            tasks = dict(lock.tasks) if epoch == newest else {}
            known = tasks.get(partition)
            if known is not None and known.message is not None:
                return known
            record = replace(record, tickets=record.tickets + 1)
            task = tasks[partition] = Task(epoch, ticket_of(record.tickets, partition))
            self._owners.store(record)
            self._owners.locks.replace(replace(lock, record=record, tasks=tasks))
            return task

    def seal(
        self,
        info: TableInfo,
        number: int,
        fence: int,
        partition: int,
        ticket: int,
        seqs: Mapping[str, int],
        message: bytes,
    ) -> None:
        """Let what an attempt has written be what its task leaves: ``seqs`` are its last puts by bucket. A copy that
        begins meanwhile waits, and is told. Idempotent: the first message stands."""
        if len(message) > MESSAGE_BYTES_MAX:
            raise InvalidArgument(f"what a task leaves has at most {MESSAGE_BYTES_MAX:,} bytes, not {len(message):,}")
        lock = self._owners.current(info.id, number, fence)
        with self._owners.alone(lock.record):
            lock = self._owners.current(info.id, number, fence)
            task = lock.tasks.get(partition)
            if task is None or task.ticket != ticket:
                raise Fenced("a newer attempt at this task goes on, or its epoch is over")
            if task.message is not None:
                return
            if task.epoch > lock.record.committed:  # else it was replayed, and nothing of it is written again
                tag = OwnerTag(number, fence, ticket, task.epoch, 0, sealed=True)
                self._owners.buckets.seal(info, tag, seqs)
            sealed = {**lock.tasks, partition: replace(task, message=message)}
            self._owners.locks.replace(replace(lock, tasks=sealed))

    def commit(
        self,
        info: TableInfo,
        number: int,
        fence: int,
        epoch: int,
        tasks: Mapping[str, tuple[int, int]],
        state: bytes,
        *,
        unsealed: bool = False,
    ) -> None:
        """Commit an epoch: ``tasks`` are the ticket and the last put by bucket. What others have left in buckets that
        are not named is taken back first. Nothing is added to the epoch meanwhile, so that ``unsealed`` tasks are as
        good as others once their last puts are found."""
        with self._owners.committing(info, number, fence, epoch, state) as record:
            if record is None:
                return
            for bucket in self._owners.buckets.check_left(info, record, epoch, tasks, unsealed=unsealed):
                self._owners.buckets.undo_one(info, bucket, record)
