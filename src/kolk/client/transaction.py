"""A transaction, for those who use it: rows are staged as they are put, and applied together when the block ends.

``with table.transaction("nightly-load", 42) as tx: tx.put(rows)`` applies its rows once, however often it is run: a
version that was committed is not committed again. A block that ends with an exception stages nothing for anybody.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

import pyarrow as pa

from kolk.client.handle import Handle
from kolk.client.link import Link
from kolk.client.rows import Data
from kolk.client.staging import StagedWrites, discard
from kolk.client.writes import delete_write, put_write, targets_of
from kolk.errors import DifferentRows, InvalidArgument, OldVersion, StagingGone
from kolk.model.ids import TableId
from kolk.model.names import TableName
from kolk.model.options import MergeMode
from kolk.model.schema import Schema
from kolk.model.transaction import CommitRequest, CommitResult, Reaction, Verdict, check_app, check_version
from kolk.model.write import Action, Write


class Transaction:
    """Writes to one or several tables that become visible together. Confined to one thread.

    After the block ``verdict`` says what became of it, and ``offsets`` where the logs of the tables end; also if it
    raised ``DifferentRows`` or ``OldVersion``, by ``on_different`` or ``on_old`` of ``fail``.
    """

    def __init__(
        self,
        link: Link,
        app_id: str,
        version: int,
        *,
        table: Handle | None = None,
        open_table: Callable[[str], Handle] | None = None,
        on_different: str = "answer",
        on_old: str = "answer",
    ) -> None:
        self.app_id = check_app(app_id)
        self.version = check_version(version)
        self._on_different = Reaction.parse("on_different", on_different)
        self._on_old = Reaction.parse("on_old", on_old)
        self._link = link
        self._open_table = open_table
        self._table = table
        self._tables: dict[TableId, Handle] = {}
        self._open: dict[TableId, StagedWrites] = {}
        self._handles: dict[TableId, list[str]] = {}
        self._truncates: set[TableId] = set()
        self._result: CommitResult | None = None
        self._is_over = False
        self._has_failed = False
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
        self._stage(target, schema, delete_write(schema, keys, targets_of(schema, columns), MergeMode.parse(mode)))

    def truncate(self, *, table: str | Handle | None = None) -> None:
        """Remove every row first: with what is put, the table is loaded anew in one step."""
        self._truncates.add(self._target(table).info.id)

    def commit(self) -> CommitResult:
        """Apply everything, once. The end of the block does it; whoever calls it has it done already then."""
        self._check_open()
        self._is_over = True
        try:
            self._check_whole()
            self._stage_something()
            for staged in self._open.values():
                # Another run that has committed this version has cleared it away: then the commit says so. Of rows that
                # are gone for another reason it says that, and commits nothing.
                with suppress(StagingGone):
                    staged.seal()
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
        self._check_expected(self._result.verdict)
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

    def __repr__(self) -> str:
        tables = ", ".join(table.name for table in self._tables.values()) or "no table yet"
        left = "not committed" if self._is_over else "open"
        stage = left if self._result is None else self._result.verdict.value
        return f"<kolk.Transaction {self.app_id!r} {self.version} of {tables}, {stage}>"

    # --- inside

    def _target(self, table: str | Handle | None) -> Handle:
        self._check_open()
        if table is None:
            if self._table is None:
                raise InvalidArgument("say of which table: tx.put(rows, table='web.pages')")
            return self._table
        found = table if isinstance(table, Handle) else self._named(table)
        if self._table is not None and (found is None or found.info.id != self._table.info.id):
            raise InvalidArgument(
                f"this transaction is one of {self._table.name}; db.transaction(...) is for several tables"
            )
        assert found is not None
        return self._known(found)

    def _named(self, table: str) -> Handle | None:
        """The table of this name; None for another one than that of a transaction of one table."""
        name = str(TableName.parse(table))
        known = [one for one in self._tables.values() if one.name == name]
        return known[0] if known else self._open_table(table) if self._open_table is not None else None

    def _known(self, table: Handle) -> Handle:
        self._handles.setdefault(table.info.id, [])
        return self._tables.setdefault(table.info.id, table)

    def _stage(self, table: Handle, schema: Schema, write: Write) -> None:
        self._check_whole()
        self._has_failed = True
        self._staged(table, schema, write).add(write.rows)
        self._has_failed = False

    def _stage_something(self) -> None:
        """A commit is known again by its handles when its answer was lost, so one of nothing has a handle, too."""
        if self._tables and not any(self._handles.values()):
            table = next(iter(self._tables.values()))
            schema = table.schema
            rows = pa.RecordBatch.from_pylist([], schema=pa.schema([column.arrow for column in schema.input_columns]))
            self._stage(table, schema, Write(action=Action.UPSERT, rows=rows, schema_id=schema.id))

    def _staged(self, table: Handle, schema: Schema, write: Write) -> StagedWrites:
        """The handle that these rows go to: the one before, if they are the same kind of write."""
        open_now = self._open.get(table.info.id)
        if open_now is not None:
            if open_now.takes(schema, write):
                return open_now
            open_now.seal()
        staged = StagedWrites.begin(self._link, self.app_id, self.version, table.info.id, schema, write)
        self._open[table.info.id] = staged
        self._handles[table.info.id].append(staged.handle)
        return staged

    def _discard(self) -> None:
        for staged in self._open.values():
            staged.close()
        discard(self._link, [handle for handles in self._handles.values() for handle in handles])

    def _check_whole(self) -> None:
        """After a put that failed nobody knows which of its rows are staged, and a number must not be used for others:
        so nothing of it is ever committed, also if whoever uses it goes on."""
        if self._has_failed:
            raise StagingGone("rows of this transaction could not be staged, so it cannot be committed; run it again")

    def _check_expected(self, verdict: Verdict) -> None:
        """Raise if whoever uses it takes this for a failure. Nothing was applied, now or then, that should not be."""
        if verdict is Verdict.DUPLICATE_DIFFERENT and self._on_different is Reaction.FAIL:
            raise DifferentRows(
                f"version {self.version} of {self.app_id!r} was committed before, with other rows, which stand: let the"
                " job give the same rows for the same version, or take the next version for these"
            )
        if verdict is Verdict.OLD and self._on_old is Reaction.FAIL:
            raise OldVersion(
                f"a later version than {self.version} of {self.app_id!r} was committed before, so nothing was applied:"
                " its checkpoint was lost or restored. Go on with greater versions, or under another app_id"
            )

    def _check_open(self) -> None:
        if self._is_over:
            raise InvalidArgument("this transaction is over; begin another one")

    def _finished(self) -> CommitResult:
        if self._result is None:
            raise InvalidArgument("this transaction was not committed (yet)")
        return self._result
