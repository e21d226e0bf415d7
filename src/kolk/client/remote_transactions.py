"""Transactions of a server: the part of ``Connection`` that is about them.

Every call can be made again when its answer was lost: the server knows a batch by its handle and number, a seal by its
handle, and a commit by its handles, which are drawn anew for every attempt of a transaction.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from kolk.client.retry import Deadline
from kolk.errors import KolkError
from kolk.model.ids import TableId
from kolk.model.transaction import CommitRequest, CommitResult, Seal, Staging, TransactionInfo, Verdict
from kolk.wire import messages as m
from kolk.wire import transactions as t
from kolk.wire.rows import encode_rows, encode_schema

_COMMIT_SECONDS = 600.0
"""How long to wait for the answer to a commit: much that was staged takes its time. One that cannot be reached is given
up as in every other call."""


class RemoteTransactions:
    """See ``Service``. Thread-safe."""

    def _act(
        self,
        action: m.Action,
        deadline: Deadline | None = None,
        lost: list[KolkError] | None = None,
        patience: Deadline | None = None,
    ) -> Any:
        raise NotImplementedError

    def _sent(self, message: pa.Buffer) -> Any:
        raise NotImplementedError

    def _deadline(self, seconds: float) -> Deadline:
        raise NotImplementedError

    def _soon(self) -> Deadline:
        raise NotImplementedError

    def stage(self, staging: Staging, number: int, rows: pa.RecordBatch) -> None:
        """See ``Service``."""
        head = t.Stage(**_fields(staging), number=number, schema=encode_schema(rows.schema))
        self._sent(m.join(head, encode_rows(rows)))

    def keep_staged(self, staging: Staging) -> None:
        """See ``Service``."""
        self._act(t.KeepHandle(**_fields(staging)))

    def seal(self, staging: Staging, batches: int) -> Seal:
        """See ``Service``."""
        return m.as_record(self._act(t.SealHandle(**_fields(staging), batches=batches)), Seal)

    def commit_transaction(self, request: CommitRequest) -> CommitResult:
        """See ``Service``."""
        tables = [
            t.CommitTable(table, list(request.handles[table]), table in request.truncates) for table in request.tables
        ]
        call = t.Commit(
            app=request.app, version=request.version, tables=tables, rows=request.rows, checksum=request.checksum
        )
        found = m.as_record(self._act(call, patience=self._deadline(_COMMIT_SECONDS)), t.Committed)
        return CommitResult(
            verdict=Verdict(found.verdict), offsets={TableId(table): ends for table, ends in found.offsets.items()}
        )

    def discard(self, handles: Sequence[str]) -> int:
        """See ``Service``. What is left goes by itself, so nobody waits long for it."""
        return self._act(t.Discard(list(handles)), self._soon())

    def list_transactions(self) -> list[TransactionInfo]:
        """See ``Service``. They come in pieces."""
        found: list[TransactionInfo] = []
        while records := self._act(t.ListTransactions(after=found[-1].app if found else None)):
            found += m.as_record(records, list[TransactionInfo])
        return found


def _fields(staging: Staging) -> dict[str, Any]:
    return {
        "handle": staging.handle,
        "app": staging.app,
        "version": staging.version,
        "table": staging.table,
        "schema_id": staging.schema_id,
        "action": staging.action.value,
        "columns": None if staging.columns is None else list(staging.columns),
        "mode": staging.mode.value,
    }
