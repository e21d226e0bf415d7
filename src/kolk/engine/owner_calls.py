"""The calls about owners that an engine serves in its own process; each goes to who does it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from kolk.engine.owners import Owners
from kolk.model.ids import OwnerTag, PlainTag, TableId
from kolk.model.owner import Claim, OwnerInfo, OwnerRecord
from kolk.model.table import TableInfo
from kolk.model.write import Write


class OwnerCalls(ABC):
    """A part of ``Engine``."""

    owners: Owners

    @abstractmethod
    def table_by_id(self, table: TableId) -> TableInfo:
        """The table of this id."""

    @abstractmethod
    def tables(self) -> list[TableInfo]:
        """All tables, by name."""

    @abstractmethod
    def put(self, table: TableId, write: Write, tag: PlainTag | OwnerTag) -> dict[str, int]:
        """Apply a write once."""

    def begin_owner(self, table: TableId, claim: Claim) -> OwnerRecord:
        """Take columns of a table, and take back what was left uncommitted."""
        return self.owners.begin(self.table_by_id(table), claim)

    def put_owned(self, table: TableId, write: Write, tag: OwnerTag) -> dict[str, int]:
        """Write as an owner."""
        return self.put(table, write, tag)

    def commit_owner(
        self, table: TableId, number: int, fence: int, epoch: int, seqs: Mapping[str, int], state: bytes
    ) -> None:
        """Let an epoch, and those before it, stand."""
        self.owners.commit(self.table_by_id(table), number, fence, epoch, seqs, state)

    def renew_owner(self, table: TableId, number: int, fence: int) -> float:
        """Let the time of a lock begin anew."""
        return self.owners.renew(self.table_by_id(table).id, number, fence)

    def rest_owner(self, table: TableId, number: int, fence: int) -> None:
        """Let columns go, and remember what was committed."""
        self.owners.rest(self.table_by_id(table), number, fence)

    def release_owner(self, table: TableId, owner: str, fence: int | None = None) -> bool:
        """Forget an owner."""
        return self.owners.release(self.table_by_id(table), owner, fence)

    def list_owners(self) -> list[OwnerInfo]:
        """The locks that there are."""
        return self.owners.listed(self.tables())
