"""The messages about transactions. They are answered with values of the model: ``Seal``, ``CommitResult`` (as
``Committed``) and ``TransactionInfo``.

Each can be sent again when its answer was lost: a batch is known by its handle and number, a seal by its handle, and a
commit by its handles.
"""

from typing import Annotated

import msgspec

from kolk.model.transaction import APP_LENGTH_MAX, HANDLES_MAX
from kolk.wire.message import Message, Number, Table, Version

App = Annotated[str, msgspec.Meta(min_length=1, max_length=APP_LENGTH_MAX)]
Handle = Annotated[str, msgspec.Meta(min_length=32, max_length=32)]
Handles = Annotated[list[Handle], msgspec.Meta(max_length=HANDLES_MAX)]
ColumnIds = Annotated[list[Number], msgspec.Meta(max_length=1_600)]


class OfHandle(Message, frozen=True, kw_only=True):
    """What a handle stands for; see ``kolk.model.transaction.Staging``. Whose it is the server knows."""

    handle: Handle
    app: App
    version: Number
    table: Table
    schema_id: Version
    action: str = "upsert"
    columns: ColumnIds | None = None
    mode: str = "accumulate"


class Stage(OfHandle, frozen=True, kw_only=True, tag="stage"):
    """Rows for a commit: the batch of this number. ``schema`` is their Arrow schema, as an IPC message."""

    number: Number
    schema: bytes


class KeepHandle(OfHandle, frozen=True, kw_only=True, tag="keep-staged"):
    """More is to come under a handle, so let its time begin anew. Answered with nothing."""


class SealHandle(OfHandle, frozen=True, kw_only=True, tag="seal"):
    """Make the batches of a handle durable. Answered with ``Seal``."""

    batches: Number


class CommitTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a commit is to do with a table: handles in the order in which they are merged."""

    table: Table
    handles: Handles
    truncate: bool = False


class Commit(Message, frozen=True, kw_only=True, tag="commit"):
    """Apply what was staged, once. Answered with ``Committed``."""

    app: App
    version: Number
    tables: Annotated[list[CommitTable], msgspec.Meta(min_length=1, max_length=10_000)]
    rows: Number | None = None
    checksum: Number | None = None


class Committed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a commit, and the end offsets of its buckets, by table."""

    verdict: str
    offsets: dict[int, dict[str, int]]


class Discard(Message, frozen=True, tag="discard"):
    """Forget what was staged: by the caller, or for tables that he may alter. Answered with how many there were."""

    handles: Handles


class ListTransactions(Message, frozen=True, tag="transactions"):
    """The transactions of tables that the caller may see, those of applications after this one.

    An answer holds some of them, all of an application or none; one that is empty is the end.
    """

    after: str | None = None


AboutTransactions = KeepHandle | SealHandle | Commit | Discard | ListTransactions
