"""The calls about owners that an engine serves in its own process; each goes to who does it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from kolk.engine.owned_buckets import OnProgress
from kolk.engine.owner_tasks import OwnerTasks
from kolk.engine.owners import Owners
from kolk.errors import Fenced, LockExpired, PartialPut
from kolk.model.ids import OwnerTag, PlainTag, TableId
from kolk.model.owner import Claim, OwnerInfo, OwnerRecord, Task, check_tag
from kolk.model.table import TableInfo
from kolk.model.write import Write


class OwnerCalls(ABC):
    """A part of ``Engine``."""

    owners: Owners
    tasks: OwnerTasks

    @abstractmethod
    def table_by_id(self, table: TableId) -> TableInfo:
        """The table of this id."""

    @abstractmethod
    def tables(self) -> list[TableInfo]:
        """All tables, by name."""

    @abstractmethod
    def put(self, table: TableId, write: Write, tag: PlainTag | OwnerTag) -> dict[str, int]:
        """Apply a write once."""

    def begin_owner(self, table: TableId, claim: Claim, on_progress: OnProgress | None = None) -> OwnerRecord:
        """Take columns of a table, and take back what was left uncommitted."""
        return self.owners.begin(self.table_by_id(table), claim, on_progress)

    def put_owned(self, table: TableId, write: Write, tag: OwnerTag) -> dict[str, int]:
        """Write as an owner."""
        check_tag(tag)
        try:
            self.owners.check_writer(self.table_by_id(table).id, tag)
            return self.put(table, write, tag)
        except (Fenced, LockExpired, PartialPut) as error:
            if not isinstance(error, PartialPut) or _is_fenced(error):
                self.owners.tally.add(fenced=1)
            if isinstance(error, Fenced):
                raise self.owners.explained(table, tag.owner, error) from error
            raise

    def commit_owner(
        self, table: TableId, number: int, fence: int, epoch: int, seqs: Mapping[str, int], state: bytes
    ) -> OwnerRecord:
        """Let an epoch, and those before it, stand."""
        return self.owners.commit(self.table_by_id(table), number, fence, epoch, seqs, state)

    def renew_owner(self, table: TableId, number: int, fence: int) -> float:
        """Let the time of a lock begin anew."""
        return self.owners.renew(self.table_by_id(table).id, number, fence)

    def rest_owner(self, table: TableId, number: int, fence: int) -> None:
        """Let columns go, and remember what was committed."""
        self.owners.rest(self.table_by_id(table), number, fence)

    def release_owner(
        self, table: TableId, owner: str, fence: int | None = None, *, number: int | None = None, keep: bool = False
    ) -> bool:
        """Forget an owner; ``keep`` what it has not committed, or take it back."""
        return self.owners.release(self.table_by_id(table), owner, fence, number=number, keep=keep)

    def begin_task(self, table: TableId, number: int, fence: int, epoch: int, partition: int) -> Task:
        """One more attempt at a task of an owner's epoch; if it is through, what it left."""
        return self.tasks.begin(self.table_by_id(table), number, fence, epoch, partition)

    def seal_task(
        self,
        table: TableId,
        number: int,
        fence: int,
        partition: int,
        ticket: int,
        seqs: Mapping[str, int],
        message: bytes,
    ) -> None:
        """Let an attempt be what its task leaves: ``seqs`` are its last puts by bucket, ``message`` is for whoever
        tries again."""
        self.tasks.seal(self.table_by_id(table), number, fence, partition, ticket, seqs, message)

    def commit_tasks(
        self,
        table: TableId,
        number: int,
        fence: int,
        epoch: int,
        tasks: Mapping[str, tuple[int, int]],
        state: bytes,
        *,
        unsealed: bool = False,
    ) -> None:
        """Let an epoch stand: what these tickets have written, and nothing else of it."""
        self.tasks.commit(self.table_by_id(table), number, fence, epoch, tasks, state, unsealed=unsealed)

    def list_owners(self) -> list[OwnerInfo]:
        """The locks that there are."""
        return self.owners.listed(self.tables())


def _is_fenced(error: PartialPut) -> bool:
    return any(isinstance(each, Fenced | LockExpired) for each in error.failed.values())
