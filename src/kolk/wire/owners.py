"""The messages about owners of columns. They are answered with values of the model: ``OwnerRecord``, ``OwnerInfo`` and
``Task``.

Each can be sent again when its answer was lost: a beginning is known by its token, a put by its count, and a commit by
its epoch; one more ticket for a task harms nobody, and what was let go is gone.
"""

from typing import Annotated

import msgspec

from kolk.model.owner import NAME_LENGTH_MAX
from kolk.wire.message import Message, Names, Number, OfWrite, Table

Owner = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Word = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
Seqs = Annotated[dict[str, Number], msgspec.Meta(max_length=100_000)]
Tickets = Annotated[dict[str, tuple[Number, Number]], msgspec.Meta(max_length=100_000)]


class BeginOwner(Message, frozen=True, kw_only=True, tag="begin_owner"):
    """Take columns, and take back what was left uncommitted; see ``kolk.model.owner.Claim``. Answered with
    ``OwnerRecord``."""

    table: Table
    owner: Owner
    columns: Names | None = None
    ttl_seconds: float
    stream: Word = ""
    resume_epoch: Number | None = None
    undo: Word = "always"
    reset: bool = False
    attempt: Word = ""


class PutOwned(OfWrite, frozen=True, kw_only=True, tag="put_owned"):
    """Rows that an owner writes; see ``kolk.model.ids.OwnerTag``. Whether a task is through only its seal says."""

    number: Number
    fence: Number
    ticket: Number = 0
    epoch: Number
    seq: Number


class OfOwner(Message, frozen=True, kw_only=True):
    """Who an owner is, since it has begun."""

    table: Table
    number: Number
    fence: Number


class CommitOwner(OfOwner, frozen=True, kw_only=True, tag="commit_owner"):
    """Let an epoch, and those before it, stand. ``seqs`` are its last puts by bucket. Answered with ``OwnerRecord``."""

    epoch: Number
    seqs: Seqs
    state: bytes = b""


class RenewOwner(OfOwner, frozen=True, kw_only=True, tag="renew_owner"):
    """Let the time of a lock begin anew. Answered with how long that is."""


class RestOwner(OfOwner, frozen=True, kw_only=True, tag="rest_owner"):
    """Take back what is not committed, and let the columns go."""


class ReleaseOwner(Message, frozen=True, kw_only=True, tag="release_owner"):
    """Forget an owner: the caller's, by its number and fence, or without them whoever's it is. Answered with whether
    there was one."""

    table: Table
    owner: Owner
    number: Number | None = None
    fence: Number | None = None
    keep: bool = False


class BeginTask(OfOwner, frozen=True, kw_only=True, tag="begin_task"):
    """One more attempt at a task of an epoch. Answered with ``Task``."""

    epoch: Number
    partition: Number


class SealTask(OfOwner, frozen=True, kw_only=True, tag="seal_task"):
    """Let an attempt be what its task leaves. ``seqs`` are its last puts by bucket."""

    partition: Number
    ticket: Number
    seqs: Seqs
    message: bytes = b""


class CommitTasks(OfOwner, frozen=True, kw_only=True, tag="commit_tasks"):
    """Let an epoch stand: what these tickets have written. ``tasks`` are the ticket and its last put by bucket;
    ``unsealed`` says that tasks need not have said themselves that they are through."""

    epoch: Number
    tasks: Tickets
    state: bytes = b""
    unsealed: bool = False


class ListOwners(Message, frozen=True, tag="owners"):
    """The owners of tables that the caller may see, those after a table's name and an owner's.

    An answer holds some of them; one that is empty is the end.
    """

    after: tuple[str, str] | None = None


AboutOwners = (
    BeginOwner | CommitOwner | RenewOwner | RestOwner | ReleaseOwner | BeginTask | SealTask | CommitTasks | ListOwners
)
