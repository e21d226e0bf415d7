"""The requests about owners of columns.

As in ``api``: who may, what came, then the engine. Each of these takes the right to write to the table, at that moment.
Names of owners belong to nobody: whoever may write to a table may begin under any of them, and fences whoever wrote
under it before. To forget an owner without being the one who writes in its name, or to keep what it has not committed,
takes the right to alter the table.

Nothing here is refused because the disk is full, but puts: a beginning may be what lets the log go. Nor does one wait
for its turn among commits: it may wait long for another owner of its table, and only one of a table is taken back at a
time, so what that holds in memory is bounded.
"""

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from kolk.engine.database import Engine
from kolk.model.grant import Operation, Principal
from kolk.model.ids import OwnerTag
from kolk.model.names import TableName
from kolk.model.owner import Claim, OwnerInfo, OwnerRecord, UndoMode
from kolk.model.table import TableInfo
from kolk.server.records import write_of
from kolk.server.watch import Served
from kolk.wire import owners as o

_NAMES_PER_ANSWER = 50_000
"""How many names of columns one answer holds, unless one owner alone has more."""
_TENTHS = 10
_log = logging.getLogger(__name__)
Allowed = Callable[[Principal, int, Operation], TableInfo]


class OwnerRequests:
    """Owners of clients, served by an engine. Thread-safe."""

    def __init__(self, engine: Engine, allowed: Allowed, described: Callable[[Principal], list[TableInfo]]) -> None:
        self._engine = engine
        self._allowed = allowed
        self._described = described

    def act(self, principal: Principal, action: o.AboutOwners, served: Served) -> Any:
        """Serve a request without rows."""
        if isinstance(action, o.ListOwners):
            return self._list(principal, action)
        info = self._allowed(principal, action.table, _needed(action))
        served.table = str(info.name)
        match action:
            case o.BeginOwner():
                return self._begin(info, action)
            case o.ReleaseOwner():
                return self._engine.release_owner(
                    info.id, action.owner, action.fence, number=action.number, keep=action.keep
                )
            case _:
                return self._act(info, action)

    def put(self, principal: Principal, put: o.PutOwned, rows: pa.Buffer, served: Served) -> dict[str, int]:
        """Write as an owner; the answer is the end offsets."""
        info = self._allowed(principal, put.table, Operation.WRITE)
        served.table = str(info.name)
        write = write_of(put, rows, self._engine.schema(info.id, put.schema_id), self._engine.config.put_rows_max)
        served.rows = write.rows.num_rows
        return self._engine.put_owned(info.id, write, OwnerTag(put.number, put.fence, put.ticket, put.epoch, put.seq))

    def _act(
        self,
        info: TableInfo,
        action: o.CommitOwner | o.RenewOwner | o.RestOwner | o.BeginTask | o.SealTask | o.CommitTasks,
    ) -> Any:
        """What one asks for who has begun."""
        engine, who = self._engine, (info.id, action.number, action.fence)
        match action:
            case o.CommitOwner():
                return engine.commit_owner(*who, action.epoch, action.seqs, action.state)
            case o.RenewOwner():
                return engine.renew_owner(*who)
            case o.RestOwner():
                return engine.rest_owner(*who)
            case o.BeginTask():
                return engine.begin_task(*who, action.epoch, action.partition)
            case o.SealTask():
                return engine.seal_task(*who, action.partition, action.ticket, action.seqs, action.message)
            case o.CommitTasks():
                return engine.commit_tasks(*who, action.epoch, action.tasks, action.state, unsealed=action.unsealed)

    def _begin(self, info: TableInfo, begin: o.BeginOwner) -> OwnerRecord:
        claim = Claim(
            owner=begin.owner,
            columns=begin.columns,
            ttl_seconds=begin.ttl_seconds,
            stream=begin.stream,
            resume_epoch=begin.resume_epoch,
            undo=UndoMode.parse(begin.undo),
            reset=begin.reset,
            attempt=begin.attempt,
        )

        def tell(done: int, buckets: int) -> None:
            # Whoever waits for a long one finds here how far it is: at every tenth.
            if buckets and (done % -(-buckets // _TENTHS) == 0 or done == buckets):
                _log.info("%r of %s is taken back in %d of %d buckets", begin.owner, info.name, done, buckets)

        return self._engine.begin_owner(info.id, claim, tell)

    def _list(self, principal: Principal, wanted: o.ListOwners) -> list[OwnerInfo]:
        """The next owners; so many that the answer fits a message, whatever the number of columns."""
        after = None if wanted.after is None else (TableName.parse(wanted.after[0]), wanted.after[1])
        found: list[OwnerInfo] = []
        names = 0
        for info in self._described(principal):
            if after is not None and info.name < after[0]:
                continue
            for owner in self._engine.owners.listed([info]):
                if after is not None and (info.name, owner.owner) <= after:
                    continue
                names += 1 + len(owner.columns or ())
                if found and names > _NAMES_PER_ANSWER:
                    return found
                found.append(owner)
        return found


def _needed(action: o.AboutOwners) -> Operation:
    """The right that a request takes."""
    is_anybodys = isinstance(action, o.ReleaseOwner) and (action.fence is None or action.keep)
    return Operation.ALTER if is_anybodys else Operation.WRITE
