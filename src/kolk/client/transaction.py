"""A transaction, for those who use it: rows are staged as they are put, and applied together when the block ends.

``with table.transaction("nightly-load", 42) as tx: tx.put(rows)`` applies its rows once, however often it is run: a
version that was committed is not committed again. A block that ends with an exception stages nothing for anybody.
"""

from collections.abc import Callable, Sequence
from types import TracebackType

from kolk.client.handle import Handle
from kolk.client.link import Link
from kolk.client.rows import Data, key_batch
from kolk.client.writes import put_write, targets_of
from kolk.errors import InvalidArgument, KolkError, StagingGone
from kolk.model.ids import TableId
from kolk.model.options import MergeMode
from kolk.model.schema import Schema
from kolk.model.transaction import CommitRequest, CommitResult, Staging, Verdict, check_app, check_version
from kolk.model.write import Action, Write

_STAGED_ROWS = 100_000
_HANDLE_BYTES = 16


class Transaction:
    """Writes to one or several tables that become visible together. Confined to one thread.

    After the block ``verdict`` says what became of it, and ``offsets`` where the logs of the tables end.
    """

    def __init__(
        self,
        link: Link,
        app_id: str,
        version: int,
        *,
        table: Handle | None = None,
        open_table: Callable[[str], Handle] | None = None,
    ) -> None:
        self.app_id = check_app(app_id)
        self.version = check_version(version)
        self._link = link
        self._open_table = open_table
        self._table = table
        self._tables: dict[TableId, Handle] = {}
        self._open: dict[TableId, Staging] = {}
        self._handles: dict[TableId, list[str]] = {}
        self._staged: dict[str, int] = {}
        self._truncates: set[TableId] = set()
        self._result: CommitResult | None = None
        self._is_over = False
        if table is not None:
            self._known(table)

    @property
    def verdict(self) -> str:
        """``committed``; ``duplicate`` or ``duplicate-different`` if this version was committed before, ``old`` if a
        later one was: nothing was applied then."""
        return self._finished().verdict.value

    @property
    def is_new(self) -> bool:
        """Whether this very block was applied, and no earlier attempt of it."""
        return self._finished().verdict is Verdict.COMMITTED

    @property
    def offsets(self) -> dict[str, dict[str, int]]:
        """For each table the end offsets of the buckets that took part."""
        return {self._tables[table].name: dict(ends) for table, ends in self._finished().offsets.items()}

    def put(
        self,
        data: Data,
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        table: str | Handle | None = None,
    ) -> None:
        """As ``table.put``, applied with the commit. A transaction of the database says of which ``table``."""
        target = self._target(table)
        schema = target.schema
        self._stage(target, schema, put_write(schema, data, targets_of(schema, columns), MergeMode.parse(mode)))

    def delete(
        self,
        keys: Data,
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        table: str | Handle | None = None,
    ) -> None:
        """As ``table.delete``, applied with the commit."""
        target = self._target(table)
        schema = target.schema
        rows = key_batch(keys, schema)
        write = Write(
            action=Action.DELETE,
            rows=rows,
            columns=targets_of(schema, columns),
            mode=MergeMode.parse(mode),
            schema_id=schema.id,
        )
        self._stage(target, schema, write)

    def truncate(self, *, table: str | Handle | None = None) -> None:
        """Remove every row first: with what is put, the table is loaded anew in one step."""
        self._truncates.add(self._target(table).info.id)

    def commit(self) -> CommitResult:
        """Apply everything, once. The end of the block does it; whoever calls it has it done already then."""
        self._check_open()
        self._is_over = True
        try:
            for staging in self._open.values():
                self._seal(staging)
            self._result = self._link.service.commit_transaction(
                CommitRequest(
                    app=self.app_id,
                    version=self.version,
                    handles={table: tuple(handles) for table, handles in self._handles.items()},
                    truncates=frozenset(self._truncates),
                )
            )
        except BaseException:
            self._discard()
            raise
        return self._result

    def rollback(self) -> None:
        """Forget what was staged; nothing is applied. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self._discard()

    def __enter__(self) -> "Transaction":
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.rollback()
        elif not self._is_over:
            self.commit()

    # --- inside

    def _target(self, table: str | Handle | None) -> Handle:
        self._check_open()
        if table is None:
            if self._table is None:
                raise InvalidArgument("say of which table: tx.put(rows, table='web.pages')")
            return self._table
        if isinstance(table, str):
            table = self._table if self._table is not None and self._table.name == table else self._opened(table)
        found = table
        if self._table is not None and found.info.id != self._table.info.id:
            raise InvalidArgument(
                f"this transaction is one of {self._table.name}; db.transaction(...) is for several tables"
            )
        return self._known(found)

    def _opened(self, name: str) -> Handle:
        if self._open_table is None:
            assert self._table is not None
            raise InvalidArgument(
                f"this transaction is one of {self._table.name}; db.transaction(...) is for several tables"
            )
        return self._open_table(name)

    def _known(self, table: Handle) -> Handle:
        self._handles.setdefault(table.info.id, [])
        return self._tables.setdefault(table.info.id, table)

    def _stage(self, table: Handle, schema: Schema, write: Write) -> None:
        staging = self._staging(table, schema, write)
        for start in range(0, max(write.rows.num_rows, 1), _STAGED_ROWS):
            piece = write.rows.slice(start, _STAGED_ROWS)
            self._link.service.stage(staging, piece)
            self._staged[staging.handle] = self._staged.get(staging.handle, 0) + piece.num_rows

    def _seal(self, staging: Staging) -> None:
        """What is sealed must be what was staged: the handle may have gone meanwhile, and have begun anew."""
        sealed, staged = self._link.service.seal(staging).rows, self._staged.get(staging.handle, 0)
        if sealed != staged:
            raise StagingGone(
                f"{staged:,} rows were staged and {sealed:,} are there: the server forgot some, or has some twice; run"
                " the transaction again"
            )

    def _staging(self, table: Handle, schema: Schema, write: Write) -> Staging:
        """The handle that these rows go to: the one before, if they are the same kind of write."""
        columns = None if write.columns is None else tuple(schema.column(name).id for name in write.columns)
        open_now = self._open.get(table.info.id)
        wanted = (write.schema_id, write.action, columns, write.mode)
        if open_now is not None:
            if (open_now.schema_id, open_now.action, open_now.columns, open_now.mode) == wanted:
                return open_now
            self._seal(open_now)
        staging = Staging(
            handle=self._link.rng.token_hex(_HANDLE_BYTES),
            app=self.app_id,
            version=self.version,
            table=table.info.id,
            schema_id=write.schema_id,
            action=write.action,
            columns=columns,
            mode=write.mode,
        )
        self._open[table.info.id] = staging
        self._handles[table.info.id].append(staging.handle)
        return staging

    def _discard(self) -> None:
        """As well as it can be: what is left goes by itself."""
        handles = [handle for handles in self._handles.values() for handle in handles]
        try:
            if handles:
                self._link.service.discard(handles)
        except KolkError:
            return

    def _check_open(self) -> None:
        if self._is_over:
            raise InvalidArgument("this transaction is over; begin another one")

    def _finished(self) -> CommitResult:
        if self._result is None:
            raise InvalidArgument("this transaction was not committed (yet)")
        return self._result
