"""Owners of columns of a server: the part of ``Connection`` that is about them.

Every call can be made again when its answer was lost, but for the release of an owner that is somebody else's. A
beginning has a token, drawn here unless there is one: again with the same token it has the same fence, and if somebody
has begun after it, it is told so and takes nothing from him. A put is known by its count, and a commit by its epoch.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from kolk.client.retry import Deadline
from kolk.errors import KolkError, OwnershipError
from kolk.model.ids import OwnerTag, TableId
from kolk.model.owner import Claim, OwnerInfo, OwnerRecord, Task, check_tag
from kolk.model.write import Write
from kolk.runtime.rng import Rng
from kolk.wire import messages as m
from kolk.wire import owners as o
from kolk.wire.rows import encode_rows, write_fields

_UNDO_SECONDS = 600.0
"""How long to wait for the answer to what may take much back. A server that cannot be reached is given up as in every
other call."""


class RemoteOwners:
    """See ``Service``. Thread-safe."""

    _rng: Rng

    def _act(
        self,
        action: m.Action,
        deadline: Deadline | None = None,
        lost: list[KolkError] | None = None,
        patience: Deadline | None = None,
        *,
        once: bool = False,
    ) -> Any:
        raise NotImplementedError

    def _put(self, message: pa.Buffer, *decisive: type[KolkError]) -> dict[str, int]:
        raise NotImplementedError

    def _deadline(self, seconds: float) -> Deadline:
        raise NotImplementedError

    def begin_owner(self, table: TableId, claim: Claim) -> OwnerRecord:
        """See ``Service``."""
        call = o.BeginOwner(
            table=table,
            owner=claim.owner,
            columns=None if claim.columns is None else list(claim.columns),
            ttl_seconds=claim.ttl_seconds,
            stream=claim.stream,
            resume_epoch=claim.resume_epoch,
            undo=claim.undo.value,
            reset=claim.reset,
            attempt=claim.attempt or self._rng.token_hex(),
        )
        return m.as_record(self._undoing(call), OwnerRecord)

    def put_owned(self, table: TableId, write: Write, tag: OwnerTag) -> dict[str, int]:
        """See ``Service``. If an answer was lost, and then the put was refused for another reason than what became of
        its owner, nobody knows whether it was applied the first time: that is what is raised."""
        check_tag(tag)
        head = o.PutOwned(
            table=table,
            number=tag.owner,
            fence=tag.fence,
            ticket=tag.ticket,
            epoch=tag.epoch,
            seq=tag.seq,
            **write_fields(write),
        )
        return self._put(m.join(head, encode_rows(write.rows)), OwnershipError)

    def commit_owner(
        self, table: TableId, number: int, fence: int, epoch: int, seqs: Mapping[str, int], state: bytes
    ) -> OwnerRecord:
        """See ``Service``."""
        call = o.CommitOwner(table=table, number=number, fence=fence, epoch=epoch, seqs=dict(seqs), state=state)
        return m.as_record(self._undoing(call), OwnerRecord)

    def renew_owner(self, table: TableId, number: int, fence: int) -> float:
        """See ``Service``."""
        return self._act(o.RenewOwner(table=table, number=number, fence=fence))

    def rest_owner(self, table: TableId, number: int, fence: int) -> None:
        """See ``Service``."""
        self._undoing(o.RestOwner(table=table, number=number, fence=fence))

    def release_owner(
        self, table: TableId, owner: str, fence: int | None = None, *, number: int | None = None, keep: bool = False
    ) -> bool:
        """See ``Service``. If an answer was lost, one's own that is not there has been released by us. Somebody else's
        is not asked for again: by then it could be a new one, which nobody wants to lose."""
        call = o.ReleaseOwner(table=table, owner=owner, fence=fence, number=number, keep=keep)
        patience = self._deadline(_UNDO_SECONDS)
        if fence is None or number is None:
            return self._act(call, patience=patience, once=True)
        lost: list[KolkError] = []
        return self._act(call, lost=lost, patience=patience) or bool(lost)

    def list_owners(self) -> list[OwnerInfo]:
        """See ``Service``. They come in pieces."""
        found: list[OwnerInfo] = []
        while records := self._act(o.ListOwners(after=(found[-1].table, found[-1].owner) if found else None)):
            found += m.as_record(records, list[OwnerInfo])
        return found

    def begin_task(self, table: TableId, number: int, fence: int, epoch: int, partition: int) -> Task:
        """See ``Service``. Again it has the next ticket; nobody has seen the one before."""
        call = o.BeginTask(table=table, number=number, fence=fence, epoch=epoch, partition=partition)
        return m.as_record(self._act(call), Task)

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
        """See ``Service``."""
        who = {"table": table, "number": number, "fence": fence}
        self._act(o.SealTask(**who, partition=partition, ticket=ticket, seqs=dict(seqs), message=message))

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
        """See ``Service``."""
        who = {"table": table, "number": number, "fence": fence}
        self._undoing(o.CommitTasks(**who, epoch=epoch, tasks=dict(tasks), state=state, unsealed=unsealed))

    def _undoing(self, call: o.AboutOwners) -> Any:
        return self._act(call, patience=self._deadline(_UNDO_SECONDS))
