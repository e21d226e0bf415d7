"""The requests about transactions.

As in ``api``: who may, what came, then the engine. What is staged belongs to the principal that staged it: nobody else
adds to it, seals it or commits it. Each of these takes the right to write to the tables, at that moment. To discard
one's own is always allowed; what is somebody else's takes the right to alter the table. Names of applications belong to
nobody: whoever may write to a table may commit under any of them.
"""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import pyarrow as pa

from kolk.engine.database import Engine
from kolk.errors import InvalidArgument
from kolk.model.grant import Operation, Principal
from kolk.model.ids import TableId
from kolk.model.names import TableName
from kolk.model.options import MergeMode
from kolk.model.table import TableInfo
from kolk.model.transaction import CommitRequest, Seal, Staging, TransactionInfo
from kolk.model.write import Action
from kolk.server.records import received
from kolk.server.watch import Served
from kolk.wire import transactions as t

_PER_ANSWER = 5_000
"""How many transactions one answer holds, unless one application alone has more."""
Allowed = Callable[[Principal, int, Operation], TableInfo]


class TransactionRequests:
    """Transactions of clients, served by an engine. Thread-safe."""

    def __init__(self, engine: Engine, allowed: Allowed) -> None:
        self._engine = engine
        self._allowed = allowed

    def act(self, principal: Principal, action: t.AboutTransactions, served: Served) -> Any:
        """Serve a request without rows."""
        match action:
            case t.KeepHandle():
                return self._keep(principal, action, served)
            case t.SealHandle():
                return self._seal(principal, action, served)
            case t.Commit():
                return self._commit(principal, action, served)
            case t.Discard():
                return self._discard(principal, action)
            case t.ListTransactions():
                return self._list(principal, action)

    def stage(self, principal: Principal, stage: t.Stage, rows: pa.Buffer, served: Served) -> None:
        """Keep rows for a commit."""
        info = self._allowed(principal, stage.table, Operation.WRITE)
        served.table = str(info.name)
        staging = _staging(principal, stage, self._engine.schema(info.id, stage.schema_id).id)
        wanted = self._engine.transactions.columns(staging)
        batch = received(stage.schema, rows, wanted, self._engine.config.put_rows_max)
        served.rows = batch.num_rows
        self._engine.transactions.stage(staging, stage.number, batch)

    def weight(self, commit: t.Commit) -> int:
        """How many bytes a commit is to read and merge."""
        return self._engine.transactions.stagings.size_of(handle for each in commit.tables for handle in each.handles)

    def _keep(self, principal: Principal, keep: t.KeepHandle, served: Served) -> None:
        info = self._allowed(principal, keep.table, Operation.WRITE)
        served.table = str(info.name)
        schema_id = self._engine.schema(info.id, keep.schema_id).id
        self._engine.transactions.keep(_staging(principal, keep, schema_id))

    def _seal(self, principal: Principal, seal: t.SealHandle, served: Served) -> Seal:
        info = self._allowed(principal, seal.table, Operation.WRITE)
        served.table = str(info.name)
        schema_id = self._engine.schema(info.id, seal.schema_id).id
        return self._engine.transactions.seal(_staging(principal, seal, schema_id), seal.batches)

    def _commit(self, principal: Principal, commit: t.Commit, served: Served) -> t.Committed:
        tables = [TableId(each.table) for each in commit.tables]
        if len(set(tables)) < len(tables):
            raise InvalidArgument("a commit names a table twice")
        for table in tables:
            served.table = str(self._allowed(principal, table, Operation.WRITE).name)
        request = CommitRequest(
            app=commit.app,
            version=commit.version,
            handles={TableId(each.table): tuple(each.handles) for each in commit.tables},
            truncates=frozenset(TableId(each.table) for each in commit.tables if each.truncate),
            rows=commit.rows,
            checksum=commit.checksum,
        )
        found = self._engine.transactions.commit(request, principal.name)
        offsets = {int(table): dict(ends) for table, ends in found.offsets.items()}
        return t.Committed(found.verdict.value, offsets)

    def _discard(self, principal: Principal, discard: t.Discard) -> int:
        names = {info.id: info.name for info in self._engine.tables()}
        staged = self._engine.transactions.stagings.staged(discard.handles)

        def may(staging: Staging) -> bool:
            # What was staged for a table that is gone is nobody's but his.
            name = names.get(staging.table)
            return staging.principal == principal.name or (name is not None and principal.may(Operation.ALTER, name))

        return self._engine.transactions.discard([staging.handle for staging in staged if may(staging)])

    def _list(self, principal: Principal, asked: t.ListTransactions) -> list[TransactionInfo]:
        names = {str(info.name): info.name for info in self._engine.tables()}
        found: list[TransactionInfo] = []
        for app, group in groupby(self._engine.list_transactions(), key=lambda one: one.app):
            if asked.after is not None and app <= asked.after:
                continue
            seen = [one for one in group if _sees(principal, one, names)]
            if found and len(found) + len(seen) > _PER_ANSWER:
                break
            found += seen
        return found


def _sees(principal: Principal, one: TransactionInfo, names: dict[str, TableName]) -> bool:
    """Whether a transaction shows to somebody: what he has staged, and those of tables all of which he sees."""
    if one.handles and one.principal == principal.name:
        return True
    return all(principal.may(Operation.DESCRIBE, names[table]) for table in one.tables if table in names)


def _staging(principal: Principal, of: t.OfHandle, schema_id: int) -> Staging:
    return Staging(
        handle=of.handle,
        app=of.app,
        version=of.version,
        table=TableId(of.table),
        schema_id=schema_id,
        action=Action.parse(of.action),
        columns=None if of.columns is None else tuple(of.columns),
        mode=MergeMode.parse(of.mode),
        principal=principal.name,
    )
