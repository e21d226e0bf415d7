"""Rows under one handle: cut into pieces, numbered, sealed. For transactions of one process, and for those of many.

A handle holds writes of one kind: one table in one version, one action, the same target columns, one mode. Nothing of
it counts before a commit names it, so that whoever fails in the middle may leave it: it goes by itself. Whoever is
slow must not fail for that: while a handle is open its process tells the server that it is still there.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa

from kolk.client.link import Link
from kolk.errors import KolkError, StagingGone
from kolk.model.ids import TableId
from kolk.model.schema import Schema
from kolk.model.transaction import HANDLES_MAX, Seal, Staging
from kolk.model.write import Write
from kolk.runtime.ticker import Ticker

_STAGED_ROWS = 100_000
_STAGED_BYTES = 8 * 2**20
"""About how much is staged at once: a message holds 64 MiB, and the values of some rows may be much longer."""
_HANDLE_BYTES = 16
_KEPT_SECONDS = 60.0
"""How often an open handle is kept. A server lets one go after ten minutes, unless it is told a shorter time."""


class StagedWrites:
    """What is staged under one handle. Confined to one thread; another one keeps it until it is sealed or closed."""

    def __init__(self, link: Link, staging: Staging) -> None:
        self._link = link
        self._staging = staging
        self._batches = 0
        self._has_failed = False
        self._ticker = Ticker(
            partial(_turn, weakref.ref(self)), seconds=_KEPT_SECONDS, clock=link.clock, name="kolk-staging"
        )
        self._unclosed = weakref.finalize(self, self._ticker.stop)
        self._unclosed.atexit = False

    @staticmethod
    def begin(link: Link, app: str, version: int, table: TableId, schema: Schema, write: Write) -> "StagedWrites":
        """A handle of its own for writes such as this one, which is not staged yet."""
        columns = _ids(schema, write)
        staging = Staging(
            handle=link.rng.token_hex(_HANDLE_BYTES),
            app=app,
            version=version,
            table=table,
            schema_id=write.schema_id,
            action=write.action,
            columns=columns,
            mode=write.mode,
        )
        return StagedWrites(link, staging)

    @property
    def handle(self) -> str:
        """The name that a commit gives it."""
        return self._staging.handle

    def takes(self, schema: Schema, write: Write) -> bool:
        """Whether this is a write of the same kind."""
        own = self._staging
        return (own.schema_id, own.action, own.columns, own.mode) == (
            write.schema_id,
            write.action,
            _ids(schema, write),
            write.mode,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        """Stage rows, in pieces if they are many. After an error nobody knows which of them are staged, and a number
        must not be used for others: so nothing can be added then, nor sealed."""
        self._check_whole()
        if not self._batches:
            self._ticker.start()
        self._has_failed = True
        for piece in pieces(rows):
            self._link.service.stage(self._staging, self._batches, piece)
            self._batches += 1
        self._has_failed = False

    def seal(self) -> Seal:
        """Make it durable; nothing is added afterwards."""
        self._check_whole()
        self.close()
        return self._link.service.seal(self._staging, self._batches)

    def close(self) -> None:
        """Keep it no longer. What is not sealed goes by itself. Idempotent."""
        self._unclosed()

    def turn(self) -> None:
        """Keep it, as is due every minute. Called in the background. If it is gone, whoever adds or seals is told."""
        if self._batches and not self._has_failed:
            with suppress(KolkError):
                self._link.service.keep_staged(self._staging)

    def _check_whole(self) -> None:
        if self._has_failed:
            raise StagingGone("rows of this transaction could not be staged, so it cannot be committed; run it again")


def discard(link: Link, handles: Sequence[str]) -> None:
    """Forget what was staged, as well as it can be: what a commit needs stays, and what is left goes by itself."""
    with suppress(KolkError):
        for start in range(0, len(handles), HANDLES_MAX):
            link.service.discard(handles[start : start + HANDLES_MAX])


def pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows in pieces that are neither too many nor too large, one at least."""
    if rows.num_rows <= 1 or (rows.num_rows <= _STAGED_ROWS and rows.nbytes <= _STAGED_BYTES):
        yield rows
        return
    size = min(_STAGED_ROWS, max(rows.num_rows * _STAGED_BYTES // max(rows.nbytes, 1), 1), rows.num_rows - 1)
    for start in range(0, rows.num_rows, size):
        piece = rows.slice(start, size)
        yield from pieces(piece) if piece.nbytes > 2 * _STAGED_BYTES else (piece,)


def _turn(staged: "weakref.ref[StagedWrites]") -> None:
    found = staged()
    if found is not None:
        found.turn()


def _ids(schema: Schema, write: Write) -> tuple[int, ...] | None:
    return None if write.columns is None else tuple(schema.column(name).id for name in write.columns)
